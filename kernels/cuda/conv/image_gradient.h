/* Weight gradients of a network's first convolution, with batch-norm's dy in registers: 3x3
 * windows, stride 1, an image of at most 4 channels, filters by 8 up to 64; FP16, and BF16 from
 * Ampere on.
 *
 * Where x or dy is inf or NaN, what borders on it may be NaN in more taps than would read it.
 */
#ifndef AMPK_CUDA_IMAGE_GRADIENT_H
#define AMPK_CUDA_IMAGE_GRADIENT_H

#include "conv_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the device has the products, and the kernel can read such tensors. */
bool ampk_image_gradient_fits(const struct ampk_context *, const struct ampk_conv_shape *,
                              const struct ampk_tensor *x, const struct ampk_layer_gradient *);
/* Bytes of work memory. */
size_t ampk_image_gradient_work(const struct ampk_tensor *x, int k);
/* kernels.h's conv_bn_backward; dw: FP32, packed. */
void ampk_image_gradient(struct ampk_context *, const struct ampk_conv_weights *,
                         const struct ampk_tensor *x, const struct ampk_layer_gradient *, float *dw,
                         float *dscale, float *dbias, uint32_t *dy_amax, uint32_t *db_amax);

#ifdef __cplusplus
}
#endif

#endif
