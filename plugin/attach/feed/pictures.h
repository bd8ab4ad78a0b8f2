/* Decoded pictures for the loaders (detection.c, crops.c): from the cache, a JPEG file, or through
 * Darknet. */
#ifndef AMP_PICTURES_H
#define AMP_PICTURES_H

#include "amp_observe.h"
#include "plugin/images/cache.h"

struct amp_image_loader {
    bool reduces;                  /* large images are decoded at a fraction of their size */
    struct amp_image_cache *cache; /* NULL: none */
    amp_load_function *done;       /* called after each part; NULL: not */
    void *user;
};

/* For l->done. */
void amp_picture_tell(const struct amp_image_loader *, enum amp_load_part done);

struct amp_picture {
    const struct amp_pixels *pixels;
    struct amp_picture_memory *memory; /* NULL: the pixels are the cache's */
};

/* Reads one, with amp_jpeg_decode's least. False: Darknet must read it, and nothing is there to
 * drop. */
bool amp_picture_read(const struct amp_image_loader *, char *path, int least, struct amp_picture *);
/* The same of any file: what Darknet must read it reads now, in full size. */
void amp_picture_read_any(const struct amp_image_loader *, char *path, struct amp_picture *);
void amp_picture_drop(const struct amp_image_loader *, const struct amp_picture *);

#endif
