/* Max-pooling and global average pooling of NHWC tensors. A thread has some channels of a pixel
 * and walks that pixel's window. */
#include "rows.h"

/* ---- max-pooling ---- */

static __device__ __forceinline__ int at_most(int a, int b)
{
    return a < b ? a : b;
}

static __device__ __forceinline__ int at_least(int a, int b)
{
    return a > b ? a : b;
}

struct pool {
    int size, stride, offset; /* in pixels; window i starts at i*stride - offset */
    ampk_sides input, windows;
};

/* Darknet pads by pad/2 at the top and left; the caller gives the number of windows. */
static struct pool make_pool(int size, int stride, int pad, const struct ampk_tensor *x,
                             const struct ampk_tensor *y)
{
    return {size, stride, pad / 2, {x->h, x->w}, {y->h, y->w}};
}

/* The maximum of each window and its place. A comparison with NaN is false, so a NaN is never the
 * maximum, as in Darknet. */
template <typename A, typename Index>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS, 4)
    pool_max(ampk_cover cover, pool p, ampk_view x, ampk_view y, Index *index)
{
    const int N = A::width;
    unsigned channel = ampk_channel<A>(cover);
    if (channel >= cover.channels) return;
    for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
        ampk_pixel at(row, p.windows);
        int top = at.h * p.stride - p.offset, left = at.w * p.stride - p.offset;
        int bottom = at_most(top + p.size, p.input.h), right = at_most(left + p.size, p.input.w);
        float largest[N];
        uint32_t place[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            largest[i] = -FLT_MAX;
            place[i] = (uint32_t)(p.size * p.size);
        }
        for (int h = at_least(top, 0); h < bottom; h++)
            for (int w = at_least(left, 0); w < right; w++) {
                uint32_t here = (uint32_t)((h - top) * p.size + w - left);
                float v[N];
                A::load(x, ampk_row_of(at.image, h, w, p.input), channel, v);
#pragma unroll
                for (int i = 0; i < N; i++)
                    if (v[i] > largest[i]) {
                        largest[i] = v[i];
                        place[i] = here;
                    }
            }
        A::store(y, row, channel, largest);
        ampk_store_index(index + (size_t)row * cover.channels + channel, place);
    }
}

/* dx (+)= the sum of dy over the windows whose maximum is here. A thread gathers from all windows
 * that contain its pixel: scattering from the windows would need atomics, whose order varies. */
template <typename A, typename Index>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS, 4)
    unpool_max(ampk_cover cover, pool p, ampk_view dy, const Index *index, ampk_view dx,
               bool accumulate, uint32_t *amax)
{
    const int N = A::width;
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            ampk_pixel at(row, p.input);
            int h = at.h + p.offset, w = at.w + p.offset; /* window i: [i*stride, i*stride+size) */
            int top = h < p.size ? 0 : (h - p.size) / p.stride + 1;
            int left = w < p.size ? 0 : (w - p.size) / p.stride + 1;
            int bottom = at_most(h / p.stride + 1, p.windows.h);
            int right = at_most(w / p.stride + 1, p.windows.w);
            float sum[N] = {0};
            for (int i = top; i < bottom; i++)
                for (int j = left; j < right; j++) {
                    uint32_t here = (uint32_t)((h - i * p.stride) * p.size + w - j * p.stride);
                    unsigned window = ampk_row_of(at.image, i, j, p.windows);
                    uint32_t place[N];
                    ampk_load_index(index + (size_t)window * cover.channels + channel, place);
                    float v[N];
                    A::load(dy, window, channel, v);
#pragma unroll
                    for (int k = 0; k < N; k++)
                        if (place[k] == here) sum[k] += v[k];
                }
            largest = ampk_put<A>(dx, row, channel, sum, accumulate, largest);
        }
    ampk_raise_amax(amax, largest);
}

/* ---- global average pooling ---- */

/* Block (n, i) averages some channels of image n. */
template <typename A>
static __global__ void __launch_bounds__(AMPK_SUM_THREADS)
    average(ampk_cover cover, ampk_view x, ampk_view y, uint32_t *amax)
{
    const int N = A::width;
    __shared__ float shared[ampk_sum_shared<A, 1>()];
    unsigned lane = threadIdx.x & ((1u << cover.lane_bits) - 1);
    unsigned channel = ((blockIdx.y << cover.lane_bits) + lane) * N;
    float sum[N] = {0};
    if (channel < cover.channels)
        for (unsigned i = threadIdx.x >> cover.lane_bits; i < x.area;
             i += blockDim.x >> cover.lane_bits) {
            float v[N];
            A::load(x, blockIdx.x * x.area + i, channel, v);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += v[k];
        }
    ampk_block_sums(cover, sum, shared);
    uint32_t largest = 0;
    if (threadIdx.x >> cover.lane_bits == 0 && channel < cover.channels) {
#pragma unroll
        for (int k = 0; k < N; k++)
            sum[k] = shared[(k << cover.lane_bits) + threadIdx.x] / (float)x.area;
        largest = ampk_put<A>(y, blockIdx.x, channel, sum, false, largest);
    }
    ampk_raise_amax(amax, largest);
}

/* Every pixel gets the same share of the gradient. */
template <typename A>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    spread(ampk_cover cover, ampk_view dy, ampk_view dx, bool accumulate, uint32_t *amax)
{
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            float v[A::width];
            A::load(dy, row / dx.area, channel, v);
#pragma unroll
            for (int i = 0; i < A::width; i++)
                v[i] /= (float)dx.area;
            largest = ampk_put<A>(dx, row, channel, v, accumulate, largest);
        }
    ampk_raise_amax(amax, largest);
}

/* ---- operations ---- */

/* The same rule in forward and backward: the window's size alone decides the type of an index. */
extern "C" size_t ampk_cuda_maxpool_index_bytes(const struct ampk_tensor *y, int size)
{
    return (size_t)ampk_pixel_count(y) * y->c *
           (size <= AMPK_LARGEST_BYTE_WINDOW ? 1 : sizeof(uint32_t));
}

/* Rows of the loop are output pixels. */
template <typename Index>
static void run_pool(struct ampk_context *ctx, pool p, const struct ampk_tensor *x,
                     const struct ampk_tensor *y, Index *index)
{
    struct ampk_view from = ampk_pixels(x), to = ampk_pixels(y);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(ampk_pixel_count(y), to.c);
        AMPK_LAUNCH((pool_max<A, Index>), cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover, p,
                    from, to, index);
    };
    ampk_with_access(run, from, to);
}

extern "C" void ampk_cuda_maxpool_forward(struct ampk_context *ctx, const struct ampk_tensor *x,
                                          int size, int stride, int pad,
                                          const struct ampk_tensor *y, void *argmax)
{
    struct pool p = make_pool(size, stride, pad, x, y);
    if (size <= AMPK_LARGEST_BYTE_WINDOW)
        run_pool(ctx, p, x, y, (uint8_t *)argmax);
    else
        run_pool(ctx, p, x, y, (uint32_t *)argmax);
}

/* Rows of the loop are input pixels. */
template <typename Index>
static void run_unpool(struct ampk_context *ctx, pool p, const struct ampk_tensor *dy,
                       const Index *index, const struct ampk_tensor *dx, bool accumulate,
                       uint32_t *amax)
{
    struct ampk_view from = ampk_pixels(dy), to = ampk_pixels(dx);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(ampk_pixel_count(dx), to.c);
        AMPK_LAUNCH((unpool_max<A, Index>), cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover, p,
                    from, index, to, accumulate, amax);
    };
    ampk_with_access(run, from, to);
}

extern "C" void ampk_cuda_maxpool_backward(struct ampk_context *ctx, const struct ampk_tensor *dy,
                                           const void *argmax, int size, int stride, int pad,
                                           const struct ampk_tensor *dx, bool accumulate,
                                           uint32_t *amax)
{
    struct pool p = make_pool(size, stride, pad, dx, dy);
    if (size <= AMPK_LARGEST_BYTE_WINDOW)
        run_unpool(ctx, p, dy, (const uint8_t *)argmax, dx, accumulate, amax);
    else
        run_unpool(ctx, p, dy, (const uint32_t *)argmax, dx, accumulate, amax);
}

/* One block per image and run of channels: no sum is split over blocks, so no work memory is
 * needed. */
extern "C" void ampk_cuda_avgpool_forward(struct ampk_context *ctx, const struct ampk_tensor *x,
                                          const struct ampk_tensor *y, uint32_t *amax)
{
    struct ampk_view from = ampk_pixels(x), to = ampk_pixels(y);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_sum<A>(from.area, from.c);
        cover.grid = dim3((unsigned)x->n, cover.grid.x);
        AMPK_LAUNCH(average<A>, cover.grid, AMPK_SUM_THREADS, 0, ctx->stream, cover, from, to,
                    amax);
    };
    ampk_with_access(run, from, to);
}

extern "C" void ampk_cuda_avgpool_backward(struct ampk_context *ctx, const struct ampk_tensor *dy,
                                           const struct ampk_tensor *dx, bool accumulate,
                                           uint32_t *amax)
{
    struct ampk_view from = ampk_pixels(dy), to = ampk_pixels(dx);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(ampk_pixel_count(dx), to.c);
        AMPK_LAUNCH(spread<A>, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover, from, to,
                    accumulate, amax);
    };
    ampk_with_access(run, from, to);
}
