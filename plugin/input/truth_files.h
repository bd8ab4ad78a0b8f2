/* The files of truths beside an image that Darknet's trainers other than the detector's load. Each
 * is an amp_image_rule (train_list.h), whose context is a struct amp_truth_rule. Which file is an
 * image's, Darknet's rules for names say; they differ between the three. */
#ifndef AMP_TRUTH_FILES_H
#define AMP_TRUTH_FILES_H

#include <stdbool.h>
#include <stddef.h>

struct amp_truth_rule {
    int classes;
    int room; /* objects of an image that are trained; 0: any number */
    /* what was found */
    size_t files;                  /* of truths */
    size_t beyond, beyond_objects; /* images with more objects than room, and those beyond it */
};

/* Whole numbers below classes; an image without such a file has none. */
bool amp_truths_are_tags(void *rule, const char *image, char *why, size_t size);
/* As many numbers as classes. */
bool amp_truths_are_values(void *rule, const char *image, char *why, size_t size);
/* Masks that fit into the image, which must be a JPEG, PNG or BMP: Darknet draws them into one of
 * its size. */
bool amp_truths_are_masks(void *rule, const char *image, char *why, size_t size);

#endif
