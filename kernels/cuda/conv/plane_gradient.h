/* The gradient that a loss hands to the convolution before it, as Tensor Cores read it. */
#ifndef AMPK_CUDA_PLANE_GRADIENT_H
#define AMPK_CUDA_PLANE_GRADIENT_H

#include "kernels/cuda/runtime/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether ampk_pass_planes does it: FP32 NCHW, and no activation. */
bool ampk_passes_planes(const struct ampk_bias_gradient *);
/* Work memory for its sums. */
size_t ampk_plane_sums_bytes(const struct ampk_tensor *d, int padded);
/* dy = factor * d, dense NHWC of `padded` channels, those that d has not 0; and dbias. */
void ampk_pass_planes(struct ampk_context *, const struct ampk_bias_gradient *, enum ampk_dtype,
                      int padded, void *dy, void *sums);

#ifdef __cplusplus
}
#endif

#endif
