/* Convolutions of the CUDA backend: the operations of kernels.h on top of tensor_core.h.
 *
 * conv_problem  what padded problems a shape makes
 * conv.c        creation and the passes
 * conv_choice   which plans a convolution has, which of the ways to use them is taken
 * conv_work     which operands are passed on as they are and which are packed first, in which type
 *               results are asked for, what they are added to
 * conv_weights  lists of weights and their gradients
 * conv_kernels  our own kernels
 *
 * Memory: weights packed once per update and their gradient, as the library wrote it, belong to the
 * convolution; everything else that does not go straight from tensor to tensor (padded channels,
 * other dtypes, gaps between images) passes through the context's work memory.
 */
#ifndef AMPK_CUDA_CONV_H
#define AMPK_CUDA_CONV_H

#include "conv_kernels.h"
#include "kernels/cuda/libs/tensor_core.h"
#include "kernels/cuda/runtime/context.h"

enum { AMPK_CONV_PASSES = AMPK_TC_WEIGHTS + 1 };

/* A plan that is made when it is first wanted. */
struct ampk_conv_slot {
    bool tried;
    struct ampk_tc_plan *plan; /* NULL: there is none */
};

struct ampk_conv {
    struct ampk_conv_shape shape;
    int oh, ow, padded_c, padded_k;
    enum ampk_dtype operand;                             /* how operands are stored */
    void *weights;                                       /* packed */
    struct ampk_conv_slot slots[AMPK_CONV_PASSES][2][2]; /* [..][result is FP32][accumulate] */
    void *dw;                         /* the weight gradient, packed; NULL if forward_only */
    enum ampk_dtype gradient;         /* of that, as the last backward, run or recorded, left it */
    enum ampk_dtype library_gradient; /* as the library does */
    bool beside;                      /* and it is computed beside the data gradient */
    /* Forward and the data gradient with batch-norm's sums; NULL: a kernel takes them. */
    struct ampk_tc_plan *summing, *summing_gradients;
    bool image; /* forward with statistics is our kernel's (image_conv.cu) */
};

/* ---- conv_choice.c ---- */

/* A context's libraries are opened by its first convolution. */
struct ampk_tc *ampk_conv_libraries(struct ampk_context *ctx, char *err, size_t err_size);
/* Closes them. The context's convolutions are destroyed. */
void ampk_cuda_conv_end(struct ampk_context *ctx);
/* Made when it is first wanted; NULL with the reason, the first time, if there is none. */
struct ampk_tc_plan *ampk_conv_find_plan(struct ampk_context *ctx, struct ampk_conv *conv,
                                         enum ampk_tc_pass pass, enum ampk_dtype result,
                                         bool accumulate, char *why, size_t why_size);
/* A plan whose result is of this type, else of the operands', which takes its place. */
struct ampk_tc_plan *ampk_conv_find_plan_like(struct ampk_context *ctx, struct ampk_conv *conv,
                                              enum ampk_tc_pass pass, enum ampk_dtype *result);
/* What no convolution can do without. */
bool ampk_conv_make_plans(struct ampk_context *ctx, struct ampk_conv *conv, char *err,
                          size_t err_size);
/* The library's weight gradient. */
struct ampk_tc_plan *ampk_conv_library_gradient(struct ampk_context *ctx, struct ampk_conv *conv);
/* One answer for every backward pass, by the plans for tensors as islands have them, dx not added.
 */
bool ampk_conv_choose_beside(struct ampk_context *ctx, struct ampk_conv *conv);
/* Batch-norm's sums from the epilogue of a forward pass or a data gradient. NULL: not there. */
struct ampk_tc_plan *ampk_conv_choose_summing(struct ampk_context *ctx, struct ampk_conv *conv,
                                              enum ampk_tc_pass pass,
                                              enum ampk_activation activation);
/* Whether forward with statistics is our kernel's: against what it would be otherwise. */
bool ampk_conv_choose_image(struct ampk_context *ctx, struct ampk_conv *conv);

/* ---- conv_work.c ---- */

/* Whether a library can read and write t itself. */
bool ampk_conv_is_direct(const struct ampk_tensor *t, enum ampk_dtype dtype, int padded);
/* Work memory of one operation is asked for at once: each piece is given its place first. */
size_t ampk_conv_place(size_t *used, size_t bytes);
size_t ampk_conv_place_vectors(size_t *used, int count, int channels);
size_t ampk_conv_place_workspace(const struct ampk_tc_plan *plan, size_t *used);
/* A place for t as an operand; none if the tensor itself is one. */
size_t ampk_conv_place_operand(const struct ampk_conv *conv, size_t *used,
                               const struct ampk_tensor *t, int padded);
/* t as an operand, packed at that place if it is not one itself. */
const void *ampk_conv_load_operand(struct ampk_context *ctx, const struct ampk_conv *conv,
                                   const struct ampk_tensor *t, int padded, void *place);

/* How a pass comes by its result. */
struct ampk_conv_output {
    struct ampk_tc_plan *plan;
    enum ampk_dtype dtype; /* as the library writes it */
    bool direct;           /* straight to the tensor; else through work memory */
    bool sums;             /* beside y, in work memory */
};

/* y (+)= ..., as kernels.h wants it stored. */
struct ampk_conv_output ampk_conv_choose_output(struct ampk_context *ctx, struct ampk_conv *conv,
                                                enum ampk_tc_pass pass, const struct ampk_tensor *y,
                                                int padded, bool accumulate);
size_t ampk_conv_place_output(const struct ampk_conv_output *o, size_t *used,
                              const struct ampk_tensor *y, int padded);
void ampk_conv_store_output(struct ampk_context *ctx, const struct ampk_conv_output *o,
                            const void *packed, const struct ampk_tensor *y, int padded,
                            bool accumulate, uint32_t *amax);

/* ---- conv_weights.c ---- */

/* How many weights are stored, with padding. */
size_t ampk_conv_padded_weights(const struct ampk_conv *conv);
struct ampk_conv_weights ampk_conv_weights_layout(const struct ampk_conv *conv);

#endif
