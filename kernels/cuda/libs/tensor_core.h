/* What the CUDA backend asks of the libraries that drive Tensor Cores: one pass of a convolution on
 * packed operands.
 *
 * Two implementations: plans.c on cuDNN and cuBLASLt, and
 * tests/emulation/tensor_core_host.c, plain loops on the host's memory. Padding, packing, scratch
 * memory and what is asked for in which type is above this line (conv*.c) and the same with both.
 *
 * Operands. x [n][h][w][c] and y [n][oh][ow][k] are dense, weights are [k][kh][kw][c/groups]; c and
 * k count padding (conv_problem.h). x, dy and weights are stored in ampk_tc_operand(compute) and
 * already rounded to the compute type, but for TF32, where the library rounds x and dy as the
 * hardware does. Every address is a multiple of 16 bytes. Products are summed in FP32 and rounded
 * to the type of the result once.
 */
#ifndef AMPK_CUDA_TENSOR_CORE_H
#define AMPK_CUDA_TENSOR_CORE_H

#include "kernels/kernels.h"
#include "kernels/cuda/runtime/runtime.h"

enum ampk_tc_pass {
    AMPK_TC_FORWARD, /* y = conv(x, weights) */
    AMPK_TC_DATA,    /* dx (+)= gradient(dy, weights) */
    AMPK_TC_WEIGHTS, /* dw = gradient(x, dy) */
};

struct ampk_tc_problem {
    enum ampk_tc_pass pass;
    int n, c, h, w, k, kh, kw, stride, pad, groups;
    enum ampk_compute compute;
    enum ampk_dtype result; /* ampk_tc_operand(compute) or AMPK_FP32 */
    bool accumulate;        /* AMPK_TC_DATA only */
    bool sums;              /* for batch-norm, ampk_tc_sums; not of weight gradients */
    float slope;            /* of a data gradient with sums: the activation's, where negative */
};

enum {
    AMPK_TC_SUMS = 2,
    AMPK_TC_UNREAD = 3,
    AMPK_TC_PARAMETERS = 4,
};

/* What a problem with sums has besides: vectors of its result's channels, one behind the other.
 *
 * Forward: sums over all pixels of y and of its squares, as stored or before they were rounded.
 *
 * Data gradient: the result is g, the gradient at the output of the batch-norm that x comes from by
 * an activation of two slopes; the sums are those of g and of g * p1 * (y - p0), as stored or
 * before it was rounded. The activation's gradient is told by the sign of what was put into it,
 * ((y - p0) * p1) * p2 + p3, where y is what batch-norm read, stored as x is, p the parameters. */
struct ampk_tc_sums {
    float *sums; /* AMPK_TC_SUMS vectors */
    const void *y;
    const float *parameters; /* AMPK_TC_PARAMETERS vectors */
    float *unread;           /* AMPK_TC_UNREAD vectors, what a library also writes */
};

static inline enum ampk_dtype ampk_tc_operand(enum ampk_compute compute)
{
    return compute == AMPK_COMPUTE_FP16   ? AMPK_FP16
           : compute == AMPK_COMPUTE_BF16 ? AMPK_BF16
                                          : AMPK_FP32;
}

static inline int ampk_tc_out(const struct ampk_tc_problem *p, int side, int window)
{
    return (side + 2 * p->pad - window) / p->stride + 1;
}

/* Of the vectors of ampk_tc_sums; 0: the problem has no sums. */
static inline int ampk_tc_summed_channels(const struct ampk_tc_problem *p)
{
    return !p->sums ? 0 : p->pass == AMPK_TC_DATA ? p->c : p->k;
}

/* The libraries on one device, their handles, and the plans found fastest there. */
struct ampk_tc;
/* One problem, planned. */
struct ampk_tc_plan;

struct ampk_tc_settings {
    size_t workspace_limit; /* the most a plan may ask for; less where a library can do with less */
    const char *cache;      /* file of plans (plan_cache.h), NULL: none */
    bool search;            /* on from what the library names, among the settings of its engines */
    bool untimed; /* what is not in the cache is computed as the library expects to be fast, and on
                     one stream */
};

/* NULL with the reason in err. */
struct ampk_tc *ampk_tc_create(const struct ampk_rt_device *, const struct ampk_tc_settings *,
                               char *err, size_t err_size);
/* With all its plans. */
void ampk_tc_destroy(struct ampk_tc *);

/* The fastest way to compute this problem: as the cache knows it, else timed now on that stream, in
 * memory taken for it (if there is none: as the library expects). The plan is kept to the end, so
 * that the same problem costs nothing the next time. NULL with the reason if there is no way. */
struct ampk_tc_plan *ampk_tc_plan_create(struct ampk_tc *, const struct ampk_tc_problem *,
                                         ampk_rt_stream, char *why, size_t why_size);

struct ampk_tc_plan_info {
    size_t workspace;            /* bytes that run needs */
    float ms;                    /* 0: not timed */
    const char *no_tensor_cores; /* why not; NULL: it uses them */
};
struct ampk_tc_plan_info ampk_tc_plan_info(const struct ampk_tc_plan *);

/* Whether a convolution's gradients are computed sooner beside each other, that of the weights on
 * `side`, than one after the other: as the cache knows it, else timed now. False where that is not
 * wanted, there is no memory for it, or a plan was not timed itself. */
bool ampk_tc_pays_beside(struct ampk_tc *, const struct ampk_tc_plan *data,
                         const struct ampk_tc_plan *weights, ampk_rt_stream, ampk_rt_stream side);

/* Whether a forward pass and batch-norm's statistics come sooner by a plan with sums than by one
 * without and a kernel that reads y: as the cache knows it, else timed now on the context's stream.
 * False also where it was not timed, for the reasons above, or the sums were found wrong. */
bool ampk_tc_pays_sums(struct ampk_context *, const struct ampk_tc_plan *apart,
                       const struct ampk_tc_plan *summed);

/* Whether the kernel for images (image_conv.cu) computes a forward pass and its statistics sooner,
 * from x of `channels`, than packing x, this plan and, if it has no sums, a kernel that reads y:
 * likewise. */
bool ampk_tc_pays_image(struct ampk_context *, const struct ampk_tc_plan *usual, int channels);

/* As ampk_tc_pays_sums, of a data gradient and what is left of batch-norm's backward, after this
 * activation. */
bool ampk_tc_pays_gradient_sums(struct ampk_context *, const struct ampk_tc_plan *apart,
                                const struct ampk_tc_plan *summed, enum ampk_activation);

/* Whether batch-norm's backward and the weight gradient of a network's first convolution come
 * sooner by the kernel of image_gradient.cu than by this plan and the kernels around it, from a
 * gradient like this. False as above, also where the kernel's weight gradient was found wrong. */
bool ampk_tc_pays_image_gradient(struct ampk_context *, const struct ampk_tc_plan *weights,
                                 const struct ampk_conv_shape *,
                                 const struct ampk_layer_gradient *);

/* result (+)= the pass of two operands: forward x and weights; data gradient dy and weights; weight
 * gradient x and dy. sums: of a problem that has them, else NULL. workspace: 256-byte aligned. A
 * library that fails here aborts the program with a message. */
void ampk_tc_run(struct ampk_tc *, const struct ampk_tc_plan *, const void *first,
                 const void *second, void *result, const struct ampk_tc_sums *, void *workspace,
                 ampk_rt_stream);

#endif
