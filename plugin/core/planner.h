/* Shared by the files that make a plan (plan.c over plan_memory.c over plan_fuse.c); no other file
 * includes this one. */
#ifndef AMP_PLANNER_H
#define AMP_PLANNER_H

#include "plan.h"

struct planner {
    const struct amp_net_desc *net;
    const struct amp_options *options;
    unsigned ours; /* layer types that have an executor, as for amp_plan_make */
    const enum amp_format *demoted;
    struct amp_plan *plan;
    int capacity; /* of plan->buffers */
};

/* ---- plan_fuse.c, once it is known who contributes to which delta ---- */

/* Appends to the layer's reason, which the report prints. */
void amp_plan_add_reason(struct amp_plan_layer *, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sets fused and delta_owner. */
void amp_plan_fuse_layers(struct planner *);
/* Sets route, first_channel and delta_slice. */
void amp_plan_find_slices(struct planner *);
/* The first layer whose output (or delta) is a slice of that of layer i; i itself if there is
 * none. */
int amp_plan_first_slice(const struct planner *, int i, bool delta);
/* The last of the layers that share the delta of i. */
int amp_plan_last_sharer(const struct planner *, int i);

/* ---- plan_memory.c, last ---- */

/* Plans and places all buffers. -1: out of memory. */
int amp_plan_buffers(struct planner *);
/* Elements of layer i's output (-1: of the input) for all images of a pass. */
size_t amp_plan_elements(const struct planner *, int i);

#endif
