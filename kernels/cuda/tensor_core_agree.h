/* What the results of two ways may differ by, for the checks before a contest. */
#ifndef AMPK_CUDA_TENSOR_CORE_AGREE_H
#define AMPK_CUDA_TENSOR_CORE_AGREE_H

#include "tensor_core.h"

#include <math.h>

static inline bool ampk_tc_is_near(double a, double b, double bound)
{
    return fabs(a - b) <= bound;
}

/* From one number of the result's type to the next, relatively. */
static inline double ampk_tc_step(const struct ampk_tc_problem *p)
{
    return p->result == AMPK_BF16 ? 0x1p-7 : 0x1p-10;
}

/* Of the results of two engines, with sums over count values:
 *     a step          of a value: rounded once in either way
 *     2^-22 products  of the largest sum, in R, in a value: each product rounds or cuts it, twice
 *     2^-20 sqrt(n)   of R, in the mean: roundings of our sum, 8 of the root of their number, twice
 */
static inline double ampk_tc_slack_of_results(const struct ampk_tc_problem *p, double largest,
                                              double count)
{
    double channels = p->pass == AMPK_TC_DATA ? p->k : p->c;
    double products = channels / p->groups * p->kh * p->kw;
    return ampk_tc_step(p) + 0x1p-22 * largest * products + 0x1p-20 * sqrt(count);
}

/* Of sums of the same result, before or after it was rounded: in FP16 these roundings have no
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
