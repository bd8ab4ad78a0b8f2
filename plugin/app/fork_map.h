/* The numbers that `detector map` of AlexeyAB's Darknet prints, and its table. Pure C.
 *
 * AP is that of AMP_MATCH_FORK. Unlike ours, the mean is over all classes: one without truths
 * counts 0.
 *
 * Hits (TP) and false alarms (FP) at a score threshold are found in another order than AP: not by
 * score, but as the predictions of an image stand in the input, which must be the order that NMS
 * leaves behind (amp_nms_run). A prediction below the threshold takes its truth as well, without
 * being counted; one above that comes later is then a false alarm. Truths that no counted
 * prediction took are missed (FN). */
#ifndef AMP_FORK_MAP_H
#define AMP_FORK_MAP_H

#include <stddef.h>
#include <stdio.h>

#include "average_precision.h"
#include "map.h"

/* thresh: a prediction counts as TP or FP if its score is above; the fork's default is .25. points:
 * 0 area under the curve, 11 or 101 recalls. The fork's programs compare floats: give what a float
 * holds. */
struct amp_fork_settings {
    double iou, thresh;
    int points;
};

struct amp_fork_class {
    double ap; /* 0..1, also 0 for a class without truths */
    size_t truths, tp, fp;
};

/* NaN where a number would be 0 / 0: without a prediction above thresh there is no precision. */
struct amp_fork_map {
    struct amp_fork_settings settings;
    int n_classes;
    struct amp_fork_class *classes;         /* [n_classes] */
    size_t predictions, truths;             /* of all classes, predictions of any score */
    size_t tp, fp, fn;                      /* of all classes */
    double precision, recall, f1, mean_iou; /* mean_iou: sum of the IoU of hits / (TP + FP) */
    double map;                             /* mean of ap */
};

/* 0, or -1 with text in err: iou outside (0, 1], other points, no memory. amp_fork_map_free after
 * use. */
int amp_fork_map_compute(const struct amp_ap_set *set, const struct amp_fork_settings *settings,
                         struct amp_fork_map *map, char *err, size_t err_size);
void amp_fork_map_free(struct amp_fork_map *map);

/* Prints it in the words of the fork's table, line by line, since users have scripts that look for
 * them; last, if there are any, how many classes have no truths. The set has the names of the
 * classes. */
void amp_fork_map_print(FILE *out, const struct amp_fork_map *map, const struct amp_eval_set *set);

#endif
