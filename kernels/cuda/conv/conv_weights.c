/* Turns lists of convolutions into lists that our kernels read: weights to pack, gradients to
 * take, updates. Computes nothing itself, and knows neither plans nor work memory. */
#include "conv.h"

#include "kernels/cuda/runtime/backend.h"
#include "conv_kernels.h"

size_t ampk_conv_padded_weights(const struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    return (size_t)conv->padded_k * (conv->padded_c / s->groups) * s->kh * s->kw;
}

struct ampk_conv_weights ampk_conv_weights_layout(const struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    return (struct ampk_conv_weights){.k = s->k,
                                      .c = s->c / s->groups,
                                      .taps = s->kh * s->kw,
                                      .padded_k = conv->padded_k,
                                      .padded_c = conv->padded_c / s->groups};
}

void ampk_cuda_conv_set_weights(struct ampk_context *ctx, const struct ampk_new_weights *list,
                                int count)
{
    /* The host array is bounded so that no list length needs memory; the kernels split it further,
     * by what fits their arguments (ops/list.h). */
    enum { AT_ONCE = 64 };
    struct ampk_conv_packing packings[AT_ONCE];
    for (int n = 0; count > 0; list += n, count -= n) {
        n = count < AT_ONCE ? count : AT_ONCE;
        for (int i = 0; i < n; i++) {
            const struct ampk_conv *conv = list[i].conv;
            packings[i] =
                (struct ampk_conv_packing){ampk_conv_weights_layout(conv), conv->shape.compute,
                                           list[i].weights, conv->weights, list[i].amax};
        }
        ampk_conv_pack_weights(ctx, packings, n);
    }
}

void ampk_cuda_conv_weight_gradients(struct ampk_context *ctx,
                                     const struct ampk_weight_gradient *list, int count,
                                     float factor, bool accumulate)
{
    enum { AT_ONCE = 256 };
    struct ampk_conv_gradient gradients[AT_ONCE];
    for (int n = 0; count > 0; list += n, count -= n) {
        n = count < AT_ONCE ? count : AT_ONCE;
        for (int i = 0; i < n; i++) {
            const struct ampk_conv *conv = list[i].conv;
            gradients[i] =
                (struct ampk_conv_gradient){ampk_conv_weights_layout(conv), conv->gradient,
                                            conv->dw, list[i].dst, list[i].amax};
        }
        ampk_conv_take_gradients(ctx, gradients, n, factor, accumulate);
    }
}

enum { UPDATES_AT_ONCE = 128 };

/* Describes the first UPDATES_AT_ONCE updates of a list; returns how many it described. With
 * unscale 0 the gradient counts as 0, so the kernel gets none to read. */
static int describe_updates(const struct ampk_weight_update *list, int count,
                            struct ampk_conv_update updates[UPDATES_AT_ONCE])
{
    int n = count < UPDATES_AT_ONCE ? count : UPDATES_AT_ONCE;
    for (int i = 0; i < n; i++) {
        const struct ampk_conv *conv = list[i].conv;
        updates[i] = (struct ampk_conv_update){ampk_conv_weights_layout(conv),
                                               conv->shape.compute,
                                               conv->weights,
                                               list[i].param.unscale != 0 ? conv->dw : NULL,
                                               conv->gradient,
                                               &list[i].param,
                                               list[i].amax};
    }
    return n;
}

void ampk_cuda_conv_update_sgd(struct ampk_context *ctx, const struct ampk_weight_update *list,
                               int count, float momentum)
{
    struct ampk_conv_update updates[UPDATES_AT_ONCE];
    for (int n = 0; count > 0; list += n, count -= n) {
        n = describe_updates(list, count, updates);
        ampk_conv_update_by_sgd(ctx, updates, n, momentum);
    }
}

void ampk_cuda_conv_update_adam(struct ampk_context *ctx, const struct ampk_weight_update *list,
                                int count, float b1, float b2, float eps, int t)
{
    struct ampk_conv_update updates[UPDATES_AT_ONCE];
    for (int n = 0; count > 0; list += n, count -= n) {
        n = describe_updates(list, count, updates);
        ampk_conv_update_by_adam(ctx, updates, n, b1, b2, eps, t);
    }
}
