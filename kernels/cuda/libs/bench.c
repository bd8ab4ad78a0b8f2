/* Makes operands for one problem and measures what runs on them. A fault of the device ends here:
 * nothing can run after it, and the file of plans keeps it for the next run. Must not know which
 * engine is the better one. */
#include "plans.h"

#include "kernels/cuda/conv/conv_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- messages, and facts kept for the next run ---- */

void ampk_tc_say(const char *text)
{
    if (text[0]) fprintf(stderr, "darknet-amp: %s\n", text);
}

void ampk_tc_say_timing(struct ampk_tc *tc)
{
    if (!tc->said_timing)
        ampk_tc_say("timing the ways to compute each convolution on this GPU, once");
    tc->said_timing = true;
}

double ampk_tc_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void ampk_tc_say_timed(struct ampk_tc *tc)
{
    char text[200];
    if (tc->timed.problems) {
        int used = snprintf(text, sizeof text, "timed %d engines for %d problems in %.1f s",
                            tc->timed.engines, tc->timed.problems, tc->timed.seconds);
        if (tc->timed.cut_short)
            snprintf(text + used, sizeof text - (size_t)used, "; %d problems were cut short",
                     tc->timed.cut_short);
        ampk_tc_say(text);
    }
    memset(&tc->timed, 0, sizeof tc->timed);
}

void ampk_tc_save_cache(struct ampk_tc *tc)
{
    char err[400] = "";
    if (!ampk_plan_cache_save(tc->cache, err, sizeof err)) ampk_tc_say(err);
}

static bool is_kept_as_faulted(const struct ampk_tc *tc, const char *key)
{
    const char *value = ampk_plan_cache_find(tc->cache, key);
    return value && !strcmp(value, AMPK_TC_FAULTED);
}

/* Names only the first of a run; the file lists all. */
bool ampk_tc_is_left_out(struct ampk_tc *tc, const char *key)
{
    char text[AMPK_TC_CHOICE_KEY + 100];
    const char *value = ampk_plan_cache_find(tc->cache, key);
    bool faulted = is_kept_as_faulted(tc, key);
    if (!faulted && !(value && !strcmp(value, AMPK_TC_WRONG))) return false;
    snprintf(text, sizeof text, "%s: %s in an earlier run: disabled (reported once)", key,
             faulted ? "made this GPU fault" : "gave wrong results on this GPU");
    if (!tc->said_left_out) ampk_tc_say(text);
    tc->said_left_out = true;
    return true;
}

void ampk_tc_try(struct ampk_tc *tc, const char *key)
{
    tc->trying = key;
    ampk_plan_cache_try(tc->cache, key);
}

/* What a hanging device was given cannot be told from what ran when somebody ended the program: the
 * message says how to have it back. */
void ampk_tc_take_up_trials(struct ampk_tc *tc)
{
    char key[AMPK_TC_CHOICE_KEY], text[AMPK_TC_CHOICE_KEY + 200];
    if (!ampk_plan_cache_take_up(tc->cache, AMPK_TC_FAULTED, key, sizeof key)) return;
    snprintf(
        text, sizeof text,
        "%s: an earlier program ended while it tried this: disabled (reported once); to have it "
        "tried again, delete its line in the file of plans",
        key);
    ampk_tc_say(text);
    tc->said_left_out = true;
}

/* Keeps that the current trial made the device fault. True only if the file really has it: the
 * message then promises that a second start works. */
static bool remember_fault(struct ampk_tc *tc)
{
    if (!tc->trying) return false;
    ampk_plan_cache_add(tc->cache, tc->trying, AMPK_TC_FAULTED);
    ampk_tc_save_cache(tc);
    return is_kept_as_faulted(tc, tc->trying) && ampk_plan_cache_is_saved(tc->cache);
}

/* ---- the bench ---- */

enum {
    LEAST_WORKSPACE = 1 << 20, /* bytes, when memory is short */
    MOST_CLEARED = 256 << 20,  /* bytes, before a timed run */
    MOST_CLEARINGS = 4000,     /* runs, to warm up */
    MOST_TO_COVER = 8,         /* clearings before a timed run */
};

/* Clear memory at least that long, while the host starts what is timed: up to ten operations. */
static const float COVER_MS = .15f;

/* Work that long before the first timed run: an idle device's clocks are low, and the first
 * candidate would look slow. */
static const float WARM_UP_MS = 300;

/* Mean of made-up images. Real activations are mostly positive. */
static const float MEAN_OF_X = .25f;

static void *make_operand(struct ampk_tc_bench *b, size_t n, enum ampk_dtype dtype, float mean)
{
    void *memory = ampk_rt_alloc(n * ampk_dtype_bytes(dtype));
    if (memory) ampk_conv_fill(b->stream, memory, dtype, n, mean);
    return memory;
}

/* Tells the user what to do about a fault. */
static const char *find_advice(const struct ampk_tc_bench *b)
{
    if (remember_fault(b->tc)) return "; left out from the next start on: start again";
    if (b->guessed) return "";
    return "; with AMPK_CUDA_UNTIMED=1 in the environment nothing is timed";
}

/* A device that faulted computes nothing any more. */
static void give_up(const struct ampk_tc_bench *b)
{
    char engine[40] = "cuBLASLt";
    if (b->blamed && b->blamed->cudnn)
        snprintf(engine, sizeof engine, "cuDNN's engine %lld", (long long)b->blamed->cudnn->engine);
    const char *key = b->tc->trying ? b->tc->trying : b->what;
    const char *reason = ampk_rt_error(), *advice = find_advice(b);
    fprintf(stderr, "CUDA backend: %s failed while it was %s: %s (%s)%s\n",
            b->blamed ? engine : "the device", b->guessed ? "tried" : "timed", reason, key, advice);
    abort();
}

void ampk_tc_bench_wait(struct ampk_tc_bench *b)
{
    if (!ampk_rt_stream_wait(b->stream)) give_up(b);
}

void ampk_tc_bench_blame(struct ampk_tc_bench *b, const struct ampk_tc_engine *engine,
                         const char *key)
{
    b->blamed = engine;
    ampk_tc_try(b->tc, key);
}

static size_t cleared_bytes(const struct ampk_tc_bench *b)
{
    return b->workspace_bytes < MOST_CLEARED ? b->workspace_bytes : MOST_CLEARED;
}

/* Clears memory until the clocks are up, then computes how many clearings cover COVER_MS. */
static void warm_up(struct ampk_tc_bench *b)
{
    float ms = 0, one = 0;
    for (int i = 0; i < MOST_CLEARINGS && ms < WARM_UP_MS; i++) {
        ampk_rt_event_record(b->from, b->stream);
        ampk_rt_zero(b->workspace, cleared_bytes(b), b->stream);
        one = ampk_tc_bench_stop(b);
        ms += one;
    }
    b->tc->clearings = 1;
    while (b->tc->clearings < MOST_TO_COVER && (float)b->tc->clearings * one < COVER_MS)
        b->tc->clearings++;
}

bool ampk_tc_bench_begin(struct ampk_tc_bench *b, const struct ampk_tc_problem *p)
{
    size_t x = (size_t)p->n * p->h * p->w * p->c;
    size_t weights = (size_t)p->k * p->kh * p->kw * (p->c / p->groups);
    size_t y = (size_t)p->n * ampk_tc_out(p, p->h, p->kh) * ampk_tc_out(p, p->w, p->kw) * p->k;
    enum ampk_dtype operand = ampk_tc_operand(p->compute);
    bool data = p->pass == AMPK_TC_DATA;
    b->first = make_operand(b, data ? y : x, operand, data ? 0 : MEAN_OF_X);
    b->second = make_operand(b, p->pass == AMPK_TC_WEIGHTS ? y : weights, operand, 0);
    size_t result = p->pass == AMPK_TC_FORWARD ? y : data ? x : weights;
    b->result = make_operand(b, result, p->result, 0);
    b->result_bytes = result * ampk_dtype_bytes(p->result);
    if (!b->workspace_bytes) b->workspace_bytes = ampk_tc_workspace_limit(b->tc, p);
    /* Without memory for the most that a plan may want, engines compete with half, then a quarter
     * ... */
    while (!(b->workspace = ampk_rt_alloc(b->workspace_bytes)) &&
           b->workspace_bytes > LEAST_WORKSPACE)
        b->workspace_bytes /= 2;
    b->from = ampk_rt_event_create(true);
    b->to = ampk_rt_event_create(true);
    bool begun = b->first && b->second && b->result && b->workspace && b->from && b->to;
    if (begun) ampk_tc_bench_wait(b); /* an error from before is nobody's fault here */
    return begun;
}

void ampk_tc_bench_end(struct ampk_tc_bench *b)
{
    ampk_tc_bench_wait(b);
    ampk_rt_free(b->first);
    ampk_rt_free(b->second);
    ampk_rt_free(b->result);
    ampk_rt_free(b->workspace);
    if (b->from) ampk_rt_event_destroy(b->from);
    if (b->to) ampk_rt_event_destroy(b->to);
}

bool ampk_tc_bench_run(struct ampk_tc_bench *b, const struct ampk_tc_engine *engine)
{
    bool done = ampk_tc_run_engine(b->tc, engine, b->first, b->second, b->result, b->workspace,
                                   b->stream, b->refusal, sizeof b->refusal);
    if (done) return true;
    ampk_rt_forget_error();
    ampk_tc_bench_wait(b); /* a device that faulted refuses everything */
    return false;
}

void ampk_tc_bench_start(struct ampk_tc_bench *b)
{
    if (!b->tc->clearings) warm_up(b);
    for (int i = 0; i < b->tc->clearings; i++)
        ampk_rt_zero(b->workspace, cleared_bytes(b), b->stream);
    ampk_rt_event_record(b->from, b->stream);
}

float ampk_tc_bench_stop(struct ampk_tc_bench *b)
{
    ampk_rt_event_record(b->to, b->stream);
    float ms = ampk_rt_event_ms(b->from, b->to);
    if (ms <= 0) ampk_tc_bench_wait(b);
    return ms;
}
