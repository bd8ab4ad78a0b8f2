/* The truths of an image that Darknet's trainers other than the detector's load. Those in files
 * beside it: each is an amp_image_rule (train_list.h), whose context is the number of classes, an
 * int. Which file is an image's, Darknet's rules for names say; they differ between the three. */
#ifndef AMP_TRUTH_FILES_H
#define AMP_TRUTH_FILES_H

#include <stdbool.h>
#include <stddef.h>

/* The class of a classifier's image: the first label from number `from` on that its path holds, -1:
 * none. */
int amp_class_of_path(const char *image, char *const *labels, int n, int from);

/* Whole numbers below classes; an image without such a file has none. */
bool amp_truths_are_tags(void *classes, const char *image, char *why, size_t size);
/* As many numbers as classes. */
bool amp_truths_are_values(void *classes, const char *image, char *why, size_t size);
/* Masks that fit into the image, which must be a JPEG or PNG: Darknet draws them into one of its
 * size. */
bool amp_truths_are_masks(void *classes, const char *image, char *why, size_t size);

#endif
