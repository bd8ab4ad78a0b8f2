/* Decides what -topk measures: how many images of the data file's valid= list a classifier names
 * rightly, by its first answer and among its first five, as `classifier valid` counts them. It must
 * not know when that is measured (evaluation.c). */
#define _GNU_SOURCE
#include "evaluation.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp_observe.h"
#include "images_ahead.h"

#include "plugin/core/read/cfg.h"
#include "plugin/core/read/lines.h"
#include "plugin/input/class_labels.h"

enum { TOP = 5 };

struct set {
    struct amp_lines images;
    int *classes; /* of each image */
    int n_classes;
};

/* ---- the set ---- */

static int read_set(struct set *s, const struct amp_cfg_file *data, FILE *errors)
{
    const char *why, *path = amp_cfg_string(data->sections, "valid", "data/train.list");
    const char *labels_path = amp_cfg_string(data->sections, "labels", "data/labels.list");
    struct amp_lines labels = {0};
    s->n_classes = amp_cfg_int(data->sections, "classes", 2);
    int failed = amp_lines_read(path, false, &s->images, &why);
    if (failed) fprintf(errors, "error: image list %s: %s\n", path, why);
    int unread = amp_lines_read(labels_path, true, &labels, &why);
    if (unread) fprintf(errors, "error: labels file %s: %s\n", labels_path, why);
    failed = failed || unread || labels.count < s->n_classes;
    s->classes = calloc((size_t)s->images.count + 1, sizeof *s->classes);
    for (int i = 0; !failed && s->classes && i < s->images.count; i++)
        s->classes[i] = amp_class_of_path(s->images.line[i], labels.line, s->n_classes, 0);
    amp_lines_free(&labels);
    return failed || !s->classes ? -1 : 0;
}

static void close_set(void *own)
{
    struct set *s = own;
    amp_lines_free(&s->images);
    free(s->classes);
    free(s);
}

static void *open_set(const struct amp_train_words *w, bool checks, FILE *errors)
{
    char err[9000];
    struct set *s = calloc(1, sizeof *s);
    struct amp_cfg_file *data = s ? amp_cfg_read_data(w->data, err, sizeof err) : NULL;
    if (s && !data) fprintf(errors, "error: %s\n", err);
    int failed = !data || read_set(s, data, errors);
    amp_cfg_free(data);
    if (!failed && (!checks || !amp_images_check(s->images.line, s->images.count))) return s;
    if (s) close_set(s);
    return NULL;
}

static bool lasts(const void *own)
{
    (void)own;
    return true;
}

/* ---- measuring ---- */

struct count {
    long long images, first, among;
};

struct pass {
    const struct set *set;
    network *net;
    struct count count;
};

static int look(void *user, int i, const struct amp_loaded_image *loaded)
{
    struct pass *p = user;
    int best[TOP], n = p->set->n_classes, top = n < TOP ? n : TOP;
    char err[200];
    float *out = network_predict(p->net, loaded->resized.data);
    if (amp_outputs_check(p->net, err, sizeof err)) {
        fprintf(stderr, "error: %s: %s\n", p->set->images.line[i], err);
        return -1;
    }
    if (p->net->hierarchy) hierarchy_predictions(out, p->net->outputs, p->net->hierarchy, 1, 1);
    top_k(out, n, top, best);
    p->count.images++;
    for (int k = 0; k < top; k++) {
        bool right = best[k] == p->set->classes[i];
        p->count.first += right && k == 0;
        p->count.among += right;
    }
    return 0;
}

static int run(void *own, network *net, bool shared, double *values)
{
    struct set *s = own;
    struct pass p = {.set = s, .net = net};
    struct count *counts = malloc(sizeof *counts);
    size_t bytes = counts ? sizeof *counts : 0;
    int processes = 1, rank = shared ? amp_process(&processes) : 0;
    int64_t n = s->images.count;
    struct amp_image_range share = {(int)(n * rank / processes), (int)(n * (rank + 1) / processes)};
    set_batch_network(net, 1);
    int failed =
        amp_images_run(net, AMP_FIT_CENTER, s->images.line, share, rank == 0, look, &p) || !counts;
    if (counts) *counts = p.count;
    void *rows = counts;
    if (shared) failed = amp_processes_collect(&rows, &bytes, failed);
    struct count all = {0};
    for (size_t i = 0; !failed && i < bytes / sizeof all; i++) {
        const struct count *c = (struct count *)rows + i;
        all.images += c->images;
        all.first += c->first;
        all.among += c->among;
    }
    free(rows);
    values[0] = (double)all.first / (double)all.images;
    values[1] = (double)all.among / (double)all.images;
    return failed ? -1 : 0;
}

/* ---- what is said ---- */

static void print(const void *own, const double *values)
{
    (void)own;
    printf("top 1 %.2f %%, top %d %.2f %%", 100 * values[0], TOP, 100 * values[1]);
}

static void print_classes(const void *own)
{
    (void)own;
}

static struct amp_class_figure *of_classes(const void *own, int *n)
{
    (void)own;
    *n = 0;
    return NULL;
}

const struct amp_measure amp_measure_top = {.option = "-topk",
                                            .what = "accuracy",
                                            .figures = {"top1", "top5"},
                                            .charted = {"top 1", "top 5"},
                                            .open = open_set,
                                            .lasts = lasts,
                                            .run = run,
                                            .print = print,
                                            .print_classes = print_classes,
                                            .of_classes = of_classes,
                                            .close = close_set};
