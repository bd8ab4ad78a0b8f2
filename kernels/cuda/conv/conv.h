/* Convolutions of the CUDA backend: the operations of kernels.h on top of tensor_core.h.
 *
 * conv_problem  what padded problems a shape makes
 * conv.c        creation and the passes
 * conv_choice   which plans a convolution has, which of the ways to use them is taken
 * conv_work     which operands are passed on as they are and which are packed first, in which type
 *               results are asked for, what they are added to
 * conv_weights  lists of weights and their gradients
 * conv_parts    what these four share
 * conv_layout   the kernels that pack and unpack
 * conv_gradient those that read weight gradients
 * conv_update   those that update weights by them
 * image_conv    the kernel that computes convolutions of images
 *
 * Memory: weights packed once per update and their gradient, as the library wrote it, belong to the
 * convolution; everything else that does not go straight from tensor to tensor (padded channels,
 * other dtypes, gaps between images) passes through the context's work memory.
 */
#ifndef AMPK_CUDA_CONV_H
#define AMPK_CUDA_CONV_H

#include "kernels/cuda/libs/tensor_core.h"

/* Ends what the context's convolutions share; they are destroyed. */
void ampk_cuda_conv_end(struct ampk_context *);

#endif
