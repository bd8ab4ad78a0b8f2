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

/* ---- update rules ----
 *
 * update_sgd rounds to FP32 after each single operation, because kernels.h demands these very
 * roundings. Going through double is exact: it has more than twice the bits of FP32, so rounding
 * twice changes nothing. */

/* NaN fails both comparisons and stays. */
static float clamp(float w, float clip)
{
    if (!(clip > 0)) return w;
    return w > clip ? clip : w < -clip ? -clip : w;
}

/* One FP32 addition, rounded once. */
static float add(float a, float b)
{
    return (float)((double)a + b);
}

/* One FP32 product, rounded once: no fused multiply-add. */
static float multiply(float a, float b)
{
    return (float)((double)a * b);
}

/* The order is Darknet's update_convolutional_layer. */
static void update_sgd(const struct ampk_param *p, float momentum)
{
    float *w = p->value, *v = p->update;
    for (size_t i = 0; i < p->n; i++) {
        v[i] = add(v[i], multiply(p->unscale, p->grad[i]));
        if (p->decay_batch != 0) v[i] = add(v[i], -multiply(p->decay_batch, w[i]));
        w[i] = clamp(add(w[i], multiply(p->rate, v[i])), p->clip);
        v[i] = multiply(v[i], momentum);
    }
}

void ampk_ref_update_sgd(struct ampk_context *context, const struct ampk_param *params, int count,
                         float momentum)
{
    (void)context;
    for (int i = 0; i < count; i++)
        update_sgd(&params[i], momentum);
}

/* Kingma and Ba 2015, algorithm 1, on gradients that point downhill: the step is added. */
static void update_adam(const struct ampk_param *p, float b1, float b2, float eps, int t)
{
    float *w = p->value, *m = p->m, *v = p->v;
    for (size_t i = 0; i < p->n; i++) {
        double d = (double)p->unscale * p->grad[i] - (double)p->decay_batch * w[i];
        double first = (double)b1 * m[i] + (1 - (double)b1) * d;
        double second = (double)b2 * v[i] + (1 - (double)b2) * d * d;
        double step = first / (1 - pow(b1, t)) / (sqrt(second / (1 - pow(b2, t))) + eps);
        m[i] = (float)first;
        v[i] = (float)second;
        w[i] = clamp((float)(w[i] + p->rate * step), p->clip);
    }
}

void ampk_ref_update_adam(struct ampk_context *context, const struct ampk_param *params, int count,
                          float b1, float b2, float eps, int t)
{
    (void)context;
    for (int i = 0; i < count; i++)
        update_adam(&params[i], b1, b2, eps, t);
}
