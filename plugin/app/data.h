/* `darknet amp data`: what a data set consists of, and what a network makes of it. data.c over
 * data_report.c and data_json.c (both over data_counts.c, pure C) and data_sheet.c. */
#ifndef AMP_DATA_H
#define AMP_DATA_H

#include <stdbool.h>
#include <stdio.h>

#include "anchors.h"
#include "plugin/core/read/cfg.h"
#include "plugin/input/survey.h"

/* What k-means found. */
struct amp_data_anchors {
    int n; /* 0: nobody asked */
    struct amp_extent sizes[AMP_MOST_ANCHORS];
    struct amp_anchor_heads heads;
    size_t boxes;
    int cfgs;             /* how many the cfg's heads have */
    double before, after; /* mean IoU with the cfg's and with these */
};

struct amp_data {
    const char *data, *cfg; /* cfg NULL: none */
    bool classifier;
    int classes;
    const struct amp_lines *names;   /* of the classes; may be fewer */
    const struct amp_survey *survey; /* of the lists in sources */
    const struct amp_survey_sources *sources;
    const struct amp_cfg_file *cfg_file; /* these three NULL without a cfg */
    const struct amp_net_desc *net;
    const struct amp_extent *extents; /* of each box of the survey */
    struct amp_data_anchors anchors;
};

/* A class's name, or its number as text. */
const char *amp_data_class_name(const struct amp_data *, int class_id, char number[16]);

/* -1: no memory. */
int amp_data_print(const struct amp_data *, FILE *);
int amp_data_write_json(const struct amp_data *, FILE *);

/* ---- data_sheet.c ---- */

#define AMP_DATA_SHEET  "darknet-amp data sheet 1" /* in the file's comment */
#define AMP_DATA_FORMAT "darknet-amp data 1"

/* Writes 16 images of the training list to a JPEG file, as a training with this cfg loads them,
 * with their boxes, or of a classifier the class. 0, or -1 after telling why. */
int amp_data_sheet(const struct amp_data *, const char *path);

#endif
