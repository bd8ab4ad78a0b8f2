/* ampk_conv_compare: the largest difference and value of two results, in every storage. */
#include "kernels/cuda/conv/conv_kernels.h"
#include "tests/rig/harness.h"

#include <math.h>

enum { MOST = 5000 };

static struct ampk_tensor flat(void *data, enum ampk_dtype dtype, int n)
{
    return (struct ampk_tensor){data, dtype, AMPK_NHWC, 1, n, 1, 1, (size_t)n, 0};
}

/* x in that storage, in device memory; and what it is there. */
static void *store(struct ampk_context *ctx, float *x, enum ampk_dtype dtype, int n)
{
    float *from = ampk_cuda.alloc(ctx, (size_t)n * sizeof *x);
    void *to = ampk_cuda.alloc(ctx, (size_t)n * ampk_dtype_bytes(dtype));
    REQUIRE(from && to);
    struct ampk_tensor wide = flat(from, AMPK_FP32, n), stored = flat(to, dtype, n);
    ampk_cuda.write(ctx, from, x, (size_t)n * sizeof *x);
    ampk_cuda.convert(ctx, &wide, &stored, false, NULL);
    ampk_cuda.convert(ctx, &stored, &wide, false, NULL);
    ampk_cuda.read(ctx, x, from, (size_t)n * sizeof *x);
    ampk_cuda.free(ctx, from);
    return to;
}

static void compare(struct ampk_context *ctx, enum ampk_dtype dtype, int n, bool nan)
{
    static float a[MOST], b[MOST];
    float found[2], apart = 0, largest = 0;
    int where = (int)(test_random() % (uint64_t)n);
    for (int i = 0; i < n; i++)
        b[i] = a[i] = (float)test_uniform(-100, 100);
    b[where] += (float)test_uniform(-50, 50);
    if (nan) b[where] = NAN;
    void *first = store(ctx, a, dtype, n), *second = store(ctx, b, dtype, n);
    uint32_t *words = ampk_cuda.alloc(ctx, sizeof found);
    REQUIRE(words != NULL);
    ampk_cuda.fill_zero(ctx, words, sizeof found);
    ampk_conv_compare(ctx->stream, first, second, dtype, (size_t)n * ampk_dtype_bytes(dtype),
                      words);
    ampk_cuda.read(ctx, found, words, sizeof found);
    for (int i = 0; i < n; i++) {
        apart = fmaxf(apart, fabsf(a[i] - b[i]));
        largest = fmaxf(largest, fabsf(a[i]));
    }
    CHECK(nan ? isnan(found[0]) : found[0] == apart);
    CHECK(found[1] == largest);
    ampk_cuda.free(ctx, first);
    ampk_cuda.free(ctx, second);
    ampk_cuda.free(ctx, words);
}

/* Sums of made-up operands may overflow in both results. */
static void compare_overflow(struct ampk_context *ctx)
{
    float x[3] = {1, 2, 3}, found[2], overflow[3] = {1, 1e6f, -1e6f};
    uint32_t *words = ampk_cuda.alloc(ctx, sizeof found);
    REQUIRE(words != NULL);
    void *finite = store(ctx, x, AMPK_FP16, 3), *first = store(ctx, overflow, AMPK_FP16, 3);
    void *second = store(ctx, overflow, AMPK_FP16, 3);
    ampk_cuda.fill_zero(ctx, words, sizeof found);
    ampk_conv_compare(ctx->stream, first, second, AMPK_FP16, 6, words);
    ampk_cuda.read(ctx, found, words, sizeof found);
    CHECK(found[0] == 0 && isinf(found[1]));
    ampk_conv_compare(ctx->stream, finite, second, AMPK_FP16, 6, words);
    ampk_cuda.read(ctx, found, words, sizeof found);
    CHECK(isinf(found[0]));
    ampk_cuda.free(ctx, finite);
    ampk_cuda.free(ctx, first);
    ampk_cuda.free(ctx, second);
    ampk_cuda.free(ctx, words);
}

AMP_TEST(the_largest_difference_and_value_are_found)
{
    char err[300] = "";
    struct ampk_context *ctx = ampk_cuda.context_create(0, err, sizeof err);
#ifndef CUDA_EMULATED
    if (!ctx && !strncmp(err, "no CUDA device: ", 16)) {
        printf("SKIPPED: %s\n", err);
        return;
    }
#endif
    REQUIRE(ctx != NULL);
    for (int round = 0; round < 9; round++)
        compare(ctx, (enum ampk_dtype)(round % 3), 1 + (int)(test_random() % MOST), round % 4 == 3);
    compare_overflow(ctx);
    ampk_cuda.context_destroy(ctx);
}

AMP_TEST_MAIN
