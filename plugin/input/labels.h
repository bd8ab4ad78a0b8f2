/* Darknet's label files; where they are: plugin/core/read/label_path.h. Opens no image. Pure C.
 *
 * One object per line: "class x y width height", the box's centre and size as fractions of the
 * image. An empty file is a valid image without objects. Darknet reads with fscanf up to the first
 * text that is not a number and silently drops the rest. Here every other line is told, with file
 * and line number. */
#ifndef AMP_LABELS_H
#define AMP_LABELS_H

#include <stdbool.h>
#include <stddef.h>

#include "plugin/core/read/label_path.h"

#define AMP_LABEL_FILE_MAX (16 << 20)
#define AMP_LABEL_BOX_MAX  2.0 /* a coordinate beyond +-2 images is not a fraction of the image */

struct amp_label {
    int class_id;
    double x, y, width, height;
};

#define AMP_LABEL_LEAST 0.001 /* Darknet leaves out a box whose clipped side is shorter */

/* What becomes of a box in training, the first that fits. */
enum amp_label_fate {
    AMP_LABEL_WHOLE,
    AMP_LABEL_NO_AREA,   /* width or height is 0: left out */
    AMP_LABEL_TINY,      /* width or height below AMP_LABEL_LEAST: left out */
    AMP_LABEL_OUTSIDE,   /* outside of the image but for less than that: left out */
    AMP_LABEL_OVER_EDGE, /* reaches more than rounding over an edge: clipped */
    AMP_LABEL_NO_CLASS,  /* of a class that the net does not have: left out by the fork */
    AMP_LABEL_FATES
};

struct amp_labels {
    struct amp_label *rows; /* all boxes as they stand, in the order of the file */
    size_t count, capacity;
    size_t fates[AMP_LABEL_FATES]; /* how many of each */
    bool any_class; /* of the caller: a class from `classes` on is a fate, not a fault */
};

/* Receives one message per fault, without newline. */
typedef void amp_tell(void *context, const char *message);

/* Replaces labels (zero-initialised, or from an earlier call) by the file's rows. 0, or -1 after
 * telling every fault: file missing, unreadable or above AMP_LABEL_FILE_MAX bytes, a line that has
 * not exactly five fields, a class outside [0, classes) (below 0 if any_class), a NUL byte, a
 * number that is not finite or beyond AMP_LABEL_BOX_MAX, a width or height below 0, a centre at (0,
 * 0), UTF-16 or a byte-order mark. */
int amp_labels_read(const char *path, int classes, struct amp_labels *labels, amp_tell *tell,
                    void *context);
void amp_labels_free(struct amp_labels *labels);

/* The label file of an image by the rules of AlexeyAB's Darknet (label_path.h). False: there is
 * none, and path is the first place that was looked at. */
bool amp_labels_find(const char *image, char *path, size_t size);
/* Words for messages about such files. */
#define AMP_LABELS_LOOKED_FOR                                                                      \
    "looked for beside the image, then in labels/ in place of images/ or JPEGImages/"

#endif
