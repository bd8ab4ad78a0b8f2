/* Translates a convolution of kernels.h for the Tensor Core libraries: padded channels, and the
 * problems of its passes. Needs no GPU, so tests can ask what training any net would need. */
#ifndef AMPK_CUDA_CONV_PROBLEM_H
#define AMPK_CUDA_CONV_PROBLEM_H

#include "kernels/cuda/libs/tensor_core.h"

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
    int depth, columns; /* input and output values of one row */
};
/* False if the problem is no matrix product. */
bool ampk_tc_is_matrix(const struct ampk_tc_problem *, struct ampk_tc_matrix *);

/* NULL if Tensor Cores can compute the problem on a device of this compute capability (10 * major
 * + minor), else the reason why they cannot. */
const char *ampk_tc_obstacle(const struct ampk_tc_problem *, int compute_capability);

#endif
