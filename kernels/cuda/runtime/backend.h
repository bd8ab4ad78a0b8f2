/* Inside of the CUDA backend: which file has which operations of the contract. Operation X is
 * ampk_cuda_X, declared here as kernels.h has it and entered in the table by backend.c. */
#ifndef AMPK_CUDA_BACKEND_H
#define AMPK_CUDA_BACKEND_H

#include "kernels/kernels.h"

/* clang-format off */
#define AMPK_CUDA_OPERATIONS(X)                                                                    \
    /* runtime/ranges.c */ X(range_begin) X(range_end)                                             \
    /* conv/ */                                                                                    \
    X(conv_create) X(conv_destroy) X(conv_bytes) X(conv_note) X(conv_set_weights)                  \
    X(conv_forward) X(conv_bias_forward) X(conv_backward) X(conv_bias_backward)                    \
    X(conv_takes_gradient) X(conv_bn_backward) X(conv_weight_gradients) X(conv_gradient_squares)   \
    X(conv_update)                                                                                 \
    /* ops/copy.cu */ X(convert)                                                                   \
    /* ops/flat.cu */                                                                              \
    X(amax) X(scale) X(accumulate) X(copy_many) X(inspect) X(sum_squares)                          \
    /* ops/update.cu */ X(update) X(trust_ratios) X(average_many)                                  \
    /* ops/batchnorm.cu */                                                                         \
    X(bn_statistics) X(bn_act_forward) X(bn_act_backward) X(bias_act_backward)                     \
    /* ops/batchnorm_pool.cu */ X(bn_act_pool_forward) X(bn_act_pool_backward)                     \
    /* ops/pool.cu */                                                                              \
    X(maxpool_index_bytes) X(maxpool_forward) X(maxpool_backward)                                  \
    X(avgpool_forward) X(avgpool_backward)                                                         \
    /* ops/shape.cu */                                                                             \
    X(upsample) X(shortcut_forward) X(shortcut_backward) X(reorg) X(flatten) X(unfold) X(fold)     \
    /* ops/pointwise.cu */                                                                         \
    X(dropout) X(dropout_draw) X(clip) X(activation_forward) X(activation_backward)                \
    /* ops/heads.cu */ X(yolo_forward) X(yolo_loss) X(region_forward) X(region_loss)               \
    /* ops/losses.cu */                                                                            \
    X(softmax_forward) X(softmax_loss) X(cost_loss) X(logistic_loss) X(loss_backward)
/* clang-format on */

#ifdef __cplusplus
extern "C" {
#endif

/* bias_act_backward of factor * d. */
void ampk_cuda_bias_backward(struct ampk_context *, const struct ampk_bias_gradient *,
                             const struct ampk_tensor *dy);

#define AMPK_CUDA_DECLARE(name) extern __typeof__(*ampk_cuda.name) ampk_cuda_##name;
AMPK_CUDA_OPERATIONS(AMPK_CUDA_DECLARE)

#ifdef __cplusplus
}
#endif

#endif
