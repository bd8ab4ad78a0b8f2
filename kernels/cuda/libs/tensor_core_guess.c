/* What the libraries expect to be fast, where nothing is timed. It is run once, where there is
 * memory for that: what refuses gives way to the next. */
#include "tensor_core_bench.h"

#include <stdio.h>

enum { GEMMS_TRIED = 16 };

struct guess {
    struct ampk_tc *tc;
    struct ampk_tc_plan *plan;
    ampk_rt_stream stream;
    struct ampk_tc_bench bench;
    size_t wanted; /* workspace of the bench that was begun */
    bool begun, ready;
};

/* With as much workspace as the way wants: the most that a plan may want takes long to come by. */
static void begin(struct guess *g, const struct ampk_tc_way *way)
{
    if (g->begun) ampk_tc_bench_end(&g->bench);
    g->bench = (struct ampk_tc_bench){.tc = g->tc,
                                      .stream = g->stream,
                                      .workspace_bytes = way->workspace ? way->workspace : 1,
                                      .what = g->plan->key,
                                      .guessed = true};
    g->wanted = way->workspace;
    g->ready = ampk_tc_bench_begin(&g->bench, &g->plan->problem);
    g->begun = true;
}

static bool can_try(struct guess *g, const struct ampk_tc_way *way)
{
    if (!g->begun || way->workspace > g->wanted) begin(g, way);
    return g->ready && way->workspace <= g->bench.workspace_bytes;
}

/* Also where that cannot be seen. */
static bool is_able(struct guess *g, const struct ampk_tc_way *way, const char *key, char *why,
                    size_t why_size)
{
    if (ampk_tc_has_faulted(g->tc, key)) {
        snprintf(why, why_size, "what could compute it made this GPU fault in an earlier run");
        return false;
    }
    if (!can_try(g, way)) return true;
    ampk_tc_bench_blame(&g->bench, way, key);
    bool done = ampk_tc_bench_run(&g->bench, way);
    ampk_tc_bench_wait(&g->bench);
    ampk_tc_bench_blame(&g->bench, NULL, NULL);
    if (!done) snprintf(why, why_size, "%s", g->bench.refusal);
    return done;
}

static bool choose_gemm(struct guess *g, char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &g->plan->problem;
    struct ampk_tc_way *way = &g->plan->way;
    size_t limit = ampk_tc_workspace_limit(g->tc, p);
    char key[AMPK_TC_CHOICE_KEY];
    cublasLtMatmulAlgo_t algorithms[GEMMS_TRIED];
    int count = ampk_tc_list_gemms(g->tc, p, limit, algorithms, GEMMS_TRIED, why, why_size);
    for (int i = 0; i < count; i++) {
        ampk_tc_name_gemm(g->plan, &algorithms[i], key);
        if (!ampk_tc_set_gemm(g->tc, p, way, &algorithms[i], limit)) continue;
        if (is_able(g, way, key, why, why_size)) return true;
        ampk_tc_clear_way(way);
    }
    return false;
}

static bool accepts(void *guess, const struct ampk_cudnn_choice *choice,
                    struct ampk_cudnn_plan *plan, char *why, size_t why_size)
{
    struct guess *g = guess;
    const struct ampk_tc_way way = {.cudnn = plan, .workspace = plan->workspace};
    char key[AMPK_TC_CHOICE_KEY];
    ampk_tc_name_cudnn(g->plan, choice, key);
    return is_able(g, &way, key, why, why_size);
}

static bool choose_cudnn(struct guess *g, char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &g->plan->problem;
    struct ampk_tc_way *way = &g->plan->way;
    struct ampk_cudnn_choice choice;
    const struct ampk_cudnn_terms terms = {ampk_tc_workspace_limit(g->tc, p), accepts, g};
    way->cudnn = ampk_cudnn_plan_expected(&g->tc->cudnn, p, &terms, &choice, why, why_size);
    if (way->cudnn) way->workspace = way->cudnn->workspace;
    return way->cudnn != NULL;
}

/* Connected layers and FP32 results are cuBLASLt's, the rest cuDNN's. */
bool ampk_tc_choose_by_guess(struct ampk_tc *tc, struct ampk_tc_plan *plan, ampk_rt_stream stream,
                             char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &plan->problem;
    struct guess g = {.tc = tc, .plan = plan, .stream = stream};
    bool image = p->kh == p->h && p->kw == p->w;
    bool wide = ampk_tc_is_wide(p);
    bool chosen = (image || wide) && choose_gemm(&g, why, why_size);
    if (!chosen && !wide) chosen = choose_cudnn(&g, why, why_size);
    if (g.begun) ampk_tc_bench_end(&g.bench);
    return chosen;
}
