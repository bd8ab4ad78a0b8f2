/* The gradients of a pass, the sums of a step, and the update at the end of a step: Darknet's own
 * rules on the FP32 masters. graph.h has the calls that a step makes for its passes. */
#ifndef AMP_GRADIENTS_H
#define AMP_GRADIENTS_H

#include "graph.h"

struct amp_update {
    float learning_rate, momentum, decay, b1, b2, eps;
    int batch; /* images of the whole step */
    bool adam;
    int t;
};

/* Marks one layer's parameters for the update. */
void amp_graph_set_due(struct amp_graph *, int layer);
/* Updates all marked parameters. */
void amp_graph_update(struct amp_graph *, const struct amp_update *);

/* ---- for graph.c ---- */

/* Allocates gradients, and sums if accumulate. -1 with the reason in err. */
int amp_graph_alloc_gradients(struct amp_graph *, bool accumulate, char *err, size_t err_size);
/* Gives every param its place in gradients and sums. */
void amp_graph_place_gradients(struct amp_graph *);
/* Lists where the weight gradients of convolutions go. Call after the convolutions are made, and
 * again when the params have got other places. */
void amp_graph_list_weight_gradients(struct amp_graph *);

#endif
