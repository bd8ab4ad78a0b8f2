/* What Darknet has for training some of its layers on a GPU and leaves out on the CPU. */
#ifndef AMP_COMPLETE_H
#define AMP_COMPLETE_H

#include "darknet.h"

/* Allocates the arrays that the layer's CPU code uses. free_layer frees them. */
void amp_complete_layer(layer *);

typedef void amp_backward(layer, network);
/* The layer's backward; own: what Darknet gave it. */
amp_backward *amp_complete_backward(const layer *, amp_backward *own);

#endif
