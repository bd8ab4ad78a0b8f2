/* Decides whether our kernel for images (image_conv.cu) computes a forward pass and batch-norm's
 * statistics sooner than a plan does; and whether it is right on this device.
 *
 * The kernel's results are right if they match the plan's; its statistics are right if they match
 * its results. */
#include "plans.h"

#include "kernels/cuda/runtime/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/conv/conv_kernels.h"

#include <stdio.h>
#include <math.h>
#include <stdlib.h>

/* Channels of y get means of their own, some larger than their spread. */
static const float MEAN_OF_X = 1;

struct imaging {
    struct ampk_context *ctx;
    const struct ampk_tc_plan *usual;
    struct ampk_tc_bench bench;
    struct ampk_tensor x, y; /* the kernel's; the plan packs x and writes the bench's result */
    float *statistics;       /* on the device */
    uint32_t *words;         /* on the device: largest difference, and the plan's largest y */
    float *host;             /* mean and variance, twice */
};

static bool begin(void *bench)
{
    struct imaging *g = bench;
    const struct ampk_tc_problem *p = &g->usual->problem;
    enum ampk_dtype operand = ampk_tc_operand(p->compute);
    int c = g->x.c, k = p->k;
    size_t area = (size_t)p->h * p->w, x = p->n * area * c, vector = (size_t)k * sizeof(float);
    bool ready = ampk_tc_bench_begin(&g->bench, p);
    g->x = (struct ampk_tensor){NULL, operand, AMPK_NHWC, p->n, c, p->h, p->w, area * c, 0};
    g->y = (struct ampk_tensor){NULL, operand, AMPK_NHWC, p->n, k, p->h, p->w, area * k, 0};
    g->x.data = ampk_rt_alloc(x * ampk_dtype_bytes(operand));
    g->y.data = ampk_rt_alloc(g->bench.result_bytes);
    g->statistics = ampk_rt_alloc(AMPK_TC_STATISTICS * vector);
    g->words = ampk_rt_alloc(2 * sizeof *g->words);
    g->host = malloc(2 * 2 * vector);
    if (g->x.data) ampk_conv_fill(g->bench.stream, g->x.data, operand, x, MEAN_OF_X);
    return ready && g->x.data && g->y.data && g->statistics && g->words && g->host &&
           g->bench.workspace_bytes >= g->usual->engine.workspace;
}

static void end(void *bench)
{
    struct imaging *g = bench;
    ampk_tc_bench_end(&g->bench);
    ampk_rt_free(g->x.data);
    ampk_rt_free(g->y.data);
    ampk_rt_free(g->statistics);
    ampk_rt_free(g->words);
    free(g->host);
}

/* ---- the two ways, as conv.c has them ---- */

static bool run_plan(struct imaging *g)
{
    const struct ampk_tc_problem *p = &g->usual->problem;
    ampk_conv_pack(g->ctx, &g->x, p->compute, p->c, g->bench.first);
    return ampk_tc_bench_run(&g->bench, &g->usual->engine);
}

static void run_kernel(struct imaging *g)
{
    struct ampk_bn_statistics to = ampk_tc_statistics_at(g->statistics, (size_t)g->y.c);
    ampk_image_conv(g->ctx, &g->x, g->bench.second, &g->y, &to);
}

static float time_ways(void *bench, bool kernel)
{
    struct imaging *g = bench;
    struct ampk_bn_statistics to = ampk_tc_statistics_at(g->statistics, (size_t)g->y.c);
    struct ampk_tensor y = g->y; /* of the plan */
    y.data = g->bench.result;
    ampk_tc_bench_start(&g->bench);
    bool done = kernel || run_plan(g);
    if (kernel)
        run_kernel(g);
    else if (!g->usual->problem.sums)
        ampk_cuda_bn_statistics(g->ctx, &y, &to);
    float ms = ampk_tc_bench_stop(&g->bench);
    return done ? ms : 0;
}

/* ---- the check ---- */

/* Statistics are taken about a rolling mean of 0. */
static void clear_statistics(struct imaging *g)
{
    ampk_rt_zero(g->statistics, AMPK_TC_STATISTICS * (size_t)g->y.c * sizeof(float),
                 g->bench.stream);
}

/* Both sum the same values in FP32, by threads that add up some thousand at most. Each addition
 * has an error of up to 2^-24 of its sum, with no common direction: 2^-19 of a thread's sum, and
 * less of all. For comparison, one tile in 46,208 (64 images of 608) is 2^-15.5 of the sums. */
static const double SLACK_OF_SUMS = 0x1p-17;

/* Compares the kernel's statistics with those of what it stored. */
static bool statistics_agree(struct imaging *g)
{
    size_t k = (size_t)g->y.c;
    clear_statistics(g);
    run_kernel(g); /* once more: what the first run left must not matter */
    const float *taken = ampk_tc_bench_read(&g->bench, g->statistics, 2 * k, g->host);
    const float *right =
        ampk_tc_read_spread(g->ctx, &g->bench, &g->y, g->statistics, g->host + 2 * k);
    return ampk_tc_statistics_agree(g->y.c, right, taken, SLACK_OF_SUMS);
}

/* Results that are rounded to nearest from sums that differ little are one step apart at most.
 * Twice that leaves room for the sums. */
static bool results_agree(struct imaging *g)
{
    float found[2] = {NAN, NAN};
    double step = g->y.dtype == AMPK_BF16 ? 0x1p-7 : 0x1p-10;
    ampk_rt_zero(g->words, 2 * sizeof *g->words, g->bench.stream);
    ampk_conv_compare(g->bench.stream, g->bench.result, g->y.data, g->y.dtype,
                      g->bench.result_bytes, g->words);
    ampk_rt_copy_out(found, g->words, sizeof found, g->bench.stream);
    ampk_tc_bench_wait(&g->bench);
    return found[0] <= 2 * step * found[1];
}

static enum ampk_tc_verdict check(void *bench)
{
    struct imaging *g = bench;
    ampk_rt_zero(g->y.data, g->bench.result_bytes, g->bench.stream);
    clear_statistics(g);
    if (!run_plan(g)) return AMPK_TC_CANNOT_RUN;
    run_kernel(g);
    return results_agree(g) && statistics_agree(g) ? AMPK_TC_IS_RIGHT : AMPK_TC_IS_WRONG;
}

bool ampk_tc_pays_image(struct ampk_context *ctx, const struct ampk_tc_plan *usual, int channels)
{
    char what[32];
    struct ampk_tc *tc = ctx->tensor_core;
    struct imaging g = {.ctx = ctx, .usual = usual, .x.c = channels};
    g.bench = (struct ampk_tc_bench){.tc = tc, .stream = ctx->stream, .what = usual->key};
    static const struct ampk_tc_ways ways = {"plan", "kernel", begin, check, time_ways, end};
    snprintf(what, sizeof what, "an image of %d channels", channels);
    return ampk_tc_decide(tc, &ways, &g, usual, NULL, what);
}
