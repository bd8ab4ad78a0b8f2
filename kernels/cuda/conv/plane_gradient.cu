/* Converts the gradient that a loss hands to the convolution before it. The loss writes planes of
 * FP32; Tensor Cores read pixels of 16-bit channels. The sums of the planes are the bias's
 * gradient. Tiles of pixels times channels go through shared memory, so that both sides are read
 * and written in runs. Memory traffic: d is read once, dy written once. Must not know what loss
 * made the planes. */
#include "conv_kernels.h"
#include "kernels/cuda/ops/batchnorm.h"

/* A tile. A row of 128 pixels is 512 bytes of a plane; 32 channels give each lane of a warp one
 * channel when it writes dy. */
static const int CHANNELS = 32, PIXELS = 128;
static const int LINES = AMPK_SUM_THREADS / AMPK_WARP;

struct planes {
    const float *d;
    unsigned channels, area;
    size_t image_stride;
    unsigned tiles_of_image, tiles; /* along pixels */
};

/* Loads channels first + line, first + line + LINES ... of the tile, a warp each. All loads are
 * issued before the first store to shared memory, so that they overlap. __fmul_rn keeps the
 * compiler from fusing the factor into a later addition. */
static __device__ __forceinline__ void load_tile(const planes &from, unsigned image,
                                                 unsigned first_channel, unsigned first_pixel,
                                                 float factor, float (*tile)[PIXELS + 1])
{
    const unsigned lane = threadIdx.x % AMPK_WARP, line = threadIdx.x / AMPK_WARP;
    float v[CHANNELS / LINES][PIXELS / AMPK_WARP] = {};
#pragma unroll
    for (int k = 0; k < CHANNELS / LINES; k++) {
        const unsigned channel = first_channel + line + k * LINES;
        const float *plane = from.d + image * from.image_stride + (size_t)channel * from.area;
#pragma unroll
        for (int i = 0; i < PIXELS / AMPK_WARP; i++) {
            const unsigned pixel = first_pixel + lane + i * AMPK_WARP;
            if (channel < from.channels && pixel < from.area) v[k][i] = plane[pixel];
        }
    }
#pragma unroll
    for (int k = 0; k < CHANNELS / LINES; k++)
#pragma unroll
        for (int i = 0; i < PIXELS / AMPK_WARP; i++)
            tile[line + k * LINES][lane + i * AMPK_WARP] = __fmul_rn(v[k][i], factor);
}

template <typename T>
static __global__ void __launch_bounds__(AMPK_SUM_THREADS, 2)
    pass_planes(ampk_cover cover, planes from, float factor, T *__restrict__ dy, unsigned padded,
                float *partial, unsigned *counters, float *dbias, uint32_t *dy_amax,
                uint32_t *db_amax)
{
    __shared__ float tile[CHANNELS][PIXELS + 1];
    __shared__ float shared[ampk_sum_shared<ampk_any, 1>()];
    const unsigned lane = threadIdx.x % AMPK_WARP, line = threadIdx.x / AMPK_WARP;
    const unsigned first_channel = blockIdx.x * CHANNELS, channel = first_channel + lane;
    uint32_t largest = 0;
    float x[1] = {0};
    for (unsigned t = blockIdx.y; t < from.tiles; t += gridDim.y) {
        const unsigned image = t / from.tiles_of_image, first = t % from.tiles_of_image * PIXELS;
        load_tile(from, image, first_channel, first, factor, tile);
        __syncthreads();
        T *to = dy + ((size_t)image * from.area + first) * padded + channel;
#pragma unroll
        for (unsigned p = line; p < PIXELS; p += LINES) {
            const float v = tile[lane][p]; /* 0 where there is no such channel */
            if (channel < padded && first + p < from.area) {
                x[0] += v;
                largest = ampk_larger(largest, ampk_magnitude(v));
                ampk_from_float(v, &to[(size_t)p * padded]);
            }
        }
        __syncthreads();
    }
    ampk_raise_amax(dy_amax, largest);
    if (!ampk_grid_sums(cover, x, shared, partial, counters)) return;
    largest = 0;
    ampk_for_channels<ampk_any>(cover, [&](unsigned c, unsigned sum, unsigned) {
        dbias[c] = shared[sum];
        largest = ampk_larger(largest, ampk_magnitude(dbias[c]));
    });
    ampk_raise_amax(db_amax, largest);
}

/* ---- operations ---- */

static planes planes_of(const struct ampk_tensor *d)
{
    const unsigned area = (unsigned)d->h * (unsigned)d->w, tiles = (area + PIXELS - 1) / PIXELS;
    return {(const float *)d->data, (unsigned)d->c, area,
            d->image_stride,        tiles,          tiles * (unsigned)d->n};
}

/* The grid depends on the shape alone, because it decides how the sums are split. */
static ampk_cover cover_of(const planes &from, unsigned padded)
{
    const unsigned across = (padded + CHANNELS - 1) / CHANNELS, most = AMPK_SUM_BLOCKS / across;
    const unsigned down = from.tiles < most ? from.tiles : most;
    return {from.tiles, from.channels, 5, dim3(across, down ? down : 1)};
}

/* With one pixel per image, a plane is one value: the general kernel does as well. */
extern "C" bool ampk_passes_planes(const struct ampk_bias_gradient *g)
{
    return g->activation == AMPK_LINEAR && g->d->dtype == AMPK_FP32 && g->d->layout == AMPK_NCHW &&
           g->d->h * g->d->w > 1;
}

extern "C" size_t ampk_plane_sums_bytes(const struct ampk_tensor *d, int padded)
{
    return ampk_sum_bytes<ampk_any>(cover_of(planes_of(d), (unsigned)padded), 1);
}

extern "C" void ampk_pass_planes(struct ampk_context *ctx, const struct ampk_bias_gradient *g,
                                 enum ampk_dtype dtype, int padded, void *dy, void *sums)
{
    const planes from = planes_of(g->d);
    const ampk_cover cover = cover_of(from, (unsigned)padded);
    AMPK_WITH_TYPE(dtype, T, {
        AMPK_LAUNCH(pass_planes<T>, cover.grid, AMPK_SUM_THREADS, 0, ctx->stream, cover, from,
                    g->factor, static_cast<T *>(dy), (unsigned)padded, static_cast<float *>(sums),
                    ctx->counters, g->dbias, g->dy_amax, g->db_amax);
    });
}
