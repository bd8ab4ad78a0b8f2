/* Reference: pools, window by window; upsample, shortcut, reorg and flatten, by the index formulas
 * of Darknet's blas.c; unfold and fold, by those of its im2col.c and col2im.c. */
#include <float.h>

#include "activation.h"
#include "operations.h"
#include "tensor.h"

/* ---- pools ---- */

/* One int per output element, in NCHW order: index h*W+w of the maximum in its channel, or -1 if
 * nothing in the window exceeds -FLT_MAX. Backends may keep another index; only their own backward
 * reads it. */
size_t ampk_ref_maxpool_index_bytes(const struct ampk_tensor *y, int size)
{
    (void)size;
    return ampk_ref_count(y) * sizeof(int);
}

/* Finds the first largest value of the window that starts at (top, left). Values outside of the
 * image never win, because Darknet takes them as -FLT_MAX. */
static int find_maximum(const struct ampk_tensor *x, int n, int c, int top, int left, int size,
                        double *max)
{
    int place = -1;
    *max = -FLT_MAX;
    for (int h = top; h < top + size; h++)
        for (int w = left; w < left + size; w++) {
            if (h < 0 || h >= x->h || w < 0 || w >= x->w) continue;
            double v = ampk_ref_get(x, n, c, h, w);
            if (v > *max) {
                *max = v;
                place = h * x->w + w;
            }
        }
    return place;
}

void ampk_ref_maxpool_forward(struct ampk_context *context, const struct ampk_tensor *x, int size,
                              int stride, int pad, const struct ampk_tensor *y, void *argmax)
{
    (void)context;
    int *place = argmax;
    for (int n = 0; n < y->n; n++)
        for (int c = 0; c < y->c; c++)
            for (int h = 0; h < y->h; h++)
                for (int w = 0; w < y->w; w++) {
                    double max;
                    *place++ = find_maximum(x, n, c, h * stride - pad / 2, w * stride - pad / 2,
                                            size, &max);
                    ampk_ref_set(y, n, c, h, w, max, false, NULL);
                }
}

/* Windows may overlap, so the gradients are summed in double and stored once. */
void ampk_ref_maxpool_backward(struct ampk_context *context, const struct ampk_tensor *dy,
                               const void *argmax, int size, int stride, int pad,
                               const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    (void)context, (void)size, (void)stride, (void)pad;
    const int *place = argmax;
    double *sums = ampk_ref_zeros(ampk_ref_count(dx));
    for (int n = 0; n < dy->n; n++)
        for (int c = 0; c < dy->c; c++) {
            double *channel = sums + ((size_t)n * dx->c + c) * dx->h * dx->w;
            for (int h = 0; h < dy->h; h++)
                for (int w = 0; w < dy->w; w++, place++)
                    if (*place >= 0) channel[*place] += ampk_ref_get(dy, n, c, h, w);
        }
    ampk_ref_store(dx, sums, accumulate, amax);
    free(sums);
}

void ampk_ref_avgpool_forward(struct ampk_context *context, const struct ampk_tensor *x,
                              const struct ampk_tensor *y, uint32_t *amax)
{
    (void)context;
    for (int n = 0; n < x->n; n++)
        for (int c = 0; c < x->c; c++) {
            double sum = 0;
            for (int h = 0; h < x->h; h++)
                for (int w = 0; w < x->w; w++)
                    sum += ampk_ref_get(x, n, c, h, w);
            ampk_ref_set(y, n, c, 0, 0, sum / (x->h * x->w), false, amax);
        }
}

void ampk_ref_avgpool_backward(struct ampk_context *context, const struct ampk_tensor *dy,
                               const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    (void)context;
    for (int n = 0; n < dx->n; n++)
        for (int c = 0; c < dx->c; c++) {
            double share = ampk_ref_get(dy, n, c, 0, 0) / (dx->h * dx->w);
            for (int h = 0; h < dx->h; h++)
                for (int w = 0; w < dx->w; w++)
                    ampk_ref_set(dx, n, c, h, w, share, accumulate, amax);
        }
}

/* ---- upsample ---- */

/* y (+)= scale * x, each element of x stride x stride times. */
static void enlarge(const struct ampk_tensor *x, int stride, float scale,
                    const struct ampk_tensor *y, bool accumulate, uint32_t *amax)
{
    for (int n = 0; n < y->n; n++)
        for (int c = 0; c < y->c; c++)
            for (int h = 0; h < y->h; h++)
                for (int w = 0; w < y->w; w++) {
                    double v = scale * ampk_ref_get(x, n, c, h / stride, w / stride);
                    ampk_ref_set(y, n, c, h, w, v, accumulate, amax);
                }
}

/* y (+)= scale * the sum of stride x stride elements of x. */
static void reduce(const struct ampk_tensor *x, int stride, float scale,
                   const struct ampk_tensor *y, bool accumulate, uint32_t *amax)
{
    for (int n = 0; n < y->n; n++)
        for (int c = 0; c < y->c; c++)
            for (int h = 0; h < y->h; h++)
                for (int w = 0; w < y->w; w++) {
                    double sum = 0;
                    for (int i = 0; i < stride; i++)
                        for (int j = 0; j < stride; j++)
                            sum += ampk_ref_get(x, n, c, h * stride + i, w * stride + j);
                    ampk_ref_set(y, n, c, h, w, scale * sum, accumulate, amax);
                }
}

void ampk_ref_upsample(struct ampk_context *context, const struct ampk_tensor *x, int stride,
                       float scale, bool reverse, const struct ampk_tensor *y, bool accumulate,
                       uint32_t *amax)
{
    (void)context;
    (reverse ? reduce : enlarge)(x, stride, scale, y, accumulate, amax);
}

/* ---- shortcut ---- */

/* The cells that a shortcut of these two shapes has in common: cell (c, i, j) of c x h x w lies at
 * (c, i*step, j*step) of the one tensor and (c, i*add_step, j*add_step) of the other. */
struct common_cells {
    int c, h, w, step, add_step;
};

static int at_least_one(int v)
{
    return v < 1 ? 1 : v;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static struct common_cells find_common_cells(const struct ampk_tensor *t,
                                             const struct ampk_tensor *add)
{
    return (struct common_cells){smaller(t->c, add->c), smaller(t->h, add->h),
                                 smaller(t->w, add->w), at_least_one(t->w / add->w),
                                 at_least_one(add->w / t->w)};
}

void ampk_ref_shortcut_forward(struct ampk_context *context, const struct ampk_tensor *x,
                               const struct ampk_tensor *add, float alpha, float beta,
                               enum ampk_activation activation, const struct ampk_tensor *out,
                               uint32_t *amax)
{
    (void)context;
    struct common_cells cells = find_common_cells(x, add);
    double *sum = ampk_ref_load(x);
    size_t image = ampk_ref_count(x) / x->n;
    for (int n = 0; n < x->n; n++)
        for (int c = 0; c < cells.c; c++)
            for (int i = 0; i < cells.h; i++)
                for (int j = 0; j < cells.w; j++) {
                    size_t at = ampk_ref_flat(x, c, i * cells.step, j * cells.step);
                    double *s = &sum[n * image + at];
                    *s = alpha * *s +
                         beta * ampk_ref_get(add, n, c, i * cells.add_step, j * cells.add_step);
                }
    for (size_t i = 0; i < ampk_ref_count(x); i++)
        sum[i] = ampk_ref_activate(sum[i], activation);
    ampk_ref_store(out, sum, false, amax);
    free(sum);
}

/* dadd (+)= beta * g at the common cells. */
static void pass_to_add(const struct ampk_tensor *d, const double *g, float beta,
                        const struct ampk_tensor *dadd, bool accumulate, uint32_t *amax)
{
    struct common_cells cells = find_common_cells(d, dadd);
    double *share = ampk_ref_zeros(ampk_ref_count(dadd));
    size_t image = ampk_ref_count(d) / d->n, add_image = ampk_ref_count(dadd) / dadd->n;
    for (int n = 0; n < d->n; n++)
        for (int c = 0; c < cells.c; c++)
            for (int i = 0; i < cells.h; i++)
                for (int j = 0; j < cells.w; j++) {
                    size_t at = ampk_ref_flat(d, c, i * cells.step, j * cells.step);
                    size_t to = ampk_ref_flat(dadd, c, i * cells.add_step, j * cells.add_step);
                    share[n * add_image + to] = beta * g[n * image + at];
                }
    ampk_ref_store(dadd, share, accumulate, amax);
    free(share);
}

/* dx gets alpha * g everywhere, also where there was nothing to add: so does Darknet. */
void ampk_ref_shortcut_backward(struct ampk_context *context, const struct ampk_tensor *out,
                                const struct ampk_tensor *d, float alpha, float beta,
                                enum ampk_activation activation, const struct ampk_tensor *dx,
                                bool dx_accumulate, const struct ampk_tensor *dadd,
                                bool dadd_accumulate, uint32_t *dx_amax, uint32_t *dadd_amax)
{
    (void)context;
    double *g = ampk_ref_load(d), *y = ampk_ref_load(out);
    for (size_t i = 0; i < ampk_ref_count(d); i++)
        g[i] *= ampk_ref_gradient(y[i], activation);
    if (dadd) pass_to_add(d, g, beta, dadd, dadd_accumulate, dadd_amax);
    for (size_t i = 0; i < ampk_ref_count(d); i++)
        g[i] *= alpha;
    if (dx) ampk_ref_store(dx, g, dx_accumulate, dx_amax);
    free(g);
    free(y);
}

/* ---- reorg, flatten ---- */

/* (i, j, k) walks the deep tensor w x h x c; the wide one has stride times the sides and
 * 1/stride^2 of the channels. */
void ampk_ref_reorg(struct ampk_context *context, const struct ampk_tensor *src, int w, int h,
                    int c, int stride, int forward, const struct ampk_tensor *dst, bool accumulate,
                    uint32_t *amax)
{
    (void)context;
    int groups = stride * stride, small_c = c / groups;
    for (int n = 0; n < src->n; n++)
        for (int k = 0; k < c; k++)
            for (int j = 0; j < h; j++)
                for (int i = 0; i < w; i++) {
                    int offset = k / small_c;
                    int wide_h = j * stride + offset / stride,
                        wide_w = i * stride + offset % stride;
                    size_t deep = ((size_t)k * h + j) * w + i;
                    size_t wide =
                        ((size_t)(k % small_c) * h * stride + wide_h) * w * stride + wide_w;
                    double v = ampk_ref_get_flat(src, n, forward ? deep : wide);
                    ampk_ref_set_flat(dst, n, forward ? wide : deep, v, accumulate, amax);
                }
}

/* From planes of `size` pixels to pixels of `layers` channels, or back. */
void ampk_ref_flatten(struct ampk_context *context, const struct ampk_tensor *src, int size,
                      int layers, int forward, const struct ampk_tensor *dst, bool accumulate,
                      uint32_t *amax)
{
    (void)context;
    for (int n = 0; n < src->n; n++)
        for (int c = 0; c < layers; c++)
            for (int i = 0; i < size; i++) {
                size_t planes = (size_t)c * size + i, pixels = (size_t)i * layers + c;
                double v = ampk_ref_get_flat(src, n, forward ? planes : pixels);
                ampk_ref_set_flat(dst, n, forward ? pixels : planes, v, accumulate, amax);
            }
}

/* ---- unfold ---- */

/* Index h*W+w of the pixel of x that channel c of y's pixel (h, w) shows; -1: it is outside. */
static int seen_pixel(const struct ampk_tensor *x, int size, int stride, int pad, int c, int h,
                      int w)
{
    int row = h * stride - pad + c / size % size, column = w * stride - pad + c % size;
    bool outside = row < 0 || row >= x->h || column < 0 || column >= x->w;
    return outside ? -1 : row * x->w + column;
}

void ampk_ref_unfold(struct ampk_context *context, const struct ampk_tensor *x, int size,
                     int stride, int pad, const struct ampk_tensor *y)
{
    (void)context;
    for (int n = 0; n < y->n; n++)
        for (int c = 0; c < y->c; c++)
            for (int h = 0; h < y->h; h++)
                for (int w = 0; w < y->w; w++) {
                    int at = seen_pixel(x, size, stride, pad, c, h, w);
                    int channel = c / (size * size);
                    double v = at < 0 ? 0 : ampk_ref_get(x, n, channel, at / x->w, at % x->w);
                    ampk_ref_set(y, n, c, h, w, v, false, NULL);
                }
}

/* Windows may overlap, so the gradients are summed in double and stored once. */
void ampk_ref_fold(struct ampk_context *context, const struct ampk_tensor *dy, int size, int stride,
                   int pad, const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    (void)context;
    double *sums = ampk_ref_zeros(ampk_ref_count(dx));
    for (int n = 0; n < dy->n; n++)
        for (int c = 0; c < dy->c; c++) {
            double *channel = sums + ((size_t)n * dx->c + c / (size * size)) * dx->h * dx->w;
            for (int h = 0; h < dy->h; h++)
                for (int w = 0; w < dy->w; w++) {
                    int at = seen_pixel(dx, size, stride, pad, c, h, w);
                    if (at >= 0) channel[at] += ampk_ref_get(dy, n, c, h, w);
                }
        }
    ampk_ref_store(dx, sums, accumulate, amax);
    free(sums);
}
