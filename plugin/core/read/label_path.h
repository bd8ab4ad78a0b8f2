/* Where the labels of an image are. Names only; looks at no file. */
#ifndef AMP_LABEL_PATH_H
#define AMP_LABEL_PATH_H

#include <stdbool.h>
#include <stddef.h>

#define AMP_LABEL_PATH_MAX 4096 /* Darknet's buffer */

/* The label file of an image by Darknet's rule (fill_truth_detection): in this order the first
 * "images" becomes "labels", the first "JPEGImages" "labels", the first "raw" "labels", and the
 * first ".jpg", ".png", ".JPG", ".JPEG" each ".txt". 0, or -1 with text in err: the path is too
 * long, or the rule leaves it as it is (".jpeg", ".bmp" outside a folder "images"), so that Darknet
 * would read the image as its own labels. */
int amp_label_path(const char *image_path, char *label_path, size_t label_path_size, char *err,
                   size_t err_size);

/* One step of such a rule: replaces the first `from` in text, if there is one, as Darknet's
 * find_replace does. 0, or -1: the result is too long. */
int amp_replace_first(char *text, size_t size, const char *from, const char *to);

/* Says which steps of the rule made this path, for a label file that is not found. */
void amp_label_path_explain(const char *image_path, char *text, size_t size);
/* The whole rule, in words. */
#define AMP_LABEL_RULE                                                                             \
    "Darknet makes a label file's name from the image's: the first \"images\", \"JPEGImages\" "    \
    "and \"raw\" in it become \"labels\", the first .jpg, .png, .JPG and .JPEG become .txt; "      \
    "other "                                                                                       \
    "suffixes stay. An image without objects needs an empty label file"

/* With the rules of AlexeyAB's Darknet: where to look, in this order; the first file that is there
 * counts.
 *   beside: the image's path, its ending replaced by .txt
 *   fork:   blanks at the end are cut off; the first /images/train2014/, and likewise val2014,
 *           train2017, val2017, is under /labels/; the first /JPEGImages/ is /labels/; the ending
 *           .jpg, .jpeg, .png, .bmp, .tiff, all also in capitals, or .ppm is .txt
 *   stock:  amp_label_path */
enum amp_label_place { AMP_LABELS_BESIDE, AMP_LABELS_FORK, AMP_LABELS_STOCK, AMP_LABEL_PLACES };

/* False: there is none (the path is too long, or has no such ending); label_path is of no use then.
 * Two places may be the same. */
bool amp_label_path_in(enum amp_label_place, const char *image_path, char *label_path,
                       size_t label_path_size);

#endif
