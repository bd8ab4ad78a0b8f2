/* Boxes of a detector: from the output of a [yolo] head to boxes in the picture, and non-maximum
 * suppression (NMS) in the kinds that AlexeyAB's Darknet has. Pure C, no Darknet.
 *
 * A caller that fills Darknet's arrays of `detection`:
 *
 *   int at = -1;
 *   while ((at = amp_yolo_next(&head, at + 1, thresh)) >= 0) {
 *       found->objectness = amp_yolo_read(&head, &picture, at, thresh, &box, found->prob);
 *       found++;
 *   }
 *
 * and amp_nms_run with one row per detection, whose prob is that detection's array. */
#ifndef AMP_BOXES_H
#define AMP_BOXES_H

#include <stdbool.h>
#include <stddef.h>

/* Centre and size, as Darknet's `box`: fractions of the picture. Nothing is clipped. */
struct amp_centre_box {
    float x, y, w, h;
};

/* ---- yolo_boxes.c ---- */

/* One picture's output of one head, as the head stored it: without new_coords the sigmoid has been
 * applied to all but w and h, scale_x_y to x and y. */
struct amp_yolo_output {
    const float *output;      /* [boxes][x y w h objectness, classes][h][w] */
    int w, h, boxes, classes; /* the grid; boxes: of this head's mask */
    const int *mask;          /* [boxes] which pair of anchors belongs to each */
    const float *anchors;     /* pairs of width and height, pixels of the network's input */
    int net_w, net_h;         /* the network's input, pixels */
    bool new_coords; /* sides are (2 s)^2 anchors, else e^s anchors; s: the stored output */
};

/* How the picture, of w x h pixels, got into the network's input: with its aspect kept and in the
 * middle, as letterbox_image places it, or stretched all over it. */
struct amp_yolo_picture {
    int w, h;
    bool letterbox;
};

/* The first box at or after `from` whose objectness is above thresh, -1 if there is none. Boxes are
 * counted cell by cell, row after row, within a cell in the order of the mask: 0 .. w h boxes - 1.
 * An objectness that is not a number is above nothing. */
int amp_yolo_next(const struct amp_yolo_output *head, int from, float thresh);

/* Box `at` and its classes' probabilities, [classes]: objectness times the class's output where
 * that is above thresh, else 0. Returns the objectness. */
float amp_yolo_read(const struct amp_yolo_output *head, const struct amp_yolo_picture *picture,
                    int at, float thresh, struct amp_centre_box *box, float *prob);

/* ---- nms.c ---- */

/* A box loses its probability of a class if a box with a higher one has overlap > thresh with it.
 * The overlap is default, corners   IoU greedy             IoU - (d^2 / c^2)^0.6    d: distance of
 * the centres, c: diagonal of the smallest box around both diou               IoU - (d^2 /
 * c^2)^beta greedy's exponent is fixed, also where the cfg has beta_nms. AlexeyAB's Darknet treats
 * cornersnms as the default. */
enum amp_nms_kind { AMP_NMS_DEFAULT, AMP_NMS_GREEDY, AMP_NMS_DIOU, AMP_NMS_CORNERS };

struct amp_nms {
    enum amp_nms_kind kind;
    float thresh, beta; /* beta: of AMP_NMS_DIOU alone */
};

/* The kind that a cfg's nms_kind names: default, greedynms, diounms, cornersnms. -1: another word.
 */
int amp_nms_kind_read(const char *word, enum amp_nms_kind *kind);

struct amp_nms_row {
    struct amp_centre_box box;
    float objectness;
    float *prob; /* [classes], changed: a suppressed one becomes 0 */
};

/* Class after class, by falling probability; equal ones stay in the order of the class before, at
 * first that of the rows. Rows with objectness 0 neither suppress nor are suppressed.
 *
 * order, [n] or NULL: which row stands where in the list that Darknet's do_nms_sort leaves behind:
 * those with objectness 0 last, the others sorted by the last class, equal ones by the class
 * before, and so on. The fork's mAP depends on it.
 *
 * Takes O(n log n + n kept) per class, of the rows that have a probability above 0 there. 0, or -1
 * with text in err: no memory. */
int amp_nms_run(const struct amp_nms *nms, const struct amp_nms_row *rows, int n, int classes,
                int *order, char *err, size_t err_size);

#endif
