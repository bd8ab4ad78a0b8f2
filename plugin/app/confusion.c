/* Decides what a detector takes for what: which false alarm of one class stands where a truth of
 * another one was missed. It must not know how hits are found (counts.c): whatever took its truth,
 * or had it taken, is not looked at, so a class's hits and confusions never exceed its truths. */

#include "counts.h"

#include <stdlib.h>

#include "ap_set.h"

/* A false alarm and a truth that it may be taken for. */
struct pair {
    int image;
    double overlap;
    size_t alarm, truth; /* places in the sorted set */
};

struct pairs {
    struct pair *rows;
    size_t count, capacity;
};

static int compare_sizes(size_t a, size_t b)
{
    return (a > b) - (a < b);
}

/* What is left of one side, by image. */
struct left {
    int image;
    size_t at;
};

static int compare_left(const void *pa, const void *pb)
{
    const struct left *a = pa, *b = pb;
    if (a->image != b->image) return a->image < b->image ? -1 : 1;
    return compare_sizes(a->at, b->at);
}

/* The largest overlap first; the places make the order of equals certain. */
static int compare_pairs(const void *pa, const void *pb)
{
    const struct pair *a = pa, *b = pb;
    if (a->image != b->image) return a->image < b->image ? -1 : 1;
    if (a->overlap != b->overlap) return a->overlap > b->overlap ? -1 : 1;
    if (a->alarm != b->alarm) return compare_sizes(a->alarm, b->alarm);
    return compare_sizes(a->truth, b->truth);
}

static int compare_confusions(const void *pa, const void *pb)
{
    const struct amp_confusion *a = pa, *b = pb;
    if (a->truth != b->truth) return a->truth < b->truth ? -1 : 1;
    return (a->prediction > b->prediction) - (a->prediction < b->prediction);
}

static int append(struct pairs *all, struct pair row)
{
    if (all->count == all->capacity) {
        size_t capacity = all->capacity ? 2 * all->capacity : 256;
        struct pair *rows = realloc(all->rows, capacity * sizeof *rows);
        if (!rows) return -1;
        all->rows = rows;
        all->capacity = capacity;
    }
    all->rows[all->count++] = row;
    return 0;
}

/* All pairs of the false alarms and missed truths of one image. */
static int pair_image(const struct amp_ap_set *set, const struct amp_counts_settings *s,
                      const struct left *alarms, size_t n_alarms, const struct left *truths,
                      size_t n_truths, struct pairs *all)
{
    for (size_t a = 0; a < n_alarms; a++)
        for (size_t t = 0; t < n_truths; t++) {
            const struct amp_prediction *p = &set->predictions[alarms[a].at].p;
            const struct amp_truth *truth = &set->truths[truths[t].at].t;
            double overlap = amp_box_iou(p->box, truth->box);
            bool near = s->rule == AMP_MATCH_FORK ? overlap > s->iou : overlap >= s->iou;
            if (!near || p->class_id == truth->class_id) continue;
            if (append(all, (struct pair){p->image, overlap, alarms[a].at, truths[t].at}))
                return -1;
        }
    return 0;
}

static size_t end_of_image(const struct left *rows, size_t n, size_t from)
{
    size_t i = from;
    while (i < n && rows[i].image == rows[from].image)
        i++;
    return i;
}

static int pair_all(const struct amp_ap_set *set, const struct amp_counts_settings *s,
                    const struct left *alarms, size_t n_alarms, const struct left *truths,
                    size_t n_truths, struct pairs *all)
{
    size_t t = 0;
    for (size_t a = 0, end; a < n_alarms; a = end) {
        end = end_of_image(alarms, n_alarms, a);
        while (t < n_truths && truths[t].image < alarms[a].image)
            t++;
        if (t == n_truths || truths[t].image > alarms[a].image) continue;
        size_t truths_end = end_of_image(truths, n_truths, t);
        if (pair_image(set, s, alarms + a, end - a, truths + t, truths_end - t, all)) return -1;
    }
    return 0;
}

/* Takes pairs while both sides are free, and counts their classes. */
static int count_pairs(const struct amp_ap_set *set, struct pairs *all, struct amp_counts *counts)
{
    unsigned char *alarm_taken = calloc(set->first_prediction[set->n_classes] + 1, 1);
    unsigned char *truth_taken = calloc(set->first_truth[set->n_classes] + 1, 1);
    struct amp_confusion *found = malloc((all->count + 1) * sizeof *found);
    size_t n = 0;
    counts->confusions = found;
    if (all->count) qsort(all->rows, all->count, sizeof *all->rows, compare_pairs);
    bool memory = alarm_taken && truth_taken && found;
    for (size_t i = 0; memory && i < all->count; i++) {
        const struct pair *p = &all->rows[i];
        if (alarm_taken[p->alarm] || truth_taken[p->truth]) continue;
        alarm_taken[p->alarm] = truth_taken[p->truth] = 1;
        found[n++] = (struct amp_confusion){set->truths[p->truth].t.class_id,
                                            set->predictions[p->alarm].p.class_id, 1};
    }
    if (n) qsort(found, n, sizeof *found, compare_confusions);
    for (size_t i = 0; i < n; i++) {
        size_t kept = counts->n_confusions;
        if (kept && !compare_confusions(&found[kept - 1], &found[i]))
            found[kept - 1].count++;
        else
            found[counts->n_confusions++] = found[i];
    }
    free(alarm_taken);
    free(truth_taken);
    return memory ? 0 : -1;
}

static size_t list_left(struct left *rows, const unsigned char *left, size_t n,
                        int (*image_of)(const struct amp_ap_set *, size_t),
                        const struct amp_ap_set *set)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (left[i]) rows[count++] = (struct left){image_of(set, i), i};
    if (count) qsort(rows, count, sizeof *rows, compare_left);
    return count;
}

static int image_of_prediction(const struct amp_ap_set *set, size_t i)
{
    return set->predictions[i].p.image;
}

static int image_of_truth(const struct amp_ap_set *set, size_t i)
{
    return set->truths[i].t.image;
}

int amp_confusion_find(const struct amp_ap_set *set, const struct amp_counts_settings *settings,
                       const unsigned char *missed, const unsigned char *alarms,
                       struct amp_counts *counts)
{
    size_t n_predictions = set->first_prediction[set->n_classes];
    size_t n_truths = set->first_truth[set->n_classes];
    struct pairs all = {0};
    struct left *left_alarms = malloc((n_predictions + 1) * sizeof *left_alarms);
    struct left *left_truths = malloc((n_truths + 1) * sizeof *left_truths);
    int failed = -1;
    if (left_alarms && left_truths) {
        size_t a = list_left(left_alarms, alarms, n_predictions, image_of_prediction, set);
        size_t t = list_left(left_truths, missed, n_truths, image_of_truth, set);
        failed = pair_all(set, settings, left_alarms, a, left_truths, t, &all) ||
                 count_pairs(set, &all, counts);
    }
    free(left_alarms);
    free(left_truths);
    free(all.rows);
    return failed ? -1 : 0;
}
