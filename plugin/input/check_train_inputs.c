/* Decides what is wrong with the inputs of `detector train` before anything is trained, and names
 * every fault in one go. It must not call Darknet: Darknet ends, crashes or trains on nonsense at
 * most of what is found here, so its rules are restated and only files are read. */

#define _GNU_SOURCE
#include "check_train.h"

#include <limits.h>
#include <string.h>

#include "checker.h"
#include "train_list.h"
#include "plugin/core/read/lines.h"

/* ---- classes ---- */

static void check_names(struct amp_checker *k, int classes)
{
    const struct amp_cfg_entry *e = amp_cfg_find(&k->data->sections[0], "names");
    if (!e) return;
    const char *why;
    int names = amp_checker_count_lines(e->value, &why);
    if (names < 0)
        amp_checker_fault(k, "%s:%d: names=%s: %s%s", k->data->path, e->line, e->value, why,
                          amp_checker_explain(k->data, "names"));
    else if (classes && names != classes)
        amp_checker_fault(k, "%s:%d: names=%s: has %d names, but there are %d classes",
                          k->data->path, e->line, e->value, names, classes);
    else
        amp_checker_line_ends(k, e->value, true);
}

/* Every head must have so many classes; 0: the data file does not say. Returns their number. */
static int check_head_classes(struct amp_checker *k, int classes)
{
    for (int i = 0; k->net && i < k->net->n; i++) {
        const struct amp_layer_desc *l = &k->net->layers[i];
        if (!amp_layer_is_head(l)) continue;
        const struct amp_cfg_section *s = amp_cfg_layer(k->cfg, i);
        if (!classes) classes = l->classes;
        if (l->classes != classes)
            amp_checker_fault(k, "%s:%d: classes=%d%s in %s, but the data file says %d",
                              k->cfg->path, amp_cfg_line(s, "classes"), l->classes,
                              amp_cfg_default_hint(s, "classes"), s->name, classes);
    }
    return classes;
}

/* Number of classes that labels may name: the lines of a head's map if there is one. INT_MAX if
 * nothing is known, so that one fault does not cause thousands. */
static int count_label_classes(const struct amp_checker *k, int classes)
{
    for (int i = 0; k->net && i < k->net->n; i++) {
        const struct amp_cfg_entry *map = amp_cfg_find(amp_cfg_layer(k->cfg, i), "map");
        const char *why;
        int lines = map && amp_layer_is_head(&k->net->layers[i])
                        ? amp_checker_count_lines(map->value, &why)
                        : 0;
        if (lines > 0) return lines;
    }
    return classes ? classes : INT_MAX;
}

/* ---- images ---- */

/* Boxes of an image that the last head has room for. */
static int box_room(const struct amp_checker *k)
{
    const struct amp_layer_desc *last = k->net ? &k->net->layers[k->net->n - 1] : NULL;
    if (last && amp_layer_is_head(last) && last->max_boxes > 0) return last->max_boxes;
    return AMP_YOLO_TRUTHS;
}

/* A missing list is told here only if its name needs explaining; amp_train_list_check tells the
 * rest. */
static void check_list(struct amp_checker *k, const char *key, int classes)
{
    struct amp_train_list list;
    const char *path = amp_cfg_string(&k->data->sections[0], key, "data/train.list");
    const char *explanation = amp_checker_explain(k->data, key);
    const char *why = *explanation ? amp_text_unreadable(path) : NULL;
    if (why) {
        amp_checker_fault(k, "image list %s: %s%s", path, why, explanation);
        return;
    }
    const char *train = amp_cfg_string(&k->data->sections[0], "train", "data/train.list");
    bool again = !strcmp(key, "valid") && !strcmp(path, train);
    if (!again) amp_checker_line_ends(k, path, false);
    int failed = amp_train_list_check(path, k->cfg ? k->cfg->dialect : AMP_DIALECT_STOCK, classes,
                                      box_room(k), k->progress, &list, amp_checker_tell, k);
    FILE *warn = strcmp(key, "train") ? NULL : k->warn;
    if (warn && !failed && !list.trained)
        fprintf(warn,
                "warning: %s: no image has a box that is trained: the network learns that there is "
                "nothing anywhere, whatever the loss says\n",
                path);
    if (warn) amp_train_list_warn(&list, path, warn);
    amp_train_list_free(&list);
}

int amp_check_train_inputs(const struct amp_trainer_inputs *in, FILE *progress, FILE *warn,
                           char *err, size_t err_size)
{
    struct amp_checker k = {.progress = progress, .warn = warn, .err = err, .err_size = err_size};
    amp_checker_read(&k, in->data, in->cfg);
    int classes = check_head_classes(&k, amp_checker_classes(&k));
    if (k.net)
        amp_train_net_check(k.cfg, k.net, k.options.mixed_precision, in->on_gpu, amp_checker_tell,
                            &k);
    if (k.net && warn) amp_train_odd_tell(k.cfg, k.net, warn);
    if (in->weights && *in->weights) amp_checker_weights(&k, in->weights, in->clear);
    if (k.data) {
        amp_checker_data_keys(&k);
        check_names(&k, classes);
        amp_checker_folder(&k, amp_cfg_string(&k.data->sections[0], "backup", "/backup/"),
                           amp_checker_explain(k.data, "backup"));
        check_list(&k, "train", count_label_classes(&k, classes));
        if (in->measures) check_list(&k, "valid", count_label_classes(&k, classes));
    }
    return amp_checker_end(&k);
}
