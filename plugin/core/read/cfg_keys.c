/* Decides whether somebody reads a key in its section, and whether a key that nobody reads is a
 * mistake. It looks at values only to see whether a key asks for something that is not done: by
 * stock's rules what another Darknet would train, by the fork's what this program cannot train.
 * Which keys there are stands in key_table.c. */
#include "cfg_checks.h"
#include "dialect.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "key_table.h"
#include "text.h"

/* ---- what is found ---- */

/* Different keys; looking for what more were meant to be would take long. */
#define MOST_FOUND    200
#define MOST_NAMED    24  /* of those, the most that a message names */
#define MOST_MISSPELT 8   /* that are noted, one line each */
#define MOST_KNOWN    320 /* keys of one section */

/* Keys for one line of text: the first with its value, then the names of the others. */
struct findings {
    char text[1024];
    int n;
    struct {
        const char *section, *key;
    } found[MOST_FOUND];
};

struct keys_check {
    const struct amp_complaints *complaints;
    const char *const *own; /* the plugin's keys under [net] */
    size_t n_own;
    bool fork; /* the cfg's dialect */
    struct findings foreign, ignored, words;
    int misspelt; /* keys of the fork's cfgs */
};

__attribute__((format(printf, 2, 3))) static void append(struct findings *f, const char *format,
                                                         ...)
{
    size_t used = strlen(f->text);
    va_list args;
    va_start(args, format);
    vsnprintf(f->text + used, sizeof f->text - used, format, args);
    va_end(args);
}

/* A cfg repeats keys in many sections of one type: only the first of each is named. */
static bool is_new(struct findings *f, const struct amp_cfg_section *s,
                   const struct amp_cfg_entry *e)
{
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->found[i].key, e->key) && !strcmp(f->found[i].section, s->name)) return false;
    /* A cfg with so many unknown keys is no cfg; its first ones are enough. */
    if (f->n == MOST_FOUND) return false;
    f->found[f->n].section = s->name;
    f->found[f->n].key = e->key;
    f->n++;
    return true;
}

static void add_finding(const struct keys_check *k, struct findings *f,
                        const struct amp_cfg_section *s, const struct amp_cfg_entry *e,
                        const char *meaning)
{
    if (!is_new(f, s, e)) return;
    if (f->n == 1)
        append(f, "%s:%d: %.60s=%.60s in %.60s: %s", k->complaints->cfg->path, e->line, e->key,
               e->written, s->name, meaning);
    else if (f->n <= MOST_NAMED)
        append(f, "%s %.60s (line %d)", f->n == 2 ? "; likewise" : ",", e->key, e->line);
}

static void end_findings(struct findings *f)
{
    if (f->n > MOST_NAMED) append(f, " and more");
}

static bool is_own(const struct keys_check *k, const char *key)
{
    for (size_t i = 0; i < k->n_own; i++)
        if (!strcmp(k->own[i], key)) return true;
    return false;
}

/* The known key of this section that `name` was probably meant to be; NULL: none is near. */
static const char *guess(const struct keys_check *k, const char *name, enum amp_layer_type section)
{
    const char *known[MOST_KNOWN];
    size_t n = 0, n_rows;
    const struct amp_key_row *rows = amp_key_rows(&n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        bool read = amp_key_is_stocks(&rows[i]) ||
                    (k->fork && rows[i].reader == AMP_READ_BY_FORK && rows[i].use == AMP_KEY_USED);
        if (read && n < MOST_KNOWN && amp_key_find(rows[i].name, section) == &rows[i])
            known[n++] = rows[i].name;
    }
    /* Our keys are known under [net] only. */
    for (size_t i = 0; section == AMP_NETWORK && i < k->n_own && n < MOST_KNOWN; i++)
        known[n++] = k->own[i];
    return amp_nearest_word(name, known, n);
}

/* ---- by stock's rules ---- */

/* AlexeyAB's Darknet has switches with more values: a batch normalization over several passes (2),
 * or the iteration at which a frozen part thaws. Or it is no switch that was meant: pad=7, which is
 * a number of pixels in [local] alone. */
static bool is_no_switch(const struct amp_key_row *row, const char *value)
{
    long number = strtol(value, NULL, 10);
    return row->kind == AMP_CFG_SWITCH && number != 0 && number != 1;
}

/* A key that nobody reads in its section. */
static int check_unread(struct keys_check *k, const struct amp_cfg_section *s,
                        const struct amp_cfg_entry *e, enum amp_layer_type section)
{
    const struct amp_complaints *c = k->complaints;
    if (section != AMP_NETWORK && amp_key_is_nets_only(e->key))
        return amp_fail_line(c, e->line,
                             "%.60s=%.60s in %.60s: allowed only in the first section, [net]; a "
                             "layer has none of its own",
                             e->key, e->written, s->name);
    /* A key that Darknet reads in other layers is in the wrong place, not misspelt. */
    const char *meant = amp_key_find_anywhere(e->key) ? NULL : guess(k, e->key, section);
    if (meant)
        return amp_fail_line(c, e->line, "%.60s=%.60s in %.60s: unknown key; did you mean %s?%s",
                             e->key, e->written, s->name, meant,
                             is_own(k, meant) ? "" : amp_fork_way_out(c->cfg));
    add_finding(k, &k->ignored, s, e, "has no effect in this section");
    return 0;
}

static int check_stock_key(struct keys_check *k, const struct amp_cfg_section *s,
                           const struct amp_cfg_entry *e, enum amp_layer_type section)
{
    const struct amp_key_row *row = amp_key_find(e->key, section);
    if (row && amp_key_is_stocks(row)) {
        if (is_no_switch(row, e->value))
            add_finding(k, &k->foreign, s, e,
                        "allowed: 0 or 1; this Darknet reads any number but 0 as 1 and would train "
                        "another network");
        return 0;
    }
    if ((row && row->reader == AMP_READ_BY_NOBODY) || is_own(k, e->key)) return 0;
    if (!row) return check_unread(k, s, e, section);
    if (row->reader == AMP_KNOWN_TO_FORK)
        add_finding(k, &k->ignored, s, e, "has no effect in this section");
    else if (!amp_key_is_default(row, s, e->value)) /* else it asks for what is done anyway */
        add_finding(k, &k->foreign, s, e,
                    "this Darknet does not read this key and would train another network");
    return 0;
}

/* ---- by the fork's rules ---- */

/* The fork skips what it does not know. */
static void note_unread(struct keys_check *k, const struct amp_cfg_section *s,
                        const struct amp_cfg_entry *e, enum amp_layer_type section)
{
    const char *meant = amp_key_find_anywhere(e->key) ? NULL : guess(k, e->key, section);
    if (!meant)
        add_finding(k, &k->ignored, s, e, "has no effect by AlexeyAB's rules");
    else if (k->misspelt++ < MOST_MISSPELT)
        amp_note_line(k->complaints, e->line,
                      "%.60s=%.60s in %.60s: AlexeyAB's Darknet skips this key; did you mean %s?",
                      e->key, e->written, s->name, meant);
}

/* Whether the key asks for more than stock does anyway. */
static bool asks(const struct amp_key_row *row, const struct amp_cfg_section *s,
                 const struct amp_cfg_entry *e)
{
    return row->kind == AMP_CFG_SWITCH && amp_key_is_stocks(row)
               ? is_no_switch(row, e->value)
               : !amp_key_is_default(row, s, e->value);
}

static int refuse(const struct keys_check *k, const struct amp_cfg_section *s,
                  const struct amp_cfg_entry *e, const struct amp_key_row *row)
{
    return amp_fail_line(k->complaints, e->line,
                         "%.60s=%.60s in %.60s: not supported by AlexeyAB's rules here (%s); "
                         "without it the network would lose %s",
                         e->key, e->written, s->name, k->complaints->cfg->dialect_reason,
                         row->lost);
}

/* Of a few words. */
static void note_word(struct keys_check *k, const struct amp_cfg_section *s,
                      const struct amp_cfg_entry *e, const struct amp_key_row *row)
{
    char known[200] = "";
    if (!is_new(&k->words, s, e)) return;
    for (int i = 0; row->words[i]; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s",
                 !i                  ? ""
                 : row->words[i + 1] ? ", "
                                     : " and ",
                 row->words[i]);
    }
    amp_note_value(k->complaints, s, e,
                   "AlexeyAB's Darknet does not know this word and takes another; it knows %s",
                   known);
}

static int check_fork_key(struct keys_check *k, const struct amp_cfg_section *s,
                          const struct amp_cfg_entry *e, enum amp_layer_type section)
{
    const struct amp_key_row *row = amp_key_find(e->key, section);
    if (is_own(k, e->key)) return 0;
    if (!row) {
        note_unread(k, s, e, section);
        return 0;
    }
    if (!asks(row, s, e)) return 0;
    if (row->use == AMP_KEY_REFUSED) return refuse(k, s, e, row);
    if (!amp_key_is_stocks(row) && row->words && amp_key_word(row, e->value) < 0)
        note_word(k, s, e, row);
    if (row->use == AMP_KEY_IGNORED)
        add_finding(k, &k->ignored, s, e, "has no effect by AlexeyAB's rules");
    return 0;
}

/* ---- all ---- */

static int check_section(struct keys_check *k, int i)
{
    const struct amp_cfg_file *cfg = k->complaints->cfg;
    const struct amp_cfg_section *s = &cfg->sections[i];
    /* The first section is [net] or [network]; options_read.c refuses any other. */
    enum amp_layer_type type = amp_cfg_section_type(cfg, s);
    if (type == AMP_BLANK) return 0; /* an unknown layer is an error elsewhere */
    for (int j = 0; j < s->n_entries && k->ignored.n < MOST_FOUND && k->misspelt < MOST_FOUND; j++)
        if (k->fork ? check_fork_key(k, s, &s->entries[j], type)
                    : check_stock_key(k, s, &s->entries[j], type))
            return -1;
    return 0;
}

/* Notes even if there is an error: both are about the same cfg. */
static int end_check(struct keys_check *k)
{
    const struct amp_complaints *c = k->complaints;
    end_findings(&k->foreign);
    end_findings(&k->ignored);
    if (k->ignored.n) amp_note_text(c, k->ignored.text);
    if (k->foreign.n == 0) return 0;
    bool named = amp_cfg_find(c->cfg->sections, "amp_dialect");
    snprintf(c->err, c->err_size, "%s. Remove what is not needed, or %s", k->foreign.text,
             named ? "allow AlexeyAB's rules (amp_dialect=auto)"
                   : "use a cfg made for this Darknet");
    return -1;
}

int amp_cfg_keys_check(const struct amp_complaints *c, const char *const *own, size_t n_own)
{
    struct keys_check *k = calloc(1, sizeof *k);
    if (!k) return amp_fail_line(c, 0, "out of memory");
    *k = (struct keys_check){
        .complaints = c, .own = own, .n_own = n_own, .fork = c->cfg->dialect == AMP_DIALECT_FORK};
    int result = 0;
    for (int i = 0; i < c->cfg->n_sections && result == 0; i++)
        result = check_section(k, i);
    if (result == 0) result = end_check(k);
    free(k);
    return result;
}
