/* Whether a convolution's gradients are computed sooner beside each other. */
#include "tensor_core_contest.h"

#include <stdio.h>

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
    struct ampk_tc_contest contest = {.tc = tc,
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
    return ampk_tc_decide(&contest, data, weights, what);
}
