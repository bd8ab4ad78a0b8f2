/* Learning rates over a training, for policies that Darknet does not have: `policy=` under [net].
 *
 * A rate is a function of the iteration alone, so a repeated pass changes nothing and a resumed run
 * goes on exactly. Iterations count from 1, as Darknet prints them; t = iteration - 1. High is
 * learning_rate, low is learning_rate_min, T is max_batches.
 *
 * - cosine: low + (high - low) (1 + cos(pi t / T)) / 2. Loshchilov and Hutter 2017, "SGDR:
 *   stochastic gradient descent with warm restarts", (5); PyTorch's CosineAnnealingLR.
 * - sgdr: the same in cycles of sgdr_cycle iterations, each sgdr_mult times as long as the one
 *   before; PyTorch's CosineAnnealingWarmRestarts. AlexeyAB's Darknet, whose keys these are, puts
 *   iteration for t, so it is one iteration ahead.
 * - onecycle: from high / 25 up to high in the first 3/10, then down to high / 250000, both along
 *   half a cosine; momentum goes from `momentum` down to momentum_min and back meanwhile. Smith and
 *   Topin 2018, "Super-convergence"; PyTorch's OneCycleLR with its defaults.
 * - cyclic: up from low to high in cyclic_step iterations and down again in as many, along straight
 *   lines. Smith 2017, "Cyclical learning rates for training neural networks"; PyTorch's CyclicLR,
 *   mode triangular, without its cycle of momentum.
 *
 * During the first burn_in iterations the rate is Darknet's own, high (iteration / burn_in)^power.
 * onecycle, which has its own beginning, takes no burn_in. */
#ifndef AMP_SCHEDULE_H
#define AMP_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "complaints.h"
#include "rules.h"

enum amp_policy {
    AMP_POLICY_OF_DARKNET,
    AMP_POLICY_COSINE,
    AMP_POLICY_SGDR,
    AMP_POLICY_ONECYCLE,
    AMP_POLICY_CYCLIC
};

struct amp_schedule {
    enum amp_policy policy;
    int total, burn_in; /* iterations */
    double power;
    double rate_min, momentum_min;
    int cycle, mult; /* sgdr; cycle 0: total */
    int step;        /* cyclic */
};

/* AMP_POLICY_OF_DARKNET if the word is none of ours. */
enum amp_policy amp_policy_from_word(const char *word);
/* "cosine, sgdr, onecycle, cyclic" */
const char *amp_policy_words(void);

/* Reads Darknet's keys that a schedule needs into *s, whose own keys are set already, and checks
 * that all fit together, and with the rules, which are complete. 0, or -1 with file, line and what
 * is allowed in err. notes receives lines about keys that have no effect with this policy. */
int amp_schedule_complete(struct amp_schedule *s, const struct amp_rules *,
                          const struct amp_complaints *);

/* The rate of an iteration; rate: learning_rate. Only for policies of ours. */
double amp_schedule_rate(const struct amp_schedule *, double rate, size_t iteration);
/* The momentum (of Adam and its kind: B1) of an iteration; momentum: the cfg's. */
double amp_schedule_momentum(const struct amp_schedule *, double momentum, size_t iteration);

/* Prints one line about it; nothing for a policy of Darknet's. rate and momentum: the cfg's. */
void amp_schedule_print(const struct amp_schedule *, const struct amp_rules *, double rate,
                        double momentum, FILE *);

#endif
