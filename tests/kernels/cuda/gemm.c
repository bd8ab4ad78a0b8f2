/* What is asked of cuBLASLt, checked without a GPU: in its place stand the functions below, which
 * multiply column-major matrices as its documentation says. */
#include "kernels/cuda/libs/libraries.h"
#include "tests/rig/harness.h"
#include "tests/rig/files.h"

/* ---- in place of cuBLASLt ---- */

struct product {
    bool turn_a, turn_b;
    cublasComputeType_t compute;
};

struct layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t pitch;
    int32_t count; /* of matrices */
    int64_t apart;
};

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    struct product *p = calloc(1, sizeof *p);
    CHECK_INT(scale, CUDA_R_32F);
    p->compute = compute;
    *product = (cublasLtMatmulDesc_t)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product)
{
    free(product);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size)
{
    struct product *p = (struct product *)product;
    cublasOperation_t operation;
    CHECK_INT(size, sizeof operation);
    memcpy(&operation, value, sizeof operation);
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSA)
        p->turn_a = operation == CUBLAS_OP_T;
    else if (attribute == CUBLASLT_MATMUL_DESC_TRANSB)
        p->turn_b = operation == CUBLAS_OP_T;
    else
        TEST_FAIL("attribute %d", (int)attribute);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t pitch)
{
    struct layout *l = calloc(1, sizeof *l);
    *l = (struct layout){type, rows, columns, pitch, 1, 0};
    *layout = (cublasLtMatrixLayout_t)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t size)
{
    struct layout *l = (struct layout *)layout;
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && size == sizeof l->count)
        memcpy(&l->count, value, size);
    else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && size == sizeof l->apart)
        memcpy(&l->apart, value, size);
    else
        TEST_FAIL("attribute %d of %zu bytes", (int)attribute, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = calloc(1, 1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    uint64_t number = 0;
    (void)preference;
    memcpy(&number, value, size);
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        CHECK_INT(number, 1000);
    else if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        CHECK_INT(number, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    else
        CHECK_INT(number, 16); /* alignments */
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
    memset(results, 0, (size_t)wanted * sizeof *results);
    for (int i = 0; i < 3; i++)
        results[i].algo.data[0] = (uint64_t)i + 0x1234;
    for (int i = 0; i < 3; i++)
        results[i].workspaceSize = 600 + (size_t)i;
    results[1].state = CUBLAS_STATUS_NOT_SUPPORTED;
    *found = 3;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d;
    result->workspaceSize = 500;
    return algorithm->data[0] == 0x1234 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static float element(const float *m, const struct layout *l, bool turned, uint64_t row,
                     uint64_t column)
{
    uint64_t r = turned ? column : row, c = turned ? row : column;
    REQUIRE(r < l->rows && c < l->columns && l->pitch >= (int64_t)l->rows);
    return m[c * (uint64_t)l->pitch + r];
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    const struct product *p = (const struct product *)product;
    const struct layout *la = (const struct layout *)a_layout,
                        *lb = (const struct layout *)b_layout,
                        *ld = (const struct layout *)d_layout;
    (void)handle, (void)workspace, (void)stream;
    uint64_t inner = p->turn_a ? la->rows : la->columns;
    CHECK_INT(inner, p->turn_b ? lb->columns : lb->rows);
    CHECK_INT(ld->rows, p->turn_a ? la->columns : la->rows);
    CHECK_INT(ld->columns, p->turn_b ? lb->rows : lb->columns);
    CHECK_INT(workspace_bytes, 500);
    CHECK_INT(algorithm->data[0], 0x1234);
    CHECK(c == d && c_layout == d_layout);
    CHECK(la->count == ld->count && lb->count == ld->count);
    for (int k = 0; k < ld->count; k++) {
        const float *of_a = (const float *)a + k * la->apart,
                    *of_b = (const float *)b + k * lb->apart;
        for (uint64_t column = 0; column < ld->columns; column++)
            for (uint64_t row = 0; row < ld->rows; row++) {
                float *to = (float *)d + k * ld->apart + column * (uint64_t)ld->pitch + row;
                float sum = 0;
                for (uint64_t i = 0; i < inner; i++)
                    sum += element(of_a, la, p->turn_a, row, i) *
                           element(of_b, lb, p->turn_b, i, column);
                *to = *(const float *)alpha * sum + (*(const float *)beta ? *to : 0);
            }
    }
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    (void)status;
    return "no";
}

/* ---- the products ---- */

enum { MOST = 4096 };
static float x[MOST], weights[MOST], y[MOST], expected[MOST], result[MOST];

static void fill(float *to)
{
    for (int i = 0; i < MOST; i++)
        to[i] = (float)(int)(test_random() % 9) - 4; /* sums are exact */
}

/* The definition, on [rows][count][depth], [count][columns][depth], [rows][count][columns]. */
static void multiply(enum ampk_tc_pass pass, const struct ampk_tc_matrix *m, float *to)
{
    for (size_t row = 0; row < m->rows; row++)
        for (int column = 0; column < m->columns * m->count; column++)
            for (int i = 0; i < m->depth; i++) {
                int group = column / m->columns;
                size_t at_x = (row * m->count + group) * m->depth + i;
                size_t at_y = row * m->columns * m->count + column;
                size_t at_weights = (size_t)column * m->depth + i;
                if (pass == AMPK_TC_FORWARD)
                    to[at_y] += x[at_x] * weights[at_weights];
                else if (pass == AMPK_TC_DATA)
                    to[at_x] += y[at_y] * weights[at_weights];
                else
                    to[at_weights] += x[at_x] * y[at_y];
            }
}

static void check_problem(const struct ampk_tc_problem *p)
{
    char why[100];
    cublasLtMatmulAlgo_t algorithms[8], read;
    char text[AMPK_GEMM_TEXT];
    struct ampk_tc_matrix m;
    REQUIRE(ampk_tc_is_matrix(p, &m));
    struct ampk_gemm *gemm = ampk_gemm_create(p, why, sizeof why);
    REQUIRE(gemm != NULL);
    CHECK_INT(ampk_gemm_candidates(NULL, gemm, 1000, algorithms, 8), 2);
    CHECK_INT(ampk_gemm_workspace(NULL, gemm, &algorithms[0], 1000), 500);
    /* The check refuses all but the first; the third is named. */
    CHECK_INT(ampk_gemm_workspace(NULL, gemm, &algorithms[1], 1000), 602);
    cublasLtMatmulAlgo_t other = algorithms[1];
    for (int i = -1; i < 2;
         i += 2) { /* the second one, which is not supported, and an unknown one */
        other.data[0] = algorithms[1].data[0] + (uint64_t)i;
        CHECK(ampk_gemm_workspace(NULL, gemm, &other, 1000) == SIZE_MAX);
    }
    ampk_gemm_write(&algorithms[0], text);
    CHECK(ampk_gemm_read(text, &read) && !memcmp(&read, &algorithms[0], sizeof read));
    fill(result);
    memset(expected, 0, sizeof expected);
    size_t count = p->pass == AMPK_TC_FORWARD ? m.rows * m.columns
                   : p->pass == AMPK_TC_DATA  ? m.rows * m.depth
                                              : (size_t)m.columns * m.depth;
    count *= m.count;
    REQUIRE(count <= MOST);
    if (p->accumulate) memcpy(expected, result, sizeof expected);
    multiply(p->pass, &m, expected);
    CHECK(ampk_gemm_run(NULL, gemm, &read, p->pass == AMPK_TC_DATA ? y : x,
                        p->pass == AMPK_TC_WEIGHTS ? y : weights, result, NULL, 500, NULL, why,
                        sizeof why));
    for (size_t i = 0; i < count; i++)
        if (result[i] != expected[i])
            TEST_FAIL("pass %d: element %zu is %g, expected %g", p->pass, i, result[i],
                      expected[i]);
    ampk_gemm_destroy(gemm);
}

/* The first test, because it is said once. */
AMP_TEST(a_check_that_refuses_what_is_named_is_reported_once)
{
    static const struct ampk_conv_shape shape = {
        2, 8, 3, 5, 12, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP32, false, false, false};
    struct ampk_tc_problem p = ampk_conv_problem(&shape, AMPK_TC_FORWARD, AMPK_FP32, false);
    char why[100], said[1000] = "";
    cublasLtMatmulAlgo_t algorithms[8];
    struct ampk_gemm *gemm = ampk_gemm_create(&p, why, sizeof why);
    REQUIRE(gemm != NULL);
    CHECK_INT(ampk_gemm_candidates(NULL, gemm, 1000, algorithms, 8), 2);
    struct capture c = capture_begin(2);
    for (int i = 0; i < 2; i++)
        ampk_gemm_workspace(NULL, gemm, &algorithms[1], 1000);
    capture_end(c, said, sizeof said);
    CHECK_STR(said,
              "darknet-amp: cublasLtMatmulAlgoCheck refuses what cuBLASLt's heuristics name; it is "
              "tried all the same (reported once)\n");
    ampk_gemm_destroy(gemm);
}

AMP_TEST(products_are_those_of_the_convolution)
{
    static const struct ampk_conv_shape shapes[] = {
        {2, 8, 3, 5, 12, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP32, false, false, false},
        {3, 4, 2, 3, 8, 2, 3, 1, 0, 1, AMPK_COMPUTE_FP32, false, false, false}, /* connected */
        {5, 16, 1, 1, 4, 1, 1, 1, 0, 1, AMPK_COMPUTE_TF32, false, false, false},
        {1, 24, 1, 7, 12, 1, 1, 1, 0, 3, AMPK_COMPUTE_TF32, false, false, false}, /* groups */
    };
    fill(x), fill(weights), fill(y);
    for (int i = 0; i < 4; i++)
        for (int pass = AMPK_TC_FORWARD; pass <= AMPK_TC_WEIGHTS; pass++)
            for (int added = 0; added <= (pass == AMPK_TC_DATA); added++) {
                struct ampk_tc_problem p =
                    ampk_conv_problem(&shapes[i], (enum ampk_tc_pass)pass, AMPK_FP32, added);
                check_problem(&p);
            }
}

AMP_TEST(other_convolutions_are_refused)
{
    static const struct ampk_conv_shape shapes[] = {
        {2, 8, 3, 5, 12, 1, 1, 2, 0, 1, AMPK_COMPUTE_FP16, false, false, false}, /* stride */
        {2, 8, 3, 5, 12, 1, 1, 1, 1, 1, AMPK_COMPUTE_FP16, false, false, false}, /* padding */
        /* groups that begin anywhere */
        {2, 8, 3, 5, 16, 1, 1, 1, 0, 2, AMPK_COMPUTE_FP16, false, false, false},
        {2, 16, 3, 5, 12, 1, 1, 1, 0, 2, AMPK_COMPUTE_FP16, false, false, false},
        {2, 16, 2, 2, 16, 2, 2, 1, 0, 2, AMPK_COMPUTE_FP16, false, false, false},
        {2, 8, 3, 5, 12, 3, 3, 1, 0, 1, AMPK_COMPUTE_FP16, false, false, false}, /* window */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char why[100] = "";
        struct ampk_tc_problem p = ampk_conv_problem(&shapes[i], AMPK_TC_FORWARD, AMPK_FP16, false);
        CHECK(ampk_gemm_create(&p, why, sizeof why) == NULL);
        CHECK_STR(why, "not a product of matrices");
    }
}

/* Why a convolution cannot run on Tensor Cores, if it cannot. */
AMP_TEST(obstacles)
{
    static const struct {
        struct ampk_conv_shape shape;
        int capability;
        const char *why;
    } cases[] = {
        {{1, 8, 5, 5, 8, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP32, 0, 0, 0}, 90, "FP32 products"},
        {{1, 8, 5, 5, 8, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0}, 75, NULL},
        {{1, 8, 5, 5, 8, 3, 3, 1, 1, 1, AMPK_COMPUTE_BF16, 0, 0, 0}, 79, "before Ampere"},
        {{1, 8, 5, 5, 8, 3, 3, 1, 1, 1, AMPK_COMPUTE_TF32, 0, 0, 0}, 75, "before Ampere"},
        {{1, 8, 5, 5, 8, 3, 3, 1, 1, 1, AMPK_COMPUTE_BF16, 0, 0, 0}, 80, NULL},
        {{1, 16, 5, 5, 32, 3, 3, 1, 1, 2, AMPK_COMPUTE_FP16, 0, 0, 0}, 80, NULL},
        {{1, 8, 5, 5, 32, 3, 3, 1, 1, 2, AMPK_COMPUTE_FP16, 0, 0, 0}, 80, "channels of a group"},
        {{1, 32, 5, 5, 8, 3, 3, 1, 1, 2, AMPK_COMPUTE_FP16, 0, 0, 0}, 80, "channels of a group"},
        {{1, 8, 5, 5, 8, 3, 3, 1, 1, 2, AMPK_COMPUTE_TF32, 0, 0, 0}, 80, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ampk_tc_problem p =
            ampk_conv_problem(&cases[i].shape, AMPK_TC_FORWARD, AMPK_FP32, false);
        const char *why = ampk_tc_obstacle(&p, cases[i].capability), *wanted = cases[i].why;
        if (wanted ? !why || strncmp(why, wanted, strlen(wanted)) : why != NULL)
            TEST_FAIL("case %zu: %s", i, why ? why : "none");
    }
}

AMP_TEST(damaged_algorithms_are_refused)
{
    cublasLtMatmulAlgo_t algorithm = {{1, 2, 3, 4, 5, 6, 7, 8}}, read;
    char text[AMPK_GEMM_TEXT];
    ampk_gemm_write(&algorithm, text);
    text[5] = 'x';
    CHECK(!ampk_gemm_read(text, &read));
    CHECK(!ampk_gemm_read("12", &read));
}

AMP_TEST_MAIN
