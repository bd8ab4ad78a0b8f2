/* The convolution that a layer is, as an executor makes it and tests ask the libraries for it. */
#ifndef AMP_CONV_SHAPE_H
#define AMP_CONV_SHAPE_H

#include "net_desc.h"

struct amp_image_shape {
    int c, h, w;
};

/* Of the output of layer i (-1: the network's input); {values, 1, 1} where Darknet leaves no image
 * shape. */
struct amp_image_shape amp_output_shape(const struct amp_net_desc *, int i);

/* Layer i, [convolutional] or [connected], on a pass of net's batch: the window of a connected
 * layer is the whole image that it reads. compute, forward_only and biased are left to the caller.
 */
struct ampk_conv_shape amp_conv_shape(const struct amp_net_desc *, int i);

#endif
