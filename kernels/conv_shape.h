/* Facts that every backend derives from a convolution's shape. */
#ifndef AMPK_CONV_SHAPE_H
#define AMPK_CONV_SHAPE_H

#include "kernels.h"

/* NULL if the shape can be computed, else the fault in words. The checks come before any size is
 * computed from the shape, because a stride or a group count of 0 would divide by 0. */
static inline const char *ampk_conv_shape_fault(const struct ampk_conv_shape *s)
{
    if (s->n < 1 || s->c < 1 || s->h < 1 || s->w < 1 || s->k < 1) return "an empty tensor";
    if (s->kh < 1 || s->kw < 1 || s->stride < 1 || s->pad < 0) return "an impossible window";
    if (s->groups < 1 || s->c % s->groups || s->k % s->groups)
        return "groups that do not divide the channels";
    if (s->h + 2 * s->pad < s->kh || s->w + 2 * s->pad < s->kw)
        return "a window larger than the padded input";
    return NULL;
}

/* A side of the output (height or width) from the same side of the input and of the window. */
static inline int ampk_conv_out(const struct ampk_conv_shape *s, int side, int window)
{
    return (side + 2 * s->pad - window) / s->stride + 1;
}

/* One image of what the forward operations write. */
struct ampk_conv_result {
    int c, h, w;
};

static inline struct ampk_conv_result ampk_conv_result(const struct ampk_conv_shape *s)
{
    if (s->transposed) return (struct ampk_conv_result){s->c, s->h, s->w};
    return (struct ampk_conv_result){s->k, ampk_conv_out(s, s->h, s->kh),
                                     ampk_conv_out(s, s->w, s->kw)};
}

/* Master weights: float [k][c/groups][kh][kw]. */
static inline size_t ampk_conv_weight_count(const struct ampk_conv_shape *s)
{
    return (size_t)s->k * (s->c / s->groups) * s->kh * s->kw;
}

#endif
