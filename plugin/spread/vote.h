/* What every process says of its share of a step, and what follows for all of them: one process
 * that cannot use its gradients makes all skip the step. */
#ifndef AMP_VOTE_H
#define AMP_VOTE_H

#include "plugin/core/engine/step.h"

struct amp_vote {
    bool poisoned, cause_is_scale;
    bool sent; /* what it sent ahead counts, as no backward was repeated after that */
    bool searching, tight, at_floor; /* of the loss scale, as in struct amp_scaler */
    int tracker, passes, bad_pass;
    int signal;      /* that asks this process to stop; 0: none */
    float told_loss; /* the losses: sums over the passes */
    double scale, loss;
    int64_t redone, backed_off; /* in this step */
    double worked;              /* seconds since the last step's exchange; not amp_vote_cast's */
    struct amp_fault fault;     /* why it is poisoned */
    struct amp_fault left_fp16; /* a layer that leaves FP16; class NONE: none */
    char image[AMP_BAD_IMAGE_BYTES]; /* of a fault in the input */
};

/* The one of n findings, in the order of the processes, that came first in the pass; with the
 * largest gradient of all. */
struct amp_finding amp_findings_first(const struct amp_finding *, int n);

/* Of passes that were judged together all processes would say the same, so that only process 0
 * does; which layers left FP16 all know. */
void amp_vote_say_once(struct amp_vote *, int rank);

/* begun: the scaler when the step began. All bytes are set, as votes are compared and sent. */
void amp_vote_cast(const struct amp_step *, const struct amp_scaler *begun, struct amp_vote *);

/* Makes one state of all votes, the same in every process: n votes in the order of the processes,
 * the own one at `own`. Layers leave FP16 where any process says so. Process 0 logs what happened
 * in others. */
void amp_votes_apply(const struct amp_vote *, int n, int own, const struct amp_scaler *begun,
                     struct amp_step *);

/* The same of the loss scale, if it is no longer `before`. */
void amp_vote_log_scale(const struct amp_step *, double before);

/* The process that worked longest: the others waited for it. */
int amp_votes_slowest(const struct amp_vote *, int n);

/* Whether what all sent ahead counts: so nobody sends again. */
bool amp_votes_sent(const struct amp_vote *, int n);

/* The first signal in the votes; 0: none. */
int amp_votes_signal(const struct amp_vote *, int n);
/* Process 0 logs what made another one, `rank`, give its passes up. scale: of those passes. */
void amp_vote_log(const struct amp_vote *, int rank, struct amp_step *);

#endif
