/* The result of `detector map` as a table and as JSON, and the bootstrap over its images: mAP of
 * random drawings of as many images, with replacement. Pure C. */
#ifndef AMP_MAP_REPORT_H
#define AMP_MAP_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "average_precision.h"
#include "eval_set.h"

struct amp_bootstrap {
    int count;                   /* drawings; 0: none were asked for */
    struct amp_map_means *means; /* [count] */
};

/* Measures `count` drawings. Drawing b of n images is the same in every run and for every network,
 * so the means of two networks can be subtracted drawing by drawing. Progress on log. 0, or -1 with
 * text in err; amp_bootstrap_free after use. */
int amp_bootstrap_run(const struct amp_ap_set *set, int n_images, int count,
                      struct amp_bootstrap *bootstrap, FILE *log, char *err, size_t err_size);
void amp_bootstrap_free(struct amp_bootstrap *bootstrap);

/* How often drawing b holds each of n images; the sum is n. */
void amp_bootstrap_draw(int b, int n_images, int *draws);

/* The settings of a measurement, printed and written with the result. */
struct amp_map_settings {
    const char *data, *cfg, *weights;
    int width, height;  /* the network's input, pixels */
    const char *resize; /* how an image gets there */
    double iou, thresh, nms;
};

/* Settings, one line per class, means; with all_ious the ten COCO thresholds too. */
void amp_map_print(FILE *out, const struct amp_map_settings *settings,
                   const struct amp_eval_set *set, const struct amp_map_result *result,
                   bool all_ious);

/* Checks whether a file can be put at this path, before the work starts. 0, or -1 with text in err:
 * the path is not a regular file, or its folder cannot be written to. */
int amp_map_check_json(const char *path, char *err, size_t err_size);

/* Writes the JSON object; the file appears complete or not at all (a file beside it, then rename).
 * Numbers have the digits that give back the same double; an undefined one is null. 0, or -1 with
 * text in err.
 *
 *   map50, map50_11pt   VOC rule, IoU 0.5: area under the curve, 11 points
 *   map75               VOC rule, IoU 0.75: area under the curve
 *   map                 COCO mAP@[.5:.95]: COCO rule, 101 points, mean of ten IoUs
 *   map_iou, map_iou_11pt   as map50 and map50_11pt, at settings.iou
 *   coco[]              {iou, map}: the ten parts of map
 *   classes[]           {name, ap50, ap50_11pt, ap75, ap_iou, ap, truths, detections}
 *   bootstrap           map50[], map75[], map[] of each drawing of images; only where there are any
 *   settings            what was measured, and how */
int amp_map_write_json(const char *path, const struct amp_map_settings *settings,
                       const struct amp_eval_set *set, const struct amp_map_result *result,
                       const struct amp_bootstrap *bootstrap, char *err, size_t err_size);

#endif
