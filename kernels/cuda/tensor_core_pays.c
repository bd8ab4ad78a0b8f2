/* Whether it pays to use plans in another way than one by one: both ways are timed in turns once,
 * and the answer is kept with the plans. */
#include "tensor_core_bench.h"

#include "kernels/cuda/backend.h"
#include "kernels/cuda/context.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The usual way is left where it takes this much longer. */
static const float WORTH = 1.03f;

/* ---- contests ---- */

enum verdict { CANNOT_RUN, WRONG, RIGHT };

struct contest {
    struct ampk_tc *tc;
    const char *usual, *other;  /* what the ways are called in the file */
    char key[AMPK_TC_KEY + 32]; /* there */
    char plans[64];             /* the times of the plans that both use */
    void *bench;
    bool (*begin)(void *bench);             /* false: no memory */
    enum verdict (*check)(void *bench);     /* of the other way's results; NULL: no need */
    float (*time)(void *bench, bool other); /* milliseconds; 0: it cannot run */
    void (*end)(void *bench);
};

static const char WRONG_RESULTS[] = ": wrong";

/* In the file: the times of the plans, then the fastest of each way, or that the other is wrong.
 * What is there for other plans does not count. */
static bool read_answer(const struct contest *c, bool *pays)
{
    const char *value = ampk_plan_cache_find(c->tc->cache, c->key);
    size_t plans = strlen(c->plans);
    float usual, other;
    *pays = false;
    if (!value || strncmp(value, c->plans, plans)) return false;
    if (!strcmp(value + plans, WRONG_RESULTS)) return true;
    if (sscanf(value + plans, ": %*[a-z ]%f, %*[a-z ]%f", &usual, &other) != 2) return false;
    *pays = usual > WORTH * other;
    return true;
}

/* The fastest of each, taken in turns, the first of which load the kernels. */
static bool time_both(const struct contest *c, float *usual, float *other)
{
    for (int i = 0; i < AMPK_TC_TIMED_RUNS; i++) {
        float one = c->time(c->bench, false), two = one > 0 ? c->time(c->bench, true) : 0;
        if (two <= 0) return false;
        if (i == 0 || one < *usual) *usual = one;
        if (i == 0 || two < *other) *other = two;
    }
    return true;
}

/* The first time; the file has them all. */
static void say_wrong(const struct contest *c)
{
    char text[sizeof c->key + 100];
    snprintf(text, sizeof text, "%s: wrong results on this GPU; not used, nor where else it is so",
             c->key);
    if (!c->tc->said_wrong) ampk_tc_say(text);
    c->tc->said_wrong = true;
}

/* False where there is no memory for it, or the plans cannot run. */
static bool hold(const struct contest *c, char value[AMPK_TC_VALUE])
{
    float usual, other;
    if (!c->begin(c->bench)) return false;
    enum verdict verdict = c->check ? c->check(c->bench) : RIGHT;
    if (verdict == WRONG) {
        say_wrong(c);
        snprintf(value, AMPK_TC_VALUE, "%s%s", c->plans, WRONG_RESULTS);
        return true;
    }
    if (verdict == CANNOT_RUN || !time_both(c, &usual, &other)) return false;
    snprintf(value, AMPK_TC_VALUE, "%s: %s %.6g, %s %.6g", c->plans, c->usual, usual, c->other,
             other);
    return true;
}

static void measure(const struct contest *c)
{
    char value[AMPK_TC_VALUE];
    if (c->tc->settings.untimed) return;
    ampk_tc_say_timing(c->tc);
    bool held = hold(c, value);
    c->end(c->bench);
    if (!held) return;
    ampk_plan_cache_add(c->tc->cache, c->key, value);
    ampk_tc_save_cache(c->tc);
}

/* The names and `bench` are set. */
static bool decide(struct contest *c, const struct ampk_tc_plan *first,
                   const struct ampk_tc_plan *second, const char *what)
{
    bool pays;
    if (first->way.ms <= 0 || second->way.ms <= 0) return false;
    snprintf(c->key, sizeof c->key, "%s; %s", first->key, what);
    snprintf(c->plans, sizeof c->plans, "%.6g %.6g", first->way.ms, second->way.ms);
    if (read_answer(c, &pays)) return pays;
    ampk_plan_cache_refresh(c->tc->cache); /* contexts beside this one have the same answer */
    if (read_answer(c, &pays)) return pays;
    measure(c);
    read_answer(c, &pays);
    return pays;
}

/* ---- gradients beside each other ---- */

struct gradients {
    const struct ampk_tc_plan *data_plan, *weights_plan;
    struct ampk_tc_bench data, weights; /* dy is the same */
    ampk_rt_stream side;
    ampk_rt_event fork, join;
};

static bool begin_gradients(void *bench)
{
    struct gradients *g = bench;
    bool ready = ampk_tc_bench_begin(&g->data, &g->data_plan->problem);
    g->weights.second = g->data.first;
    g->weights.workspace_bytes = g->weights_plan->way.workspace + 1; /* the other is cleared */
    ready = ready && ampk_tc_bench_begin(&g->weights, &g->weights_plan->problem);
    g->fork = ampk_rt_event_create(false);
    g->join = ampk_rt_event_create(false);
    return ready && g->fork && g->join && g->data.workspace_bytes >= g->data_plan->way.workspace &&
           g->weights.workspace_bytes >= g->weights_plan->way.workspace;
}

static void end_gradients(void *bench)
{
    struct gradients *g = bench;
    ampk_rt_stream_wait(g->side);
    g->weights.second = NULL;
    ampk_tc_bench_end(&g->data);
    ampk_tc_bench_end(&g->weights);
    if (g->fork) ampk_rt_event_destroy(g->fork);
    if (g->join) ampk_rt_event_destroy(g->join);
}

/* Both gradients as conv.c computes them. */
static float time_gradients(void *bench, bool beside)
{
    struct gradients *g = bench;
    struct ampk_tc_bench *data = &g->data, *weights = &g->weights;
    ampk_tc_bench_start(data);
    weights->stream = beside ? g->side : data->stream;
    if (beside) ampk_rt_order(g->fork, data->stream, g->side);
    bool done = !beside || ampk_tc_bench_run(weights, &g->weights_plan->way);
    done = done && ampk_tc_bench_run(data, &g->data_plan->way);
    done = done && (beside || ampk_tc_bench_run(weights, &g->weights_plan->way));
    if (beside) ampk_rt_order(g->join, g->side, data->stream);
    float ms = ampk_tc_bench_stop(data);
    return done ? ms : 0;
}

bool ampk_tc_pays_beside(struct ampk_tc *tc, const struct ampk_tc_plan *data,
                         const struct ampk_tc_plan *weights, ampk_rt_stream stream,
                         ampk_rt_stream side)
{
    struct ampk_tc_bench bench = {.tc = tc, .stream = stream, .what = data->key};
    struct gradients gradients = {data, weights, bench, bench, side, NULL, NULL};
    struct contest contest = {.tc = tc,
                              .usual = "one stream",
                              .other = "beside",
                              .bench = &gradients,
                              .begin = begin_gradients,
                              .time = time_gradients,
                              .end = end_gradients};
    char what[32];
    if (data->way.workspace + weights->way.workspace > ampk_tc_workspace_limit(tc, &data->problem))
        return false;
    snprintf(what, sizeof what, "beside weights to %s", ampk_tc_name_of(weights->problem.result));
    return decide(&contest, data, weights, what);
}

/* ---- batch-norm's sums in the epilogue ---- */

struct statistics {
    struct ampk_context *ctx;
    const struct ampk_tc_plan *apart, *summed;
    struct ampk_tc_bench bench;
    struct ampk_tensor y;
    float *device; /* means and variances of the batch, and those that roll */
    float *host;   /* the first two, thrice */
};

static bool begin_statistics(void *bench)
{
    struct statistics *s = bench;
    const struct ampk_tc_problem *p = &s->summed->problem;
    size_t k = (size_t)p->k;
    bool ready = ampk_tc_bench_begin(&s->bench, p);
    int oh = ampk_tc_out(p, p->h, p->kh), ow = ampk_tc_out(p, p->w, p->kw);
    s->y = (struct ampk_tensor){s->bench.result, p->result, AMPK_NHWC, p->n, p->k, oh, ow,
                                k * oh * ow,     0};
    s->device = ampk_rt_alloc(4 * k * sizeof *s->device);
    s->host = malloc(6 * k * sizeof *s->host);
    if (s->device) ampk_rt_zero(s->device, 4 * k * sizeof *s->device, s->bench.stream);
    return ready && s->device && s->host && s->bench.workspace_bytes >= s->apart->way.workspace &&
           s->bench.workspace_bytes >= s->summed->way.workspace;
}

static void end_statistics(void *bench)
{
    struct statistics *s = bench;
    ampk_tc_bench_end(&s->bench);
    ampk_rt_free(s->device);
    free(s->host);
}

static void take_statistics(struct statistics *s, bool from_sums)
{
    size_t k = (size_t)s->y.c;
    struct ampk_bn_statistics to = {s->device,         s->device + k, s->device + 2 * k,
                                    s->device + 3 * k, AMPK_BN_CUDNN, NULL};
    if (from_sums)
        ampk_cuda_summed_statistics(s->ctx, s->bench.sums, &s->y, &to);
    else
        ampk_cuda_bn_statistics(s->ctx, &s->y, &to);
}

/* A convolution and its statistics as conv.c computes them. */
static float time_statistics(void *bench, bool in_epilogue)
{
    struct statistics *s = bench;
    ampk_tc_bench_start(&s->bench);
    bool done = ampk_tc_bench_run(&s->bench, in_epilogue ? &s->summed->way : &s->apart->way);
    take_statistics(s, in_epilogue);
    float ms = ampk_tc_bench_stop(&s->bench);
    return done ? ms : 0;
}

/* Takes them about a rolling mean of 0. */
static const float *read_statistics(struct statistics *s, bool from_sums, float *to)
{
    size_t bytes = 2 * (size_t)s->y.c * sizeof *to;
    ampk_rt_zero(s->device, 2 * bytes, s->bench.stream);
    take_statistics(s, from_sums);
    ampk_rt_copy_out(to, s->device, bytes, s->bench.stream);
    ampk_tc_bench_wait(&s->bench);
    return to;
}

/* Whether means and variances agree in every channel, those of `a` being right. With R the root of
 * the mean of y^2: the mean may be off by slack * R, and with it the mean of y^2 and the square of
 * the mean by 2 slack * R^2 each. */
static bool agree(const struct statistics *s, const float *a, const float *b, double slack)
{
    const float *a_variance = a + s->y.c, *b_variance = b + s->y.c;
    for (int c = 0; c < s->y.c; c++) {
        double square = a_variance[c] + (double)a[c] * a[c];
        bool mean = fabs((double)a[c] - b[c]) <= slack * sqrt(square);
        bool variance = fabs((double)a_variance[c] - b_variance[c]) <= 4 * slack * square;
        if (!mean || !variance) return false;
    }
    return true;
}

/* Of the y of two engines:
 *     2^-10           of a value: rounded to FP16 once in either way
 *     2^-21 products  of R, in a value: each product rounds or cuts a sum of up to 2 R, twice
 *     2^-20 sqrt(n)   of R, in the mean: roundings of our sum, 8 of the root of their number, twice
 */
static double slack_of_y(const struct statistics *s, double count)
{
    const struct ampk_tc_problem *p = &s->summed->problem;
    double products = (double)p->c / p->groups * p->kh * p->kw;
    return 0x1p-10 + 0x1p-21 * products + 0x1p-20 * sqrt(count);
}

/* Of sums of the same y, before or after it was rounded to FP16: these roundings have no common
 * direction, and 8 / sqrt(n) of 2^-10 is more than is left of them in a mean. 2^-23 sqrt(n): the
 * sums' own roundings, of which an engine that adds n/64 values in a row has no more. */
static double slack_of_sums(double count)
{
    return 0x1p-7 / sqrt(count) + 0x1p-23 * sqrt(count);
}

/* The sums by the y beside them, and that y by the plain convolution's. */
static enum verdict check_statistics(void *bench)
{
    struct statistics *s = bench;
    size_t each = 2 * (size_t)s->y.c;
    double count = (double)s->y.n * s->y.h * s->y.w;
    if (!ampk_tc_bench_run(&s->bench, &s->apart->way)) return CANNOT_RUN;
    const float *expected = read_statistics(s, false, s->host);
    for (int i = 0; i < 2; i++) /* that would show sums added to older ones */
        if (!ampk_tc_bench_run(&s->bench, &s->summed->way)) return CANNOT_RUN;
    const float *stored = read_statistics(s, false, s->host + each);
    const float *summed = read_statistics(s, true, s->host + 2 * each);
    return agree(s, expected, stored, slack_of_y(s, count)) &&
                   agree(s, stored, summed, slack_of_sums(count))
               ? RIGHT
               : WRONG;
}

bool ampk_tc_pays_sums(struct ampk_context *ctx, const struct ampk_tc_plan *apart,
                       const struct ampk_tc_plan *summed)
{
    struct statistics statistics = {
        .ctx = ctx,
        .apart = apart,
        .summed = summed,
        .bench = {.tc = ctx->tensor_core, .stream = ctx->stream, .what = summed->key},
    };
    struct contest contest = {.tc = ctx->tensor_core,
                              .usual = "kernel",
                              .other = "epilogue",
                              .bench = &statistics,
                              .begin = begin_statistics,
                              .check = check_statistics,
                              .time = time_statistics,
                              .end = end_statistics};
    return decide(&contest, apart, summed, "sums in the epilogue");
}
