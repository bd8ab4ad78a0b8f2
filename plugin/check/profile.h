/* Where the time of a training step goes: seconds, FLOPs and bytes of every layer, Darknet's FP32
 * beside mixed precision. Pure C. */
#ifndef AMP_PROFILE_H
#define AMP_PROFILE_H

#include <stdbool.h>
#include <stdio.h>

#include "plugin/decide/net_desc.h"
#include "plugin/decide/plan.h"

enum amp_profile_way { AMP_PROFILE_FP32, AMP_PROFILE_MIXED, AMP_PROFILE_WAYS };
enum amp_profile_pass { AMP_PROFILE_FORWARD, AMP_PROFILE_BACKWARD, AMP_PROFILE_PASSES };

/* Of one pass over the batch. */
struct amp_profile_layer {
    double seconds[AMP_PROFILE_WAYS][AMP_PROFILE_PASSES];
    double flop[AMP_PROFILE_PASSES]; /* of convolutions and matrix products */
    /* The least there is to move: what is read and written, once, as stored. */
    double bytes[AMP_PROFILE_WAYS][AMP_PROFILE_PASSES];
};

struct amp_profile {
    const struct amp_net_desc *net;
    const struct amp_plan *plan; /* of mixed precision */
    int rounds;                  /* the seconds are their medians */
    struct amp_profile_layer *layers;
    double update[AMP_PROFILE_WAYS]; /* of all layers together */
};

/* FLOPs and bytes from the descriptions; seconds are left alone. */
void amp_profile_count(struct amp_profile *);

/* all: every layer; else totals per type and the layers that take longest. */
void amp_profile_print(const struct amp_profile *, bool all, FILE *);
void amp_profile_print_json(const struct amp_profile *, FILE *);

#endif
