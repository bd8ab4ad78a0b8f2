/* Decides which operands and results of a convolution a library can take as they are, and finds
 * places in work memory for the others. Must not run library plans: conv.c does. */
#include "conv.h"

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

size_t ampk_conv_place_vectors(size_t *used, int count, int channels)
{
    return ampk_conv_place(used, (size_t)count * channels * sizeof(float));
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

/* First choice: the library writes y itself. That needs a dense y without padding, of a type that
 * a plan writes. Otherwise the library writes work memory, and a kernel moves the result to y. */
struct ampk_conv_output ampk_conv_choose_output(struct ampk_context *ctx, struct ampk_conv *conv,
                                                enum ampk_tc_pass pass, const struct ampk_tensor *y,
                                                int padded, bool accumulate)
{
    char why[400];
    bool direct =
        ampk_conv_is_direct(y, conv->operand, padded) || ampk_conv_is_direct(y, AMPK_FP32, padded);
    struct ampk_conv_output o = {.dtype = y->dtype};
    if (direct)
        o.plan = ampk_conv_find_plan(ctx, conv, pass, y->dtype, accumulate, why, sizeof why);
    o.direct = o.plan != NULL;
    if (o.direct) return o;
    /* The result must be rounded once only. So the library writes FP32 if it can, and the kernel
     * that stores y rounds. If y has the operands' type and nothing is added, the library may
     * round instead, and the kernel only moves 16-bit values. */
    o.dtype = y->dtype == conv->operand && !accumulate ? conv->operand : AMPK_FP32;
    o.plan = ampk_conv_find_plan_like(ctx, conv, pass, &o.dtype);
    return o;
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
