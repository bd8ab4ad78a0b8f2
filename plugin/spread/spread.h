/* A step whose passes are shared out among the processes of the group (group.h): joins a guarded
 * step (core/engine/step.h) to those of the other processes, so that all end with the same update.
 *
 * fast:    every process runs its passes at the same time. At the end of the step they vote
 *          (vote.h); if all can go on, gradients are added up over the processes, and the rolling
 *          statistics are merged. Where they have NCCL, both go ahead of the vote (ahead.h).
 * ordered: the processes run their passes one after another, and each hands all that a pass leaves
 *          behind to the next one. So the step is, to the bit, that of one process: slow, for
 *          proof.
 *
 * A pass moves rolling statistics to r = .99 r + .01 b, where b are those of its images. After K
 * passes r = .99^K r0 + sum over p of .99^(K-1-p) .01 b_p. Each process knows its own terms of that
 * sum from where its passes moved r0; fast adds them up: on the host in double, by NCCL in FP32.
 * With sync_bn (sync_bn.h) they are the same in all already. */
#ifndef AMP_SPREAD_H
#define AMP_SPREAD_H

#include "ahead.h"
#include "share.h"
#include "vote.h"

struct amp_spread {
    struct amp_share share;
    bool ordered;
    bool bf16;              /* gradients travel in it; not with ordered */
    bool sync_bn;           /* batch-norm works over all processes' passes; not with ordered */
    struct amp_bn_peers bn; /* those; count 0: they do not share it */
    double in_passes_took;  /* seconds of exchanges in this step's passes, waiting included */
    double bucket_mb;    /* MiB of gradients that leave at once, while backward runs; 0: after it */
    int (*signal)(void); /* asks this process to stop; 0: none */
    /* This process alone cannot go on: ends it, and the others by their beats. user: the step's. */
    void (*give_up)(void *user, const char *why);
    int agreed;              /* the signal that all obey after this step; 0: none */
    struct amp_scaler begun; /* as the step began */
    struct amp_ahead ahead;  /* not with ordered */
    double exchanged;        /* when the last step's exchange ended */
    uint64_t bytes_before;   /* exchanged before this step */
    struct amp_step_peers peers;
};

/* Call once, before the first training pass: from now on this process runs its share of the step's
 * passes. The struct's ordered, bf16, sync_bn, bucket_mb, signal and give_up are set. */
void amp_spread_join(struct amp_spread *, struct amp_step *);

/* Puts everything but Darknet's own counts back to where it was when the step under way began.
 * False: no pass of one has begun. */
bool amp_spread_abandon(const struct amp_spread *, struct amp_step *);

/* A hash of the masters with their momentum and Adam moments, and of the rolling statistics; they
 * lie in the backend's memory. */
uint64_t amp_spread_hash(const struct ampk_backend *, struct ampk_context *,
                         const struct amp_param *, int n_params, const struct amp_rolling *,
                         int n_rolling);

#endif
