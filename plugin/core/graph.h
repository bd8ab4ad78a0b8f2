/* A plan at work: tensors, convolutions, gradients and watch words of one network on one backend.
 *
 * Knows no Darknet: the layers that Darknet itself runs are reached through struct amp_native, and
 * the master weights through struct amp_param. One executor per layer type (executor.h) does the
 * rest.
 */
#ifndef AMP_GRAPH_H
#define AMP_GRAPH_H

#include "fault.h"
#include "kernels/kernels.h"
#include "net_desc.h"
#include "plan.h"
#include "plugin/include/amp_observe.h"
#include "segment.h"

enum amp_param_kind { AMP_PARAM_WEIGHTS, AMP_PARAM_BIASES, AMP_PARAM_SCALES };

/* One array of master weights with its gradients. value, update, m, v are Darknet's own arrays. */
struct amp_param {
    enum amp_param_kind kind;
    int layer;
    size_t n;
    float *value;
    float *update; /* Darknet's weight_updates: the momentum */
    float *m, *v;  /* Adam's moments; NULL: plain SGD */
    float learning_rate_scale, clip;
    float *grad; /* of this pass, times the loss scale; set by amp_graph_create. NULL: the weights
                    of a convolution, which keeps it (kernels.h, conv_backward) */
    float *sum;  /* of the step's accepted passes, unscaled; NULL where a step has one pass */
    bool due;    /* to be updated at the end of the step */
};

/* A batch-norm's running statistics, or what a recurrent layer takes over into the next pass: put
 * back when the step is skipped. */
struct amp_rolling {
    float *value;
    size_t n;
    int layer;
};

/* What Darknet owns of one layer. */
struct amp_binding {
    float *output; /* FP32 NCHW, batch*outputs floats: where borders stand */
    float *delta;  /* the same size; used for layers that Darknet runs */
    float *rolling_mean, *rolling_variance;
    int first_param, n_params; /* weights, biases, scales in that order where the layer is ours */
};

/* What Darknet owns of a network. */
struct amp_owned {
    struct amp_binding *bindings; /* per layer */
    struct amp_param *params;
    struct amp_rolling *rolling;
    int n_params, n_rolling;
};

/* Runs a layer with Darknet's code. input, delta: FP32 NCHW; delta NULL where the source wants
 * none. random_uniform: numbers in [0, 1) for dropout's masks, one after the other; NULL: the
 * backend draws these. */
struct amp_native {
    void *user;
    void (*forward)(void *user, int layer, float *input, bool train);
    void (*backward)(void *user, int layer, float *input, float *delta);
    float (*random_uniform)(void);
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
    void *options, *constants;  /* of a loss on the device (loss.h); constants: backend memory */
    struct amp_param *weights, *biases, *scales;
    uint32_t *watch;             /* AMP_WATCHES words */
    struct amp_segment *segment; /* NULL: runs by itself */
};

/* What is seen of every layer in a pass that is inspected; rows of n words. */
enum amp_inspected {
    AMP_INSPECTED_OUT_MAX, /* as kernels.h's amax */
    AMP_INSPECTED_OUT_ZEROS,
    AMP_INSPECTED_DELTA_MAX,
    AMP_INSPECTED_DELTA_ZEROS,
    AMP_INSPECTED
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

/* owned: copied. accumulate: keep sums over several passes (subdivisions >
 * 1). NULL with the reason in err. The plan and the net must outlive the graph. */
struct amp_graph *amp_graph_create(const struct ampk_backend *, struct ampk_context *,
                                   const struct amp_net_desc *, const struct amp_plan *,
                                   const struct amp_owned *, struct amp_native, bool accumulate,
                                   char *err, size_t err_size);
void amp_graph_free(struct amp_graph *);
/* Takes an unfinished step over from another graph of the same network, with the same layers ours:
 * its sums and the rolling statistics of its start. */
void amp_graph_take_step(struct amp_graph *, struct amp_graph *from);

/* Passes. Layers are called in order. Where the backend can record, the call of the first layer of
 * a segment (segment.h) runs all of it. */

/* input: net.input, FP32 NCHW; truth: net.truth, both in backend memory. Call before the first
 * layer's forward. */
void amp_graph_begin(struct amp_graph *, float *input, const float *truth, bool train);
void amp_graph_forward(struct amp_graph *, int layer);
/* Before the first backward of a pass and before every replay: loss deltas times scale, words
 * cleared. */
void amp_graph_begin_backward(struct amp_graph *, float scale);
void amp_graph_backward(struct amp_graph *, int layer);

/* A step begins: its sums are 0. */
void amp_graph_begin_step(struct amp_graph *);
/* The pass whose backward has just ended counts: its gradients go to the step's sums, if it keeps
 * some. scale: the loss scale that it ran with. */
void amp_graph_accept_pass(struct amp_graph *, float scale);
/* What the update reads becomes 0. */
void amp_graph_clear_gradients(struct amp_graph *);
/* Somebody wrote to the masters, or may have: the next pass packs them again and raises the WEIGHTS
 * words. */
void amp_graph_weights_changed(struct amp_graph *);

/* Words of the pass -> what went wrong, if anything. */
struct amp_fault amp_graph_fault(struct amp_graph *, bool backward);
/* The largest magnitude that an FP16 store refused in backward, 0 if none. */
double amp_graph_refused(struct amp_graph *);

/* The pass that begins next is inspected, or not (as every inference is): its layers' outputs as
 * stored, and their deltas just before backward consumes them. */
void amp_graph_inspect(struct amp_graph *, bool on);
/* From now on see is called with every layer's output, delta and weight gradient, as FP32 on the
 * host; NULL: no longer. For those who have the time. */
void amp_graph_observe(struct amp_graph *, amp_see_function *see, void *user);
/* From now on at is called around every layer's part of a pass, and layers run one by one; NULL: no
 * longer. */
void amp_graph_trace_layers(struct amp_graph *, amp_layer_function *at, void *user);
/* What was seen, n words in each row. Rows of deltas: of the last backward. */
void amp_graph_inspected(struct amp_graph *, uint32_t *rows[AMP_INSPECTED]);
/* Whether layer has a delta that readers contribute to. */
bool amp_graph_has_delta(const struct amp_graph *, int layer);
/* L2 norm of all gradients: of the step's sums where it keeps some, else of the last pass. inf or
 * NaN where FP32 does not hold its square. False without memory for a copy; then it is NaN too. */
bool amp_graph_grad_norm(struct amp_graph *, double *norm);

/* What a loss on the device came to, as of the last amp_graph_fault or amp_graph_read_losses; NULL:
 * the layer is none. */
const struct ampk_loss_sums *amp_graph_loss(const struct amp_graph *, int layer);
void amp_graph_read_losses(struct amp_graph *);

void amp_graph_save_rolling(struct amp_graph *);
void amp_graph_restore_rolling(struct amp_graph *);

/* ---- for executors and segments ---- */

void amp_graph_forward_layer(struct amp_graph *, int layer);
void amp_graph_backward_layer(struct amp_graph *, int layer);

/* An executor's create has no memory for `what` (layer -1: none's): -1, and amp_graph_create says
 * what would fit. */
int amp_graph_no_memory(struct amp_graph *, int layer, const char *what, char *err,
                        size_t err_size);

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
/* The word that watches what reaches the delta of source k. */
uint32_t *amp_graph_dx_watch(struct amp_graph *, int layer, int k);
/* The same for what a convolution writes to dx. NULL where watching costs the backend another pass
 * over dx and what is not finite there shows without: dx is a convolution's delta, which its bias
 * gradient sums (the DBIAS word) or, with gradient_sums, its dy is made of (the DY word). */
uint32_t *amp_graph_conv_dx_watch(struct amp_graph *, int layer, const struct ampk_tensor *dx);

/* Whether convolutions with a bias make their dy themselves (kernels.h, conv_bias_backward). */
bool amp_graph_makes_dy(const struct amp_graph *);
/* The loss whose unscaled delta layer i, such a convolution, reads itself and multiplies by the
 * loss scale; that loss's own backward writes layer i's delta only if somebody looks at deltas. -1:
 * none. */
int amp_graph_loss_behind(const struct amp_graph *, int i);

bool amp_graph_looked_at(const struct amp_graph *);
/* To whoever looks at deltas: that of the layer, complete and not used yet. */
void amp_graph_look_at_delta(struct amp_graph *, int layer);

/* Shows x, of the layer's shape, to whoever observes; the passes do it for all that is stored. */
void amp_graph_show(struct amp_graph *, enum amp_seen_what, int layer, const struct ampk_tensor *x);

struct ampk_tensor amp_graph_tensor(void *data, enum amp_format, int n, int c, int h, int w);

#endif
