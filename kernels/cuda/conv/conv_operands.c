/* Between tensors and weights and what the libraries read and write. Decides which operands and
 * results of a convolution a library can take as they are, and finds places in work memory for the
 * others; turns lists of convolutions into the lists that our kernels of weights read. Must not run
 * library plans: conv.c does. */
#include "conv.h"

#include "kernels/cuda/runtime/backend.h"

enum {
    ALIGNMENT = 16,            /* bytes, of operands: tensor_core.h demands it */
    WORKSPACE_ALIGNMENT = 256, /* bytes, of every piece of work memory */
};

/* With one pixel per image, NCHW and NHWC are the same order. With one image, the distance between
 * images does not matter. */
bool ampk_conv_is_direct(const struct ampk_tensor *t, enum ampk_dtype dtype, int padded)
{
    bool is_nhwc = t->layout == AMPK_NHWC || t->h * t->w == 1;
    return t->dtype == dtype && is_nhwc && t->c == padded && (uintptr_t)t->data % ALIGNMENT == 0 &&
           ampk_pitch(t) == t->c && (t->n == 1 || t->image_stride == (size_t)t->c * t->h * t->w);
}

size_t ampk_conv_place(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used += (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    return at;
}

size_t ampk_conv_place_workspace(const struct ampk_tc_plan *plan, size_t *used)
{
    return ampk_conv_place(used, ampk_tc_plan_info(plan).workspace);
}

static size_t packed_bytes(const struct ampk_tensor *t, int padded, enum ampk_dtype dtype)
{
    return (size_t)t->n * t->h * t->w * padded * ampk_dtype_bytes(dtype);
}

size_t ampk_conv_place_operand(const struct ampk_conv *conv, size_t *used,
                               const struct ampk_tensor *t, int padded)
{
    bool direct = ampk_conv_is_direct(t, conv->operand, padded);
    return ampk_conv_place(used, direct ? 0 : packed_bytes(t, padded, conv->operand));
}

const void *ampk_conv_load_operand(struct ampk_context *ctx, const struct ampk_conv *conv,
                                   const struct ampk_tensor *t, int padded, void *place)
{
    if (ampk_conv_is_direct(t, conv->operand, padded)) return t->data;
    ampk_conv_pack(ctx, t, conv->shape.compute, padded, place);
    return place;
}

size_t ampk_conv_place_output(const struct ampk_conv_output *o, size_t *used,
                              const struct ampk_tensor *y, int padded)
{
    return ampk_conv_place(used, o->direct ? 0 : packed_bytes(y, padded, o->dtype));
}

void ampk_conv_store_output(struct ampk_context *ctx, const struct ampk_conv_output *o,
                            const void *packed, const struct ampk_tensor *y, int padded,
                            bool accumulate, uint32_t *amax)
{
    if (o->direct)
        ampk_conv_amax(ctx, y->data, y->dtype, (size_t)y->n * y->c * y->h * y->w, amax);
    else
        ampk_conv_unpack(ctx, packed, o->dtype, padded, y, accumulate, amax);
}

/* ---- lists of weights ---- */

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
     * by what fits their arguments (ops/device.h). */
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

enum { GRADIENTS_AT_ONCE = 256 };

/* Describes the first GRADIENTS_AT_ONCE gradients of a list; returns how many it described. */
static int describe_gradients(const struct ampk_weight_gradient *list, int count,
                              struct ampk_conv_gradient gradients[GRADIENTS_AT_ONCE])
{
    int n = count < GRADIENTS_AT_ONCE ? count : GRADIENTS_AT_ONCE;
    for (int i = 0; i < n; i++) {
        const struct ampk_conv *conv = list[i].conv;
        gradients[i] = (struct ampk_conv_gradient){ampk_conv_weights_layout(conv), conv->gradient,
                                                   conv->dw, list[i].dst, list[i].amax};
    }
    return n;
}

void ampk_cuda_conv_weight_gradients(struct ampk_context *ctx,
                                     const struct ampk_weight_gradient *list, int count,
                                     float factor, bool accumulate)
{
    struct ampk_conv_gradient gradients[GRADIENTS_AT_ONCE];
    for (int n = 0; count > 0; list += n, count -= n) {
        n = describe_gradients(list, count, gradients);
        ampk_conv_take_gradients(ctx, gradients, n, factor, accumulate);
    }
}

/* What no convolution keeps goes first, as the gradient of one whose two orders are the same. */
void ampk_cuda_conv_gradient_squares(struct ampk_context *ctx,
                                     const struct ampk_weight_gradient *list, int count,
                                     const struct ampk_gradient_squares *s)
{
    bool sums = s->sums != NULL;
    int n = (int)s->n;
    struct ampk_conv_squares how = {.factor = sums ? s->factor : 1,
                                    .accumulate = sums && s->accumulate,
                                    .read_only = sums,
                                    .square = s->square};
    struct ampk_conv_gradient gradients[GRADIENTS_AT_ONCE + 1];
    gradients[0] = (struct ampk_conv_gradient){.layout = {1, n, 1, 1, n},
                                               .dtype = AMPK_FP32,
                                               .packed = s->others,
                                               .dst = sums ? s->others_sum : NULL};
    int first = 0, others = n > 0;
    do {
        int taken = describe_gradients(list + first, count - first, gradients + others);
        for (int i = 0; i < taken && sums; i++)
            gradients[others + i].dst = s->sums[first + i].dst;
        ampk_conv_square_gradients(ctx, gradients, others + taken, &how);
        how.adds = true;
        first += taken;
        others = 0;
    } while (first < count);
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

void ampk_cuda_conv_update(struct ampk_context *ctx, const struct ampk_rule *rule,
                           const struct ampk_weight_update *list, int count)
{
    struct ampk_conv_update updates[UPDATES_AT_ONCE];
    for (int n = 0; count > 0; list += n, count -= n) {
        n = describe_updates(list, count, updates);
        ampk_conv_update_weights(ctx, rule, updates, n);
    }
}
