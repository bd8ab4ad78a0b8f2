/* Decides what `detector map` of AlexeyAB's Darknet would have printed of these predictions: the
 * definitions are in fork_map.h. It must not know where predictions come from, nor which of a cfg's
 * rules led here. */

#include "fork_map.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ap_set.h"

/* ---- average precision ---- */

static double choose_area(const struct amp_class_ap *ap, int points)
{
    return points == 0 ? ap->area : points == 11 ? ap->eleven_point : ap->coco;
}

/* ---- hits and false alarms at a score ---- */

/* What counting one class needs, for the largest one. */
struct counting {
    const struct amp_ranked_prediction **order; /* predictions of the class, in input order */
    unsigned char *taken;                       /* per truth of the class */
    double overlaps;                            /* of all hits so far */
};

static int compare_input(const void *pa, const void *pb)
{
    const struct amp_ranked_prediction *a = *(const struct amp_ranked_prediction *const *)pa;
    const struct amp_ranked_prediction *b = *(const struct amp_ranked_prediction *const *)pb;
    return (a->input > b->input) - (a->input < b->input);
}

static void count_class(const struct amp_ap_set *set, int k, const struct amp_fork_settings *s,
                        struct counting *counting, struct amp_fork_class *class)
{
    const struct amp_placed_truth *truths = set->truths + set->first_truth[k];
    size_t n = amp_ap_count_predictions(set, k);
    class->truths = amp_ap_count_truths(set, k);
    memset(counting->taken, 0, class->truths);
    for (size_t i = 0; i < n; i++)
        counting->order[i] = &set->predictions[set->first_prediction[k] + i];
    qsort(counting->order, n, sizeof *counting->order, compare_input);
    for (size_t i = 0; i < n; i++) {
        const struct amp_prediction *p = &counting->order[i]->p;
        double overlap =
            amp_ap_match(p, truths, class->truths, AMP_MATCH_FORK, s->iou, counting->taken);
        if (p->score <= s->thresh) continue;
        if (overlap > 0)
            class->tp++;
        else
            class->fp++;
        counting->overlaps += overlap;
    }
}

/* ---- all of it ---- */

static double divide(double part, double whole)
{
    return whole > 0 ? part / whole : NAN;
}

static void sum_up(struct amp_fork_map *map, double overlaps)
{
    double sum = 0;
    for (int k = 0; k < map->n_classes; k++) {
        const struct amp_fork_class *c = &map->classes[k];
        sum += c->ap;
        map->truths += c->truths;
        map->tp += c->tp;
        map->fp += c->fp;
    }
    double tp = (double)map->tp, counted = (double)(map->tp + map->fp);
    map->fn = map->truths - map->tp;
    map->precision = divide(tp, counted);
    map->recall = divide(tp, (double)map->truths);
    map->f1 = divide(2 * map->precision * map->recall, map->precision + map->recall);
    map->mean_iou = divide(overlaps, counted);
    map->map = divide(sum, map->n_classes);
}

static int fill(const struct amp_ap_set *set, struct amp_fork_map *map, struct amp_class_ap *ap,
                struct counting *counting, char *err, size_t err_size)
{
    const struct amp_fork_settings *s = &map->settings;
    if (amp_ap_set_measure(set, AMP_MATCH_FORK, s->iou, ap, err, err_size)) return -1;
    for (int k = 0; k < map->n_classes; k++) {
        count_class(set, k, s, counting, &map->classes[k]);
        map->classes[k].ap = map->classes[k].truths ? choose_area(&ap[k], s->points) : 0;
    }
    map->predictions = set->first_prediction[set->n_classes];
    sum_up(map, counting->overlaps);
    return 0;
}

int amp_fork_map_compute(const struct amp_ap_set *set, const struct amp_fork_settings *settings,
                         struct amp_fork_map *map, char *err, size_t err_size)
{
    int failed = -1;
    size_t n = (size_t)set->n_classes;
    *map = (struct amp_fork_map){.settings = *settings, .n_classes = set->n_classes};
    if (settings->points != 0 && settings->points != 11 && settings->points != 101) {
        snprintf(err, err_size, "points %d: must be 0 (area under the curve), 11 or 101",
                 settings->points);
        return -1;
    }
    struct counting counting = {.order =
                                    malloc((set->first_prediction[n] + 1) * sizeof *counting.order),
                                .taken = malloc(set->first_truth[n] + 1)};
    struct amp_class_ap *ap = malloc((n + 1) * sizeof *ap);
    map->classes = calloc(n + 1, sizeof *map->classes);
    if (counting.order && counting.taken && ap && map->classes)
        failed = fill(set, map, ap, &counting, err, err_size);
    else
        snprintf(err, err_size, "no memory for the results of %zu classes", n);
    free(counting.order);
    free(counting.taken);
    free(ap);
    if (failed) amp_fork_map_free(map);
    return failed;
}

void amp_fork_map_free(struct amp_fork_map *map)
{
    free(map->classes);
    *map = (struct amp_fork_map){0};
}

/* ---- the table ---- */

static int count_without_truths(const struct amp_fork_map *map)
{
    int n = 0;
    for (int k = 0; k < map->n_classes; k++)
        n += map->classes[k].truths == 0;
    return n;
}

void amp_fork_map_print(FILE *out, const struct amp_fork_map *map, const struct amp_eval_set *set)
{
    const struct amp_fork_settings *s = &map->settings;
    int without = count_without_truths(map);
    fprintf(out, "detections_count = %zu, unique_truth_count = %zu\n", map->predictions,
            map->truths);
    for (int k = 0; k < map->n_classes; k++) {
        const struct amp_fork_class *c = &map->classes[k];
        fprintf(out, "class_id = %d, name = %s, ap = %.2f%%   \t (TP = %zu, FP = %zu)\n", k,
                amp_eval_set_class_name(set, k), 100 * c->ap, c->tp, c->fp);
    }
    fprintf(out, "for conf_thresh = %.2f, precision = %.2f, recall = %.2f, F1-score = %.2f\n",
            s->thresh, map->precision, map->recall, map->f1);
    fprintf(out, "for conf_thresh = %.2f, TP = %zu, FP = %zu, FN = %zu, average IoU = %.2f %%\n",
            s->thresh, map->tp, map->fp, map->fn, 100 * map->mean_iou);
    fprintf(out, "IoU threshold = %.0f %%, ", 100 * s->iou);
    if (s->points)
        fprintf(out, "used %d Recall-points\n", s->points);
    else
        fprintf(out, "used Area-Under-Curve for each unique Recall\n");
    fprintf(out, "mean average precision (mAP@%.2f) = %.6f, or %.2f %%\n", s->iou, map->map,
            100 * map->map);
    if (without)
        fprintf(out, "%d of %d classes without truth boxes count 0 in the mean\n", without,
                map->n_classes);
}
