/* Max-pooling and global average pooling of NHWC tensors; vectors run along the channels. */
#include "cpu.h"
#include "simd.h"

#include <assert.h>
#include <float.h>

/* ---- index of the maximum ----
 * The position in the window, counted row by row; size*size if nothing exceeded -FLT_MAX. One byte
 * if that is enough, else one FP32 number, which vectors compare directly. NHWC order. */

AMPK_INLINE ampk_vec load_index(const void *index, size_t i, size_t bytes, size_t left)
{
    if (bytes == 1) return ampk_vec_load_bytes((const uint8_t *)index + i, left);
    return ampk_vec_load(index, i, AMPK_FP32, left);
}

AMPK_INLINE void store_index(void *index, size_t i, size_t bytes, size_t left, ampk_vec v)
{
    if (bytes == 1)
        ampk_vec_store_bytes((uint8_t *)index + i, left, v);
    else
        ampk_vec_store(index, i, AMPK_FP32, left, v);
}

/* ---- max-pooling forward ---- */

struct pool {
    int size, stride, offset; /* in pixels; window i starts at i*stride - offset */
    size_t index_bytes;
};

/* Darknet pads by pad/2 at the top and left; the caller gives the number of windows. */
static struct pool make_pool(int size, int stride, int pad)
{
    return (struct pool){size, stride, pad / 2, ampk_pool_index_bytes(size)};
}

/* Runs the statement with P as a constant if p is the usual 2x2 by 2, else with P = p. The
 * constant unrolls the loops over the window. */
#define WITH_POOL(p, P, statement)                                                                 \
    do {                                                                                           \
        if ((p).size == 2 && (p).stride == 2 && (p).offset == 0) {                                 \
            const struct pool P = {2, 2, 0, 1};                                                    \
            statement;                                                                             \
        } else {                                                                                   \
            const struct pool P = (p);                                                             \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* The part of a window that lies inside the image: rows [h0, h1), columns [w0, w1). */
struct window {
    int top, left, h0, h1, w0, w1;
};

/* All channels of one output pixel. x is the image; y and index are the pixel's. */
AMPK_INLINE void pool_window(struct pool p, enum ampk_dtype T, struct window win, const void *x,
                             size_t width, size_t c, void *y, void *index)
{
    for (size_t i = 0; i < c; i += AMPK_LANES) {
        ampk_vec max = ampk_vec_set(-FLT_MAX), best = ampk_vec_set((float)(p.size * p.size));
        for (int h = win.h0; h < win.h1; h++)
            for (int w = win.w0; w < win.w1; w++) {
                ampk_vec here = ampk_vec_set((float)((h - win.top) * p.size + w - win.left));
                ampk_vec v = ampk_vec_load(x, (h * width + w) * c + i, T, c - i);
                best = ampk_vec_if_greater(v, max, here, best);
                max = ampk_vec_if_greater(v, max, v, max);
            }
        ampk_vec_store(y, i, T, c - i, max);
        store_index(index, i, p.index_bytes, c - i, best);
    }
}

/* The window of output pixel (row, column). Most windows lie inside the image and have constant
 * sides, which unrolls the loops. */
AMPK_INLINE void pool_pixel(struct pool p, enum ampk_dtype T, const struct ampk_tensor *shape,
                            const void *x, int row, int column, void *y, void *index)
{
    int top = row * p.stride - p.offset, left = column * p.stride - p.offset;
    int bottom = top + p.size, right = left + p.size;
    if (top >= 0 && left >= 0 && bottom <= shape->h && right <= shape->w)
        pool_window(p, T, (struct window){top, left, top, bottom, left, right}, x, shape->w,
                    shape->c, y, index);
    else
        pool_window(p, T,
                    (struct window){top, left, larger(top, 0), smaller(bottom, shape->h),
                                    larger(left, 0), smaller(right, shape->w)},
                    x, shape->w, shape->c, y, index);
}

AMPK_INLINE void pool_row(struct pool p, enum ampk_dtype T, const struct ampk_tensor *x,
                          const struct ampk_tensor *y, size_t image, int row, char *index)
{
    for (int column = 0; column < y->w; column++) {
        size_t pixel = (size_t)row * y->w + column;
        char *slot = index + (image * ampk_image_size(y) + pixel * y->c) * p.index_bytes;
        pool_pixel(p, T, x, ampk_at(x, image, 0), row, column, ampk_pixel_at(y, image, pixel),
                   slot);
    }
}

void AMPK_CPU(maxpool_forward)(struct ampk_context *ctx, const struct ampk_tensor *x, int size,
                               int stride, int pad, const struct ampk_tensor *y, void *argmax)
{
    assert(x->dtype == y->dtype && x->layout == AMPK_NHWC && y->layout == AMPK_NHWC);
    struct pool p = make_pool(size, stride, pad);
#pragma omp parallel for num_threads(ctx->threads) collapse(2)
    for (int image = 0; image < y->n; image++)
        for (int row = 0; row < y->h; row++)
            AMPK_WITH_DTYPE(x->dtype, T, WITH_POOL(p, P, pool_row(P, T, x, y, image, row, argmax)));
}

/* ---- max-pooling backward: each input pixel gathers from the windows that contain it ----
 * Gathering needs no atomics, and each sum has one order. */

/* The operands of a backward pass; the pointers are those of one image. */
struct unpool {
    const struct ampk_tensor *dy, *dx;
    const void *d, *index;
    void *to;
    size_t pitch; /* of dy */
    bool accumulate;
};

/* dx (+)= v at channels i.. of pixel (row, column). */
AMPK_INLINE void put(enum ampk_dtype T, const struct unpool *u, int row, int column, size_t i,
                     ampk_vec v, ampk_vec_amax *largest)
{
    size_t c = u->dx->c, at = ((size_t)row * u->dx->w + column) * c + i;
    if (u->accumulate) v = ampk_vec_load(u->to, at, T, c - i) + v;
    ampk_vec_store_amax(u->to, at, T, c - i, v, largest);
}

/* dy at channels i.. of window (row, column) where `position` was the maximum, else 0. */
AMPK_INLINE ampk_vec share_of(struct pool p, enum ampk_dtype T, const struct unpool *u, int row,
                              int column, size_t i, int position)
{
    size_t c = u->dy->c, pixel = (size_t)row * u->dy->w + column;
    ampk_vec chosen = load_index(u->index, pixel * c + i, p.index_bytes, c - i);
    ampk_vec v = ampk_vec_load(u->d, pixel * u->pitch + i, T, c - i);
    return ampk_vec_if_equal(chosen, ampk_vec_set((float)position), v, ampk_vec_set(0));
}

/* Windows [first, last) along one axis that contain `at`. */
struct range {
    int first, last;
};

static inline struct range find_windows(struct pool p, int at, int count)
{
    int from_edge = at + p.offset; /* window i covers [i*stride, i*stride + size) */
    int first = from_edge < p.size ? 0 : (from_edge - p.size) / p.stride + 1;
    return (struct range){first, smaller(from_edge / p.stride + 1, count)};
}

/* Input pixel (row, column), from all windows that contain it. */
AMPK_INLINE void unpool_pixel(struct pool p, enum ampk_dtype T, const struct unpool *u, int row,
                              int column, ampk_vec_amax *largest)
{
    struct range down = find_windows(p, row, u->dy->h), across = find_windows(p, column, u->dy->w);
    for (size_t i = 0; i < (size_t)u->dy->c; i += AMPK_LANES) {
        ampk_vec sum = ampk_vec_set(0);
        for (int h = down.first; h < down.last; h++)
            for (int w = across.first; w < across.last; w++) {
                int y = row + p.offset - h * p.stride, x = column + p.offset - w * p.stride;
                sum += share_of(p, T, u, h, w, i, y * p.size + x);
            }
        put(T, u, row, column, i, sum, largest);
    }
}

/* All input pixels of window (row, column), which shares none with another window. */
AMPK_INLINE void unpool_window(struct pool p, enum ampk_dtype T, const struct unpool *u, int row,
                               int column, ampk_vec_amax *largest)
{
    for (size_t i = 0; i < (size_t)u->dy->c; i += AMPK_LANES)
        for (int y = 0; y < p.size; y++)
            for (int x = 0; x < p.size; x++)
                put(T, u, row * p.size + y, column * p.size + x, i,
                    share_of(p, T, u, row, column, i, y * p.size + x), largest);
}

/* Whether the windows neither overlap nor leave gaps nor begin outside the image. Then each input
 * pixel has one window. */
static inline bool is_tiling(struct pool p)
{
    return p.size == p.stride && p.offset == 0;
}

/* Input rows [first, last): a row of windows if they tile and lie inside, else one row. */
AMPK_INLINE uint32_t unpool_rows(struct pool p, enum ampk_dtype T, const struct unpool *u,
                                 int first, int last)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    int row = first / p.stride, whole = 0;
    if (is_tiling(p) && last - first == p.size && row < u->dy->h)
        whole = smaller(u->dy->w, u->dx->w / p.size);
    for (int column = 0; column < whole; column++)
        unpool_window(p, T, u, row, column, &largest);
    for (int h = first; h < last; h++)
        for (int w = whole * p.size; w < u->dx->w; w++)
            unpool_pixel(p, T, u, h, w, &largest);
    return ampk_vec_amax_get(largest);
}

/* A band is a row of windows if windows tile, else one row of pixels: no two bands write one
 * pixel. */
void AMPK_CPU(maxpool_backward)(struct ampk_context *ctx, const struct ampk_tensor *dy,
                                const void *argmax, int size, int stride, int pad,
                                const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    assert(dx->dtype == dy->dtype && dx->layout == AMPK_NHWC && dy->layout == AMPK_NHWC);
    struct pool p = make_pool(size, stride, pad);
    int band = is_tiling(p) ? p.size : 1;
    size_t index_image = ampk_image_size(dy) * p.index_bytes;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) collapse(2) reduction(max : largest)
    for (int image = 0; image < dx->n; image++)
        for (int first = 0; first < dx->h; first += band) {
            struct unpool u = {dy,
                               dx,
                               ampk_at(dy, image, 0),
                               (const char *)argmax + image * index_image,
                               ampk_at(dx, image, 0),
                               (size_t)ampk_pitch(dy),
                               accumulate};
            int last = smaller(first + band, dx->h);
            uint32_t m;
            AMPK_WITH_DTYPE(dx->dtype, T, WITH_POOL(p, P, m = unpool_rows(P, T, &u, first, last)));
            if (m > largest) largest = m;
        }
    ampk_amax_raise(amax, largest);
}

/* ---- global average pooling ---- */

/* A pixel after the other is added to one sum per lane: the order is fixed by the shape. */
AMPK_INLINE uint32_t average_image(enum ampk_dtype T, const void *x, size_t area, size_t c, void *y)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < c; i += AMPK_LANES) {
        ampk_vec sum = ampk_vec_set(0);
        for (size_t pixel = 0; pixel < area; pixel++)
            sum += ampk_vec_load(x, pixel * c + i, T, c - i);
        sum /= ampk_vec_set((float)area);
        ampk_vec_store_amax(y, i, T, c - i, sum, &largest);
    }
    return ampk_vec_amax_get(largest);
}

void AMPK_CPU(avgpool_forward)(struct ampk_context *ctx, const struct ampk_tensor *x,
                               const struct ampk_tensor *y, uint32_t *amax)
{
    assert(x->dtype == y->dtype && x->layout == AMPK_NHWC);
    size_t area = (size_t)x->h * x->w;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest)
    for (int image = 0; image < x->n; image++) {
        uint32_t m;
        AMPK_WITH_DTYPE(
            x->dtype, T,
            m = average_image(T, ampk_at(x, image, 0), area, x->c, ampk_at(y, image, 0)));
        if (m > largest) largest = m;
    }
    ampk_amax_raise(amax, largest);
}

/* Every pixel gets the same share of the gradient. */
AMPK_INLINE uint32_t spread_image(enum ampk_dtype T, const void *dy, size_t area, size_t c,
                                  void *dx, bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    ampk_vec count = ampk_vec_set((float)area);
    for (size_t pixel = 0; pixel < area; pixel++)
        for (size_t i = 0; i < c; i += AMPK_LANES) {
            size_t at = pixel * c + i;
            ampk_vec v = ampk_vec_load(dy, i, T, c - i) / count;
            if (accumulate) v = ampk_vec_load(dx, at, T, c - i) + v;
            ampk_vec_store_amax(dx, at, T, c - i, v, &largest);
        }
    return ampk_vec_amax_get(largest);
}

void AMPK_CPU(avgpool_backward)(struct ampk_context *ctx, const struct ampk_tensor *dy,
                                const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    assert(dx->dtype == dy->dtype && dx->layout == AMPK_NHWC);
    size_t area = (size_t)dx->h * dx->w;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest)
    for (int image = 0; image < dx->n; image++) {
        uint32_t m;
        AMPK_WITH_DTYPE(dx->dtype, T,
                        m = spread_image(T, ampk_at(dy, image, 0), area, dx->c,
                                         ampk_at(dx, image, 0), accumulate));
        if (m > largest) largest = m;
    }
    ampk_amax_raise(amax, largest);
}
