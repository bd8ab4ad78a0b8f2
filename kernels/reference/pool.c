/* Reference: max-pooling and global average pooling, window by window. */
#include <float.h>

#include "operations.h"
#include "tensor.h"

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
