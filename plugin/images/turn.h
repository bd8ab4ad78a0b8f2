/* From the bytes of an image to a classifier's input, in one pass: what Darknet's
 * rotate_crop_image, flip_image and distort_image do one after the other (src/image.c), within
 * 5e-4. */
#ifndef AMP_TURN_H
#define AMP_TURN_H

#include <stdbool.h>

#include "colours.h"
#include "jpeg.h"

/* Pixel (x, y) of the canvas shows the image at left + x * across[0] + y * down[0] of its columns
 * and top + x * across[1] + y * down[1] of its rows. */
struct amp_turn {
    int w, h; /* of the canvas */
    double left, top, across[2], down[2];
    bool flip; /* the canvas is mirrored before its colours change */
    struct amp_colours colours;
};

/* Writes planes of red, green and blue, [3][h][w], in [0, 1]. Pixels between those of the image are
 * bilinear; there are zeros around it. */
void amp_turn(const struct amp_pixels *, const struct amp_turn *, float *canvas);

#endif
