/* The pass of place.h, compiled once per instruction set. */
#ifndef AMP_PLACE_ROWS_H
#define AMP_PLACE_ROWS_H

#include "place.h"

/* What a row of the canvas takes from a row of the image, for columns [first, first + count) of the
 * canvas. */
struct amp_columns {
    int first, count;
    int *source;  /* index of the first byte of the pixel on the left */
    float *right; /* weight of the pixel on its right, 0 to 1 */
    float *row;   /* [3 * image w + 3]: a row of the image, then a pixel of 0 */
};

typedef void amp_place_function(const struct amp_pixels *, const struct amp_placement *,
                                const struct amp_columns *, float *canvas);

amp_place_function amp_place_base, amp_place_avx2, amp_place_avx512;

#endif
