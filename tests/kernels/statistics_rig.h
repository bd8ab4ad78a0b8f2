/* Batch-norm's statistics for the conformance tests, and what FP32 sums may lose in them. */
#ifndef CONFORMANCE_STATISTICS_RIG_H
#define CONFORMANCE_STATISTICS_RIG_H

#include "conformance.h"

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

/* What the sums are of: y - shift, or where a library may take them also y itself. */
enum sums_about { SUMS_ABOUT_SHIFT, SUMS_ABOUT_0_PERHAPS };

/* With d = |y - shift|, or |y| + |shift|, which is more than either: the mean is shift + sum(d)/n;
 * the variance takes sum(d^2) and, twice with its error, sum(d)^2/n. */
static struct statistics_magnitude statistics_magnitude(struct rig *r, const struct statistics *s,
                                                        const struct ampk_tensor *y,
                                                        enum sums_about about)
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
                double v = ampk_ref_get_flat(y, n, c * area + i);
                double d =
                    about == SUMS_ABOUT_SHIFT ? fabs(v - shift[c]) : fabs(v) + fabs(shift[c]);
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
                                    const struct ampk_tensor *y, enum sums_about about)
{
    struct statistics_magnitude m = statistics_magnitude(r, s, y, about);
    double terms = roundings((double)y->n * y->h * y->w);
#if defined(CONFORMANCE_CUDA) && !defined(CUDA_EMULATED)
    /* Of y before it is rounded to FP16, perhaps: by 2^-11, in squares by twice as much. */
    if (about == SUMS_ABOUT_0_PERHAPS) terms += 0x1p14;
#endif
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
