/* A plan at work: tensors, convolutions, gradients and watch words of one network on one backend.
 *
 * Knows no Darknet: the layers that Darknet itself runs are reached through struct amp_native, and
 * the master weights through struct amp_param. One executor per layer type (layers.h) does the
 * rest.
 */
#ifndef AMP_GRAPH_H
#define AMP_GRAPH_H

#include "fault.h"
#include "kernels/kernels.h"
#include "net.h"
#include "plan.h"
#include "plugin/include/amp_observe.h"

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

/* What is seen of every layer in a pass that is inspected; rows of n words. */
enum amp_inspected {
    AMP_INSPECTED_OUT_MAX, /* as kernels.h's amax */
    AMP_INSPECTED_OUT_ZEROS,
    AMP_INSPECTED_DELTA_MAX,
    AMP_INSPECTED_DELTA_ZEROS,
    AMP_INSPECTED
};

struct amp_graph; /* tensors.h */

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
 * a segment (tensors.h) runs all of it; the calls of its other layers then do nothing. */

/* input: net.input, FP32 NCHW; truth: net.truth, both in backend memory. Call before the first
 * layer's forward. */
void amp_graph_begin(struct amp_graph *, float *input, const float *truth, bool train);
void amp_graph_forward(struct amp_graph *, int layer);
/* Before the first backward of a pass and before every replay: loss deltas times scale, words
 * cleared. */
void amp_graph_begin_backward(struct amp_graph *, float scale);
void amp_graph_backward(struct amp_graph *, int layer);
/* One layer by itself, whatever segment it is in. */
void amp_graph_forward_layer(struct amp_graph *, int layer);
void amp_graph_backward_layer(struct amp_graph *, int layer);

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

#endif
