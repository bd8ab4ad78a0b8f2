/* Times the engines that the libraries name for a problem, as far as its seconds reach, then, if
 * the user wants it, the settings around cuDNN's fastest; verify.c takes the fastest that is right.
 * Where nothing is timed, takes the first engine that the libraries expect to be fast and that
 * runs. Must not know what a plan is used for. */
#include "plans.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    NAMED = 128,       /* choices of cuDNN's heuristics at most */
    CHOICES = 512,     /* with those that the search comes by */
    SEARCH_ROUNDS = 8, /* at most */
    GEMMS_TIMED = 64,
    GEMMS_GUESSED = 16,
};

/* An engine that takes HOPELESS times as long as the best is not run again. The first run alone
 * must be slower still, because a busy host may have kept it waiting. */
static const float HOPELESS = 1.3f, HOPELESS_AT_FIRST = 3;

/* Seconds for one problem, of which cuBLASLt, the first, gets half. The libraries name what they
 * expect to be fast first; what has not been timed by then is left out. */
static const double MOST_SECONDS = 3;

/* Milliseconds of the fastest run; 0 if the engine cannot run. The fastest, not the mean: whatever
 * disturbs a run only makes it longer. */
static float time_engine(struct ampk_tc_bench *b, const struct ampk_tc_engine *engine, float best)
{
    float fastest = 0;
    if (!ampk_tc_bench_run(b, engine)) return 0; /* loads the kernel */
    for (int i = 0; i < AMPK_TC_TIMED_RUNS; i++) {
        ampk_tc_bench_start(b);
        if (!ampk_tc_bench_run(b, engine)) return 0;
        float ms = ampk_tc_bench_stop(b);
        if (ms <= 0) return 0;
        if (i == 0 || ms < fastest) fastest = ms;
        if (best > 0 && fastest > (i ? HOPELESS : HOPELESS_AT_FIRST) * best) break;
    }
    return fastest;
}

/* One engine that could compute a plan's problem. */
struct candidate {
    struct ampk_tc_engine engine;
    char key[AMPK_TC_CHOICE_KEY];
    const char *choice; /* the part of key that names the choice */
};

/* Whether the time is up. The first engine that runs is always timed. */
static bool is_late(struct ampk_tc_trials *t, double until)
{
    bool late = t->count > 0 && ampk_tc_now() > until;
    t->cut_short |= late;
    return late;
}

/* Times a candidate that is set up, and lists it. Returns its time, 0 if it cannot run. */
static float try_engine(struct ampk_tc_bench *b, struct ampk_tc_trials *t, struct candidate *c)
{
    ampk_tc_bench_blame(b, &c->engine, c->key);
    float ms = time_engine(b, &c->engine, t->best);
    ampk_tc_bench_blame(b, NULL, NULL);
    ampk_tc_clear_engine(&c->engine);
    if (ms <= 0) return 0;
    struct ampk_tc_trial *trial = &t->list[t->count++];
    *trial = (struct ampk_tc_trial){.ms = ms, .named = !t->searching};
    snprintf(trial->choice, sizeof trial->choice, "%s", c->choice);
    if (t->best <= 0 || ms < t->best) t->best = ms;
    return ms;
}

/* ---- cuBLASLt ---- */

static void time_gemms(struct ampk_tc_bench *b, const struct ampk_tc_plan *plan,
                       struct ampk_tc_trials *t)
{
    char why[100];
    const struct ampk_tc_problem *p = &plan->problem;
    size_t limit = b->workspace_bytes;
    cublasLtMatmulAlgo_t algorithms[GEMMS_TIMED];
    int count = ampk_tc_list_gemms(b->tc, p, limit, algorithms, GEMMS_TIMED, why, sizeof why);
    double until = t->until - MOST_SECONDS / 2;
    for (int i = 0; i < count && !is_late(t, until); i++) {
        struct candidate c = {.engine.ms = 0};
        c.choice = ampk_tc_name_gemm(plan, &algorithms[i], c.key);
        if (ampk_tc_is_left_out(b->tc, c.key)) continue;
        if (ampk_tc_set_gemm(b->tc, p, &c.engine, &algorithms[i], limit)) try_engine(b, t, &c);
    }
}

/* ---- cuDNN ---- */

/* cuDNN's choices, and which of them have been tried. */
struct choices {
    struct ampk_cudnn_choice *list;
    int tried, count;
    int fastest; /* -1: none */
    float ms;    /* time of the fastest */
};

/* Whether cuDNN names this choice only for want of anything better, while we have something
 * better. Such an engine is expected to be so slow that running it twice would take longer than
 * all the others. */
static bool is_last_resort(const struct ampk_cudnn_choice *choice, int mode,
                           const struct ampk_tc_trials *t)
{
    bool is_fallback = ampk_cudnn_modes[mode] == CUDNN_HEUR_MODE_FALLBACK;
    return is_fallback && !choice->tensor_cores && t->count > 0;
}

static void try_next(struct ampk_tc_bench *b, const struct ampk_tc_plan *plan,
                     struct ampk_tc_trials *t, struct choices *of, char *why, size_t why_size)
{
    struct candidate c = {.engine.ms = 0};
    int i = of->tried++;
    c.choice = ampk_tc_name_cudnn(plan, &of->list[i], c.key);
    if (ampk_tc_is_left_out(b->tc, c.key) ||
        !ampk_tc_set_cudnn(b->tc, &plan->problem, &c.engine, &of->list[i], b->workspace_bytes, why,
                           why_size))
        return;
    float ms = try_engine(b, t, &c);
    if (ms <= 0 || (of->fastest >= 0 && ms >= of->ms)) return;
    of->fastest = i;
    of->ms = ms;
}

static void time_named(struct ampk_tc_bench *b, const struct ampk_tc_plan *plan,
                       struct ampk_tc_trials *t, struct choices *of, char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &plan->problem;
    for (int mode = 0; mode < AMPK_CUDNN_MODES && !is_late(t, t->until); mode++) {
        of->count = ampk_cudnn_candidates(&b->tc->cudnn, p, ampk_cudnn_modes[mode], of->list,
                                          of->count, NAMED, why, why_size);
        while (of->tried < of->count) {
            if (is_last_resort(&of->list[of->tried], mode, t))
                of->tried++;
            else if (is_late(t, t->until))
                break;
            else
                try_next(b, plan, t, of, why, why_size);
        }
    }
}

/* Heuristics name some fifty of an engine's hundreds of settings. The search goes from the fastest
 * of them to settings that differ in one value, as long as that is faster. */
static void search(struct ampk_tc_bench *b, const struct ampk_tc_plan *plan,
                   struct ampk_tc_trials *t, struct choices *of)
{
    char why[400];
    int from = -1;
    if (!b->tc->settings.search || of->fastest < 0 || of->ms > HOPELESS * t->best) return;
    t->searching = true;
    for (int round = 0; round < SEARCH_ROUNDS && of->fastest != from; round++) {
        from = of->fastest;
        of->count = ampk_cudnn_neighbours(&b->tc->cudnn, &plan->problem, &of->list[from], of->list,
                                          of->count, CHOICES);
        while (of->tried < of->count && !is_late(t, t->until))
            try_next(b, plan, t, of, why, sizeof why);
    }
}

static void time_cudnn(struct ampk_tc_bench *b, const struct ampk_tc_plan *plan,
                       struct ampk_tc_trials *t, char *why, size_t why_size)
{
    struct choices of = {.list = malloc(CHOICES * sizeof *of.list), .fastest = -1};
    if (of.list) {
        time_named(b, plan, t, &of, why, why_size);
        search(b, plan, t, &of);
    }
    free(of.list);
}

/* ---- all of them ---- */

bool ampk_tc_choose_by_time(struct ampk_tc *tc, struct ampk_tc_plan *plan, ampk_rt_stream stream,
                            char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &plan->problem;
    struct ampk_tc_bench b = {.tc = tc, .stream = stream, .what = plan->key};
    struct ampk_tc_trials t = {.best = 0};
    struct ampk_tc_matrix m;
    if (tc->settings.untimed || (ampk_tc_is_wide(p) && !ampk_tc_is_matrix(p, &m))) return false;
    t.list = malloc((GEMMS_TIMED + CHOICES) * sizeof *t.list);
    if (!t.list) return false;
    ampk_tc_say_timing(tc);
    double from = ampk_tc_now();
    t.until = from + MOST_SECONDS;
    if (ampk_tc_bench_begin(&b, p)) {
        time_gemms(&b, plan, &t);
        if (!ampk_tc_is_wide(p)) time_cudnn(&b, plan, &t, why, why_size);
        ampk_tc_take_right(&b, plan, &t);
    }
    ampk_tc_bench_end(&b);
    tc->timed.problems += t.count > 0;
    tc->timed.engines += t.count;
    tc->timed.cut_short += t.cut_short;
    tc->timed.seconds += ampk_tc_now() - from;
    free(t.list);
    return plan->engine.ms > 0;
}

/* ---- without timing ----
 *
 * Takes what the libraries expect to be fast, and runs it once if there is memory for that. An
 * engine that refuses gives way to the next. */

struct guess {
    struct ampk_tc *tc;
    struct ampk_tc_plan *plan;
    ampk_rt_stream stream;
    struct ampk_tc_bench bench;
    size_t wanted; /* workspace of the bench that was begun */
    bool begun, ready;
};

/* Begins a bench with as much workspace as the engine wants. Taking the most that a plan may want
 * would take long. */
static void begin_guess(struct guess *g, const struct ampk_tc_engine *engine)
{
    if (g->begun) ampk_tc_bench_end(&g->bench);
    g->bench = (struct ampk_tc_bench){.tc = g->tc,
                                      .stream = g->stream,
                                      .workspace_bytes = engine->workspace ? engine->workspace : 1,
                                      .what = g->plan->key,
                                      .guessed = true};
    g->wanted = engine->workspace;
    g->ready = ampk_tc_bench_begin(&g->bench, &g->plan->problem);
    g->begun = true;
}

static bool can_try(struct guess *g, const struct ampk_tc_engine *engine)
{
    if (!g->begun || engine->workspace > g->wanted) begin_guess(g, engine);
    return g->ready && engine->workspace <= g->bench.workspace_bytes;
}

/* Whether the engine runs and carries infinities; true also if there is no memory to try it. */
static bool is_able(struct guess *g, const struct ampk_tc_engine *engine, const char *key,
                    char *why, size_t why_size)
{
    if (ampk_tc_is_left_out(g->tc, key)) {
        snprintf(why, why_size,
                 "what could compute it made this GPU fault, or was wrong, in an earlier run");
        return false;
    }
    if (!can_try(g, engine)) return true;
    ampk_tc_bench_blame(&g->bench, engine, key);
    bool done = ampk_tc_bench_run(&g->bench, engine);
    ampk_tc_bench_wait(&g->bench);
    bool right = done && ampk_tc_carries_infinity(&g->bench, &g->plan->problem, engine);
    ampk_tc_bench_blame(&g->bench, NULL, NULL);
    if (!done) snprintf(why, why_size, "%s", g->bench.refusal);
    if (done && !right) snprintf(why, why_size, "its results lose infinities");
    return right;
}

static bool choose_gemm(struct guess *g, char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &g->plan->problem;
    struct ampk_tc_engine *engine = &g->plan->engine;
    size_t limit = ampk_tc_workspace_limit(g->tc, p);
    char key[AMPK_TC_CHOICE_KEY];
    cublasLtMatmulAlgo_t algorithms[GEMMS_GUESSED];
    int count = ampk_tc_list_gemms(g->tc, p, limit, algorithms, GEMMS_GUESSED, why, why_size);
    for (int i = 0; i < count; i++) {
        ampk_tc_name_gemm(g->plan, &algorithms[i], key);
        if (!ampk_tc_set_gemm(g->tc, p, engine, &algorithms[i], limit)) continue;
        if (is_able(g, engine, key, why, why_size)) return true;
        ampk_tc_clear_engine(engine);
    }
    return false;
}

static bool accepts(void *guess, const struct ampk_cudnn_choice *choice,
                    struct ampk_cudnn_plan *plan, char *why, size_t why_size)
{
    struct guess *g = guess;
    const struct ampk_tc_engine engine = {.cudnn = plan, .workspace = plan->workspace};
    char key[AMPK_TC_CHOICE_KEY];
    ampk_tc_name_cudnn(g->plan, choice, key);
    return is_able(g, &engine, key, why, why_size);
}

static bool choose_cudnn(struct guess *g, char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &g->plan->problem;
    struct ampk_tc_engine *engine = &g->plan->engine;
    struct ampk_cudnn_choice choice;
    const struct ampk_cudnn_terms terms = {ampk_tc_workspace_limit(g->tc, p), accepts, g};
    engine->cudnn = ampk_cudnn_plan_expected(&g->tc->cudnn, p, &terms, &choice, why, why_size);
    if (engine->cudnn) engine->workspace = engine->cudnn->workspace;
    return engine->cudnn != NULL;
}

/* cuBLASLt takes connected layers and FP32 results, cuDNN the rest. */
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
