/* Contests between two ways to use plans: times both in turns, once, keeps the answer in the file
 * of plans, and says which way to take. */
#ifndef AMPK_CUDA_CONTEST_H
#define AMPK_CUDA_CONTEST_H

#include "bench.h"

enum ampk_tc_verdict { AMPK_TC_CANNOT_RUN, AMPK_TC_WRONG, AMPK_TC_RIGHT };

/* The usual way against the other. The other must be right and win by a margin (contest.c). */
struct ampk_tc_contest {
    struct ampk_tc *tc;
    const char *usual, *other;  /* names of the ways in the file */
    char key[AMPK_TC_KEY + 48]; /* the contest's key in the file */
    char plans[64];             /* the times of the plans that the ways use */
    void *bench;
    bool (*begin)(void *bench);                 /* false: no memory */
    enum ampk_tc_verdict (*check)(void *bench); /* the other way's results; NULL: need no check */
    float (*time)(void *bench, bool other);     /* milliseconds; 0: it cannot run */
    void (*end)(void *bench);
};

/* Whether the other way pays, from the cache or timed now. The caller sets all but key and plans.
 * second NULL: there is one plan. what: names the other way in the key, behind the first plan's
 * key. False also if the other way is wrong or was not timed. */
bool ampk_tc_decide(struct ampk_tc_contest *, const struct ampk_tc_plan *first,
                    const struct ampk_tc_plan *second, const char *what);

/* ---- how far the statistics of two ways may differ ---- */

bool ampk_tc_is_near(double a, double b, double bound);
/* Slack for sums of the same result, before or after it was rounded to FP16, over `count` values.
 * These roundings have no common direction, and 8 / sqrt(n) of 2^-10 is more than is left of them
 * in a mean. 2^-23 sqrt(n) is for the sums' own roundings: an engine that adds n/64 values in a
 * row has no more. */
double ampk_tc_slack_of_sums(double count);
/* Whether means, and variances behind them, agree in every channel, where those of `a` are right.
 * R is the root of the mean of a channel's squares: if the mean may be off by slack * R, the mean
 * of the squares and the square of the mean may each be off by 2 slack * R^2. */
bool ampk_tc_statistics_agree(int channels, const float *a, const float *b, double slack);

#endif
