/* What a data set consists of: its images with their sizes, their boxes or classes, and which have
 * the same bytes. The set has passed its checks (check_train.h). Pure C. */
#ifndef AMP_SURVEY_H
#define AMP_SURVEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "plugin/core/read/cfg_text.h"
#include "plugin/core/read/lines.h"

struct amp_surveyed_image {
    const char *path;
    int w, h;        /* 0: its header does not say */
    size_t boxes;    /* lines of its label file */
    bool has_labels; /* there is such a file */
    int class_id;    /* of a classifier; else -1 */
    size_t same_as;  /* the first image with these bytes: itself, or an earlier one */
};

struct amp_surveyed_box {
    size_t image;
    int class_id;
    float w, h; /* as fractions of the image */
};

/* What is read. */
struct amp_survey_sources {
    const char *train, *valid;      /* lists; valid NULL: none */
    enum amp_dialect dialect;       /* whose rules find label files */
    bool boxes;                     /* read label files */
    const struct amp_lines *labels; /* of a classifier whose images' paths tell; NULL: none */
};

struct amp_survey {
    struct amp_lines lists[2]; /* train, valid */
    size_t n_images, n_train;  /* those of valid follow */
    struct amp_surveyed_image *images;
    size_t n_boxes, n_train_boxes, room;
    struct amp_surveyed_box *boxes;
};

/* 0, or -1 with text in err: a file is not what it was when it was checked, or memory ends. Only
 * files of the same length are read whole. amp_survey_free in both cases. */
int amp_survey_make(struct amp_survey *, const struct amp_survey_sources *, FILE *progress,
                    char *err, size_t err_size);
void amp_survey_free(struct amp_survey *);

#endif
