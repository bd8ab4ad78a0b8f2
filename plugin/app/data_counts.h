/* What `amp data` tells, counted: for data_report.c and data_json.c. Pure C. */
#ifndef AMP_DATA_COUNTS_H
#define AMP_DATA_COUNTS_H

#include "data.h"

enum { AMP_DATA_LISTS = 2, AMP_DATA_GROUPS = 8, AMP_DATA_QUANTILES = 5 };

/* Of one list. */
struct amp_list_counts {
    size_t images, empty, without_file, unsized, copies;
    size_t boxes, no_class, no_area, below_pixel, below_cell;
    size_t least, median, most;     /* boxes of an image */
    size_t groups[AMP_DATA_GROUPS]; /* images with 0, 1, 2-3, 4-7, .. 64 or more */
    struct {
        size_t boxes, images;
    } * classes; /* images: of a classifier those of the class, else those with a box of it */
};

struct amp_data_counts {
    const struct amp_data *d;
    int lists, classes;
    struct amp_list_counts counts[AMP_DATA_LISTS];
    size_t in_both; /* images of valid whose bytes train has, too */
    size_t *order;  /* classes, those that train has most of first */
};

/* 0, or -1: no memory. Free it then, too. */
int amp_data_count(struct amp_data_counts *, const struct amp_data *);
void amp_data_counts_free(struct amp_data_counts *);

/* Boxes of a class, or of a classifier images. */
size_t amp_data_amount(const struct amp_data_counts *, int list, size_t class_id);

struct amp_image_size {
    int w, h;
    size_t images;
};

/* Of all images whose header says it, the most frequent first; to be freed. NULL: no memory. */
struct amp_image_size *amp_data_sizes(const struct amp_survey *, size_t *n);

/* The least, the twentieth part, the median, the rest but a twentieth and the most of the widths or
 * heights of all boxes with an area: pixels of the network, or without a cfg fractions of the
 * image. False: there are none, or no memory. */
bool amp_data_quantiles(const struct amp_data *, bool heights, float found[AMP_DATA_QUANTILES]);

/* Sides of the smallest cells of a head, in pixels of the network. */
struct amp_extent amp_data_finest_cell(const struct amp_net_desc *);
/* The convolution that makes what a head reads; -1: it is another layer. */
int amp_data_layer_before(const struct amp_net_desc *, int head);

#endif
