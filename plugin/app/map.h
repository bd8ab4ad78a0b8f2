/* What `detector map` works on and what it tells: the evaluation set, the bootstrap over its
 * images, and the report. Pure C. */
#ifndef AMP_MAP_H
#define AMP_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "average_precision.h"
#include "plugin/core/read/cfg_text.h"
#include "plugin/core/read/lines.h"

/* ---- eval_set.c: the images of a data file's `valid` list and their truth boxes ----
 *
 * Reads text files only, no image is decoded. Keys of the data file (paths are relative to the
 * working directory, as in Darknet):
 *   valid    list of image files, one a line; blank lines are skipped
 *   names    class names, one a line
 *   classes  how many; must equal the number of names
 *   map      optional, for a [region] head with a tree: exactly AMP_MAP_CLASSES lines, class of the
 *            head for each class of the labels (Darknet reads that many). Labels then name classes
 *            0 .. AMP_MAP_CLASSES - 1, and `classes` and `names` are those of the head. */

struct amp_net_desc;

#define AMP_MAP_CLASSES 200

struct amp_eval_set {
    char *valid_path;
    struct amp_lines images;  /* image files */
    struct amp_lines names;   /* [n_head_classes] */
    int n_head_classes;       /* classes of the network's heads */
    int n_classes;            /* classes of the labels and of the result */
    int *map;                 /* [n_classes] class of the head, or NULL: the same */
    struct amp_truth *truths; /* by image, then in the order of the label file; the boxes are
                                 fractions of the image, not clipped */
    size_t n_truths, truth_capacity;
    size_t over_edge;      /* truths that reach over an edge of their image */
    size_t no_area;        /* truths without width or height, which no detection can match */
    size_t without_labels; /* images that have no label file, by the fork's rules */
};

/* Reads and checks all of it: every missing image and label file and every bad label line is named
 * in log before it gives up. By the fork's rules a label file has several places, and an image
 * without one has no objects, which log says. 0 or -1. Progress on stderr. */
int amp_eval_set_load(const char *data_path, enum amp_dialect, struct amp_eval_set *set, FILE *log);
void amp_eval_set_free(struct amp_eval_set *set);

const char *amp_eval_set_class_name(const struct amp_eval_set *set, int class_id);

/* Checks whether this cfg with these weights can be measured on this set. Call it before Darknet
 * builds anything: Darknet reads or writes out of bounds for most of what is refused here.
 *
 * 0, or -1 after naming in log, one line each: a cfg or options with a fault; a last layer that is
 * no [yolo], [region] or [detection] head; a head whose classes differ from the set's, or with a
 * map= or tree= that does not fit or cannot be read; other than 3 channels; weights of another
 * network or cut off. Weights that end exactly between layers are accepted with a warning: later
 * layers keep random weights. weights_path NULL: not looked at. half: as the word -half has it.
 * on_gpu: Darknet will use a GPU; only there it computes trees right. */
int amp_map_check_network(const char *cfg_path, bool half, const char *weights_path,
                          const struct amp_eval_set *set, bool on_gpu, FILE *log);

/* Whether a weights file is this net's. One that ends between layers is, with a line in log. 0, or
 * -1 with text in err. */
int amp_map_check_weights(const char *path, const struct amp_net_desc *, FILE *log, char *err,
                          size_t err_size);

/* ---- map_report.c: the result as a table and as JSON, and the bootstrap: mAP of random drawings
 * of as many images, with replacement ---- */

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

struct amp_counts; /* counts.h */

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
 *   counts              hits and false alarms at a score, curves and confusions (counts.h)
 *   settings            what was measured, and how */
#define AMP_MAP_FORMAT "darknet-amp detector map 1" /* at the beginning */
int amp_map_write_json(const char *path, const struct amp_map_settings *settings,
                       const struct amp_eval_set *set, const struct amp_map_result *result,
                       const struct amp_bootstrap *bootstrap, const struct amp_counts *counts,
                       char *err, size_t err_size);
/* The object alone. */
void amp_map_write_object(FILE *out, const struct amp_map_settings *settings,
                          const struct amp_eval_set *set, const struct amp_map_result *result,
                          const struct amp_bootstrap *bootstrap, const struct amp_counts *counts);

#endif
