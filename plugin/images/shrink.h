/* Makes an image smaller and a JPEG file of it. */
#ifndef AMP_SHRINK_H
#define AMP_SHRINK_H

#include "jpeg.h"

/* The size of an image of w x h whose longer side becomes `side`, which is not above it. */
void amp_shrink_size(int w, int h, int side, int *to_w, int *to_h);

/* Every pixel of the result is the mean of what it covers, edges that cut a pixel included, rounded
 * to the nearest byte (a half goes up). w and h: at most those of the image. The result is the same
 * on every machine. False: no memory. */
bool amp_shrink(const struct amp_pixels *, int w, int h, struct amp_pixels *to);

enum { AMP_JPEG_MOST_SIDE = 65500 }; /* libjpeg's limit */

/* A new JPEG file: quality 95, colours at full resolution. 0, or -1 with text in err that names the
 * file. */
int amp_jpeg_write(const struct amp_pixels *, const char *path, char *err, size_t err_size);

#endif
