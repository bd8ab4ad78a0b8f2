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
#include <stdio.h>

/* Rows from top to bottom, dense; a pixel is blue, green, red. */
struct amp_pixels {
    uint8_t *bytes;
    size_t capacity;
    int w, h;
    int full_w, full_h; /* before it was reduced; else the same */
};

/* Gives it this size, with bytes of no meaning. False: no memory. */
bool amp_pixels_resize(struct amp_pixels *, int w, int h);

enum { AMP_JPEG_DAMAGE = 200 };

/* Memory that one thread at a time decodes in; zeroed = none yet. It grows as images need it. */
struct amp_jpeg_memory {
    uint8_t *file;
    size_t file_bytes, file_capacity;
    struct amp_pixels pixels;
    uint8_t *row; /* of a file that is not upright */
    size_t row_capacity;
    char damage[AMP_JPEG_DAMAGE]; /* of the file decoded last, as libjpeg puts it; "": none */
};

/* least: 0, or what width and height need not exceed: the image is decoded at 1/2, 1/4 or 1/8 of
 * its size as far as neither falls below that, in a fraction of the time. Its pixels are means of
 * those of the full size then, so they differ from Darknet's.
 *
 * The pixels are valid until the next call with this memory. NULL: not read here; nothing is said.
 */
const struct amp_pixels *amp_jpeg_decode(const uint8_t *file, size_t bytes, int least,
                                         struct amp_jpeg_memory *);
/* 1, 2, 4 or 8: what amp_jpeg_decode divides the sides of an image of w x h by. */
int amp_jpeg_reduction(int w, int h, int least);
/* Reads a file into the memory. False: nothing is there; nothing is said. */
bool amp_jpeg_file(const char *path, struct amp_jpeg_memory *);
/* Both. */
const struct amp_pixels *amp_jpeg_read(const char *path, int least, struct amp_jpeg_memory *);

/* True of a JPEG that has no end marker: decoders fill the part that is missing with grey. */
bool amp_jpeg_ends_early(const char *path);

/* What libjpeg says from now on of files that this thread decodes, OpenCV's calls included, is
 * written to `damage`, of AMP_JPEG_DAMAGE; NULL: it is printed, without the file's name, as by
 * libjpeg. */
void amp_jpeg_keep_damage(char *damage);

void amp_jpeg_free(struct amp_jpeg_memory *);

/* Writes a picture as a JPEG of this quality (0 to 100) with colours in full resolution. planes: of
 * red, green and blue, in 0 to 1. comment: stands near the file's beginning. False: no memory, or
 * the stream cannot be written (ferror). */
bool amp_jpeg_write(FILE *, const float *planes, int w, int h, int quality, const char *comment);

#endif
