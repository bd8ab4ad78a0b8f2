/* Darknet's label files: their place and their contents. Opens no image. Pure C.
 *
 * One object per line: "class x y width height", the box's centre and size as fractions of the
 * image. An empty file is a valid image without objects. Darknet reads with fscanf up to the first
 * text that is not a number and silently drops the rest. Here every other line is told, with file
 * and line number. */
#ifndef AMP_LABELS_H
#define AMP_LABELS_H

#include <stddef.h>

#define AMP_LABEL_PATH_MAX 4096 /* Darknet's buffer */
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
    AMP_LABEL_FATES
};

struct amp_labels {
    struct amp_label *rows; /* all boxes as they stand, in the order of the file */
    size_t count, capacity;
    size_t fates[AMP_LABEL_FATES]; /* how many of each */
};

/* Receives one message per fault, without newline. */
typedef void amp_tell(void *context, const char *message);

/* The label file of an image by Darknet's rule (fill_truth_detection): in this order the first
 * "images" becomes "labels", the first "JPEGImages" "labels", the first "raw" "labels", and the
 * first ".jpg", ".png", ".JPG", ".JPEG" each ".txt". 0, or -1 with text in err: the path is too
 * long, or the rule leaves it as it is (".jpeg", ".bmp" outside a folder "images"), so that Darknet
 * would read the image as its own labels. */
int amp_label_path(const char *image_path, char *label_path, size_t label_path_size, char *err,
                   size_t err_size);
/* Says which steps of the rule made this path, for a label file that is not found. */
void amp_label_path_explain(const char *image_path, char *text, size_t size);
/* The whole rule, in words. */
#define AMP_LABEL_RULE                                                                             \
    "Darknet makes a label file's name from the image's: the first \"images\", \"JPEGImages\" "    \
    "and "                                                                                         \
    "\"raw\" in it become \"labels\", the first .jpg, .png, .JPG and .JPEG become .txt; other "    \
    "suffixes stay. An image without objects needs an empty label file"

/* Replaces labels (zero-initialised, or from an earlier call) by the file's rows. 0, or -1 after
 * telling every fault: file missing, unreadable or above AMP_LABEL_FILE_MAX bytes, a line that has
 * not exactly five fields, a class outside [0, classes), a NUL byte, a number that is not finite or
 * beyond AMP_LABEL_BOX_MAX, a width or height below 0, a centre at (0, 0), UTF-16 or a byte-order
 * mark. */
int amp_labels_read(const char *path, int classes, struct amp_labels *labels, amp_tell *tell,
                    void *context);
void amp_labels_free(struct amp_labels *labels);

#endif
