/* The labels of a classifier: lines of a file that Darknet looks for in the paths of images. Pure
 * C.
 */
#ifndef AMP_CLASS_LABELS_H
#define AMP_CLASS_LABELS_H

#include "checker.h"

struct amp_class_labels {
    char **line;
    int n;
};

/* Reads the file that labels= of the data file names, of which there must be a line for each
 * class, and tells its faults. labels: zero-initialised; of a file with fewer lines it stays so. */
void amp_checker_labels(struct amp_checker *, int classes, struct amp_class_labels *labels);
void amp_class_labels_free(struct amp_class_labels *);

/* The class of an image: the first label from number `from` on that its path holds, -1: none. */
int amp_class_of_path(const char *image, char *const *labels, int n, int from);

#define AMP_LABELS_WRONG                                                                           \
    "images without exactly one label in their paths, where Darknet looks for the lines of "       \
    "labels="

/* An amp_image_rule, whose context are the labels: the path holds exactly one of them. */
bool amp_has_one_label(void *labels, const char *image, char *why, size_t size);

#endif
