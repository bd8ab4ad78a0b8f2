/* The common parts of yolo and region: boxes, truths, and a measure of how close the decisions
 * were. */
#ifndef AMPK_REFERENCE_HEAD_H
#define AMPK_REFERENCE_HEAD_H

#include <math.h>
#include <stdbool.h>

#include "operations.h"

/* The smallest relative distance between two unequal numbers whose order decided something, since
 * this was last set. If it is small, another precision may decide otherwise, and a test cannot
 * compare. */
extern double ampk_ref_closest_decision;

/* a > b, for decisions that depend on rounding. */
static inline bool ampk_ref_exceeds(double a, double b)
{
    double distance = fabs(a - b) / fmax(fabs(a), fabs(b));
    if (a != b && distance < ampk_ref_closest_decision) ampk_ref_closest_decision = distance;
    return a > b;
}

/* Centre and sides, as fractions of the image. */
struct ampk_ref_box {
    double x, y, w, h;
};

static inline double ampk_ref_overlap(double x1, double w1, double x2, double w2)
{
    return fmin(x1 + w1 / 2, x2 + w2 / 2) - fmax(x1 - w1 / 2, x2 - w2 / 2);
}

static inline double ampk_ref_iou(struct ampk_ref_box a, struct ampk_ref_box b)
{
    double w = ampk_ref_overlap(a.x, a.w, b.x, b.w), h = ampk_ref_overlap(a.y, a.h, b.y, b.h);
    double both = w < 0 || h < 0 ? 0 : w * h;
    return both / (a.w * a.h + b.w * b.h - both);
}

static inline struct ampk_ref_box ampk_ref_centred(double w, double h)
{
    return (struct ampk_ref_box){0, 0, w, h};
}

static inline struct ampk_ref_box ampk_ref_truth_box(const float *truth)
{
    return (struct ampk_ref_box){truth[0], truth[1], truth[2], truth[3]};
}

/* From a coordinate (a fraction) to the cell of an axis with so many cells, as in Darknet: an FP32
 * product, cut to an int. -1 if it is far outside or not a number. */
static inline int ampk_ref_cell(float at, int cells)
{
    float place = at * (float)cells;
    return fabsf(place) < 1e5f ? (int)place : -1;
}

/* From a label to a class, by the map if there is one. -1 if there is no such class. */
static inline int ampk_ref_class(float label, const int *map, int map_size)
{
    int class = fabsf(label) < 1e6f ? (int)label : -1;
    if (map) class = class >= 0 && class < map_size ? map[class] : -1;
    return class;
}

/* The cost of yolo and region: the sum of the squares of delta. */
static inline double ampk_ref_squares(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

#endif
