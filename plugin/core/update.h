/* The update at the end of a step: Darknet's own rules on the FP32 masters, by what the step's
 * passes left in the graph. */
#ifndef AMP_UPDATE_H
#define AMP_UPDATE_H

#include "graph.h"

struct amp_update {
    float learning_rate, momentum, decay, b1, b2, eps;
    int batch; /* images of the whole step */
    bool adam;
    int t;
};

/* Whether weights of convolutions are updated and packed in one operation (kernels.h,
 * conv_update_sgd). */
bool amp_graph_fuses_update(const struct amp_graph *);

/* One layer's parameters are to be updated. */
void amp_graph_set_due(struct amp_graph *, int layer);
/* Updates all that is due. */
void amp_graph_update(struct amp_graph *, const struct amp_update *);

#endif
