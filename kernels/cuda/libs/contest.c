/* Decides between two ways to use plans: the rig of every contest, and the contest of a
 * convolution's gradients, one after the other or beside each other. Must not know what the ways
 * compute: each contest brings its own check and clock. */
#include "plans.h"

#include "kernels/cuda/conv/conv_kernels.h"
#include "kernels/cuda/runtime/backend.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Leave the usual way only if it takes this much longer. */
static const float WORTH = 1.03f;

static const char WRONG_RESULTS[] = ": wrong";

enum { CHECKED_RUNS = 3 }; /* of gradients beside each other */

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
    enum ampk_tc_verdict verdict = c->ways->check(c->bench);
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
    double from = ampk_tc_now();
    bool begun = c->ways->begin(c->bench);
    ampk_tc_try(c->tc, c->key);
    bool held = begun && hold(c, value);
    ampk_tc_try(c->tc, NULL);
    c->ways->end(c->bench);
    c->tc->timed.contests++;
    c->tc->timed.seconds += ampk_tc_now() - from;
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
    void *data_kept, *weights_kept;     /* results of one stream, for comparison */
    uint32_t *words;                    /* on the device, of ampk_conv_compare */
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
    if (ready) g->data_kept = ampk_rt_alloc(g->data.result_bytes);
    if (ready) g->weights_kept = ampk_rt_alloc(g->weights.result_bytes);
    g->words = ampk_rt_alloc(2 * sizeof *g->words);
    return ready && g->fork && g->join && g->data_kept && g->weights_kept && g->words &&
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
    ampk_rt_free(g->data_kept);
    ampk_rt_free(g->weights_kept);
    ampk_rt_free(g->words);
    if (g->fork) ampk_rt_event_destroy(g->fork);
    if (g->join) ampk_rt_event_destroy(g->join);
}

/* Runs both gradients in the order in which conv.c starts them. */
static bool run_gradients(struct gradients *g, bool beside)
{
    struct ampk_tc_bench *data = &g->data, *weights = &g->weights;
    weights->stream = beside ? g->side : data->stream;
    if (beside) ampk_rt_order(g->fork, data->stream, g->side);
    bool done = !beside || ampk_tc_bench_run(weights, &g->weights_plan->engine);
    done = done && ampk_tc_bench_run(data, &g->data_plan->engine);
    done = done && (beside || ampk_tc_bench_run(weights, &g->weights_plan->engine));
    if (beside) ampk_rt_order(g->join, g->side, data->stream);
    return done;
}

static float time_gradients(void *bench, bool beside)
{
    struct gradients *g = bench;
    ampk_tc_bench_start(&g->data);
    bool done = run_gradients(g, beside);
    float ms = ampk_tc_bench_stop(&g->data);
    return done ? ms : 0;
}

static bool same_bits(struct gradients *g, const struct ampk_tc_bench *b,
                      const struct ampk_tc_plan *plan, const void *kept)
{
    float found[2] = {NAN, NAN};
    ampk_rt_zero(g->words, sizeof found, g->data.stream);
    ampk_conv_compare(g->data.stream, kept, b->result, plan->problem.result, b->result_bytes,
                      g->words);
    ampk_rt_copy_out(found, g->words, sizeof found, g->data.stream);
    ampk_tc_bench_wait(&g->data);
    return found[0] == 0;
}

/* Both gradients beside each other give the bits that they give one after the other, every time:
 * one handle of a library serves two streams then, and what they share shows now and then only. */
static enum ampk_tc_verdict check_gradients(void *bench)
{
    struct gradients *g = bench;
    void *data = g->data.result, *weights = g->weights.result;
    g->data.result = g->data_kept, g->weights.result = g->weights_kept;
    bool done = run_gradients(g, false);
    g->data.result = data, g->weights.result = weights;
    if (!done) return AMPK_TC_CANNOT_RUN;
    for (int i = 0; i < CHECKED_RUNS; i++) {
        ampk_rt_zero(data, g->data.result_bytes, g->data.stream);
        ampk_rt_zero(weights, g->weights.result_bytes, g->data.stream);
        if (!run_gradients(g, true)) return AMPK_TC_CANNOT_RUN;
        if (!same_bits(g, &g->data, g->data_plan, g->data_kept) ||
            !same_bits(g, &g->weights, g->weights_plan, g->weights_kept))
            return AMPK_TC_IS_WRONG;
    }
    return AMPK_TC_IS_RIGHT;
}

/* Side by side, both workspaces are in use at once, so together they must keep within the limit of
 * one plan. */
bool ampk_tc_pays_beside(struct ampk_tc *tc, const struct ampk_tc_plan *data,
                         const struct ampk_tc_plan *weights, ampk_rt_stream stream,
                         ampk_rt_stream side)
{
    struct ampk_tc_bench bench = {.tc = tc, .stream = stream, .what = data->key};
    struct gradients gradients = {
        .data_plan = data, .weights_plan = weights, .data = bench, .weights = bench, .side = side};
    static const struct ampk_tc_ways ways = {"one stream",    "beside",       begin_gradients,
                                             check_gradients, time_gradients, end_gradients};
    char what[32];
    if (data->engine.workspace + weights->engine.workspace >
        ampk_tc_workspace_limit(tc, &data->problem))
        return false;
    snprintf(what, sizeof what, "beside weights to %s", ampk_dtype_name(weights->problem.result));
    return ampk_tc_decide(tc, &ways, &gradients, data, weights, what);
}
