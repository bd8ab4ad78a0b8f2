/* Whether images go to our kernel (contest_image.c): the kernel itself on the emulation, spoilt
 * as it is told, beside a plan of plain loops; and clocks that say how long either takes. */
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/conv/conv_kernels.h"
#include "kernels/cuda/libs/plans.h"
#include "tests/emulation/emulation.h"
#include "tests/rig/harness.h"

#include <stdlib.h>

enum error {
    NONE,
    NOTHING_STORED,
    ONE_ROW_MISSED,
    PIXELS_SWAPPED,
    FILTERS_SWAPPED,
    NOT_A_NUMBER,
    MEAN_OFF,
    VARIANCE_OFF,
    ERRORS
};

/* Either way's milliseconds, and how often the kernel ran. */
static struct {
    enum error error;
    float plan, kernel, last;
    int runs;
    bool refused;
} timing;

float __wrap_ampk_rt_event_ms(ampk_rt_event from, ampk_rt_event to);
float __wrap_ampk_rt_event_ms(ampk_rt_event from, ampk_rt_event to)
{
    (void)from, (void)to;
    return timing.last;
}

/* ---- the plan ---- */

static struct ampk_tc_plan plan;

static float output_at(const _Float16 *x, const _Float16 *weights, int image, int row, int column,
                       int filter)
{
    const struct ampk_tc_problem *p = &plan.problem;
    float sum = 0;
    for (int tap = 0; tap < 9; tap++) {
        int h = row + tap / 3 - 1, w = column + tap % 3 - 1;
        if (h < 0 || w < 0 || h >= p->h || w >= p->w) continue;
        for (int c = 0; c < p->c; c++)
            sum += (float)x[(((size_t)image * p->h + h) * p->w + w) * p->c + c] *
                   (float)weights[((size_t)filter * 9 + tap) * p->c + c];
    }
    return sum;
}

bool ampk_tc_run_engine(struct ampk_tc *tc, const struct ampk_tc_engine *engine, const void *first,
                        const void *second, void *result, const struct ampk_tc_sums *sums,
                        void *workspace, ampk_rt_stream stream, char *why, size_t why_size)
{
    (void)tc, (void)workspace, (void)stream, (void)why, (void)why_size;
    const struct ampk_tc_problem *p = &plan.problem;
    _Float16 *y = result;
    CHECK(engine == &plan.engine);
    timing.last = timing.plan;
    if (p->sums) memset(sums->sums, 0, 2 * (size_t)p->k * sizeof *sums->sums);
    for (int i = 0; i < p->n * p->h * p->w; i++)
        for (int k = 0; k < p->k; k++) {
            y[(size_t)i * p->k + k] =
                (_Float16)output_at(first, second, i / (p->h * p->w), i / p->w % p->h, i % p->w, k);
            float stored = (float)y[(size_t)i * p->k + k];
            if (!p->sums) continue;
            sums->sums[k] += stored;
            sums->sums[p->k + k] += stored * stored;
        }
    return !timing.refused;
}

/* ---- the kernel ---- */

static void swap(_Float16 *a, _Float16 *b)
{
    _Float16 kept = *a;
    *a = *b, *b = kept;
}

static void spoil(const struct ampk_tensor *t, const struct ampk_bn_statistics *s)
{
    size_t k = (size_t)t->c, pixels = (size_t)t->n * t->h * t->w;
    _Float16 *y = t->data, *last = y + (pixels - 1) * k;
    switch (timing.error) {
    case NOTHING_STORED:
        memset(y, 0, pixels * k * sizeof *y);
        break;
    case ONE_ROW_MISSED:
        memset(y + t->w * k, 0, t->w * k * sizeof *y);
        break;
    case PIXELS_SWAPPED:
        for (size_t i = 0; i < k; i++)
            swap(last + i, last - (size_t)t->w * k + i);
        break;
    case FILTERS_SWAPPED:
        for (size_t i = 0; i < pixels; i++)
            swap(y + i * k, y + i * k + 1);
        break;
    case NOT_A_NUMBER:
        last[0] = (_Float16)NAN;
        break;
    case MEAN_OFF:
        s->mean[k - 1] *= 1.01f;
        break;
    case VARIANCE_OFF:
        s->variance[0] *= 1.05f;
        break;
    default:
        break;
    }
}

void __real_ampk_image_conv(struct ampk_context *, const struct ampk_tensor *, const void *,
                            const struct ampk_tensor *, const struct ampk_bn_statistics *);
void __wrap_ampk_image_conv(struct ampk_context *ctx, const struct ampk_tensor *x,
                            const void *weights, const struct ampk_tensor *y,
                            const struct ampk_bn_statistics *s);
void __wrap_ampk_image_conv(struct ampk_context *ctx, const struct ampk_tensor *x,
                            const void *weights, const struct ampk_tensor *y,
                            const struct ampk_bn_statistics *s)
{
    timing.last = timing.kernel;
    timing.runs++;
    __real_ampk_image_conv(ctx, x, weights, y, s);
    spoil(y, s);
}

/* ---- checks ---- */

static struct ampk_tc tc;

static void begin(float plan_ms, float kernel_ms)
{
    char warning[200];
    static const struct ampk_conv_shape shape = {
        2, 3, 9, 12, 16, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, false, false, false};
    timing = (__typeof__(timing)){.plan = plan_ms, .kernel = kernel_ms};
    tc = (struct ampk_tc){.settings = {.workspace_limit = 1 << 20}, .clearings = 1};
    tc.cache = ampk_plan_cache_open(NULL, warning, sizeof warning);
    plan = (struct ampk_tc_plan){.key = "a", .engine = {.ms = 2}};
    plan.problem = ampk_conv_problem(&shape, AMPK_TC_FORWARD, AMPK_FP16, false);
}

static void end(void)
{
    ampk_plan_cache_close(tc.cache);
}

/* In a new context. */
static bool pays(void)
{
    size_t before = emulation_memory().allocations;
    struct ampk_context ctx = {.tensor_core = &tc, .stream = ampk_rt_stream_create()};
    ctx.counters = ampk_rt_alloc(AMPK_COUNTERS * sizeof *ctx.counters);
    ampk_rt_zero(ctx.counters, AMPK_COUNTERS * sizeof *ctx.counters, ctx.stream);
    timing.runs = 0;
    bool answer = ampk_tc_pays_image(&ctx, &plan, 3);
    ampk_rt_stream_destroy(ctx.stream);
    ampk_rt_free(ctx.counters);
    ampk_rt_free(ctx.work);
    CHECK_INT(emulation_memory().allocations, before);
    return answer;
}

AMP_TEST(images_go_to_the_kernel_where_it_is_faster)
{
    static const float kernel[] = {1, 1.9f, 1.94f, 1.95f, 2, 3};
    for (int i = 0; i < 6; i++)
        for (int sums = 0; sums < 2; sums++) {
            begin(2, kernel[i]);
            plan.problem.sums = sums;
            CHECK_INT(pays(), i < 3);
            CHECK(timing.runs > 0 && !tc.said_wrong);
            CHECK_INT(pays(), i < 3);
            CHECK_INT(timing.runs, 0);
            end();
        }
}

AMP_TEST(a_wrong_kernel_is_not_used)
{
    for (int error = NONE; error < ERRORS; error++) {
        begin(2, 1);
        timing.error = (enum error)error;
        if (pays() != (error == NONE)) TEST_FAIL("error %d", error);
        CHECK_INT(tc.said_wrong, error != NONE);
        timing.error = NONE;
        CHECK_INT(pays(), error == NONE); /* as it is kept */
        CHECK_INT(timing.runs, 0);
        end();
    }
}

AMP_TEST(an_answer_is_kept_for_the_plan_that_it_was_timed_with)
{
    begin(2, 1);
    CHECK(pays());
    plan.engine.ms = 1.5f, timing.plan = 1;
    CHECK(!pays());
    CHECK(timing.runs > 0);
    ampk_plan_cache_add(tc.cache, "a; an image of 3 channels", "1.5: plan 2, kernel 1");
    CHECK(pays());
    ampk_plan_cache_add(tc.cache, "a; an image of 3 channels", "1.5: wrong");
    CHECK(!pays());
    CHECK_INT(timing.runs, 0);
    ampk_plan_cache_add(tc.cache, "a; an image of 3 channels", "1.5 1: plan 2, kernel 1");
    CHECK(!pays());
    CHECK(timing.runs > 0);
    end();
}

AMP_TEST(without_timing_the_plan_is_used)
{
    begin(2, 1);
    tc.settings.untimed = true;
    CHECK(!pays());
    tc.settings.untimed = false, plan.engine.ms = 0; /* nor was it */
    CHECK(!pays());
    plan.engine.ms = 2, timing.refused = true;
    CHECK(!pays());
    CHECK_INT(timing.runs, 0);
    timing.refused = false;
    CHECK(pays());
    end();
}

AMP_TEST_MAIN
