/* Convolutions of the CUDA backend: the operations of kernels.h on top of tensor_core.h.
 *
 *   conv.c           creation and the passes
 *   conv_choice.c    the plans of a convolution, the type to ask results in, and the choice among
 *                    the ways to use plans
 *   conv_operands.c  the operands that pass on as they are and those to pack first, and what to add
 *                    results to; lists of weights and their gradients
 *   conv_kernels.h   our own kernels
 *
 * From shape to run: tensor_core.h pads the channels of a shape and finds a plan for each padded
 * problem, in the plan file or by timing; conv_choice.c picks one of the ways to use the plans; the
 * passes in conv.c then run them.
 *
 * Memory: a convolution owns its packed weights, which change once per update, and its weight
 * gradient as the library wrote it. All other data that does not go straight from tensor to tensor
 * (padded channels, other dtypes, gaps between images) passes through the context's work memory. */
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
    int oh, ow, padded_c, padded_k; /* sides of y in pixels; channels with padding */
    /* The passes of the libraries that forward and the data gradient run, and channels with padding
     * of what forward reads and writes. transposed: the libraries' data gradient is our forward. */
    enum ampk_tc_pass forward, backward;
    int padded_in, padded_out;
    enum ampk_dtype operand; /* how operands are stored */
    void *weights;           /* packed: [padded_k][kh][kw][padded_c/groups] */
    struct ampk_conv_slot slots[AMPK_CONV_PASSES][2][2]; /* [..][result is FP32][accumulate] */
    void *dw;                         /* the weight gradient, packed; NULL if forward_only */
    enum ampk_dtype gradient;         /* type of dw after the last backward, run or recorded */
    enum ampk_dtype library_gradient; /* type of dw if the library computes it */
    bool image; /* our kernel computes forward with statistics (image_conv.cu) */
};

/* ---- conv_choice.c ---- */

/* A context's libraries are opened by its first convolution. */
struct ampk_tc *ampk_conv_libraries(struct ampk_context *ctx, char *err, size_t err_size);
/* Closes the libraries. The caller has destroyed the context's convolutions. */
void ampk_cuda_conv_end(struct ampk_context *ctx);
/* A plan with a result of type *result. If there is none, a plan with the other type that
 * libraries have, which replaces *result. */
struct ampk_tc_plan *ampk_conv_find_plan_like(struct ampk_context *ctx, struct ampk_conv *conv,
                                              enum ampk_tc_pass pass, enum ampk_dtype *result);

/* How a pass produces its result. */
struct ampk_conv_output {
    struct ampk_tc_plan *plan;
    enum ampk_dtype dtype; /* as the library writes it */
    bool direct;           /* the library writes the tensor itself; else it writes work memory */
};

/* The way to compute y (+)= ... so that y is stored as kernels.h demands. */
struct ampk_conv_output ampk_conv_choose_output(struct ampk_context *ctx, struct ampk_conv *conv,
                                                enum ampk_tc_pass pass, const struct ampk_tensor *y,
                                                int padded, bool accumulate);

/* Makes the plans that no convolution can do without. */
bool ampk_conv_make_plans(struct ampk_context *ctx, struct ampk_conv *conv, char *err,
                          size_t err_size);
/* The plan of the library's weight gradient. */
struct ampk_tc_plan *ampk_conv_library_gradient(struct ampk_context *ctx, struct ampk_conv *conv);
/* Whether our image kernel computes forward with statistics: wherever it can. */
bool ampk_conv_reads_images(struct ampk_context *ctx, const struct ampk_conv *conv);

/* ---- conv_operands.c ---- */

/* Whether a library can read and write t itself. */
bool ampk_conv_is_direct(const struct ampk_tensor *t, enum ampk_dtype dtype, int padded);
/* An operation asks for all its work memory at once. First each piece is given its place: the
 * functions below return a byte offset and add the piece to *used. */
size_t ampk_conv_place(size_t *used, size_t bytes);
size_t ampk_conv_place_workspace(const struct ampk_tc_plan *plan, size_t *used);
/* A place for t as an operand; no bytes if the tensor itself is one. */
size_t ampk_conv_place_operand(const struct ampk_conv *conv, size_t *used,
                               const struct ampk_tensor *t, int padded);
/* t as an operand, packed at that place if the tensor itself is not one. */
const void *ampk_conv_load_operand(struct ampk_context *ctx, const struct ampk_conv *conv,
                                   const struct ampk_tensor *t, int padded, void *place);

size_t ampk_conv_place_output(const struct ampk_conv_output *o, size_t *used,
                              const struct ampk_tensor *y, int padded);
void ampk_conv_store_output(struct ampk_context *ctx, const struct ampk_conv_output *o,
                            const void *packed, const struct ampk_tensor *y, int padded,
                            bool accumulate, uint32_t *amax);

/* The number of stored weights, padding included. */
size_t ampk_conv_padded_weights(const struct ampk_conv *conv);
struct ampk_conv_weights ampk_conv_weights_layout(const struct ampk_conv *conv);

#endif
