/* Reference: flat FP32 arrays. update_sgd rounds to FP32 after each single operation, because
 * kernels.h demands these very roundings. Going through double is exact: it has more than twice
 * the bits of FP32, so rounding twice changes nothing. The other operations round once, at the
 * store. */
#include "operations.h"
#include "tensor.h"

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

void ampk_ref_copy_many(struct ampk_context *context, const struct ampk_span *spans, int count)
{
    (void)context;
    for (int i = 0; i < count; i++)
        for (size_t j = 0; j < spans[i].n; j++)
            spans[i].dst[j] = spans[i].src[j];
}
