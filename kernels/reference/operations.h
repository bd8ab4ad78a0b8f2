/* The reference's operations. kernels.h has their shapes, units and rules; ampk_reference in
 * reference.c lists them. One file per group. */
#ifndef AMPK_REFERENCE_OPERATIONS_H
#define AMPK_REFERENCE_OPERATIONS_H

#include "kernels/kernels.h"

/* copy.c */
void ampk_ref_convert(struct ampk_context *, const struct ampk_tensor *src,
                      const struct ampk_tensor *dst, bool accumulate, uint32_t *amax);

/* conv.c */
struct ampk_conv *ampk_ref_conv_create(struct ampk_context *, const struct ampk_conv_shape *,
                                       char *err, size_t err_size);
void ampk_ref_conv_destroy(struct ampk_context *, struct ampk_conv *);
void ampk_ref_conv_set_weights(struct ampk_context *, const struct ampk_new_weights *, int count);
void ampk_ref_conv_forward(struct ampk_context *, struct ampk_conv *, const struct ampk_tensor *x,
                           const struct ampk_tensor *y, const struct ampk_bn_statistics *,
                           uint32_t *amax);
void ampk_ref_conv_bias_forward(struct ampk_context *, struct ampk_conv *,
                                const struct ampk_tensor *x, const float *bias,
                                enum ampk_activation, const struct ampk_tensor *y, uint32_t *amax);
void ampk_ref_conv_backward(struct ampk_context *, struct ampk_conv *, const struct ampk_tensor *x,
                            const struct ampk_tensor *dy, const struct ampk_tensor *dx,
                            bool accumulate, uint32_t *dx_amax);
bool ampk_ref_conv_sums_gradients(struct ampk_context *, struct ampk_conv *, enum ampk_activation);
bool ampk_ref_conv_takes_gradient(struct ampk_context *, struct ampk_conv *,
                                  const struct ampk_tensor *x, const struct ampk_layer_gradient *);
void ampk_ref_conv_bn_backward(struct ampk_context *, struct ampk_conv *,
                               const struct ampk_tensor *x, const struct ampk_layer_gradient *,
                               float *dscale, float *dbias, uint32_t *dy_amax, uint32_t *db_amax);
void ampk_ref_conv_backward_summed(struct ampk_context *, struct ampk_conv *,
                                   const struct ampk_tensor *x, const struct ampk_tensor *dy,
                                   const struct ampk_tensor *g, const struct ampk_gradient_sums *);
void ampk_ref_conv_weight_gradients(struct ampk_context *, const struct ampk_weight_gradient *,
                                    int count, float factor, bool accumulate);

/* batchnorm.c */
void ampk_ref_bn_statistics(struct ampk_context *, const struct ampk_tensor *y,
                            const struct ampk_bn_statistics *);
void ampk_ref_bn_act_forward(struct ampk_context *, const struct ampk_tensor *y,
                             const struct ampk_batchnorm *, enum ampk_activation,
                             const struct ampk_tensor *add, const struct ampk_tensor *out,
                             uint32_t *y_amax, uint32_t *amax);
void ampk_ref_bn_act_backward(struct ampk_context *, const struct ampk_tensor *y,
                              const struct ampk_tensor *out, const struct ampk_batchnorm *,
                              enum ampk_activation, const struct ampk_tensor *d,
                              const struct ampk_tensor *dy, float *dscale, float *dbias,
                              uint32_t *dy_amax, uint32_t *db_amax);
void ampk_ref_bn_backward_summed(struct ampk_context *, const struct ampk_tensor *y,
                                 const struct ampk_batchnorm *, const struct ampk_tensor *g,
                                 const float *sums, const struct ampk_tensor *dy, float *dscale,
                                 float *dbias, uint32_t *dy_amax, uint32_t *db_amax);
/* g = d * activation'(input that forward had from y), in double precision, and the sums of
 * conv_backward_summed. d and g are dense, in NCHW order; g may be d. */
void ampk_ref_bn_sum_gradients(const struct ampk_gradient_sums *, const double *d, double *g);
void ampk_ref_bn_act_pool_forward(struct ampk_context *, const struct ampk_tensor *y,
                                  const struct ampk_batchnorm *, enum ampk_activation,
                                  const struct ampk_tensor *out, void *argmax, uint32_t *y_amax,
                                  uint32_t *amax);
void ampk_ref_bn_act_pool_backward(struct ampk_context *, const struct ampk_tensor *y,
                                   const struct ampk_batchnorm *, enum ampk_activation,
                                   const struct ampk_tensor *d, const void *argmax,
                                   const struct ampk_tensor *dy, float *dscale, float *dbias,
                                   uint32_t *dy_amax, uint32_t *db_amax);
void ampk_ref_bias_act_backward(struct ampk_context *, const struct ampk_tensor *out,
                                enum ampk_activation, const struct ampk_tensor *d,
                                const struct ampk_tensor *dy, float *dbias, uint32_t *dy_amax,
                                uint32_t *db_amax);

/* pool.c */
size_t ampk_ref_maxpool_index_bytes(const struct ampk_tensor *y, int size);
void ampk_ref_maxpool_forward(struct ampk_context *, const struct ampk_tensor *x, int size,
                              int stride, int pad, const struct ampk_tensor *y, void *argmax);
void ampk_ref_maxpool_backward(struct ampk_context *, const struct ampk_tensor *dy,
                               const void *argmax, int size, int stride, int pad,
                               const struct ampk_tensor *dx, bool accumulate, uint32_t *amax);
void ampk_ref_avgpool_forward(struct ampk_context *, const struct ampk_tensor *x,
                              const struct ampk_tensor *y, uint32_t *amax);
void ampk_ref_avgpool_backward(struct ampk_context *, const struct ampk_tensor *dy,
                               const struct ampk_tensor *dx, bool accumulate, uint32_t *amax);

/* shape.c */
void ampk_ref_upsample(struct ampk_context *, const struct ampk_tensor *x, int stride, float scale,
                       bool reverse, const struct ampk_tensor *y, bool accumulate, uint32_t *amax);
void ampk_ref_shortcut_forward(struct ampk_context *, const struct ampk_tensor *x,
                               const struct ampk_tensor *add, float alpha, float beta,
                               enum ampk_activation, const struct ampk_tensor *out, uint32_t *amax);
void ampk_ref_shortcut_backward(struct ampk_context *, const struct ampk_tensor *out,
                                const struct ampk_tensor *d, float alpha, float beta,
                                enum ampk_activation, const struct ampk_tensor *dx,
                                bool dx_accumulate, const struct ampk_tensor *dadd,
                                bool dadd_accumulate, uint32_t *dx_amax, uint32_t *dadd_amax);
void ampk_ref_reorg(struct ampk_context *, const struct ampk_tensor *src, int w, int h, int c,
                    int stride, int forward, const struct ampk_tensor *dst, bool accumulate,
                    uint32_t *amax);
void ampk_ref_flatten(struct ampk_context *, const struct ampk_tensor *src, int size, int layers,
                      int forward, const struct ampk_tensor *dst, bool accumulate, uint32_t *amax);

/* pointwise.c */
void ampk_ref_dropout_draw(struct ampk_context *, const struct ampk_draw *, float probability,
                           uint8_t *keep, size_t n);
void ampk_ref_dropout(struct ampk_context *, const struct ampk_tensor *x, const uint8_t *keep,
                      float scale, const struct ampk_tensor *y, bool accumulate, uint32_t *amax);
void ampk_ref_clip(struct ampk_context *, const struct ampk_tensor *x, float limit);
void ampk_ref_activation_forward(struct ampk_context *, const struct ampk_tensor *x,
                                 enum ampk_activation, const struct ampk_tensor *y, uint32_t *amax);
void ampk_ref_activation_backward(struct ampk_context *, const struct ampk_tensor *out,
                                  enum ampk_activation, const struct ampk_tensor *d,
                                  const struct ampk_tensor *dx, bool accumulate, uint32_t *amax);

/* flat.c */
void ampk_ref_amax(struct ampk_context *, const float *x, size_t n, uint32_t *amax);
void ampk_ref_scale(struct ampk_context *, float *x, size_t n, float factor);
void ampk_ref_accumulate(struct ampk_context *, const float *g, size_t n, float factor, float *sum);
void ampk_ref_copy_many(struct ampk_context *, const struct ampk_span *, int count);
void ampk_ref_update_sgd(struct ampk_context *, const struct ampk_param *, int count,
                         float momentum);
void ampk_ref_update_adam(struct ampk_context *, const struct ampk_param *, int count, float b1,
                          float b2, float eps, int t);

/* inspect.c */
void ampk_ref_inspect(struct ampk_context *, const struct ampk_tensor *x, uint32_t *amax,
                      uint32_t *zeros);
void ampk_ref_sum_squares(struct ampk_context *, const float *x, size_t n, float *sum);

/* yolo.c, region.c */
void ampk_ref_yolo_forward(struct ampk_context *, const struct ampk_yolo_head *,
                           const struct ampk_tensor *x, const struct ampk_tensor *out,
                           uint32_t *amax);
void ampk_ref_yolo_loss(struct ampk_context *, const struct ampk_yolo_head *,
                        const struct ampk_tensor *out, const float *truth, float *delta,
                        struct ampk_loss_sums *, uint32_t *delta_amax);
void ampk_ref_region_forward(struct ampk_context *, const struct ampk_region_head *,
                             const struct ampk_tensor *x, const struct ampk_tensor *out,
                             uint32_t *amax);
void ampk_ref_region_loss(struct ampk_context *, const struct ampk_region_head *,
                          const struct ampk_tensor *out, const float *truth, float *delta,
                          struct ampk_loss_sums *, uint32_t *delta_amax);

/* loss.c */
void ampk_ref_softmax_forward(struct ampk_context *, const struct ampk_softmax *,
                              const struct ampk_tensor *x, const struct ampk_tensor *out,
                              uint32_t *amax);
void ampk_ref_softmax_loss(struct ampk_context *, const struct ampk_tensor *out, const float *truth,
                           bool masked, float *delta, struct ampk_loss_sums *,
                           uint32_t *delta_amax);
void ampk_ref_logistic_loss(struct ampk_context *, const struct ampk_tensor *out,
                            const float *truth, float *delta, struct ampk_loss_sums *,
                            uint32_t *delta_amax);
void ampk_ref_cost_loss(struct ampk_context *, const struct ampk_cost *,
                        const struct ampk_tensor *x, const float *truth,
                        const struct ampk_tensor *out, float *delta, struct ampk_loss_sums *,
                        uint32_t *amax, uint32_t *delta_amax);
void ampk_ref_loss_backward(struct ampk_context *, const float *delta, size_t n, float scale,
                            float *dx, bool accumulate, uint32_t *amax);

#endif
