/* Decides which keys of a cfg give way to the word -half. */
#include "half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dialect.h"

static char mixed[] = "mixed_precision", dtype[] = "amp_dtype", level[] = "amp_level";
static char one[] = "1", automatic[] = "auto", none[] = "none";

static int put(struct amp_cfg_section *net, char *key, char *value)
{
    struct amp_cfg_entry *before = net->entries;
    int failed = amp_cfg_put(net, key, value);
    if (!failed) free(before);
    return failed;
}

/* Puts the value in place of one of these, and notes it. */
static int replace(struct amp_cfg_file *cfg, char *key, const char *const *wide, char *value,
                   char *note, size_t note_size)
{
    const struct amp_cfg_entry *e = amp_cfg_find(cfg->sections, key);
    for (; e && *wide; wide++) {
        if (strcmp(e->value, *wide)) continue;
        snprintf(note, note_size, "%s:%d: %s=%s does not count beside -half", cfg->path, e->line,
                 key, e->value);
        return put(cfg->sections, key, value);
    }
    return 0;
}

int amp_half_ask(struct amp_cfg_file *cfg, char *note, size_t note_size, char *err, size_t err_size)
{
    static const char *const types[] = {"fp32", "tf32", NULL}, *const levels[] = {"O0", NULL};
    *note = '\0';
    if (put(cfg->sections, mixed, one) || replace(cfg, dtype, types, automatic, note, note_size) ||
        replace(cfg, level, levels, none, note, note_size)) {
        snprintf(err, err_size, "%s: out of memory", cfg->path);
        return -1;
    }
    amp_dialect_settle(cfg);
    return 0;
}
