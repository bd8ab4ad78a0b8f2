/* Decides what counts as a hit, a false alarm or a miss at every score, and what follows from it:
 * the definitions are in counts.h. It must not know where predictions come from, nor which of a
 * cfg's rules led here. */

#include "counts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ap_set.h"

enum { THRESHOLDS = 1000, CURVE_STEP = THRESHOLDS / (AMP_CURVE_POINTS - 1) };

/* Hits and false alarms by the highest of the thresholds that they are above; summed from the right
 * they are those above each. */
struct steps {
    size_t hits[THRESHOLDS + 1], alarms[THRESHOLDS + 1];
};

/* What counting one class needs, for the largest one, and what is left of all. */
struct counting {
    struct amp_ap_scratch scratch;
    const struct amp_ranked_prediction *
        *order;            /* predictions of the class, as they are looked at */
    unsigned char *missed; /* per truth of the set */
    unsigned char *alarms; /* per prediction of the set: counted, no hit */
    struct steps own, all; /* of the class; of all */
    double overlaps;       /* of all hits so far */
};

/* ---- hits and false alarms ---- */

static int compare_input(const void *pa, const void *pb)
{
    const struct amp_ranked_prediction *a = *(const struct amp_ranked_prediction *const *)pa;
    const struct amp_ranked_prediction *b = *(const struct amp_ranked_prediction *const *)pb;
    return (a->input > b->input) - (a->input < b->input);
}

/* What --thresh holds if it is written with three digits: a float. */
static double threshold(int step)
{
    return (double)((float)step / THRESHOLDS);
}

/* The highest threshold that the score is above; -1: none. */
static int step_of(double score)
{
    int step = score >= 1 ? THRESHOLDS : score > 0 ? (int)(score * THRESHOLDS) + 1 : 0;
    step = step > THRESHOLDS ? THRESHOLDS : step;
    while (step >= 0 && threshold(step) >= score)
        step--;
    return step;
}

static void sum_steps(struct steps *s)
{
    for (int i = THRESHOLDS; i-- > 0;) {
        s->hits[i] += s->hits[i + 1];
        s->alarms[i] += s->alarms[i + 1];
    }
}

static void order_predictions(const struct amp_ap_set *set, int k, enum amp_match_rule rule,
                              const struct amp_ranked_prediction **order)
{
    size_t n = amp_ap_count_predictions(set, k);
    for (size_t i = 0; i < n; i++)
        order[i] = &set->predictions[set->first_prediction[k] + i];
    if (rule == AMP_MATCH_FORK) qsort(order, n, sizeof *order, compare_input);
}

static void count_class(const struct amp_ap_set *set, int k, const struct amp_counts_settings *s,
                        struct counting *c, struct amp_counted *class)
{
    const struct amp_placed_truth *truths = set->truths + set->first_truth[k];
    unsigned char *missed = c->missed + set->first_truth[k];
    double overlap, overlaps = 0;
    size_t n = amp_ap_count_predictions(set, k);
    class->truths = amp_ap_count_truths(set, k);
    memset(c->scratch.taken, 0, class->truths);
    memset(missed, 1, class->truths);
    memset(&c->own, 0, sizeof c->own);
    order_predictions(set, k, s->rule, c->order);
    for (size_t i = 0; i < n; i++) {
        const struct amp_prediction *p = &c->order[i]->p;
        size_t at =
            amp_ap_match(p, truths, class->truths, s->rule, s->iou, c->scratch.taken, &overlap);
        bool hit = at < class->truths;
        int step = step_of(p->score);
        if (step >= 0) (hit ? c->own.hits : c->own.alarms)[step]++;
        if (p->score <= (double)s->thresh) continue;
        class->tp += hit;
        class->fp += !hit;
        overlaps += overlap;
        if (hit)
            missed[at] = 0;
        else
            c->alarms[c->order[i] - set->predictions] = 1;
    }
    class->mean_iou = overlaps;
    c->overlaps += overlaps;
}

/* ---- what follows ---- */

static double divide(double part, double whole)
{
    return whole > 0 ? part / whole : NAN;
}

/* From tp, fp and the sum of overlaps. */
static void complete(struct amp_counted *c, double overlaps)
{
    double tp = (double)c->tp, counted = (double)(c->tp + c->fp);
    c->fn = c->truths - c->tp;
    c->precision = divide(tp, counted);
    c->recall = divide(tp, (double)c->truths);
    c->f1 = divide(2 * c->precision * c->recall, c->precision + c->recall);
    c->mean_iou = divide(overlaps, counted);
}

static double f1_at(const struct steps *s, int step, size_t truths)
{
    double hits = (double)s->hits[step];
    return hits > 0 ? 2 * hits / (hits + (double)s->alarms[step] + (double)truths) : 0;
}

/* The middle of the first best ones: as far from a miss as from a false alarm. */
static void follow_f1(const struct steps *s, struct amp_counted *c)
{
    int first = 0, last;
    for (int i = 0; i < THRESHOLDS; i++)
        if (f1_at(s, i, c->truths) > f1_at(s, first, c->truths)) first = i;
    c->best_f1 = f1_at(s, first, c->truths);
    for (last = first; last + 1 < THRESHOLDS && f1_at(s, last + 1, c->truths) == c->best_f1;)
        last++;
    c->best_thresh = (first + last) / 2 / (double)THRESHOLDS;
    if (!(c->best_f1 > 0)) c->best_f1 = c->best_thresh = NAN;
    for (int i = 0; i < AMP_CURVE_POINTS; i++)
        c->f1s[i] = f1_at(s, i * CURVE_STEP, c->truths);
}

static double choose_area(const struct amp_class_ap *ap, int points)
{
    return points == 0 ? ap->area : points == 11 ? ap->eleven_point : ap->coco;
}

static void measure_area(const struct amp_ap_set *set, int k, const struct amp_counts_settings *s,
                         struct amp_ap_scratch *scratch, struct amp_counted *class)
{
    size_t truths = amp_ap_count_truths(set, k);
    if (!truths) return;
    size_t n = amp_ap_match_class(set, k, s->rule, s->iou, scratch, scratch->outcomes);
    struct amp_class_ap ap =
        amp_ap_integrate(scratch->outcomes, n, NULL, truths, class->precisions);
    class->ap = choose_area(&ap, s->points);
}

static void add_class(struct counting *c, struct amp_counts *counts, struct amp_counted *class)
{
    struct amp_counted *all = &counts->all;
    complete(class, class->mean_iou);
    for (int i = 0; i <= THRESHOLDS; i++) {
        c->all.hits[i] += c->own.hits[i];
        c->all.alarms[i] += c->own.alarms[i];
    }
    sum_steps(&c->own);
    follow_f1(&c->own, class);
    all->ap += class->ap;
    all->truths += class->truths;
    all->tp += class->tp;
    all->fp += class->fp;
}

static void complete_all(struct counting *c, struct amp_counts *counts)
{
    struct amp_counted *all = &counts->all;
    int with_truths = 0;
    complete(all, c->overlaps);
    sum_steps(&c->all);
    follow_f1(&c->all, all);
    for (int k = 0; k < counts->n_classes; k++)
        with_truths += counts->classes[k].truths > 0;
    for (int k = 0; k < counts->n_classes; k++)
        for (int i = 0; counts->classes[k].truths && i < AMP_CURVE_POINTS; i++)
            all->precisions[i] += counts->classes[k].precisions[i] / with_truths;
    all->ap =
        divide(all->ap, counts->settings.rule == AMP_MATCH_FORK ? counts->n_classes : with_truths);
}

/* ---- all of it ---- */

static int fill(const struct amp_ap_set *set, struct counting *c, struct amp_counts *counts)
{
    for (int k = 0; k < counts->n_classes; k++) {
        measure_area(set, k, &counts->settings, &c->scratch, &counts->classes[k]);
        count_class(set, k, &counts->settings, c, &counts->classes[k]);
        add_class(c, counts, &counts->classes[k]);
    }
    counts->predictions = set->first_prediction[set->n_classes];
    complete_all(c, counts);
    return amp_confusion_find(set, &counts->settings, c->missed, c->alarms, counts);
}

static void free_counting(struct counting *c)
{
    if (!c) return;
    amp_ap_scratch_free(&c->scratch);
    free(c->order);
    free(c->missed);
    free(c->alarms);
    free(c);
}

static struct counting *make_counting(const struct amp_ap_set *set)
{
    char err[300];
    size_t predictions = set->first_prediction[set->n_classes] + 1;
    struct counting *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->order = malloc(predictions * sizeof *c->order);
    c->missed = malloc(set->first_truth[set->n_classes] + 1);
    c->alarms = calloc(predictions, 1);
    if (c->order && c->missed && c->alarms &&
        !amp_ap_scratch_make(set, &c->scratch, err, sizeof err))
        return c;
    free_counting(c);
    return NULL;
}

int amp_counts_compute(const struct amp_ap_set *set, const struct amp_counts_settings *settings,
                       struct amp_counts *counts, char *err, size_t err_size)
{
    *counts = (struct amp_counts){.settings = *settings, .n_classes = set->n_classes};
    if (amp_ap_check_iou(settings->iou, err, err_size)) return -1;
    if (settings->points != 0 && settings->points != 11 && settings->points != 101) {
        snprintf(err, err_size, "points %d: must be 0 (area under the curve), 11 or 101",
                 settings->points);
        return -1;
    }
    struct counting *c = make_counting(set);
    counts->classes = calloc((size_t)set->n_classes + 1, sizeof *counts->classes);
    int failed = !c || !counts->classes || fill(set, c, counts);
    free_counting(c);
    if (!failed) return 0;
    snprintf(err, err_size, "no memory for the results of %d classes", set->n_classes);
    amp_counts_free(counts);
    return -1;
}

void amp_counts_free(struct amp_counts *counts)
{
    free(counts->classes);
    free(counts->confusions);
    *counts = (struct amp_counts){0};
}
