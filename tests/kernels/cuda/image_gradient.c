/* When a first convolution's weight gradient by our kernel is found to differ from the library's
 * (contest_image_gradient.c), with the kernels on the emulation and a library of plain loops
 * that errs as it is told. Nothing takes time there: no times are kept. */
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/libs/plans.h"
#include "tests/emulation/emulation.h"
#include "tests/rig/harness.h"

#include <math.h>

enum error {
    NONE,
    TAP_MISPLACED,
    TAP_TWICE,
    PIXEL_MISSED,
    ROW_MISSED,
    CHANNELS_SWAPPED,
    FILTERS_SWAPPED,
    ADDED,
    HALVED,
    NOT_A_NUMBER,
    ERRORS
};

static enum error error;
static const struct ampk_tc_problem *problem;

/* ---- the library ---- */

static bool is_missed(int image, int row, int column)
{
    bool in_row = image == 0 && row == 1;
    return in_row && (error == ROW_MISSED || (error == PIXEL_MISSED && column == 2));
}

/* Of an image of which nothing is padding but channels. */
static float sum_of(const _Float16 *x, const _Float16 *dy, int k, int tap, int c)
{
    const struct ampk_tc_problem *p = problem;
    float sum = 0;
    if (error == FILTERS_SWAPPED) k ^= 1;
    if (error == CHANNELS_SWAPPED && c < 2) c ^= 1;
    if (error == TAP_MISPLACED) tap = (tap + 1) % 9;
    if (error == TAP_TWICE && tap == 8) tap = 7;
    for (int image = 0; image < p->n; image++)
        for (int row = 0; row < p->h; row++)
            for (int column = 0; column < p->w; column++) {
                int h = row + tap / 3 - 1, w = column + tap % 3 - 1;
                if (h < 0 || h >= p->h || w < 0 || w >= p->w) continue;
                if (is_missed(image, row, column)) continue;
                size_t at = ((size_t)image * p->h + row) * p->w + column;
                size_t from = ((size_t)image * p->h + h) * p->w + w;
                sum += (float)dy[at * p->k + k] * (float)x[from * p->c + c];
            }
    return sum;
}

static void store(void *result, size_t i, float v)
{
    bool wide = problem->result == AMPK_FP32;
    float old = wide ? ((float *)result)[i] : (float)((_Float16 *)result)[i];
    if (error == ADDED) v += old;
    if (error == HALVED) v /= 2;
    if (error == NOT_A_NUMBER && i == 17) v = NAN;
    if (wide)
        ((float *)result)[i] = v;
    else
        ((_Float16 *)result)[i] = (_Float16)v;
}

bool ampk_tc_run_engine(struct ampk_tc *tc, const struct ampk_tc_engine *engine, const void *first,
                        const void *second, void *result, const struct ampk_tc_sums *sums,
                        void *workspace, ampk_rt_stream stream, char *why, size_t why_size)
{
    (void)tc, (void)engine, (void)sums, (void)workspace, (void)stream, (void)why, (void)why_size;
    const struct ampk_tc_problem *p = problem;
    for (int k = 0; k < p->k; k++)
        for (int tap = 0; tap < 9; tap++)
            for (int c = 0; c < p->c; c++)
                store(result, ((size_t)k * 9 + tap) * p->c + c, sum_of(first, second, k, tap, c));
    return true;
}

/* ---- checks ---- */

static struct ampk_context make_context(struct ampk_tc *tc)
{
    char warning[200];
    struct ampk_context ctx = {.tensor_core = tc, .stream = ampk_rt_stream_create()};
    tc->cache = ampk_plan_cache_open(NULL, warning, sizeof warning);
    ctx.counters = ampk_rt_alloc(AMPK_COUNTERS * sizeof *ctx.counters);
    ampk_rt_zero(ctx.counters, AMPK_COUNTERS * sizeof *ctx.counters, ctx.stream);
    ctx.device.compute_capability = 75;
    return ctx;
}

static void end_context(struct ampk_context *ctx)
{
    ampk_plan_cache_close(ctx->tensor_core->cache);
    ampk_rt_stream_destroy(ctx->stream);
    ampk_rt_free(ctx->counters);
    ampk_rt_free(ctx->work);
}

/* What the contest leaves in the file about a plan that takes 2 ms. */
static bool is_found_wrong(const struct ampk_conv_shape *shape, enum ampk_dtype result, bool pooled)
{
    size_t before = emulation_memory().allocations;
    struct ampk_tc tc = {.settings = {.workspace_limit = 1 << 20}, .clearings = 1};
    struct ampk_context ctx = make_context(&tc);
    struct ampk_tc_plan plan = {.key = "a", .engine = {.ms = 2}};
    plan.problem = ampk_conv_problem(shape, AMPK_TC_WEIGHTS, result, false);
    problem = &plan.problem;
    struct ampk_tensor d = {.h = pooled ? (shape->h + 1) / 2 : shape->h,
                            .w = pooled ? (shape->w + 1) / 2 : shape->w};
    struct ampk_layer_gradient like = {.activation = AMPK_LEAKY, .d = &d};
    if (pooled) like.argmax = &d; /* any */
    ampk_tc_pays_image_gradient(&ctx, &plan, shape, &like);
    char key[64];
    snprintf(key, sizeof key, "a; %sdy in registers, %d channels", pooled ? "maxpool's " : "",
             shape->c);
    const char *said = ampk_plan_cache_find(tc.cache, key);
    CHECK((said && strstr(said, ": wrong")) == tc.said_wrong);
    end_context(&ctx);
    CHECK_INT(emulation_memory().allocations, before);
    return tc.said_wrong;
}

static const struct ampk_conv_shape shapes[] = {
    {2, 3, 13, 13, 16, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
    {1, 3, 18, 34, 32, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
    {3, 4, 12, 9, 8, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
};

static void check_errors(enum ampk_dtype result, bool pooled)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (error = NONE; error < ERRORS; error++)
            if (is_found_wrong(&shapes[i], result, pooled) != (error != NONE))
                TEST_FAIL("shape %zu: error %d is %s", i, error,
                          error != NONE ? "not found" : "none");
}

AMP_TEST(errors_of_gradients_in_16_bits)
{
    check_errors(AMPK_FP16, false);
    check_errors(AMPK_FP16, true);
}

AMP_TEST(errors_of_gradients_in_fp32)
{
    check_errors(AMPK_FP32, false);
    check_errors(AMPK_FP32, true);
}

AMP_TEST_MAIN
