/* One executor per layer type: what our code does for it forward and backward. */
#ifndef AMP_EXECUTOR_H
#define AMP_EXECUTOR_H

#include "graph.h"

struct amp_executor {
    /* Makes what the layer needs beyond its tensors; NULL: nothing. -1 with the reason in err, by
     * amp_graph_no_memory where it is that. */
    int (*create)(struct amp_graph *, int layer, char *err, size_t err_size);
    void (*forward)(struct amp_graph *, int layer);
    void (*backward)(struct amp_graph *, int layer);
};

extern const struct amp_executor amp_exec_convolution; /* convolutional and connected */
extern const struct amp_executor amp_exec_maxpool, amp_exec_avgpool, amp_exec_route,
    amp_exec_shortcut, amp_exec_upsample, amp_exec_reorg, amp_exec_dropout, amp_exec_activation;
extern const struct amp_executor amp_exec_yolo, amp_exec_region, amp_exec_softmax, amp_exec_cost,
    amp_exec_logistic;                             /* where the backend has them */
extern const struct amp_executor amp_exec_darknet; /* Darknet's own code, borders converted */

/* A training pass begins: its dropout masks, where the backend draws them. */
void amp_dropout_draw(struct amp_graph *);

/* NULL: the plan says that the layer is ours, but no executor is. */
const struct amp_executor *amp_executor_of(const struct amp_graph *, int layer);
/* The losses that a backend computes, as amp_plan_make wants them. */
unsigned amp_device_losses(const struct ampk_backend *);

#endif
