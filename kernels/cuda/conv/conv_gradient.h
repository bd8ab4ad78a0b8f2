/* Weight gradients as conv_backward leaves them: packed (conv_layout.h), a library's result. Many
 * of them are looked at, stored or added in a launch.
 *
 * What watches them reads their padding too: products with zeros, which are zero, or NaN where the
 * same x or dy makes others inf or NaN.
 */
#ifndef AMPK_CUDA_CONV_GRADIENT_H
#define AMPK_CUDA_CONV_GRADIENT_H

#include "conv_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ampk_conv_gradient {
    struct ampk_conv_weights layout;
    enum ampk_dtype dtype;
    const void *packed; /* 16-byte aligned */
    float *dst;         /* NULL: amax alone */
    uint32_t *amax;
};
/* kernels.h's conv_weight_gradients. */
void ampk_conv_take_gradients(struct ampk_context *, const struct ampk_conv_gradient *, int count,
                              float factor, bool accumulate);

#ifdef __cplusplus
}
#endif

#endif
