/* What processes with NCCL exchange ahead of a step's vote, while the last backward pass of each
 * still runs: what their passes add to the rolling statistics, then bucket after bucket of
 * gradients (core/engine/buckets.c).
 *
 * It is sent on trust. All processes send the same things in the same order in every step, also one
 * whose passes failed: it sends what lies there, as the others wait for it, and the step is
 * skipped. If a backward pass has to be repeated, what went ahead is void: the votes say so, and
 * all send their gradients again. Statistics move in forward, which is never repeated. */
#ifndef AMP_AHEAD_H
#define AMP_AHEAD_H

#include "share.h"
#include "plugin/core/engine/step.h"

struct amp_ahead {
    size_t bucket_bytes; /* 0: gradients wait for the vote */
    bool bf16;           /* gradients travel in it */
    struct amp_share share;
    bool rolling; /* has been sent in this step */
    int buckets;  /* so many have */
};

/* Before every pass; first: of a step. False: there is no memory. */
bool amp_ahead_begin(struct amp_ahead *, struct amp_step *, bool first);
/* Sends what is complete when the last backward has run in `layer` and all behind it; layer n: it
 * begins. Notes in the step when all is sent. */
void amp_ahead_send(struct amp_ahead *, struct amp_step *, int layer);
/* Sends what has not been sent: the pass has ended early. */
void amp_ahead_send_rest(struct amp_ahead *, struct amp_step *);
/* Waits until all of it is done. */
void amp_ahead_finish(void);
/* What came is the step's: its gradients, if all processes' count, and its statistics. */
void amp_ahead_take_gradients(const struct amp_ahead *, struct amp_step *);
void amp_ahead_take_rolling(struct amp_step *);

#endif
