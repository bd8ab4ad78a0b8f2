/* The guarded training step: passes, replay, skip, update.
 *
 * - Per subdivision: forward of every layer, then backward of every layer. When amp_step_backward
 *   has run the last one, the pass is judged.
 * - Clean: gradients / scale are added to the step's sums.
 * - Overflow: lower the scale and run backward again (scaler.h), or give the step up.
 * - Update: applied with Darknet's own rule on the FP32 masters, or dropped without a trace.
 *
 * What must not happen, and why it does not:
 *
 * - Darknet's weight_updates hold the momentum: only finite, unscaled sums are ever added to them.
 * - batch-norm's rolling statistics move in forward: they are saved at the start of a step and put
 *   back when the step is skipped.
 * - Adam's t was counted up before the first update call: a skip counts it down again.
 */
#ifndef AMP_STEP_H
#define AMP_STEP_H

#include "divergence.h"
#include "gradients.h"
#include "graph.h"
#include "log.h"
#include "scaler.h"

/* The images and labels of one pass. */
struct amp_batch {
    float *input;            /* backend memory, FP32 NCHW */
    const float *host_input; /* the same on the host; equal to input where that is host memory */
    const float *truth;      /* backend memory; NULL: none */
    const float *host_truth; /* the same on the host */
    size_t truths;           /* per image */
};

struct amp_step {
    struct amp_graph *graph;
    struct amp_batch batch;
    struct amp_scaler scaler;
    struct amp_log *log;
    int subdivisions, subdivision;
    bool poisoned;  /* a pass of this step failed for good */
    bool cost_lost; /* the cost of this pass came out as inf or NaN; Darknet is told 0 (hooks.c) */
    bool cause_is_scale;
    struct amp_fault fault;   /* why */
    bool bad_truth;           /* of the pass that has begun */
    bool updating;            /* Darknet's update calls of this step have begun */
    bool applying;            /* they count: the step is not skipped */
    struct amp_update update; /* the rule of the step that is applied */
    int last_update;          /* the layer whose update is the last */
    struct amp_demotions demotions;
    struct amp_divergence divergence;
    bool carry_on;     /* amp_on_divergence=continue */
    bool told;         /* that it looks diverged */
    bool observed;     /* nobody is training: a fault is only kept */
    bool writers_tell; /* who writes to the masters between steps calls amp_graph_weights_changed;
                          else anybody may have */
    double loss_sum, pass_loss;
    int passes;
    /* Takes the costs of the losses on the device (amp_graph_loss) after each pass; returns the
     * cost of the pass, NaN where one of them is not finite. NULL: nobody wants them. */
    double (*take_losses)(void *user);
    /* The image behind a fault in input or label, or NULL; user as given. */
    const char *(*image_name)(void *user, int subdivision, int image);
    /* A layer left FP16: the plan must be made anew before the next pass. */
    void (*demote)(void *user, const struct amp_fault *);
    /* Closes the log and ends the program; does not return. */
    void (*stop)(void *user, const char *message);
    void *user;
};

/* subdivision 0: the first of the step. */
void amp_step_begin(struct amp_step *, const struct amp_batch *, int subdivision);
/* The labels of the pass that has begun are not finite, or no boxes. The step is skipped; Darknet's
 * losses must not see them, since they compute indices from them. */
bool amp_step_has_bad_truth(const struct amp_step *);
/* Judges the forward pass before backward runs: for a pass whose cost came out as inf or NaN. */
void amp_step_judge_forward(struct amp_step *);
/* Runs the backward of one layer; after the last one the pass is judged. loss: the pass's cost, as
 * far as it is known: not that of losses on the device, whose lines are printed and whose costs
 * are handed over when the pass has been judged. */
void amp_step_backward(struct amp_step *, int layer, double loss);
/* One layer's parameters are due; the first call of a step decides whether it is applied. The rule
 * is the same for all layers. Returns true where the step is skipped and this is its first call:
 * the caller then counts Darknet's t down. */
bool amp_step_update(struct amp_step *, int layer, const struct amp_update *);
/* In the middle of a step, or at its end: the next step is Darknet's own, and what the clean passes
 * of this one found goes where Darknet adds up gradients. */
void amp_step_hand_over(struct amp_step *);
/* After the last update call: updates all that is due. */
void amp_step_end(struct amp_step *, size_t iteration, size_t total);

#endif
