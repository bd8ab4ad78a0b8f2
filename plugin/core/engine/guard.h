/* What guards a training: faults of a pass, the loss scale of a step, the divergence of a run. Pure
 * state: no tensors. */
#ifndef AMP_GUARD_H
#define AMP_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/core/read/options.h"

struct amp_net_desc;

/* ==== faults ====
 *
 * Finds out what went wrong in a pass, from the magnitudes that the kernels recorded.
 *
 * Each watched tensor has one word: the largest |v| before it was stored, as IEEE-754 bits
 * (kernels.h). The words of a pass, in the order of computation, tell four faults apart:
 *
 * - INPUT: the image or its label was not finite. Skip the step, keep the scale.
 * - FORWARD: a finite FP32 value did not fit FP16 in the forward pass. Skip the step; that layer
 *   leaves FP16.
 * - DIVERGED: FP32 arithmetic on finite values gave inf or NaN. Stop.
 * - BACKWARD: a gradient overflowed. Lower the loss scale. */

enum amp_fault_class {
    AMP_FAULT_NONE,
    AMP_FAULT_INPUT,
    AMP_FAULT_FORWARD,
    AMP_FAULT_DIVERGED,
    AMP_FAULT_BACKWARD
};

/* The words of one layer; order of the enum = order within the layer. */
enum amp_watch {
    AMP_WATCH_INPUT, /* layer 0 only: the images as Darknet gives them */
    AMP_WATCH_TRUTH, /* layer 0 only: the labels */
    AMP_WATCH_WEIGHTS,
    AMP_WATCH_Y, /* convolution output before batch-norm; inputs of a recurrent layer's products */
    AMP_WATCH_ROLLING, /* batch-norm's running statistics */
    AMP_WATCH_OUT,     /* layer output */
    AMP_WATCH_COPY,    /* conversions of the output for its readers */
    AMP_WATCH_LOSS,    /* a loss layer's own delta, unscaled */
    AMP_WATCH_DELTA,   /* sum of the contributions to this layer's delta, scaled */
    AMP_WATCH_DY,
    AMP_WATCH_DW,
    AMP_WATCH_DBIAS, /* bias and batch-norm scale gradients */
    AMP_WATCHES
};

struct amp_fault {
    enum amp_fault_class class;
    int layer;
    enum amp_watch tensor;
    double magnitude; /* largest |v|; inf or NaN if the tensor held that */
};

/* Reports the first faulty word in order of computation. watch: n_layers x AMP_WATCHES words. fp16:
 * per layer, bit w is set if tensor w is stored as FP16. AMP_FP16_STATES: values of Y follow from
 * each other, so one that is not finite may follow from one that FP16 refused. backward false:
 * looks at the words of forward only. */
#define AMP_FP16_STATES (1u << AMP_WATCHES)
struct amp_fault amp_fault_find(const uint32_t (*watch)[AMP_WATCHES], const uint16_t *fp16,
                                int n_layers, bool backward);

/* Whether a came before b in the order of computation, two faults of the same pass in two processes
 * that compute the same layers. No fault comes last. */
bool amp_fault_before(const struct amp_fault *a, const struct amp_fault *b);

/* The largest finite magnitude that backward stored as FP16, or would have, times the loss scale.
 * It leaves out values that no word shows the size of: deltas where watching costs a pass
 * (watching_costs), and what an FP16 layer adds to the delta of an FP32 one. Of those only an
 * overflow is seen. */
double amp_largest_gradient(const uint32_t (*watch)[AMP_WATCHES], const uint16_t *fp16,
                            int n_layers);

const char *amp_watch_name(enum amp_watch);
/* The same, of a fault: in a recurrent layer AMP_WATCH_Y is something else than in others. */
const char *amp_fault_tensor(const struct amp_fault *, const struct amp_net_desc *);

/* Steps within a window in which a layer left FP16: no coincidence. */
#define AMP_MANY_DEMOTIONS 3

/* When layers left FP16. One or two layers may need the range of FP32. More of them within a window
 * are no coincidence: their values grow from step to step. */
struct amp_demotions {
    int64_t last[AMP_MANY_DEMOTIONS]; /* the latest iterations, oldest first */
    int n;
    bool told;
};

/* Notes that a layer left FP16 in this iteration. True, once, when AMP_MANY_DEMOTIONS of them lie
 * within the window. */
bool amp_demotions_add(struct amp_demotions *, int64_t iteration, int window);

/* Whether x holds neither inf nor NaN; right even if the compiler was told that there are none. */
bool amp_all_finite(const float *x, size_t n);

/* ==== the loss scale ====
 *
 * The loss scale and its rules. Pure state, no tensors.
 *
 * The rules are dynamic scaling as in Micikevicius et al. 2018, "Mixed Precision Training", section
 * 3.2, and in PyTorch's GradScaler, with five differences: a search from the top at start-up; a
 * floor and a ceiling; powers of two only, so that scaling and unscaling are exact; a lower scale
 * can take effect inside a step, because gradients are accumulated unscaled; and the scale grows
 * only after a window of steps whose gradients would have fit at the next scale too, since a growth
 * that overflows costs a backward pass or a step.
 *
 *   pass overflowed ─► amp_scaler_overflow ─► RETRY at the new scale, or SKIP the step
 *   pass was clean  ─► amp_scaler_pass
 *   step finished   ─► amp_scaler_step(applied) */

#define AMP_SCALER_RETRIES    4  /* replays of one pass, start-up search aside */
#define AMP_SCALER_FLOOR_STOP 10 /* steps skipped in a row at the floor that end the run */

struct amp_scaler {
    bool dynamic;   /* false: the scale never changes, an overflow skips the step */
    bool reduced;   /* false (bf16, tf32, fp32): scale 1, nothing to search */
    bool retry;     /* replay the pass before giving the step up */
    bool searching; /* start-up: no pass has been clean yet */
    double scale, growth, backoff, min, max;
    int window;      /* steps with room before growth */
    int tracker;     /* steps with room since the last change, or the last one without */
    int tries;       /* replays of the present pass */
    int floor_skips; /* steps skipped in a row at the floor */
    bool tight;      /* this step overflowed, or would at the next scale */
    bool at_floor;   /* this step's last overflow left nowhere to go */
    int64_t redone, skipped, applied, grown, backed_off;
};

enum amp_verdict { AMP_VERDICT_RETRY, AMP_VERDICT_SKIP, AMP_VERDICT_STOP };

/* max_batches sets the default window. */
void amp_scaler_init(struct amp_scaler *, const struct amp_options *, int max_batches);

/* Continues from the state of an earlier run, between two steps. Takes its counters; if both scales
 * are dynamic, also its scale (within this run's limits), tracker and search. */
void amp_scaler_resume(struct amp_scaler *, const struct amp_scaler *from);

/* A backward pass overflowed. largest: amp_largest_gradient; during the search one that FP16
 * refused allows a jump of more than one step down.
 * RETRY: run the pass again at the scale, which is already lower. SKIP: give the step up; a dynamic
 * scale is lower for the next one. */
enum amp_verdict amp_scaler_overflow(struct amp_scaler *, double largest);

/* A pass was clean. largest: amp_largest_gradient. */
void amp_scaler_pass(struct amp_scaler *, double largest);

/* The step ended: applied, or skipped because of the scale (cause_is_scale) or for another reason.
 * STOP after AMP_SCALER_FLOOR_STOP skips in a row at the floor; the caller may ignore any other
 * verdict. */
enum amp_verdict amp_scaler_step(struct amp_scaler *, bool applied, bool cause_is_scale);

/* "2^13" for powers of two; returns text. */
const char *amp_scale_text(double scale, char text[32]);

/* ==== divergence ====
 *
 * Whether a run has diverged, from its losses alone.
 *
 * The rule must never end a run that would come out well. It therefore knows no typical loss; it
 * compares a run with itself. `mean` is the mean of the last 20 losses (at first of fewer) that
 * were not above the limit, including the present one.
 *
 * - start: the first 100 losses, or burn_in of them if that is more. First losses are huge, and the
 *   learning rate still rises. These losses set the limit.
 * - limit during the start: 1000 x the lowest mean so far, at least 1000.
 * - limit after it: 100 x the lowest mean since, and at least 3 x the highest of the start.
 * - above: a loss is blown up if both it and the mean are above the limit. One bad batch is not,
 *   nor are many noisy ones.
 * - lost: an iteration without a finite loss, after the first applied step. Bad images do not count
 *   (no call).
 *
 * An iteration above the limit counts 1, and so does one in which a layer left FP16 (which happens
 * to a layer only once). A lost one counts 10. Any other iteration resets the count to 0. At 100
 * the run has diverged; while the count is not 0 the run is suspect. Nothing is saved: a run that
 * goes on from weights starts over, since a suspect run leaves no weights to go on from. */

#define AMP_DIVERGENCE_START       100
#define AMP_DIVERGENCE_MEAN        20
#define AMP_DIVERGENCE_STOP        100
#define AMP_DIVERGENCE_LOST        10
#define AMP_DIVERGENCE_FACTOR      100
#define AMP_DIVERGENCE_ROOM        3 /* above the start */
#define AMP_DIVERGENCE_START_ROOM  1000
#define AMP_DIVERGENCE_START_LEAST 1000

/* All zero at the start of a run, except burn_in. */
struct amp_divergence {
    int burn_in;
    int losses;                         /* taken so far */
    double recent[AMP_DIVERGENCE_MEAN]; /* the last ones, a ring */
    double start_lowest, start_highest; /* means during the start; 0: none yet */
    double lowest;                      /* lowest mean since then */
    bool applied;                       /* some step has been applied */
    int count;
    size_t since;           /* first iteration of the count */
    size_t last_at;         /* iteration of `last` */
    double last, then, now; /* losses: before the count, its first, the latest; NAN: lost */
    double limit;           /* limit for `now`; 0: none yet */
};

/* An iteration ended. loss: NAN or inf if it has none; applied: its step was applied. True: the run
 * has diverged, and stays so as long as the count does. */
bool amp_divergence_add(struct amp_divergence *, size_t iteration, double loss, bool applied);
/* The same for an iteration without a loss, because a value did not fit FP16 and its layer left
 * FP16. */
bool amp_divergence_add_demotion(struct amp_divergence *, size_t iteration);
bool amp_divergence_suspect(const struct amp_divergence *);
/* Describes a suspect run: since when, and its losses then and now. Describes any other run by its
 * last loss. */
void amp_divergence_describe(const struct amp_divergence *, char *text, size_t size);

#endif
