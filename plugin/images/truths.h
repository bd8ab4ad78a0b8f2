/* From the labels of a picture to the truths of its cut, by the rules of AlexeyAB's loader. */
#ifndef AMP_TRUTHS_H
#define AMP_TRUTHS_H

#include "draw.h"

/* A line of a label file: the box's centre and size as fractions of the picture. */
struct amp_box_label {
    int class_id;
    float x, y, w, h;
};

enum { AMP_TRUTH_FLOATS = 5 }; /* x, y, w, h as fractions of the network's input, class */

/* What a picture's truths are for. */
struct amp_truth_rules {
    int w, h; /* the network's */
    int classes;
    int max; /* truths that a picture has room for */
};

/* Writes at most rules->max rows of AMP_TRUTH_FLOATS to truths and returns how many; the rest of
 * truths is left alone. order: of amp_label_order_draw. Only the first `max` labels in that order
 * are looked at, whatever becomes of them. Left out are classes that the network has not, boxes
 * outside the picture or at (0, 0), and those of whose cut part less than a pixel of the network is
 * left. */
int amp_crop_truths(const struct amp_truth_rules *, const struct amp_crop *,
                    const struct amp_box_label *, int labels, const int *order, float *truths);

#endif
