/* One executor per layer type: our forward and backward of that type. Only the table in layers.c
 * says which types have one. The plan learns it from amp_layers_ours, and the graph runs the
 * executors. */
#ifndef AMP_LAYERS_H
#define AMP_LAYERS_H

#include "kernels/kernels.h"
#include "plugin/core/net/net.h"

struct amp_graph;

struct amp_executor {
    /* Makes everything that the layer needs beyond its tensors; NULL: nothing. -1 with the reason
     * in err; lack of memory goes through amp_graph_no_memory. */
    int (*create)(struct amp_graph *, int layer, char *err, size_t err_size);
    void (*forward)(struct amp_graph *, int layer);
    void (*backward)(struct amp_graph *, int layer);
};

/* The layer types that have an executor on this backend, one bit (1u << type) each, as
 * amp_plan_make takes them. A backend of NULL: the types that have one on every backend. */
unsigned amp_layers_ours(const struct ampk_backend *);
/* NULL: the type has no executor. */
const struct amp_executor *amp_layer_executor(enum amp_layer_type);
/* The executor of a layer; NULL if the plan calls it ours and its type has none. */
const struct amp_executor *amp_graph_executor(const struct amp_graph *, int layer);

/* Convolutional, deconvolutional and connected. */
extern const struct amp_executor amp_exec_convolution;
extern const struct amp_executor amp_exec_local;
extern const struct amp_executor amp_exec_maxpool, amp_exec_avgpool, amp_exec_route,
    amp_exec_shortcut, amp_exec_upsample, amp_exec_reorg, amp_exec_dropout, amp_exec_activation;
/* Losses and softmax, on a backend that has them. */
extern const struct amp_executor amp_exec_yolo, amp_exec_region, amp_exec_softmax, amp_exec_cost,
    amp_exec_logistic;
/* Darknet's own code, with conversions at its border: for every layer that is not ours. */
extern const struct amp_executor amp_exec_darknet;

/* Makes the backend's convolution of a matrix layer; for their executors' create. */
int amp_make_convolution(struct amp_graph *, int layer, char *err, size_t err_size);

/* Call when a training pass begins: draws all dropout masks if the backend draws them. */
void amp_dropout_draw(struct amp_graph *);

#endif
