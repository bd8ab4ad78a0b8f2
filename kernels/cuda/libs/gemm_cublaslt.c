/* Describes inner products to cuBLASLt, lists algorithms and runs one. Must not choose among them:
 * choose.c does.
 *
 * cuBLASLt's matrices are column-major. A matrix that is [rows][depth] in memory is depth x rows
 * to it. With x [rows][depth], y [rows][columns] and weights [columns][depth]:
 *
 *      pass       column-major product            first factor   second   result
 *      forward    y  = weights^T * x              weights, T     x        columns x rows
 *      data       dx = weights   * dy             weights        dy       depth x rows
 *      weights    dw = x         * dy^T           x              dy, T    depth x columns
 *
 * With several products (the groups of a convolution) x, y and their gradients have the rows of all
 * of them side by side. */
#include "libraries.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LISTED = 64, ALIGNMENT = 16 };

struct ampk_gemm {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, result;
    enum ampk_tc_pass pass;
    float beta;
};

/* ---- description ---- */

static cudaDataType_t data_type(enum ampk_dtype t)
{
    return t == AMPK_FP16 ? CUDA_R_16F : t == AMPK_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* Column-major, of the first product; the others' begin `apart` elements further each. */
struct placed {
    uint64_t rows, columns;
    int64_t pitch, apart;
};

static bool make_layout(cublasLtMatrixLayout_t *layout, cudaDataType_t type, struct placed p,
                        int32_t count)
{
    return !cublasLtMatrixLayoutCreate(layout, type, p.rows, p.columns, p.pitch) &&
           (count == 1 ||
            (!cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                               sizeof count) &&
             !cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &p.apart, sizeof p.apart)));
}

static bool make_layouts(struct ampk_gemm *g, const struct ampk_tc_problem *p,
                         const struct ampk_tc_matrix *m)
{
    cudaDataType_t operand = data_type(ampk_tc_operand(p->compute)), result = data_type(p->result);
    int64_t depth = m->depth, columns = m->columns;
    struct placed x = {(uint64_t)depth, m->rows, depth * m->count, depth};
    struct placed y = {(uint64_t)columns, m->rows, columns * m->count, columns};
    struct placed w = {(uint64_t)depth, (uint64_t)columns, depth, depth * columns};
    bool gradient = p->pass == AMPK_TC_WEIGHTS, forward = p->pass == AMPK_TC_FORWARD;
    return make_layout(&g->a, operand, gradient ? x : w, m->count) &&
           make_layout(&g->b, operand, forward ? x : y, m->count) &&
           make_layout(&g->result, result,
                       gradient  ? w
                       : forward ? y
                                 : x,
                       m->count);
}

/* FAST_TF32 only if the user asked for TF32: plain 32F sums FP32 and 16-bit operands alike in
 * FP32. */
static bool make_product(struct ampk_gemm *g, const struct ampk_tc_problem *p)
{
    bool tf32 = p->compute == AMPK_COMPUTE_TF32;
    cublasOperation_t turned = CUBLAS_OP_T;
    cublasLtMatmulDescAttributes_t which =
        p->pass == AMPK_TC_FORWARD ? CUBLASLT_MATMUL_DESC_TRANSA : CUBLASLT_MATMUL_DESC_TRANSB;
    return !cublasLtMatmulDescCreate(
               &g->product, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
           (p->pass == AMPK_TC_DATA ||
            !cublasLtMatmulDescSetAttribute(g->product, which, &turned, sizeof turned));
}

struct ampk_gemm *ampk_gemm_create(const struct ampk_tc_problem *p, char *why, size_t why_size)
{
    struct ampk_tc_matrix m;
    if (!ampk_tc_is_matrix(p, &m)) {
        snprintf(why, why_size, "not a product of matrices");
        return NULL;
    }
    struct ampk_gemm *g = calloc(1, sizeof *g);
    if (g && make_layouts(g, p, &m) && make_product(g, p)) {
        g->pass = p->pass;
        g->beta = p->accumulate ? 1 : 0;
        return g;
    }
    snprintf(why, why_size, "cuBLASLt: " AMPK_NO_MEMORY);
    ampk_gemm_destroy(g);
    return NULL;
}

void ampk_gemm_destroy(struct ampk_gemm *g)
{
    if (!g) return;
    if (g->product) cublasLtMatmulDescDestroy(g->product);
    if (g->a) cublasLtMatrixLayoutDestroy(g->a);
    if (g->b) cublasLtMatrixLayoutDestroy(g->b);
    if (g->result) cublasLtMatrixLayoutDestroy(g->result);
    free(g);
}

/* ---- algorithms ---- */

static bool prefer(cublasLtMatmulPreference_t preference,
                   cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t size)
{
    return !cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size);
}

/* An algorithm must accept any operands of ampk_tc_run. It may add partial sums, but not in place,
 * where their order changes from run to run, and not rounded below the compute type. */
static cublasLtMatmulPreference_t make_preference(size_t workspace_limit)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t p = NULL;
    uint64_t bytes = workspace_limit;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = ALIGNMENT;
    if (cublasLtMatmulPreferenceCreate(&p)) return NULL;
    bool set = prefer(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes) &&
               prefer(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    for (int i = 0; i < 4; i++)
        set = set && prefer(p, alignments[i], &alignment, sizeof alignment);
    if (set) return p;
    cublasLtMatmulPreferenceDestroy(p);
    return NULL;
}

/* Returns how many are listed, with those that the device cannot use. */
static int list(cublasLtHandle_t handle, const struct ampk_gemm *g, size_t workspace_limit,
                cublasLtMatmulHeuristicResult_t *found, int most)
{
    int count = 0;
    cublasLtMatmulPreference_t preference = make_preference(workspace_limit);
    if (!preference) return 0;
    if (cublasLtMatmulAlgoGetHeuristic(handle, g->product, g->a, g->b, g->result, g->result,
                                       preference, most < LISTED ? most : LISTED, found, &count))
        count = 0;
    cublasLtMatmulPreferenceDestroy(preference);
    return count;
}

int ampk_gemm_candidates(cublasLtHandle_t handle, const struct ampk_gemm *g, size_t workspace_limit,
                         cublasLtMatmulAlgo_t *algorithms, int most)
{
    /* Cleared, because all bytes of an algorithm go into its text, by which it is found again. */
    cublasLtMatmulHeuristicResult_t found[LISTED] = {0};
    int count = list(handle, g, workspace_limit, found, most), good = 0;
    for (int i = 0; i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS) algorithms[good++] = found[i].algo;
    return good;
}

/* cuBLASLt's check may refuse what its heuristics name. Only a run shows who is right. */
static void say_refused(void)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        fprintf(stderr, "darknet-amp: cublasLtMatmulAlgoCheck refuses what cuBLASLt's heuristics "
                        "name; it is tried all the same (reported once)\n");
}

size_t ampk_gemm_workspace(cublasLtHandle_t handle, const struct ampk_gemm *g,
                           const cublasLtMatmulAlgo_t *algorithm, size_t workspace_limit)
{
    cublasLtMatmulHeuristicResult_t checked, found[LISTED] = {0};
    if (!cublasLtMatmulAlgoCheck(handle, g->product, g->a, g->b, g->result, g->result, algorithm,
                                 &checked))
        return checked.workspaceSize;
    int count = list(handle, g, workspace_limit, found, LISTED);
    for (int i = 0; i < count; i++) {
        bool same = !memcmp(&found[i].algo, algorithm, sizeof *algorithm);
        if (found[i].state != CUBLAS_STATUS_SUCCESS || !same) continue;
        say_refused();
        return found[i].workspaceSize;
    }
    return SIZE_MAX;
}

void ampk_gemm_write(const cublasLtMatmulAlgo_t *algorithm, char text[AMPK_GEMM_TEXT])
{
    const unsigned char *bytes = (const unsigned char *)algorithm;
    for (size_t i = 0; i < sizeof *algorithm; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

bool ampk_gemm_read(const char *text, cublasLtMatmulAlgo_t *algorithm)
{
    unsigned char *bytes = (unsigned char *)algorithm;
    size_t digits = strspn(text, "0123456789abcdef");
    if (digits != AMPK_GEMM_TEXT - 1 || text[digits]) return false;
    for (size_t i = 0; i < sizeof *algorithm; i++) {
        unsigned byte = 0;
        sscanf(text + 2 * i, "%2x", &byte);
        bytes[i] = (unsigned char)byte;
    }
    return true;
}

/* ---- running ---- */

bool ampk_gemm_run(cublasLtHandle_t handle, const struct ampk_gemm *g,
                   const cublasLtMatmulAlgo_t *algorithm, const void *first, const void *second,
                   void *result, void *workspace, size_t workspace_bytes, ampk_rt_stream stream,
                   char *why, size_t why_size)
{
    const float alpha = 1;
    bool gradient = g->pass == AMPK_TC_WEIGHTS;
    const void *a = gradient ? first : second, *b = gradient ? second : first;
    cublasStatus_t status = cublasLtMatmul(handle, g->product, &alpha, a, g->a, b, g->b, &g->beta,
                                           result, g->result, result, g->result, algorithm,
                                           workspace, workspace_bytes, (cudaStream_t)stream);
    if (status) snprintf(why, why_size, "cuBLASLt: %s", cublasLtGetStatusString(status));
    return !status;
}
