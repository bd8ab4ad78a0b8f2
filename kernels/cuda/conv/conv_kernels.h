/* The kernels of convolutions, by the files that have them: conv_layout.cu, conv_weights.cu,
 * image_conv.cu, image_gradient.cu, plane_gradient.cu. They know tensors and
 * shapes, and nothing of libraries or plans. */
#ifndef AMPK_CUDA_CONV_KERNELS_H
#define AMPK_CUDA_CONV_KERNELS_H

#include "kernels/cuda/runtime/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- conv_layout.cu: packing and unpacking ---- */

/* Conversion between the tensors of kernels.h and the operands of tensor_core.h: padding,
 * rounding, layout. `packed` is dense NHWC with `padded` channels; the kernels write padding as 0
 * and do not read it.
 *
 * amax of a result that a library stored shows the rounded values only. In FP16 an inf counts as
 * 65520, the smallest magnitude that becomes inf there: the FP32 sum of finite products is finite,
 * so finite operands give an inf only by rounding. */

/* packed = x (NHWC) rounded to the compute type, in the storage type of its operands. */
void ampk_conv_pack(struct ampk_context *, const struct ampk_tensor *x, enum ampk_compute,
                    int padded, void *packed);
/* y (+)= packed; y of any dtype and layout. */
void ampk_conv_unpack(struct ampk_context *, const void *packed, enum ampk_dtype, int padded,
                      const struct ampk_tensor *y, bool accumulate, uint32_t *amax);
/* y = activation(packed + bias) */
void ampk_conv_unpack_activated(struct ampk_context *, const void *packed, enum ampk_dtype,
                                int padded, const float *bias, enum ampk_activation,
                                const struct ampk_tensor *y, uint32_t *amax);
/* Raises amax to the largest of n elements that a library stored. amax NULL: does nothing. */
void ampk_conv_amax(struct ampk_context *, const void *stored, enum ampk_dtype, size_t n,
                    uint32_t *amax);

/* The weights of a convolution: masters are float [k][c][kh][kw], packed weights
 * [padded_k][kh][kw][padded_c]. c counts the channels of one group. */
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
/* Packs all weights of a list, in few launches. */
void ampk_conv_pack_weights(struct ampk_context *, const struct ampk_conv_packing *, int count);

/* Writes numbers to time plans on, within .5 of the mean. They are as good as random, because
 * speed depends on how many bits toggle, and the same for the same n, so that runs compare. */
void ampk_conv_fill(ampk_rt_stream, void *data, enum ampk_dtype, size_t n, float mean);
/* Raises words[0] to the largest |a - b| and words[1] to the largest |a|. Both arrays have so many
 * bytes and are 16-byte aligned. */
void ampk_conv_compare(ampk_rt_stream, const void *a, const void *b, enum ampk_dtype, size_t bytes,
                       uint32_t words[2]);

/* ---- conv_weights.cu: weight gradients, updates ---- */

/* Weight gradients as conv_backward leaves them: packed (conv_layout.cu), the result of a library.
 * One launch watches, stores or adds many of them.
 *
 * The watching kernel also reads the padding. It holds products with zeros: zero, or NaN where the
 * same x or dy already makes other values inf or NaN. */

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

/* The same, and *square (+)= the sum of the squares: of gradients without a dst; of what is stored
 * to dst; of what would be stored if that is read_only. */
struct ampk_conv_squares {
    float factor;
    bool accumulate, read_only;
    bool adds; /* to *square */
    float *square;
};
void ampk_conv_square_gradients(struct ampk_context *, const struct ampk_conv_gradient *, int count,
                                const struct ampk_conv_squares *);

/* Updates convolutions' weights from the gradients that they keep, or from sums: the masters, the
 * optimizer's state and the packed weights, in one pass over all. */

struct ampk_conv_update {
    struct ampk_conv_weights layout;
    enum ampk_compute compute;
    void *packed;          /* the weights; their padding is already 0 */
    const void *gradient;  /* packed; NULL: 0. Both are 16-byte aligned */
    enum ampk_dtype dtype; /* of the gradient */
    const struct ampk_param *param;
    uint32_t *amax;
};
/* kernels.h's conv_update. */
void ampk_conv_update_weights(struct ampk_context *, const struct ampk_rule *,
                              const struct ampk_conv_update *, int count);

/* ---- image_conv.cu: the first convolution ---- */

/* Forward passes of convolutions that read images, by a kernel of ours. It takes x as it is,
 * without padded channels, and takes batch-norm's statistics of y from registers. */

/* Whether the kernel can compute the shape: 16 bits, windows of 3 x 3 by 1, padded by 1, at most 4
 * channels, 8, 16, 24, 32, 48 or 64 filters. */
bool ampk_image_conv_fits(const struct ampk_context *, const struct ampk_conv_shape *);

/* y = conv(x), and the statistics of y as bn_statistics has them. x and y are dense NHWC in the
 * operands' type and 16-byte aligned; weights are packed (conv_layout.cu). */
void ampk_image_conv(struct ampk_context *, const struct ampk_tensor *x, const void *weights,
                     const struct ampk_tensor *y, const struct ampk_bn_statistics *);

/* ---- image_gradient.cu: its weight gradient ---- */

/* Weight gradients of a network's first convolution, with batch-norm's dy in registers: 3x3
 * windows, stride 1, an image of at most 4 channels, 8 to 64 filters in steps of 8; FP16, and BF16
 * from Ampere on.
 *
 * Where x or dy is inf or NaN, more taps may be NaN than those that would read it. */

/* Whether the device has the matrix products and the kernel can read such tensors. */
bool ampk_image_gradient_fits(const struct ampk_context *, const struct ampk_conv_shape *,
                              const struct ampk_tensor *x, const struct ampk_layer_gradient *);
/* Bytes of work memory. */
size_t ampk_image_gradient_work(const struct ampk_tensor *x, int k);
/* kernels.h's conv_bn_backward; dw: FP32, packed. */
void ampk_image_gradient(struct ampk_context *, const struct ampk_conv_weights *,
                         const struct ampk_tensor *x, const struct ampk_layer_gradient *, float *dw,
                         float *dscale, float *dbias, uint32_t *dy_amax, uint32_t *db_amax);

/* ---- plane_gradient.cu: the last convolution ---- */

/* Turns the gradient that a loss hands to the convolution before it into the operand that Tensor
 * Cores read. */

/* Whether ampk_pass_planes takes this gradient: FP32 NCHW, and no activation. */
bool ampk_passes_planes(const struct ampk_bias_gradient *);
/* Bytes of work memory for its sums. */
size_t ampk_plane_sums_bytes(const struct ampk_tensor *d, int padded);
/* dy = factor * d, dense NHWC with `padded` channels, 0 in those that d does not have; and dbias,
 * the sums of dy before rounding. */
void ampk_pass_planes(struct ampk_context *, const struct ampk_bias_gradient *, enum ampk_dtype,
                      int padded, void *dy, void *sums);

#ifdef __cplusplus
}
#endif

#endif
