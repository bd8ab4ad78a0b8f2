/* Decides which engine is the fastest for a problem on this device. It times all engines that the
 * libraries name, then, if the user wants it, the settings around cuDNN's fastest. Where nothing
 * is timed, it takes the first engine that the libraries expect to be fast and that runs. Must not
 * know what a plan is used for. */
#include "plans.h"

#include "kernels/cuda/conv/conv_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    NAMED = 128,       /* choices of cuDNN's heuristics at most */
    TRIED = 512,       /* with those that the search comes by */
    SEARCH_ROUNDS = 8, /* at most */
    GEMMS_TIMED = 64,
    GEMMS_GUESSED = 16,
};

/* An engine that takes HOPELESS times as long as the best is not run again. The first run alone
 * must be slower still, because a busy host may have kept it waiting. */
static const float HOPELESS = 1.3f, HOPELESS_AT_FIRST = 3;
/* The result of the search replaces what cuDNN names only if that takes this much longer. */
static const float WORTH = 1.01f;

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

static void write_value(char value[AMPK_TC_VALUE], float ms, const char *choice)
{
    snprintf(value, AMPK_TC_VALUE, "%.6g %s", ms, choice);
}

/* One engine that could compute a plan's problem. */
struct candidate {
    struct ampk_tc_engine engine;
    char key[AMPK_TC_CHOICE_KEY];
    const char *choice; /* the part of key that names the choice */
};

/* Times a candidate. If it is the fastest so far, it becomes the plan's engine, and value becomes
 * the plan's entry for the cache. Returns the candidate's own time, 0 if it cannot run. */
static float try_engine(struct ampk_tc_bench *b, struct ampk_tc_plan *plan, struct candidate *c,
                        char value[AMPK_TC_VALUE])
{
    struct ampk_tc_engine *best = &plan->engine;
    ampk_tc_bench_blame(b, &c->engine, c->key);
    float ms = c->engine.ms = time_engine(b, &c->engine, best->ms);
    ampk_tc_bench_blame(b, NULL, NULL);
    if (ms <= 0 || (best->ms > 0 && ms >= best->ms)) {
        ampk_tc_clear_engine(&c->engine);
        return ms;
    }
    ampk_tc_clear_engine(best);
    *best = c->engine;
    write_value(value, ms, c->choice);
    return ms;
}

/* ---- cuBLASLt ---- */

static void time_gemms(struct ampk_tc_bench *b, struct ampk_tc_plan *plan,
                       char value[AMPK_TC_VALUE])
{
    char why[100];
    const struct ampk_tc_problem *p = &plan->problem;
    size_t limit = b->workspace_bytes;
    cublasLtMatmulAlgo_t algorithms[GEMMS_TIMED];
    int count = ampk_tc_list_gemms(b->tc, p, limit, algorithms, GEMMS_TIMED, why, sizeof why);
    for (int i = 0; i < count; i++) {
        struct candidate c = {.engine.ms = 0};
        c.choice = ampk_tc_name_gemm(plan, &algorithms[i], c.key);
        if (ampk_tc_has_faulted(b->tc, c.key)) continue;
        if (ampk_tc_set_gemm(b->tc, p, &c.engine, &algorithms[i], limit))
            try_engine(b, plan, &c, value);
    }
}

/* ---- cuDNN ---- */

/* cuDNN's choices, and which of them have been tried. */
struct trials {
    struct ampk_cudnn_choice *choices;
    int tried, count;
    int fastest; /* -1: none */
    float ms;    /* time of the fastest */
};

/* Whether cuDNN names this choice only for want of anything better, while we have something
 * better. Such an engine is expected to be so slow that running it twice would take longer than
 * all the others. */
static bool is_last_resort(const struct ampk_cudnn_choice *choice, int mode,
                           const struct ampk_tc_plan *plan)
{
    bool is_fallback = ampk_cudnn_modes[mode] == CUDNN_HEUR_MODE_FALLBACK;
    return is_fallback && !choice->tensor_cores && plan->engine.ms > 0;
}

static void try_next(struct ampk_tc_bench *b, struct ampk_tc_plan *plan, struct trials *t,
                     char value[AMPK_TC_VALUE], char *why, size_t why_size)
{
    struct candidate c = {.engine.ms = 0};
    int i = t->tried++;
    c.choice = ampk_tc_name_cudnn(plan, &t->choices[i], c.key);
    if (ampk_tc_has_faulted(b->tc, c.key) ||
        !ampk_tc_set_cudnn(b->tc, &plan->problem, &c.engine, &t->choices[i], b->workspace_bytes,
                           why, why_size))
        return;
    float ms = try_engine(b, plan, &c, value);
    if (ms <= 0 || (t->fastest >= 0 && ms >= t->ms)) return;
    t->fastest = i;
    t->ms = ms;
}

static void time_named(struct ampk_tc_bench *b, struct ampk_tc_plan *plan, struct trials *t,
                       char value[AMPK_TC_VALUE], char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &plan->problem;
    for (int mode = 0; mode < AMPK_CUDNN_MODES; mode++) {
        t->count = ampk_cudnn_candidates(&b->tc->cudnn, p, ampk_cudnn_modes[mode], t->choices,
                                         t->count, NAMED, why, why_size);
        while (t->tried < t->count) {
            const struct ampk_cudnn_choice *choice = &t->choices[t->tried];
            if (is_last_resort(choice, mode, plan))
                t->tried++;
            else
                try_next(b, plan, t, value, why, why_size);
        }
    }
}

/* ---- the search ----
 *
 * Heuristics name some fifty of an engine's hundreds of settings. The search goes from the fastest
 * of them to settings that differ in one value, as long as that is faster. Nobody vouches for what
 * it finds, so its result must agree with that of the fastest named engine. */

/* How far the results of two engines may be apart, relative to the largest value. Each engine
 * rounds to 16 bits once. It also rounds its sums of so many products, which adds up to 2^-21 of
 * the root of their number, with no common direction. Tensor Cores cut instead of rounding, some
 * sixteen products at a time by 2^-23. At most a sixteenth in all. */
static double slack(const struct ampk_tc_problem *p)
{
    double taps = (double)p->kh * p->kw, groups = p->groups;
    double pixels = (double)p->n * ampk_tc_out(p, p->h, p->kh) * ampk_tc_out(p, p->w, p->kw);
    double products = p->pass == AMPK_TC_FORWARD ? taps * p->c / groups
                      : p->pass == AMPK_TC_DATA  ? taps * p->k / groups
                                                 : pixels;
    double step = p->result == AMPK_FP16 ? 0x1p-10 : p->result == AMPK_BF16 ? 0x1p-7 : 0;
    return fmin(2 * step + 0x1p-20 * sqrt(products) + 0x1p-27 * products, 0x1p-4);
}

/* Offset of the two words of ampk_conv_compare, behind a second result. */
static size_t words_at(const struct ampk_tc_bench *b)
{
    return (b->result_bytes + 15) / 16 * 16;
}

static size_t second_result_bytes(const struct ampk_tc_bench *b)
{
    return words_at(b) + 2 * sizeof(uint32_t);
}

/* Runs a candidate into one of two results. Clears the result first, so that an engine that writes
 * nothing is found out. */
static bool compute(struct ampk_tc_bench *b, const struct candidate *c, void *result)
{
    char why[400];
    ampk_rt_zero(result, b->result_bytes, b->stream);
    ampk_tc_bench_blame(b, &c->engine, c->key);
    bool done = ampk_tc_run_engine(b->tc, &c->engine, b->first, b->second, result, &b->sums,
                                   b->workspace, b->stream, why, sizeof why);
    ampk_tc_bench_wait(b);
    ampk_tc_bench_blame(b, NULL, NULL);
    return done;
}

/* The largest difference of the two results, relative to the largest value; other: the second
 * result. Both 0 is agreement, not 0 / 0. */
static double compare(struct ampk_tc_bench *b, const struct ampk_tc_plan *plan, void *other)
{
    float found[2]; /* difference, value */
    uint32_t *words = (uint32_t *)((char *)other + words_at(b));
    ampk_rt_zero(words, sizeof found, b->stream);
    ampk_conv_compare(b->stream, other, b->result, plan->problem.result, b->result_bytes, words);
    ampk_rt_copy_out(found, words, sizeof found, b->stream);
    ampk_tc_bench_wait(b);
    return found[0] == 0 ? 0 : found[0] / found[1];
}

/* Whether the plan's engine, set as this choice, gives the same bits twice and the result of the
 * fastest named one. other: memory of second_result_bytes. */
static bool agrees(struct ampk_tc_bench *b, const struct ampk_tc_plan *plan,
                   const struct ampk_cudnn_choice *choice, const struct candidate *named,
                   void *other)
{
    struct candidate found = {.engine = plan->engine};
    ampk_tc_name_cudnn(plan, choice, found.key);
    return compute(b, &found, b->result) && compute(b, &found, other) &&
           compare(b, plan, other) == 0 && compute(b, named, other) &&
           compare(b, plan, other) <= slack(&plan->problem);
}

/* Decides between the plan's engine, found by the search, and what cuDNN named. The search wins
 * only if its engine is sooner by enough and the two agree; then the time before the search is
 * kept in the file as well, for comparison. */
static void check_found(struct ampk_tc_bench *b, struct ampk_tc_plan *plan, const struct trials *t,
                        int named, float ms, void *other, char value[AMPK_TC_VALUE])
{
    char why[400], text[AMPK_TC_KEY + 2 * AMPK_TC_VALUE], before[32];
    struct candidate c = {.engine.ms = 0};
    c.choice = ampk_tc_name_cudnn(plan, &t->choices[named], c.key);
    bool set = ampk_tc_set_cudnn(b->tc, &plan->problem, &c.engine, &t->choices[named],
                                 b->workspace_bytes, why, sizeof why);
    bool pays = ms > WORTH * plan->engine.ms;
    if (set && pays && agrees(b, plan, &t->choices[t->fastest], &c, other)) {
        snprintf(text, sizeof text, "%s; before the search", plan->key);
        snprintf(before, sizeof before, "%.6g", ms);
        ampk_plan_cache_add(b->tc->cache, text, before);
        ampk_tc_clear_engine(&c.engine);
        return;
    }
    snprintf(text, sizeof text,
             "%s: settings that cuDNN does not name give other results (%s): disabled", plan->key,
             value);
    if (pays && !b->tc->said_wrong) ampk_tc_say(text);
    b->tc->said_wrong |= pays;
    ampk_tc_clear_engine(&plan->engine);
    plan->engine = c.engine;
    plan->engine.ms = set ? ms : 0;
    write_value(value, ms, c.choice);
}

static void search(struct ampk_tc_bench *b, struct ampk_tc_plan *plan, struct trials *t,
                   char value[AMPK_TC_VALUE])
{
    char why[400];
    int named = t->fastest, from = -1;
    float ms = t->ms;
    if (!b->tc->settings.search || named < 0 || ms > HOPELESS * plan->engine.ms) return;
    void *other = ampk_rt_alloc(second_result_bytes(b));
    if (!other) ampk_tc_say("no memory to search for faster settings of a convolution");
    for (int round = 0; other && round < SEARCH_ROUNDS && t->fastest != from; round++) {
        from = t->fastest;
        t->count = ampk_cudnn_neighbours(&b->tc->cudnn, &plan->problem, &t->choices[from],
                                         t->choices, t->count, TRIED);
        while (t->tried < t->count)
            try_next(b, plan, t, value, why, sizeof why);
    }
    bool found = t->fastest != named && plan->engine.cudnn && plan->engine.ms == t->ms;
    if (found) check_found(b, plan, t, named, ms, other, value);
    ampk_rt_free(other);
}

static void time_cudnn(struct ampk_tc_bench *b, struct ampk_tc_plan *plan,
                       char value[AMPK_TC_VALUE], char *why, size_t why_size)
{
    struct trials t = {.choices = malloc(TRIED * sizeof *t.choices), .fastest = -1};
    if (t.choices) {
        time_named(b, plan, &t, value, why, why_size);
        search(b, plan, &t, value);
    }
    free(t.choices);
}

/* ---- all of them ---- */

/* "None" is kept only if the bench had all the workspace that plans may have: with less, an engine
 * may just have lacked memory today. */
bool ampk_tc_choose_by_time(struct ampk_tc *tc, struct ampk_tc_plan *plan, ampk_rt_stream stream,
                            char *why, size_t why_size)
{
    const struct ampk_tc_problem *p = &plan->problem;
    struct ampk_tc_bench b = {.tc = tc, .stream = stream, .what = plan->key};
    struct ampk_tc_matrix m;
    char value[AMPK_TC_VALUE];
    if (tc->settings.untimed || (ampk_tc_is_wide(p) && !ampk_tc_is_matrix(p, &m))) return false;
    ampk_tc_say_timing(tc);
    bool begun = ampk_tc_bench_begin(&b, p);
    if (begun) {
        time_gemms(&b, plan, value);
        if (!ampk_tc_is_wide(p)) time_cudnn(&b, plan, value, why, why_size);
    }
    ampk_tc_bench_end(&b);
    if (plan->engine.ms > 0)
        ampk_plan_cache_add(tc->cache, plan->key, value);
    else if (p->sums && begun && b.workspace_bytes == ampk_tc_workspace_limit(tc, p))
        ampk_plan_cache_add(tc->cache, plan->key, AMPK_TC_NONE);
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

/* Whether the engine runs; true also if there is no memory to try it. */
static bool is_able(struct guess *g, const struct ampk_tc_engine *engine, const char *key,
                    char *why, size_t why_size)
{
    if (ampk_tc_has_faulted(g->tc, key)) {
        snprintf(why, why_size, "what could compute it made this GPU fault in an earlier run");
        return false;
    }
    if (!can_try(g, engine)) return true;
    ampk_tc_bench_blame(&g->bench, engine, key);
    bool done = ampk_tc_bench_run(&g->bench, engine);
    ampk_tc_bench_wait(&g->bench);
    ampk_tc_bench_blame(&g->bench, NULL, NULL);
    if (!done) snprintf(why, why_size, "%s", g->bench.refusal);
    return done;
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
