/* Decides which values of Darknet's keys are refused: those that crash it, and those that silently
 * train something else. Of the plugin's own keys (options.c) it knows mixed_precision, which allows
 * more policies. It must not know shapes (net.c). */

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cfg_checks.h"
#include "schedule.h"

struct checker {
    const struct amp_cfg_file *cfg;
    char *notes, *err; /* notes may be NULL */
    size_t notes_size, err_size;
};

__attribute__((format(printf, 3, 4))) static int fail(const struct checker *k, int line,
                                                      const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(k->err, k->err_size, "%s:%d: %s", k->cfg->path, line, what);
    return -1;
}

/* ---- numbers ---- */

#define COUNT(array) (sizeof array / sizeof *array)

static bool is_among(const char *key, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(key, keys[i])) return true;
    return false;
}

/* End of the number at text; NULL if there is none. */
static const char *read_number(const char *text, bool whole)
{
    char *end;
    errno = 0;
    if (whole) {
        long value = strtol(text, &end, 10);
        /* Darknet stores an int. */
        if (errno || value < INT_MIN || value > INT_MAX) return NULL;
    } else {
        double value = strtod(text, &end);
        /* Darknet stores a float; also false for NaN. */
        if (!(fabs(value) <= (double)FLT_MAX) || amp_number_vanishes(text)) return NULL;
    }
    return end == text ? NULL : end;
}

/* Darknet counts the elements of a list by its commas, those of a remark too. */
static int check_remark(const struct checker *k, const char *section, const struct amp_cfg_entry *e,
                        const char *remark)
{
    if (!strchr(remark, ',')) return 0;
    return fail(k, e->line,
                "%s=%.80s in %s: Darknet takes a comma of the remark for one of the list%s", e->key,
                e->written, section, amp_cfg_remark_hint(remark));
}

/* Darknet's atoi and atof stop at the first wrong character and say nothing. */
static int check_number(const struct checker *k, const char *section, const struct amp_cfg_entry *e,
                        bool whole, bool list)
{
    for (const char *p = e->value;; p++) {
        const char *end = read_number(p, whole);
        if (!end || (*end && *end != '#' && !(list && *end == ',')))
            return fail(k, e->line, "%s=%.80s in %s: \"%.40s\"; allowed: %s%s%s%s", e->key,
                        e->written, section, p == e->value ? e->written : p,
                        whole ? "a whole number of 32 bits" : "a finite number",
                        !whole && amp_number_vanishes(p) ? AMP_FP32_LEAST : "",
                        list ? ", or several with commas between them" : "",
                        amp_cfg_remark_hint(e->value));
        if (*end != ',') return list ? check_remark(k, section, e, end) : 0;
        p = end;
    }
}

bool amp_cfg_picks_subdivisions(const struct amp_cfg_file *cfg)
{
    const struct amp_cfg_section *net = cfg->sections;
    return amp_cfg_int(net, "mixed_precision", 0) == 1 &&
           !strcmp(amp_cfg_string(net, "subdivisions", ""), "auto");
}

static int check_subdivisions(const struct checker *k, const char *section,
                              const struct amp_cfg_entry *e)
{
    const char *end = read_number(e->value, true);
    bool mixed = amp_cfg_int(k->cfg->sections, "mixed_precision", 0) == 1;
    if (mixed && !strcmp(e->value, "auto")) return 0;
    if (end && (!*end || *end == '#') && strtol(e->value, NULL, 10) >= 1) return 0;
    return fail(k, e->line, "%s=%.80s in %s: allowed: " AMP_SUBDIVISIONS "%s", e->key, e->written,
                section, amp_cfg_remark_hint(e->value));
}

static int check_entry(const struct checker *k, const char *section, const struct amp_cfg_entry *e)
{
    const struct amp_cfg_section *net = k->cfg->sections;
    bool in_net = e >= net->entries && e < net->entries + net->n_entries;
    if (in_net && !strcmp(e->key, "subdivisions")) /* given twice is told elsewhere */
        return check_subdivisions(k, section, e);
    switch (amp_cfg_key_kind(e->key)) {
    case AMP_CFG_SWITCH:
    case AMP_CFG_INTEGER:
        return check_number(k, section, e, true, false);
    case AMP_CFG_NUMBER:
        return check_number(k, section, e, false, false);
    case AMP_CFG_INTEGERS:
        return check_number(k, section, e, true, true);
    case AMP_CFG_NUMBERS:
        return check_number(k, section, e, false, true);
    default:
        return 0;
    }
}

/* As Darknet counts: commas and one. */
static int count_elements(const char *list)
{
    int n = 1;
    for (; *list; list++)
        n += *list == ',';
    return n;
}

/* ---- the learning rate ---- */

/* Darknet reads as many scales as steps, past the end of a shorter list. */
static int check_steps(const struct checker *k, const struct amp_cfg_section *net, int line)
{
    const struct amp_cfg_entry *steps = amp_cfg_find(net, "steps");
    const struct amp_cfg_entry *scales = amp_cfg_find(net, "scales");
    if (!steps || !scales)
        return fail(k, line, "policy=steps in %s: needs the keys steps= and scales=", net->name);
    int n_steps = count_elements(steps->value), n_scales = count_elements(scales->value);
    if (n_scales >= n_steps) return 0; /* Darknet does not read the surplus */
    return fail(k, scales->line,
                "scales=%.80s in %s: %d numbers; allowed: at least %d, one for each of steps=",
                scales->written, net->name, n_scales, n_steps);
}

static int check_policy(const struct checker *k, const struct amp_cfg_section *net)
{
    static const char *const policies[] = {"random", "poly",    "constant", "step",
                                           "exp",    "sigmoid", "steps"};
    const struct amp_cfg_entry *e = amp_cfg_find(net, "policy");
    if (!e) return 0;
    bool ours = amp_policy_from_word(e->value) != AMP_POLICY_OF_DARKNET;
    if (ours && amp_cfg_int(net, "mixed_precision", 0)) return 0;
    if (ours)
        return fail(k, e->line,
                    "policy=%.80s in %s: needs mixed_precision=1; without it this Darknet would "
                    "keep the rate constant",
                    e->written, net->name);
    if (!is_among(e->value, policies, COUNT(policies)))
        return fail(k, e->line,
                    "policy=%.80s in %s: this Darknet does not know it and would keep the rate "
                    "constant; allowed: constant, step, steps, exp, poly, sigmoid, random; with "
                    "mixed_precision=1 also %s%s",
                    e->written, net->name, amp_policy_words(), amp_cfg_remark_hint(e->value));
    /* Only the keys of the chosen policy matter. */
    if (!strcmp(e->value, "steps")) return check_steps(k, net, e->line);
    const struct amp_cfg_entry *step = amp_cfg_find(net, "step");
    if (!strcmp(e->value, "step") && step && amp_cfg_int(net, "step", 1) < 1)
        return fail(k, step->line, "step=%s in %s: allowed: at least 1", step->written, net->name);
    return 0;
}

/* ---- anchors ---- */

static int check_anchors(const struct checker *k, const struct amp_cfg_section *s)
{
    const struct amp_cfg_entry *e = amp_cfg_find(s, "anchors");
    if (!e || (strcmp(s->name, "[yolo]") && strcmp(s->name, "[region]"))) return 0;
    int n = count_elements(e->value), num = amp_cfg_int(s, "num", 1);
    if (n <= 2LL * num) return 0; /* Darknet takes .5 for missing ones */
    return fail(k, e->line, "anchors= in %s: %d numbers; allowed: %lld, two for each of num=%d",
                s->name, n, 2LL * num, num);
}

int amp_cfg_values_check(const struct amp_cfg_file *cfg, char *err, size_t err_size)
{
    struct checker k = {.cfg = cfg, .err = err, .err_size = err_size};
    for (int i = 0; i < cfg->n_sections; i++) {
        const struct amp_cfg_section *s = &cfg->sections[i];
        for (int j = 0; j < s->n_entries; j++)
            if (check_entry(&k, s->name, &s->entries[j])) return -1;
        /* The learning rate stands in the first section, anchors in layers. */
        if (i == 0 ? check_policy(&k, s) : check_anchors(&k, s)) return -1;
    }
    return 0;
}

/* ---- values that Darknet takes, and then trains something else with ---- */

__attribute__((format(printf, 3, 4))) static void note(const struct checker *k, int line,
                                                       const char *format, ...)
{
    if (!k->notes) return;
    size_t used = strlen(k->notes);
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(k->notes + used, k->notes_size - used, "%s:%d: %s\n", k->cfg->path, line, what);
}

static bool is_number(const struct amp_cfg_entry *e)
{
    enum amp_cfg_kind kind = amp_cfg_key_kind(e->key);
    return kind != AMP_CFG_UNKNOWN && kind != AMP_CFG_WORD;
}

static bool is_list(const struct amp_cfg_entry *e)
{
    enum amp_cfg_kind kind = amp_cfg_key_kind(e->key);
    return kind == AMP_CFG_INTEGERS || kind == AMP_CFG_NUMBERS;
}

/* Darknet reads the numbers in front of a remark. A word would be read with the remark, and a list
 * with the remark's commas; both are errors elsewhere. The first is enough to make the point. */
static void note_remark(const struct checker *k)
{
    for (int i = 0; i < k->cfg->n_sections; i++)
        for (int j = 0; j < k->cfg->sections[i].n_entries; j++) {
            const struct amp_cfg_entry *e = &k->cfg->sections[i].entries[j];
            const char *remark = strchr(e->value, '#');
            if (!remark || !is_number(e)) continue;
            note(k, e->line, "%s=%.80s in %s: Darknet reads %.*s; put the remark on its own line",
                 e->key, e->written, k->cfg->sections[i].name,
                 (int)(remark - e->value < 40 ? remark - e->value : 40), e->value);
            return;
        }
}

/* Darknet drops blanks, and so makes one number of two. */
static int check_blanks(const struct checker *k, const struct amp_cfg_section *s,
                        const struct amp_cfg_entry *e)
{
    const char *end = e->written + strcspn(e->written, "#");
    for (const char *p = e->written; is_number(e) && p < end; p++) {
        const char *next = p + 1 + strspn(p + 1, " \t");
        if (next == p + 1 || next >= end || strchr(" \t,", *p) || *next == ',') continue;
        return fail(k, e->line, "%s=%.80s in %s: Darknet drops blanks and reads %.80s; allowed: %s",
                    e->key, e->written, s->name, e->value,
                    is_list(e) ? "commas between numbers" : "one number");
    }
    return 0;
}

/* Darknet drops the remainder, so an iteration would have fewer images than batch= says. */
static int check_batch(const struct checker *k, const struct amp_cfg_section *net)
{
    int batch = amp_cfg_int(net, "batch", 1), parts = amp_cfg_int(net, "subdivisions", 1);
    if (parts < 1 || batch % parts == 0) return 0; /* below 1 is an error elsewhere */
    return fail(k, amp_cfg_line(net, "subdivisions"),
                "subdivisions=%d in %s: must divide batch=%d, or be auto; Darknet would train %d "
                "images in an iteration",
                parts, net->name, batch, batch / parts * parts);
}

/* Names the entry. */
static int refuse(const struct checker *k, const struct amp_cfg_section *s,
                  const struct amp_cfg_entry *e, const char *allowed)
{
    return fail(k, e->line, "%s=%.80s in %s: allowed: %s", e->key, e->written, s->name, allowed);
}

/* ---- ranges ---- */

enum { ABOVE_LOW = 1, BELOW_HIGH = 2, IN_NET = 4 };

static const struct range {
    const char *key;
    double low, high;
    int flags;
    const char *allowed;
} ranges[] = {
    {"angle", 0, 360, 0, "0 to 360, degrees"},
    {"aspect", 0, INFINITY, ABOVE_LOW, "above 0"},
    {"burn_in", 0, INFINITY, IN_NET, "at least 0"},
    {"decay", 0, INFINITY, IN_NET, "at least 0; the weights would grow"},
    {"exposure", 0, INFINITY, ABOVE_LOW, "above 0"},
    {"hue", 0, 1, 0, "0 to 1"},
    {"ignore_thresh", 0, 1, 0, "0 to 1"},
    {"jitter", 0, 1, BELOW_HIGH, "0 to below 1"},
    {"learning_rate", 0, INFINITY, IN_NET, "at least 0; the loss would grow"},
    {"momentum", 0, 1, BELOW_HIGH | IN_NET, "at least 0 and below 1"},
    {"padding", 0, INFINITY, 0, "at least 0"},
    {"power", 0, INFINITY, IN_NET, "at least 0"},
    {"saturation", 0, INFINITY, ABOVE_LOW, "above 0"},
    {"truth_thresh", 0, INFINITY, 0, "at least 0"},
};

static int check_ranges(const struct checker *k, const struct amp_cfg_section *s)
{
    for (size_t i = 0; i < COUNT(ranges); i++) {
        const struct range *r = &ranges[i];
        const struct amp_cfg_entry *e = amp_cfg_find(s, r->key);
        float value = (float)amp_cfg_float(s, r->key, r->low); /* as Darknet stores it */
        if (!e || (r->flags & IN_NET && s != k->cfg->sections)) continue;
        if (value < r->low || value > r->high || (r->flags & ABOVE_LOW && value == r->low) ||
            (r->flags & BELOW_HIGH && value == r->high))
            return refuse(k, s, e, r->allowed);
    }
    return 0;
}

/* ---- the learning rate ---- */

/* The next element of a list that amp_cfg_values_check has found right; false behind the last. */
static bool next_element(const char **list, double *value)
{
    char *end;
    if (!*list) return false;
    *value = strtod(*list, &end);
    *list = *end == ',' ? end + 1 : NULL;
    return true;
}

/* Darknet waits for a step before it looks at the one behind it, and compares without a sign. */
static int check_steps_ascend(const struct checker *k, const struct amp_cfg_section *net,
                              const struct amp_cfg_entry *steps)
{
    const char *list = steps->value;
    double step, before = -INFINITY;
    if (strtod(list, NULL) < 0)
        note(k, steps->line,
             "steps=%.80s in %s: Darknet never comes to a negative step, so learning_rate stays "
             "as it is",
             steps->written, net->name);
    for (; next_element(&list, &step); before = step)
        if (step < before)
            return fail(k, steps->line,
                        "steps=%.80s in %s: allowed: each at or after the one before it; Darknet "
                        "would come to %g only at %g",
                        steps->written, net->name, step, before);
    return 0;
}

static int check_scales(const struct checker *k, const struct amp_cfg_section *net,
                        const struct amp_cfg_entry *steps, const struct amp_cfg_entry *scales)
{
    const char *list = scales->value;
    double scale;
    int n_steps = count_elements(steps->value), n_scales = count_elements(scales->value);
    while (next_element(&list, &scale))
        if (scale <= 0) return refuse(k, net, scales, "factors above 0");
    if (n_steps == n_scales) return 0; /* fewer are an error elsewhere */
    return fail(k, scales->line,
                "scales=%.80s in %s: %d numbers; allowed: %d, one for each of steps=; Darknet "
                "would not read the others",
                scales->written, net->name, n_scales, n_steps);
}

/* The keys that only some of Darknet's policies read; beside others they have no effect, which
 * schedule.c tells. */
static int check_policy_numbers(const struct checker *k, const struct amp_cfg_section *net)
{
    const char *policy = amp_cfg_string(net, "policy", "constant");
    const struct amp_cfg_entry *steps = amp_cfg_find(net, "steps"), *e;
    if (!strcmp(policy, "steps") && (check_steps_ascend(k, net, steps) ||
                                     check_scales(k, net, steps, amp_cfg_find(net, "scales"))))
        return -1;
    e = amp_cfg_find(net, "scale");
    if (e && !strcmp(policy, "step") && amp_cfg_float(net, "scale", 1) <= 0)
        return refuse(k, net, e, "a factor above 0");
    e = amp_cfg_find(net, "gamma");
    if (e && !strcmp(policy, "exp") && amp_cfg_float(net, "gamma", 1) <= 0)
        return refuse(k, net, e, "a factor above 0");
    return 0;
}

static int check_rates(const struct checker *k, const struct amp_cfg_section *net)
{
    double rate = amp_cfg_float(net, "learning_rate", .001);
    int burn_in = amp_cfg_int(net, "burn_in", 0), total = amp_cfg_int(net, "max_batches", 0);
    if (rate == 0)
        note(k, amp_cfg_line(net, "learning_rate"),
             "learning_rate=0 in %s: the weights will not change", net->name);
    if (total > 0 && burn_in >= total)
        note(k, amp_cfg_line(net, "burn_in"),
             "burn_in=%d in %s: max_batches=%d ends the training before learning_rate is reached",
             burn_in, net->name, total);
    return check_policy_numbers(k, net);
}

/* ---- heads and losses ---- */

/* Darknet's .5 keeps a missing anchor from crashing it, so only a training is refused. */
static int check_anchor_sizes(const struct checker *k, const struct amp_cfg_section *s)
{
    const struct amp_cfg_entry *e = amp_cfg_find(s, "anchors");
    if (!e || (strcmp(s->name, "[yolo]") && strcmp(s->name, "[region]"))) return 0;
    const char *list = e->value;
    double side;
    while (next_element(&list, &side))
        if (side <= 0)
            return fail(k, e->line, "anchors= in %s: %g; allowed: numbers above 0", s->name, side);
    int n = count_elements(e->value), num = amp_cfg_int(s, "num", 1);
    if (n >= 2LL * num) return 0;
    return fail(k, e->line,
                "anchors= in %s: %d numbers; needed: %lld, two for each of num=%d; Darknet would "
                "take 0.5 for those that are missing",
                s->name, n, 2LL * num, num);
}

static int check_cost_type(const struct checker *k, const struct amp_cfg_section *s)
{
    static const char *const types[] = {"sse", "masked", "L1", "seg", "smooth", "wgan"};
    const struct amp_cfg_entry *e = amp_cfg_find(s, "type");
    if (!e || strcmp(s->name, "[cost]") || is_among(e->value, types, COUNT(types))) return 0;
    return fail(k, e->line,
                "type=%.80s in %s: this Darknet does not know it and would train sse; allowed: "
                "sse, masked, L1, seg, smooth, wgan%s",
                e->written, s->name, amp_cfg_remark_hint(e->value));
}

int amp_cfg_values_check_training(const struct amp_cfg_file *cfg, char *notes, size_t notes_size,
                                  char *err, size_t err_size)
{
    struct checker k = {cfg, notes, err, notes_size, err_size};
    const struct amp_cfg_section *net = cfg->sections;
    note_remark(&k);
    for (int i = 0; i < cfg->n_sections; i++)
        for (int j = 0; j < cfg->sections[i].n_entries; j++)
            if (check_blanks(&k, &cfg->sections[i], &cfg->sections[i].entries[j])) return -1;
    if (check_batch(&k, net) || check_ranges(&k, net) || check_rates(&k, net)) return -1;
    for (int i = 1; i < cfg->n_sections; i++) {
        const struct amp_cfg_section *s = &cfg->sections[i];
        if (check_ranges(&k, s) || check_anchor_sizes(&k, s) || check_cost_type(&k, s)) return -1;
    }
    return 0;
}
