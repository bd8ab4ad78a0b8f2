/* The arithmetic of batch-norm in kernels. All kernels use these functions, so that each value has
 * the same bits wherever it is computed. */
#ifndef AMPK_CUDA_BATCHNORM_H
#define AMPK_CUDA_BATCHNORM_H

#include "activation.h"
#include "rows.h"

/* to = from[channel...], four values at a time if the address allows it. */
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

/* One channel's statistics from sum(y - shift) and sum((y - shift)^2). The subtraction is double,
 * because it cancels. */
struct ampk_channel_statistics {
    float mean, variance, unbiased;

    __device__ __forceinline__ ampk_channel_statistics(enum ampk_bn_rule rule, double count,
                                                       float shift, double sum, double squares)
    {
        double spread = squares - sum * sum / count;
        if (count < 2 || spread < 0) spread = 0;
        unbiased = count < 2 ? 0 : (float)(spread / (count - 1));
        mean = (float)(shift + sum / count);
        variance = rule == AMPK_BN_CUDNN ? (float)(spread / count) : unbiased;
    }
    /* Returns the larger of `largest` and the magnitudes of the rolling statistics. */
    __device__ __forceinline__ uint32_t store(const ampk_bn_statistics &s, unsigned c,
                                              uint32_t largest) const
    {
        s.mean[c] = mean;
        s.variance[c] = variance;
        float to[2] = {ampk_roll(s.rolling_mean[c], mean),
                       ampk_roll(s.rolling_variance[c], unbiased)};
        s.rolling_mean[c] = to[0];
        s.rolling_variance[c] = to[1];
        return ampk_magnitude(to, largest);
    }
};

/* The parameters that forward needs of N channels: scale * x_hat = (y - mean) * factor. On a GPU
 * Darknet's rule is cuDNN's. Its reciprocal root is within 2 ulp and takes six instructions; a
 * root and a division take over twenty, one channel after the other. Every thread computes it for
 * eight channels. */
template <int N> struct ampk_normalizer {
    float mean[N], factor[N], bias[N];

    __device__ __forceinline__ ampk_normalizer(const ampk_batchnorm &bn, unsigned channel)
    {
        float variance[N];
        ampk_read_parameters(bn.mean, channel, mean);
        ampk_read_parameters(bn.variance, channel, variance);
        float scale[N];
        ampk_read_parameters(bn.scale, channel, scale);
        ampk_read_parameters(bn.bias, channel, bias);
        bool as_cpu = bn.rule == AMPK_BN_DARKNET_CPU;
#pragma unroll
        for (int i = 0; i < N; i++)
            factor[i] = as_cpu ? scale[i] / (sqrtf(variance[i]) + 1e-6f)
                               : scale[i] * rsqrtf(variance[i] + 1e-5f);
    }
    /* y - mean with the rounding that apply has, so that the compiler computes it once for both. */
    __device__ __forceinline__ float distance(int i, float y) const
    {
        return __fsub_rn(y, mean[i]);
    }
    /* The input of the activation. Rounding is spelt out (__fmaf_rn), so that backward finds the
     * same sign as forward. */
    __device__ __forceinline__ float apply(int i, float y) const
    {
        return __fmaf_rn(distance(i, y), factor[i], bias[i]);
    }
};

/* For after ampk_grid_sums: calls use(channel, first, second) for each channel of the block, where
 * first and second are the places of the channel's two sums in shared memory. All threads return.
 */
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

/* Arrays of c floats: dy = g*of_g + (y - mean)*of_y + constant */
struct ampk_coefficients {
    float *of_g, *of_y, *constant;
};

/* The same for N channels, in registers. */
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

/* A channel's dscale, dbias and coefficients of dy, from sum = sum(g) and product = sum(g * (y -
 * mean)). Every rule differentiates 1/sqrt(variance+1e-5) (kernels.h, ampk_bn_rule). */
struct ampk_channel_gradient {
    float dscale, dbias, of_g, of_y, constant;

    __device__ __forceinline__ ampk_channel_gradient(const ampk_batchnorm &bn, unsigned c,
                                                     float count, float sum, float product)
    {
        float variance = bn.variance[c], inverse = 1 / sqrtf(variance + 1e-5f);
        of_g = bn.scale[c] * inverse;
        dbias = sum;
        dscale = bn.rule == AMPK_BN_DARKNET_CPU ? product / (sqrtf(variance) + 1e-6f)
                                                : product * inverse;
        of_y = -of_g * inverse * inverse * (product / count);
        constant = -of_g * (sum / count);
    }
};

/* Stores what ampk_channel_gradient computes. */
static __device__ __forceinline__ void ampk_finish_channel(const ampk_batchnorm &bn, unsigned c,
                                                           float count, float sum, float product,
                                                           float *dscale, float *dbias,
                                                           const ampk_coefficients &to)
{
    const ampk_channel_gradient of(bn, c, count, sum, product);
    dscale[c] = of.dscale;
    dbias[c] = of.dbias;
    to.of_g[c] = of.of_g;
    to.of_y[c] = of.of_y;
    to.constant[c] = of.constant;
}

/* The same for all channels whose sums ampk_grid_sums left in `shared`. With other processes the
 * sums go where the first two coefficients will be, for ampk_cuda_share_sums. */
template <typename A>
static __device__ __forceinline__ void
ampk_finish_channels(const ampk_cover &cover, const ampk_batchnorm &bn, float count,
                     const float *shared, float *dscale, float *dbias, const ampk_coefficients &to,
                     uint32_t *db_amax)
{
    uint32_t largest = 0;
    ampk_for_channels<A>(cover, [&](unsigned c, unsigned first, unsigned second) {
        if (bn.peers) {
            to.of_g[c] = shared[first];
            to.of_y[c] = shared[second];
            return;
        }
        ampk_finish_channel(bn, c, count, shared[first], shared[second], dscale, dbias, to);
        largest = ampk_larger(largest, ampk_magnitude(dscale[c]));
        largest = ampk_larger(largest, ampk_magnitude(dbias[c]));
    });
    ampk_raise_amax(db_amax, largest);
}

/* ---- cells: a cell is the part of the image under a window of a maxpool of 2 x 2 by 2 ---- */

static const int AMPK_CELL = 4;         /* pixels: 0 1 above 2 3; argmax counts them so */
static const uint32_t AMPK_NOWHERE = 4; /* argmax if nothing exceeds -FLT_MAX */

/* N channels of a cell and the gradient there. */
template <int N> struct ampk_cell_gradient {
    float y[AMPK_CELL][N];
    uint32_t chosen[N]; /* the pixel with the maximum */
    float at[N];        /* y there */
    float g[N];         /* the gradient before the activation there; 0 elsewhere */

    /* Computes at and g from y, chosen and the gradient at the maximum. */
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

/* ---- the first of backward's two kernels ----
 *
 * The first kernel must have read everything before the second can store one dy: dy depends on the
 * sums over all pixels. */

/* Computes dscale and dbias, and puts dy's coefficients at the beginning of the work memory. */
struct ampk_coefficients ampk_cuda_sum_gradient(struct ampk_context *,
                                                const struct ampk_layer_gradient *, float *dscale,
                                                float *dbias, uint32_t *db_amax);
/* The same with argmax. */
struct ampk_coefficients ampk_cuda_sum_pooled_gradient(struct ampk_context *,
                                                       const struct ampk_layer_gradient *,
                                                       float *dscale, float *dbias,
                                                       uint32_t *db_amax);

/* After either kernel: makes the coefficients, dscale and dbias of the means of all processes'
 * sums. count: values of a channel here. */
void ampk_cuda_share_sums(struct ampk_context *, const struct ampk_batchnorm *, unsigned channels,
                          unsigned count, const struct ampk_coefficients *, float *dscale,
                          float *dbias, uint32_t *db_amax);

/* How many vectors of c floats stand at the beginning of the work memory. */
static const int AMPK_COEFFICIENTS = 3;

static inline struct ampk_coefficients ampk_coefficients_at(float *work, size_t c)
{
    return {work, work + c, work + 2 * c};
}

#endif
