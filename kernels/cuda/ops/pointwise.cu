/* Dropout, clipping and activation, element by element. Masks are drawn here, too; the caller
 * decides when, and with which key and counter. */
#include "activation.h"
#include "rows.h"
#include "kernels/philox.h"

/* ---- kernels ---- */

/* y (+)= keep ? scale*x : 0. keep is dense, in the order image, channel, pixel, whatever the
 * layout of x: the mask must not depend on the layout. */
template <typename A>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    drop(ampk_cover cover, ampk_view x, const uint8_t *keep, float scale, ampk_view y,
         bool accumulate, uint32_t *amax)
{
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            unsigned image = row / x.area, pixel = row - image * x.area;
            const uint8_t *kept = keep + ((size_t)image * x.c + channel) * x.area + pixel;
            float v[A::width];
            A::load(x, row, channel, v);
#pragma unroll
            for (int i = 0; i < A::width; i++)
                v[i] = kept[(size_t)i * x.area] ? v[i] * scale : 0;
            largest = ampk_put<A>(y, row, channel, v, accumulate, largest);
        }
    ampk_raise_amax(amax, largest);
}

template <typename A>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    keep_within(ampk_cover cover, ampk_view x, float limit)
{
    unsigned channel = ampk_channel<A>(cover);
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            float v[A::width];
            A::load(x, row, channel, v);
#pragma unroll
            for (int i = 0; i < A::width; i++)
                if (fabsf(v[i]) > limit)
                    v[i] = copysignf(limit, v[i]); /* false for NaN, which stays */
            A::store(x, row, channel, v);
        }
}

/* A thread draws so many elements of a mask at once: 16 bytes, one store. */
static const int DRAWN = 16;

/* Draws four elements of a mask, the first in the lowest byte. A number below `below` drops its
 * element. */
static __device__ __forceinline__ uint32_t draw_word(const ampk_draw &draw, uint32_t block,
                                                     uint32_t below)
{
    uint32_t numbers[4], word = 0;
    ampk_draw_four(&draw, block, numbers);
#pragma unroll
    for (int i = 0; i < 4; i++)
        word |= (uint32_t)(numbers[i] >= below) << 8 * i;
    return word;
}

/* wide: keep begins at a multiple of 16 bytes. */
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    draw_mask(ampk_draw draw, uint32_t below, uint8_t *keep, size_t n, bool wide)
{
    for (size_t i = ampk_first() * DRAWN; i < n; i += ampk_stride() * DRAWN) {
        ampk_vector<uint32_t, DRAWN / 4> words;
#pragma unroll
        for (int k = 0; k < DRAWN / 4; k++)
            words.at[k] = draw_word(draw, (uint32_t)(i / 4) + k, below);
        if (wide && n - i >= DRAWN) {
            AMPK_CHECK_ALIGNED(keep + i, DRAWN);
            ampk_store_words(keep + i, words);
        } else {
#pragma unroll
            for (int k = 0; k < DRAWN; k++)
                if (i + k < n) keep[i + k] = (uint8_t)(words.at[k / 4] >> 8 * (k % 4));
        }
    }
}

template <typename A, typename Activation>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    activate(ampk_cover cover, ampk_view x, Activation activation, ampk_view y, uint32_t *amax)
{
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            float v[A::width];
            A::load(x, row, channel, v);
#pragma unroll
            for (int i = 0; i < A::width; i++)
                v[i] = activation.forward(v[i]);
            largest = ampk_put<A>(y, row, channel, v, false, largest);
        }
    ampk_raise_amax(amax, largest);
}

/* dx (+)= d * activation'(out) */
template <typename A, typename Activation>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS)
    pass_back(ampk_cover cover, ampk_view out, Activation activation, ampk_view d, ampk_view dx,
              bool accumulate, uint32_t *amax)
{
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels)
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            float v[A::width], y[A::width];
            A::load(d, row, channel, v);
            A::load(out, row, channel, y);
#pragma unroll
            for (int i = 0; i < A::width; i++)
                v[i] = activation.backward(v[i], y[i]);
            largest = ampk_put<A>(dx, row, channel, v, accumulate, largest);
        }
    ampk_raise_amax(amax, largest);
}

/* ---- operations ---- */

/* A mask in NCHW order and a tensor in NHWC meet pixel by pixel. */
extern "C" void ampk_cuda_dropout(struct ampk_context *ctx, const struct ampk_tensor *x,
                                  const uint8_t *keep, float scale, const struct ampk_tensor *y,
                                  bool accumulate, uint32_t *amax)
{
    bool by_pixel = x->layout == AMPK_NHWC; /* NCHW: keep has the memory order of x */
    struct ampk_view from = by_pixel ? ampk_pixels(x) : ampk_flat(x);
    struct ampk_view to = by_pixel ? ampk_pixels(y) : ampk_flat(y);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(x->n * from.area, from.c);
        AMPK_LAUNCH(drop<A>, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover, from, keep, scale,
                    to, accumulate, amax);
    };
    ampk_with_access(run, from, to);
}

/* A clipped tensor is no slice, so it is taken as flat. */
extern "C" void ampk_cuda_clip(struct ampk_context *ctx, const struct ampk_tensor *x, float limit)
{
    struct ampk_view v = ampk_flat(x);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(x->n, v.c);
        AMPK_LAUNCH(keep_within<A>, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover, v, limit);
    };
    ampk_with_access(run, v);
}

/* Number i belongs to element i whatever the grid, so the mask does not depend on the device. */
extern "C" void ampk_cuda_dropout_draw(struct ampk_context *ctx, const struct ampk_draw *draw,
                                       float probability, uint8_t *keep, size_t n)
{
    if (!n) return;
    unsigned blocks = ampk_cuda_blocks(ctx, n, AMPK_MAP_THREADS * DRAWN, AMPK_MAP_THREADS);
    bool wide = ampk_fits<uint8_t, DRAWN>(keep, 0);
    AMPK_LAUNCH(draw_mask, blocks, AMPK_MAP_THREADS, 0, ctx->stream, *draw,
                ampk_drops_below(probability), keep, n, wide);
}

extern "C" void ampk_cuda_activation_forward(struct ampk_context *ctx, const struct ampk_tensor *x,
                                             enum ampk_activation activation,
                                             const struct ampk_tensor *y, uint32_t *amax)
{
    struct ampk_view from = ampk_flat(x), to = ampk_flat(y);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(x->n, from.c);
        ampk_with_activation(activation, [&](auto family) {
            AMPK_LAUNCH((activate<A, decltype(family)>), cover.grid, AMPK_MAP_THREADS, 0,
                        ctx->stream, cover, from, family, to, amax);
        });
    };
    ampk_with_access(run, from, to);
}

extern "C" void
ampk_cuda_activation_backward(struct ampk_context *ctx, const struct ampk_tensor *out,
                              enum ampk_activation activation, const struct ampk_tensor *d,
                              const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    struct ampk_view y = ampk_flat(out), from = ampk_flat(d), to = ampk_flat(dx);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(d->n, from.c);
        ampk_with_activation(activation, [&](auto family) {
            AMPK_LAUNCH((pass_back<A, decltype(family)>), cover.grid, AMPK_MAP_THREADS, 0,
                        ctx->stream, cover, y, family, from, to, accumulate, amax);
        });
    };
    ampk_with_access(run, y, from, to);
}
