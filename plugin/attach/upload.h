/* Brings the images of a network to the device.
 *
 * Darknet copies net->input to the device at the start of every forward, out of ordinary memory,
 * and waits. From page-locked memory the copy runs at the speed of the bus, and the host goes on
 * meanwhile. net->input is not written again before the pass has been judged, which waits for the
 * device.
 *
 * A staged batch (staging.h) does not pass through net->input at all. The device has room for the
 * images of two passes: while one is computed, the next one's images are copied on a stream of
 * their own; also those of the next batch, as soon as it is loaded. */
#ifndef AMP_UPLOAD_H
#define AMP_UPLOAD_H

#include "darknet.h"
#include "plugin/core/plan.h"

#include <stdbool.h>

#ifdef GPU

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
 * device in that format, dense NCHW, for work that is started there from now on; NULL: they are in
 * net->input_gpu. */
const void *amp_upload_begin(const network *, enum amp_format);

#else
static inline bool amp_upload_take(const float *input, data d, int n, int offset)
{
    (void)input, (void)d, (void)n, (void)offset;
    return false;
}
static inline void amp_upload_continue(void) {}
static inline const void *amp_upload_begin(const network *net, enum amp_format format)
{
    (void)net, (void)format;
    return NULL;
}
#endif

#endif
