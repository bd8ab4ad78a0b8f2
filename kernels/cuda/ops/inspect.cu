/* Numbers for the log about tensors and gradients: largest magnitude, zeros, sum of squares.
 * Decides nothing by them. */
#include "loss.h"

static const int THREADS = 256;

/* ---- inspect ---- */

/* Counts are whole numbers, so atomics give the same result in any order. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    look(const T *__restrict__ x, size_t images, size_t size, size_t stride, unsigned c,
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
                   AMPK_LAUNCH(look<T>, blocks, THREADS, 0, ctx->stream, (const T *)x->data, images,
                               size, x->image_stride, (unsigned)x->c, (unsigned)ampk_pitch(x), amax,
                               zeros));
}

/* ---- sum of squares: n alone decides how it is split, and the parts are added in a fixed order
 * ---- */

static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    square(const float *__restrict__ x, size_t n, float *parts)
{
    float sum = 0;
    for (size_t i = ampk_first(); i < n; i += ampk_stride())
        sum += x[i] * x[i];
    sum = ampk_block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    add_parts(const float *parts, unsigned count, float *sum)
{
    float all = ampk_block_sum(threadIdx.x < count ? parts[threadIdx.x] : 0.f);
    if (threadIdx.x == 0) *sum = all;
}

extern "C" void ampk_cuda_sum_squares(struct ampk_context *ctx, const float *x, size_t n,
                                      float *sum)
{
    unsigned count = ampk_loss_parts(n); /* at most AMPK_LOSS_THREADS */
    float *parts = (float *)ampk_cuda_work(ctx, count * sizeof *parts);
    AMPK_LAUNCH(square, count, AMPK_LOSS_THREADS, 0, ctx->stream, x, n, parts);
    AMPK_LAUNCH(add_parts, 1, AMPK_LOSS_THREADS, 0, ctx->stream, parts, count, sum);
}
