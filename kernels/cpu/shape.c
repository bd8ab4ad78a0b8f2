/* Upsample, shortcut, reorg, flatten, unfold: operations that move or add values between tensors of
 * other shapes. The rules of sampling and permutation are Darknet's. */
#include "arithmetic.h"
#include "cpu.h"

#include <assert.h>
#include <string.h>

static bool are_alike(const struct ampk_tensor *a, const struct ampk_tensor *b)
{
    return a->dtype == b->dtype && a->layout == AMPK_NHWC && b->layout == AMPK_NHWC;
}

/* Address of pixel (h, w) of an NHWC image. */
static inline void *pixel_at(const struct ampk_tensor *t, size_t image, int h, int w)
{
    return ampk_pixel_at(t, image, (size_t)h * t->w + w);
}

/* dst (+)= v at channels i.. of a pixel. */
AMPK_INLINE void put(void *dst, size_t i, enum ampk_dtype T, size_t left, ampk_vec v,
                     bool accumulate, ampk_vec_amax *largest)
{
    if (accumulate) v = ampk_vec_load(dst, i, T, left) + v;
    ampk_vec_store_amax(dst, i, T, left, v, largest);
}

/* ---- upsample ---- */

/* All copies of row h of x. A thread writes all of them, so that it reads the row from memory
 * once. */
AMPK_INLINE uint32_t enlarge_row(enum ampk_dtype T, const struct ampk_tensor *x, size_t image,
                                 int h, int stride, float scale, const struct ampk_tensor *y,
                                 bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    size_t c = x->c;
    for (int i = 0; i < stride; i++)
        for (int w = 0; w < y->w; w++) {
            const void *from = pixel_at(x, image, h, w / stride);
            void *to = pixel_at(y, image, h * stride + i, w);
            for (size_t k = 0; k < c; k += AMPK_LANES) {
                ampk_vec v = ampk_vec_load(from, k, T, c - k);
                put(to, k, T, c - k, v * ampk_vec_set(scale), accumulate, &largest);
            }
        }
    return ampk_vec_amax_get(largest);
}

/* Row h of the smaller y. */
AMPK_INLINE uint32_t reduce_row(enum ampk_dtype T, const struct ampk_tensor *x, size_t image, int h,
                                int stride, float scale, const struct ampk_tensor *y,
                                bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    size_t c = x->c;
    for (int w = 0; w < y->w; w++)
        for (size_t k = 0; k < c; k += AMPK_LANES) {
            ampk_vec sum = ampk_vec_set(0);
            for (int i = 0; i < stride; i++)
                for (int j = 0; j < stride; j++) {
                    const void *from = pixel_at(x, image, h * stride + i, w * stride + j);
                    sum += ampk_vec_load(from, k, T, c - k);
                }
            put(pixel_at(y, image, h, w), k, T, c - k, sum * ampk_vec_set(scale), accumulate,
                &largest);
        }
    return ampk_vec_amax_get(largest);
}

/* A row of the smaller tensor is the work of one thread, so no two threads write one pixel. */
void AMPK_CPU(upsample)(struct ampk_context *ctx, const struct ampk_tensor *x, int stride,
                        float scale, bool reverse, const struct ampk_tensor *y, bool accumulate,
                        uint32_t *amax)
{
    assert(are_alike(x, y));
    int rows = reverse ? y->h : x->h;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) collapse(2) reduction(max : largest)
    for (int image = 0; image < x->n; image++)
        for (int h = 0; h < rows; h++) {
            uint32_t m;
            if (reverse)
                AMPK_WITH_DTYPE(x->dtype, T,
                                m = reduce_row(T, x, image, h, stride, scale, y, accumulate));
            else
                AMPK_WITH_DTYPE(x->dtype, T,
                                m = enlarge_row(T, x, image, h, stride, scale, y, accumulate));
            if (m > largest) largest = m;
        }
    ampk_amax_raise(amax, largest);
}

/* ---- shortcut: spans of elements ----
 * The ..._as functions have dtype and activation as constants; the others choose among them. */

/* out = activation(alpha*x + beta*add) */
AMPK_INLINE uint32_t add_span_as(void *out, const void *x, const void *add, enum ampk_dtype T,
                                 size_t n, float alpha, float beta, enum ampk_activation A)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec a = ampk_vec_load(x, i, T, n - i) * ampk_vec_set(alpha);
        ampk_vec b = ampk_vec_load(add, i, T, n - i) * ampk_vec_set(beta);
        ampk_vec_store_amax(out, i, T, n - i, ampk_vec_activate(a + b, A), &largest);
    }
    return ampk_vec_amax_get(largest);
}

/* out = activation(x) */
AMPK_INLINE uint32_t pass_span_as(void *out, const void *x, enum ampk_dtype T, size_t n,
                                  enum ampk_activation A)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = ampk_vec_activate(ampk_vec_load(x, i, T, n - i), A);
        ampk_vec_store_amax(out, i, T, n - i, v, &largest);
    }
    return ampk_vec_amax_get(largest);
}

/* dst (+)= factor * d * activation'(out) */
AMPK_INLINE uint32_t gradient_span_as(void *dst, const void *out, const void *d, enum ampk_dtype T,
                                      size_t n, float factor, enum ampk_activation A,
                                      bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec y = ampk_vec_load(out, i, T, n - i);
        ampk_vec g = ampk_vec_activation_backward(ampk_vec_load(d, i, T, n - i), y, A);
        put(dst, i, T, n - i, g * ampk_vec_set(factor), accumulate, &largest);
    }
    return ampk_vec_amax_get(largest);
}

/* dst (+)= 0 */
/* Overwriting must clear what has no partner; adding 0 only watches the magnitudes. */
AMPK_INLINE uint32_t zero_span_as(void *dst, enum ampk_dtype T, size_t n, bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES)
        put(dst, i, T, n - i, ampk_vec_set(0), accumulate, &largest);
    return ampk_vec_amax_get(largest);
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t add_span(void *out, const void *x, const void *add, enum ampk_dtype dtype, size_t n,
                         float alpha, float beta, enum ampk_activation activation)
{
    uint32_t m;
    AMPK_WITH_DTYPE(
        dtype, T,
        AMPK_WITH_ACTIVATION(activation, A, m = add_span_as(out, x, add, T, n, alpha, beta, A)));
    return m;
}

static uint32_t pass_span(void *out, const void *x, enum ampk_dtype dtype, size_t n,
                          enum ampk_activation activation)
{
    uint32_t m;
    AMPK_WITH_DTYPE(dtype, T,
                    AMPK_WITH_ACTIVATION(activation, A, m = pass_span_as(out, x, T, n, A)));
    return m;
}

static uint32_t gradient_span(void *dst, const void *out, const void *d, enum ampk_dtype dtype,
                              size_t n, float factor, enum ampk_activation activation,
                              bool accumulate)
{
    uint32_t m;
    AMPK_WITH_DTYPE(
        dtype, T,
        AMPK_WITH_ACTIVATION(activation, A,
                             m = gradient_span_as(dst, out, d, T, n, factor, A, accumulate)));
    return m;
}

static uint32_t zero_span(void *dst, enum ampk_dtype dtype, size_t n, bool accumulate)
{
    uint32_t m;
    AMPK_WITH_DTYPE(dtype, T, m = zero_span_as(dst, T, n, accumulate));
    return m;
}

/* ---- shortcut: same shape, or pixel by pixel ---- */

/* Without n: all tensors of an operation have the same number of images. */
static bool have_same_shape(const struct ampk_tensor *a, const struct ampk_tensor *b)
{
    return a->c == b->c && a->h == b->h && a->w == b->w;
}

/* Darknet's sampling. Every step-th pixel of `to` has a partner in `from`, where every
 * from_step-th pixel is read. Of a pair of pixels, the first `channels` channels are paired. */
struct sampling {
    int step, from_step, h, w, channels;
};

static int at_least_one(int v)
{
    return v > 1 ? v : 1;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* The ratio of the widths decides the steps for both axes, as in Darknet. */
static struct sampling find_sampling(const struct ampk_tensor *to, const struct ampk_tensor *from)
{
    return (struct sampling){at_least_one(to->w / from->w), at_least_one(from->w / to->w),
                             smaller(to->h, from->h), smaller(to->w, from->w),
                             smaller(to->c, from->c)};
}

/* The pixel of `from` that pixel (h, w) of the other tensor is paired with, or NULL. */
static const void *find_partner(struct sampling s, const struct ampk_tensor *from, size_t image,
                                int h, int w)
{
    if (h % s.step || w % s.step || h / s.step >= s.h || w / s.step >= s.w) return NULL;
    return pixel_at(from, image, h / s.step * s.from_step, w / s.step * s.from_step);
}

/* Pixel (h, w) of out. */
static uint32_t add_pixel(struct sampling s, const struct ampk_tensor *x,
                          const struct ampk_tensor *add, size_t image, int h, int w, float alpha,
                          float beta, enum ampk_activation activation,
                          const struct ampk_tensor *out)
{
    const void *partner = find_partner(s, add, image, h, w), *from = pixel_at(x, image, h, w);
    void *to = pixel_at(out, image, h, w);
    if (!partner) return pass_span(to, from, x->dtype, x->c, activation);
    size_t both = s.channels, skip = both * ampk_dtype_bytes(x->dtype);
    uint32_t m = add_span(to, from, partner, x->dtype, both, alpha, beta, activation);
    return larger(m, pass_span((char *)to + skip, (const char *)from + skip, x->dtype, x->c - both,
                               activation));
}

static uint32_t add_sampled(struct ampk_context *ctx, const struct ampk_tensor *x,
                            const struct ampk_tensor *add, float alpha, float beta,
                            enum ampk_activation activation, const struct ampk_tensor *out)
{
    struct sampling s = find_sampling(x, add);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) collapse(2) reduction(max : largest)
    for (int image = 0; image < x->n; image++)
        for (int h = 0; h < x->h; h++)
            for (int w = 0; w < x->w; w++)
                largest = larger(largest,
                                 add_pixel(s, x, add, image, h, w, alpha, beta, activation, out));
    return largest;
}

/* Memory order is the same, so images are cut into flat pieces. */
static uint32_t add_same(struct ampk_context *ctx, const struct ampk_tensor *x,
                         const struct ampk_tensor *add, float alpha, float beta,
                         enum ampk_activation activation, const struct ampk_tensor *out)
{
    size_t size = ampk_image_size(x), pieces = ampk_pieces(size), all = x->n * pieces;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (all > 1)
    for (size_t i = 0; i < all; i++) {
        size_t image = i / pieces, first = i % pieces * AMPK_PIECE;
        largest = larger(largest, add_span(ampk_at(out, image, first), ampk_at(x, image, first),
                                           ampk_at(add, image, first), x->dtype,
                                           ampk_piece(size, first), alpha, beta, activation));
    }
    return largest;
}

void AMPK_CPU(shortcut_forward)(struct ampk_context *ctx, const struct ampk_tensor *x,
                                const struct ampk_tensor *add, float alpha, float beta,
                                enum ampk_activation activation, const struct ampk_tensor *out,
                                uint32_t *amax)
{
    assert(are_alike(x, add) && are_alike(x, out));
    ampk_amax_raise(amax, (have_same_shape(x, add) ? add_same : add_sampled)(
                              ctx, x, add, alpha, beta, activation, out));
}

/* Pixel (h, w) of dadd. */
static uint32_t pass_pixel(struct sampling s, const struct ampk_tensor *out,
                           const struct ampk_tensor *d, size_t image, int h, int w, float beta,
                           enum ampk_activation activation, const struct ampk_tensor *dadd,
                           bool accumulate)
{
    const void *partner = find_partner(s, d, image, h, w), *y = find_partner(s, out, image, h, w);
    void *to = pixel_at(dadd, image, h, w);
    if (!partner) return zero_span(to, d->dtype, dadd->c, accumulate);
    size_t both = s.channels, skip = both * ampk_dtype_bytes(d->dtype);
    uint32_t m = gradient_span(to, y, partner, d->dtype, both, beta, activation, accumulate);
    return larger(m, zero_span((char *)to + skip, d->dtype, dadd->c - both, accumulate));
}

static uint32_t pass_sampled(struct ampk_context *ctx, const struct ampk_tensor *out,
                             const struct ampk_tensor *d, float beta,
                             enum ampk_activation activation, const struct ampk_tensor *dadd,
                             bool accumulate)
{
    struct sampling s = find_sampling(dadd, d);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) collapse(2) reduction(max : largest)
    for (int image = 0; image < dadd->n; image++)
        for (int h = 0; h < dadd->h; h++)
            for (int w = 0; w < dadd->w; w++)
                largest = larger(largest, pass_pixel(s, out, d, image, h, w, beta, activation, dadd,
                                                     accumulate));
    return largest;
}

static uint32_t pass_same(struct ampk_context *ctx, const struct ampk_tensor *out,
                          const struct ampk_tensor *d, float factor,
                          enum ampk_activation activation, const struct ampk_tensor *dst,
                          bool accumulate)
{
    size_t size = ampk_image_size(d), pieces = ampk_pieces(size), all = d->n * pieces;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (all > 1)
    for (size_t i = 0; i < all; i++) {
        size_t image = i / pieces, first = i % pieces * AMPK_PIECE;
        largest =
            larger(largest, gradient_span(ampk_at(dst, image, first), ampk_at(out, image, first),
                                          ampk_at(d, image, first), d->dtype,
                                          ampk_piece(size, first), factor, activation, accumulate));
    }
    return largest;
}

/* The two gradients go to two tensors that accumulate independently. */
void AMPK_CPU(shortcut_backward)(struct ampk_context *ctx, const struct ampk_tensor *out,
                                 const struct ampk_tensor *d, float alpha, float beta,
                                 enum ampk_activation activation, const struct ampk_tensor *dx,
                                 bool dx_accumulate, const struct ampk_tensor *dadd,
                                 bool dadd_accumulate, uint32_t *dx_amax, uint32_t *dadd_amax)
{
    assert(are_alike(out, d) && (!dx || are_alike(d, dx)) && (!dadd || are_alike(d, dadd)));
    if (dx) ampk_amax_raise(dx_amax, pass_same(ctx, out, d, alpha, activation, dx, dx_accumulate));
    if (!dadd) return;
    ampk_amax_raise(dadd_amax, (have_same_shape(d, dadd) ? pass_same : pass_sampled)(
                                   ctx, out, d, beta, activation, dadd, dadd_accumulate));
}

/* ---- permutations of an image's elements, by place in NCHW order ---- */

/* Index of element i of an image, counted in NCHW order. */
static inline size_t place_of(const struct ampk_tensor *t, size_t i)
{
    size_t area = (size_t)t->h * t->w;
    return t->layout == AMPK_NCHW || area == 1 ? i : i % area * ampk_pitch(t) + i / area;
}

/* dst[to] (+)= src[from]; returns the amax of what was stored. */
static inline uint32_t move(const struct ampk_tensor *src, const struct ampk_tensor *dst,
                            size_t image, size_t from, size_t to, bool accumulate)
{
    void *at = ampk_at(dst, image, place_of(dst, to));
    float v = ampk_load(ampk_at(src, image, place_of(src, from)), 0, src->dtype);
    if (accumulate) v = ampk_load(at, 0, dst->dtype) + v;
    ampk_store(at, 0, dst->dtype, v);
    return ampk_bits(v) & 0x7fffffff;
}

void AMPK_CPU(reorg)(struct ampk_context *ctx, const struct ampk_tensor *src, int w, int h, int c,
                     int stride, int forward, const struct ampk_tensor *dst, bool accumulate,
                     uint32_t *amax)
{
    assert(stride > 0 && c % (stride * stride) == 0);
    int wide_c = c / (stride * stride);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) collapse(2) reduction(max : largest)
    for (int image = 0; image < src->n; image++)
        for (int k = 0; k < c; k++)
            for (int j = 0; j < h; j++)
                for (int i = 0; i < w; i++) {
                    int cell = k / wide_c; /* which of the stride x stride */
                    size_t row = (size_t)(k % wide_c) * h * stride + j * stride + cell / stride;
                    size_t wide = row * w * stride + i * stride + cell % stride;
                    size_t deep = ((size_t)k * h + j) * w + i;
                    largest = larger(largest, move(src, dst, image, forward ? deep : wide,
                                                   forward ? wide : deep, accumulate));
                }
    ampk_amax_raise(amax, largest);
}

void AMPK_CPU(flatten)(struct ampk_context *ctx, const struct ampk_tensor *src, int size,
                       int layers, int forward, const struct ampk_tensor *dst, bool accumulate,
                       uint32_t *amax)
{
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) collapse(2) reduction(max : largest)
    for (int image = 0; image < src->n; image++)
        for (int c = 0; c < layers; c++)
            for (int i = 0; i < size; i++) {
                size_t planes = (size_t)c * size + i, pixels = (size_t)i * layers + c;
                largest = larger(largest, move(src, dst, image, forward ? planes : pixels,
                                               forward ? pixels : planes, accumulate));
            }
    ampk_amax_raise(amax, largest);
}

/* ---- unfold ---- */

/* Every `apart`-th element of `to` becomes a channel of the pixel, or 0 if that is outside. */
AMPK_INLINE void spread_pixel(size_t bytes, const char *pixel, size_t c, size_t apart, char *to)
{
    for (size_t k = 0; k < c; k++)
        if (pixel)
            memcpy(to + k * apart * bytes, pixel + k * bytes, bytes);
        else
            memset(to + k * apart * bytes, 0, bytes);
}

void AMPK_CPU(unfold)(struct ampk_context *ctx, const struct ampk_tensor *x, int size, int stride,
                      int pad, const struct ampk_tensor *y)
{
    assert(are_alike(x, y) && y->c == x->c * size * size);
    size_t bytes = ampk_dtype_bytes(x->dtype), taps = (size_t)size * size;
#pragma omp parallel for num_threads(ctx->threads) collapse(3)
    for (int image = 0; image < y->n; image++)
        for (int h = 0; h < y->h; h++)
            for (int w = 0; w < y->w; w++)
                for (size_t tap = 0; tap < taps; tap++) {
                    int row = h * stride - pad + (int)tap / size;
                    int column = w * stride - pad + (int)tap % size;
                    bool inside = row >= 0 && row < x->h && column >= 0 && column < x->w;
                    const char *from = inside ? pixel_at(x, image, row, column) : NULL;
                    char *to = (char *)pixel_at(y, image, h, w) + tap * bytes;
                    if (bytes == 2)
                        spread_pixel(2, from, x->c, taps, to);
                    else
                        spread_pixel(4, from, x->c, taps, to);
                }
}

/* The windows [first, last] that see a row or column; `at` counts from the padding's first. */
struct windows {
    int first, last;
};

static struct windows windows_at(int at, int size, int stride, int count)
{
    int first = at < size ? 0 : (at - size) / stride + 1;
    return (struct windows){first, smaller(at / stride, count - 1)};
}

/* Pixel (h, w) of dx. */
AMPK_INLINE uint32_t fold_pixel(enum ampk_dtype T, const struct ampk_tensor *dy, size_t image,
                                int h, int w, int size, int stride, int pad,
                                const struct ampk_tensor *dx, bool accumulate)
{
    struct windows rows = windows_at(h + pad, size, stride, dy->h);
    struct windows columns = windows_at(w + pad, size, stride, dy->w);
    void *to = pixel_at(dx, image, h, w);
    uint32_t largest = 0;
    for (int c = 0; c < dx->c; c++) {
        float sum = 0;
        for (int i = rows.first; i <= rows.last; i++)
            for (int j = columns.first; j <= columns.last; j++) {
                int tap = (h + pad - i * stride) * size + w + pad - j * stride;
                sum += ampk_load(pixel_at(dy, image, i, j), (size_t)c * size * size + tap, T);
            }
        if (accumulate) sum = ampk_load(to, c, T) + sum;
        ampk_store(to, c, T, sum);
        largest = larger(largest, ampk_bits(sum) & 0x7fffffff);
    }
    return largest;
}

void AMPK_CPU(fold)(struct ampk_context *ctx, const struct ampk_tensor *dy, int size, int stride,
                    int pad, const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    assert(are_alike(dx, dy) && dy->c == dx->c * size * size);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) collapse(3) reduction(max : largest)
    for (int image = 0; image < dx->n; image++)
        for (int h = 0; h < dx->h; h++)
            for (int w = 0; w < dx->w; w++) {
                uint32_t m;
                AMPK_WITH_DTYPE(
                    dx->dtype, T,
                    m = fold_pixel(T, dy, image, h, w, size, stride, pad, dx, accumulate));
                largest = larger(largest, m);
            }
    ampk_amax_raise(amax, largest);
}
