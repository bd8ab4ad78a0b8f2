/* What follows from a convolution's shape in every backend. */
#ifndef AMPK_CONV_SHAPE_H
#define AMPK_CONV_SHAPE_H

#include "kernels.h"

/* NULL if the shape can be computed, else what is wrong with it. */
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

/* A side of the output, from the input's. */
static inline int ampk_conv_out(const struct ampk_conv_shape *s, int side, int window)
{
    return (side + 2 * s->pad - window) / s->stride + 1;
}

static inline size_t ampk_conv_weight_count(const struct ampk_conv_shape *s)
{
    return (size_t)s->k * (s->c / s->groups) * s->kh * s->kw;
}

#endif
