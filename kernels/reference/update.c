/* Update rules and moving averages, by the formulas of kernels.h.
 *
 * SGD rounds to FP32 after each single operation, because kernels.h demands these very roundings.
 * Going through double is exact: it has more than twice the bits of FP32, so rounding twice changes
 * nothing. The other rules are computed in double and rounded once. */
#include <math.h>

#include "operations.h"

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

/* The gradient of the rule, rounded to FP32 where it is limited or not. */
static float gradient(const struct ampk_rule *r, const struct ampk_param *p, size_t i)
{
    return clamp(multiply(p->unscale, p->grad[i]), r->limit);
}

static double rate_of(const struct ampk_param *p)
{
    return (double)p->rate * (p->trust ? *p->trust : 1);
}

static void update_sgd(const struct ampk_rule *r, const struct ampk_param *p, size_t i)
{
    float *w = p->value, *v = p->update;
    v[i] = add(v[i], gradient(r, p, i));
    if (p->decay != 0) v[i] = add(v[i], -multiply(p->decay, w[i]));
    w[i] = clamp(add(w[i], multiply(p->rate, v[i])), p->clip);
    v[i] = multiply(v[i], r->momentum);
}

static void update_lars(const struct ampk_rule *r, const struct ampk_param *p, size_t i)
{
    float *w = p->value, *v = p->update;
    double step = v[i] + rate_of(p) * (gradient(r, p, i) - (double)p->decay * w[i]);
    w[i] = clamp((float)(w[i] + step), p->clip);
    v[i] = (float)(step * r->momentum);
}

struct moments {
    double m, v;
};

/* Of the gradient d. */
static struct moments moments_with(const struct ampk_rule *r, const struct ampk_param *p, size_t i,
                                   double d)
{
    return (struct moments){(double)r->b1 * p->m[i] + (1 - (double)r->b1) * d,
                            (double)r->b2 * p->v[i] + (1 - (double)r->b2) * d * d};
}

static double direction(const struct ampk_rule *r, struct moments m)
{
    return m.m / (1 - pow(r->b1, r->t)) / (sqrt(m.v / (1 - pow(r->b2, r->t))) + r->eps);
}

static void update_adam(const struct ampk_rule *r, const struct ampk_param *p, size_t i)
{
    float *w = p->value;
    double decay = (double)p->decay * w[i], g = gradient(r, p, i);
    bool decoupled = r->optimizer == AMPK_ADAMW;
    struct moments m = moments_with(r, p, i, decoupled ? g : g - decay);
    double step = rate_of(p) * (direction(r, m) - (decoupled ? decay : 0));
    p->m[i] = (float)m.m;
    p->v[i] = (float)m.v;
    w[i] = clamp((float)(w[i] + step), p->clip);
}

static void update(const struct ampk_rule *r, const struct ampk_param *p)
{
    for (size_t i = 0; i < p->n; i++) {
        if (r->optimizer == AMPK_SGD)
            update_sgd(r, p, i);
        else if (r->optimizer == AMPK_LARS)
            update_lars(r, p, i);
        else
            update_adam(r, p, i);
        if (p->average)
            p->average[i] = (float)(p->average[i] + (double)r->average_rest *
                                                        ((double)p->value[i] - p->average[i]));
    }
}

void ampk_ref_update(struct ampk_context *context, const struct ampk_rule *rule,
                     const struct ampk_param *params, int count)
{
    (void)context;
    for (int i = 0; i < count; i++)
        update(rule, &params[i]);
}

static double trust(const struct ampk_rule *r, const struct ampk_param *p)
{
    double weights = 0, steps = 0;
    for (size_t i = 0; i < p->n; i++) {
        double w = p->value[i], x = gradient(r, p, i);
        if (r->optimizer == AMPK_ADAMW)
            x = direction(r, moments_with(r, p, i, x)) - (double)p->decay * w;
        weights += w * w;
        steps += x * x;
    }
    weights = sqrt(weights), steps = sqrt(steps);
    if (r->optimizer == AMPK_LARS) {
        steps += (double)p->decay * weights;
        steps /= (double)AMPK_LARS_TRUST;
    }
    return weights == 0 || steps == 0 ? 1 : weights / steps;
}

void ampk_ref_trust_ratios(struct ampk_context *context, const struct ampk_rule *rule,
                           const struct ampk_param *params, int count)
{
    (void)context;
    for (int i = 0; i < count; i++)
        if (params[i].trust) *params[i].trust = (float)trust(rule, &params[i]);
}

void ampk_ref_average_many(struct ampk_context *context, const struct ampk_span *spans, int count,
                           float rest)
{
    (void)context;
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < spans[i].n; k++) {
            double difference = (double)spans[i].src[k] - spans[i].dst[k];
            spans[i].dst[k] = (float)(spans[i].dst[k] + rest * difference);
        }
}
