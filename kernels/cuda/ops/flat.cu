/* Flat FP32 arrays: largest magnitude, scaling and accumulation of one; copies of lists of them, in
 * a few launches for a network; numbers for the log. Products and sums are rounded one by one (no
 * fused multiply-add), so that the bits are the CPU backend's. */
#include "apply.h"
#include "loss.h"

/* 256 threads give full occupancy on every architecture, and a partly filled last block costs
 * little. */
static const int THREADS = 256;

/* ---- one array ----
 * Every operation is a loop over pieces of N floats, N = 4 if addresses allow it. `i` is the first
 * element of a piece; the last piece may have fewer than N. */

template <int N>
static __global__ void __launch_bounds__(THREADS)
    ampk_find_amax(const float *__restrict__ x, size_t n, uint32_t *amax)
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

template <int N>
static __global__ void __launch_bounds__(THREADS) ampk_scale_by(float *x, size_t n, float factor)
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

template <int N>
static __global__ void __launch_bounds__(THREADS)
    ampk_accumulate_to(const float *__restrict__ g, size_t n, float factor, float *__restrict__ sum)
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
        AMPK_LAUNCH(ampk_find_amax<4>, blocks_for(ctx, n, 4), THREADS, 0, ctx->stream, x, n, amax);
    else
        AMPK_LAUNCH(ampk_find_amax<1>, blocks_for(ctx, n, 1), THREADS, 0, ctx->stream, x, n, amax);
}

extern "C" void ampk_cuda_scale(struct ampk_context *ctx, float *x, size_t n, float factor)
{
    if (!n) return;
    if (is_wide(x))
        AMPK_LAUNCH(ampk_scale_by<4>, blocks_for(ctx, n, 4), THREADS, 0, ctx->stream, x, n, factor);
    else
        AMPK_LAUNCH(ampk_scale_by<1>, blocks_for(ctx, n, 1), THREADS, 0, ctx->stream, x, n, factor);
}

extern "C" void ampk_cuda_accumulate(struct ampk_context *ctx, const float *g, size_t n,
                                     float factor, float *sum)
{
    if (!n) return;
    if (is_wide(g) && is_wide(sum))
        AMPK_LAUNCH(ampk_accumulate_to<4>, blocks_for(ctx, n, 4), THREADS, 0, ctx->stream, g, n,
                    factor, sum);
    else
        AMPK_LAUNCH(ampk_accumulate_to<1>, blocks_for(ctx, n, 1), THREADS, 0, ctx->stream, g, n,
                    factor, sum);
}

/* ---- copies ---- */

struct copy {
    template <int N> __device__ __forceinline__ void on(const ampk_span_item &p, size_t i) const
    {
        float x[N];
        ampk_load(p.src + i, x);
        ampk_store(p.dst + i, x);
    }
};

static ampk_span_item make_item(const struct ampk_span &s, const copy &)
{
    return {s.dst, s.src, s.n};
}

extern "C" void ampk_cuda_copy_many(struct ampk_context *ctx, const struct ampk_span *spans,
                                    int count)
{
    ampk_apply_to<ampk_span_item>(ctx, spans, count, copy());
}

/* ---- numbers for the log, which decide nothing here: largest magnitude and zeros ---- */

/* Counts are whole numbers, so atomics give the same result in any order. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    ampk_look(const T *__restrict__ x, size_t images, size_t size, size_t stride, unsigned c,
              unsigned pitch, uint32_t *amax, uint32_t *zeros)
{
    uint32_t largest = 0, count = 0;
    for (size_t i = ampk_first(); i < images * size; i += ampk_stride()) {
        size_t image = i / size, at = i - image * size;
        if (pitch != c) at += at / c * (pitch - c);
        uint32_t magnitude = ampk_magnitude(ampk_to_float(x[image * stride + at]));
        largest = ampk_larger(largest, magnitude);
        count += magnitude == 0;
    }
    ampk_raise_amax(amax, largest);
    for (int lanes = AMPK_WARP / 2; lanes > 0; lanes /= 2)
        count += __shfl_xor_sync(0xffffffffu, count, lanes);
    if (threadIdx.x % AMPK_WARP == 0 && count) atomicAdd(zeros, count);
}

extern "C" void ampk_cuda_inspect(struct ampk_context *ctx, const struct ampk_tensor *x,
                                  uint32_t *amax, uint32_t *zeros)
{
    size_t images = x->n, size = ampk_image_size(x);
    if (!images || !size) return;
    unsigned blocks = ampk_cuda_blocks(ctx, images * size, THREADS * 8, THREADS);
    AMPK_WITH_TYPE(x->dtype, T,
                   AMPK_LAUNCH(ampk_look<T>, blocks, THREADS, 0, ctx->stream, (const T *)x->data,
                               images, size, x->image_stride, (unsigned)x->c,
                               (unsigned)ampk_pitch(x), amax, zeros));
}

/* ---- sum of squares: n alone decides how it is split, and the parts are added in a fixed order
 * ---- */

static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    ampk_square(const float *__restrict__ x, size_t n, float *parts)
{
    float sum = 0;
    for (size_t i = ampk_first(); i < n; i += ampk_stride())
        sum += x[i] * x[i];
    sum = ampk_block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(1024)
    ampk_add_square_parts(const float *parts, unsigned count, float *sum, bool adds)
{
    float all = 0;
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x)
        all += parts[i];
    all = ampk_block_sum(all);
    if (threadIdx.x == 0) *sum = adds ? *sum + all : all;
}

/* One block, with as many threads as there are parts, 1024 at most. */
void ampk_add_squares(struct ampk_context *ctx, const float *parts, unsigned count, float *sum,
                      bool adds)
{
    unsigned threads = count < 1024 ? (count / AMPK_WARP + 1) * AMPK_WARP : 1024;
    AMPK_LAUNCH(ampk_add_square_parts, 1, threads, 0, ctx->stream, parts, count, sum, adds);
}

extern "C" void ampk_cuda_sum_squares(struct ampk_context *ctx, const float *x, size_t n,
                                      float *sum)
{
    unsigned count = ampk_loss_parts(n);
    float *parts = (float *)ampk_cuda_work(ctx, count * sizeof *parts);
    AMPK_LAUNCH(ampk_square, count, AMPK_LOSS_THREADS, 0, ctx->stream, x, n, parts);
    ampk_add_squares(ctx, parts, count, sum, false);
}
