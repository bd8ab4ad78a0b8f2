/* Decides whether a data file, its lists and labels, a cfg and weights fit together for `detector
 * map`, and names every fault before giving up. It must not run or build a network: Darknet reads
 * or writes out of bounds on most of what is refused here. */

#define _GNU_SOURCE
#include "map.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/core/read/cfg.h"
#include "plugin/core/net/net.h"
#include "plugin/core/read/half.h"
#include "plugin/core/read/options.h"
#include "plugin/core/read/text.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/input/image_files.h"
#include "plugin/input/train_list.h"
#include "plugin/spread/launcher.h"

/* Faults are printed at once and counted: everything is looked at before the program gives up. What
 * explains many of them is said with the first. */
struct fault_log {
    FILE *file;
    size_t count;
    char hint[AMP_LABEL_PATH_MAX]; /* said last */
    bool explained;                /* how label files are found */
};

static void tell(void *context, const char *message)
{
    struct fault_log *log = context;
    char who[120];
    amp_launch_who(who, sizeof who);
    fprintf(log->file, "error: %s%s\n", who, message);
    log->count++;
}

__attribute__((format(printf, 2, 3))) static int fail(struct fault_log *log, const char *format,
                                                      ...)
{
    char message[AMP_LABEL_PATH_MAX + 512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    tell(log, message);
    return -1;
}

/* ---- text files ---- */

static int read_lines(struct fault_log *log, const char *what, const char *path, bool keep_blank,
                      struct amp_lines *lines)
{
    const char *why;
    if (amp_lines_read(path, keep_blank, lines, &why))
        return fail(log, "%s %s: %s", what, path, why);
    return lines->count ? 0 : fail(log, "%s %s: is empty", what, path);
}

/* ---- the data file ---- */

/* The meaning is for users who have never seen the key. */
static const struct amp_cfg_entry *require_key(struct fault_log *log,
                                               const struct amp_cfg_file *data, const char *key,
                                               const char *meaning)
{
    const struct amp_cfg_entry *entry = amp_cfg_find(&data->sections[0], key);
    if (!entry) fail(log, "%s: no key \"%s\" (%s)", data->path, key, meaning);
    return entry;
}

/* strtol with a look at the end: Darknet's atoi would take "80 classes" for 80. */
static int read_count(struct fault_log *log, const struct amp_cfg_file *data,
                      const struct amp_cfg_entry *entry, int *count)
{
    char *end;
    errno = 0;
    long value = strtol(entry->value, &end, 10);
    if (*end || errno || value < 1 || value > INT_MAX)
        return fail(log, "%s:%d: %s=%s: must be a whole number from 1 to %d%s", data->path,
                    entry->line, entry->key, entry->written, INT_MAX,
                    amp_cfg_remark_hint(entry->value));
    *count = (int)value;
    return 0;
}

static int read_map_line(struct fault_log *log, const char *path, const struct amp_lines *lines,
                         int i, int n_head_classes, int *class_id)
{
    char *end;
    errno = 0;
    long value = strtol(lines->line[i], &end, 10);
    if (*end || errno || value < 0 || value >= n_head_classes)
        return fail(log, "%s:%d: \"%s\": must be a class from 0 to %d", path, lines->number[i],
                    lines->line[i], n_head_classes - 1);
    *class_id = (int)value;
    return 0;
}

static int read_map(struct fault_log *log, const struct amp_cfg_file *data,
                    const struct amp_cfg_entry *e, struct amp_eval_set *set)
{
    struct amp_lines lines = {0};
    int failed = read_lines(log, "class map", e->value, false, &lines);
    if (!failed && lines.count != AMP_MAP_CLASSES)
        failed = fail(log, "%s:%d: map=%s: %d classes, Darknet reads exactly %d", data->path,
                      e->line, e->value, lines.count, AMP_MAP_CLASSES);
    set->n_classes = AMP_MAP_CLASSES;
    set->map = calloc(AMP_MAP_CLASSES, sizeof *set->map);
    if (!failed && !set->map) failed = fail(log, "class map %s: no memory", e->value);
    for (int i = 0; !failed && i < AMP_MAP_CLASSES; i++)
        failed = read_map_line(log, e->value, &lines, i, set->n_head_classes, &set->map[i]);
    amp_lines_free(&lines);
    return failed;
}

/* Looks at every key before it gives up. */
static int read_data(struct fault_log *log, const struct amp_cfg_file *data,
                     struct amp_eval_set *set)
{
    const struct amp_cfg_entry *classes = require_key(log, data, "classes", "number of classes");
    const struct amp_cfg_entry *names = require_key(log, data, "names", "file of class names");
    const struct amp_cfg_entry *valid = require_key(log, data, "valid", "list of images");
    const struct amp_cfg_entry *map = amp_cfg_find(&data->sections[0], "map");
    const struct amp_cfg_entry *difficult = amp_cfg_find(&data->sections[0], "difficult");
    if (classes && read_count(log, data, classes, &set->n_head_classes) == 0)
        set->n_classes = set->n_head_classes;
    if (names && read_lines(log, "names", names->value, true, &set->names) == 0 &&
        set->n_head_classes && set->names.count != set->n_head_classes)
        fail(log, "%s:%d: classes=%d, but %s has %d names", data->path, classes->line,
             set->n_head_classes, names->value, set->names.count);
    if (map && set->n_head_classes) read_map(log, data, map, set);
    if (difficult)
        fprintf(log->file,
                "warning: %s:%d: difficult=%s: has no effect: in AlexeyAB's Darknet boxes found on "
                "these objects are no false alarms, here they are\n",
                data->path, difficult->line, difficult->value);
    if (valid) {
        set->valid_path = strdup(valid->value);
        if (!set->valid_path) return fail(log, "%s: no memory", data->path);
        read_lines(log, "image list", valid->value, false, &set->images);
    }
    return log->count ? -1 : 0;
}

/* ---- images and labels ---- */

/* Labels have centres, the measurement wants corners. */
static struct amp_box to_box(struct amp_label l)
{
    return (struct amp_box){l.x - l.width / 2, l.y - l.height / 2, l.width, l.height};
}

/* Doubles, since sets have hundreds of thousands of boxes. */
static int append_truths(struct amp_eval_set *set, int image, const struct amp_labels *labels)
{
    size_t n = set->n_truths + labels->count;
    if (n > set->truth_capacity) {
        struct amp_truth *truths = realloc(set->truths, 2 * n * sizeof *truths);
        if (!truths) return -1;
        set->truths = truths;
        set->truth_capacity = 2 * n;
    }
    for (size_t i = 0; i < labels->count; i++)
        set->truths[set->n_truths++] =
            (struct amp_truth){image, labels->rows[i].class_id, to_box(labels->rows[i])};
    set->over_edge += labels->fates[AMP_LABEL_OVER_EDGE] + labels->fates[AMP_LABEL_OUTSIDE];
    set->no_area += labels->fates[AMP_LABEL_NO_AREA];
    return 0;
}

/* By its first bytes: what they do not show, the measurement tells when it decodes. */
static void check_image(struct fault_log *log, const struct amp_eval_set *set, int image)
{
    char hint[AMP_LABEL_PATH_MAX];
    const char *path = set->images.line[image], *why = amp_image_file_fault(path);
    if (!why) return;
    amp_list_name_hint(set->valid_path, path, hint, sizeof hint);
    bool again = *hint && !strcmp(hint, log->hint);
    fail(log, "%s:%d: image %s: %s%s", set->valid_path, set->images.number[image], path, why,
         again ? " (as above)" : hint);
    snprintf(log->hint, sizeof log->hint, "%s", hint);
}

static void tell_missing(struct fault_log *log, const struct amp_eval_set *set, int image,
                         const char *path)
{
    char steps[2000];
    const char *why = strerror(errno);
    amp_label_path_explain(set->images.line[image], steps, sizeof steps);
    if (log->explained)
        fail(log, "%s:%d: label file %s: %s", set->valid_path, set->images.number[image], path,
             why);
    else
        fail(log,
             "%s:%d: label file %s: %s (%s). An image without objects needs an empty label file",
             set->valid_path, set->images.number[image], path, why, steps);
    log->explained = true;
}

/* The label file of an image. False: there is none, which is told or counted. */
static bool find_labels(struct fault_log *log, struct amp_eval_set *set, enum amp_dialect dialect,
                        int image, char path[AMP_LABEL_PATH_MAX])
{
    char err[AMP_LABEL_PATH_MAX + 512];
    const char *name = set->images.line[image];
    if (dialect == AMP_DIALECT_FORK) {
        bool found = amp_labels_find(name, path, AMP_LABEL_PATH_MAX);
        set->without_labels += !found;
        return found;
    }
    if (amp_label_path(name, path, AMP_LABEL_PATH_MAX, err, sizeof err))
        fail(log, "%s:%d: %s", set->valid_path, set->images.number[image], err);
    else if (access(path, F_OK))
        tell_missing(log, set, image, path);
    else
        return true;
    return false;
}

static void tell_without_labels(const struct fault_log *log, const struct amp_eval_set *set)
{
    if (set->without_labels)
        fprintf(
            log->file,
            "warning: %s: images without a label file (%zu of %d): they count as images without "
            "objects, as in AlexeyAB's Darknet (" AMP_LABELS_LOOKED_FOR ")\n",
            set->valid_path, set->without_labels, set->images.count);
}

static int read_truths(struct fault_log *log, struct amp_eval_set *set, enum amp_dialect dialect)
{
    struct amp_labels labels = {0};
    struct amp_progress progress;
    int failed = 0;
    amp_progress_start(&progress, stderr, "checking images and labels", (size_t)set->images.count);
    for (int i = 0; !failed && i < set->images.count; i++) {
        char path[AMP_LABEL_PATH_MAX];
        check_image(log, set, i);
        if (find_labels(log, set, dialect, i, path) &&
            amp_labels_read(path, set->n_classes, &labels, tell, log) == 0 &&
            append_truths(set, i, &labels))
            failed = fail(log, "no memory for %zu truth boxes", set->n_truths);
        amp_progress_update(&progress, (size_t)i + 1);
    }
    amp_labels_free(&labels);
    tell_without_labels(log, set);
    return log->count ? -1 : 0;
}

int amp_eval_set_load(const char *data_path, enum amp_dialect dialect, struct amp_eval_set *set,
                      FILE *log_file)
{
    struct fault_log log = {.file = log_file};
    char err[AMP_LABEL_PATH_MAX + 512];
    *set = (struct amp_eval_set){0};
    struct amp_cfg_file *data = amp_cfg_read_data(data_path, err, sizeof err);
    if (!data)
        tell(&log, err);
    else if (read_data(&log, data, set) == 0)
        read_truths(&log, set, dialect);
    amp_cfg_free(data);
    if (log.count) {
        fail(&log, "%s: %zu fault%s, nothing was evaluated", data_path, log.count,
             log.count == 1 ? "" : "s");
        amp_eval_set_free(set);
        return -1;
    }
    return 0;
}

void amp_eval_set_free(struct amp_eval_set *set)
{
    free(set->valid_path);
    amp_lines_free(&set->images);
    amp_lines_free(&set->names);
    free(set->map);
    free(set->truths);
    *set = (struct amp_eval_set){0};
}

const char *amp_eval_set_class_name(const struct amp_eval_set *set, int class_id)
{
    return set->names.line[set->map ? set->map[class_id] : class_id];
}

/* ---- a network for the set ---- */

struct checker {
    const struct amp_cfg_file *cfg;
    const struct amp_net_desc *net;
    const struct amp_eval_set *set;
    bool on_gpu, failed;
    FILE *log;
};

__attribute__((format(printf, 2, 3))) static void fault(struct checker *k, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("error: ", k->log);
    vfprintf(k->log, format, args);
    fputc('\n', k->log);
    va_end(args);
    k->failed = true;
}

/* ---- heads ---- */

/* The head's entry with this key; NULL: none. The file that it names must be readable: Darknet does
 * not look. */
static const struct amp_cfg_entry *named_file(struct checker *k, int layer, const char *key)
{
    const struct amp_cfg_entry *e = amp_cfg_find(amp_cfg_layer(k->cfg, layer), key);
    const char *why = e ? amp_text_unreadable(e->value) : NULL;
    if (why) fault(k, "%s:%d: %s=%s: %s", k->cfg->path, e->line, key, e->value, why);
    return e;
}

/* Darknet's CPU code for a tree (forward_region_layer) divides by a temperature of 0 and walks the
 * wrong elements; only its GPU code is right. */
static void check_tree_and_map(struct checker *k, int layer)
{
    const char *path = k->cfg->path;
    const struct amp_layer_desc *l = &k->net->layers[layer];
    const struct amp_cfg_entry *map = named_file(k, layer, "map");
    const struct amp_cfg_entry *tree = l->type == AMP_REGION ? named_file(k, layer, "tree") : NULL;
    if (tree && !k->on_gpu)
        fault(k,
              "%s:%d: [region] with tree= can only be evaluated on a GPU: Darknet's CPU code "
              "computes trees wrongly",
              path, tree->line);
    if (k->set->map && !tree)
        fault(k, "%s:%d: the data file has map=, which is for [region] heads with tree= only", path,
              l->line);
    if (map && l->type != AMP_DETECTION && !k->set->map)
        fault(k,
              "%s:%d: map=%s: labels and detections name different classes; allowed: no map= here, "
              "or one in the data file too",
              path, map->line, map->value);
}

/* [detection] images are stretched and others letterboxed, so one network cannot have both. */
static void check_head(struct checker *k, int layer)
{
    const struct amp_layer_desc *l = &k->net->layers[layer];
    const struct amp_layer_desc *last = &k->net->layers[k->net->n - 1];
    if (l->classes != k->set->n_head_classes)
        fault(k, "%s:%d: classes=%d%s in %s, but the data file says %d", k->cfg->path, l->line,
              l->classes, amp_cfg_default_hint(amp_cfg_layer(k->cfg, layer), "classes"),
              l->type_name, k->set->n_head_classes);
    if ((l->type == AMP_DETECTION) != (last->type == AMP_DETECTION))
        fault(k, "%s:%d: %s together with a %s head; allowed: not both", k->cfg->path, l->line,
              l->type_name, last->type_name);
    check_tree_and_map(k, layer);
}

/* Every head is checked, not only the last: get_network_boxes collects boxes from all. */
static void check_heads(struct checker *k)
{
    const struct amp_layer_desc *last = &k->net->layers[k->net->n - 1];
    if (k->net->c != 3)
        fault(k, "%s:%d: channels=%d; allowed: 3, what images are loaded with", k->cfg->path,
              k->cfg->sections[0].line, k->net->c);
    if (!amp_layer_is_head(last)) {
        fault(k, "%s:%d: the last layer is %s; allowed: [yolo], [region], [detection]",
              k->cfg->path, last->line, last->type_name);
        return;
    }
    for (int i = 0; i < k->net->n; i++) {
        if (amp_layer_is_head(&k->net->layers[i])) check_head(k, i);
    }
}

/* ---- weights ---- */

/* Weights that end between layers are what Darknet calls partial; it loads them without a word. */
int amp_map_check_weights(const char *path, const struct amp_net_desc *net, FILE *log, char *err,
                          size_t err_size)
{
    struct amp_weights_info info;
    if (amp_weights_check(path, net, &info, err, err_size)) return -1;
    if (info.layers_found < info.layers)
        fprintf(log,
                "warning: weights file %s ends before layer %d: %d of %d layers with weights are "
                "loaded, the others are random\n",
                path, info.first_absent, info.layers_found, info.layers);
    return 0;
}

static void check_weights(struct checker *k, const char *path)
{
    char err[2 * PATH_MAX];
    if (amp_map_check_weights(path, k->net, k->log, err, sizeof err)) fault(k, "%s", err);
}

int amp_map_check_network(const char *cfg_path, bool half, const char *weights_path,
                          const struct amp_eval_set *set, bool on_gpu, FILE *log)
{
    char err[2 * PATH_MAX], note[2 * PATH_MAX];
    struct amp_options options;
    struct amp_cfg_file *cfg = amp_cfg_read_asked(cfg_path, half, err, sizeof err);
    struct amp_net_desc *net = NULL;
    int failed = cfg && half ? amp_half_ask(cfg, note, sizeof note, err, sizeof err) : 0;
    if (cfg && !failed && amp_options_read(cfg, &options, NULL, 0, err, sizeof err) == 0)
        net = amp_net_describe(cfg, 0, 0, true, err, sizeof err);
    struct checker k = {.cfg = cfg, .net = net, .set = set, .on_gpu = on_gpu, .log = log};
    if (net) {
        check_heads(&k);
        if (weights_path) check_weights(&k, weights_path);
    } else {
        fault(&k, "%s", err);
    }
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    return k.failed ? -1 : 0;
}
