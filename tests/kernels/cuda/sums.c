/* Which engines' sums of gradients are found wrong (contest_sums.c), with batch-norm's kernels
 * on the emulation and an engine of plain loops that errs as it is told. The times are all the
 * same. */
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/libs/plans.h"
#include "tests/emulation/emulation.h"
#include "tests/rig/harness.h"

#include <unistd.h>

enum error {
    NONE,
    SUMS_UNROUNDED, /* no error either */
    SLOPE_0,
    SLOPE_1,
    SLOPE_OF_RELIE,
    BIAS_IGNORED,
    SCALE_IGNORED,
    DELTA_STORED,
    DELTA_SUMMED,
    MEAN_IGNORED,
    SUMS_ADDED,
    SUMS_SWAPPED,
    ONE_ROW_MISSED,
    ERRORS
};

static enum error error;
static const struct ampk_tc_problem *problem;

/* ---- the engine ---- */

static float delta_at(const float *dy, const float *weights, int image, int h, int w, int c)
{
    const struct ampk_tc_problem *p = problem;
    int oh = ampk_tc_out(p, p->h, p->kh), ow = ampk_tc_out(p, p->w, p->kw);
    float sum = 0;
    for (int i = 0; i < p->kh; i++)
        for (int j = 0; j < p->kw; j++) {
            int row = h + p->pad - i, column = w + p->pad - j;
            if (row < 0 || column < 0 || row % p->stride || column % p->stride) continue;
            row /= p->stride, column /= p->stride;
            if (row >= oh || column >= ow) continue;
            const float *from = dy + (((size_t)image * oh + row) * ow + column) * p->k;
            for (int k = 0; k < p->k; k++)
                sum += from[k] * weights[(((size_t)k * p->kh + i) * p->kw + j) * p->c + c];
        }
    return sum;
}

static float slope(void)
{
    return error == SLOPE_0          ? 0
           : error == SLOPE_1        ? 1
           : error == SLOPE_OF_RELIE ? .01f
                                     : problem->slope;
}

/* x_hat's parameters of a channel. */
struct parameters {
    float mean, unit, scale, bias;
};

static void pass_pixel(const struct ampk_tc_sums *s, struct parameters by, int c, size_t i, float d,
                       _Float16 *g)
{
    float y = (float)((const _Float16 *)s->y)[i];
    float x_hat = (y - by.mean) * by.unit;
    float scale = error == SCALE_IGNORED ? 1 : by.scale, bias = error == BIAS_IGNORED ? 0 : by.bias;
    float passed = x_hat * scale + bias > 0 ? d : slope() * d;
    g[i] = (_Float16)(error == DELTA_STORED ? d : passed);
    float summed = error == DELTA_SUMMED ? d : error == SUMS_UNROUNDED ? passed : (float)g[i];
    s->sums[c] += summed;
    s->sums[problem->c + c] += summed * (error == MEAN_IGNORED ? y : x_hat);
}

static void run_summed(const float *dy, const float *weights, _Float16 *g,
                       const struct ampk_tc_sums *s)
{
    const struct ampk_tc_problem *p = problem;
    const float *v = s->parameters;
    for (int c = 0; c < p->c; c++) {
        struct parameters by = {v[c], v[p->c + c], v[2 * p->c + c], v[3 * p->c + c]};
        if (error != SUMS_ADDED) s->sums[c] = s->sums[p->c + c] = 0;
        for (int pixel = 0; pixel < p->n * p->h * p->w; pixel++) {
            int column = pixel % p->w, row = pixel / p->w % p->h, image = pixel / p->w / p->h;
            if (error == ONE_ROW_MISSED && image == 0 && row == 1) continue;
            pass_pixel(s, by, c, (size_t)pixel * p->c + c,
                       delta_at(dy, weights, image, row, column, c), g);
        }
        float sum = s->sums[c];
        if (error != SUMS_SWAPPED) continue;
        s->sums[c] = s->sums[p->c + c];
        s->sums[p->c + c] = sum;
    }
}

static void run_plain(const float *dy, const float *weights, _Float16 *d)
{
    const struct ampk_tc_problem *p = problem;
    for (size_t i = 0; i < (size_t)p->n * p->h * p->w * p->c; i++) {
        int c = (int)(i % p->c), pixel = (int)(i / p->c);
        d[i] = (_Float16)delta_at(dy, weights, pixel / p->w / p->h, pixel / p->w % p->h,
                                  pixel % p->w, c);
    }
}

static float *widen(const _Float16 *from, size_t n)
{
    float *to = malloc(n * sizeof *to);
    REQUIRE(to != NULL);
    for (size_t i = 0; i < n; i++)
        to[i] = (float)from[i];
    return to;
}

static struct ampk_tc_plan apart, summed;

bool ampk_tc_run_engine(struct ampk_tc *tc, const struct ampk_tc_engine *engine, const void *first,
                        const void *second, void *result, const struct ampk_tc_sums *sums,
                        void *workspace, ampk_rt_stream stream, char *why, size_t why_size)
{
    (void)tc, (void)workspace, (void)stream, (void)why, (void)why_size;
    const struct ampk_tc_problem *p = problem;
    float *dy = widen(first, (size_t)p->n * p->k * ampk_tc_out(p, p->h, p->kh) *
                                 ampk_tc_out(p, p->w, p->kw));
    float *weights = widen(second, (size_t)p->k * p->kh * p->kw * p->c);
    if (engine == &summed.engine)
        run_summed(dy, weights, result, sums);
    else
        run_plain(dy, weights, result);
    free(dy);
    free(weights);
    return true;
}

/* ---- checks ---- */

/* What the contest leaves in the file about plans that take 2 ms each. */
static bool is_found_wrong(const struct ampk_conv_shape *shape, enum ampk_activation activation)
{
    static const float slopes[] = {[AMPK_RELU] = 0, [AMPK_LINEAR] = 1, [AMPK_LEAKY] = .1f};
    char warning[200];
    size_t before = emulation_memory().allocations;
    struct ampk_tc tc = {.settings = {.workspace_limit = 1 << 20}, .clearings = 1};
    struct ampk_context ctx = {.tensor_core = &tc, .stream = ampk_rt_stream_create()};
    tc.cache = ampk_plan_cache_open(NULL, warning, sizeof warning);
    ctx.counters = ampk_rt_alloc(AMPK_COUNTERS * sizeof *ctx.counters);
    ampk_rt_zero(ctx.counters, AMPK_COUNTERS * sizeof *ctx.counters, ctx.stream);
    apart = (struct ampk_tc_plan){.key = "a", .engine = {.ms = 2}};
    apart.problem = ampk_conv_problem(shape, AMPK_TC_DATA, AMPK_FP16, false);
    summed = apart;
    summed.problem.sums = true;
    summed.problem.slope = slopes[activation];
    problem = &summed.problem;
    ampk_tc_pays_gradient_sums(&ctx, &apart, &summed, activation);
    bool wrong = tc.said_wrong;
    ampk_plan_cache_close(tc.cache);
    ampk_rt_stream_destroy(ctx.stream);
    ampk_rt_free(ctx.counters);
    ampk_rt_free(ctx.work);
    CHECK_INT(emulation_memory().allocations, before);
    return wrong;
}

static const struct ampk_conv_shape shapes[] = {
    {2, 16, 13, 13, 32, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
    {1, 8, 20, 20, 24, 3, 3, 2, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
    {4, 16, 7, 7, 512, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
    {1, 8, 5, 5, 1024, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, 0, 0, 0},
};

static void check_errors(enum ampk_activation activation, enum error as_right)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (error = NONE; error < ERRORS; error++) {
            bool expected = error > SUMS_UNROUNDED && error != as_right;
            /* of a linear activation nothing depends on what is put into it */
            bool of_signs = error == BIAS_IGNORED || error == SCALE_IGNORED;
            bool of_delta = error == DELTA_STORED || error == DELTA_SUMMED;
            if (activation == AMPK_RELU && error == SLOPE_OF_RELIE) continue; /* too near */
            if (activation == AMPK_LINEAR && (of_signs || of_delta)) expected = false;
            if (is_found_wrong(&shapes[i], activation) != expected)
                TEST_FAIL("shape %zu, activation %d: error %d is %s", i, activation, error,
                          expected ? "not found" : "none");
        }
}

AMP_TEST(errors_of_leaky)
{
    check_errors(AMPK_LEAKY, ERRORS);
}

AMP_TEST(errors_of_relu)
{
    check_errors(AMPK_RELU, SLOPE_0);
}

AMP_TEST(errors_of_linear)
{
    check_errors(AMPK_LINEAR, SLOPE_1);
}

AMP_TEST_MAIN
