/* What the statistics that two ways take may differ by, for the checks before a contest. */
#ifndef AMPK_CUDA_TENSOR_CORE_AGREE_H
#define AMPK_CUDA_TENSOR_CORE_AGREE_H

#include <math.h>
#include <stdbool.h>

static inline bool ampk_tc_is_near(double a, double b, double bound)
{
    return fabs(a - b) <= bound;
}

/* Of sums of the same result, before or after it was rounded to FP16: these roundings have no
 * common direction, and 8 / sqrt(n) of 2^-10 is more than is left of them in a mean. 2^-23 sqrt(n):
 * the sums' own roundings, of which an engine that adds n/64 values in a row has no more. */
static inline double ampk_tc_slack_of_sums(double count)
{
    double root = sqrt(count);
    return 0x1p-7 / root + 0x1p-23 * root;
}

/* Whether means, and variances behind them, agree in every channel, those of `a` being right. With
 * the mean, the mean of the squares and the square of the mean may be off by 2 slack * R^2 each. */
static inline bool ampk_tc_statistics_agree(int channels, const float *a, const float *b,
                                            double slack)
{
    const float *a_variance = a + channels, *b_variance = b + channels;
    for (int c = 0; c < channels; c++) {
        double square = a_variance[c] + (double)a[c] * a[c];
        bool mean = ampk_tc_is_near(a[c], b[c], slack * sqrt(square));
        if (!mean || !ampk_tc_is_near(a_variance[c], b_variance[c], 4 * slack * square))
            return false;
    }
    return true;
}

#endif
