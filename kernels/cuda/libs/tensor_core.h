/* The work that the libraries for Tensor Cores do for the CUDA backend: one pass of a convolution
 * on packed operands.
 *
 * Two implementations: plans.c on cuDNN and cuBLASLt, and tests/emulation/tensor_core_host.c,
 * plain loops on the host's memory. Everything above this line (conv*.c) is the same with both:
 * padding, packing, scratch memory, and the type in which a result is asked for.
 *
 * Operands. x [n][h][w][c] and y [n][oh][ow][k] are dense, weights are [k][kh][kw][c/groups]; c
 * and k count padding (ampk_conv_padded). x, dy and weights are stored in ampk_tc_operand(compute)
 * and already rounded to the compute type. Exception: with TF32 the library rounds x and dy as the
 * hardware does. Every address is a multiple of 16 bytes. Products are summed in FP32 and rounded
 * to the type of the result once.
 *
 * From shape to run: ampk_tc_plan_create returns the plan that the plan file names for a problem,
 * or times the engines and stores the fastest in the file; ampk_tc_run runs one. */
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

/* ---- problem.c: needs no GPU, so tests can ask what training any net would need ---- */

/* Channels as stored for the library, rounded up to the next multiple of 16 bytes, which Tensor
 * Cores need. Grouped convolutions stay unpadded: padding each group would take gaps in x and y. */
int ampk_conv_padded(const struct ampk_conv_shape *, int channels);

/* One pass of the convolution, with padded channels. */
struct ampk_tc_problem ampk_conv_problem(const struct ampk_conv_shape *, enum ampk_tc_pass,
                                         enum ampk_dtype result, bool accumulate);

/* A convolution in which every output reads each input value at most once is one matrix product:
 * in the forward pass, rows x depth times depth x columns. */
struct ampk_tc_matrix {
    size_t rows;        /* images, or images times pixels */
    int depth, columns; /* input and output values of one row, in one group */
    int count;          /* of such products: groups, which lie side by side in a row of x and y */
};
/* False if the problem is no matrix product. */
bool ampk_tc_is_matrix(const struct ampk_tc_problem *, struct ampk_tc_matrix *);

/* NULL if Tensor Cores can compute the problem on a device of this compute capability (10 * major
 * + minor), else the reason why they cannot. */
const char *ampk_tc_obstacle(const struct ampk_tc_problem *, int compute_capability);

/* How far the results of two engines may be apart, relative to the largest value. */
double ampk_tc_slack(const struct ampk_tc_problem *);

/* ---- plans ---- */

/* The libraries on one device, their handles, and the plans found fastest there. */
struct ampk_tc;
/* One problem, planned. */
struct ampk_tc_plan;

struct ampk_tc_settings {
    size_t workspace_limit; /* bytes that a plan may ask for at most (engine.c may lower it) */
    const char *cache;      /* file of plans (plan_cache.h), NULL: none */
    bool search;  /* go on from what the library names, to other settings of its engines */
    bool untimed; /* do not time: take what the library expects to be fast for problems that are not
                     in the cache */
};

/* NULL with the reason in err. */
struct ampk_tc *ampk_tc_create(const struct ampk_rt_device *, const struct ampk_tc_settings *,
                               char *err, size_t err_size);
/* Destroys its plans, too. */
void ampk_tc_destroy(struct ampk_tc *);
/* Prints how much was timed since it last said so, and how long that took; nothing if nothing was.
 */
void ampk_tc_say_timed(struct ampk_tc *);

/* The fastest way to compute this problem. If the cache does not know it, times all ways now, on
 * that stream, in memory taken for it; without memory, takes the way that the library expects to
 * be fast. The plan lives as long as ampk_tc, so the same problem costs nothing the next time.
 * NULL with the reason if no library can compute it. */
struct ampk_tc_plan *ampk_tc_plan_create(struct ampk_tc *, const struct ampk_tc_problem *,
                                         ampk_rt_stream, char *why, size_t why_size);

struct ampk_tc_plan_info {
    size_t workspace;            /* bytes that run needs */
    float ms;                    /* 0: not timed */
    const char *no_tensor_cores; /* why not; NULL: it uses them */
};
struct ampk_tc_plan_info ampk_tc_plan_info(const struct ampk_tc_plan *);

/* result (+)= the pass of two operands. Forward: x and weights. Data gradient: dy and weights.
 * Weight gradient: x and dy. workspace: 256-byte aligned. A library that fails here aborts the
 * program with a message. */
void ampk_tc_run(struct ampk_tc *, const struct ampk_tc_plan *, const void *first,
                 const void *second, void *result, void *workspace, ampk_rt_stream);

#endif
