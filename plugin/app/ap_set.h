/* What a set of predictions and truths holds once it is sorted, and what comes of each prediction.
 * For the files that measure it: average_precision.c and fork_map.c. */
#ifndef AMP_AP_SET_H
#define AMP_AP_SET_H

#include <stdbool.h>
#include <stddef.h>

#include "average_precision.h"

struct amp_ranked_prediction {
    struct amp_prediction p;
    size_t input; /* position in the caller's array: breaks ties */
};

struct amp_placed_truth {
    struct amp_truth t;
    size_t input;
};

struct amp_ap_set {
    int n_images, n_classes;
    struct amp_ranked_prediction *predictions; /* by class, falling score, input order */
    struct amp_placed_truth *truths;           /* by class, image, input order */
    size_t *first_prediction, *first_truth;    /* [n_classes + 1], into the arrays above */
};

/* The outcome of a prediction that takes part. */
struct amp_ap_outcome {
    int image;
    bool hit;
};

/* Memory that one measurement needs, for the largest class. */
struct amp_ap_scratch {
    struct amp_ap_outcome *outcomes; /* per prediction of the class */
    unsigned char *taken;            /* per truth of the class */
    int *seen;                       /* per image: predictions of the class met so far */
};

/* ap_set.c */
size_t amp_ap_count_truths(const struct amp_ap_set *set, int class_id);
size_t amp_ap_count_predictions(const struct amp_ap_set *set, int class_id);

/* ap_match.c */

/* 0, or -1 with text in err. */
int amp_ap_scratch_make(const struct amp_ap_set *set, struct amp_ap_scratch *scratch, char *err,
                        size_t err_size);
void amp_ap_scratch_free(struct amp_ap_scratch *scratch);

/* Gives p the truth that the rule says among the n of its class, marking it taken. Returns their
 * overlap, which is above 0; 0 for a false alarm. */
double amp_ap_match(const struct amp_prediction *p, const struct amp_placed_truth *truths, size_t n,
                    enum amp_match_rule rule, double iou, unsigned char *taken);

/* Walks one class by falling score and writes the outcome of each prediction that takes part;
 * returns how many do. */
size_t amp_ap_match_class(const struct amp_ap_set *set, int class_id, enum amp_match_rule rule,
                          double iou, struct amp_ap_scratch *scratch,
                          struct amp_ap_outcome *outcomes);

#endif
