/* Anchors that fit a set's boxes: k-means by IoU (Redmon and Farhadi, "YOLO9000", 2017), as the
 * forks' `detector calc_anchors`, and how the heads of a network share them. Pure C. */
#ifndef AMP_ANCHORS_H
#define AMP_ANCHORS_H

#include <stddef.h>

#include "plugin/core/net/net.h"

/* Width and height in pixels of the network's input. */
struct amp_extent {
    float w, h;
};

#define AMP_MOST_ANCHORS 100

/* The mean over boxes of the IoU with the nearest anchor, corner on corner. */
double amp_anchors_iou(const struct amp_extent *boxes, size_t n, const struct amp_extent *anchors,
                       int k);

/* The anchors with the largest such mean of several searches, by area, the smallest first, in
 * whole pixels if whole. The same boxes give the same ones. 0; -1: fewer than k different boxes,
 * or no memory. */
int amp_anchors_find(const struct amp_extent *boxes, size_t n, int k, bool whole,
                     struct amp_extent *anchors);

/* ---- in a network ---- */

struct amp_anchor_head {
    int layer;
    int first, n; /* its anchors, by area */
    int filters;  /* that the layer before needs */
};

#define AMP_MOST_HEADS 16

struct amp_anchor_heads {
    int n;
    struct amp_anchor_head head[AMP_MOST_HEADS]; /* in the order of the cfg */
    struct amp_extent unit; /* pixels that 1 in anchors= stands for: 1, of [region] a cell */
};

/* The heads that have anchors, [yolo] or [region], and which of k each gets: the finer its cells,
 * the smaller its anchors; as many as it has if that makes k, else equal shares, of which the
 * finest get what is over. n is 0: it has none; more than k: too few anchors. -1: more than
 * AMP_MOST_HEADS. */
int amp_anchor_heads_find(const struct amp_net_desc *, int k, struct amp_anchor_heads *);
/* The anchors that the heads have in the cfg, in pixels; to be freed. NULL: no memory. */
struct amp_extent *amp_anchors_of_cfg(const struct amp_net_desc *, const struct amp_anchor_heads *,
                                      int *n);

#endif
