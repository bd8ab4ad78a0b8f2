/* Batches of images in page-locked memory, in the format that the network's first layers read. The
 * threads that load images fill it; uploads (upload.h) copy from it to the device.
 *
 * A batch is known by its rows, Darknet's data.X.vals, from when it is loaded until it is freed. */
#ifndef AMP_STAGING_H
#define AMP_STAGING_H

#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct amp_staging;

#ifdef GPU

/* Consecutive images of a batch that is loaded. */
struct amp_staged {
    uint64_t batch; /* 1, 2, ... in the order of amp_staging_open */
    int first, images;
    enum ampk_dtype dtype;
    size_t bytes;
    const void *memory;
    float *const *rows; /* Darknet's own, FP32 */
};

/* Call when another network is trained: if staging was useless for the last one, that counts no
 * more. */
void amp_staging_start(void);
/* Room for a batch of so many images of so many numbers. Call it on the training thread. NULL:
 * there is no room, which is said once. */
struct amp_staging *amp_staging_open(int images, size_t inputs, enum ampk_dtype);
/* Converts image k, which has been loaded. Several threads may call it at once. */
void amp_staging_fill(struct amp_staging *, int k, const float *row, size_t n);
/* All images are loaded, and the batch has these rows now. The batch is given up if an image is
 * missing, has another size, or holds a value that the format cannot (inf, NaN, beyond FP16):
 * training looks at such a batch itself. */
void amp_staging_close(struct amp_staging *, float *const *rows);
/* Call before the batch of these rows is freed, staged or not. */
void amp_staging_drop(float *const *rows);

/* Finds the images that begin at *rows. False: they are not staged, or were changed since. Compared
 * are the address and 1024 evenly spaced numbers of each image. */
bool amp_staging_find(float *const *rows, int images, struct amp_staged *);
/* Images [first, first + images) of the oldest batch after this one, as they were loaded, without
 * that comparison. False: that batch is not loaded yet. */
bool amp_staging_foresee(uint64_t after, int first, int images, struct amp_staged *);

/* Frees memory that holds no batch. The other batches' memory is freed when they go, unless a new
 * batch is opened before. */
void amp_staging_tidy(void);

#else
static inline void amp_staging_start(void) {}
static inline struct amp_staging *amp_staging_open(int images, size_t inputs, enum ampk_dtype dtype)
{
    (void)images, (void)inputs, (void)dtype;
    return NULL;
}
static inline void amp_staging_fill(struct amp_staging *s, int k, const float *row, size_t n)
{
    (void)s, (void)k, (void)row, (void)n;
}
static inline void amp_staging_close(struct amp_staging *s, float *const *rows)
{
    (void)s, (void)rows;
}
static inline void amp_staging_drop(float *const *rows)
{
    (void)rows;
}
static inline void amp_staging_tidy(void) {}
#endif

#endif
