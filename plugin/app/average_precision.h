/* Average precision of object detections: pure C, no Darknet.
 *
 * Predictions and truths come as flat arrays. A set is sorted once, O(N log N), and may then be
 * measured at any IoU by each of three matching rules; each measurement gives three areas per
 * class.
 *
 * What the rules share: a class is measured on its own. Its predictions are taken by falling
 * score, equal scores in input order. Each either takes one truth of its class and image (a hit) or
 * takes none (a false alarm), and no truth is taken twice. IoU is that of pycocotools' bbIou, on
 * continuous boxes in double precision; in the first two an IoU equal to the threshold is enough.
 * Nothing is clipped, crowd or difficult, no box is left out for its area.
 *
 *   AMP_MATCH_VOC   PASCAL VOC devkit, VOCevaldet.m: a prediction looks only at the truth it
 *                   overlaps most (the first of equals). If that one is below the threshold or
 *                   already taken, it is a false alarm, even if another truth would do. No limit
 *                   on the number of predictions. (The devkit counts whole pixels, right - left +
 *                   1; we do not: labels here are fractions of the image, not pixels.)
 *   AMP_MATCH_COCO  pycocotools, COCOeval.evaluateImg: a prediction takes the truth it overlaps
 *                   most among those NOT yet taken (the last of equals), if that reaches the
 *                   threshold. Only the AMP_COCO_MAX_DETECTIONS best predictions per image and
 *                   class take part (maxDets 100); area = all.
 *   AMP_MATCH_FORK  AlexeyAB's Darknet, `detector map`: as VOC, but the IoU must be above the
 *                   threshold. Its other numbers are in counts.h.
 *
 * Precision after each prediction = hits / predictions so far, recall = hits / truths. Precision is
 * made monotone from the right: it becomes the best precision at this or any higher recall.
 *   area          area under that curve (VOC 2010 and later, VOCap.m)
 *   eleven_point  mean of the curve at recall 0, 0.1 .. 1 (VOC 2007), recalls compared exactly
 *   coco          mean of the curve at the 101 recalls 0, 0.01 .. 1 as COCOeval.accumulate does it,
 *                 its rounding included
 *
 * A class without a truth has no average precision: NaN, and means leave it out (as both sources
 * do). A class with truths and no predictions has 0. */
#ifndef AMP_AVERAGE_PRECISION_H
#define AMP_AVERAGE_PRECISION_H

#include <stddef.h>

#define AMP_COCO_MAX_DETECTIONS 100
#define AMP_COCO_IOUS           10

/* Left, top, width, height in any one unit per image; width and height at least 0. */
struct amp_box {
    double left, top, width, height;
};

struct amp_prediction {
    int image, class_id; /* counted from 0 */
    double score;
    struct amp_box box;
};

struct amp_truth {
    int image, class_id;
    struct amp_box box;
};

enum amp_match_rule { AMP_MATCH_VOC, AMP_MATCH_COCO, AMP_MATCH_FORK };

struct amp_class_ap {
    double area, eleven_point, coco; /* 0..1, NaN for a class without truths */
};

/* All usual numbers of one class and of the mean over classes. 0..1 or NaN. */
struct amp_map_row {
    double ap50, ap50_11pt; /* VOC rule at IoU 0.5: area, eleven-point */
    double ap75;            /* VOC rule at IoU 0.75: area */
    double ap_iou;          /* VOC rule at the IoU that was asked for: area */
    double ap_iou_11pt;
    double coco[AMP_COCO_IOUS]; /* COCO rule, 101 points, at amp_coco_iou(0..9) */
    double ap;                  /* mean of coco[] */
};

struct amp_class_result {
    size_t truths, predictions;
    struct amp_map_row row;
};

struct amp_map_result {
    int n_classes;
    struct amp_class_result *classes; /* [n_classes] */
    struct amp_map_row mean;          /* over the classes that have truths */
};

struct amp_ap_set;

/* Sorts a copy of the input. NULL on failure with text in err: an image or class outside [0, n), a
 * score or box that is not finite, a negative size, no memory. The arrays may be NULL when
 * empty. */
struct amp_ap_set *amp_ap_set_new(const struct amp_prediction *predictions, size_t n_predictions,
                                  const struct amp_truth *truths, size_t n_truths, int n_images,
                                  int n_classes, char *err, size_t err_size);
void amp_ap_set_free(struct amp_ap_set *set);

/* Average precision of every class at one IoU in (0, 1]; per_class has n_classes rows. 0, or -1
 * with text in err. */
int amp_ap_set_measure(const struct amp_ap_set *set, enum amp_match_rule rule, double iou,
                       struct amp_class_ap *per_class, char *err, size_t err_size);

/* The ten COCO thresholds 0.5, 0.55 .. 0.95, rounded as pycocotools rounds them. */
double amp_coco_iou(int index);

/* Every number above. 0, or -1 with text in err (result is then empty); amp_map_result_free after
 * use. */
int amp_map_compute(const struct amp_ap_set *set, double iou, struct amp_map_result *result,
                    char *err, size_t err_size);
void amp_map_result_free(struct amp_map_result *result);

/* The means of a drawing of images with replacement, for the bootstrap: as if the set held image i
 * draws[i] times. Predictions are matched once, for all drawings. */
struct amp_map_means {
    double map50, map75, map; /* mean.ap50, mean.ap75 and mean.ap of amp_map_result */
};

struct amp_ap_outcomes;

/* The set must outlive it. NULL on failure with text in err. */
struct amp_ap_outcomes *amp_ap_outcomes_new(const struct amp_ap_set *set, char *err,
                                            size_t err_size);
void amp_ap_outcomes_free(struct amp_ap_outcomes *outcomes);
/* draws: [n_images], or NULL for every image once. NaN where no drawn image has a truth. */
struct amp_map_means amp_ap_outcomes_means(struct amp_ap_outcomes *outcomes, const int *draws);

#endif
