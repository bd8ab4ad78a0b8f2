/* The matrix products inside recurrent layers: computed by the backend while Darknet's own code
 * runs the layer. */
#ifndef AMP_PRODUCTS_H
#define AMP_PRODUCTS_H

#include "darknet.h"
#include "plugin/core/engine/graph.h"

/* From now on this thread runs recurrent layer l, number `index` of the graph, until
 * amp_products_end. graph NULL: a layer without products. */
void amp_products_run(struct amp_graph *, int index, layer *l, bool device);
void amp_products_end(void);

/* In the places of the forward and backward functions of connected and convolutional layers. False:
 * the layer is not inside the one that runs; nothing was done. */
bool amp_products_forward(layer l, network net);
bool amp_products_backward(layer l, network net);
/* The same for activate_array and gradient_array; false: no such layer runs on the host. */
bool amp_products_activate(float *x, int n, ACTIVATION);
bool amp_products_gradient(const float *out, int n, ACTIVATION, float *delta);

#endif
