/* From the bytes of a picture to the network's input by the rules of AlexeyAB's loader: a cut of it
 * with the mean colour around the picture, cv::resize (INTER_LINEAR) to the network's size,
 * mirrored, hue, saturation and value changed in 8 bits, and then to fractions of 255. What
 * OpenCV 4.6 computes on bytes, its roundings included; where it uses float, but for single levels.
 *
 * All instruction sets give the same bits. */
#ifndef AMP_CROP_H
#define AMP_CROP_H

#include "draw.h"
#include "jpeg.h"

/* Writes planes of red, green and blue, [3][h][w], in [0, 1]. crop: drawn for the size of these
 * pixels, so they must not be reduced. False: no memory. */
bool amp_crop_picture(const struct amp_pixels *, const struct amp_crop *, int w, int h,
                      float *planes);

/* Of a result of w x h the part that begins at (from_x, from_y); it is written at (x, y). */
struct amp_part {
    int x, y, w, h;
    int from_x, from_y;
};

/* The same, this part only; the rest of planes is left alone. */
bool amp_crop_part(const struct amp_pixels *, const struct amp_crop *, int w, int h,
                   const struct amp_part *, float *planes);

#endif
