/* Decides in which order predictions and truths are looked at, and which are none. It must not know
 * what is measured. Everything is sorted once: a measurement is then one walk over each class. */

#include "ap_set.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- sorting ---- */

/* The input's position makes every comparison decide: qsort keeps no order of equals, and results
 * must not depend on libc. */
static int compare_sizes(size_t a, size_t b)
{
    return (a > b) - (a < b);
}

static int compare_predictions(const void *pa, const void *pb)
{
    const struct amp_ranked_prediction *a = pa, *b = pb;
    if (a->p.class_id != b->p.class_id) return a->p.class_id < b->p.class_id ? -1 : 1;
    if (a->p.score != b->p.score) return a->p.score > b->p.score ? -1 : 1;
    return compare_sizes(a->input, b->input);
}

static int compare_truths(const void *pa, const void *pb)
{
    const struct amp_placed_truth *a = pa, *b = pb;
    if (a->t.class_id != b->t.class_id) return a->t.class_id < b->t.class_id ? -1 : 1;
    if (a->t.image != b->t.image) return a->t.image < b->t.image ? -1 : 1;
    return compare_sizes(a->input, b->input);
}

/* first_* are counted one place up, so that the running sum over classes makes them starts. */
static void sort_set(struct amp_ap_set *set, size_t n_predictions, size_t n_truths)
{
    qsort(set->predictions, n_predictions, sizeof *set->predictions, compare_predictions);
    qsort(set->truths, n_truths, sizeof *set->truths, compare_truths);
    for (size_t i = 0; i < n_predictions; i++)
        ++set->first_prediction[set->predictions[i].p.class_id + 1];
    for (size_t i = 0; i < n_truths; i++)
        ++set->first_truth[set->truths[i].t.class_id + 1];
    for (int k = 0; k < set->n_classes; k++) {
        set->first_prediction[k + 1] += set->first_prediction[k];
        set->first_truth[k + 1] += set->first_truth[k];
    }
}

/* ---- checking and copying the input ---- */

/* Says what is wrong with a box of this image and class; NULL: nothing. */
static const char *find_fault(const struct amp_ap_set *set, int image, int class_id,
                              struct amp_box box)
{
    if (image < 0 || image >= set->n_images) return "image index out of range";
    if (class_id < 0 || class_id >= set->n_classes) return "class out of range";
    if (!isfinite(box.left) || !isfinite(box.top) || !isfinite(box.width) || !isfinite(box.height))
        return "box is not finite";
    if (box.width < 0 || box.height < 0) return "box has a negative size";
    return NULL;
}

/* A NaN would make the sort's order undefined, so all is checked before sorting. */
static int copy_predictions(struct amp_ap_set *set, const struct amp_prediction *predictions,
                            size_t n, char *err, size_t err_size)
{
    for (size_t i = 0; i < n; i++) {
        const struct amp_prediction *p = &predictions[i];
        const char *fault = find_fault(set, p->image, p->class_id, p->box);
        if (!fault && !isfinite(p->score)) fault = "score is not finite";
        if (fault) {
            snprintf(err, err_size,
                     "prediction %zu: %s (image %d of %d, class %d of %d, score %g, box %g %g %g "
                     "%g)",
                     i, fault, p->image, set->n_images, p->class_id, set->n_classes, p->score,
                     p->box.left, p->box.top, p->box.width, p->box.height);
            return -1;
        }
        set->predictions[i] = (struct amp_ranked_prediction){*p, i};
    }
    return 0;
}

static int copy_truths(struct amp_ap_set *set, const struct amp_truth *truths, size_t n, char *err,
                       size_t err_size)
{
    for (size_t i = 0; i < n; i++) {
        const struct amp_truth *t = &truths[i];
        const char *fault = find_fault(set, t->image, t->class_id, t->box);
        if (fault) {
            snprintf(err, err_size,
                     "truth %zu: %s (image %d of %d, class %d of %d, box %g %g %g %g)", i, fault,
                     t->image, set->n_images, t->class_id, set->n_classes, t->box.left, t->box.top,
                     t->box.width, t->box.height);
            return -1;
        }
        set->truths[i] = (struct amp_placed_truth){*t, i};
    }
    return 0;
}

struct amp_ap_set *amp_ap_set_new(const struct amp_prediction *predictions, size_t n_predictions,
                                  const struct amp_truth *truths, size_t n_truths, int n_images,
                                  int n_classes, char *err, size_t err_size)
{
    if (n_images < 0 || n_classes < 0) {
        snprintf(err, err_size, "%d images and %d classes: neither may be negative", n_images,
                 n_classes);
        return NULL;
    }
    struct amp_ap_set *set = calloc(1, sizeof *set);
    if (set) {
        set->n_images = n_images;
        set->n_classes = n_classes;
        set->predictions = calloc(n_predictions + 1, sizeof *set->predictions);
        set->truths = calloc(n_truths + 1, sizeof *set->truths);
        set->first_prediction = calloc((size_t)n_classes + 1, sizeof *set->first_prediction);
        set->first_truth = calloc((size_t)n_classes + 1, sizeof *set->first_truth);
    }
    if (!set || !set->predictions || !set->truths || !set->first_prediction || !set->first_truth) {
        snprintf(err, err_size, "no memory for %zu predictions and %zu truths", n_predictions,
                 n_truths);
    } else if (copy_predictions(set, predictions, n_predictions, err, err_size) == 0 &&
               copy_truths(set, truths, n_truths, err, err_size) == 0) {
        sort_set(set, n_predictions, n_truths);
        return set;
    }
    amp_ap_set_free(set);
    return NULL;
}

void amp_ap_set_free(struct amp_ap_set *set)
{
    if (!set) return;
    free(set->predictions);
    free(set->truths);
    free(set->first_prediction);
    free(set->first_truth);
    free(set);
}

size_t amp_ap_count_truths(const struct amp_ap_set *set, int class_id)
{
    return set->first_truth[class_id + 1] - set->first_truth[class_id];
}

size_t amp_ap_count_predictions(const struct amp_ap_set *set, int class_id)
{
    return set->first_prediction[class_id + 1] - set->first_prediction[class_id];
}
