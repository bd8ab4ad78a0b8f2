/* How a convolution of kernels.h is put to the Tensor Core libraries: padded channels and the
 * problems its passes make. No GPU needed, so that tests can ask what training any net would need.
 */
#ifndef AMPK_CUDA_CONV_PROBLEM_H
#define AMPK_CUDA_CONV_PROBLEM_H

#include "kernels/cuda/libs/tensor_core.h"

/* Channels as they are stored for the library: up to the next multiple of 16 bytes, which Tensor
 * Cores need. Groups are left as they are: padding each would take a gap in x and y. */
int ampk_conv_padded(const struct ampk_conv_shape *, int channels);

/* One pass of it, channels padded. */
struct ampk_tc_problem ampk_conv_problem(const struct ampk_conv_shape *, enum ampk_tc_pass,
                                         enum ampk_dtype result, bool accumulate);

/* Inner products and nothing else: every output sees the input once. rows x depth times depth x
 * columns, as the forward pass has them. */
struct ampk_tc_matrix {
    size_t rows;        /* images times pixels */
    int depth, columns; /* input and output values of one */
};
/* False where the problem is not one. */
bool ampk_tc_is_matrix(const struct ampk_tc_problem *, struct ampk_tc_matrix *);

/* NULL where Tensor Cores can do it on a device of this compute capability (10 * major + minor),
 * else why not. */
const char *ampk_tc_obstacle(const struct ampk_tc_problem *, int compute_capability);

#endif
