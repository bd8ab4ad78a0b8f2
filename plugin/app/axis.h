/* What pictures in SVG share: where the frame lies, its axes and how things look. */
#ifndef AMP_AXIS_H
#define AMP_AXIS_H

#include <stdbool.h>
#include <stdio.h>

/* Pixels, y downward. The frame is LEFT to RIGHT, TOP to BOTTOM. */
enum { WIDTH = 1100, LEFT = 78, RIGHT = 1030, TOP = 96, BOTTOM = 452 };

/* Maps values to places. log: a logarithmic axis, for positive values. */
struct amp_axis {
    double from, to;
    int at_from, at_to;
    bool log;
};

/* Clamped, so that an outlier stays inside the frame. */
double amp_axis_place(const struct amp_axis *, double value);
/* 1, 2 or 5 times a power of ten, so that about `parts` steps make up the range. */
double amp_nice_step(double range, int parts);
/* The grid and the numbers of an axis of losses, at the left of the frame. */
void amp_axis_write(FILE *, const struct amp_axis *);

/* A <style> element. */
extern const char amp_picture_style[];

#endif
