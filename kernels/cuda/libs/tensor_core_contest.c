#include "tensor_core_contest.h"

#include <stdio.h>
#include <string.h>

/* The usual way is left where it takes this much longer. */
static const float WORTH = 1.03f;

static const char WRONG_RESULTS[] = ": wrong";

/* In the file: the times of the plans, then the fastest of each way, or that the other is wrong.
 * What is there for other plans does not count. Or that the device faulted, with whatever plans. */
static bool read_answer(const struct ampk_tc_contest *c, bool *pays)
{
    const char *value = ampk_plan_cache_find(c->tc->cache, c->key);
    size_t plans = strlen(c->plans);
    float usual, other;
    *pays = false;
    if (ampk_tc_has_faulted(c->tc, c->key)) return true;
    if (!value || strncmp(value, c->plans, plans)) return false;
    if (!strcmp(value + plans, WRONG_RESULTS)) return true;
    if (sscanf(value + plans, ": %*[a-z ]%f, %*[a-z ]%f", &usual, &other) != 2) return false;
    *pays = usual > WORTH * other;
    return true;
}

/* The fastest of each, taken in turns, the first of which load the kernels. */
static bool time_both(const struct ampk_tc_contest *c, float *usual, float *other)
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
static void say_wrong(const struct ampk_tc_contest *c)
{
    char text[sizeof c->key + 100];
    snprintf(text, sizeof text, "%s: wrong results on this GPU; not used, nor where else it is so",
             c->key);
    if (!c->tc->said_wrong) ampk_tc_say(text);
    c->tc->said_wrong = true;
}

/* False where the plans cannot run. */
static bool hold(const struct ampk_tc_contest *c, char value[AMPK_TC_VALUE])
{
    float usual, other;
    enum ampk_tc_verdict verdict = c->check ? c->check(c->bench) : AMPK_TC_RIGHT;
    if (verdict == AMPK_TC_WRONG) {
        say_wrong(c);
        snprintf(value, AMPK_TC_VALUE, "%s%s", c->plans, WRONG_RESULTS);
        return true;
    }
    if (verdict == AMPK_TC_CANNOT_RUN || !time_both(c, &usual, &other)) return false;
    snprintf(value, AMPK_TC_VALUE, "%s: %s %.6g, %s %.6g", c->plans, c->usual, usual, c->other,
             other);
    return true;
}

static void measure(const struct ampk_tc_contest *c)
{
    char value[AMPK_TC_VALUE];
    if (c->tc->settings.untimed) return;
    ampk_tc_say_timing(c->tc);
    bool begun = c->begin(c->bench);
    c->tc->trying = c->key;
    bool held = begun && hold(c, value);
    c->tc->trying = NULL;
    c->end(c->bench);
    if (!held) return;
    ampk_plan_cache_add(c->tc->cache, c->key, value);
    ampk_tc_save_cache(c->tc);
}

bool ampk_tc_decide(struct ampk_tc_contest *c, const struct ampk_tc_plan *first,
                    const struct ampk_tc_plan *second, const char *what)
{
    bool pays;
    if (first->way.ms <= 0 || (second && second->way.ms <= 0)) return false;
    snprintf(c->key, sizeof c->key, "%s; %s", first->key, what);
    int used = snprintf(c->plans, sizeof c->plans, "%.6g", first->way.ms);
    if (second) snprintf(c->plans + used, sizeof c->plans - used, " %.6g", second->way.ms);
    if (read_answer(c, &pays)) return pays;
    ampk_plan_cache_refresh(c->tc->cache); /* contexts beside this one have the same answer */
    if (read_answer(c, &pays)) return pays;
    measure(c);
    read_answer(c, &pays);
    return pays;
}
