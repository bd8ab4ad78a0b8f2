/* The inside of a graph: its tensors and watch words, and what every executor does with them. For
 * the files that run layers and for tests; everybody else includes graph.h.
 *
 * Knows no layer: it finds a layer's sources, takes what a layer contributes to the delta of a
 * source, and says from the watch words what went wrong in a pass.
 */
#ifndef AMP_TENSORS_H
#define AMP_TENSORS_H

#include "graph.h"

enum { AMP_REGION_WARM_UP_IMAGES = 12800 }; /* Darknet's: boxes are drawn to their anchors first */

/* Consecutive layers of ours that run in one go, recorded where the backend can: starting one
 * operation after the other costs more than many of them take. Not in a segment: layers that
 * Darknet runs, and dropout where its masks are drawn on the host. A recording holds the values
 * that its operations were given; with other values it is made again. */
enum amp_segment_pass {
    AMP_SEGMENT_INFERENCE,
    AMP_SEGMENT_FORWARD,
    AMP_SEGMENT_BACKWARD,
    AMP_SEGMENT_PASSES
};

struct amp_segment {
    int first, last; /* layers */
    struct amp_segment_run {
        bool ran; /* unrecorded: plans are chosen, memory is there */
        /* What it last ran with, and its recording holds. */
        float scale;
        const float *truth;
        bool region_warm_up;
        struct ampk_recording *recording;
    } runs[AMP_SEGMENT_PASSES];
};

struct amp_node {
    const struct amp_layer_desc *desc;
    const struct amp_plan_layer *plan;
    struct amp_binding bind;
    struct ampk_tensor out, delta, y, dy;
    struct ampk_tensor copy[AMP_FORMATS];
    void *index, *own_index; /* maxpool, dropout */
    uint8_t *drawn;          /* dropout: the mask, where it is drawn on the host */
    void *dx;
    struct ampk_conv *conv;
    const struct ampk_weight_gradient *gradient; /* its place in of_pass; NULL: it learns nothing */
    float *mean, *variance;                      /* of this batch */
    float *gradient_sums; /* not NULL: the next convolution's data gradient already went through
                             this layer's activation (kernels.h, conv_backward_summed). `delta` then
                             holds g, the gradient at batch-norm's output, and this array sum(g),
                             sum(g * (y - mean)) of each channel */
    bool fuses_weight_gradient; /* batch-norm's backward computes the weight gradient too
                                   (conv_bn_backward): no dy is stored, and conv_backward is not
                                   called */
    float *loss;                /* unscaled copy of a loss layer's delta */
    void *options,
        *constants; /* of a loss on the device (layers_loss.c); constants: backend memory */
    struct amp_param *weights, *biases, *scales;
    uint32_t *watch;             /* AMP_WATCHES words */
    struct amp_segment *segment; /* NULL: runs by itself */
};

struct amp_graph {
    const struct ampk_backend *backend;
    struct ampk_context *context;
    const struct amp_net_desc *net;
    const struct amp_plan *plan;
    struct amp_native native;
    /* Of the FP32 build that this one stands in for. */
    enum ampk_bn_rule bn_rule;
    bool clips_connected; /* the delta of a connected layer is kept within 1 */
    int n;
    struct amp_node *nodes;
    struct ampk_tensor input; /* the network's, FP32 NCHW */
    const void *staged;       /* the same, rounded to the plan's input_format, in NCHW, read in
                                 place of input. Set before amp_graph_begin, which puts it back to
                                 NULL: none */
    const float *truth;       /* the network's, backend memory; NULL: none */
    size_t seen;              /* images so far, this pass's too; set before amp_graph_begin */
    struct ampk_draw masks;   /* where the backend draws dropout's masks: layer i's from here, the
                                 second word of the counter raised by i. Set as seen is */
    struct ampk_tensor input_copy[AMP_FORMATS];
    int n_params;
    struct amp_param *params;
    int n_rolling;
    struct amp_rolling *rolling;
    float *rolling_saved;                    /* backend memory */
    struct ampk_span *copies;                /* room for n_rolling */
    struct ampk_param *updates;              /* room for n_params */
    struct ampk_weight_update *conv_updates; /* room for n */
    int n_convs;
    struct ampk_new_weights *convs; /* of every convolution: what it takes when they are stale */
    /* The params' grad and sum, weights of convolutions last. */
    float *gradients, *sums; /* sums: NULL where a step has one pass */
    size_t n_gradients;      /* floats of all params */
    size_t n_flat;           /* of those before the convolutions' weights */
    bool own_gradients;      /* a step has one pass, and the update reads the weight gradients where
                                the convolutions keep them: `gradients` has no room for those */
    bool has_accepted_pass;  /* of this step, at least one. While false, what the update would read
                                of convolutions' weights is stale: it counts as 0, and the next
                                accept overwrites it */
    float unscale;  /* factor of what the update reads: 1 for sums, which are unscaled; without
                       them 1 / loss scale of the one pass */
    int n_learning; /* convolutions that learn; where the weight gradient of each goes: */
    struct ampk_weight_gradient *of_pass; /* in backward: raises the DW word; to grad, if any */
    struct ampk_weight_gradient *of_step; /* once the pass is accepted: added to sum, if any */
    char *arena;
    uint32_t (*watch)[AMP_WATCHES];   /* backend memory, n x AMP_WATCHES */
    bool device_losses;               /* there are some; then, beside watch and read with it: */
    struct ampk_loss_sums *loss_sums; /* of every layer, backend memory */
    struct ampk_loss_sums *losses;    /* as they were last read */
    uint16_t *fp16;                   /* which tensors are stored as FP16 (fault.h) */
    bool watch_begun;                 /* the update has cleared the words and raised WEIGHTS ones:
                                         they are the next pass's, whose begin keeps them */
    bool weights_stale;               /* masters changed since the convolutions packed them: the
                                         next begin packs them again and raises the WEIGHTS words */
    bool train;                       /* of the pass at hand */
    float scale;                      /* of the backward at hand */
    bool backward_began;              /* since the last forward */
    bool inspecting;                  /* the pass at hand */
    uint32_t *inspected;              /* backend memory, AMP_INSPECTED x n */
    float *grad_square;               /* backend memory, n + 1 */
    float *norm_room;                 /* backend memory, for amp_graph_grad_norm: a copy of a
                                         gradient that a convolution keeps. NULL until then */
    amp_see_function *see;            /* NULL: nobody looks; set by amp_graph_observe */
    void *see_user;
    amp_layer_function *trace; /* NULL: nobody traces; set by amp_graph_trace_layers */
    void *trace_user;
    int n_segments;
    struct amp_segment *segments;
    bool no_memory; /* why it could not be created */
};

/* ---- tensors ---- */

struct ampk_tensor amp_graph_tensor(void *data, enum amp_format, int n, int c, int h, int w);
/* The output shape of a layer (-1: the network's input); flat where Darknet has no image shape. */
struct ampk_tensor amp_graph_shaped(const struct amp_graph *, int layer, void *data,
                                    enum amp_format);

/* An executor's create has no memory for `what` (layer -1: none's): -1, and amp_graph_create says
 * what would fit. */
int amp_graph_no_memory(struct amp_graph *, int layer, const char *what, char *err,
                        size_t err_size);

/* ---- sources and contributions ---- */

/* Source k of a layer in the format it wants: the image it reads. */
const struct ampk_tensor *amp_graph_source(const struct amp_graph *, int layer, int k);

/* The gradient that a layer contributes to its source k. Not to be copied: dx may point to scratch.
 */
struct amp_contribution {
    int layer, k;
    const struct ampk_tensor *dx; /* where it goes; NULL: the source wants none */
    bool accumulate;              /* it is added to what is there */
    uint32_t *watch;              /* the word that watches it */
    struct ampk_tensor scratch;   /* dx, where the source's delta has another format */
};

/* False: the source wants none; dx is NULL then. */
bool amp_contribution_begin(struct amp_graph *, int layer, int k, struct amp_contribution *);
/* It is written, if it was wanted: from the scratch it is converted into the source's delta. */
void amp_contribution_end(struct amp_graph *, const struct amp_contribution *);
/* ---- watch words ---- */

/* The word that watches what reaches the delta of source k. */
uint32_t *amp_graph_dx_watch(struct amp_graph *, int layer, int k);
/* The same for what a convolution writes to dx. NULL where watching costs the backend another pass
 * over dx and what is not finite there shows without: dx is a convolution's delta, which its bias
 * gradient sums (the DBIAS word) or, with gradient_sums, its dy is made of (the DY word). */
uint32_t *amp_graph_conv_dx_watch(struct amp_graph *, int layer, const struct ampk_tensor *dx);
/* Bytes of watch and loss_sums together. */
size_t amp_graph_watch_bytes(const struct amp_graph *);
/* Clears both. */
void amp_graph_clear_watch(struct amp_graph *);
/* Notes which tensors of a layer are stored as FP16. */
void amp_graph_mark_fp16(struct amp_graph *, int layer);

/* ---- deltas that convolutions make themselves ---- */

/* Whether convolutions with a bias make their dy themselves (kernels.h, conv_bias_backward). */
bool amp_graph_makes_dy(const struct amp_graph *);
/* The loss whose unscaled delta layer i, such a convolution, reads itself and multiplies by the
 * loss scale; that loss's own backward writes layer i's delta only if somebody looks at deltas. -1:
 * none. */
int amp_graph_loss_behind(const struct amp_graph *, int i);

#endif
