/* Inner products through cuBLASLt: convolutions in which every output reads each input once (1x1
 * with stride 1, and connected layers), all three passes, with results of 16 bits or FP32. */
#ifndef AMPK_CUDA_GEMM_CUBLASLT_H
#define AMPK_CUDA_GEMM_CUBLASLT_H

#include <cublasLt.h>

#include "kernels/cuda/conv/conv_problem.h"

/* One product of matrices. Several algorithms can compute it. */
struct ampk_gemm;

/* NULL with the reason; also where the problem is not a product of matrices. */
struct ampk_gemm *ampk_gemm_create(const struct ampk_tc_problem *, char *why, size_t why_size);
void ampk_gemm_destroy(struct ampk_gemm *);

/* The algorithms that cuBLASLt names, best guess first, at most `most`. */
int ampk_gemm_candidates(cublasLtHandle_t, const struct ampk_gemm *, size_t workspace_limit,
                         cublasLtMatmulAlgo_t *, int most);
/* Bytes of workspace that the algorithm wants; SIZE_MAX if this device and version cannot use it.
 */
size_t ampk_gemm_workspace(cublasLtHandle_t, const struct ampk_gemm *,
                           const cublasLtMatmulAlgo_t *);

/* An algorithm as text: its bytes in hex, valid for the same version of cuBLASLt. */
enum { AMPK_GEMM_TEXT = 2 * sizeof(cublasLtMatmulAlgo_t) + 1 };
void ampk_gemm_write(const cublasLtMatmulAlgo_t *, char text[AMPK_GEMM_TEXT]);
bool ampk_gemm_read(const char *text, cublasLtMatmulAlgo_t *);

/* Operands as in ampk_tc_run. False with the reason if cuBLASLt refuses. */
bool ampk_gemm_run(cublasLtHandle_t, const struct ampk_gemm *, const cublasLtMatmulAlgo_t *,
                   const void *first, const void *second, void *result, void *workspace,
                   size_t workspace_bytes, ampk_rt_stream, char *why, size_t why_size);

#endif
