/* The kernels of convolutions, by the files that have them: conv_layout.cu, conv_gradient.cu,
 * conv_update.cu, image_conv.cu, image_gradient.cu, plane_gradient.cu. They know tensors and shapes
 * and nothing of libraries or plans. */
#ifndef AMPK_CUDA_CONV_KERNELS_H
#define AMPK_CUDA_CONV_KERNELS_H

#include "kernels/cuda/runtime/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- conv_layout.cu: packing and unpacking ---- */

/* Between the tensors of kernels.h and the operands of tensor_core.h: padding, rounding, layout.
 * `packed` is dense NHWC with `padded` channels; padding is written as 0 and not read.
 *
 * amax of what a library stored itself: it shows the rounded values only, and an inf in FP16 counts
 * as 65520, the smallest magnitude that becomes inf there. (The sum of finite products in FP32 is
 * finite, so that nothing else makes one from finite operands.)
 */

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

/* ---- conv_gradient.cu: weight gradients ---- */

/* Weight gradients as conv_backward leaves them: packed (conv_layout.cu), a library's result. Many
 * of them are looked at, stored or added in a launch.
 *
 * What watches them reads their padding too: products with zeros, which are zero, or NaN where the
 * same x or dy makes others inf or NaN.
 */

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

/* ---- conv_update.cu: updates ---- */

/* Updates of convolutions' weights from the gradients that they keep, or from sums: masters, what
 * is kept of them and the packed weights, in one pass over all. */

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

/* ---- image_conv.cu: the first convolution ---- */

/* The forward pass of convolutions that read images, by a kernel of ours: it takes x as it is,
 * without padded channels, and batch-norm's statistics of y from registers. */

/* Whether there is such a kernel for the shape: 16 bits, windows of 3 x 3 by 1, padded by 1, at
 * most 4 channels, 8, 16, 24, 32, 48 or 64 filters. */
bool ampk_image_conv_fits(const struct ampk_context *, const struct ampk_conv_shape *);

/* y = conv(x), and the statistics of y as bn_statistics has them. x and y: dense NHWC in the
 * convolution's type of operands, at multiples of 16 bytes; weights: packed (conv_layout.cu). */
void ampk_image_conv(struct ampk_context *, const struct ampk_tensor *x, const void *weights,
                     const struct ampk_tensor *y, const struct ampk_bn_statistics *);

/* ---- image_gradient.cu: its weight gradient ---- */

/* Weight gradients of a network's first convolution, with batch-norm's dy in registers: 3x3
 * windows, stride 1, an image of at most 4 channels, filters by 8 up to 64; FP16, and BF16 from
 * Ampere on.
 *
 * Where x or dy is inf or NaN, what borders on it may be NaN in more taps than would read it.
 */

/* Whether the device has the products, and the kernel can read such tensors. */
bool ampk_image_gradient_fits(const struct ampk_context *, const struct ampk_conv_shape *,
                              const struct ampk_tensor *x, const struct ampk_layer_gradient *);
/* Bytes of work memory. */
size_t ampk_image_gradient_work(const struct ampk_tensor *x, int k);
/* kernels.h's conv_bn_backward; dw: FP32, packed. */
void ampk_image_gradient(struct ampk_context *, const struct ampk_conv_weights *,
                         const struct ampk_tensor *x, const struct ampk_layer_gradient *, float *dw,
                         float *dscale, float *dbias, uint32_t *dy_amax, uint32_t *db_amax);

/* ---- plane_gradient.cu: the last convolution ---- */

/* The gradient that a loss hands to the convolution before it, as Tensor Cores read it. */

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
