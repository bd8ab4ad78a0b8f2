/* Messages to the user, and facts kept for the next runs of the program: the file of plans, and
 * what made the device fault. A device that faulted computes nothing any more, and the program
 * ends. From the next start on, the program leaves out what it tried then, by its key in the file.
 * Must not time or choose. */
#include "plans.h"

#include <stdio.h>
#include <string.h>

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

void ampk_tc_save_cache(struct ampk_tc *tc)
{
    char err[400] = "";
    if (!ampk_plan_cache_save(tc->cache, err, sizeof err)) ampk_tc_say(err);
}

/* ---- faults ---- */

static bool is_kept_as_faulted(const struct ampk_tc *tc, const char *key)
{
    const char *value = ampk_plan_cache_find(tc->cache, key);
    return value && !strcmp(value, AMPK_TC_FAULTED);
}

/* Names only the first fault of a run; the file lists all. */
static void say_faulted(struct ampk_tc *tc, const char *key)
{
    char text[AMPK_TC_CHOICE_KEY + 100];
    snprintf(text, sizeof text,
             "%s: made this GPU fault in an earlier run: disabled (reported once)", key);
    if (!tc->said_faulted) ampk_tc_say(text);
    tc->said_faulted = true;
}

bool ampk_tc_has_faulted(struct ampk_tc *tc, const char *key)
{
    bool faulted = is_kept_as_faulted(tc, key);
    if (faulted) say_faulted(tc, key);
    return faulted;
}

/* True only if the file really has it: the message then promises that a second start works. */
bool ampk_tc_remember_fault(struct ampk_tc *tc)
{
    if (!tc->trying) return false;
    ampk_plan_cache_add(tc->cache, tc->trying, AMPK_TC_FAULTED);
    ampk_tc_save_cache(tc);
    return is_kept_as_faulted(tc, tc->trying) && ampk_plan_cache_is_saved(tc->cache);
}
