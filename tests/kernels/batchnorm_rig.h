/* A layer with batch-norm for the conformance tests, and what FP32 arithmetic may lose in it. */
#ifndef CONFORMANCE_BATCHNORM_RIG_H
#define CONFORMANCE_BATCHNORM_RIG_H

#include "activation_error.h"

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
    l.tested = (struct ampk_batchnorm){l.scale.tested.data, l.bias.tested.data, l.mean.tested.data,
                                       l.variance.tested.data, rule};
    l.exact = (struct ampk_batchnorm){l.scale.exact.data, l.bias.exact.data, l.mean.exact.data,
                                      l.variance.exact.data, rule};
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
    return (struct ampk_batchnorm){scale.data, bias.data, minus, l->exact.variance, l->exact.rule};
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

#endif
