/* Darknet's label files (their place and their contents) and lists of images. Opens no image. Pure
 * C.
 *
 * One object per line: "class x y width height", the box's centre and size as fractions of the
 * image. An empty file is a valid image without objects. Darknet reads with fscanf up to the first
 * text that is not a number and silently drops the rest. Here every other line is told, with file
 * and line number. */
#ifndef AMP_LABELS_H
#define AMP_LABELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define AMP_LABEL_PATH_MAX 4096 /* Darknet's buffer */
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

/* The label file of an image by Darknet's rule (fill_truth_detection): in this order the first
 * "images" becomes "labels", the first "JPEGImages" "labels", the first "raw" "labels", and the
 * first ".jpg", ".png", ".JPG", ".JPEG" each ".txt". 0, or -1 with text in err: the path is too
 * long, or the rule leaves it as it is (".jpeg", ".bmp" outside a folder "images"), so that Darknet
 * would read the image as its own labels. */
int amp_label_path(const char *image_path, char *label_path, size_t label_path_size, char *err,
                   size_t err_size);

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

/* What an image of a list needs beside its file. False, with the reason in why. */
typedef bool amp_image_rule(void *context, const char *image, char *why, size_t why_size);

/* The same for a list of images whose truths are no boxes. title: of the faults that the rule
 * finds. */
int amp_image_list_check(const char *path, const char *title, amp_image_rule *, void *rule_context,
                         FILE *progress, amp_tell *tell, void *context);

/* Replaces the first `from` in text, if there is one, as Darknet's find_replace does. 0, or -1: the
 * result is too long. */
int amp_replace_first(char *text, size_t size, const char *from, const char *to);

#endif
