/* What a detector finds at a score, and the table that `detector map` of AlexeyAB's Darknet prints
 * of it; what is taken for what; the curves over scores and recalls. Pure C.
 *
 * A prediction is looked at by one of two rules (average_precision.h), at one IoU:
 *
 *   AMP_MATCH_FORK  as there: not by score, but as the predictions of an image stand in the input,
 *                   which must be the order that NMS leaves behind (amp_nms_run). A prediction
 *                   below the threshold takes its truth as well, without being counted; one above
 *                   that comes later is then a false alarm.
 *   AMP_MATCH_VOC   by falling score, as AP goes: of cfgs of stock Darknet.
 *
 * What is above the threshold and took a truth is a hit (TP), what took none a false alarm (FP).
 * Truths that no counted prediction took are missed (FN). AP is that of the same rule; by the
 * fork's its mean is over all classes, where one without truths counts 0, else over those with
 * truths. */
#ifndef AMP_COUNTS_H
#define AMP_COUNTS_H

#include <stddef.h>
#include <stdio.h>

#include "average_precision.h"
#include "map.h"
#include "plugin/core/read/json.h"

/* points: 0 area under the curve, 11 or 101 recalls. The fork's programs compare floats: give an
 * IoU that a float holds. */
struct amp_counts_settings {
    double iou;
    float thresh; /* a prediction counts as TP or FP if its score is above; the fork's default is
                     .25 */
    int points;
    enum amp_match_rule rule;
};

#define AMP_CURVE_POINTS 101 /* at 0, 0.01 .. 1 */

/* Of a class, or of all. NaN where a number would be 0 / 0: without a prediction above thresh there
 * is no precision. */
struct amp_counted {
    double
        ap; /* 0..1, also 0 for a class without truths; of all: the mean; NaN: no class has any */
    size_t truths, tp, fp, fn;
    double precision, recall, f1, mean_iou; /* mean_iou: sum of the IoU of hits / (TP + FP) */
    double best_f1, best_thresh; /* of 1000 thresholds 0, 0.001 .., the middle of the first best
                                    ones; NaN: no hit at any */
    double precisions[AMP_CURVE_POINTS]; /* at recall i/100, the best at this or a higher one, whose
                                            area AP is; of all: mean of the classes with truths */
    double f1s[AMP_CURVE_POINTS];        /* at threshold i/100; 0 without a hit */
};

/* What was taken for what: missed truths of one class that a false alarm of another one overlaps by
 * more than the IoU, pair by pair, the largest overlap first. */
struct amp_confusion {
    int truth, prediction; /* classes */
    size_t count;
};

struct amp_counts {
    struct amp_counts_settings settings;
    int n_classes;
    struct amp_counted *classes; /* [n_classes] */
    struct amp_counted all;
    size_t predictions;               /* of any score */
    struct amp_confusion *confusions; /* by truth, then by prediction */
    size_t n_confusions;
};

/* 0, or -1 with text in err: iou outside (0, 1], other points, no memory. amp_counts_free after
 * use. */
int amp_counts_compute(const struct amp_ap_set *set, const struct amp_counts_settings *settings,
                       struct amp_counts *counts, char *err, size_t err_size);
void amp_counts_free(struct amp_counts *counts);

/* ---- confusion.c ---- */

/* The class's truths and predictions that are left: for each place in the sorted set whether it is.
 * 0, or -1: no memory. */
int amp_confusion_find(const struct amp_ap_set *set, const struct amp_counts_settings *settings,
                       const unsigned char *missed, const unsigned char *alarms,
                       struct amp_counts *counts);

/* ---- counts_report.c ---- */

/* One line a class and one for all. */
void amp_counts_print(FILE *out, const struct amp_counts *counts, const struct amp_eval_set *set);
/* The words of the fork's table, line by line, since users have scripts that look for them; last,
 * if there are any, how many classes have no truths. The set has the names of the classes. */
void amp_counts_print_fork(FILE *out, const struct amp_counts *counts,
                           const struct amp_eval_set *set);
/* The fork's lines of the classes alone. */
void amp_counts_print_classes(FILE *out, const struct amp_counts *counts,
                              const struct amp_eval_set *set);
/* The member "counts" of detector map's object. */
void amp_counts_write(struct amp_json *j, const struct amp_counts *counts,
                      const struct amp_eval_set *set);

#endif
