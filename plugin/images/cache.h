/* Decoded images that are kept for the next time they are drawn, up to a number of bytes; those
 * that were not used for longest go first. Any number of threads may use a cache at the same time.
 */
#ifndef AMP_IMAGE_CACHE_H
#define AMP_IMAGE_CACHE_H

#include "jpeg.h"

struct amp_image_cache;

/* NULL: no memory. */
struct amp_image_cache *amp_image_cache_new(size_t bytes);
/* Nothing may be in use. */
void amp_image_cache_free(struct amp_image_cache *);

/* The image of this file as reading it with this `least` (jpeg.h) would give it; NULL: it is not
 * kept. It stays where it is until it is given back. */
const struct amp_pixels *amp_image_cache_take(struct amp_image_cache *, const char *path,
                                              int least);
void amp_image_cache_give(struct amp_image_cache *, const struct amp_pixels *);
/* Keeps a copy of these pixels, in place of others of the same file. Without memory, or if what is
 * in use fills the cache, nothing is kept. */
void amp_image_cache_keep(struct amp_image_cache *, const char *path, int least,
                          const struct amp_pixels *);

#endif
