/* Decides between two ways to use plans: the rig of every contest, and the contest of a
 * convolution's gradients, one after the other or beside each other. Must not know what the ways
 * compute: each contest brings its own check and clock. */
#include "plans.h"

#include "kernels/cuda/runtime/backend.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Leave the usual way only if it takes this much longer. */
static const float WORTH = 1.03f;

static const char WRONG_RESULTS[] = ": wrong";

struct contest {
    struct ampk_tc *tc;
    const struct ampk_tc_ways *ways;
    void *bench;
    char key[AMPK_TC_KEY + 48]; /* in the file */
    char plans[64];             /* the times of the plans that the ways use */
};

/* Reads an answer from the file: the times of the plans, then the fastest time of each way, or
 * that the other way is wrong. Ignores an answer for other plans: with another engine the contest
 * may end otherwise. A fault counts with whatever plans. */
static bool read_answer(const struct contest *c, bool *pays)
{
    const char *value = ampk_plan_cache_find(c->tc->cache, c->key);
    size_t plans = strlen(c->plans);
    float usual, other;
    *pays = false;
    if (ampk_tc_is_left_out(c->tc, c->key)) return true;
    if (!value || strncmp(value, c->plans, plans)) return false;
    if (!strcmp(value + plans, WRONG_RESULTS)) return true;
    if (sscanf(value + plans, ": %*[a-z ]%f, %*[a-z ]%f", &usual, &other) != 2) return false;
    *pays = usual > WORTH * other;
    return true;
}

/* The fastest time of each way. They run in turns, so that a slow phase of the device hits both.
 * The first turn loads the kernels. */
static bool time_both(const struct contest *c, float *usual, float *other)
{
    for (int i = 0; i < AMPK_TC_TIMED_RUNS; i++) {
        float one = c->ways->time(c->bench, false),
              two = one > 0 ? c->ways->time(c->bench, true) : 0;
        if (two <= 0) return false;
        if (i == 0 || one < *usual) *usual = one;
        if (i == 0 || two < *other) *other = two;
    }
    return true;
}

/* Names only the first wrong way of a run; the file lists all. */
static void say_wrong(const struct contest *c)
{
    char text[sizeof c->key + 100];
    snprintf(text, sizeof text, "%s: wrong results on this GPU: disabled (reported once)", c->key);
    if (!c->tc->said_wrong) ampk_tc_say(text);
    c->tc->said_wrong = true;
}

/* Runs the contest and writes its answer; false if the plans cannot run. */
static bool hold(const struct contest *c, char value[AMPK_TC_VALUE])
{
    float usual, other;
    enum ampk_tc_verdict verdict = c->ways->check ? c->ways->check(c->bench) : AMPK_TC_IS_RIGHT;
    if (verdict == AMPK_TC_IS_WRONG) {
        say_wrong(c);
        snprintf(value, AMPK_TC_VALUE, "%s%s", c->plans, WRONG_RESULTS);
        return true;
    }
    if (verdict == AMPK_TC_CANNOT_RUN || !time_both(c, &usual, &other)) return false;
    snprintf(value, AMPK_TC_VALUE, "%s: %s %.6g, %s %.6g", c->plans, c->ways->usual, usual,
             c->ways->other, other);
    return true;
}

static void measure(const struct contest *c)
{
    char value[AMPK_TC_VALUE];
    if (c->tc->settings.untimed) return;
    ampk_tc_say_timing(c->tc);
    bool begun = c->ways->begin(c->bench);
    c->tc->trying = c->key;
    bool held = begun && hold(c, value);
    c->tc->trying = NULL;
    c->ways->end(c->bench);
    if (!held) return;
    ampk_plan_cache_add(c->tc->cache, c->key, value);
    ampk_tc_save_cache(c->tc);
}

bool ampk_tc_decide(struct ampk_tc *tc, const struct ampk_tc_ways *ways, void *bench,
                    const struct ampk_tc_plan *first, const struct ampk_tc_plan *second,
                    const char *what)
{
    bool pays;
    struct contest c = {.tc = tc, .ways = ways, .bench = bench};
    if (first->engine.ms <= 0 || (second && second->engine.ms <= 0)) return false;
    snprintf(c.key, sizeof c.key, "%s; %s", first->key, what);
    int used = snprintf(c.plans, sizeof c.plans, "%.6g", first->engine.ms);
    if (second) snprintf(c.plans + used, sizeof c.plans - used, " %.6g", second->engine.ms);
    if (read_answer(&c, &pays)) return pays;
    ampk_plan_cache_refresh(tc->cache); /* contexts beside this one have the same answer */
    if (read_answer(&c, &pays)) return pays;
    measure(&c);
    read_answer(&c, &pays);
    return pays;
}

/* ---- statistics ---- */

struct ampk_bn_statistics ampk_tc_statistics_at(float *vectors, size_t channels)
{
    return (struct ampk_bn_statistics){
        vectors, vectors + channels, vectors + 2 * channels, vectors + 3 * channels, AMPK_BN_CUDNN,
        NULL};
}

const float *ampk_tc_read_spread(struct ampk_context *ctx, struct ampk_tc_bench *b,
                                 const struct ampk_tensor *t, float *vectors, float *to)
{
    size_t c = (size_t)t->c;
    struct ampk_bn_statistics statistics = ampk_tc_statistics_at(vectors, c);
    ampk_rt_zero(vectors, AMPK_TC_STATISTICS * c * sizeof *vectors, b->stream);
    ampk_cuda_bn_statistics(ctx, t, &statistics);
    return ampk_tc_bench_read(b, vectors, 2 * c, to);
}

bool ampk_tc_statistics_agree(int channels, const float *a, const float *b, double slack)
{
    const float *a_variance = a + channels, *b_variance = b + channels;
    for (int c = 0; c < channels; c++) {
        double square = a_variance[c] + (double)a[c] * a[c];
        bool mean = fabs((double)a[c] - b[c]) <= slack * sqrt(square);
        if (!mean || !(fabs((double)a_variance[c] - b_variance[c]) <= 4 * slack * square))
            return false;
    }
    return true;
}

/* ---- gradients beside each other ---- */

struct gradients {
    const struct ampk_tc_plan *data_plan, *weights_plan;
    struct ampk_tc_bench data, weights; /* they share dy */
    ampk_rt_stream side;
    ampk_rt_event fork, join;
};

static bool begin_gradients(void *bench)
{
    struct gradients *g = bench;
    bool ready = ampk_tc_bench_begin(&g->data, &g->data_plan->problem);
    g->weights.second = g->data.first;
    g->weights.workspace_bytes =
        g->weights_plan->engine.workspace + 1; /* small: only the other bench's is cleared */
    ready = ready && ampk_tc_bench_begin(&g->weights, &g->weights_plan->problem);
    g->fork = ampk_rt_event_create(false);
    g->join = ampk_rt_event_create(false);
    return ready && g->fork && g->join &&
           g->data.workspace_bytes >= g->data_plan->engine.workspace &&
           g->weights.workspace_bytes >= g->weights_plan->engine.workspace;
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

/* Times both gradients in the order in which conv.c starts them. */
static float time_gradients(void *bench, bool beside)
{
    struct gradients *g = bench;
    struct ampk_tc_bench *data = &g->data, *weights = &g->weights;
    ampk_tc_bench_start(data);
    weights->stream = beside ? g->side : data->stream;
    if (beside) ampk_rt_order(g->fork, data->stream, g->side);
    bool done = !beside || ampk_tc_bench_run(weights, &g->weights_plan->engine);
    done = done && ampk_tc_bench_run(data, &g->data_plan->engine);
    done = done && (beside || ampk_tc_bench_run(weights, &g->weights_plan->engine));
    if (beside) ampk_rt_order(g->join, g->side, data->stream);
    float ms = ampk_tc_bench_stop(data);
    return done ? ms : 0;
}

/* Side by side, both workspaces are in use at once, so together they must keep within the limit of
 * one plan. */
bool ampk_tc_pays_beside(struct ampk_tc *tc, const struct ampk_tc_plan *data,
                         const struct ampk_tc_plan *weights, ampk_rt_stream stream,
                         ampk_rt_stream side)
{
    struct ampk_tc_bench bench = {.tc = tc, .stream = stream, .what = data->key};
    struct gradients gradients = {data, weights, bench, bench, side, NULL, NULL};
    static const struct ampk_tc_ways ways = {"one stream", "beside",       begin_gradients,
                                             NULL,         time_gradients, end_gradients};
    char what[32];
    if (data->engine.workspace + weights->engine.workspace >
        ampk_tc_workspace_limit(tc, &data->problem))
        return false;
    snprintf(what, sizeof what, "beside weights to %s", ampk_dtype_name(weights->problem.result));
    return ampk_tc_decide(tc, &ways, &gradients, data, weights, what);
}
