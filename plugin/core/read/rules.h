/* How a step's gradients become an update: the settings, what each of them needs of a parameter,
 * and the numbers that they give. Pure state: no arrays.
 *
 * Everywhere "gradient" is the mean over the step's images; Darknet's are sums. */
#ifndef AMP_RULES_H
#define AMP_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "complaints.h"

/* The numbers are part of the sidecar's format. */
enum amp_optimizer {
    AMP_OPTIMIZER_SGD,
    AMP_OPTIMIZER_ADAM,
    AMP_OPTIMIZER_ADAMW,
    AMP_OPTIMIZER_LARS,
    AMP_OPTIMIZER_LAMB,
    AMP_OPTIMIZERS
};

struct amp_rules {
    enum amp_optimizer optimizer;
    bool darknets_adam; /* adam=1: the moments are in Darknet's arrays */
    int decay_bn; /* whether biases and batch-norm's scales decay; -1: as the optimizer does */
    double b1, b2, eps; /* of the optimizers with moments; eps 0: the optimizer's own */
    double clip_norm;   /* 0: none */
    double clip_value;  /* 0: none */
    double ema_alpha;   /* 0: no moving average */
    /* The iterations that begin AlexeyAB's average and put it in place of the weights. 0: ours,
     * which follows every step and stays beside the weights. */
    int ema_from, ema_until;
};

/* Reads Darknet's keys of Adam into *r, whose own keys are set already, and checks that all fit
 * together. 0 or -1. A note is about keys that have no effect with this optimizer. */
int amp_rules_complete(struct amp_rules *r, const struct amp_complaints *);

/* Whether the optimizer keeps moments in arrays of ours, because Darknet has made none. */
bool amp_rules_keep_moments(const struct amp_rules *);
/* Whether LARS's and LAMB's ratio of norms holds for arrays of weights. Gradients must then lie in
 * memory that both the norms and the update can read. */
bool amp_rules_use_trust(const struct amp_rules *);
/* eps as the cfg gives it, or the optimizer's: 1e-8 of AdamW, 1e-6 of LAMB, Darknet's 1e-7. */
double amp_rules_eps(const struct amp_rules *);
/* The factor on all gradients that clip_norm gives; norm: theirs. As PyTorch's clip_grad_norm_:
 * min(1, clip_norm / (norm + 1e-6)). A norm that is inf gives 0. */
double amp_rules_clip_factor(const struct amp_rules *, double norm);

/* What a step does with the moving averages. */
enum amp_average_move {
    AMP_AVERAGE_RESTS,
    AMP_AVERAGE_BEGINS, /* is a copy */
    AMP_AVERAGE_FOLLOWS,
    AMP_AVERAGE_REPLACES /* the weights become it, and it ends */
};
/* averaged: the steps that it has followed before; iteration: of this step, from 1 on. A skipped
 * step does not move it, so that the next one may begin or replace. */
enum amp_average_move amp_rules_average_move(const struct amp_rules *, int64_t averaged,
                                             size_t iteration);
/* The share of the new value in a moving average after its n-th step, from 1 on: 1 - d(n).
 * AlexeyAB's d is ema_alpha. Ours is ema_alpha * (1 - e^(-n / AMP_EMA_RAMP)): at first the average
 * follows the weights, since it would otherwise hold the initial ones for 1 / (1 - ema_alpha)
 * steps. */
#define AMP_EMA_RAMP 2000
double amp_rules_average_rest(const struct amp_rules *, int64_t n);

/* The word that selects it in the cfg. */
const char *amp_optimizer_word(enum amp_optimizer);
extern const char *const amp_optimizer_words[AMP_OPTIMIZERS + 1]; /* then NULL */

#endif
