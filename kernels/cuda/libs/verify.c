/* Decides which of the engines that were timed a problem gets: the fastest that carries infinities,
 * gives the same bits twice and computes what another engine computes. A fast engine may be fast
 * because it is wrong, and no library says so. What is wrong is named, left out, and kept as such
 * in the file of plans. Must not know how engines are found or timed. */
#include "plans.h"

#include "kernels/cuda/conv/conv_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A setting that the search found replaces what cuDNN names only if that takes this much longer. */
static const float WORTH = 1.01f;

struct verification {
    struct ampk_tc_bench *bench;
    const struct ampk_tc_plan *plan;
    struct ampk_tc_trials *trials;
    void *other; /* a second result, and behind it the two words of ampk_conv_compare */
    char key[AMPK_TC_CHOICE_KEY]; /* of what runs: a fault keeps it */
};

/* ---- infinities ----
 *
 * Loss scaling finds an overflow by the infinity that it leaves, so an infinity must reach the
 * result. One of cuDNN 9.19's engines (47, on an H100) makes 0 of a negative one, and of a negative
 * sum that overflows. */

/* Bytes of a result that are looked at. The infinity changes what lies at its start. */
enum { MOST_READ = 1 << 20 };

enum kind { FINITE, ABOVE, BELOW, NOT_A_NUMBER };

/* The bits of an infinity in this type. */
static uint32_t infinity_bits(enum ampk_dtype dtype, bool negative)
{
    uint32_t bits = dtype == AMPK_FP16 ? 0x7c00 : dtype == AMPK_BF16 ? 0x7f80 : 0x7f800000;
    return negative ? bits | (dtype == AMPK_FP32 ? 0x80000000 : 0x8000) : bits;
}

static enum kind kind_of(const char *data, enum ampk_dtype dtype)
{
    uint32_t word = 0, above = infinity_bits(dtype, false), below = infinity_bits(dtype, true);
    memcpy(&word, data, ampk_dtype_bytes(dtype)); /* little-endian, as everything with CUDA */
    if (word == above) return ABOVE;
    if (word == below) return BELOW;
    return (word & ~(above ^ below)) > above ? NOT_A_NUMBER : FINITE;
}

/* Runs the engine with an infinity as the first operand's first element, which the first element of
 * the result depends on. `head` gets the result's first bytes. */
static bool run_with(struct ampk_tc_bench *b, const struct ampk_tc_problem *p,
                     const struct ampk_tc_engine *engine, bool negative, void *head, size_t bytes)
{
    enum ampk_dtype operand = ampk_tc_operand(p->compute);
    size_t size = ampk_dtype_bytes(operand);
    uint32_t old, word = infinity_bits(operand, negative);
    ampk_conv_fill(b->stream, b->result, p->result, b->result_bytes / ampk_dtype_bytes(p->result),
                   0);
    ampk_rt_copy_out(&old, b->first, size, b->stream);
    ampk_tc_bench_wait(b);
    ampk_rt_copy_in(b->first, &word, size, b->stream);
    bool done = ampk_tc_bench_run(b, engine);
    ampk_rt_copy_in(b->first, &old, size, b->stream);
    ampk_rt_copy_out(head, b->result, bytes, b->stream);
    ampk_tc_bench_wait(b);
    return done;
}

/* Whether what is not finite with an infinity of one sign is not finite with the other one either,
 * and some of it changed its sign or is a NaN. What overflows anyway does so in both. */
static bool is_reached(const char *one, const char *other, size_t bytes, enum ampk_dtype dtype)
{
    bool reached = false;
    for (size_t i = 0, size = ampk_dtype_bytes(dtype); i + size <= bytes; i += size) {
        enum kind a = kind_of(one + i, dtype), b = kind_of(other + i, dtype);
        if ((a == FINITE) != (b == FINITE)) return false;
        reached |= a == NOT_A_NUMBER || a != b;
    }
    return reached;
}

bool ampk_tc_carries_infinity(struct ampk_tc_bench *b, const struct ampk_tc_problem *p,
                              const struct ampk_tc_engine *engine)
{
    size_t bytes = b->result_bytes < MOST_READ ? b->result_bytes : MOST_READ;
    bool is_read = p->pad < p->kh && p->pad < p->kw; /* the first element, by the first window */
    char *heads = is_read ? malloc(2 * bytes) : NULL;
    if (!heads) return true;
    bool carries = run_with(b, p, engine, false, heads, bytes) &&
                   run_with(b, p, engine, true, heads + bytes, bytes) &&
                   is_reached(heads, heads + bytes, bytes, p->result);
    free(heads);
    return carries;
}

/* ---- one engine ---- */

/* Until take_down, a fault of the device is this engine's. */
static bool set_up(struct verification *v, const struct ampk_tc_trial *trial,
                   struct ampk_tc_engine *engine)
{
    struct ampk_tc_bench *b = v->bench;
    if (!ampk_tc_set_choice(b->tc, &v->plan->problem, engine, trial->choice, b->workspace_bytes))
        return false;
    ampk_tc_name_choice(v->plan, trial->choice, v->key);
    ampk_tc_bench_blame(b, engine, v->key);
    return true;
}

static void take_down(struct verification *v, struct ampk_tc_engine *engine)
{
    ampk_tc_bench_wait(v->bench);
    ampk_tc_bench_blame(v->bench, NULL, NULL);
    ampk_tc_clear_engine(engine);
}

static bool carries_infinity(struct verification *v, const struct ampk_tc_trial *trial)
{
    struct ampk_tc_engine engine = {.ms = 0};
    if (!set_up(v, trial, &engine)) return false;
    bool carries = ampk_tc_carries_infinity(v->bench, &v->plan->problem, &engine);
    take_down(v, &engine);
    return carries;
}

/* Runs an engine into one of two results. These have the same numbers before: an engine that does
 * not write, or does not add where it must, is found out. */
static bool compute(struct verification *v, const struct ampk_tc_trial *trial, void *result)
{
    char why[400];
    struct ampk_tc_bench *b = v->bench;
    enum ampk_dtype dtype = v->plan->problem.result;
    struct ampk_tc_engine engine = {.ms = 0};
    if (!set_up(v, trial, &engine)) return false;
    ampk_conv_fill(b->stream, result, dtype, b->result_bytes / ampk_dtype_bytes(dtype), 0);
    bool done = ampk_tc_run_engine(b->tc, &engine, b->first, b->second, result, b->workspace,
                                   b->stream, why, sizeof why);
    take_down(v, &engine);
    return done;
}

/* ---- results ---- */

static size_t words_at(const struct ampk_tc_bench *b)
{
    return (b->result_bytes + 15) / 16 * 16;
}

/* The largest difference of the two results, relative to the largest value. Both 0 is agreement,
 * not 0 / 0. */
static double difference(struct verification *v)
{
    float found[2]; /* difference, value */
    struct ampk_tc_bench *b = v->bench;
    uint32_t *words = (uint32_t *)((char *)v->other + words_at(b));
    ampk_rt_zero(words, sizeof found, b->stream);
    ampk_conv_compare(b->stream, v->other, b->result, v->plan->problem.result, b->result_bytes,
                      words);
    ampk_rt_copy_out(found, words, sizeof found, b->stream);
    ampk_tc_bench_wait(b);
    return found[0] == 0 ? 0 : found[0] / found[1];
}

/* Whether it computes what is in the bench's result, within roundings. */
static bool confirms(struct verification *v, const struct ampk_tc_trial *trial)
{
    return compute(v, trial, v->other) && difference(v) <= ampk_tc_slack(&v->plan->problem);
}

/* ---- the choice ---- */

/* Settings of one of cuDNN's engines share its code. Of cuBLASLt's algorithms each counts as an
 * engine of its own: where results are FP32 there is nothing else. */
static bool same_engine(const struct ampk_tc_trial *a, const struct ampk_tc_trial *b)
{
    long long one, other;
    if (sscanf(a->choice, "cudnn %lld", &one) == 1 && sscanf(b->choice, "cudnn %lld", &other) == 1)
        return one == other;
    return !strcmp(a->choice, b->choice);
}

static float rank(const struct ampk_tc_trial *trial)
{
    return trial->named ? trial->ms : trial->ms * WORTH;
}

/* The fastest that is not wrong, of another engine than these (NULL: any). NULL: there is none. */
static struct ampk_tc_trial *fastest(const struct verification *v, const struct ampk_tc_trial *one,
                                     const struct ampk_tc_trial *another)
{
    struct ampk_tc_trial *found = NULL;
    for (int i = 0; i < v->trials->count; i++) {
        struct ampk_tc_trial *t = &v->trials->list[i];
        if (t->wrong || (one && same_engine(t, one)) || (another && same_engine(t, another)))
            continue;
        if (!found || rank(t) < rank(found)) found = t;
    }
    return found;
}

/* Names only the first wrong one of a run; the file lists all. */
static void leave_out(struct verification *v, struct ampk_tc_trial *wrong)
{
    char key[AMPK_TC_CHOICE_KEY], text[AMPK_TC_CHOICE_KEY + 100];
    struct ampk_tc *tc = v->bench->tc;
    wrong->wrong = true;
    ampk_tc_name_choice(v->plan, wrong->choice, key);
    snprintf(text, sizeof text, "%s: wrong results on this GPU: disabled (reported once)", key);
    if (!tc->said_wrong) ampk_tc_say(text);
    tc->said_wrong = true;
    ampk_plan_cache_add(tc->cache, key, AMPK_TC_WRONG);
}

/* Whether the fastest is right. Where another engine computes something else, a third one decides;
 * if there is none, or it agrees with neither, the fastest is left out. Five runs, as a rule. */
static bool is_right(struct verification *v, struct ampk_tc_trial *first)
{
    struct ampk_tc_trial *second = fastest(v, first, NULL);
    if (!carries_infinity(v, first)) return false;
    if (!compute(v, first, v->bench->result) || !compute(v, first, v->other) || difference(v) != 0)
        return false;
    if (!second || confirms(v, second)) return true;
    struct ampk_tc_trial *third = fastest(v, first, second);
    if (!third || !confirms(v, third)) return false;
    leave_out(v, second);
    return true;
}

/* Keeps the plan, and the time before the search if that found it. */
static void keep(struct verification *v, const struct ampk_tc_trial *taken)
{
    char value[AMPK_TC_VALUE], key[AMPK_TC_KEY + 32];
    struct ampk_plan_cache *cache = v->bench->tc->cache;
    snprintf(value, sizeof value, "%.6g %s", taken->ms, taken->choice);
    ampk_plan_cache_add(cache, v->plan->key, value);
    if (taken->named) return;
    float before = 0;
    for (int i = 0; i < v->trials->count; i++) {
        const struct ampk_tc_trial *t = &v->trials->list[i];
        if (t->named && !t->wrong && (before <= 0 || t->ms < before)) before = t->ms;
    }
    snprintf(key, sizeof key, "%s; before the search", v->plan->key);
    snprintf(value, sizeof value, "%.6g", before);
    ampk_plan_cache_add(cache, key, value);
}

/* Without memory for a second result the fastest is taken for this run, and not kept. */
void ampk_tc_take_right(struct ampk_tc_bench *b, struct ampk_tc_plan *plan,
                        struct ampk_tc_trials *trials)
{
    struct verification v = {.bench = b, .plan = plan, .trials = trials};
    struct ampk_tc_trial *first = fastest(&v, NULL, NULL);
    if (first) v.other = ampk_rt_alloc(words_at(b) + 2 * sizeof(uint32_t));
    if (first && !v.other && !b->tc->said_unverified) {
        ampk_tc_say("too little memory to compare the results of two plans of a convolution: the "
                    "fastest is taken unchecked (reported once)");
        b->tc->said_unverified = true;
    }
    for (; v.other && first && !is_right(&v, first); first = fastest(&v, NULL, NULL))
        leave_out(&v, first);
    if (first && v.other) keep(&v, first);
    ampk_rt_free(v.other);
    if (first &&
        ampk_tc_set_choice(b->tc, &plan->problem, &plan->engine, first->choice, b->workspace_bytes))
        plan->engine.ms = first->ms;
}
