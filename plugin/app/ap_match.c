/* Decides which prediction is a hit. The rules are in average_precision.h. It must not know what is
 * made of it: its outcomes must equal those of the devkits on any input. */

#include "ap_set.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* IoU of two boxes, 0 if they do not overlap. Same operations in the same order as pycocotools'
 * bbIou, so that both round alike. */
double amp_box_iou(struct amp_box a, struct amp_box b)
{
    double width = fmin(a.width + a.left, b.width + b.left) - fmax(a.left, b.left);
    if (width <= 0) return 0;
    double height = fmin(a.height + a.top, b.height + b.top) - fmax(a.top, b.top);
    if (height <= 0) return 0;
    double both = width * height;
    return both / (a.width * a.height + b.width * b.height - both);
}

/* First of the class's n truths, which are sorted by image, that belongs to this image or a later
 * one. */
static size_t find_image(const struct amp_placed_truth *truths, size_t n, int image)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (truths[middle].t.image < image)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t amp_ap_match(const struct amp_prediction *p, const struct amp_placed_truth *truths, size_t n,
                    enum amp_match_rule rule, double iou, unsigned char *taken, double *overlap)
{
    bool coco = rule == AMP_MATCH_COCO;
    /* COCO starts at the threshold (min with 1 - 1e-10, as evaluateImg does), the others at no
     * overlap. >= takes the last of equals, > the first: each as its source does. */
    double best = coco ? fmin(iou, 1 - 1e-10) : 0;
    size_t best_at = n;
    for (size_t i = find_image(truths, n, p->image); i < n && truths[i].t.image == p->image; i++) {
        if (coco && taken[i]) continue;
        double of_this = amp_box_iou(p->box, truths[i].t.box);
        if (coco ? of_this >= best : of_this > best) {
            best = of_this;
            best_at = i;
        }
    }
    *overlap = 0;
    if (best_at == n || taken[best_at]) return n;
    if (rule == AMP_MATCH_VOC && best < iou) return n;
    if (rule == AMP_MATCH_FORK && best <= iou) return n;
    taken[best_at] = 1;
    *overlap = best;
    return best_at;
}

size_t amp_ap_match_class(const struct amp_ap_set *set, int class_id, enum amp_match_rule rule,
                          double iou, struct amp_ap_scratch *scratch,
                          struct amp_ap_outcome *outcomes)
{
    const struct amp_ranked_prediction *predictions =
        set->predictions + set->first_prediction[class_id];
    size_t n = amp_ap_count_predictions(set, class_id);
    const struct amp_placed_truth *truths = set->truths + set->first_truth[class_id];
    size_t n_truths = amp_ap_count_truths(set, class_id);
    size_t counted = 0;
    double overlap;
    /* seen is cleared only for images that this class has: sets with many images and classes stay
     * fast. */
    memset(scratch->taken, 0, n_truths);
    for (size_t i = 0; i < n; i++)
        scratch->seen[predictions[i].p.image] = 0;
    for (size_t i = 0; i < n; i++) {
        const struct amp_prediction *p = &predictions[i].p;
        if (rule == AMP_MATCH_COCO && ++scratch->seen[p->image] > AMP_COCO_MAX_DETECTIONS) continue;
        bool hit =
            amp_ap_match(p, truths, n_truths, rule, iou, scratch->taken, &overlap) < n_truths;
        outcomes[counted++] = (struct amp_ap_outcome){p->image, hit};
    }
    return counted;
}

void amp_ap_scratch_free(struct amp_ap_scratch *scratch)
{
    free(scratch->outcomes);
    free(scratch->taken);
    free(scratch->seen);
    *scratch = (struct amp_ap_scratch){0};
}

int amp_ap_scratch_make(const struct amp_ap_set *set, struct amp_ap_scratch *scratch, char *err,
                        size_t err_size)
{
    size_t n_predictions = set->first_prediction[set->n_classes] + 1;
    scratch->outcomes = malloc(n_predictions * sizeof *scratch->outcomes);
    scratch->taken = malloc(set->first_truth[set->n_classes] + 1);
    scratch->seen = malloc(((size_t)set->n_images + 1) * sizeof *scratch->seen);
    if (scratch->outcomes && scratch->taken && scratch->seen) return 0;
    snprintf(err, err_size, "no memory to measure average precision");
    amp_ap_scratch_free(scratch);
    return -1;
}
