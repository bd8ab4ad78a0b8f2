/* Decides what is wrong with the inputs of `detector train` before anything is trained, and names
 * every fault in one go. It must not call Darknet: Darknet ends, crashes or trains on nonsense at
 * most of what is found here, so its rules are restated and only files are read. */

#define _GNU_SOURCE
#include "check_train.h"
#include "train_list.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "plugin/core/read/cfg.h"
#include "plugin/core/files/file.h"
#include "plugin/core/read/lines.h"
#include "plugin/core/read/text.h"
#include "plugin/core/net/net.h"
#include "plugin/core/read/options.h"
#include "plugin/core/net/weights_file.h"

/* Size of the buffer in which Darknet builds the name of a weights file; it writes past a longer
 * one. */
#define DARKNET_NAME_SIZE 256

struct checker {
    struct amp_cfg_file *data, *cfg; /* NULL: cannot be read */
    struct amp_net_desc *net;        /* NULL without a valid cfg */
    struct amp_options options;      /* the cfg's */
    FILE *progress, *warn;
    char *err;
    size_t err_size, err_used;
    bool failed;
};

/* ---- faults ---- */

/* Adds a fault. Other files of this folder call it as their amp_tell. */
static void tell(void *context, const char *message)
{
    struct checker *k = context;
    k->failed = true;
    /* A full buffer drops further faults; `failed` still counts them. */
    size_t room = k->err_size - k->err_used;
    int n = snprintf(k->err + k->err_used, room, "%s%s", k->err_used ? "\n" : "", message);
    k->err_used += (size_t)n < room ? (size_t)n : room ? room - 1 : 0;
}

__attribute__((format(printf, 2, 3))) static void fault(struct checker *k, const char *format, ...)
{
    char message[2 * PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    tell(k, message);
}

/* ---- the keys of the data file ---- */

/* Keys that any Darknet reads from a data file: the detector's commands, the classifier's, and
 * AlexeyAB's, so that one file may serve them all. */
static const char *const known[] = {
    "classes", "train",  "valid", "names",  "backup", "results",   "eval",     "map",
    "test",    "labels", "top",   "leaves", "tree",   "difficult", "savelast", "saveweights"};
enum { KNOWN = sizeof known / sizeof *known };

static bool is_known(const char *key)
{
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(key, known[i])) return true;
    return false;
}

/* Stock Darknet's training ignores keys that it does not know. With mixed_precision=1 a key that is
 * near a known one is a fault; anything else is only told. */
static void check_key(struct checker *k, const struct amp_cfg_entry *e)
{
    char message[2 * PATH_MAX];
    const char *nearest = amp_nearest_word(e->key, known, KNOWN);
    if (is_known(e->key)) return;
    int n = snprintf(message, sizeof message, "%s:%d: %.80s=: Darknet knows no such key",
                     k->data->path, e->line, e->key);
    if (nearest && n < (int)sizeof message)
        snprintf(message + n, sizeof message - (size_t)n, "; did you mean %s?", nearest);
    if (nearest && k->options.mixed_precision)
        tell(k, message);
    else if (k->warn)
        fprintf(k->warn, "warning: %s\n", message);
}

/* Words for the end of a message if the value holds a remark, else "". In a path, a # that follows
 * no blank is a part of the name. */
static const char *remark_hint(const struct amp_cfg_entry *e)
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
           !strcmp(key, "backup");
}

/* Warns of blanks inside a value: Darknet drops them, so a folder "my data" becomes "mydata". */
static void check_blanks(const struct amp_cfg_file *data, FILE *warn)
{
    for (int i = 0; i < data->sections[0].n_entries; i++) {
        const struct amp_cfg_entry *e = &data->sections[0].entries[i];
        if (strpbrk(e->written, " \t") && !(*remark_hint(e) && is_checked(e->key)))
            fprintf(warn, "warning: %s:%d: %s=%s: Darknet drops blanks and reads %s%s\n",
                    data->path, e->line, e->key, e->written, e->value, remark_hint(e));
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

static void check_keys(struct checker *k)
{
    for (int i = 0; i < k->data->sections[0].n_entries; i++)
        check_key(k, &k->data->sections[0].entries[i]);
    if (!k->warn) return;
    check_blanks(k->data, k->warn);
    check_doubles(k->data, k->warn);
}

/* Words for the end of a message about the key's value: that it is Darknet's default, holds a
 * remark, or why such a name is not found; else "". The text holds until the next call. */
static const char *explain_value(const struct amp_cfg_file *data, const char *key)
{
    static _Thread_local char text[PATH_MAX + 200];
    const struct amp_cfg_entry *e = amp_cfg_find(&data->sections[0], key);
    if (e && *remark_hint(e)) return remark_hint(e);
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
static void check_log(struct checker *k)
{
    char folder[PATH_MAX];
    struct stat found;
    const char *path = k->options.log_path, *slash = strrchr(path, '/');
    if (!slash) return;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    if (stat(folder, &found))
        fault(k, "%s:%d: amp_log=%s: folder %s: %s", k->cfg->path,
              amp_cfg_line(k->cfg->sections, "amp_log"), path, folder, strerror(errno));
}

static void read_cfg(struct checker *k, const char *path)
{
    char err[2 * PATH_MAX];
    k->cfg = amp_cfg_read(path, err, sizeof err);
    if (!k->cfg || amp_options_read(k->cfg, &k->options, NULL, 0, err, sizeof err)) {
        tell(k, err);
        return;
    }
    check_log(k);
    /* At the cfg's own size; check_train_net.c tries the sizes of random=1. */
    k->net = amp_net_describe(k->cfg, 0, 0, true, err, sizeof err);
    if (!k->net || amp_net_check_dialect(k->cfg, k->net, err, sizeof err)) tell(k, err);
}

/* ---- classes ---- */

/* Number of lines up to the last that is not empty: an empty line in between is a class without a
 * name. -1 with the reason in why: the file cannot be read. */
static int count_names(const char *path, const char **why)
{
    struct amp_lines names = {0};
    int failed = amp_lines_read(path, true, &names, why), count = names.count;
    amp_lines_free(&names);
    return failed ? -1 : count;
}

/* The data file's classes; 0: it has none, or a bad value, which is told. */
static int read_classes(struct checker *k)
{
    const struct amp_cfg_entry *e = k->data ? amp_cfg_find(&k->data->sections[0], "classes") : NULL;
    if (!e) return 0;
    char *end;
    errno = 0;
    long classes = strtol(e->value, &end, 10);
    if (!*end && !errno && classes >= 1 && classes <= INT_MAX) return (int)classes;
    fault(k, "%s:%d: classes=%.80s; allowed: a whole number, at least 1%s", k->data->path, e->line,
          e->written, amp_cfg_remark_hint(e->value));
    return 0;
}

static void check_names(struct checker *k, int classes)
{
    const struct amp_cfg_entry *e = amp_cfg_find(&k->data->sections[0], "names");
    if (!e) return;
    const char *why;
    int names = count_names(e->value, &why);
    if (names < 0)
        fault(k, "%s:%d: names=%s: %s%s", k->data->path, e->line, e->value, why,
              explain_value(k->data, "names"));
    else if (classes && names != classes)
        fault(k, "%s:%d: names=%s: has %d names, but there are %d classes", k->data->path, e->line,
              e->value, names, classes);
}

/* Every head must have so many classes; 0: as many as the first head. Returns the number. */
static int check_head_classes(struct checker *k, int classes)
{
    for (int i = 0; k->net && i < k->net->n; i++) {
        const struct amp_layer_desc *l = &k->net->layers[i];
        if (!amp_layer_is_head(l)) continue;
        if (!classes) classes = l->classes;
        if (l->classes != classes)
            fault(k, "%s:%d: classes=%d in %s, but %s %d", k->cfg->path,
                  amp_cfg_line(amp_cfg_layer(k->cfg, i), "classes"), l->classes,
                  amp_cfg_layer(k->cfg, i)->name,
                  k->data && amp_cfg_find(&k->data->sections[0], "classes") ? "the data file says"
                                                                            : "the first head has",
                  classes);
    }
    return classes;
}

/* Number of classes that labels may name: the lines of a head's map if there is one. INT_MAX if
 * nothing is known, so that one fault does not cause thousands. */
static int count_label_classes(const struct checker *k, int classes)
{
    for (int i = 0; k->net && i < k->net->n; i++) {
        const struct amp_cfg_entry *map = amp_cfg_find(amp_cfg_layer(k->cfg, i), "map");
        const char *why;
        int lines =
            map && amp_layer_is_head(&k->net->layers[i]) ? count_names(map->value, &why) : 0;
        if (lines > 0) return lines;
    }
    return classes ? classes : INT_MAX;
}

/* ---- weights and backup ---- */

/* Darknet would load for minutes, train nothing, and write a final file. */
static void check_seen(struct checker *k, const char *path, uint64_t seen)
{
    uint64_t batch = (uint64_t)k->net->batch * (uint64_t)k->net->subdivisions;
    uint64_t iterations = seen / batch;
    if (k->net->max_batches < 1 || iterations < (uint64_t)k->net->max_batches) return;
    fault(k,
          "weights file %s: has seen %" PRIu64 " images, %" PRIu64 " batches, and max_batches is "
          "%d: nothing to train: use -clear or raise max_batches",
          path, seen, iterations, k->net->max_batches);
}

static void check_weights(struct checker *k, const char *path, bool clear)
{
    char err[2 * PATH_MAX];
    struct amp_weights_info info;
    const char *why = amp_file_unreadable(path);
    if (why) {
        fault(k, "weights file %s: %s", path, why);
        return;
    }
    if (!k->net) return;
    if (amp_weights_check(path, k->net, &info, err, sizeof err)) {
        tell(k, err);
        return;
    }
    if (info.layers_found < info.layers && k->progress)
        fprintf(k->progress,
                "weights file %s ends before layer %d: %d of %d layers with weights are loaded, "
                "layer %d and later ones start anew\n",
                path, info.first_absent, info.layers_found, info.layers, info.first_absent);
    /* With -clear the count starts at 0. */
    if (!clear) check_seen(k, path, info.seen);
}

/* The cfg's name as Darknet uses it in names of weights files: up to the first dot, like its
 * basecfg. *length: its length. */
static const char *base_name(const struct checker *k, int *length)
{
    const char *slash = strrchr(k->cfg->path, '/'), *base = slash ? slash + 1 : k->cfg->path;
    *length = (int)strcspn(base, ".");
    return base;
}

/* Checks the longest name that Darknet puts together in its fixed buffer. */
static void check_name_length(struct checker *k, const char *folder)
{
    int length;
    const char *base = base_name(k, &length);
    int numbered =
        snprintf(NULL, 0, "%s/%.*s_%d.weights", folder, length, base, k->net->max_batches);
    int final = snprintf(NULL, 0, "%s/%.*s_final.weights", folder, length, base);
    int longest = numbered > final ? numbered : final;
    if (longest >= DARKNET_NAME_SIZE)
        fault(k,
              "backup folder %s: its weights files would have names of %d bytes; Darknet has "
              "room for %d",
              folder, longest, DARKNET_NAME_SIZE - 1);
}

static bool has_backup(const struct checker *k, const char *folder)
{
    char path[PATH_MAX];
    int length;
    const char *base = base_name(k, &length);
    snprintf(path, sizeof path, "%s/%.*s.backup", folder, length, base);
    return !amp_file_unreadable(path);
}

/* Sizes of the files of one save: the weights; beside them the sidecar, an array as long as the
 * weights, three with moments, one more with averages; and the averages themselves. Returns the
 * number of files. */
static int list_save(const struct checker *k, uint64_t bytes[3])
{
    const struct amp_rules *rules = &k->options.rules;
    bool averages = rules->ema_alpha > 0;
    bool moments = k->net->adam || amp_rules_keep_moments(rules);
    int files = 1;
    bytes[0] = amp_weights_saved_bytes(k->net);
    if (k->options.mixed_precision && averages) bytes[files++] = bytes[0];
    if (!k->options.mixed_precision || k->options.sidecar == AMP_SIDECAR_NONE) return files;
    if (__builtin_mul_overflow(bytes[0], (moments ? 3 : 1) + averages, &bytes[files]))
        bytes[files] = UINT64_MAX;
    return files + 1;
}

/* Checks that a save fits. Mixed precision replaces no file before the next one is whole, so it
 * needs room for two saves; if a backup is there already, one of the two is. */
static void check_room(struct checker *k, const char *folder)
{
    static const char *const what[][3] = {
        {"weights files", "weights and sidecar", "weights, their averages and sidecar"},
        {"weights, twice (the old stay until the new are whole; numbered files come on top),",
         "weights and sidecar, twice (the old stay until the new are whole; numbered files come on "
         "top),",
         "weights, their averages and sidecar, twice (the old stay until the new are whole; "
         "numbered files come on top),"},
    };
    char err[2 * PATH_MAX];
    uint64_t bytes[6] = {1};
    int files = k->net ? list_save(k, bytes) : 1;
    bool twice = k->net && k->options.mixed_precision && !has_backup(k, folder);
    memcpy(bytes + files, bytes, (size_t)files * sizeof *bytes);
    if (amp_folder_check(folder, bytes, twice ? 2 * files : files, what[twice][files - 1], err,
                         sizeof err))
        fault(k, "backup %s%s", err, explain_value(k->data, "backup"));
}

static void check_backup(struct checker *k)
{
    const char *folder = amp_cfg_string(&k->data->sections[0], "backup", "/backup/");
    check_room(k, folder);
    if (k->net) check_name_length(k, folder);
}

/* ---- images ---- */

/* Boxes of an image that the last head has room for. */
static int box_room(const struct checker *k)
{
    const struct amp_layer_desc *last = k->net ? &k->net->layers[k->net->n - 1] : NULL;
    if (last && amp_layer_is_head(last) && last->max_boxes > 0) return last->max_boxes;
    return AMP_YOLO_TRUTHS;
}

/* A missing list is told here only if its name needs explaining; amp_train_list_check tells the
 * rest. */
static void check_list(struct checker *k, int classes)
{
    struct amp_train_list list;
    const char *path = amp_cfg_string(&k->data->sections[0], "train", "data/train.list");
    const char *explanation = explain_value(k->data, "train");
    const char *why = *explanation ? amp_text_unreadable(path) : NULL;
    if (why) {
        fault(k, "image list %s: %s%s", path, why, explanation);
        return;
    }
    amp_train_list_check(path, k->cfg ? k->cfg->dialect : AMP_DIALECT_STOCK, classes, box_room(k),
                         k->progress, &list, tell, k);
    if (k->warn) amp_train_list_warn(&list, path, k->warn);
    amp_train_list_free(&list);
}

int amp_check_train_inputs(const char *data_path, const char *cfg_path, const char *weights_path,
                           bool clear, bool on_gpu, FILE *progress, FILE *warn, char *err,
                           size_t err_size)
{
    struct checker k = {.progress = progress, .warn = warn, .err = err, .err_size = err_size};
    char data_err[2 * PATH_MAX];
    if (err_size) *err = '\0';
    /* cfg and data file are independent: faults of both are told. */
    read_cfg(&k, cfg_path);
    k.data = amp_cfg_read_data(data_path, data_err, sizeof data_err);
    if (!k.data) tell(&k, data_err);

    int classes = check_head_classes(&k, read_classes(&k));
    if (k.net) amp_train_net_check(k.cfg, k.net, k.options.mixed_precision, on_gpu, tell, &k);
    if (k.net && warn) amp_train_odd_tell(k.cfg, k.net, warn);
    if (weights_path && *weights_path) check_weights(&k, weights_path, clear);
    if (k.data) {
        check_keys(&k);
        check_names(&k, classes);
        check_backup(&k);
        check_list(&k, count_label_classes(&k, classes));
    }
    amp_net_desc_free(k.net);
    amp_cfg_free(k.cfg);
    amp_cfg_free(k.data);
    return k.failed ? -1 : 0;
}

void amp_print_faults(char *err, FILE *f)
{
    /* Indented lines belong to the fault before them. */
    for (char *line = strtok(err, "\n"); line; line = strtok(NULL, "\n"))
        fprintf(f, "%s%s\n", *line == ' ' ? "" : "error: ", line);
}
