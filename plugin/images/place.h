/* From the bytes of an image to what the first layer reads, in one pass: what Darknet's
 * place_image, distort_image and flip_image do one after the other (src/image.c), within 5e-4.
 *
 * All instruction sets give the same bits: no FMA, no sum whose order could change. */
#ifndef AMP_PLACE_H
#define AMP_PLACE_H

#include <stdbool.h>

#include "jpeg.h"

/* How pixels of the canvas lie between those of the image: x of w is at x/w of its width, or from
 * its first pixel to its last. Where rounding puts the last row a little above the image's, Darknet
 * leaves it almost black: so does the third. */
enum amp_sampling {
    AMP_SAMPLE_AS_PLACE_IMAGE,
    AMP_SAMPLE_AS_RESIZE_IMAGE,
    AMP_SAMPLE_AS_RESIZE_IMAGE_ENDS
};

/* Where an image lies on the canvas and how its colours change. */
struct amp_placement {
    int canvas_w, canvas_h; /* of the result */
    int w, h;               /* of the image on the canvas; may be larger than it */
    int left, top;          /* may be negative */
    enum amp_sampling sampling;
    bool distorts;                   /* else hue, saturation and exposure are not looked at */
    float hue, saturation, exposure; /* added to the hue; factors of saturation and value */
    bool flip;                       /* the canvas is mirrored at last */
};

/* Writes planes of red, green and blue, [3][canvas_h][canvas_w], in [0, 1]; where the image is not,
 * the canvas is grey (0.5). Pixels between those of the image are bilinear; there are zeros around
 * it. False: no memory. */
bool amp_place(const struct amp_pixels *, const struct amp_placement *, float *canvas);

/* Column or row i of n on the canvas, in pixels of an image with so many. Rounded as Darknet's
 * i / n * pixels is with -Ofast: at the edges of a large image the last bit of it can be seen. */
static inline float amp_place_at(const struct amp_placement *p, int i, int n, int pixels)
{
    if (p->sampling == AMP_SAMPLE_AS_PLACE_IMAGE)
        return (float)i * ((float)pixels * (1.0f / (float)n));
    return n > 1 ? (float)i * ((float)(pixels - 1) / (float)(n - 1)) : (float)(pixels - 1);
}

#endif
