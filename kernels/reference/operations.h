/* The reference's operations, by file. kernels.h has their shapes, units and rules; operation X is
 * ampk_ref_X, declared here as kernels.h has it and entered in the table by reference.c. */
#ifndef AMPK_REFERENCE_OPERATIONS_H
#define AMPK_REFERENCE_OPERATIONS_H

#include "kernels/kernels.h"

/* clang-format off */
#define AMPK_REF_OPERATIONS(X)                                                                     \
    /* conv.c */ X(conv_create) X(conv_destroy) X(conv_set_weights) X(conv_forward)                \
    X(conv_bias_forward) X(conv_backward) X(conv_takes_gradient) X(conv_bn_backward)               \
    X(conv_weight_gradients)                                                                       \
    /* batchnorm.c */ X(bn_statistics) X(bn_act_forward) X(bn_act_backward)                        \
    X(bn_act_pool_forward) X(bn_act_pool_backward) X(bias_act_backward)                            \
    /* shape.c */ X(maxpool_index_bytes) X(maxpool_forward) X(maxpool_backward)                    \
    X(avgpool_forward) X(avgpool_backward) X(upsample) X(shortcut_forward) X(shortcut_backward)    \
    X(reorg) X(flatten) X(unfold) X(fold)                                                          \
    /* elements.c */ X(convert) X(dropout) X(dropout_draw) X(clip) X(activation_forward)           \
    X(activation_backward) X(inspect) X(amax) X(scale) X(accumulate) X(copy_many) X(sum_squares)   \
    /* update.c */ X(update) X(trust_ratios) X(average_many)                                       \
    /* loss.c */ X(softmax_forward) X(softmax_loss) X(logistic_loss) X(cost_loss)                  \
    X(loss_backward)                                                                               \
    /* yolo.c */ X(yolo_forward) X(yolo_loss) /* region.c */ X(region_forward) X(region_loss)
/* clang-format on */

#define AMPK_REF_DECLARE(name) extern __typeof__(*ampk_reference.name) ampk_ref_##name;
AMPK_REF_OPERATIONS(AMPK_REF_DECLARE)

/* loss.c: softmax of n values, `stride` elements apart. */
void ampk_ref_softmax(const float *x, float *out, int n, size_t stride, double temperature);

/* heads.c: the smallest relative distance between two unequal numbers whose order decided
 * something, since this was last set. If it is small, another precision may decide otherwise, and a
 * test cannot compare. */
extern double ampk_ref_closest_decision;

/* yolo_iou.c: a kind of IoU (not MSE) of two boxes x, y, w, h; beta: DIoU's exponent of the squared
 * distance over the squared diagonal. */
double ampk_ref_iou(enum ampk_box_loss, const double a[4], const double b[4], double beta);
/* The gradient of that kind by which a box p is drawn to a truth t, before the factors that
 * ampk_ref_yolo_loss adds. p's sides are not 0. */
void ampk_ref_box_gradient(enum ampk_box_loss, const double p[4], const double t[4], double g[4]);
/* If not NULL, both compute with every edge moved by this function, so that a test learns what
 * comes of rounding edges. */
extern double (*ampk_ref_move_edge)(double);

#endif
