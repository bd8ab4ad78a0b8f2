/* Reference: what is done element by element: copies between dtypes and layouts, dropout, clipping
 * and activation of tensors; scaling, sums and update rules of flat FP32 arrays; numbers for the
 * log. Elements of tensors are counted in NCHW order, whatever the layouts: that order decides
 * which belong together. */
#include "activation.h"
#include "kernels/philox.h"
#include "operations.h"
#include "tensor.h"

/* ---- tensors ---- */

void ampk_ref_convert(struct ampk_context *context, const struct ampk_tensor *src,
                      const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    (void)context;
    size_t image = ampk_ref_count(src) / src->n;
    for (int n = 0; n < src->n; n++)
        for (size_t j = 0; j < image; j++)
            ampk_ref_set_flat(dst, n, j, ampk_ref_get_flat(src, n, j), accumulate, amax);
}

void ampk_ref_dropout(struct ampk_context *context, const struct ampk_tensor *x,
                      const uint8_t *keep, float scale, const struct ampk_tensor *y,
                      bool accumulate, uint32_t *amax)
{
    (void)context;
    size_t image = ampk_ref_count(x) / x->n;
    for (int n = 0; n < x->n; n++)
        for (size_t j = 0; j < image; j++) {
            double v = keep[n * image + j] ? scale * ampk_ref_get_flat(x, n, j) : 0;
            ampk_ref_set_flat(y, n, j, v, accumulate, amax);
        }
}

/* NaN fails the comparison and stays. */
void ampk_ref_clip(struct ampk_context *context, const struct ampk_tensor *x, float limit)
{
    (void)context;
    size_t image = ampk_ref_count(x) / x->n;
    for (int n = 0; n < x->n; n++)
        for (size_t j = 0; j < image; j++) {
            double v = ampk_ref_get_flat(x, n, j);
            if (fabs(v) > limit) ampk_ref_set_flat(x, n, j, copysign(limit, v), false, NULL);
        }
}

/* Compares as the contract is written, u < probability; the other backends compare whole numbers.
 */
void ampk_ref_dropout_draw(struct ampk_context *context, const struct ampk_draw *draw,
                           float probability, uint8_t *keep, size_t n)
{
    (void)context;
    for (size_t i = 0; i < n; i++) {
        uint32_t numbers[4];
        ampk_draw_four(draw, (uint32_t)(i / 4), numbers);
        keep[i] = !(numbers[i % 4] * 0x1p-32 < (double)probability);
    }
}

void ampk_ref_activation_forward(struct ampk_context *context, const struct ampk_tensor *x,
                                 enum ampk_activation activation, const struct ampk_tensor *y,
                                 uint32_t *amax)
{
    (void)context;
    size_t image = ampk_ref_count(x) / x->n;
    for (int n = 0; n < x->n; n++)
        for (size_t j = 0; j < image; j++) {
            double v = ampk_ref_activate(ampk_ref_get_flat(x, n, j), activation);
            ampk_ref_set_flat(y, n, j, v, false, amax);
        }
}

void ampk_ref_activation_backward(struct ampk_context *context, const struct ampk_tensor *out,
                                  enum ampk_activation activation, const struct ampk_tensor *d,
                                  const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    (void)context;
    size_t image = ampk_ref_count(d) / d->n;
    for (int n = 0; n < d->n; n++)
        for (size_t j = 0; j < image; j++) {
            double slope = ampk_ref_gradient(ampk_ref_get_flat(out, n, j), activation);
            ampk_ref_set_flat(dx, n, j, slope * ampk_ref_get_flat(d, n, j), accumulate, amax);
        }
}

void ampk_ref_inspect(struct ampk_context *context, const struct ampk_tensor *x, uint32_t *amax,
                      uint32_t *zeros)
{
    (void)context;
    size_t image = (size_t)x->c * x->h * x->w;
    for (int n = 0; n < x->n; n++)
        for (size_t j = 0; j < image; j++) {
            double v = ampk_ref_get_flat(x, n, j);
            ampk_ref_raise(amax, (float)v);
            *zeros += v == 0;
        }
}

/* ---- flat arrays: each result is rounded once, at the store ---- */

void ampk_ref_amax(struct ampk_context *context, const float *x, size_t n, uint32_t *amax)
{
    (void)context;
    for (size_t i = 0; i < n; i++)
        ampk_ref_raise(amax, x[i]);
}

void ampk_ref_scale(struct ampk_context *context, float *x, size_t n, float factor)
{
    (void)context;
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] * factor);
}

void ampk_ref_accumulate(struct ampk_context *context, const float *g, size_t n, float factor,
                         float *sum)
{
    (void)context;
    for (size_t i = 0; i < n; i++)
        sum[i] = (float)(sum[i] + (double)factor * g[i]);
}

void ampk_ref_copy_many(struct ampk_context *context, const struct ampk_span *spans, int count)
{
    (void)context;
    for (int i = 0; i < count; i++)
        for (size_t j = 0; j < spans[i].n; j++)
            spans[i].dst[j] = spans[i].src[j];
}

void ampk_ref_sum_squares(struct ampk_context *context, const float *x, size_t n, float *sum)
{
    double all = 0;
    (void)context;
    for (size_t i = 0; i < n; i++)
        all += (double)x[i] * x[i];
    *sum = (float)all;
}
