/* Flat FP32 arrays, one at a time: largest magnitude, scaling, accumulation. Lists of arrays are
 * lists.cu's. Products and sums are rounded one by one (no fused multiply-add), so that the bits
 * are the CPU backend's. */
#include "device.h"

/* 256 threads give full occupancy on every architecture, and a partly filled last block costs
 * little. */
static const int THREADS = 256;

/* Every operation is a loop over pieces of N floats, N = 4 if addresses allow it. `i` is the first
 * element of a piece; the last piece may have fewer than N. */

/* ---- amax ---- */

template <int N>
static __global__ void __launch_bounds__(THREADS)
    find_amax(const float *__restrict__ x, size_t n, uint32_t *amax)
{
    uint32_t largest = 0;
    for (size_t i = ampk_first() * N; i < n; i += ampk_stride() * N) {
        if (n - i >= N) {
            float v[N];
            ampk_load(x + i, v);
            largest = ampk_magnitude(v, largest);
        } else {
#pragma unroll 1
            for (size_t k = i; k < n; k++)
                largest = ampk_larger(largest, ampk_magnitude(x[k]));
        }
    }
    ampk_raise_amax(amax, largest);
}

/* ---- scale ---- */

template <int N>
static __global__ void __launch_bounds__(THREADS) scale_by(float *x, size_t n, float factor)
{
    for (size_t i = ampk_first() * N; i < n; i += ampk_stride() * N) {
        if (n - i >= N) {
            float v[N];
            ampk_load(x + i, v);
#pragma unroll
            for (int k = 0; k < N; k++)
                v[k] = __fmul_rn(v[k], factor);
            ampk_store(x + i, v);
        } else {
#pragma unroll 1
            for (size_t k = i; k < n; k++)
                x[k] = __fmul_rn(x[k], factor);
        }
    }
}

/* ---- accumulate ---- */

template <int N>
static __global__ void __launch_bounds__(THREADS)
    accumulate_to(const float *__restrict__ g, size_t n, float factor, float *__restrict__ sum)
{
    for (size_t i = ampk_first() * N; i < n; i += ampk_stride() * N) {
        if (n - i >= N) {
            float v[N], s[N];
            ampk_load(g + i, v);
            ampk_load(sum + i, s);
#pragma unroll
            for (int k = 0; k < N; k++)
                s[k] = __fadd_rn(s[k], __fmul_rn(v[k], factor));
            ampk_store(sum + i, s);
        } else {
#pragma unroll 1
            for (size_t k = i; k < n; k++)
                sum[k] = __fadd_rn(sum[k], __fmul_rn(g[k], factor));
        }
    }
}

/* ---- launches ---- */

/* Whether p can be read in pieces of four floats. */
static bool is_wide(const void *p)
{
    return ampk_fits<float, 4>(p, 0);
}

static unsigned blocks_for(const struct ampk_context *ctx, size_t n, int floats)
{
    return ampk_cuda_blocks(ctx, n, THREADS * floats, THREADS);
}

extern "C" void ampk_cuda_amax(struct ampk_context *ctx, const float *x, size_t n, uint32_t *amax)
{
    if (!n || !amax) return;
    if (is_wide(x))
        AMPK_LAUNCH(find_amax<4>, blocks_for(ctx, n, 4), THREADS, 0, ctx->stream, x, n, amax);
    else
        AMPK_LAUNCH(find_amax<1>, blocks_for(ctx, n, 1), THREADS, 0, ctx->stream, x, n, amax);
}

extern "C" void ampk_cuda_scale(struct ampk_context *ctx, float *x, size_t n, float factor)
{
    if (!n) return;
    if (is_wide(x))
        AMPK_LAUNCH(scale_by<4>, blocks_for(ctx, n, 4), THREADS, 0, ctx->stream, x, n, factor);
    else
        AMPK_LAUNCH(scale_by<1>, blocks_for(ctx, n, 1), THREADS, 0, ctx->stream, x, n, factor);
}

extern "C" void ampk_cuda_accumulate(struct ampk_context *ctx, const float *g, size_t n,
                                     float factor, float *sum)
{
    if (!n) return;
    if (is_wide(g) && is_wide(sum))
        AMPK_LAUNCH(accumulate_to<4>, blocks_for(ctx, n, 4), THREADS, 0, ctx->stream, g, n, factor,
                    sum);
    else
        AMPK_LAUNCH(accumulate_to<1>, blocks_for(ctx, n, 1), THREADS, 0, ctx->stream, g, n, factor,
                    sum);
}
