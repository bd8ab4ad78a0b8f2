/* Updates of convolutions' weights from the gradients that they keep, or from sums: masters, what
 * is kept of them and the packed weights, in one pass over all. */
#ifndef AMPK_CUDA_CONV_UPDATE_H
#define AMPK_CUDA_CONV_UPDATE_H

#include "conv_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ampk_conv_update {
    struct ampk_conv_weights layout;
    enum ampk_compute compute;
    void *packed;          /* weights, of which the padding is there */
    const void *gradient;  /* packed; NULL: it is 0. Both at multiples of 16 bytes */
    enum ampk_dtype dtype; /* of the gradient */
    const struct ampk_param *param;
    uint32_t *amax;
};
/* kernels.h's conv_update_sgd and conv_update_adam. */
void ampk_conv_update_by_sgd(struct ampk_context *, const struct ampk_conv_update *, int count,
                             float momentum);
void ampk_conv_update_by_adam(struct ampk_context *, const struct ampk_conv_update *, int count,
                              float b1, float b2, float eps, int t);

#ifdef __cplusplus
}
#endif

#endif
