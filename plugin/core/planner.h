/* What the files that make a plan share (plan.c over plan_memory.c over plan_fuse.c); for nobody
 * else. */
#ifndef AMP_PLANNER_H
#define AMP_PLANNER_H

#include "plan.h"

struct planner {
    const struct amp_net_desc *net;
    const struct amp_options *options;
    unsigned ours; /* types of layers that have an executor, as amp_plan_make's */
    const enum amp_format *demoted;
    struct amp_plan *plan;
    int capacity; /* of plan->buffers */
};

/* ---- plan_fuse.c, once it is known who contributes to which delta ---- */

/* Adds to the layer's reason. */
void amp_plan_add_reason(struct amp_plan_layer *, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sets fused and delta_owner. */
void amp_plan_fuse_layers(struct planner *);
/* Sets route, first_channel and delta_slice. */
void amp_plan_find_slices(struct planner *);
/* The first layer whose output, or whose delta, is a slice of that of i; i itself if there is none.
 */
int amp_plan_first_slice(const struct planner *, int i, bool delta);
/* The last of the layers that share the delta of i. */
int amp_plan_last_sharer(const struct planner *, int i);

/* ---- plan_memory.c, last ---- */

/* Plans and places all buffers. -1: out of memory. */
int amp_plan_buffers(struct planner *);
/* Of one pass's output of layer i (-1: of the input). */
size_t amp_plan_elements(const struct planner *, int i);

#endif
