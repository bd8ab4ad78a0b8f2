/* The table of the reference backend, and its context and memory: no context worth the name, and
 * the C library's memory. The backend is slow, obvious and single-threaded, computes in double
 * precision, and serves tests only.
 *
 * Each result is rounded as kernels.h says, once, so a test may compare a real backend with it to
 * within that backend's own FP32 roundings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operations.h"

/* The reference keeps no state; C wants a member. */
struct ampk_context {
    int unused;
};

static struct ampk_context *context_create(int threads, char *err, size_t err_size)
{
    (void)threads;
    struct ampk_context *context = calloc(1, sizeof *context);
    if (!context) snprintf(err, err_size, "reference backend: no memory for a context");
    return context;
}

static void context_destroy(struct ampk_context *context)
{
    free(context);
}

/* 64 bytes, as the contract demands; at least one unit, so that 0 bytes are no failure. */
static void *alloc_aligned(struct ampk_context *context, size_t bytes)
{
    (void)context;
    size_t rounded = (bytes + 63) / 64 * 64;
    return rounded < bytes ? NULL : aligned_alloc(64, rounded ? rounded : 64);
}

static void free_aligned(struct ampk_context *context, void *memory)
{
    (void)context;
    free(memory);
}

/* Everything is done when it returns, so there is nothing to order. */
static void no_order(struct ampk_context *ctx)
{
    (void)ctx;
}

static void copy_memory(struct ampk_context *context, void *dst, const void *src, size_t bytes)
{
    (void)context;
    memcpy(dst, src, bytes);
}

static void fill_zero(struct ampk_context *context, void *dst, size_t bytes)
{
    (void)context;
    memset(dst, 0, bytes);
}

const struct ampk_backend ampk_reference = {
    .name = "reference",
    .context_create = context_create,
    .context_destroy = context_destroy,
    .alloc = alloc_aligned,
    .free = free_aligned,
    .acquire = no_order,
    .release = no_order,
    .read = copy_memory,
    .write = copy_memory,
    .fill_zero = fill_zero,
    .convert = ampk_ref_convert,
    .conv_create = ampk_ref_conv_create,
    .conv_destroy = ampk_ref_conv_destroy,
    .conv_set_weights = ampk_ref_conv_set_weights,
    .conv_forward = ampk_ref_conv_forward,
    .conv_bias_forward = ampk_ref_conv_bias_forward,
    .conv_backward = ampk_ref_conv_backward,
    .conv_sums_gradients = ampk_ref_conv_sums_gradients,
    .conv_backward_summed = ampk_ref_conv_backward_summed,
    .conv_takes_gradient = ampk_ref_conv_takes_gradient,
    .conv_bn_backward = ampk_ref_conv_bn_backward,
    .conv_weight_gradients = ampk_ref_conv_weight_gradients,
    .bn_statistics = ampk_ref_bn_statistics,
    .bn_act_forward = ampk_ref_bn_act_forward,
    .bn_act_backward = ampk_ref_bn_act_backward,
    .bn_backward_summed = ampk_ref_bn_backward_summed,
    .bn_act_pool_forward = ampk_ref_bn_act_pool_forward,
    .bn_act_pool_backward = ampk_ref_bn_act_pool_backward,
    .bias_act_backward = ampk_ref_bias_act_backward,
    .maxpool_index_bytes = ampk_ref_maxpool_index_bytes,
    .maxpool_forward = ampk_ref_maxpool_forward,
    .maxpool_backward = ampk_ref_maxpool_backward,
    .upsample = ampk_ref_upsample,
    .shortcut_forward = ampk_ref_shortcut_forward,
    .shortcut_backward = ampk_ref_shortcut_backward,
    .reorg = ampk_ref_reorg,
    .flatten = ampk_ref_flatten,
    .avgpool_forward = ampk_ref_avgpool_forward,
    .avgpool_backward = ampk_ref_avgpool_backward,
    .dropout = ampk_ref_dropout,
    .clip = ampk_ref_clip,
    .dropout_draw = ampk_ref_dropout_draw,
    .activation_forward = ampk_ref_activation_forward,
    .activation_backward = ampk_ref_activation_backward,
    .amax = ampk_ref_amax,
    .scale = ampk_ref_scale,
    .accumulate = ampk_ref_accumulate,
    .copy_many = ampk_ref_copy_many,
    .update_sgd = ampk_ref_update_sgd,
    .update_adam = ampk_ref_update_adam,
    .inspect = ampk_ref_inspect,
    .sum_squares = ampk_ref_sum_squares,
    .yolo_forward = ampk_ref_yolo_forward,
    .yolo_loss = ampk_ref_yolo_loss,
    .region_forward = ampk_ref_region_forward,
    .region_loss = ampk_ref_region_loss,
    .softmax_forward = ampk_ref_softmax_forward,
    .softmax_loss = ampk_ref_softmax_loss,
    .logistic_loss = ampk_ref_logistic_loss,
    .cost_loss = ampk_ref_cost_loss,
    .loss_backward = ampk_ref_loss_backward,
};
