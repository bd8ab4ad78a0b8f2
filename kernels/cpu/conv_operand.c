/* What a task of a convolution reads, cast to what is multiplied. */
#include "conv.h"

#include <string.h>

void ampk_conv_load_rows(struct ampk_context *ctx, const struct ampk_conv *conv,
                         const struct operand *o, void *dst)
{
    const struct ampk_tensor *t = o->t;
    int begin = ampk_smaller(ampk_larger(o->first, 0), o->first + o->rows);
    int end = ampk_larger(ampk_smaller(o->first + o->rows, t->h), begin);
    size_t row = (size_t)t->w * o->padded * ampk_operand_bytes(conv);
    size_t above = (size_t)(begin - o->first), inside = (size_t)(end - begin);
    size_t below = (size_t)(o->first + o->rows - end);
    char *to = (char *)dst + above * row;
    memset(dst, 0, above * row);
    const void *from =
        inside ? ampk_at(t, o->image, (size_t)begin * t->w * t->c + o->channel) : NULL;
    if (inside && conv->bf16)
        ctx->isa->rows.load_bf16((uint16_t *)to, (size_t)o->padded, from, t->dtype, inside * t->w,
                                 (size_t)o->channels, (size_t)t->c);
    else if (inside)
        ctx->isa->rows.load((float *)to, from, t->dtype, inside * t->w, (size_t)o->channels,
                            (size_t)t->c, conv->shape.compute);
    memset(to + inside * row, 0, below * row);
}
