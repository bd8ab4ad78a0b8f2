/* The forward pass of convolutions that read images, by a kernel of ours: it takes x as it is,
 * without padded channels, and batch-norm's statistics of y from registers. */
#ifndef AMPK_CUDA_IMAGE_CONV_H
#define AMPK_CUDA_IMAGE_CONV_H

#include "kernels/cuda/runtime/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether there is such a kernel for the shape: 16 bits, windows of 3 x 3 by 1, padded by 1, at
 * most 4 channels, 8, 16, 24, 32, 48 or 64 filters. */
bool ampk_image_conv_fits(const struct ampk_context *, const struct ampk_conv_shape *);

/* y = conv(x), and the statistics of y as bn_statistics has them. x and y: dense NHWC in the
 * convolution's type of operands, at multiples of 16 bytes; weights: packed (conv_layout.h). */
void ampk_image_conv(struct ampk_context *, const struct ampk_tensor *x, const void *weights,
                     const struct ampk_tensor *y, const struct ampk_bn_statistics *);

#ifdef __cplusplus
}
#endif

#endif
