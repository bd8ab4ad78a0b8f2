/* Computes padded channels and library problems from convolution shapes, and decides which
 * problems are matrix products, which ones Tensor Cores can take, and how far two right results may
 * be apart. Must not know devices, libraries or plans: tests call it without a GPU. */
#include "tensor_core.h"

#include <math.h>

int ampk_conv_padded(const struct ampk_conv_shape *s, int channels)
{
    int multiple = 16 / (int)ampk_dtype_bytes(ampk_tc_operand(s->compute));
    return s->groups > 1 ? channels : (channels + multiple - 1) / multiple * multiple;
}

struct ampk_tc_problem ampk_conv_problem(const struct ampk_conv_shape *s, enum ampk_tc_pass pass,
                                         enum ampk_dtype result, bool accumulate)
{
    return (struct ampk_tc_problem){.pass = pass,
                                    .n = s->n,
                                    .c = ampk_conv_padded(s, s->c),
                                    .h = s->h,
                                    .w = s->w,
                                    .k = ampk_conv_padded(s, s->k),
                                    .kh = s->kh,
                                    .kw = s->kw,
                                    .stride = s->stride,
                                    .pad = s->pad,
                                    .groups = s->groups,
                                    .compute = s->compute,
                                    .result = result,
                                    .accumulate = accumulate};
}

/* Two shapes qualify: 1x1 windows by 1 (each pixel is a row) and windows of a whole image (each
 * image is a row: connected layers). Of the former also groups, if each begins where every address
 * has to. */
bool ampk_tc_is_matrix(const struct ampk_tc_problem *p, struct ampk_tc_matrix *m)
{
    if (p->pad) return false;
    int multiple = 16 / (int)ampk_dtype_bytes(ampk_tc_operand(p->compute));
    int c = p->c / p->groups, k = p->k / p->groups;
    bool pixels = p->kh == 1 && p->kw == 1 && p->stride == 1;
    bool image = p->kh == p->h && p->kw == p->w && p->groups == 1;
    bool aligned = p->groups == 1 || (c % multiple == 0 && k % multiple == 0);
    if (!(pixels && aligned) && !image) return false;
    m->rows = image ? (size_t)p->n : (size_t)p->n * p->h * p->w;
    m->depth = c * p->kh * p->kw;
    m->columns = k;
    m->count = p->groups;
    return true;
}

/* The order of the tests decides the reason that a user reads: first what no GPU can do, then what
 * this GPU cannot do, then what the shape forbids. */
const char *ampk_tc_obstacle(const struct ampk_tc_problem *p, int compute_capability)
{
    int multiple = 16 / (int)ampk_dtype_bytes(ampk_tc_operand(p->compute));
    if (p->compute == AMPK_COMPUTE_FP32) return "FP32 products are not for Tensor Cores";
    if (compute_capability < 80 && p->compute != AMPK_COMPUTE_FP16)
        return "before Ampere (compute capability 8.0) Tensor Cores read FP16 only";
    if (p->groups > 1 && (p->c / p->groups % multiple || p->k / p->groups % multiple))
        return "channels of a group are not a multiple of 16 bytes";
    return NULL;
}

/* Each engine rounds to 16 bits once. It also rounds its sums of so many products, which adds up to
 * 2^-21 of the root of their number, with no common direction. Tensor Cores cut instead of
 * rounding, some sixteen products at a time by 2^-23. Of TF32 operands one engine may cut what
 * another rounds, by 2^-10 each. At most a sixteenth in all. */
double ampk_tc_slack(const struct ampk_tc_problem *p)
{
    double taps = (double)p->kh * p->kw, groups = p->groups;
    double pixels = (double)p->n * ampk_tc_out(p, p->h, p->kh) * ampk_tc_out(p, p->w, p->kw);
    double products = p->pass == AMPK_TC_FORWARD ? taps * p->c / groups
                      : p->pass == AMPK_TC_DATA  ? taps * p->k / groups
                                                 : pixels;
    double step = p->result == AMPK_FP16 || p->compute == AMPK_COMPUTE_TF32 ? 0x1p-10
                  : p->result == AMPK_BF16                                  ? 0x1p-7
                                                                            : 0;
    return fmin(2 * step + 0x1p-20 * sqrt(products) + 0x1p-27 * products, 0x1p-4);
}
