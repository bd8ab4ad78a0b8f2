/* What a loss layer's section says about its loss, with Darknet's keys, defaults and conversions.
 */
#ifndef AMP_LOSS_DESC_H
#define AMP_LOSS_DESC_H

#include <stdbool.h>

#include "cfg_file.h"
#include "kernels/kernels.h"

struct amp_loss_desc {
    /* yolo, region */
    int n_anchors;       /* anchors; 2 numbers each */
    float *anchor_sizes; /* .5 where the cfg gives none */
    int *mask;           /* yolo: the anchor of each box; NULL: box i has anchor i */
    const char *map;     /* file: label's class to the head's; NULL */
    bool softmax, background, bias_match, rescore;
    float ignore_thresh, truth_thresh, thresh;
    float coord_scale, object_scale, noobject_scale, class_scale;
    int mask_scale;

    const char *tree; /* file: region, softmax; NULL */

    /* softmax */
    int groups;
    bool spatial;
    float temperature;

    struct ampk_cost cost;
};

/* boxes, anchors: of a yolo or region head. 0, or -1 where there is no memory. */
int amp_loss_describe(const struct amp_cfg_section *, int boxes, int anchors,
                      struct amp_loss_desc *);
void amp_loss_desc_free(struct amp_loss_desc *);

#endif
