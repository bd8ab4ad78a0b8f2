/* A training list: one image file a line, exactly as Darknet reads it. A line is the file's name to
 * its last byte: blanks or a carriage return at its end belong to the name, and an empty line names
 * a file "".
 */
#ifndef AMP_TRAIN_LIST_H
#define AMP_TRAIN_LIST_H

#include <stddef.h>
#include <stdio.h>

#include "labels.h"

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
