/* A plan at work: the tensors, convolutions, gradients and watch words of one network on one
 * backend.
 *
 * The graph knows no Darknet. It reaches the layers that Darknet runs through struct amp_native,
 * and the master weights through struct amp_param. One executor per layer type (layers.h) computes
 * a layer. */
#ifndef AMP_GRAPH_H
#define AMP_GRAPH_H

#include "guard.h"
#include "kernels/kernels.h"
#include "plugin/core/net/net.h"
#include "plugin/core/plan/plan.h"
#include "plugin/include/amp_observe.h"

enum amp_param_kind { AMP_PARAM_WEIGHTS, AMP_PARAM_BIASES, AMP_PARAM_SCALES };

/* One array of master weights with its gradients. value, update, m, v are Darknet's own arrays. */
struct amp_param {
    enum amp_param_kind kind;
    int layer;
    size_t n;
    float *value;
    float *update;  /* Darknet's weight_updates: the momentum */
    float *m, *v;   /* an optimizer's moments, Darknet's or ours (kept.h); NULL: none */
    float *average; /* the moving average of value (kept.h); NULL: none */
    float learning_rate_scale, clip;
    /* Of this pass, times the loss scale; set by amp_graph_create. NULL: the weights of a
     * convolution, which keeps their gradient itself (kernels.h, conv_backward). (Or it keeps it
     * here: conv_keep_gradient.) */
    float *grad;
    float *sum; /* of the step's accepted passes, unscaled; NULL where a step has one pass */
    bool due;   /* to be updated at the end of the step */
};

/* State that forward moves: a batch-norm's running statistics, or what a recurrent layer hands to
 * the next pass. It is put back when the step is skipped. */
struct amp_rolling {
    float *value;
    size_t n;
    int layer;
    bool carried;   /* what a recurrent layer hands on: no statistics */
    float *average; /* the moving average of statistics (kept.h); NULL: none */
};

/* Memory that the backward of a recurrent layer changes and reads too: before it runs again on the
 * same forward, it finds there what the first run found. */
struct amp_changed {
    float *value;
    size_t n;
    bool zeros; /* the first run found zeros */
};

/* Steps since the run began. A step that is skipped is in none of them. */
struct amp_counts {
    int64_t averaged; /* that moving averages have followed; 0 where AlexeyAB's rests */
    int64_t clipped;  /* whose gradients clip_grad_norm has made smaller */
};

/* What Darknet owns of one layer. */
struct amp_binding {
    float *output; /* FP32 NCHW, batch*outputs floats; holds the layer's border tensor */
    float *delta;  /* only layers that Darknet runs use it */
    float *rolling_mean, *rolling_variance;
    int first_param, n_params; /* in the order weights, biases, scales if the layer is ours */
};

/* What Darknet owns of a network, and what is kept beside it. */
struct amp_owned {
    struct amp_binding *bindings; /* per layer */
    struct amp_param *params;
    struct amp_rolling *rolling;
    struct amp_changed *changed;
    int n_params, n_rolling, n_changed;
    struct amp_counts *counts; /* NULL: nobody counts */
};

/* Runs a layer with Darknet's code. input and delta are FP32 NCHW; delta is NULL if the source
 * wants none. random_uniform yields the next number in [0, 1) for dropout's masks; NULL: the
 * backend draws them. */
struct amp_native {
    void *user;
    void (*forward)(void *user, int layer, float *input, bool train);
    void (*backward)(void *user, int layer, float *input, float *delta);
    float (*random_uniform)(void);
};

/* The other processes over whose passes batch-norm works too (sync_bn.h). add: n doubles become
 * their sums over all `count` processes, the same bits in each; it returns when all have come. */
struct amp_bn_peers {
    void (*add)(void *user, double *x, size_t n);
    void *user;
    int count; /* 0: there are none */
};

/* Numbers of every layer in an inspected pass: one row of n words for each. */
enum amp_inspected {
    AMP_INSPECTED_OUT_MAX, /* as kernels.h's amax */
    AMP_INSPECTED_OUT_ZEROS,
    AMP_INSPECTED_DELTA_MAX,
    AMP_INSPECTED_DELTA_ZEROS,
    AMP_INSPECTED
};

struct amp_graph; /* tensors.h */

/* owned is copied, except the arrays it points to. accumulate: keep sums over several passes
 * (subdivisions > 1). NULL with the reason in err. The plan and the net must outlive the graph. */
struct amp_graph *amp_graph_create(const struct ampk_backend *, struct ampk_context *,
                                   const struct amp_net_desc *, const struct amp_plan *,
                                   const struct amp_owned *, struct amp_native, bool accumulate,
                                   char *err, size_t err_size);
void amp_graph_free(struct amp_graph *);
/* Continues an unfinished step of another graph: takes its sums and the rolling statistics that it
 * saved. Both graphs have the same network and the same layers of ours. Needed where the plan
 * changes between two passes of a step. */
void amp_graph_take_step(struct amp_graph *, struct amp_graph *from);

/* Passes. The caller calls layers in order. On a backend that can record, the call of a segment's
 * first layer (tensors.h) runs the whole segment, and the calls of its other layers do nothing. */

/* input: net.input, FP32 NCHW; truth: net.truth, both in backend memory. Call before the first
 * layer's forward. */
void amp_graph_begin(struct amp_graph *, float *input, const float *truth, bool train);
void amp_graph_forward(struct amp_graph *, int layer);
/* Call before the first backward of a pass and before every replay. Writes loss deltas times scale
 * and clears the words of backward. */
void amp_graph_begin_backward(struct amp_graph *, float scale);
void amp_graph_backward(struct amp_graph *, int layer);
/* One layer by itself, whatever segment it is in. */
void amp_graph_forward_layer(struct amp_graph *, int layer);
void amp_graph_backward_layer(struct amp_graph *, int layer);

/* For Darknet's code of a recurrent layer, while it runs: the product of matrix `k` and time step
 * `step`. x, y, dy, dx: that step's FP32 NCHW values, backend memory of the caller's stream.
 * forward: y = activation(W x + bias), with batch-norm y = W x. backward: dx += W^T dy (dx NULL:
 * not wanted); the weight gradient, and all gradients of the layer's input, follow when the layer's
 * backward is done. */
void amp_graph_product_forward(struct amp_graph *, int layer, int k, int step, float *x, float *y);
void amp_graph_product_backward(struct amp_graph *, int layer, int k, int step, float *x, float *dy,
                                float *dx);
/* x = activation(x); delta *= activation'(out), from what activation gave. Host memory. */
void amp_graph_activate(struct amp_graph *, float *x, int n, enum ampk_activation);
void amp_graph_activation_gradient(struct amp_graph *, const float *out, int n,
                                   enum ampk_activation, float *delta);

/* A step begins: its sums are 0. */
void amp_graph_begin_step(struct amp_graph *);
/* Accepts the pass whose backward has just ended: adds its gradients to the step's sums, if there
 * are sums. scale: the loss scale of that backward. */
void amp_graph_accept_pass(struct amp_graph *, float scale);
/* Zeroes the gradients that the update reads. */
void amp_graph_clear_gradients(struct amp_graph *);
/* Call when somebody wrote to the masters, or may have: the next pass packs them again and raises
 * the WEIGHTS words. */
void amp_graph_weights_changed(struct amp_graph *);

/* Reads the words of the pass: what went wrong, if anything. backward: sets largest_gradient
 * (tensors.h) too. */
struct amp_fault amp_graph_fault(struct amp_graph *, bool backward);

/* Whether the next training pass is inspected; inference never is. It looks at each layer's stored
 * output, and at its delta just before backward consumes it. */
void amp_graph_inspect(struct amp_graph *, bool on);
/* From now on see gets every layer's output, delta and weight gradient, as FP32 on the host. NULL
 * ends that. Slow: every tensor is copied. */
void amp_graph_observe(struct amp_graph *, amp_see_function *see, void *user);
/* From now on call is called before and after every layer's part of a pass, and layers run one by
 * one. NULL ends that. */
void amp_graph_trace_layers(struct amp_graph *, amp_layer_function *call, void *user);
/* Copies the inspected numbers, n words in each row. Rows of deltas belong to the last backward. */
void amp_graph_inspected(struct amp_graph *, uint32_t *rows[AMP_INSPECTED]);
/* Whether layer has a delta that readers contribute to. */
bool amp_graph_has_delta(const struct amp_graph *, int layer);
/* Whether what watches the weight gradients of the passes from now on also sums the squares of all
 * gradients, so that the norm comes with the words; for the last pass of a step that wants the
 * norm. Not where other processes add to the sums after it. Does nothing on a backend that watches
 * gradients layer by layer. */
void amp_graph_square_gradients(struct amp_graph *, bool on);
/* L2 norm of all gradients: of the step's sums if it keeps sums, else of the last pass. inf or NaN
 * if FP32 cannot hold its square. From the words that amp_graph_fault has read, if the last pass
 * was squared; else a pass over the gradients and a transfer. Only squaring knows those that
 * convolutions keep for the update (tensors.h, own_gradients): else NaN. */
double amp_graph_grad_norm(struct amp_graph *);
/* The same of the sums so far; only of a graph that keeps sums. */
double amp_graph_sums_norm(struct amp_graph *);

/* Sums of a loss of ours, as of the last amp_graph_fault or amp_graph_read_losses. NULL: the
 * layer is no such loss. */
const struct ampk_loss_sums *amp_graph_loss(const struct amp_graph *, int layer);
void amp_graph_read_losses(struct amp_graph *);

void amp_graph_save_rolling(struct amp_graph *);
void amp_graph_restore_rolling(struct amp_graph *);

/* ==== gradients.c: the gradients of a pass, the sums of a step, and the update at the end of a
 * step by Darknet's own rules or those of rules.h, on the FP32 masters ==== */

struct amp_update {
    float learning_rate, momentum, decay, b1, b2, eps;
    int batch; /* images of the whole step */
    bool adam;
    int t;
    size_t iteration; /* that it ends, from 1 on */
    double grad_norm; /* amp_graph_grad_norm's, if the plan's rules clip by it */
};

/* Marks one layer's parameters for the update. */
void amp_graph_set_due(struct amp_graph *, int layer);
/* Updates all marked parameters. */
void amp_graph_update(struct amp_graph *, const struct amp_update *);

/* ==== buckets.c: what leaves for other processes while backward still runs ==== */

/* Floats [first, first + n) of the sums. All of them are there when the backward of `layer` has
 * run. */
struct amp_bucket {
    size_t first, n;
    int layer;
};

/* Makes room for what other processes get, and cuts the gradients into buckets of `bytes` or a
 * little more, in the order in which backward completes them; the last one is small. Segments end
 * where a bucket does. 0: one piece, which leaves after backward. rounded: room for BF16 too. Call
 * between passes; later calls do nothing. -1: no memory. */
int amp_graph_cut(struct amp_graph *, size_t bytes, bool rounded);
/* Writes what the bucket's sums would be if the pass at hand were accepted to their place in
 * sums_sent. The sums stay as they are. */
void amp_graph_fill_bucket(struct amp_graph *, const struct amp_bucket *);
/* Accepts the pass at hand in this way: what is in sums_sent becomes the sums. */
void amp_graph_take_sums(struct amp_graph *);

/* What the passes of this process add to the rolling statistics: of_now times what they are now
 * plus of_before times what they were when the step began. Returns backend memory,
 * amp_graph_rolling_floats of them. */
float *amp_graph_rolling_terms(struct amp_graph *, float of_now, float of_before);
/* The rolling statistics become what is in there. */
void amp_graph_take_rolling(struct amp_graph *);
size_t amp_graph_rolling_floats(const struct amp_graph *);

/* ---- for graph_build.c ---- */

/* Finds the segments anew, as buckets are there now. -1: no memory. */
int amp_graph_find_segments(struct amp_graph *);
/* Call it before convolutions and tensors go: a recording refers to both. */
void amp_graph_free_segments(struct amp_graph *);
/* Allocates gradients, and sums if accumulate. -1 with the reason in err. */
int amp_graph_alloc_gradients(struct amp_graph *, bool accumulate, char *err, size_t err_size);
/* Gives every param its place in gradients and sums. */
void amp_graph_place_gradients(struct amp_graph *);
/* Computes and watches all weight gradients of a pass, and squares them if wanted. */
void amp_graph_compute_weight_gradients(struct amp_graph *);
/* Lists where the weight gradients of convolutions go. Call after the convolutions are made, and
 * again when the params have got other places. */
void amp_graph_list_weight_gradients(struct amp_graph *);

#endif
