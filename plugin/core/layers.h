/* One executor per layer type: what our code does for it forward and backward. The table in
 * layers.c is the only place that says which type has one; the plan is told by amp_layers_ours, the
 * graph runs them. */
#ifndef AMP_LAYERS_H
#define AMP_LAYERS_H

#include "kernels/kernels.h"
#include "layer_type.h"

struct amp_graph;

struct amp_executor {
    /* Makes what the layer needs beyond its tensors; NULL: nothing. -1 with the reason in err, by
     * amp_graph_no_memory where it is that. */
    int (*create)(struct amp_graph *, int layer, char *err, size_t err_size);
    void (*forward)(struct amp_graph *, int layer);
    void (*backward)(struct amp_graph *, int layer);
};

/* The types of layers that have an executor on this backend, a bit (1u << type) for each, as
 * amp_plan_make takes them. NULL: those that have one on every backend. */
unsigned amp_layers_ours(const struct ampk_backend *);
/* NULL: there is none. */
const struct amp_executor *amp_layer_executor(enum amp_layer_type);

/* Convolutional and connected. */
extern const struct amp_executor amp_exec_convolution;
extern const struct amp_executor amp_exec_maxpool, amp_exec_avgpool, amp_exec_route,
    amp_exec_shortcut, amp_exec_upsample, amp_exec_reorg, amp_exec_dropout, amp_exec_activation;
/* Losses, where the backend has them. */
extern const struct amp_executor amp_exec_yolo, amp_exec_region, amp_exec_softmax, amp_exec_cost,
    amp_exec_logistic;
/* Darknet's own code, its tensors converted at the border: for every layer that is not ours. */
extern const struct amp_executor amp_exec_darknet;

/* A training pass begins: its dropout masks, where the backend draws them. */
void amp_dropout_draw(struct amp_graph *);

#endif
