/* Two ways to use plans, of which the faster is taken: both are timed in turns once, and the answer
 * is kept with the plans. */
#ifndef AMPK_CUDA_CONTEST_H
#define AMPK_CUDA_CONTEST_H

#include "bench.h"

enum ampk_tc_verdict { AMPK_TC_CANNOT_RUN, AMPK_TC_WRONG, AMPK_TC_RIGHT };

struct ampk_tc_contest {
    struct ampk_tc *tc;
    const char *usual, *other;  /* what the ways are called in the file */
    char key[AMPK_TC_KEY + 48]; /* there */
    char plans[64];             /* the times of the plans that are used */
    void *bench;
    bool (*begin)(void *bench);                 /* false: no memory */
    enum ampk_tc_verdict (*check)(void *bench); /* of the other way's results; NULL: no need */
    float (*time)(void *bench, bool other);     /* milliseconds; 0: it cannot run */
    void (*end)(void *bench);
};

/* Whether the other way pays: as the cache knows it, else timed now. All but key and plans is set;
 * second NULL: there is one plan; what: the other way, in the key, behind the first plan's. False
 * also where it is wrong or was not timed. */
bool ampk_tc_decide(struct ampk_tc_contest *, const struct ampk_tc_plan *first,
                    const struct ampk_tc_plan *second, const char *what);

/* ---- what the statistics that two ways take may differ by ---- */

bool ampk_tc_is_near(double a, double b, double bound);
/* Of sums of the same result, before or after it was rounded to FP16: these roundings have no
 * common direction, and 8 / sqrt(n) of 2^-10 is more than is left of them in a mean. 2^-23 sqrt(n):
 * the sums' own roundings, of which an engine that adds n/64 values in a row has no more. */
double ampk_tc_slack_of_sums(double count);
/* Whether means, and variances behind them, agree in every channel, those of `a` being right. With
 * the mean, the mean of the squares and the square of the mean may be off by 2 slack * R^2 each. */
bool ampk_tc_statistics_agree(int channels, const float *a, const float *b, double slack);

#endif
