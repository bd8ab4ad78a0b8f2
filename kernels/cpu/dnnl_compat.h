/* The part of oneDNN that we use, the same for its C API 2.x (Debian 12) and 3.x (Debian 13, Ubuntu
 * 24.04): one convolution step on plain NHWC data with weights in the layout that oneDNN prefers.
 * It reads FP32, or BF16, and always sums and writes FP32.
 *
 * A plan is immutable after its creation and uses one thread; every thread of a parallel region may
 * execute it at the same time. (oneDNN's own threads are not used: in some of its code the order of
 * a sum depends on their number.) After creation only lack of memory can make oneDNN fail: the
 * program is aborted with a message then.
 */
#ifndef AMPK_DNNL_COMPAT_H
#define AMPK_DNNL_COMPAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ampk_dnnl_step { AMPK_DNNL_FORWARD, AMPK_DNNL_BACKWARD_DATA, AMPK_DNNL_BACKWARD_WEIGHTS };

/* As struct ampk_conv_shape, for the n images of one call. */
struct ampk_dnnl_shape {
    int n, c, h, w;
    int k, kh, kw, stride, groups;
    int pad_top, pad_bottom, pad_side;
    int plain_c; /* channels of the plain weights [k][plain_c/groups][kh][kw]; c, or more if they
                    are a slice of it */
    bool bf16;   /* what the step reads is BF16: x and weights forward, y and weights for the data
                    gradient, x and y for the weight gradient */
};

struct ampk_dnnl; /* engine, and a stream for every thread */
struct ampk_dnnl_plan;
struct ampk_dnnl_weights; /* weights or their gradient in a plan's layout */

/* threads: the most that a parallel region around any call below will have. The first call also
 * makes oneDNN create everything that it destroys in exit handlers: those that are registered later
 * run earlier, and still find it. */
struct ampk_dnnl *ampk_dnnl_create(int threads, char *err, size_t err_size);
void ampk_dnnl_destroy(struct ampk_dnnl *);

struct ampk_dnnl_plan *ampk_dnnl_plan_create(struct ampk_dnnl *, enum ampk_dnnl_step,
                                             const struct ampk_dnnl_shape *, char *err,
                                             size_t err_size);
void ampk_dnnl_plan_destroy(struct ampk_dnnl_plan *);
/* Bytes of scratch memory for one execution, to be 64-byte aligned. */
size_t ampk_dnnl_plan_scratch(const struct ampk_dnnl_plan *);

/* Without memory. */
struct ampk_dnnl_weights *ampk_dnnl_weights_create(const struct ampk_dnnl_plan *, char *err,
                                                   size_t err_size);
void ampk_dnnl_weights_destroy(struct ampk_dnnl_weights *);
/* Bytes of the memory that such weights need, 64-byte aligned. Of a gradient these are FP32 values
 * in the plan's own order, with padding that is 0: adding two needs no more. */
size_t ampk_dnnl_plan_weights(const struct ampk_dnnl_plan *);
/* From now on they lie there. What pads the layout is 0 then, all else undefined. */
void ampk_dnnl_weights_place(struct ampk_dnnl_weights *, void *memory);
/* To and from FP32 [k][plain_c/groups][kh][kw]; weights that are read as BF16 are rounded. */
void ampk_dnnl_weights_pack(const struct ampk_dnnl_plan *, const float *plain,
                            struct ampk_dnnl_weights *);
void ampk_dnnl_weights_unpack(const struct ampk_dnnl_plan *, struct ampk_dnnl_weights *,
                              float *plain);

/* A layout of BF16 weights that consists of lines: LANES filters times two channels, or LANES
 * channels times two filters, each pair side by side. values[filter[k] + channel[c] + tap[t]] is
 * the weight of filter k, channel c and tap t = row * kw + column. */
enum { AMPK_DNNL_LANES = 16 };
struct ampk_dnnl_lines {
    bool of_filters; /* a line has LANES filters */
    size_t *filter, *channel, *tap;
};
/* NULL if the plan's layout is another: then pack. */
const struct ampk_dnnl_lines *ampk_dnnl_plan_lines(const struct ampk_dnnl_plan *);

/* FORWARD: y = conv(x). BACKWARD_DATA: x = dgrad(y). BACKWARD_WEIGHTS: weights = wgrad(x, y). x and
 * y are dense NHWC, what is read of the type that the plan's shape says, the result FP32. */
void ampk_dnnl_execute(const struct ampk_dnnl_plan *, void *x, struct ampk_dnnl_weights *, void *y,
                       void *scratch);

#endif
