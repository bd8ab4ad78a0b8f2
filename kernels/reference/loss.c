/* Reference: softmax, logistic and cost layers as Darknet's GPU code has them, and the backward of
 * every loss. kernels.h names the errors of Darknet's CPU code that this file does not repeat. */
#include "operations.h"
#include "tensor.h"

/* ---- softmax ---- */

/* Subtracting the largest value keeps exp from overflowing. */
void ampk_ref_softmax(const float *x, float *out, int n, size_t stride, double temperature)
{
    double largest = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        largest = fmax(largest, x[i * stride]);
    for (int i = 0; i < n; i++)
        sum += exp((x[i * stride] - largest) / temperature);
    for (int i = 0; i < n; i++)
        out[i * stride] = (float)(exp((x[i * stride] - largest) / temperature) / sum);
}

/* A tree has its groups; without one, the parts are channels of a location or equal parts of the
 * row. */
static void softmax_image(const struct ampk_softmax *o, const struct ampk_tensor *t, const float *x,
                          float *out)
{
    int area = t->h * t->w, outputs = t->c * area, part = outputs / o->groups;
    for (int g = 0; g < o->tree.groups; g++) {
        int first = o->tree.group_offset[g];
        ampk_ref_softmax(x + first, out + first, o->tree.group_size[g], 1, o->temperature);
    }
    if (o->tree.classes) return;
    for (int i = 0; o->spatial && i < area; i++)
        ampk_ref_softmax(x + i, out + i, t->c, area, 1);
    for (int g = 0; !o->spatial && g < o->groups; g++)
        ampk_ref_softmax(x + g * part, out + g * part, part, 1, o->temperature);
}

void ampk_ref_softmax_forward(struct ampk_context *context, const struct ampk_softmax *o,
                              const struct ampk_tensor *x, const struct ampk_tensor *out,
                              uint32_t *amax)
{
    size_t count = ampk_ref_count(x), image = count / x->n;
    for (int n = 0; n < x->n; n++)
        softmax_image(o, x, (const float *)x->data + n * image, (float *)out->data + n * image);
    ampk_ref_amax(context, out->data, count, amax);
}

/* ---- one element at a time ---- */

/* The loss of one element. delta points downhill; the cost is the sum of the errors. */
struct element {
    double delta, error;
};

/* Cross-entropy, for truths that need not be 0 or 1. */
static struct element softmax_element(double p, double t, bool masked)
{
    if (masked && t == AMPK_TRUTH_UNKNOWN) return (struct element){0, 0};
    return (struct element){t - p, t != 0 ? -log(p) : 0};
}

/* 1e-7 keeps the logarithms finite, as in Darknet. */
static struct element logistic_element(double p, double t)
{
    return (struct element){t - p, -t * log(p + 1e-7) - (1 - t) * log(1 - p + 1e-7)};
}

/* The types without masks, weights and thresholds, which cost_element adds. */
static struct element plain_cost(enum ampk_cost_type type, double x, double t)
{
    double miss = t - x, sign = miss > 0 ? 1 : -1;
    bool smooth_end = type == AMPK_COST_SMOOTH && fabs(miss) >= 1;
    if (type == AMPK_COST_WGAN) return (struct element){t > 0 ? 1 : -1, t != 0 ? -x : x};
    if (type == AMPK_COST_L1) return (struct element){sign, fabs(miss)};
    if (smooth_end) return (struct element){sign, 2 * fabs(miss) - 1};
    return (struct element){miss, miss * miss};
}

/* inputs: values of an image. The smoothed truth is FP32, as Darknet stores it. */
static struct element cost_element(const struct ampk_cost *o, double x, double t, size_t inputs)
{
    if (o->smooth != 0) t = (float)((1 - (double)o->smooth) * t + (double)o->smooth / inputs);
    struct element e = plain_cost(o->type, x, t);
    if (o->type == AMPK_COST_MASKED && t == AMPK_TRUTH_UNKNOWN) e = (struct element){0, 0};
    if (o->type == AMPK_COST_SEG && t == 0) {
        e.delta *= o->noobject_scale;
        e.error *= o->noobject_scale;
    }
    if (fabs(e.delta) < (double)o->threshold / inputs) e.delta = 0;
    e.delta *= o->scale;
    return e;
}

/* ---- losses ---- */

/* A loss of this file reports its cost only. */
static void finish(struct ampk_context *context, float *delta, size_t count, double cost,
                   struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    *sums = (struct ampk_loss_sums){.cost = (float)cost};
    ampk_ref_amax(context, delta, count, delta_amax);
}

void ampk_ref_softmax_loss(struct ampk_context *context, const struct ampk_tensor *out,
                           const float *truth, bool masked, float *delta,
                           struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    const float *p = out->data;
    double cost = 0;
    for (size_t i = 0; i < ampk_ref_count(out); i++) {
        struct element e = softmax_element(p[i], truth[i], masked);
        delta[i] = (float)e.delta;
        cost += e.error;
    }
    finish(context, delta, ampk_ref_count(out), cost, sums, delta_amax);
}

void ampk_ref_logistic_loss(struct ampk_context *context, const struct ampk_tensor *out,
                            const float *truth, float *delta, struct ampk_loss_sums *sums,
                            uint32_t *delta_amax)
{
    const float *p = out->data;
    double cost = 0;
    for (size_t i = 0; i < ampk_ref_count(out); i++) {
        struct element e = logistic_element(p[i], truth[i]);
        delta[i] = (float)e.delta;
        cost += e.error;
    }
    finish(context, delta, ampk_ref_count(out), cost, sums, delta_amax);
}

void ampk_ref_cost_loss(struct ampk_context *context, const struct ampk_cost *o,
                        const struct ampk_tensor *x, const float *truth,
                        const struct ampk_tensor *out, float *delta, struct ampk_loss_sums *sums,
                        uint32_t *amax, uint32_t *delta_amax)
{
    size_t count = ampk_ref_count(x);
    const float *in = x->data;
    float *error = out->data;
    double cost = 0;
    for (size_t i = 0; i < count; i++) {
        struct element e = cost_element(o, in[i], truth[i], count / x->n);
        delta[i] = (float)e.delta;
        error[i] = (float)e.error;
        cost += e.error;
    }
    ampk_ref_amax(context, error, count, amax);
    finish(context, delta, count, cost, sums, delta_amax);
}

void ampk_ref_loss_backward(struct ampk_context *context, const float *delta, size_t n, float scale,
                            float *dx, bool accumulate, uint32_t *amax)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = (float)((accumulate ? dx[i] : 0) + (double)scale * delta[i]);
    ampk_ref_amax(context, dx, n, amax);
}
