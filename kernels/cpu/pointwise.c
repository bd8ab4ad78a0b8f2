/* Dropout and activation, element by element, in memory order. Clipping is missing: Darknet clips
 * on devices only. */
#include "arithmetic.h"
#include "cpu.h"
#include "kernels/philox.h"

#include <assert.h>

/* ---- dropout ---- */

/* y (+)= keep ? scale*x : 0, where keep is in the memory order of x. */
AMPK_INLINE uint32_t drop_span(enum ampk_dtype T, const void *x, const uint8_t *keep, size_t n,
                               float scale, void *y, bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    ampk_vec zero = ampk_vec_set(0);
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = ampk_vec_load(x, i, T, n - i) * ampk_vec_set(scale);
        v = ampk_vec_if_equal(ampk_vec_load_bytes(keep + i, n - i), zero, zero, v);
        if (accumulate) v = ampk_vec_load(y, i, T, n - i) + v;
        ampk_vec_store_amax(y, i, T, n - i, v, &largest);
    }
    return ampk_vec_amax_get(largest);
}

/* Bytes of a mask that are put into memory order at a time, on the stack. */
enum { KEEP_BUFFER = 1024 };

/* Elements [first, first + count) of an image. keep is the image's mask in NCHW order, so for NHWC
 * it is reordered first. */
static uint32_t drop_piece(const struct ampk_tensor *x, const uint8_t *keep, size_t image,
                           size_t first, size_t count, float scale, const struct ampk_tensor *y,
                           bool accumulate)
{
    size_t area = (size_t)x->h * x->w, c = x->c;
    uint8_t in_order[KEEP_BUFFER];
    const uint8_t *here = keep + first;
    if (x->layout == AMPK_NHWC && area > 1) {
        for (size_t i = 0; i < count; i++)
            in_order[i] = keep[(first + i) % c * area + (first + i) / c];
        here = in_order;
    }
    uint32_t m;
    AMPK_WITH_DTYPE(x->dtype, T,
                    m = drop_span(T, ampk_at(x, image, first), here, count, scale,
                                  ampk_at(y, image, first), accumulate));
    return m;
}

void AMPK_CPU(dropout)(struct ampk_context *ctx, const struct ampk_tensor *x, const uint8_t *keep,
                       float scale, const struct ampk_tensor *y, bool accumulate, uint32_t *amax)
{
    assert(x->dtype == y->dtype && x->layout == y->layout);
    size_t size = ampk_image_size(x), pieces = (size + KEEP_BUFFER - 1) / KEEP_BUFFER;
    size_t all = x->n * pieces;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (all > 1)
    for (size_t i = 0; i < all; i++) {
        size_t image = i / pieces, first = i % pieces * KEEP_BUFFER;
        size_t count = size - first < KEEP_BUFFER ? size - first : KEEP_BUFFER;
        uint32_t m = drop_piece(x, keep + image * size, image, first, count, scale, y, accumulate);
        if (m > largest) largest = m;
    }
    ampk_amax_raise(amax, largest);
}

/* Each block of four numbers depends on the counter alone, so threads may draw them in any order.
 */
void AMPK_CPU(dropout_draw)(struct ampk_context *ctx, const struct ampk_draw *draw,
                            float probability, uint8_t *keep, size_t n)
{
    uint32_t below = ampk_drops_below(probability);
    size_t blocks = (n + 3) / 4;
#pragma omp parallel for num_threads(ctx->threads) if (n > KEEP_BUFFER)
    for (size_t block = 0; block < blocks; block++) {
        uint32_t numbers[4];
        ampk_draw_four(draw, (uint32_t)block, numbers);
        for (size_t i = 4 * block; i < n && i < 4 * block + 4; i++)
            keep[i] = numbers[i % 4] >= below;
    }
}

/* ---- activation ---- */

AMPK_INLINE uint32_t activate_span(enum ampk_dtype T, const void *x, size_t n,
                                   enum ampk_activation A, void *y)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = ampk_vec_activate(ampk_vec_load(x, i, T, n - i), A);
        ampk_vec_store_amax(y, i, T, n - i, v, &largest);
    }
    return ampk_vec_amax_get(largest);
}

void AMPK_CPU(activation_forward)(struct ampk_context *ctx, const struct ampk_tensor *x,
                                  enum ampk_activation activation, const struct ampk_tensor *y,
                                  uint32_t *amax)
{
    assert(x->dtype == y->dtype && x->layout == y->layout);
    size_t size = ampk_image_size(x), pieces = ampk_pieces(size), all = x->n * pieces;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (all > 1)
    for (size_t i = 0; i < all; i++) {
        size_t image = i / pieces, first = i % pieces * AMPK_PIECE;
        size_t count = ampk_piece(size, first);
        void *to = ampk_at(y, image, first);
        const void *from = ampk_at(x, image, first);
        uint32_t m;
        AMPK_WITH_DTYPE(
            x->dtype, T,
            AMPK_WITH_ACTIVATION(activation, A, m = activate_span(T, from, count, A, to)));
        if (m > largest) largest = m;
    }
    ampk_amax_raise(amax, largest);
}

/* dx (+)= d * activation'(out) */
AMPK_INLINE uint32_t gradient_span(enum ampk_dtype T, const void *out, const void *d, size_t n,
                                   enum ampk_activation A, void *dx, bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec y = ampk_vec_load(out, i, T, n - i);
        ampk_vec v = ampk_vec_activation_backward(ampk_vec_load(d, i, T, n - i), y, A);
        if (accumulate) v = ampk_vec_load(dx, i, T, n - i) + v;
        ampk_vec_store_amax(dx, i, T, n - i, v, &largest);
    }
    return ampk_vec_amax_get(largest);
}

void AMPK_CPU(activation_backward)(struct ampk_context *ctx, const struct ampk_tensor *out,
                                   enum ampk_activation activation, const struct ampk_tensor *d,
                                   const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    assert(out->dtype == d->dtype && d->dtype == dx->dtype && d->layout == dx->layout);
    size_t size = ampk_image_size(d), pieces = ampk_pieces(size), all = d->n * pieces;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (all > 1)
    for (size_t i = 0; i < all; i++) {
        size_t image = i / pieces, first = i % pieces * AMPK_PIECE;
        size_t count = ampk_piece(size, first);
        void *to = ampk_at(dx, image, first);
        const void *y = ampk_at(out, image, first), *from = ampk_at(d, image, first);
        uint32_t m;
        AMPK_WITH_DTYPE(
            d->dtype, T,
            AMPK_WITH_ACTIVATION(activation, A,
                                 m = gradient_span(T, y, from, count, A, to, accumulate)));
        if (m > largest) largest = m;
    }
    ampk_amax_raise(amax, largest);
}
