/* Activations and batch-norm for the conformance tests: their parameters and statistics on both
 * sides, and what FP32 arithmetic may lose in them. */
#ifndef CONFORMANCE_LAYERS_H
#define CONFORMANCE_LAYERS_H

#include "conformance.h"
#include "kernels/reference/activation.h"

/* ---- activations ---- */

UNUSED static enum ampk_activation random_activation(void)
{
    if (random_bool())
        return (enum ampk_activation)RANDOM_OF(AMPK_LEAKY, AMPK_LINEAR, AMPK_RELU, AMPK_MISH,
                                               AMPK_SWISH);
    return (enum ampk_activation)random_int(0, AMPK_ACTIVATIONS - 1);
}

/* Roundings in the formulas of mish and swish, and of their gradients (kernels/activation.h). An
 * exponential has at most 4, and its error reaches the share at most once, the share's derivative
 * at most twice; up to 10 sums, products and quotients follow. Below -87 and without denormal
 * numbers the results are smaller than MISH_LEAST. */
#define MISH_TERMS 18
#define MISH_LEAST 2e-36

/* Formulas of one rounding or none; the others evaluate exp, or subtract. */
static bool is_simple(enum ampk_activation a)
{
    return a == AMPK_LINEAR || a == AMPK_RELU || a == AMPK_LEAKY || a == AMPK_RELIE ||
           a == AMPK_HARDTAN;
}

/* Of activation(v) where v itself has `terms` roundings of the magnitude. No activation is steeper
 * than 1.7581 (selu), the others but ramp, mish and swish not than 1; those with exp are computed
 * to 8 units in the last place of 1 + |result|, mish and swish of |result| (MISH_TERMS). */
UNUSED static struct tolerance activated(enum ampk_activation a, double terms,
                                         const struct ampk_tensor *magnitude)
{
    bool to_zero = ampk_is_gradient_of_input(a);
    double steepness = a == AMPK_SELU ? 1.7581 : a == AMPK_RAMP || to_zero ? 1.1 : 1;
    double ulp = 0x1p-23;
    if (is_simple(a)) return (struct tolerance){terms, magnitude, ulp, 0};
    if (to_zero)
        return (struct tolerance){steepness * terms, magnitude, MISH_TERMS * ulp / 2, MISH_LEAST};
    return (struct tolerance){steepness * terms, magnitude, 8 * ulp, 8 * ulp};
}

/* What share of x mish or swish is. */
static double share_of(double x, enum ampk_activation a)
{
    return x == 0 ? 1 : ampk_ref_activate(x, a) / x;
}

/* A bound of all that is added and subtracted to find the gradient. */
static double gradient_size(enum ampk_activation a, double out)
{
    if (ampk_is_gradient_of_input(a)) {
        double share = share_of(out, a);
        return share + fabs(ampk_ref_gradient(out, a) - share);
    }
    return is_simple(a) ? fabs(ampk_ref_gradient(out, a)) : 2 * (1 + fabs(out)) * (1 + fabs(out));
}

/* |d| * gradient_size(out), as a dense FP32 tensor of d's shape. */
UNUSED static struct ampk_tensor gradient_magnitude(struct rig *r, enum ampk_activation a,
                                                    const struct ampk_tensor *out,
                                                    const struct ampk_tensor *d)
{
    struct ampk_tensor m = absolute(r, d);
    size_t image = (size_t)d->c * d->h * d->w;
    for (int n = 0; n < d->n; n++)
        for (size_t j = 0; j < image; j++) {
            double slope = gradient_size(a, ampk_ref_get_flat(out, n, j));
            ampk_ref_set_flat(&m, n, j, slope * ampk_ref_get_flat(&m, n, j), false, NULL);
        }
    return m;
}

/* Roundings of a gradient that is d * activation'(out). */
UNUSED static double gradient_terms(enum ampk_activation a)
{
    return ampk_is_gradient_of_input(a) ? MISH_TERMS + 1 : 6;
}

/* Outputs of activations, kinks included. */
UNUSED static double random_output(void)
{
    return test_random() % 4 == 0 ? random_int(-2, 2) : random_value() / 4;
}

/* ---- batch-norm ---- */

UNUSED static double positive_value(void)
{
    return test_uniform(.01, 4);
}

UNUSED static double positive_value_or_zero(void)
{
    return test_random() % 16 == 0 ? 0 : positive_value();
}

UNUSED static enum ampk_bn_rule random_rule(void)
{
    return (enum ampk_bn_rule)random_int(AMPK_BN_DARKNET_CPU, AMPK_BN_CUDNN);
}

/* The parameters of a layer, both sides. */
struct layer {
    struct pair scale, bias, mean, variance;
    struct ampk_batchnorm tested, exact;
};

UNUSED static struct layer make_layer(struct rig *r, int c, double (*variance)(void))
{
    struct layer l = {input_array(r, c),
                      input_array(r, c),
                      input_array(r, c),
                      input_tensor_of(r, describe_array(c), variance),
                      {0},
                      {0}};
    enum ampk_bn_rule rule = random_rule();
    l.tested = (struct ampk_batchnorm){.scale = l.scale.tested.data,
                                       .bias = l.bias.tested.data,
                                       .mean = l.mean.tested.data,
                                       .variance = l.variance.tested.data,
                                       .rule = rule};
    l.exact = (struct ampk_batchnorm){.scale = l.scale.exact.data,
                                      .bias = l.bias.exact.data,
                                      .mean = l.mean.exact.data,
                                      .variance = l.variance.exact.data,
                                      .rule = rule};
    return l;
}

/* The layer that adds up what `l` adds and subtracts, if it is given |y|. */
UNUSED static struct ampk_batchnorm magnitude_layer(struct rig *r, const struct layer *l)
{
    struct ampk_tensor scale = absolute(r, &l->scale.exact), bias = absolute(r, &l->bias.exact);
    struct ampk_tensor mean = absolute(r, &l->mean.exact);
    float *minus = mean.data;
    for (int c = 0; c < mean.c; c++)
        minus[c] = -minus[c];
    return (struct ampk_batchnorm){.scale = scale.data,
                                   .bias = bias.data,
                                   .mean = minus,
                                   .variance = l->exact.variance,
                                   .rule = l->exact.rule};
}

/* Sums over a channel of g and of g*(|y|+|mean|). */
struct channel_sums {
    double g, gy;
};

static struct channel_sums sum_channel(const struct ampk_tensor *g, const struct ampk_tensor *y,
                                       double mean, int c)
{
    struct channel_sums s = {0, 0};
    for (int n = 0; n < y->n; n++)
        for (int h = 0; h < y->h; h++)
            for (int w = 0; w < y->w; w++) {
                double size = ampk_ref_get(g, n, c, h, w);
                s.g += size;
                s.gy += size * (fabs(ampk_ref_get(y, n, c, h, w)) + mean);
            }
    return s;
}

/* Bounds of all that is added up for dy, dscale and dbias; bound, of g, is turned into that for dy.
 */
UNUSED static void bound_channel(struct ampk_tensor *bound, const struct ampk_tensor *y,
                                 const struct ampk_batchnorm *bn, int c, float *to_scale,
                                 float *to_bias)
{
    double count = (double)y->n * y->h * y->w;
    double mean = fabs(bn->mean[c]), scale = fabs(bn->scale[c]);
    double inverse = 1 / sqrt(bn->variance[c] + 1e-5);
    bool on_cpu = bn->rule == AMPK_BN_DARKNET_CPU;
    struct channel_sums s = sum_channel(bound, y, mean, c);
    to_bias[c] = (float)s.g;
    to_scale[c] = (float)(s.gy * (on_cpu ? 1 / (sqrt(bn->variance[c]) + 1e-6) : inverse));
    for (int n = 0; n < y->n; n++)
        for (int h = 0; h < y->h; h++)
            for (int w = 0; w < y->w; w++) {
                double distance = fabs(ampk_ref_get(y, n, c, h, w)) + mean;
                double g = ampk_ref_get(bound, n, c, h, w) * scale * inverse;
                g += scale * s.gy * pow(inverse, 3) * distance / count;
                g += scale * s.g * inverse / count;
                ampk_ref_set(bound, n, c, h, w, g, false, NULL);
            }
}

/* ---- batch-norm's statistics ---- */

/* What is written, both sides. */
struct statistics {
    struct pair mean, variance, rolling_mean, rolling_variance;
    enum ampk_bn_rule rule;
    struct amax amax;
};

UNUSED static struct statistics make_statistics(struct rig *r, int c)
{
    return (struct statistics){output_array(r, c, false),
                               output_array(r, c, false),
                               output_array(r, c, true),
                               output_array(r, c, true),
                               (enum ampk_bn_rule)random_int(AMPK_BN_DARKNET_CPU, AMPK_BN_CUDNN),
                               make_amax(r)};
}

UNUSED static struct ampk_bn_statistics tested_statistics(const struct statistics *s)
{
    return (struct ampk_bn_statistics){s->mean.tested.data,
                                       s->variance.tested.data,
                                       s->rolling_mean.tested.data,
                                       s->rolling_variance.tested.data,
                                       s->rule,
                                       tested_amax(&s->amax)};
}

/* Bounds of all that is added up for each of them. */
struct statistics_magnitude {
    struct ampk_tensor mean, variance, rolling_mean, rolling_variance;
};

/* With d = |y - shift|: the mean is shift + sum(d)/n; the variance takes sum(d^2) and, twice with
 * its error, sum(d)^2/n. */
static struct statistics_magnitude statistics_magnitude(struct rig *r, const struct statistics *s,
                                                        const struct ampk_tensor *y)
{
    struct statistics_magnitude m = {blank(r, &s->mean.exact), blank(r, &s->variance.exact),
                                     absolute(r, &s->rolling_mean.exact),
                                     absolute(r, &s->rolling_variance.exact)};
    const float *shift = s->rolling_mean.exact.data;
    size_t area = (size_t)y->h * y->w;
    double count = (double)y->n * area, below = count > 1 ? count - 1 : 1;
    for (int c = 0; c < y->c; c++) {
        double sum = 0, squares = 0;
        for (int n = 0; n < y->n; n++)
            for (size_t i = 0; i < area; i++) {
                double d = fabs(ampk_ref_get_flat(y, n, c * area + i) - shift[c]);
                sum += d;
                squares += d * d;
            }
        double mean = fabs(shift[c]) + sum / count;
        double variance = (squares + 2 * sum * sum / count) / below;
        ((float *)m.mean.data)[c] = (float)mean;
        ((float *)m.variance.data)[c] = (float)variance;
        ((float *)m.rolling_mean.data)[c] += (float)mean;
        ((float *)m.rolling_variance.data)[c] += (float)variance;
    }
    return m;
}

/* They must be those of y. */
UNUSED static void check_statistics(struct rig *r, struct statistics *s,
                                    const struct ampk_tensor *y)
{
    struct statistics_magnitude m = statistics_magnitude(r, s, y);
    double terms = roundings((double)y->n * y->h * y->w);
    ampk_reference.bn_statistics(
        NULL, y,
        &(struct ampk_bn_statistics){s->mean.exact.data, s->variance.exact.data,
                                     s->rolling_mean.exact.data, s->rolling_variance.exact.data,
                                     s->rule, &s->amax.exact});
    check_output(r, "mean", &s->mean, (struct tolerance){terms + 3, &m.mean, 0, 0});
    check_output(r, "variance", &s->variance, (struct tolerance){terms + 5, &m.variance, 0, 0});
    double slack = check_output(r, "rolling mean", &s->rolling_mean,
                                (struct tolerance){terms + 4, &m.rolling_mean, 0, 0});
    slack = fmax(slack, check_output(r, "rolling variance", &s->rolling_variance,
                                     (struct tolerance){terms + 6, &m.rolling_variance, 0, 0}));
    check_amax(r, "statistics", &s->amax, slack);
}

#endif
