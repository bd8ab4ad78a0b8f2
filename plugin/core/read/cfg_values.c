/* Decides which values of Darknet's keys are refused: those that crash it, and those that silently
 * train something else. Of the plugin's own keys (options.c) it knows mixed_precision, which allows
 * more policies. It must not know shapes (net.c). */

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cfg_checks.h"
#include "dialect.h"
#include "schedule.h"

/* ---- numbers ---- */

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

static bool is_list(enum amp_cfg_kind kind)
{
    return kind == AMP_CFG_INTEGERS || kind == AMP_CFG_NUMBERS;
}

static bool is_whole(enum amp_cfg_kind kind)
{
    return kind == AMP_CFG_SWITCH || kind == AMP_CFG_INTEGER || kind == AMP_CFG_INTEGERS;
}

static bool is_number(enum amp_cfg_kind kind)
{
    return kind != AMP_CFG_UNKNOWN && kind != AMP_CFG_WORD;
}

/* What Darknet reads from a key. The fork's is looked up in its section, since it skips a number of
 * keys elsewhere. */
static enum amp_cfg_kind kind_of(const struct amp_complaints *c, const struct amp_cfg_section *s,
                                 const char *key)
{
    if (c->cfg->dialect == AMP_DIALECT_STOCK) return amp_cfg_key_kind(key);
    const struct amp_key_row *row = amp_key_find(key, amp_cfg_section_type(c->cfg, s));
    if (!row || row->use == AMP_KEY_IGNORED) return AMP_CFG_UNKNOWN;
    return row->fork_kind ? row->fork_kind : row->kind;
}

/* Darknet counts the elements of a list by its commas, those of a remark too. */
static int check_remark(const struct amp_complaints *c, const struct amp_cfg_section *s,
                        const struct amp_cfg_entry *e, const char *remark)
{
    if (!strchr(remark, ',')) return 0;
    return amp_fail_line(c, e->line,
                         "%s=%.80s in %s: Darknet takes a comma of the remark for one of the "
                         "list%s",
                         e->key, e->written, s->name, amp_cfg_remark_hint(remark));
}

static int fail_number(const struct amp_complaints *c, const struct amp_cfg_section *s,
                       const struct amp_cfg_entry *e, enum amp_cfg_kind kind, const char *element)
{
    bool whole = is_whole(kind);
    return amp_fail_value(
        c, s, e, "\"%.40s\"; allowed: %s%s%s%s%s", element == e->value ? e->written : element,
        whole ? "a whole number of 32 bits" : "a finite number",
        !whole && amp_number_vanishes(element) ? AMP_FP32_LEAST : "",
        is_list(kind) ? ", or several with commas between them" : "", amp_cfg_remark_hint(e->value),
        read_number(element, whole) ? amp_fork_way_out(c->cfg) : "");
}

/* Darknet's atoi and atof stop at the first wrong character and say nothing. By the fork's rules
 * that is a note (note_read_as). */
static int check_number(const struct amp_complaints *c, const struct amp_cfg_section *s,
                        const struct amp_cfg_entry *e, enum amp_cfg_kind kind)
{
    bool fork = c->cfg->dialect == AMP_DIALECT_FORK, list = is_list(kind);
    for (const char *p = e->value; p;) {
        const char *end = read_number(p, is_whole(kind));
        bool ends = end && (!*end || *end == '#' || (list && *end == ','));
        if (!end || (!ends && !fork)) return fail_number(c, s, e, kind, p);
        if (list && *end != ',' && !fork) return check_remark(c, s, e, end);
        p = list ? amp_list_next(end) : NULL;
    }
    return 0;
}

bool amp_cfg_picks_subdivisions(const struct amp_cfg_file *cfg)
{
    const struct amp_cfg_section *net = cfg->sections;
    return amp_cfg_int(net, "mixed_precision", 0) == 1 &&
           !strcmp(amp_cfg_string(net, "subdivisions", ""), "auto");
}

static int check_subdivisions(const struct amp_complaints *c, const struct amp_cfg_section *s,
                              const struct amp_cfg_entry *e)
{
    const char *end = read_number(e->value, true);
    bool mixed = amp_cfg_int(c->cfg->sections, "mixed_precision", 0) == 1;
    bool fork = c->cfg->dialect == AMP_DIALECT_FORK;
    if (mixed && !strcmp(e->value, "auto")) return 0;
    if (end && (fork || !*end || *end == '#') && strtol(e->value, NULL, 10) >= 1) return 0;
    return amp_fail_value(c, s, e, "allowed: " AMP_SUBDIVISIONS "%s",
                          amp_cfg_remark_hint(e->value));
}

static int check_entry(const struct amp_complaints *c, const struct amp_cfg_section *s,
                       const struct amp_cfg_entry *e)
{
    enum amp_cfg_kind kind = kind_of(c, s, e->key);
    if (s == c->cfg->sections &&
        !strcmp(e->key, "subdivisions")) /* given twice is told elsewhere */
        return check_subdivisions(c, s, e);
    return is_number(kind) ? check_number(c, s, e, kind) : 0;
}

/* ---- the learning rate ---- */

/* Darknet reads as many scales as steps, past the end of a shorter list. */
static int check_steps(const struct amp_complaints *c, const struct amp_cfg_section *net, int line)
{
    const struct amp_cfg_entry *steps = amp_cfg_find(net, "steps");
    const struct amp_cfg_entry *scales = amp_cfg_find(net, "scales");
    if (!steps || !scales)
        return amp_fail_line(c, line,
                             "policy=steps in %s: needs the keys steps= and scales=", net->name);
    int n_steps = amp_list_count(steps->value), n_scales = amp_list_count(scales->value);
    if (n_scales >= n_steps) return 0; /* Darknet does not read the surplus */
    return amp_fail_value(c, net, scales,
                          "%d numbers; allowed: at least %d, one for each of steps=", n_scales,
                          n_steps);
}

static int check_policy(const struct amp_complaints *c, const struct amp_cfg_section *net)
{
    const struct amp_cfg_entry *e = amp_cfg_find(net, "policy");
    if (!e) return 0;
    bool ours = amp_policy_from_word(e->value) != AMP_POLICY_OF_DARKNET;
    if (ours && amp_cfg_int(net, "mixed_precision", 0)) return 0;
    if (ours)
        return amp_fail_value(
            c, net, e,
            "needs mixed_precision=1; without it this Darknet would keep the rate "
            "constant");
    if (amp_key_word(amp_key_find("policy", AMP_NETWORK), e->value) < 0)
        return amp_fail_value(c, net, e,
                              "this Darknet does not know it and would keep the rate constant; "
                              "allowed: constant, step, steps, exp, poly, sigmoid, random; with "
                              "mixed_precision=1 also %s%s",
                              amp_policy_words(), amp_cfg_remark_hint(e->value));
    /* Only the keys of the chosen policy matter. */
    if (!strcmp(e->value, "steps")) return check_steps(c, net, e->line);
    const struct amp_cfg_entry *step = amp_cfg_find(net, "step");
    if (!strcmp(e->value, "step") && step && amp_cfg_int(net, "step", 1) < 1)
        return amp_fail_value(c, net, step, "allowed: at least 1");
    return 0;
}

/* ---- anchors ---- */

/* The anchors of a head that has some; NULL: none. */
static const struct amp_cfg_entry *find_anchors(const struct amp_cfg_section *s)
{
    enum amp_layer_type type = amp_layer_type_from_name(s->name);
    return type == AMP_YOLO || type == AMP_REGION ? amp_cfg_find(s, "anchors") : NULL;
}

static int check_anchors(const struct amp_complaints *c, const struct amp_cfg_section *s)
{
    const struct amp_cfg_entry *e = find_anchors(s);
    if (!e || c->cfg->dialect == AMP_DIALECT_FORK) return 0; /* a note (check_anchor_sizes) */
    int n = amp_list_count(e->value), num = amp_cfg_int(s, "num", 1);
    if (n <= 2LL * num) return 0; /* Darknet takes .5 for missing ones */
    return amp_fail_line(c, e->line,
                         "anchors= in %s: %d numbers; allowed: %lld, two for each of num=%d%s",
                         s->name, n, 2LL * num, num, amp_fork_way_out(c->cfg));
}

int amp_cfg_values_check(const struct amp_complaints *c)
{
    for (int i = 0; i < c->cfg->n_sections; i++) {
        const struct amp_cfg_section *s = &c->cfg->sections[i];
        for (int j = 0; j < s->n_entries; j++)
            if (check_entry(c, s, &s->entries[j])) return -1;
        /* The learning rate stands in the first section, anchors in layers. */
        if (i == 0 ? check_policy(c, s) : check_anchors(c, s)) return -1;
    }
    return 0;
}

/* ---- values that Darknet takes, and then trains something else with ---- */

/* Darknet reads the numbers in front of a remark. A word would be read with the remark, and a list
 * with the remark's commas; both are errors elsewhere. The first is enough to make the point. */
static void note_remark(const struct amp_complaints *c)
{
    for (int i = 0; i < c->cfg->n_sections; i++)
        for (int j = 0; j < c->cfg->sections[i].n_entries; j++) {
            const struct amp_cfg_section *s = &c->cfg->sections[i];
            const struct amp_cfg_entry *e = &s->entries[j];
            const char *remark = strchr(e->value, '#');
            if (!remark || !is_number(kind_of(c, s, e->key))) continue;
            amp_note_value(c, s, e, "Darknet reads %.*s; put the remark on its own line",
                           (int)(remark - e->value < 40 ? remark - e->value : 40), e->value);
            return;
        }
}

/* Whether Darknet stops in the middle of a number: "1600.0" for a whole one. */
static bool is_cut(const struct amp_cfg_entry *e, enum amp_cfg_kind kind)
{
    for (const char *p = e->value; p; p = is_list(kind) ? amp_list_next(p) : NULL) {
        const char *end = read_number(p, is_whole(kind));
        if (end && *end && *end != ',' && *end != '#') return true;
    }
    return false;
}

/* The first is enough. */
static void note_cut(const struct amp_complaints *c)
{
    for (int i = 0; i < c->cfg->n_sections && c->cfg->dialect == AMP_DIALECT_FORK; i++)
        for (int j = 0; j < c->cfg->sections[i].n_entries; j++) {
            const struct amp_cfg_section *s = &c->cfg->sections[i];
            const struct amp_cfg_entry *e = &s->entries[j];
            enum amp_cfg_kind kind = kind_of(c, s, e->key);
            if (!is_number(kind) || !strcmp(e->value, "auto") || !is_cut(e, kind)) continue;
            amp_note_value(c, s, e,
                           "Darknet reads each number up to the first character that is none "
                           "of %s",
                           is_whole(kind) ? "a whole number" : "a number");
            return;
        }
}

#define LONGEST_SECTION 1000 /* keys; the search compares all pairs */
#define MOST_DOUBLES    3    /* in the notes; callers have room for some lines */

/* Darknet takes the first of equal keys and does not mention the others under [net]. */
static void note_doubles(const struct amp_complaints *c, const struct amp_cfg_section *s,
                         int *doubles)
{
    for (int i = 1; i < s->n_entries && i < LONGEST_SECTION && *doubles < MOST_DOUBLES; i++) {
        const struct amp_cfg_entry *e = &s->entries[i], *first = amp_cfg_find(s, e->key);
        if (first == e) continue;
        const char *more = ++*doubles == MOST_DOUBLES ? "; there may be more" : "";
        amp_note_entry(c, e, "given twice in %s; line %d counts (%s=%.40s)%s", s->name, first->line,
                       first->key, first->value, more);
    }
}

void amp_cfg_note_doubles(const struct amp_complaints *c)
{
    int doubles = 0;
    for (int i = 0; i < c->cfg->n_sections; i++)
        note_doubles(c, &c->cfg->sections[i], &doubles);
}

/* Darknet drops blanks, and so makes one number of two. */
static int check_blanks(const struct amp_complaints *c, const struct amp_cfg_section *s,
                        const struct amp_cfg_entry *e)
{
    enum amp_cfg_kind kind = kind_of(c, s, e->key);
    const char *end = e->written + strcspn(e->written, "#");
    for (const char *p = e->written; is_number(kind) && p < end; p++) {
        const char *next = p + 1 + strspn(p + 1, " \t");
        if (next == p + 1 || next >= end || strchr(" \t,", *p) || *next == ',') continue;
        return amp_fail_value(c, s, e, "Darknet drops blanks and reads %.80s; allowed: %s",
                              e->value, is_list(kind) ? "commas between numbers" : "one number");
    }
    return 0;
}

/* Darknet drops the remainder, so an iteration would have fewer images than batch= says. The fork's
 * pass has at least one image. */
static int check_batch(const struct amp_complaints *c, const struct amp_cfg_section *net)
{
    int batch = amp_net_int(c->cfg, "batch"), parts = amp_net_int(c->cfg, "subdivisions");
    if (parts < 1 || batch % parts == 0) return 0; /* below 1 is an error elsewhere */
    bool fork = c->cfg->dialect == AMP_DIALECT_FORK;
    int images = (fork && batch < parts ? 1 : batch / parts) * parts;
    return amp_doubt_line(c, amp_cfg_line(net, "subdivisions"),
                          "subdivisions=%d in %s: must divide batch=%d, or be auto; Darknet would "
                          "train %d images in an iteration",
                          parts, net->name, batch, images);
}

/* ---- ranges ---- */

static int check_range(const struct amp_complaints *c, const struct amp_cfg_section *s,
                       const struct amp_key_row *row)
{
    const struct amp_cfg_entry *e = amp_cfg_find(s, row->name);
    /* As Darknet stores it. */
    if (!e || amp_key_allows(row, (float)strtod(e->value, NULL))) return 0;
    return amp_fail_value(c, s, e, "allowed: %s", row->allowed);
}

/* Of the keys that the cfg's Darknet reads in this section. */
static int check_ranges(const struct amp_complaints *c, const struct amp_cfg_section *s)
{
    enum amp_layer_type type = amp_cfg_section_type(c->cfg, s);
    size_t n;
    const struct amp_key_row *rows = amp_key_rows(&n);
    for (size_t i = 0; i < n; i++) {
        bool read = amp_key_is_stocks(&rows[i]) || c->cfg->dialect == AMP_DIALECT_FORK;
        if (!rows[i].allowed || !read || amp_key_find(rows[i].name, type) != &rows[i]) continue;
        if (check_range(c, s, &rows[i])) return -1;
    }
    return 0;
}

/* ---- the learning rate ---- */

/* The number behind this one; NULL behind the last, also if a remark follows. */
static const char *next_number(const char *p)
{
    char *end;
    strtod(p, &end);
    return *end == ',' ? end + 1 : NULL;
}

/* Darknet waits for a step before it looks at the one behind it, and compares without a sign. */
static int check_steps_ascend(const struct amp_complaints *c, const struct amp_cfg_section *net,
                              const struct amp_cfg_entry *steps)
{
    double before = -INFINITY;
    if (strtod(steps->value, NULL) < 0)
        amp_note_value(c, net, steps,
                       "Darknet never comes to a negative step, so learning_rate stays as it is");
    for (const char *p = steps->value; p; p = next_number(p)) {
        double step = strtod(p, NULL);
        if (step < before)
            return amp_doubt_line(c, steps->line,
                                  "steps=%.80s in %s: allowed: each at or after the one before it; "
                                  "Darknet would come to %g only at %g",
                                  steps->written, net->name, step, before);
        before = step;
    }
    return 0;
}

static void note_late_steps(const struct amp_complaints *c, const struct amp_cfg_section *net,
                            const struct amp_cfg_entry *steps)
{
    int total = amp_net_int(c->cfg, "max_batches");
    if (c->cfg->dialect != AMP_DIALECT_FORK || total < 1) return;
    for (const char *p = steps->value; p; p = next_number(p))
        if (strtod(p, NULL) >= total) {
            amp_note_value(c, net, steps, "max_batches=%d ends the training before %.0f", total,
                           strtod(p, NULL));
            return;
        }
}

static int check_scales(const struct amp_complaints *c, const struct amp_cfg_section *net,
                        const struct amp_cfg_entry *steps, const struct amp_cfg_entry *scales)
{
    int n_steps = amp_list_count(steps->value), n_scales = amp_list_count(scales->value);
    for (const char *p = scales->value; p; p = next_number(p))
        if (strtod(p, NULL) <= 0) return amp_fail_value(c, net, scales, "allowed: factors above 0");
    if (n_steps == n_scales) return 0; /* fewer are an error elsewhere */
    return amp_doubt_line(c, scales->line,
                          "scales=%.80s in %s: %d numbers; allowed: %d, one for each of steps=; "
                          "Darknet would not read the others",
                          scales->written, net->name, n_scales, n_steps);
}

/* The keys that only some of Darknet's policies read; beside others they have no effect, which
 * schedule.c tells. */
static int check_policy_numbers(const struct amp_complaints *c, const struct amp_cfg_section *net)
{
    const char *policy = amp_cfg_string(net, "policy", "constant");
    const struct amp_cfg_entry *steps = amp_cfg_find(net, "steps"), *e;
    if (!strcmp(policy, "steps")) {
        if (check_steps_ascend(c, net, steps) ||
            check_scales(c, net, steps, amp_cfg_find(net, "scales")))
            return -1;
        note_late_steps(c, net, steps);
    }
    e = amp_cfg_find(net, "scale");
    if (e && !strcmp(policy, "step") && amp_cfg_float(net, "scale", 1) <= 0)
        return amp_fail_value(c, net, e, "allowed: a factor above 0");
    e = amp_cfg_find(net, "gamma");
    if (e && !strcmp(policy, "exp") && amp_cfg_float(net, "gamma", 1) <= 0)
        return amp_fail_value(c, net, e, "allowed: a factor above 0");
    return 0;
}

static int check_rates(const struct amp_complaints *c, const struct amp_cfg_section *net)
{
    int burn_in = amp_net_int(c->cfg, "burn_in"), total = amp_net_int(c->cfg, "max_batches");
    if (amp_net_float(c->cfg, "learning_rate") == 0)
        amp_note_line(c, amp_cfg_line(net, "learning_rate"),
                      "learning_rate=0 in %s: the weights will not change", net->name);
    if (total > 0 && burn_in >= total)
        amp_note_line(c, amp_cfg_line(net, "burn_in"),
                      "burn_in=%d in %s: max_batches=%d ends the training before learning_rate is "
                      "reached",
                      burn_in, net->name, total);
    return check_policy_numbers(c, net);
}

/* ---- heads and losses ---- */

/* Darknet's .5 keeps a missing anchor from crashing it, so only a training is refused. */
static int check_anchor_sizes(const struct amp_complaints *c, const struct amp_cfg_section *s)
{
    const struct amp_cfg_entry *e = find_anchors(s);
    if (!e) return 0;
    for (const char *p = e->value; p; p = next_number(p))
        if (strtod(p, NULL) <= 0)
            return amp_fail_line(c, e->line, "anchors= in %s: %g; allowed: numbers above 0",
                                 s->name, strtod(p, NULL));
    int n = amp_list_count(e->value), num = amp_cfg_int(s, "num", 1);
    bool stock = c->cfg->dialect == AMP_DIALECT_STOCK;
    if (n == 2LL * num || (stock && n > 2LL * num)) return 0; /* stock: an error elsewhere */
    return amp_doubt_line(c, e->line,
                          "anchors= in %s: %d numbers; needed: %lld, two for each of num=%d; "
                          "Darknet would %s",
                          s->name, n, 2LL * num, num,
                          n < 2LL * num ? "take 0.5 for those that are missing"
                                        : "not read the others");
}

static int check_cost_type(const struct amp_complaints *c, const struct amp_cfg_section *s)
{
    const struct amp_cfg_entry *e = amp_cfg_find(s, "type");
    if (!e || amp_layer_type_from_name(s->name) != AMP_COST ||
        amp_key_word(amp_key_find("type", AMP_COST), e->value) >= 0)
        return 0;
    return amp_fail_value(
        c, s, e,
        "this Darknet does not know it and would train sse; allowed: sse, masked, "
        "L1, seg, smooth, wgan%s",
        amp_cfg_remark_hint(e->value));
}

int amp_cfg_values_check_training(const struct amp_complaints *c)
{
    const struct amp_cfg_file *cfg = c->cfg;
    note_remark(c);
    note_cut(c);
    for (int i = 0; i < cfg->n_sections; i++)
        for (int j = 0; j < cfg->sections[i].n_entries; j++)
            if (check_blanks(c, &cfg->sections[i], &cfg->sections[i].entries[j])) return -1;
    const struct amp_cfg_section *net = cfg->sections;
    if (check_batch(c, net) || check_ranges(c, net) || check_rates(c, net)) return -1;
    for (int i = 1; i < cfg->n_sections; i++) {
        const struct amp_cfg_section *s = &cfg->sections[i];
        if (check_ranges(c, s) || check_anchor_sizes(c, s) || check_cost_type(c, s)) return -1;
    }
    return 0;
}
