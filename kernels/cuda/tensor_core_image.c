/* Whether our kernel for images (image_conv.h) computes a forward pass and batch-norm's statistics
 * sooner than a plan does; and whether it is right on this device.
 *
 * Right are an image's results by those of the plan, number by number, and those of the others by
 * their statistics; and the kernel's statistics by what it stored. */
#include "tensor_core_agree.h"
#include "tensor_core_contest.h"

#include "kernels/cuda/backend.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/conv_layout.h"
#include "kernels/cuda/image_conv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float MEAN_OF_X =
    1; /* channels of y get means of their own, some larger than their spread */

enum { STATISTICS = 4 }; /* vectors: mean and variance of the batch, and those that roll */

struct imaging {
    struct ampk_context *ctx;
    const struct ampk_tc_plan *usual;
    struct ampk_tc_bench bench;
    struct ampk_tensor x, y;
    float *statistics;      /* on the device */
    float *usual_y, *own_y; /* there: an image of y in FP32 */
    uint32_t *amax;         /* there: of the plan's image, and of the difference */
    float *host;            /* mean and variance, three times */
};

static size_t image_of_y(const struct imaging *g)
{
    return (size_t)g->y.c * g->y.h * g->y.w;
}

static bool begin(void *bench)
{
    struct imaging *g = bench;
    const struct ampk_tc_problem *p = &g->usual->problem;
    enum ampk_dtype operand = ampk_tc_operand(p->compute);
    size_t pixels = (size_t)p->n * p->h * p->w, k = (size_t)p->k, c = (size_t)g->x.c;
    bool ready = ampk_tc_bench_begin(&g->bench, p);
    g->x = (struct ampk_tensor){NULL, operand, AMPK_NHWC,       p->n, (int)c,
                                p->h, p->w,    c * p->h * p->w, 0};
    g->y = (struct ampk_tensor){g->bench.result, operand, AMPK_NHWC, p->n, (int)k, p->h, p->w,
                                k * p->h * p->w, 0};
    g->x.data = ampk_rt_alloc(pixels * c * ampk_dtype_bytes(operand));
    g->statistics = ampk_rt_alloc(STATISTICS * k * sizeof(float));
    g->usual_y = ampk_rt_alloc(image_of_y(g) * sizeof(float));
    g->own_y = ampk_rt_alloc(image_of_y(g) * sizeof(float));
    g->amax = ampk_rt_alloc(2 * sizeof *g->amax);
    g->host = malloc(3 * 2 * k * sizeof *g->host);
    if (g->x.data) ampk_conv_fill(g->bench.stream, g->x.data, operand, pixels * c, MEAN_OF_X);
    return ready && g->x.data && g->statistics && g->usual_y && g->own_y && g->amax && g->host &&
           g->bench.workspace_bytes >= g->usual->way.workspace;
}

static void end(void *bench)
{
    struct imaging *g = bench;
    ampk_tc_bench_end(&g->bench);
    ampk_rt_free(g->x.data);
    ampk_rt_free(g->statistics);
    ampk_rt_free(g->usual_y);
    ampk_rt_free(g->own_y);
    ampk_rt_free(g->amax);
    free(g->host);
}

static struct ampk_bn_statistics statistics_of(const struct imaging *g)
{
    float *at = g->statistics;
    size_t k = (size_t)g->y.c;
    return (struct ampk_bn_statistics){at, at + k, at + 2 * k, at + 3 * k, AMPK_BN_CUDNN, NULL};
}

/* ---- the two ways, as conv.c has them ---- */

static bool run_plan(struct imaging *g)
{
    const struct ampk_tc_problem *p = &g->usual->problem;
    ampk_conv_pack(g->ctx, &g->x, p->compute, p->c, g->bench.first);
    return ampk_tc_bench_run(&g->bench, &g->usual->way);
}

static void run_kernel(struct imaging *g)
{
    struct ampk_bn_statistics to = statistics_of(g);
    ampk_image_conv(g->ctx, &g->x, g->bench.second, &g->y, &to);
}

static float time_ways(void *bench, bool kernel)
{
    struct imaging *g = bench;
    struct ampk_bn_statistics to = statistics_of(g);
    ampk_tc_bench_start(&g->bench);
    bool done = kernel || run_plan(g);
    if (kernel)
        run_kernel(g);
    else if (g->usual->problem.sums)
        ampk_cuda_summed_statistics(g->ctx, g->bench.sums.sums, &g->y, &to);
    else
        ampk_cuda_bn_statistics(g->ctx, &g->y, &to);
    float ms = ampk_tc_bench_stop(&g->bench);
    return done ? ms : 0;
}

/* ---- the check ---- */

/* Statistics are taken about a rolling mean of 0. */
static void clear_statistics(struct imaging *g)
{
    ampk_rt_zero(g->statistics, STATISTICS * (size_t)g->y.c * sizeof(float), g->bench.stream);
}

/* Mean and variance. */
static const float *read_statistics(struct imaging *g, float *to)
{
    ampk_rt_copy_out(to, g->statistics, 2 * (size_t)g->y.c * sizeof *to, g->bench.stream);
    ampk_tc_bench_wait(&g->bench);
    return to;
}

/* Of y as it is stored. */
static const float *take_statistics(struct imaging *g, float *to)
{
    struct ampk_bn_statistics statistics = statistics_of(g);
    clear_statistics(g);
    ampk_cuda_bn_statistics(g->ctx, &g->y, &statistics);
    return read_statistics(g, to);
}

/* The last one, behind which an address that is too small would not come. */
static void widen_image(struct imaging *g, float *to)
{
    struct ampk_tensor from = g->y, wide = g->y;
    from.n = wide.n = 1;
    from.data = (char *)from.data + (g->y.n - 1) * image_of_y(g) * ampk_dtype_bytes(g->y.dtype);
    wide.data = to;
    wide.dtype = AMPK_FP32;
    ampk_cuda_convert(g->ctx, &from, &wide, false, NULL);
}

/* Rounded to nearest from sums that differ little, results are a step apart at most; twice that is
 * for the sums. */
static bool images_agree(struct imaging *g)
{
    uint32_t words[2];
    float values[2];
    size_t n = image_of_y(g);
    ampk_rt_zero(g->amax, sizeof words, g->bench.stream);
    ampk_cuda_amax(g->ctx, g->usual_y, n, g->amax);
    ampk_cuda_accumulate(g->ctx, g->own_y, n, -1, g->usual_y);
    ampk_cuda_amax(g->ctx, g->usual_y, n, g->amax + 1);
    ampk_rt_copy_out(words, g->amax, sizeof words, g->bench.stream);
    ampk_tc_bench_wait(&g->bench);
    memcpy(values, words, sizeof values);
    return values[1] <= 2 * ampk_tc_step(&g->usual->problem) * values[0];
}

static enum ampk_tc_verdict check(void *bench)
{
    struct imaging *g = bench;
    int k = g->y.c;
    double count = (double)g->y.n * g->y.h * g->y.w;
    if (!run_plan(g)) return AMPK_TC_CANNOT_RUN;
    widen_image(g, g->usual_y);
    const float *expected = take_statistics(g, g->host);
    run_kernel(g); /* what it leaves must not matter to the next run */
    clear_statistics(g);
    ampk_rt_zero(g->y.data, g->y.n * image_of_y(g) * ampk_dtype_bytes(g->y.dtype),
                 g->bench.stream); /* of what is missing now, the plan's would be right */
    run_kernel(g);
    const float *taken = read_statistics(g, g->host + 2 * k);
    widen_image(g, g->own_y);
    const float *stored = take_statistics(g, g->host + 4 * k);
    double of_results = ampk_tc_slack_of_results(&g->usual->problem, 2, count);
    return images_agree(g) && ampk_tc_statistics_agree(k, expected, stored, of_results) &&
                   ampk_tc_statistics_agree(k, stored, taken, ampk_tc_slack_of_sums(count))
               ? AMPK_TC_RIGHT
               : AMPK_TC_WRONG;
}

bool ampk_tc_pays_image(struct ampk_context *ctx, const struct ampk_tc_plan *usual, int channels)
{
    char what[32];
    struct ampk_tc *tc = ctx->tensor_core;
    struct imaging g = {.ctx = ctx, .usual = usual, .x.c = channels};
    g.bench = (struct ampk_tc_bench){.tc = tc, .stream = ctx->stream, .what = usual->key};
    struct ampk_tc_contest contest = {.tc = tc,
                                      .usual = "plan",
                                      .other = "kernel",
                                      .bench = &g,
                                      .begin = begin,
                                      .check = check,
                                      .time = time_ways,
                                      .end = end};
    snprintf(what, sizeof what, "an image of %d channels", channels);
    return ampk_tc_decide(&contest, usual, NULL, what);
}
