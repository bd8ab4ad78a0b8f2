/* The arithmetic of batch-norm in kernels, the same bits wherever it is done. */
#ifndef AMPK_CUDA_BATCHNORM_H
#define AMPK_CUDA_BATCHNORM_H

#include "activation.h"
#include "sums.h"

/* to = from[channel...]; four at a time where the address allows it. */
template <int N>
static __device__ __forceinline__ void ampk_read_parameters(const float *from, unsigned channel,
                                                            float (&to)[N])
{
    from += channel;
    if (N % 4 == 0 && (uintptr_t)from % 16 == 0) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            float four[4];
            ampk_load(from + 4 * i, four);
#pragma unroll
            for (int k = 0; k < 4; k++)
                to[4 * i + k] = four[k];
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = from[i];
    }
}

static __device__ __forceinline__ float ampk_roll(float rolling, float batch)
{
    return .99f * rolling + .01f * batch;
}

/* One channel's statistics from sum(y - shift) and sum((y - shift)^2); returns the larger of
 * `largest` and the magnitudes of what rolls on. */
static __device__ __forceinline__ uint32_t ampk_take_channel(const ampk_bn_statistics &s,
                                                             unsigned c, double count, float shift,
                                                             double sum, double squares,
                                                             uint32_t largest)
{
    double spread = squares - sum * sum / count;
    if (count < 2 || spread < 0) spread = 0;
    float unbiased = count < 2 ? 0 : (float)(spread / (count - 1));
    float middle = (float)(shift + sum / count);
    s.mean[c] = middle;
    s.variance[c] = s.rule == AMPK_BN_CUDNN ? (float)(spread / count) : unbiased;
    float to[2] = {ampk_roll(s.rolling_mean[c], middle),
                   ampk_roll(s.rolling_variance[c], unbiased)};
    s.rolling_mean[c] = to[0];
    s.rolling_variance[c] = to[1];
    return ampk_magnitude(to, largest);
}

/* What forward needs of N channels: scale * x_hat = (y - mean) * factor. On a GPU Darknet's rule is
 * cuDNN's; its reciprocal root is within 2 ulp, in six instructions where a root and a division
 * take over twenty, one channel after the other: every thread does it for eight channels. */
template <int N> struct ampk_normalizer {
    float mean[N], factor[N], bias[N];

    __device__ __forceinline__ ampk_normalizer(const ampk_batchnorm &bn, unsigned channel)
    {
        float variance[N], scale[N];
        ampk_read_parameters(bn.mean, channel, mean);
        ampk_read_parameters(bn.variance, channel, variance);
        ampk_read_parameters(bn.scale, channel, scale);
        ampk_read_parameters(bn.bias, channel, bias);
        bool as_cpu = bn.rule == AMPK_BN_DARKNET_CPU;
#pragma unroll
        for (int i = 0; i < N; i++)
            factor[i] = as_cpu ? scale[i] / (sqrtf(variance[i]) + 1e-6f)
                               : scale[i] * rsqrtf(variance[i] + 1e-5f);
    }
    /* y - mean, as apply has it, so that the compiler computes it once for both. */
    __device__ __forceinline__ float distance(int i, float y) const
    {
        return __fsub_rn(y, mean[i]);
    }
    /* What goes into the activation, the same bits wherever it is computed. */
    __device__ __forceinline__ float apply(int i, float y) const
    {
        return __fmaf_rn(distance(i, y), factor[i], bias[i]);
    }
};

/* After ampk_grid_sums: calls use(channel, first, second), where the channel's two sums are in
 * shared memory, for each channel of the block. All threads come back. */
template <typename A, typename Use>
static __device__ __forceinline__ void ampk_for_channels(const ampk_cover &cover, Use use)
{
    unsigned lane_mask = (1u << cover.lane_bits) - 1;
    unsigned count = (unsigned)A::width << cover.lane_bits;
    for (unsigned place = threadIdx.x; place < count; place += blockDim.x) {
        unsigned vector = (blockIdx.x << cover.lane_bits) + (place & lane_mask);
        unsigned channel = vector * A::width + (place >> cover.lane_bits);
        if (channel < cover.channels) use(channel, place, place + count);
    }
}

/* dy = g*of_g + (y - mean)*of_y + constant */
struct ampk_coefficients {
    float *of_g, *of_y, *constant;
};

/* The same of N channels. */
template <int N> struct ampk_gradient_factors {
    float of_g[N], of_y[N], constant[N];

    __device__ __forceinline__ ampk_gradient_factors(const ampk_coefficients &from,
                                                     unsigned channel)
    {
        ampk_read_parameters(from.of_g, channel, of_g);
        ampk_read_parameters(from.of_y, channel, of_y);
        ampk_read_parameters(from.constant, channel, constant);
    }
    __device__ __forceinline__ float apply(int i, float distance, float g) const
    {
        return fmaf(g, of_g[i], fmaf(distance, of_y[i], constant[i]));
    }
};

/* dscale, dbias and the coefficients of dy, from sum = sum(g), product = sum(g * (y - mean)). */
static __device__ __forceinline__ void ampk_finish_channel(const ampk_batchnorm &bn, unsigned c,
                                                           float count, float sum, float product,
                                                           float *dscale, float *dbias,
                                                           const ampk_coefficients &to)
{
    float variance = bn.variance[c], inverse = 1 / sqrtf(variance + 1e-5f);
    float a = bn.scale[c] * inverse;
    dbias[c] = sum;
    dscale[c] =
        bn.rule == AMPK_BN_DARKNET_CPU ? product / (sqrtf(variance) + 1e-6f) : product * inverse;
    to.of_g[c] = a;
    to.of_y[c] = -a * inverse * inverse * (product / count);
    to.constant[c] = -a * (sum / count);
}

/* ---- cells: a window's part of the image, where a maxpool of 2 x 2 by 2 follows ---- */

static const int AMPK_CELL = 4; /* pixels: 0 1 above 2 3, as in the window, which is argmax */
static const uint32_t AMPK_NOWHERE = 4; /* argmax where nothing exceeds -FLT_MAX */

/* N channels of a cell and the gradient there. */
template <int N> struct ampk_cell_gradient {
    float y[AMPK_CELL][N];
    uint32_t chosen[N]; /* where the maximum is */
    float at[N];        /* y there */
    float g[N];         /* the gradient before the activation there; elsewhere it is 0 */

    /* at and g, from all else and the gradient at the maximum. */
    __device__ __forceinline__ void find(const ampk_normalizer<N> &layer, ampk_slope activation,
                                         const float (&d)[N])
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            at[i] = y[0][i];
#pragma unroll
            for (int k = 1; k < AMPK_CELL; k++)
                if (chosen[i] == (uint32_t)k) at[i] = y[k][i];
            g[i] = activation.backward(chosen[i] == AMPK_NOWHERE ? 0 : d[i], layer.apply(i, at[i]));
        }
    }
    /* dy of a pixel. */
    __device__ __forceinline__ float pass(const ampk_normalizer<N> &layer,
                                          const ampk_gradient_factors<N> &factors, int k,
                                          int i) const
    {
        return factors.apply(i, layer.distance(i, y[k][i]), chosen[i] == (uint32_t)k ? g[i] : 0);
    }
};

/* ---- the first of backward's two kernels ---- */

/* dscale and dbias, and dy's coefficients at the beginning of the work memory. */
struct ampk_coefficients ampk_cuda_sum_gradient(struct ampk_context *,
                                                const struct ampk_layer_gradient *, float *dscale,
                                                float *dbias, uint32_t *db_amax);
/* The same with argmax. */
struct ampk_coefficients ampk_cuda_sum_pooled_gradient(struct ampk_context *,
                                                       const struct ampk_layer_gradient *,
                                                       float *dscale, float *dbias,
                                                       uint32_t *db_amax);

/* Vectors of c floats at the beginning of the work memory, and what is behind them. */
static const int AMPK_COEFFICIENTS = 3;

static inline struct ampk_coefficients ampk_coefficients_at(float *work, size_t c)
{
    return {work, work + c, work + 2 * c};
}

#endif
