/* Decides what average precision follows from hits and false alarms. The definitions are in
 * average_precision.h. It must not know which detection is a hit (ap_match.c), nor Darknet, files
 * or how boxes were made.
 *
 * A measurement is one walk over each class, and the bootstrap repeats only the sums, never the
 * matching. */

#include "average_precision.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ap_set.h"

/* ---- areas ---- */

/* True if so many hits reach recall point/10. Exact, in whole numbers. */
static bool reaches_tenth(size_t hits, size_t truths, int point)
{
    return 10 * hits >= (size_t)point * truths;
}

/* True if so many hits reach recall point/100, with the rounding of COCOeval. */
static bool reaches_hundredth(size_t hits, size_t truths, int point)
{
    return (double)hits / (double)truths >= point * 0.01;
}

/* Number of times an image counts: as often as it was drawn; without draws, once. */
static size_t count_image(const int *draws, int image)
{
    return draws ? (size_t)draws[image] : 1;
}

/* Walks from the right, so that the best precision so far IS the monotone curve; a recall point
 * lies on the first prediction that reaches it. Copies of a prediction stand side by side:
 * precision is highest after the last copy of a hit. */
struct amp_class_ap amp_ap_integrate(const struct amp_ap_outcome *outcomes, size_t n,
                                     const int *draws, size_t truths, double *precisions)
{
    const double coco_epsilon = 0x1p-52; /* COCOeval adds it to the denominator */
    double best = 0, best_coco = 0;
    struct amp_class_ap sum = {0, 0, 0};
    size_t hits = 0, seen = 0; /* among the predictions up to i */
    int tenth = 10, hundredth = 100;
    for (size_t i = 0; i < n; i++) {
        size_t copies = count_image(draws, outcomes[i].image);
        seen += copies;
        hits += outcomes[i].hit ? copies : 0;
    }
    /* Points above the recall that was reached at all contribute 0. */
    while (!reaches_tenth(hits, truths, tenth))
        tenth--;
    for (; !reaches_hundredth(hits, truths, hundredth); hundredth--)
        if (precisions) precisions[hundredth] = 0;
    for (size_t i = n; i-- > 0;) {
        size_t copies = count_image(draws, outcomes[i].image);
        if (copies == 0) continue;
        best = fmax(best, (double)hits / (double)seen);
        best_coco = fmax(best_coco, (double)hits / ((double)seen + coco_epsilon));
        seen -= copies; /* from here on: before i */
        if (outcomes[i].hit) {
            sum.area += (double)copies * best;
            hits -= copies;
        }
        for (; tenth >= 0 && (seen == 0 || !reaches_tenth(hits, truths, tenth)); tenth--)
            sum.eleven_point += best;
        for (; hundredth >= 0 && (seen == 0 || !reaches_hundredth(hits, truths, hundredth));
             --hundredth) {
            sum.coco += best_coco;
            if (precisions) precisions[hundredth] = best;
        }
    }
    /* Recall 0 where there is no prediction at all. */
    for (; precisions && hundredth >= 0; hundredth--)
        precisions[hundredth] = 0;
    return (struct amp_class_ap){sum.area / (double)truths, sum.eleven_point / 11, sum.coco / 101};
}

int amp_ap_check_iou(double iou, char *err, size_t err_size)
{
    if (iou > 0 && iou <= 1) return 0;
    snprintf(err, err_size, "IoU threshold %g: must be above 0 and at most 1", iou);
    return -1;
}

int amp_ap_set_measure(const struct amp_ap_set *set, enum amp_match_rule rule, double iou,
                       struct amp_class_ap *per_class, char *err, size_t err_size)
{
    struct amp_ap_scratch scratch;
    if (amp_ap_check_iou(iou, err, err_size)) return -1;
    if (amp_ap_scratch_make(set, &scratch, err, err_size)) return -1;
    for (int k = 0; k < set->n_classes; k++) {
        size_t truths = amp_ap_count_truths(set, k);
        if (truths == 0) {
            per_class[k] = (struct amp_class_ap){NAN, NAN, NAN};
            continue;
        }
        size_t n = amp_ap_match_class(set, k, rule, iou, &scratch, scratch.outcomes);
        per_class[k] = amp_ap_integrate(scratch.outcomes, n, NULL, truths, NULL);
    }
    amp_ap_scratch_free(&scratch);
    return 0;
}

/* ---- the usual numbers ---- */

/* numpy.linspace(0.5, 0.95, 10) */
double amp_coco_iou(int index)
{
    return index == AMP_COCO_IOUS - 1 ? 0.95 : index * ((0.95 - 0.5) / (AMP_COCO_IOUS - 1)) + 0.5;
}

/* Averages column by column over the classes that have truths. A row holds doubles and nothing
 * else, so it can be walked as an array. */
static void average_rows(struct amp_map_result *result)
{
    enum { COLUMNS = sizeof(struct amp_map_row) / sizeof(double) };
    double sum[COLUMNS] = {0}, column[COLUMNS];
    size_t with_truths = 0;
    for (int k = 0; k < result->n_classes; k++) {
        if (result->classes[k].truths == 0) continue;
        memcpy(column, &result->classes[k].row, sizeof column);
        for (int i = 0; i < COLUMNS; i++)
            sum[i] += column[i];
        with_truths++;
    }
    for (int i = 0; i < COLUMNS; i++)
        column[i] = with_truths ? sum[i] / (double)with_truths : NAN;
    memcpy(&result->mean, column, sizeof column);
}

/* The same three IoUs may be measured twice (iou = 0.5): it is cheap, and no case is special. */
static int fill_rows(const struct amp_ap_set *set, double iou, struct amp_map_result *result,
                     struct amp_class_ap *ap, char *err, size_t err_size)
{
    int n = set->n_classes;
    struct amp_class_result *classes = result->classes;
    for (int k = 0; k < n; k++) {
        classes[k].truths = amp_ap_count_truths(set, k);
        classes[k].predictions = amp_ap_count_predictions(set, k);
    }
    if (amp_ap_set_measure(set, AMP_MATCH_VOC, 0.5, ap, err, err_size)) return -1;
    for (int k = 0; k < n; k++) {
        classes[k].row.ap50 = ap[k].area;
        classes[k].row.ap50_11pt = ap[k].eleven_point;
    }
    if (amp_ap_set_measure(set, AMP_MATCH_VOC, 0.75, ap, err, err_size)) return -1;
    for (int k = 0; k < n; k++)
        classes[k].row.ap75 = ap[k].area;
    if (amp_ap_set_measure(set, AMP_MATCH_VOC, iou, ap, err, err_size)) return -1;
    for (int k = 0; k < n; k++) {
        classes[k].row.ap_iou = ap[k].area;
        classes[k].row.ap_iou_11pt = ap[k].eleven_point;
    }
    for (int t = 0; t < AMP_COCO_IOUS; t++) {
        if (amp_ap_set_measure(set, AMP_MATCH_COCO, amp_coco_iou(t), ap, err, err_size)) return -1;
        for (int k = 0; k < n; k++) {
            classes[k].row.coco[t] = ap[k].coco;
            classes[k].row.ap += ap[k].coco / AMP_COCO_IOUS;
        }
    }
    average_rows(result);
    return 0;
}

int amp_map_compute(const struct amp_ap_set *set, double iou, struct amp_map_result *result,
                    char *err, size_t err_size)
{
    int failed = -1;
    size_t n = (size_t)set->n_classes + 1;
    struct amp_class_ap *ap = malloc(n * sizeof *ap);
    *result = (struct amp_map_result){.n_classes = set->n_classes,
                                      .classes = calloc(n, sizeof *result->classes)};
    if (ap && result->classes)
        failed = fill_rows(set, iou, result, ap, err, err_size);
    else
        snprintf(err, err_size, "no memory for the results of %d classes", set->n_classes);
    free(ap);
    if (failed) amp_map_result_free(result);
    return failed;
}

void amp_map_result_free(struct amp_map_result *result)
{
    free(result->classes);
    *result = (struct amp_map_result){0};
}

/* ---- the means of drawn images ---- */

enum { MEANS_IOUS = 2 + AMP_COCO_IOUS }; /* VOC 0.5, VOC 0.75, COCO 0..9 */

/* Matching within one image does not depend on the others, so all outcomes are found once. A
 * drawing only changes how often each one counts. */
struct amp_ap_outcomes {
    const struct amp_ap_set *set;
    struct amp_ap_outcome *outcomes[MEANS_IOUS]; /* a class's begin at first_prediction[class] */
    size_t *counted[MEANS_IOUS];                 /* [n_classes] how many took part */
    size_t *truths;                              /* [n_classes] of the drawn images */
};

void amp_ap_outcomes_free(struct amp_ap_outcomes *o)
{
    if (!o) return;
    for (int t = 0; t < MEANS_IOUS; t++) {
        free(o->outcomes[t]);
        free(o->counted[t]);
    }
    free(o->truths);
    free(o);
}

static bool allocate_outcomes(struct amp_ap_outcomes *o)
{
    size_t n_classes = (size_t)o->set->n_classes + 1;
    size_t n_predictions = o->set->first_prediction[o->set->n_classes] + 1;
    bool complete = (o->truths = malloc(n_classes * sizeof *o->truths));
    for (int t = 0; t < MEANS_IOUS; t++) {
        o->outcomes[t] = malloc(n_predictions * sizeof *o->outcomes[t]);
        o->counted[t] = malloc(n_classes * sizeof *o->counted[t]);
        complete = complete && o->outcomes[t] && o->counted[t];
    }
    return complete;
}

struct amp_ap_outcomes *amp_ap_outcomes_new(const struct amp_ap_set *set, char *err,
                                            size_t err_size)
{
    struct amp_ap_scratch scratch;
    struct amp_ap_outcomes *o = calloc(1, sizeof *o);
    if (o) o->set = set;
    if (!o || !allocate_outcomes(o)) {
        snprintf(err, err_size, "no memory for the outcomes of all predictions");
        amp_ap_outcomes_free(o);
        return NULL;
    }
    if (amp_ap_scratch_make(set, &scratch, err, err_size)) {
        amp_ap_outcomes_free(o);
        return NULL;
    }
    for (int t = 0; t < MEANS_IOUS; t++) {
        enum amp_match_rule rule = t < 2 ? AMP_MATCH_VOC : AMP_MATCH_COCO;
        double iou = t == 0 ? 0.5 : t == 1 ? 0.75 : amp_coco_iou(t - 2);
        for (int k = 0; k < set->n_classes; k++)
            o->counted[t][k] = amp_ap_match_class(set, k, rule, iou, &scratch,
                                                  o->outcomes[t] + set->first_prediction[k]);
    }
    amp_ap_scratch_free(&scratch);
    return o;
}

static void count_truths(struct amp_ap_outcomes *o, const int *draws)
{
    const struct amp_ap_set *set = o->set;
    for (int k = 0; k < set->n_classes; k++) {
        o->truths[k] = 0;
        for (size_t i = set->first_truth[k]; i < set->first_truth[k + 1]; i++)
            o->truths[k] += count_image(draws, set->truths[i].t.image);
    }
}

struct amp_map_means amp_ap_outcomes_means(struct amp_ap_outcomes *o, const int *draws)
{
    const struct amp_ap_set *set = o->set;
    struct amp_map_means sum = {0, 0, 0};
    int with_truths = 0;
    count_truths(o, draws);
    for (int k = 0; k < set->n_classes; k++) {
        if (o->truths[k] == 0) continue;
        with_truths++;
        for (int t = 0; t < MEANS_IOUS; t++) {
            struct amp_class_ap ap = amp_ap_integrate(o->outcomes[t] + set->first_prediction[k],
                                                      o->counted[t][k], draws, o->truths[k], NULL);
            if (t == 0) sum.map50 += ap.area;
            if (t == 1) sum.map75 += ap.area;
            if (t >= 2) sum.map += ap.coco / AMP_COCO_IOUS;
        }
    }
    if (with_truths == 0) return (struct amp_map_means){NAN, NAN, NAN};
    return (struct amp_map_means){sum.map50 / with_truths, sum.map75 / with_truths,
                                  sum.map / with_truths};
}
