/* What a set of predictions and truths holds once it is sorted, and what comes of each prediction.
 * For the files that measure it: average_precision.c and counts.c. */
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

/* average_precision.c */

/* The three areas from the outcomes of a class's n predictions by falling score, each as often as
 * its image was drawn; draws NULL: once. truths: above 0. precisions: room for the best precision
 * at each of the 101 recalls or a higher one, or NULL. */
struct amp_class_ap amp_ap_integrate(const struct amp_ap_outcome *outcomes, size_t n,
                                     const int *draws, size_t truths, double *precisions);
/* 0, or -1 with text in err: not in (0, 1]. */
int amp_ap_check_iou(double iou, char *err, size_t err_size);

/* ap_match.c */

/* IoU of two boxes, 0 if they do not overlap. */
double amp_box_iou(struct amp_box a, struct amp_box b);

/* 0, or -1 with text in err. */
int amp_ap_scratch_make(const struct amp_ap_set *set, struct amp_ap_scratch *scratch, char *err,
                        size_t err_size);
void amp_ap_scratch_free(struct amp_ap_scratch *scratch);

/* Gives p the truth that the rule says among the n of its class, marking it taken. Returns its
 * place; n for a false alarm, whose overlap is 0. */
size_t amp_ap_match(const struct amp_prediction *p, const struct amp_placed_truth *truths, size_t n,
                    enum amp_match_rule rule, double iou, unsigned char *taken, double *overlap);

/* Walks one class by falling score and writes the outcome of each prediction that takes part;
 * returns how many do. */
size_t amp_ap_match_class(const struct amp_ap_set *set, int class_id, enum amp_match_rule rule,
                          double iou, struct amp_ap_scratch *scratch,
                          struct amp_ap_outcome *outcomes);

#endif
