/* Decides which label the path of an image holds, and what is wrong with a file of labels. It must
 * not know what is trained on them. */

#define _GNU_SOURCE
#include "class_labels.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/lines.h"

/* ---- the file ---- */

/* Line by line, as Darknet reads them. */
static void read_labels(struct amp_checker *k, const char *path, int classes,
                        struct amp_class_labels *labels)
{
    char *line = NULL;
    const char *why;
    size_t size = 0;
    ssize_t length;
    FILE *file = amp_text_open(path, &why);
    labels->line = calloc((size_t)classes + 1, sizeof *labels->line);
    while (file && labels->line && labels->n < classes &&
           (length = getline(&line, &size, file)) >= 0) {
        length = (ssize_t)amp_line_cut(line);
        if (!length || strchr(" \t", line[length - 1]))
            amp_checker_fault(
                k, "%s:%d: a label %s: Darknet looks for all of it in an image's path", path,
                labels->n + 1, length ? "that ends in a blank" : "that is empty");
        labels->line[labels->n++] = line;
        line = NULL;
    }
    free(line);
    if (file) fclose(file);
}

/* Darknet's validators count an image as right whose class is among that many. */
static void note_top(const struct amp_checker *k, int classes)
{
    const struct amp_cfg_entry *e = amp_cfg_find(&k->data->sections[0], "top");
    if (e && atoi(e->value) >= classes && k->warn)
        fprintf(k->warn, "warning: %s:%d: top=%s of %d classes: every image counts as right\n",
                k->data->path, e->line, e->value, classes);
}

/* Darknet reads as many labels as there are classes, whether they are there or not. */
void amp_checker_labels(struct amp_checker *k, int classes, struct amp_class_labels *labels)
{
    const char *path = amp_cfg_string(&k->data->sections[0], "labels", "data/labels.list");
    const char *why;
    int lines = amp_checker_count_lines(path, &why);
    note_top(k, classes);
    if (lines < 0)
        amp_checker_fault(k, "labels file %s: %s%s", path, why,
                          amp_checker_explain(k->data, "labels"));
    else if (lines < classes)
        amp_checker_fault(k,
                          "labels file %s: has %d labels; needed: %d, as many as `classes` of the "
                          "data file says (Darknet's default is 2)",
                          path, lines, classes);
    else {
        amp_checker_line_ends(k, path, false);
        read_labels(k, path, classes, labels);
    }
    if (lines > classes && k->warn)
        fprintf(k->warn,
                "warning: labels file %s: has %d labels; the first %d count, as many as `classes` "
                "of the data file says (Darknet's default is 2)\n",
                path, lines, classes);
}

void amp_class_labels_free(struct amp_class_labels *labels)
{
    for (int i = 0; i < labels->n; i++)
        free(labels->line[i]);
    free(labels->line);
    *labels = (struct amp_class_labels){0};
}

/* ---- in the path of an image ---- */

int amp_class_of_path(const char *image, char *const *labels, int n, int from)
{
    for (int i = from; i < n; i++)
        if (strstr(image, labels[i])) return i;
    return -1;
}

#define LONGER_LABEL                                                                               \
    "; one is a part of the other: take more of its images' paths for the label, as /cat/ or cat_"

static bool is_part(const char *a, const char *b)
{
    return strstr(a, b) || strstr(b, a);
}

/* Darknet looks for each label anywhere in the image's path. With one class none may be there. */
bool amp_has_one_label(void *context, const char *image, char *why, size_t size)
{
    const struct amp_class_labels *labels = context;
    int first = amp_class_of_path(image, labels->line, labels->n, 0);
    int second = first < 0 ? -1 : amp_class_of_path(image, labels->line, labels->n, first + 1);
    if (second >= 0 && !strcmp(labels->line[first], labels->line[second]))
        snprintf(why, size, "%s: its label \"%s\" is given twice, in lines %d and %d of the labels",
                 image, labels->line[first], first + 1, second + 1);
    else if (second >= 0)
        snprintf(why, size, "%s: holds two labels, \"%s\" (line %d) and \"%s\" (line %d)%s", image,
                 labels->line[first], first + 1, labels->line[second], second + 1,
                 is_part(labels->line[first], labels->line[second]) ? LONGER_LABEL : "");
    else
        snprintf(why, size, "%s: holds no label", image);
    return second < 0 && (first >= 0 || labels->n == 1);
}
