/* A convolution of the CPU backend. conv_create.c cuts its work and makes it, conv.c runs its
 * passes, conv_weights.c takes its weights in and gives its weight gradient out. */
#ifndef AMPK_CPU_CONV_H
#define AMPK_CPU_CONV_H

#include "cpu.h"
#include "dnnl_compat.h"

/* How the rows of the tensor that a pass writes are cut, and which rows of the other it needs. */
struct bands {
    int count, rows; /* the last band may be shorter */
    int in_rows;     /* of the other tensor; band i's first is i*in_step - in_offset */
    int in_step, in_offset;
    int pad_top, pad_bottom; /* what is left to oneDNN */
};

/* Forward or data gradient: y from x, or dx from dy. */
struct pass {
    struct bands bands;
    int slices;
    struct ampk_dnnl_plan *plan; /* one unit, one slice */
    struct ampk_dnnl_weights **weights;
};

struct gradient {
    struct bands bands; /* of dy; the other tensor is x */
    int slices_k, slices_c;
    int units, groups; /* units in a task, groups of so many */
    struct ampk_dnnl_plan *plan;
    struct ampk_dnnl_weights **partial; /* [slices_k * slices_c][groups] */
    bool added;                         /* to the first of each tile, which is then its gradient */
    uint32_t amax;                      /* of that */
};

struct ampk_conv {
    struct ampk_conv_shape shape;
    int filters; /* that oneDNN sees: k, or more. The weights of those above k are 0. */
    int oh, ow;
    struct pass forward, data; /* data and gradient have no plan if forward_only */
    struct gradient gradient;
    bool bf16;         /* oneDNN multiplies BF16: what it reads is not FP32 */
    size_t lane_bytes; /* a thread's memory: operands and oneDNN's scratch memory */
};

static inline int ampk_smaller(int a, int b)
{
    return a < b ? a : b;
}

static inline int ampk_larger(int a, int b)
{
    return a > b ? a : b;
}

/* Bytes of whole cache lines, so that threads do not write to the same one. */
static inline size_t ampk_whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Bytes of one value that oneDNN reads. */
static inline size_t ampk_operand_bytes(const struct ampk_conv *conv)
{
    return conv->bf16 ? sizeof(uint16_t) : sizeof(float);
}

/* Batch-norm's partial sums: two per filter and unit. */
static inline size_t ampk_conv_sums_bytes(const struct ampk_conv *conv)
{
    return (size_t)conv->shape.n * conv->forward.bands.count * 2 * conv->shape.k * sizeof(float);
}

/* As oneDNN sees them. */
size_t ampk_cpu_conv_padded_weights(const struct ampk_conv *);
/* Bytes of work memory that conv_weights.c takes. */
size_t ampk_conv_weights_memory(const struct ampk_context *, const struct ampk_conv *);

#endif
