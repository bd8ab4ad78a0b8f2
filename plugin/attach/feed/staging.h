/* Brings batches of images to a device: out of page-locked memory, in the format that the network's
 * first layers read.
 *
 * Staging (staging.c): the threads that load images fill page-locked memory. A batch is known by
 * its rows, Darknet's data.X.vals, from when it is loaded until it is freed.
 *
 * Uploads (upload.c): Darknet copies net->input to the device at the start of every forward, out of
 * ordinary memory, and waits. From page-locked memory the copy runs at the speed of the bus, and
 * the host goes on meanwhile. net->input is not written again before the pass has been judged,
 * which waits for the device. A staged batch does not pass through net->input at all. The device
 * has room for the images of two passes: while one is computed, the next one's images are copied on
 * a stream of their own; also those of the next batch, as soon as it is loaded. */
#ifndef AMP_STAGING_H
#define AMP_STAGING_H

#include "darknet.h"
#include "kernels/kernels.h"
#include "plugin/core/plan/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct amp_staging;

#ifdef GPU

/* ---- staging ---- */

/* Consecutive images of a batch that is loaded. */
struct amp_staged {
    uint64_t batch; /* 1, 2, ... in the order of amp_staging_open */
    int first, images;
    enum ampk_dtype dtype; /* dense NHWC */
    size_t bytes;
    const void *memory;
    float *const *rows; /* Darknet's own, FP32 */
};

/* Call when another network is trained: if staging was useless for the last one, that counts no
 * more. */
void amp_staging_start(void);
/* Room for a batch of so many images of this shape. Call it on the training thread. NULL: there is
 * no room, which is said once. */
struct amp_staging *amp_staging_open(int images, struct amp_image_shape, enum ampk_dtype);
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

/* ---- uploads ---- */

/* Page-locks net->input until amp_upload_unpin, which must come before it is freed. Where that
 * fails, copies stay Darknet's; it is said once. */
void amp_upload_pin(const network *net);
void amp_upload_unpin(const network *net);

/* The network with this input takes images [offset, offset + n) of a batch next. True: they are
 * staged, and net->input need not be filled. */
bool amp_upload_take(const float *input, data, int n, int offset);
/* A batch has been loaded. For any thread. */
void amp_upload_continue(void);
/* For cuda_push_array: starts the copy, or leaves it where the images are staged. False: x is
 * nobody's input. */
bool amp_upload_start(float *x_gpu, const float *x, size_t n);
/* Call when a pass begins whose plan reads its input in this format. Returns its images on the
 * device in that format, dense NHWC, for work that is started there until the pass has been judged;
 * NULL: they are in net->input_gpu. lane: which of two places they are in, 0 or 1. */
void *amp_upload_begin(const network *, enum amp_format, int *lane);

#else
static inline void amp_staging_start(void) {}
static inline struct amp_staging *amp_staging_open(int images, struct amp_image_shape shape,
                                                   enum ampk_dtype dtype)
{
    (void)images, (void)shape, (void)dtype;
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
static inline void amp_upload_pin(const network *net)
{
    (void)net;
}
static inline void amp_upload_unpin(const network *net)
{
    (void)net;
}
static inline bool amp_upload_take(const float *input, data d, int n, int offset)
{
    (void)input, (void)d, (void)n, (void)offset;
    return false;
}
static inline void amp_upload_continue(void) {}
static inline void *amp_upload_begin(const network *net, enum amp_format format, int *lane)
{
    (void)net, (void)format, (void)lane;
    return NULL;
}
#endif

#endif
