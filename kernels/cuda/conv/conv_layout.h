/* Between the tensors of kernels.h and the operands of tensor_core.h: padding, rounding, layout.
 * `packed` is dense NHWC with `padded` channels; padding is written as 0 and not read.
 *
 * amax of what a library stored itself: it shows the rounded values only, and an inf in FP16 counts
 * as 65520, the smallest magnitude that becomes inf there. (The sum of finite products in FP32 is
 * finite, so that nothing else makes one from finite operands.)
 */
#ifndef AMPK_CUDA_CONV_LAYOUT_H
#define AMPK_CUDA_CONV_LAYOUT_H

#include "kernels/cuda/runtime/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* packed = x (NHWC) rounded to the compute type, stored in its operand type. */
void ampk_conv_pack(struct ampk_context *, const struct ampk_tensor *x, enum ampk_compute,
                    int padded, void *packed);
/* y (+)= packed; y of any dtype and layout. */
void ampk_conv_unpack(struct ampk_context *, const void *packed, enum ampk_dtype, int padded,
                      const struct ampk_tensor *y, bool accumulate, uint32_t *amax);
/* y = activation(packed + bias) */
void ampk_conv_unpack_activated(struct ampk_context *, const void *packed, enum ampk_dtype,
                                int padded, const float *bias, enum ampk_activation,
                                const struct ampk_tensor *y, uint32_t *amax);
/* amax of n elements that a library stored. */
void ampk_conv_amax(struct ampk_context *, const void *stored, enum ampk_dtype, size_t n,
                    uint32_t *amax);

/* The weights of a convolution: float [k][c][kh][kw] and packed [padded_k][kh][kw][padded_c]; c is
 * that of one group. */
struct ampk_conv_weights {
    int k, c, taps; /* taps: kh * kw */
    int padded_k, padded_c;
};
struct ampk_conv_packing {
    struct ampk_conv_weights layout;
    enum ampk_compute compute;
    const float *weights;
    void *packed;
    uint32_t *amax;
};
/* All of a list, in few launches. */
void ampk_conv_pack_weights(struct ampk_context *, const struct ampk_conv_packing *, int count);

/* Numbers like those of a net in training, to time plans on: speed depends on how many bits
 * toggle. As good as random, the same for the same n, within .5 of the mean. */
void ampk_conv_fill(ampk_rt_stream, void *data, enum ampk_dtype, size_t n, float mean);
/* words[0] is raised to the largest |a - b|, words[1] to the largest |a|, of arrays of so many
 * bytes, both at multiples of 16. */
void ampk_conv_compare(ampk_rt_stream, const void *a, const void *b, enum ampk_dtype, size_t bytes,
                       uint32_t words[2]);

#ifdef __cplusplus
}
#endif

#endif
