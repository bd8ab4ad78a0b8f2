/* A graph (plugin/core/engine/graph.h) without Darknet, for tests: random weights and inputs, and
 * stand-ins for the layers that Darknet runs.
 *
 *   loss layers              output = input, loss += (input - truth)^2 / 2, delta = truth - input
 *   [lrn] [batchnorm]        output = f(input); backward OVERWRITES its input's delta
 *   [l2norm] [softmax]       the same f; backward adds to it
 *   [convolutional], smooth  a linear one with size=1: weights; gradients are added to the params'
 *   [crop]                   the upper left part of its input; no delta
 *   recurrent layers         as recurrent.h says; without batch-norm
 *
 * with f(x) = x + sin(x)/2. The same random numbers give the same values whatever the backend and
 * the dtype.
 */
#ifndef AMP_TEST_RIG_H
#define AMP_TEST_RIG_H

#include "plugin/core/engine/kept.h"
#include "plugin/core/engine/tensors.h"

struct recurrent;

struct rig {
    const struct ampk_backend *backend;
    struct ampk_context *context;
    struct amp_cfg_file *cfg;
    struct amp_options options;
    struct amp_net_desc *net;
    struct amp_plan *plan;
    struct amp_graph *graph;
    struct amp_kept *kept;
    struct amp_binding *bindings;
    struct amp_param *params;
    struct amp_rolling *rolling;
    int n_params, n_rolling;
    struct recurrent **recurrent; /* per layer, NULL where it is none */
    float *input, **truth;        /* truth: per layer, NULL where it is no loss */
    float *rolling_start;         /* what rig_forward begins with */
    unsigned ours;                /* types of layers that have an executor */
    bool draws_masks;             /* the backend draws dropout's; for a graph that is made anew */
    const float *labels;          /* net.truth */
    double loss;                  /* of the last forward */
    double loss_rounding; /* what rounding the losses' inputs to FP32 may change it by, squared */
    double noise;         /* 0, or what rig_disturb changes values by, at most and relative */
    uint64_t noise_draw;
    char err[1024];
};

/* text: a whole cfg. random: 64 bits a call. NULL with the reason on stderr. */
struct rig *rig_create(const char *text, const struct ampk_backend *, uint64_t (*random)(void));
/* The same; losses that the backend computes are no stand-ins but that, of rig->labels (NULL at
 * first; the caller's). */
struct rig *rig_create_with_losses(const char *text, const struct ampk_backend *,
                                   uint64_t (*random)(void));
void rig_free(struct rig *);
/* Makes the graph anew from rig->plan. 0, or -1 with the reason in rig->err. accumulate: as
 * amp_graph_create's. */
int rig_make_graph(struct rig *, bool accumulate);
/* Makes the plan anew, from a description that the caller has changed, and then the graph. 0, or -1
 * with the reason in rig->err. */
int rig_plan_again(struct rig *);

/* Makes the rolling means those of the batch, as they are after some training; other rigs of the
 * same net get the same ones. Darknet begins with zeros, and the variance, summed about the rolling
 * mean, loses digits where that is far away. */
void rig_settle(struct rig *, struct rig *other);
/* As rounding may: equal values change alike. Forward does it to each output. */
void rig_disturb(const struct rig *, const struct ampk_tensor *);

/* All layers forward with fresh convolution weights, the rolling statistics as at the start, and
 * the same dropout masks every time. */
void rig_forward(struct rig *);
/* The same; after layer `layer` has run, adds h to element i (NCHW order, whole batch) of its
 * output and of the output's copies. */
void rig_forward_nudged(struct rig *, int layer, size_t i, float h);
void rig_backward(struct rig *, float scale);
/* The gradient of a param as the last backward left it; the caller frees. */
float *rig_gradient(struct rig *, int param);
/* The next dropout mask is that of this number. */
void rig_seed_dropout(uint64_t);

/* Elements of a tensor as FP64 in NCHW order; the caller frees. */
double *rig_load(const struct ampk_tensor *);
size_t rig_count(const struct ampk_tensor *);

#endif
