/* Average precision the slow way, straight from its definition: what the tests compare with.
 * Quadratic and worse; shares nothing with plugin/app but the structs of its interface. */
#ifndef AMP_TEST_MAP_REFERENCE_H
#define AMP_TEST_MAP_REFERENCE_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "plugin/app/average_precision.h"

static double reference_iou(struct amp_box a, struct amp_box b)
{
    double right = fmin(a.left + a.width, b.left + b.width);
    double bottom = fmin(a.top + a.height, b.top + b.height);
    double width = right - fmax(a.left, b.left), height = bottom - fmax(a.top, b.top);
    if (width <= 0 || height <= 0) return 0;
    return width * height / (a.width * a.height + b.width * b.height - width * height);
}

/* Rank of prediction i among those of its class: how many come before it. */
static size_t reference_rank(const struct amp_prediction *p, size_t n, size_t i, int image)
{
    size_t rank = 0;
    for (size_t j = 0; j < n; j++) {
        if (p[j].class_id != p[i].class_id || (image >= 0 && p[j].image != image)) continue;
        rank += p[j].score > p[i].score || (p[j].score == p[i].score && j < i);
    }
    return rank;
}

/* The truth that prediction p takes, or n. */
static size_t reference_choice(struct amp_prediction p, const struct amp_truth *t, size_t n,
                               enum amp_match_rule rule, double iou, const bool *taken)
{
    size_t choice = n;
    double best = 0;
    for (size_t j = 0; j < n; j++) {
        if (t[j].class_id != p.class_id || t[j].image != p.image) continue;
        double overlap = reference_iou(p.box, t[j].box);
        if (rule != AMP_MATCH_COCO && overlap > best) best = overlap, choice = j;
        if (rule == AMP_MATCH_COCO && !taken[j] && overlap >= best && overlap >= iou)
            best = overlap, choice = j;
    }
    bool enough = rule == AMP_MATCH_FORK ? best > iou : best >= iou;
    return choice < n && !taken[choice] && enough ? choice : n;
}

/* AP of one class by one rule. */
static struct amp_class_ap reference_ap(const struct amp_prediction *p, size_t n_predictions,
                                        const struct amp_truth *t, size_t n_truths, int class_id,
                                        enum amp_match_rule rule, double iou)
{
    size_t *order = calloc(n_predictions + 1, sizeof *order), n = 0, truths = 0;
    bool *taken = calloc(n_truths + 1, sizeof *taken), *hit = calloc(n_predictions + 1, 1);
    for (size_t j = 0; j < n_truths; j++)
        truths += t[j].class_id == class_id;
    for (size_t i = 0; i < n_predictions; i++) {
        if (p[i].class_id != class_id) continue;
        order[reference_rank(p, n_predictions, i, -1)] = i;
        n++;
    }
    size_t counted = 0;
    for (size_t r = 0; r < n; r++) {
        size_t i = order[r];
        if (rule == AMP_MATCH_COCO && reference_rank(p, n_predictions, i, p[i].image) >= 100)
            continue;
        size_t choice = reference_choice(p[i], t, n_truths, rule, iou, taken);
        if (choice < n_truths) taken[choice] = true;
        hit[counted++] = choice < n_truths;
    }
    double *recall = calloc(n + 1, sizeof *recall), *best = calloc(n + 1, sizeof *best);
    size_t *hits = calloc(n + 1, sizeof *hits), sum = 0;
    for (size_t r = 0; r < counted; r++) {
        hits[r] = sum += hit[r];
        recall[r] = (double)sum / (double)truths;
        for (size_t s = 0; s <= r; s++)
            best[s] = fmax(best[s], (double)sum / (double)(r + 1));
    }
    struct amp_class_ap ap = {0, 0, 0};
    for (size_t r = 0; r < counted; r++)
        ap.area += hit[r] ? best[r] / (double)truths : 0;
    for (int k = 0; k <= 10; k++) {
        for (size_t r = 0; r < counted; r++) {
            if (10 * hits[r] < (size_t)k * truths) continue;
            ap.eleven_point += best[r] / 11;
            break;
        }
    }
    for (int k = 0; k <= 100; k++) {
        for (size_t r = 0; r < counted; r++) {
            if (recall[r] < k * 0.01) continue;
            ap.coco += best[r] / 101;
            break;
        }
    }
    free(order);
    free(taken);
    free(hit);
    free(recall);
    free(best);
    free(hits);
    if (truths == 0) ap = (struct amp_class_ap){NAN, NAN, NAN};
    return ap;
}

#endif
