/* A training list: one image file a line, exactly as Darknet reads it. A line is the file's name to
 * its last byte: blanks at its end belong to the name, and an empty line names a file "". Of a line
 * end of Windows checker.c decides. Pure C. */
#ifndef AMP_TRAIN_LIST_H
#define AMP_TRAIN_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "labels.h"
#include "occurrences.h"
#include "plugin/core/read/cfg_text.h"

#define AMP_FAULTS_NAMED 10 /* of each kind; the others are counted */
#define AMP_FILES_NAMED  3  /* label files with the most boxes that Darknet changes */

/* Boxes of one kind. */
struct amp_box_count {
    size_t boxes, files;
    struct {
        char *path;
        size_t boxes;
    } most[AMP_FILES_NAMED]; /* the files that have most of them, falling; unused: NULL */
};

struct amp_train_list {
    size_t images;
    struct amp_box_count fates[AMP_LABEL_FATES];
    struct amp_box_count
        beyond; /* of images with more boxes than there is room for, those beyond */
    int room;
    size_t boxes;
    size_t trained; /* boxes that are not left out */
    struct amp_occurrences occurrences;
    size_t without_labels; /* images of a net of AlexeyAB's rules that have no label file */
};

/* Looks up every image and its label file, looks at the first bytes of the images and reads the
 * labels (classes 0 .. classes - 1). room: boxes of an image that Darknet trains. By the fork's
 * rules a label file has several places, and an image without one has no objects: such images are
 * counted, and are a fault only if no image has labels. 0, or -1 after telling, once for each kind
 * of fault, how many there are and the first AMP_FAULTS_NAMED by name. Progress lines to progress
 * unless it is NULL. amp_train_list_free in both cases. */
int amp_train_list_check(const char *path, enum amp_dialect, int classes, int room, FILE *progress,
                         struct amp_train_list *, amp_tell *tell, void *context);
/* Says which boxes Darknet will clip or leave out, a line for each kind, how many images have no
 * label file or are named again, and which classes have no box; nothing if there are none. */
void amp_train_list_warn(struct amp_train_list *, const char *path, FILE *warn);
void amp_train_list_free(struct amp_train_list *);

/* What an image of a list needs beside its file. False, with the reason in why. */
typedef bool amp_image_rule(void *context, const char *image, char *why, size_t why_size);

/* amp_train_list_check of a list of images whose truths are no boxes. title: of the faults that the
 * rule finds. */
int amp_image_list_check(const char *path, const char *title, amp_image_rule *, void *rule_context,
                         FILE *progress, amp_tell *tell, void *context);

/* Why a name in a list or data file is not found, if its spelling tells: words for the end of a
 * message, else "". list: that file's path, since its folder is often taken for the place where
 * names begin; "": the names come from a pipe. */
void amp_list_name_hint(const char *list, const char *name, char *hint, size_t size);
/* Length of a name without the white space at its end, which a message would hide, and of which a
 * carriage return would hide the message. */
int amp_list_name_visible(const char *name);

#endif
