/* The guarded training step: its passes, repeated backward passes, the skip and the update.
 *
 * - Per subdivision: forward of every layer, then backward of every layer. When amp_step_backward
 *   has run the last one, the pass is judged.
 * - Clean pass: gradients / scale are added to the step's sums.
 * - Overflow: lower the scale and run backward again (guard.h), or give the step up.
 * - Update: applied with Darknet's own rule on the FP32 masters, or dropped without a trace.
 *
 * Three things would spoil a training for good, and this file prevents each of them:
 *
 * - Darknet's weight_updates hold the momentum: only finite, unscaled sums are ever added to them.
 * - Batch-norm's rolling statistics move in forward: they are saved at the start of a step and put
 *   back when the step is skipped.
 * - Adam's t was counted up before the first update call: a skip counts it down again.
 *
 * Processes that share batch-norm (sync_bn.h) judge every pass together, before its backward and
 * after it: one that left backward out would keep the others waiting, and the sums of all hold one
 * loss scale. The fault that came first counts, and all do the same about it. */
#ifndef AMP_STEP_H
#define AMP_STEP_H

#include "graph.h"
#include "log.h"
#include "guard.h"

/* The images and labels of one pass. */
struct amp_batch {
    float *input;            /* backend memory, FP32 NCHW */
    const float *host_input; /* the same on the host; equal to input where that is host memory */
    const float *truth;      /* backend memory; NULL: no labels */
    const float *host_truth; /* the same on the host */
    size_t truths;           /* per image */
};

struct amp_step;

enum { AMP_BAD_IMAGE_BYTES = 256 };

/* What is wrong with a pass. All bytes are set, as it is sent. */
struct amp_finding {
    struct amp_fault fault;         /* class NONE: nothing */
    double largest;                 /* after backward: amp_largest_gradient */
    int pass;                       /* the subdivision */
    int image;                      /* of a fault in the input: its number in the pass */
    int rank;                       /* the process that found it; -1: this one */
    char name[AMP_BAD_IMAGE_BYTES]; /* of that image */
};

/* The other processes that run passes of the same step (plugin/spread). Each call returns when the
 * others have done their part. */
struct amp_step_peers {
    /* Before each of this process's passes; first: of a step. */
    void (*begin)(void *user, struct amp_step *, bool first);
    /* In its last pass: the first backward has run in `layer` and all behind it; n: it begins. */
    void (*ran)(void *user, struct amp_step *, int layer);
    void (*end_share)(void *user, struct amp_step *); /* after its last pass */
    /* Before the update: makes one step of what all processes have, the same in each. */
    void (*agree)(void *user, struct amp_step *);
    /* Before backward and after it: makes one finding of those of all processes. NULL: each judges
     * its passes alone. */
    void (*judge)(void *user, struct amp_step *, struct amp_finding *);
    void *user;
};

struct amp_step {
    struct amp_graph *graph;
    struct amp_batch batch;
    struct amp_scaler scaler;
    struct amp_log *log;
    int subdivisions, subdivision;
    const struct amp_step_peers *peers; /* NULL: none; else, of the subdivisions, the passes that
                                           this process runs: */
    int first_pass, last_pass;
    struct amp_finding found; /* in the pass at hand, before backward */
    bool poisoned;            /* a pass of this step failed for good */
    bool sent; /* this process has sent its sums ahead; they include the last backward, which the
                  sums here do not yet */
    bool cost_lost; /* this pass has an infinite or NaN cost; Darknet is told 0 */
    bool cause_is_scale;
    struct amp_fault fault;              /* why the step is poisoned */
    int bad_pass;                        /* where */
    char bad_image[AMP_BAD_IMAGE_BYTES]; /* of the last fault in the input */
    struct amp_fault left_fp16; /* of this step: a layer that leaves FP16; class NONE: none */
    bool bad_truth;             /* the present pass has labels that Darknet must not see */
    bool updating;              /* Darknet's update calls of this step have begun */
    bool applying;              /* the step is not skipped, so these calls count */
    struct amp_update update;   /* the rule of the step that is applied */
    int last_update;            /* the layer whose update is the last */
    struct amp_demotions demotions;
    struct amp_divergence divergence;
    bool carry_on;              /* amp_on_divergence=continue */
    bool told;                  /* the user knows that the run looks diverged */
    bool observed;              /* nobody is training: a fault is recorded, it ends nothing */
    double loss_sum, pass_loss; /* loss_sum NaN: lost */
    float told_sum;             /* without costs that are lost, as Darknet adds them up */
    double pass_norm;           /* of the first pass's gradients, for the noise scale; NAN: none */
    bool updated;               /* a device has an update that no time was taken of yet */
    int passes;
    /* Fetches the costs of our losses (amp_graph_loss) after each pass; *cost becomes that of the
     * pass, as Darknet is told it. False: one of them is not finite, and counts as 0 there. NULL:
     * nobody wants them. */
    bool (*take_losses)(void *user, double *cost);
    /* Path of the image with a faulty input or label, or NULL if it has none. */
    const char *(*image_name)(void *user, int subdivision, int image);
    /* A layer left FP16: a new plan is needed before the next pass. */
    void (*demote)(void *user, const struct amp_fault *);
    /* Closes the log and ends the program; does not return. */
    void (*stop)(void *user, const char *message);
    void *user;
};

/* subdivision 0: the first of the step. */
void amp_step_begin(struct amp_step *, const struct amp_batch *, int subdivision);
/* True if the labels of the present pass are not finite, or no boxes. The step is skipped. The
 * caller must hide the labels from Darknet, whose losses compute indices from them. */
bool amp_step_has_bad_truth(const struct amp_step *);
/* Judges the forward pass before backward runs. Called if the cost of the pass came out as inf or
 * NaN. */
void amp_step_judge_forward(struct amp_step *);
/* Runs the backward of one layer and, after the last one, judges the pass. loss: the cost of the
 * pass without our losses. Their costs are fetched, and their lines printed, when the
 * pass has been judged. */
void amp_step_backward(struct amp_step *, int layer, double loss);
/* Notes that a layer's parameters are due; the first call of a step decides whether the step is
 * applied. All layers share one rule. Returns true on the first call of a step that is skipped: the
 * caller then counts Darknet's t down. */
bool amp_step_update(struct amp_step *, int layer, const struct amp_update *);
/* A layer leaves FP16 because of this fault. */
void amp_step_demote(struct amp_step *, const struct amp_fault *);
/* Leaves the rest to Darknet, in the middle of a step or at its end: the gradients of the clean
 * passes so far go where Darknet adds up gradients. */
void amp_step_hand_over(struct amp_step *);
/* After the last update call: updates every parameter that is due. */
void amp_step_end(struct amp_step *, size_t iteration, size_t total);

#endif
