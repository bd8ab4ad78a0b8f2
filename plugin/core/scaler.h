/* The loss scale and its rules. Pure state, no tensors.
 *
 * The rules are dynamic scaling as in Micikevicius et al. 2018, "Mixed Precision Training", section
 * 3.2, and in PyTorch's GradScaler, with four differences: a search from the top at start-up; a
 * floor and a ceiling; powers of two only, so that scaling and unscaling are exact; and a lower
 * scale can take effect inside a step, because gradients are accumulated unscaled.
 *
 *   pass overflowed ─► amp_scaler_overflow ─► RETRY at the new scale, or SKIP the step
 *   step finished   ─► amp_scaler_step(applied) */
#ifndef AMP_SCALER_H
#define AMP_SCALER_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"

#define AMP_SCALER_RETRIES    4  /* replays of one pass, start-up search aside */
#define AMP_SCALER_FLOOR_STOP 10 /* steps skipped in a row at the floor that end the run */

struct amp_scaler {
    bool dynamic;   /* false: the scale never changes, an overflow skips the step */
    bool reduced;   /* false (bf16, tf32, fp32): scale 1, nothing to search */
    bool retry;     /* replay the pass before giving the step up */
    bool searching; /* start-up: no pass has been clean yet */
    double scale, growth, backoff, min, max;
    int window;        /* clean steps before growth */
    int tracker;       /* clean steps since the last change */
    int tries;         /* replays of the present pass */
    int floor_skips;   /* steps skipped in a row at the floor */
    bool step_backoff; /* the scale fell during this step */
    bool at_floor;     /* this step's last overflow left nowhere to go */
    int64_t redone, skipped, applied, grown, backed_off;
};

enum amp_verdict { AMP_VERDICT_RETRY, AMP_VERDICT_SKIP, AMP_VERDICT_STOP };

/* replayable: backward may run twice on one forward. max_batches sets the default window. */
void amp_scaler_init(struct amp_scaler *, const struct amp_options *, int max_batches,
                     bool replayable);

/* Continues from the state of an earlier run, between two steps. Takes its counters; if both scales
 * are dynamic, also its scale (within this run's limits), tracker and search. */
void amp_scaler_resume(struct amp_scaler *, const struct amp_scaler *from);

/* A backward pass overflowed. amax: the largest finite magnitude that an FP16 store refused, or 0
 * if only inf or NaN were seen; during the search it allows a jump of more than one step down.
 * RETRY: run the pass again at the scale, which is already lower. SKIP: give the step up; a dynamic
 * scale is lower for the next one. */
enum amp_verdict amp_scaler_overflow(struct amp_scaler *, double amax);

/* A pass was clean. */
void amp_scaler_pass(struct amp_scaler *);

/* The step ended: applied, or skipped because of the scale (cause_is_scale) or for another reason.
 * STOP after AMP_SCALER_FLOOR_STOP skips in a row at the floor; the caller may ignore any other
 * verdict. */
enum amp_verdict amp_scaler_step(struct amp_scaler *, bool applied, bool cause_is_scale);

/* "2^13" for powers of two; returns text. */
const char *amp_scale_text(double scale, char text[32]);

#endif
