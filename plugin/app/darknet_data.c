/* Decides whether what one of Darknet's own commands takes from the data file is there: names,
 * labels, lists of images, the folder for results. It must not know what the command line says
 * beyond the command and its options (darknet_checks.c). */

#define _GNU_SOURCE
#include "darknet_checks.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "plugin/core/files/file.h"
#include "plugin/core/read/lines.h"
#include "plugin/input/train_list.h"

#define FAULT(c, ...) amp_checker_fault(&(c)->k, __VA_ARGS__)

static const struct amp_layer_desc *last_layer(const struct amp_darknet_checks *c)
{
    return &c->k.net->layers[c->k.net->n - 1];
}

/* ---- folders and lists ---- */

void amp_darknet_check_folder(struct amp_darknet_checks *c, const char *folder, const char *why)
{
    static const uint64_t one_byte = 1;
    char err[2 * PATH_MAX];
    if (amp_folder_check(folder, &one_byte, 1, "a file", err, sizeof err))
        FAULT(c, "%s%s", err, why);
}

/* A rule of lists. Darknet reads COCO's number of an image behind the last of these characters,
 * whether there is one or not. marks: ""; any image will do. */
static bool has_mark(void *marks, const char *image, char *why, size_t size)
{
    const char *any = marks;
    snprintf(why, size, "%s: no %s before its number", image, any);
    return !*any || strpbrk(image, any);
}

void amp_darknet_check_list(struct amp_darknet_checks *c, const char *path, const char *explanation)
{
    bool by_coco = !strcmp(c->line->command->words[0], "coco");
    amp_checker_line_ends(&c->k, path, false);
    bool for_coco = c->data && amp_darknet_takes(c, AMP_RESULTS) &&
                    !strcmp(amp_cfg_string(c->data, "eval", "voc"), "coco");
    const char *why;
    int images = amp_checker_count_lines(path, &why), least = c->line->command->least_images;
    /* `classifier test` loads a batch, then looks whether there is another. */
    if (amp_darknet_takes(c, AMP_TEST) && !strcmp(c->line->command->words[1], "test") && c->k.net)
        least = c->k.net->batch + 1;
    if (images < 0)
        FAULT(c, "image list %s: %s%s", path, why, explanation);
    else if (images && images < least)
        FAULT(c, "image list %s: names %d images; allowed: at least %d", path, images, least);
    else if (c->labels.n)
        amp_image_list_check(path, AMP_LABELS_WRONG, amp_has_one_label, &c->labels, NULL,
                             amp_checker_tell, &c->k);
    else
        amp_image_list_check(path, "images without a number of COCO in their names", has_mark,
                             by_coco    ? "_"
                             : for_coco ? "/_"
                                        : "",
                             NULL, amp_checker_tell, &c->k);
}

/* ---- the data file ---- */

/* The lines of a file that a key names must be at least so many. */
static void check_lines(struct amp_darknet_checks *c, const char *key, const char *path, int least,
                        const char *of_what)
{
    const char *why;
    int lines = amp_checker_count_lines(path, &why);
    if (lines < 0)
        FAULT(c, "%s file %s: %s%s", key, path, why, amp_checker_explain(c->k.data, key));
    else if (lines < least)
        FAULT(c, "%s file %s: has %d lines; needed: %d, as many as %s", key, path, lines, least,
              of_what);
}

static void check_detector_names(struct amp_darknet_checks *c)
{
    const char *type = amp_cfg_string(c->data, "eval", "voc");
    int classes = c->k.net ? last_layer(c)->classes : 0;
    check_lines(c, "names", amp_cfg_string(c->data, "names", "data/names.list"), classes,
                "the last layer has classes");
    if (c->k.options.mixed_precision)
        amp_checker_line_ends(&c->k, amp_cfg_string(c->data, "names", "data/names.list"), true);
    if (!c->k.net || !amp_darknet_takes(c, AMP_VALID)) return;
    if (!strcmp(type, "imagenet") && classes < 200)
        FAULT(c, "eval=imagenet of %s needs a last layer of at least 200 classes, not %d",
              c->k.data->path, classes);
    if (!strcmp(type, "coco") && classes > 80)
        FAULT(c, "eval=coco of %s needs a last layer of at most 80 classes, not %d",
              c->k.data->path, classes);
}

static void check_output_names(struct amp_darknet_checks *c)
{
    const char *given = amp_darknet_option(c->line, "-t");
    int outputs = c->k.net ? amp_net_outputs(c->k.net) : INT_MAX, top = given ? atoi(given) : 0;
    const char *names = amp_cfg_string(c->data, "names", NULL);
    const char *labels = amp_cfg_string(c->data, "labels", "data/labels.list");
    if (!top) top = amp_cfg_int(c->data, "top", 1);
    if (top < 1 || top > outputs)
        FAULT(c, "top=%d; allowed: 1 to %d, the outputs of %s", top, outputs, c->k.cfg->path);
    if (!names && amp_darknet_takes(c, AMP_NO_DEFAULT))
        FAULT(c, "%s: no key \"names\" (file of class names)", c->k.data->path);
    else
        check_lines(c, names ? "names" : "labels", names ? names : labels, c->k.net ? outputs : 0,
                    "the network has outputs");
}

/* Darknet reads so many of the outputs. */
static void check_classes(struct amp_darknet_checks *c, int classes)
{
    if (c->k.net && classes > amp_net_outputs(c->k.net))
        FAULT(c, "%s: classes=%d; allowed: at most %d, the outputs of %s", c->k.data->path, classes,
              amp_net_outputs(c->k.net), c->k.cfg->path);
}

static void check_labels(struct amp_darknet_checks *c)
{
    int classes = amp_checker_classes(&c->k);
    if (!classes) classes = 2;
    if (amp_darknet_takes(c, AMP_LABELS)) amp_checker_labels(&c->k, classes, &c->labels);
    check_classes(c, classes);
    if (amp_cfg_find(c->data, "leaves") && !strcmp(c->line->command->words[1], "valid"))
        check_lines(c, "leaves", amp_cfg_string(c->data, "leaves", ""), 0, "");
}

/* Darknet writes to whatever it could open, and to NULL. */
static void check_result(struct amp_darknet_checks *c, const char *folder, const char *file,
                         const char *ending)
{
    char path[PATH_MAX], err[2 * PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s%s", folder, file, ending);
    if (length > 1000 || strlen(file) + strlen(ending) > NAME_MAX)
        FAULT(c, "results would go into a file whose name is too long, of the class \"%.60s...\"",
              file);
    else if (strchr(file, '/'))
        FAULT(c,
              "results of a class go into a file of its name, which cannot be %s%s: give the "
              "class a name without a /",
              file, ending);
    else if (amp_whole_try(path, err, sizeof err))
        FAULT(c, "results: %s", err);
}

/* Darknet opens a file for each class, then images. */
static void check_handles(struct amp_darknet_checks *c, int classes)
{
    enum { OTHERS = 40 }; /* the libraries', and what is loaded at a time */
    rlim_t wanted = (rlim_t)(classes + OTHERS);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted) return;
    limit.rlim_cur = wanted;
    if (limit.rlim_max < wanted || setrlimit(RLIMIT_NOFILE, &limit))
        FAULT(c,
              "results go into a file for each of %d classes, and only %ld files may be open at a "
              "time: raise the limit (ulimit -Hn %ld)",
              classes, (long)limit.rlim_max, (long)wanted);
}

static void check_results(struct amp_darknet_checks *c)
{
    const char *folder = amp_cfg_string(c->data, "results", "results"), *why;
    const char *out = amp_darknet_option(c->line, "-out");
    const char *type = amp_cfg_string(c->data, "eval", "voc");
    amp_darknet_check_folder(
        c, folder,
        amp_cfg_find(c->data, "results")
            ? " (results= of the data file)"
            : " (Darknet writes its results there: make it, or name another as results= "
              "in the data file)");
    if (c->k.failed || !c->k.net) return;
    if (!strcmp(type, "coco")) {
        check_result(c, folder, out ? out : "coco_results", ".json");
        return;
    }
    if (!strcmp(type, "imagenet")) {
        check_result(c, folder, out ? out : "imagenet-detection", ".txt");
        return;
    }
    check_handles(c, last_layer(c)->classes);
    struct amp_lines names = {0};
    char file[PATH_MAX];
    const char *path = amp_cfg_string(c->data, "names", "data/names.list");
    if (amp_lines_read(path, true, &names, &why)) names.count = 0; /* told before */
    if (names.carriage_return && !c->k.options.mixed_precision)
        FAULT(c, "%s:%d: " AMP_LINE_RETURNS " (results of a class go into a file of its name)",
              path, names.carriage_return, path);
    for (int i = 0; i < names.count && i < last_layer(c)->classes && !c->k.failed; i++) {
        snprintf(file, sizeof file, "%s%s", out ? out : "comp4_det_test_", names.line[i]);
        check_result(c, folder, file, ".txt");
    }
    amp_lines_free(&names);
}

void amp_darknet_check_data(struct amp_darknet_checks *c)
{
    const char *default_test = !strcmp(c->line->command->words[0], "classifier") &&
                                       !strcmp(c->line->command->words[1], "label")
                                   ? "data/train.list"
                                   : "data/test.list";
    bool reads_classes = !strcmp(c->line->command->words[0], "classifier") &&
                         (!strcmp(c->line->command->words[1], "fout") ||
                          !strcmp(c->line->command->words[1], "label"));
    if (amp_darknet_takes(c, AMP_NAMES)) check_detector_names(c);
    if (amp_darknet_takes(c, AMP_OUTPUTS)) check_output_names(c);
    if (amp_darknet_takes(c, AMP_LABELS) || reads_classes) check_labels(c);
    if (amp_darknet_takes(c, AMP_RESULTS)) check_results(c);
    if (amp_darknet_takes(c, AMP_VALID))
        amp_darknet_check_list(c, amp_cfg_string(c->data, "valid", "data/train.list"),
                               amp_checker_explain(c->k.data, "valid"));
    if (amp_darknet_takes(c, AMP_TEST))
        amp_darknet_check_list(c, amp_cfg_string(c->data, "test", default_test),
                               amp_checker_explain(c->k.data, "test"));
}
