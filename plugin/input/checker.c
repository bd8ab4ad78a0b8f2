/* Decides what is wrong with the files that all trainers read, the data file and the cfg, and
 * collects faults. It must not know which trainer reads them, nor call Darknet. */

#define _GNU_SOURCE
#include "checker.h"
#include "check_train.h"
#include "train_list.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "plugin/core/read/cfg_checks.h"
#include "plugin/core/read/half.h"
#include "plugin/core/read/lines.h"
#include "plugin/core/read/text.h"

/* ---- faults ---- */

/* Adds a fault. Other files of this folder call it as their amp_tell. */
void amp_checker_tell(void *context, const char *message)
{
    struct amp_checker *k = context;
    k->failed = true;
    /* A full buffer drops further faults; `failed` still counts them. */
    size_t room = k->err_size - k->err_used;
    int n = snprintf(k->err + k->err_used, room, "%s%s", k->err_used ? "\n" : "", message);
    k->err_used += (size_t)n < room ? (size_t)n : room ? room - 1 : 0;
}

void amp_checker_fault(struct amp_checker *k, const char *format, ...)
{
    char message[2 * PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    amp_checker_tell(k, message);
}

/* ---- line ends of Windows ---- */

/* line: the first that has one; 0: none. */
static void tell_line_ends(struct amp_checker *k, const char *path, int line, bool harmless)
{
    bool cut = k->options.mixed_precision;
    if (line && !cut && !harmless)
        amp_checker_fault(k, "%s:%d: " AMP_LINE_RETURNS, path, line, path);
    else if (line && !cut && k->warn)
        fprintf(k->warn, "warning: %s:%d: " AMP_LINE_RETURNS "\n", path, line, path);
    else if (line && k->warn)
        fprintf(k->warn,
                "warning: %s:%d: ends in a carriage return (Windows line end), which "
                "mixed_precision=1 leaves out of all lines\n",
                path, line);
}

void amp_checker_line_ends(struct amp_checker *k, const char *path, bool harmless)
{
    struct amp_lines lines = {0};
    const char *why;
    if (!amp_lines_read(path, true, &lines, &why))
        tell_line_ends(k, path, lines.carriage_return, harmless);
    amp_lines_free(&lines);
}

/* ---- the keys of the data file ---- */

/* Keys that any Darknet reads from a data file: the detector's commands, the classifier's, and
 * AlexeyAB's, so that one file may serve them all. */
static const char *const known[] = {
    "classes", "train", "valid",  "names", "backup",    "results", "eval",     "map",        "test",
    "labels",  "top",   "leaves", "tree",  "difficult", "tag",     "savelast", "saveweights"};
enum { KNOWN = sizeof known / sizeof *known };

static bool is_known(const char *key)
{
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(key, known[i])) return true;
    return false;
}

/* Stock Darknet's training ignores keys that it does not know. With mixed_precision=1 a key that is
 * near a known one is a fault; anything else is only told. */
static void check_key(struct amp_checker *k, const struct amp_cfg_entry *e)
{
    char message[2 * PATH_MAX];
    const char *nearest = amp_nearest_word(e->key, known, KNOWN);
    if (is_known(e->key)) return;
    int n = snprintf(message, sizeof message, "%s:%d: %.80s=: Darknet knows no such key",
                     k->data->path, e->line, e->key);
    if (nearest && n < (int)sizeof message)
        snprintf(message + n, sizeof message - (size_t)n, "; did you mean %s?", nearest);
    if (nearest && k->options.mixed_precision)
        amp_checker_tell(k, message);
    else if (k->warn)
        fprintf(k->warn, "warning: %s\n", message);
}

/* Words for the end of a message if the value holds a remark, else "". In a path, a # that follows
 * no blank is a part of the name. */
const char *amp_checker_remark(const struct amp_cfg_entry *e)
{
    const char *p = e->written;
    while ((p = strpbrk(p, " \t")))
        if (*++p == '#' || *p == ';') return amp_cfg_remark_hint(e->value);
    return "";
}

/* The keys that the checks below read. A remark spoils their values, and the fault names it. */
static bool is_checked(const char *key)
{
    return !strcmp(key, "classes") || !strcmp(key, "names") || !strcmp(key, "train") ||
           !strcmp(key, "backup") || !strcmp(key, "labels");
}

/* Warns of blanks inside a value: Darknet drops them, so a folder "my data" becomes "mydata". */
static void check_blanks(const struct amp_cfg_file *data, FILE *warn)
{
    for (int i = 0; i < data->sections[0].n_entries; i++) {
        const struct amp_cfg_entry *e = &data->sections[0].entries[i];
        if (strpbrk(e->written, " \t") && !(*amp_checker_remark(e) && is_checked(e->key)))
            fprintf(warn, "warning: %s:%d: %s=%s: Darknet drops blanks and reads %s%s\n",
                    data->path, e->line, e->key, e->written, e->value, amp_checker_remark(e));
    }
}

/* Darknet takes the first of equal keys. */
static void check_doubles(const struct amp_cfg_file *data, FILE *warn)
{
    for (int i = 0; i < data->sections[0].n_entries; i++) {
        const struct amp_cfg_entry *e = &data->sections[0].entries[i];
        const struct amp_cfg_entry *first = amp_cfg_find(&data->sections[0], e->key);
        if (first != e)
            fprintf(warn, "warning: %s:%d: %s=%s: given twice; line %d counts (%s=%s)\n",
                    data->path, e->line, e->key, e->value, first->line, first->key, first->value);
    }
}

/* AlexeyAB's: how often its files are written. */
static void note_intervals(const struct amp_cfg_file *data, FILE *warn)
{
    static const char *const keys[] = {"savelast", "saveweights"};
    for (int i = 0; i < 2; i++) {
        const struct amp_cfg_entry *e = amp_cfg_find(&data->sections[0], keys[i]);
        if (e)
            fprintf(warn, "warning: %s:%d: %s=%s: has no effect%s\n", data->path, e->line, e->key,
                    e->value, i ? "" : "; amp_backup_every under [net] of the cfg says how often");
    }
}

void amp_checker_data_keys(struct amp_checker *k)
{
    for (int i = 0; i < k->data->sections[0].n_entries; i++)
        check_key(k, &k->data->sections[0].entries[i]);
    if (!k->warn) return;
    note_intervals(k->data, k->warn);
    check_blanks(k->data, k->warn);
    check_doubles(k->data, k->warn);
}

const char *amp_checker_explain(const struct amp_cfg_file *data, const char *key)
{
    static _Thread_local char text[PATH_MAX + 200];
    const struct amp_cfg_entry *e = amp_cfg_find(&data->sections[0], key);
    if (e && *amp_checker_remark(e)) return amp_checker_remark(e);
    if (e) {
        amp_list_name_hint(data->path, e->value, text, sizeof text);
        return text;
    }
    snprintf(text, sizeof text, " (%s has no %s= line: this is Darknet's default)", data->path,
             key);
    return text;
}

/* ---- the cfg ---- */

/* The file itself is made when training has begun. */
static void check_log(struct amp_checker *k)
{
    char folder[PATH_MAX];
    struct stat found;
    const char *path = k->options.log_path, *slash = strrchr(path, '/');
    if (!slash) return;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    if (stat(folder, &found))
        amp_checker_fault(k, "%s:%d: amp_log=%s: folder %s: %s", k->cfg->path,
                          amp_cfg_line(k->cfg->sections, "amp_log"), path, folder, strerror(errno));
}

/* What is an error with mixed_precision=1, of which the first is told, and keys that are given
 * twice. */
static void warn_of_values(struct amp_checker *k)
{
    char err[2 * PATH_MAX] = "", notes[4 * PATH_MAX] = "", *state;
    struct amp_complaints c = {k->cfg, NULL, 0, err, sizeof err};
    if (amp_cfg_values_check_training(&c)) fprintf(k->warn, "warning: %s\n", err);
    c.notes = notes;
    c.notes_size = sizeof notes;
    amp_cfg_note_doubles(&c);
    for (char *line = strtok_r(notes, "\n", &state); line; line = strtok_r(NULL, "\n", &state))
        fprintf(k->warn, "warning: %s\n", line);
}

static void read_cfg(struct amp_checker *k, const char *path)
{
    char err[2 * PATH_MAX], note[2 * PATH_MAX];
    k->cfg = amp_cfg_read_asked(path, k->half, err, sizeof err);
    bool asked = k->cfg && k->half;
    if (!k->cfg || (asked && amp_half_ask(k->cfg, note, sizeof note, err, sizeof err)) ||
        amp_options_read(k->cfg, &k->options, NULL, 0, err, sizeof err)) {
        amp_checker_tell(k, err);
        return;
    }
    if (!k->infers) check_log(k);
    /* At the cfg's own size; check_train_net.c tries the sizes of random=1. */
    k->net = amp_net_describe(k->cfg, 0, 0, true, err, sizeof err);
    bool trains = !k->infers; /* what is only tested may have keys that no training can follow */
    if (!k->net || (trains && amp_net_check_dialect(k->cfg, k->net, err, sizeof err)))
        amp_checker_tell(k, err);
    if (k->net && !k->infers && k->warn && !k->options.mixed_precision) warn_of_values(k);
}

/* ---- classes ---- */

int amp_checker_count_lines(const char *path, const char **why)
{
    struct amp_lines lines = {0};
    int failed = amp_lines_read(path, true, &lines, why), count = lines.count;
    amp_lines_free(&lines);
    return failed ? -1 : count;
}

/* The data file's classes; 0: it has none, or a bad value, which is told. */
int amp_checker_classes(struct amp_checker *k)
{
    const struct amp_cfg_entry *e = k->data ? amp_cfg_find(&k->data->sections[0], "classes") : NULL;
    if (!e) return 0;
    char *end;
    errno = 0;
    long classes = strtol(e->value, &end, 10);
    if (!*end && !errno && classes >= 1 && classes <= INT_MAX) return (int)classes;
    amp_checker_fault(k, "%s:%d: classes=%.80s; allowed: a whole number, at least 1%s",
                      k->data->path, e->line, e->written, amp_cfg_remark_hint(e->value));
    return 0;
}

/* ---- all ---- */

void amp_checker_read(struct amp_checker *k, const char *data, const char *cfg)
{
    char err[2 * PATH_MAX];
    if (k->err_size && !k->failed) *k->err = '\0';
    if (cfg) read_cfg(k, cfg);
    if (!data) return;
    k->data = amp_cfg_read_data(data, err, sizeof err);
    if (!k->data)
        amp_checker_tell(k, err);
    else
        tell_line_ends(k, data, k->data->carriage_return, false);
}

int amp_checker_end(struct amp_checker *k)
{
    amp_net_desc_free(k->net);
    amp_cfg_free(k->cfg);
    amp_cfg_free(k->data);
    return k->failed ? -1 : 0;
}

void amp_print_faults(char *err, FILE *f)
{
    /* Indented lines belong to the fault before them. */
    for (char *line = strtok(err, "\n"); line; line = strtok(NULL, "\n"))
        fprintf(f, "%s%s\n", *line == ' ' ? "" : "error: ", line);
}
