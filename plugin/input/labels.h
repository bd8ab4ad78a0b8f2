/* Darknet's label files and lists of images; where label files are: plugin/core/read/label_path.h. Opens
 * no image. Pure C.
 *
 * One object per line: "class x y width height", the box's centre and size as fractions of the
 * image. An empty file is a valid image without objects. Darknet reads with fscanf up to the first
 * text that is not a number and silently drops the rest. Here every other line is told, with file
 * and line number. */
#ifndef AMP_LABELS_H
#define AMP_LABELS_H

#include <stddef.h>
#include <stdio.h>

#include "plugin/core/read/label_path.h"

#define AMP_LABEL_FILE_MAX (16 << 20)
#define AMP_LABEL_BOX_MAX  2.0 /* a coordinate beyond +-2 images is not a fraction of the image */

struct amp_label {
    int class_id;
    double x, y, width, height;
};

struct amp_labels {
    struct amp_label *rows; /* in the order of the file */
    size_t count, capacity;
    size_t over_edge; /* boxes that reach more than rounding over an edge: kept as they are */
    size_t no_area;   /* boxes whose width or height is 0: kept too; training leaves them out */
};

/* Receives one message per fault, without newline. */
typedef void amp_tell(void *context, const char *message);

/* Replaces labels (zero-initialised, or from an earlier call) by the file's rows. 0, or -1 after
 * telling every fault: file missing, unreadable or above AMP_LABEL_FILE_MAX bytes, a line that has
 * not exactly five fields, a class outside [0, classes), a NUL byte, a number that is not finite or
 * beyond AMP_LABEL_BOX_MAX, a width or height below 0. */
int amp_labels_read(const char *path, int classes, struct amp_labels *labels, amp_tell *tell,
                    void *context);
void amp_labels_free(struct amp_labels *labels);

/* A training list: one image file a line, exactly as Darknet reads it. A line is the file's name to
 * its last byte: blanks or a carriage return at its end belong to the name, and an empty line names
 * a file "". */
#define AMP_FAULTS_NAMED 10 /* of each kind; the others are counted */

struct amp_train_list {
    size_t images;
    size_t over_edge; /* boxes that reach over an edge of their image; Darknet clips them */
    size_t no_area;   /* boxes without width or height; Darknet leaves them out */
};

/* Looks up every image and its label file and reads the labels (classes 0 .. classes - 1). 0, or -1
 * after telling, once for each kind of fault, how many there are and the first AMP_FAULTS_NAMED by
 * name. Progress lines to progress unless it is NULL. */
int amp_train_list_check(const char *path, int classes, FILE *progress, struct amp_train_list *,
                         amp_tell *tell, void *context);

#endif
