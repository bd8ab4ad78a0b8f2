/* Decides what -map measures: mAP of a detector on the images of the data file's valid= list, by
 * the rules of its cfg. It must not know how mAP is computed (detect.c, average_precision.c,
 * counts.c) or when it is measured (evaluation.c).
 *
 * With a cfg of AlexeyAB's rules its first number is that of his `detector map` (counts.h). */
#define _GNU_SOURCE
#include "evaluation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "counts.h"
#include "detect.h"
#include "map.h"

#include "plugin/core/read/cfg.h"

/* The defaults of `detector map`, so that both give the same number. */
static const float thresh = .005f, nms = .45f;

struct set {
    struct amp_eval_set images;
    enum amp_dialect dialect;
    struct amp_counts_settings rules;
    struct amp_counts counts; /* of the last measurement; no classes: none yet */
};

/* ---- the set ---- */

static int read_rules(struct set *s, const struct amp_train_words *w, bool tells, FILE *errors)
{
    char err[9000];
    struct amp_cfg_file *cfg = amp_cfg_read(w->cfg, err, sizeof err);
    if (!cfg) {
        fprintf(errors, "error: %s\n", err);
        return -1;
    }
    s->dialect = cfg->dialect;
    amp_cfg_free(cfg);
    bool fork = s->dialect == AMP_DIALECT_FORK;
    s->rules = (struct amp_counts_settings){.iou = fork ? w->iou : .5,
                                            .thresh = .25f,
                                            .points = fork ? w->points : 0,
                                            .rule = fork ? AMP_MATCH_FORK : AMP_MATCH_VOC};
    if (!fork && tells && (w->iou != .5 || w->points))
        fprintf(stderr,
                "darknet-amp: -iou_thresh and -points have no effect: %s is not trained by "
                "AlexeyAB's rules (amp_dialect=fork)\n",
                w->cfg);
    return 0;
}

/* Without boxes every result would be undefined, and no weights the best. */
static int check_set(const struct set *s, const struct amp_train_words *w)
{
    if (amp_map_check_network(w->cfg, false, NULL, &s->images, gpu_index >= 0, stderr)) return -1;
    if (!s->images.n_truths) {
        fprintf(stderr, "error: %s: the valid list has no boxes at all, so -map has no result\n",
                w->data);
        return -1;
    }
    return amp_images_check(s->images.images.line, s->images.images.count);
}

static void close_set(void *own)
{
    struct set *s = own;
    amp_counts_free(&s->counts);
    amp_eval_set_free(&s->images);
    free(s);
}

static void *open_set(const struct amp_train_words *w, bool checks, FILE *errors)
{
    struct set *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    if (!read_rules(s, w, checks, errors) &&
        !amp_eval_set_load(w->data, s->dialect, &s->images, errors) &&
        (!checks || !check_set(s, w)))
        return s;
    close_set(s);
    return NULL;
}

/* A record does not say by which IoU and points AlexeyAB's number was. */
static bool lasts(const void *own)
{
    const struct set *s = own;
    return s->dialect != AMP_DIALECT_FORK;
}

/* ---- measuring ---- */

/* With AlexeyAB's rules, his number in place of ours. */
static int compute(struct set *s, const struct amp_ap_set *ap, double *values)
{
    char err[512];
    struct amp_map_result result = {0};
    amp_counts_free(&s->counts);
    int failed = amp_map_compute(ap, .5, &result, err, sizeof err) ||
                 amp_counts_compute(ap, &s->rules, &s->counts, err, sizeof err);
    if (failed) {
        fprintf(stderr, "error: %s\n", err);
    } else {
        values[0] = s->dialect == AMP_DIALECT_FORK ? s->counts.all.ap : result.mean.ap50;
        values[1] = result.mean.ap75;
        values[2] = result.mean.ap;
    }
    amp_map_result_free(&result);
    return failed ? -1 : 0;
}

static int run(void *own, network *net, bool shared, double *values)
{
    struct set *s = own;
    struct amp_ap_set *ap = NULL;
    int failed = 0;
    if (shared)
        failed = amp_detect_ap_shared(net, &s->images, thresh, nms, &ap);
    else
        failed = !(ap = amp_detect_ap(net, &s->images, thresh, nms));
    failed = failed || (ap && compute(s, ap, values));
    amp_ap_set_free(ap);
    return failed ? -1 : 0;
}

/* ---- what is said ---- */

static void print_percent(double value)
{
    if (isnan(value))
        printf("-");
    else
        printf("%.2f %%", 100 * value);
}

static void print(const void *own, const double *values)
{
    const struct set *s = own;
    printf("mAP@%g ", s->rules.iou);
    print_percent(values[0]);
    printf(", mAP@0.75 ");
    print_percent(values[1]);
    printf(", mAP@[.5:.95] ");
    print_percent(values[2]);
    if (s->dialect == AMP_DIALECT_FORK) printf(" (the first by AlexeyAB's rules)");
}

static void print_classes(const void *own)
{
    const struct set *s = own;
    amp_counts_print_classes(stdout, &s->counts, &s->images);
}

/* By the rules of the first number. A class without truths has none. */
static struct amp_class_figure *of_classes(const void *own, int *n)
{
    const struct set *s = own;
    struct amp_class_figure *rows = calloc((size_t)s->counts.n_classes + 1, sizeof *rows);
    *n = rows ? s->counts.n_classes : 0;
    for (int k = 0; k < *n; k++) {
        const struct amp_counted *c = &s->counts.classes[k];
        rows[k] = (struct amp_class_figure){amp_eval_set_class_name(&s->images, k),
                                            {"ap50", c->truths ? c->ap : NAN}};
    }
    return rows;
}

const struct amp_measure amp_measure_map = {.option = "-map",
                                            .what = "mAP",
                                            .figures = {"map50", "map75", "map"},
                                            .charted = {"mAP@0.5", "mAP@[.5:.95]"},
                                            .open = open_set,
                                            .lasts = lasts,
                                            .run = run,
                                            .print = print,
                                            .print_classes = print_classes,
                                            .of_classes = of_classes,
                                            .close = close_set};
