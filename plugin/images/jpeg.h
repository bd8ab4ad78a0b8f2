/* Decodes JPEG files to the bytes that Darknet trains on: those that OpenCV's imread gives, turned
 * as the file's EXIF data says. Straight through libjpeg-turbo, which takes half of imread's time.
 *
 * What this decoder does not read (another format, CMYK, a damaged file) it leaves to Darknet,
 * which reads it or says why not. */
#ifndef AMP_JPEG_H
#define AMP_JPEG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows from top to bottom, dense; a pixel is blue, green, red. */
struct amp_pixels {
    uint8_t *bytes;
    size_t capacity;
    int w, h;
};

/* Gives it this size, with bytes of no meaning. False: no memory. */
bool amp_pixels_resize(struct amp_pixels *, int w, int h);

/* Memory that one thread at a time decodes in; zeroed = none yet. It grows as images need it. */
struct amp_jpeg_memory {
    uint8_t *file;
    size_t file_capacity;
    struct amp_pixels decoded, turned; /* turned: the result if the file was not upright */
    bool damaged;                      /* of the last file: a part of it may be grey */
};

/* The pixels are valid until the next call with this memory. NULL: not read here; nothing is said.
 */
const struct amp_pixels *amp_jpeg_read(const char *path, struct amp_jpeg_memory *);
/* The same for a file in memory. */
const struct amp_pixels *amp_jpeg_decode(const uint8_t *file, size_t bytes,
                                         struct amp_jpeg_memory *);

void amp_jpeg_free(struct amp_jpeg_memory *);

#endif
