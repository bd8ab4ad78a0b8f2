/* Max-pooling and global average pooling, NHWC: vectors run along the channels. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

#include <assert.h>
#include <float.h>

/* ---- index of the maximum ----
 * Position in the window, row by row; size*size where nothing exceeded -FLT_MAX. One byte where
 * that fits, else one FP32 number. NHWC order. */

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
    int size, stride, offset; /* a window starts at i*stride - offset */
    size_t index_bytes;
};

static struct pool make_pool(int size, int stride, int pad)
{
    return (struct pool){size, stride, pad / 2, ampk_pool_index_bytes(size)};
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* All channels of output pixel (row, column); x is the image, y and index are the pixel's. */
AMPK_INLINE void pool_pixel(struct pool p, enum ampk_dtype T, const struct ampk_tensor *shape,
                            const void *x, int row, int column, void *y, void *index)
{
    int top = row * p.stride - p.offset, left_edge = column * p.stride - p.offset;
    int h0 = larger(top, 0), h1 = smaller(top + p.size, shape->h);
    int w0 = larger(left_edge, 0), w1 = smaller(left_edge + p.size, shape->w);
    size_t c = shape->c;
    for (size_t i = 0; i < c; i += AMPK_LANES) {
        ampk_vec max = ampk_vec_set(-FLT_MAX), best = ampk_vec_set((float)(p.size * p.size));
        for (int h = h0; h < h1; h++)
            for (int w = w0; w < w1; w++) {
                size_t pixel = (size_t)h * shape->w + w;
                ampk_vec here = ampk_vec_set((float)((h - top) * p.size + w - left_edge));
                ampk_vec v = ampk_vec_load(x, pixel * c + i, T, c - i);
                best = ampk_vec_if_greater(v, max, here, best);
                max = ampk_vec_if_greater(v, max, v, max);
            }
        ampk_vec_store(y, i, T, c - i, max);
        store_index(index, i, p.index_bytes, c - i, best);
    }
}

AMPK_INLINE void pool_row(struct pool p, enum ampk_dtype T, const struct ampk_tensor *x,
                          const struct ampk_tensor *y, size_t image, int row, char *index)
{
    for (int column = 0; column < y->w; column++) {
        size_t pixel = (size_t)row * y->w + column;
        char *slot = index + (image * ampk_image_size(y) + pixel * y->c) * p.index_bytes;
        pool_pixel(p, T, x, ampk_at(x, image, 0), row, column, ampk_at(y, image, pixel * y->c),
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
            AMPK_WITH_DTYPE(x->dtype, T, pool_row(p, T, x, y, image, row, argmax));
}

/* ---- max-pooling backward: each input pixel sums over the windows that contain it ---- */

/* Windows [first, last) along one axis that contain `at`. */
struct range {
    int first, last;
};

static struct range find_windows(struct pool p, int at, int count)
{
    int from_edge = at + p.offset; /* window i covers [i*stride, i*stride + size) */
    int first = from_edge < p.size ? 0 : (from_edge - p.size) / p.stride + 1;
    return (struct range){first, smaller(from_edge / p.stride + 1, count)};
}

/* All channels of input pixel (row, column). */
AMPK_INLINE ampk_vec_amax unpool_pixel(struct pool p, enum ampk_dtype T,
                                       const struct ampk_tensor *dy, size_t image,
                                       const char *index, int row, int column, struct range down,
                                       void *dx, bool accumulate, ampk_vec_amax largest)
{
    size_t c = dy->c;
    struct range across = find_windows(p, column, dy->w);
    const void *d = ampk_at(dy, image, 0);
    for (size_t i = 0; i < c; i += AMPK_LANES) {
        ampk_vec sum = ampk_vec_set(0);
        for (int h = down.first; h < down.last; h++)
            for (int w = across.first; w < across.last; w++) {
                size_t at = ((size_t)h * dy->w + w) * c + i;
                int position =
                    (row + p.offset - h * p.stride) * p.size + column + p.offset - w * p.stride;
                ampk_vec chosen = load_index(index, at, p.index_bytes, c - i);
                ampk_vec v = ampk_vec_load(d, at, T, c - i), zero = ampk_vec_set(0);
                v = ampk_vec_if_equal(chosen, ampk_vec_set((float)position), v, zero);
                sum = ampk_vec_add(sum, v);
            }
        if (accumulate) sum = ampk_vec_add(ampk_vec_load(dx, i, T, c - i), sum);
        ampk_vec_store_amax(dx, i, T, c - i, sum, &largest);
    }
    return largest;
}

AMPK_INLINE uint32_t unpool_row(struct pool p, enum ampk_dtype T, const struct ampk_tensor *dy,
                                const struct ampk_tensor *dx, size_t image, int row,
                                const char *index, bool accumulate)
{
    struct range down = find_windows(p, row, dy->h);
    ampk_vec_amax largest = ampk_vec_amax_zero();
    index += image * ampk_image_size(dy) * p.index_bytes;
    for (int column = 0; column < dx->w; column++) {
        void *to = ampk_at(dx, image, ((size_t)row * dx->w + column) * dx->c);
        largest = unpool_pixel(p, T, dy, image, index, row, column, down, to, accumulate, largest);
    }
    return ampk_vec_amax_get(largest);
}

void AMPK_CPU(maxpool_backward)(struct ampk_context *ctx, const struct ampk_tensor *dy,
                                const void *argmax, int size, int stride, int pad,
                                const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    assert(dx->dtype == dy->dtype && dx->layout == AMPK_NHWC && dy->layout == AMPK_NHWC);
    struct pool p = make_pool(size, stride, pad);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) collapse(2) reduction(max : largest)
    for (int image = 0; image < dx->n; image++)
        for (int row = 0; row < dx->h; row++) {
            uint32_t m;
            AMPK_WITH_DTYPE(dx->dtype, T,
                            m = unpool_row(p, T, dy, dx, image, row, argmax, accumulate));
            if (m > largest) largest = m;
        }
    ampk_amax_raise(amax, largest);
}

/* ---- global average pooling ---- */

AMPK_INLINE uint32_t average_image(enum ampk_dtype T, const void *x, size_t area, size_t c, void *y)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < c; i += AMPK_LANES) {
        ampk_vec sum = ampk_vec_set(0);
        for (size_t pixel = 0; pixel < area; pixel++)
            sum = ampk_vec_add(sum, ampk_vec_load(x, pixel * c + i, T, c - i));
        sum = ampk_vec_div(sum, ampk_vec_set((float)area));
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

AMPK_INLINE uint32_t spread_image(enum ampk_dtype T, const void *dy, size_t area, size_t c,
                                  void *dx, bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    ampk_vec count = ampk_vec_set((float)area);
    for (size_t pixel = 0; pixel < area; pixel++)
        for (size_t i = 0; i < c; i += AMPK_LANES) {
            size_t at = pixel * c + i;
            ampk_vec v = ampk_vec_div(ampk_vec_load(dy, i, T, c - i), count);
            if (accumulate) v = ampk_vec_add(ampk_vec_load(dx, at, T, c - i), v);
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
