/* Where the time of a training step goes: seconds, FLOPs and bytes of every layer and pass,
 * Darknet's FP32 beside mixed precision. Pure C. */
#ifndef AMP_PROFILE_H
#define AMP_PROFILE_H

#include <stdbool.h>
#include <stdio.h>

#include "machine.h"
#include "plugin/core/net_desc.h"
#include "plugin/core/plan.h"

enum amp_profile_way { AMP_PROFILE_FP32, AMP_PROFILE_MIXED, AMP_PROFILE_WAYS };
enum amp_profile_pass { AMP_PROFILE_FORWARD, AMP_PROFILE_BACKWARD, AMP_PROFILE_PASSES };

/* Of one step on one batch. NaN: not known. */
struct amp_profile_layer {
    double seconds[AMP_PROFILE_WAYS][AMP_PROFILE_PASSES];
    double flop[AMP_PROFILE_PASSES]; /* of convolutions and matrix products */
    /* The least there is to move: what is read and written, once, as stored. */
    double bytes[AMP_PROFILE_WAYS][AMP_PROFILE_PASSES];
};

struct amp_profile {
    const struct amp_net_desc *net;
    const struct amp_plan *plan; /* of mixed precision, as it ran */
    struct amp_machine machine;
    const char *no_fp32; /* why Darknet's FP32 is not timed, its numbers NaN; NULL: it is */
    int rounds;          /* the seconds are their medians */
    struct amp_profile_layer *layers;
    struct amp_profile_layer other;  /* seconds of the passes that are no layer's */
    double update[AMP_PROFILE_WAYS]; /* seconds, of all layers together */
    double step[AMP_PROFILE_WAYS];   /* seconds of the whole step, measured for itself */
};

/* FLOPs and bytes from the descriptions; seconds are left alone. */
void amp_profile_count(struct amp_profile *);

/* sum += x, in everything. */
void amp_profile_add(struct amp_profile_layer *sum, const struct amp_profile_layer *x);
/* All layers and what is no layer's: what shares are shares of. */
struct amp_profile_layer amp_profile_total(const struct amp_profile *);
/* What a batch is made of: "images", or "inputs" where there is a sequence of them. */
const char *amp_profile_unit(const struct amp_net_desc *);
/* Forward and backward. */
double amp_profile_both(const double passes[AMP_PROFILE_PASSES]);
/* a / b; NaN where b is not above zero. */
double amp_profile_over(double a, double b);

/* As tables (profile_report.c). all: every layer, forward and backward each in a table of its own;
 * else totals per type and the layers that take longest. */
void amp_profile_print(const struct amp_profile *, bool all, FILE *);
/* As one JSON object (profile_json.c; README.md in plugin/ has the fields). */
void amp_profile_print_json(const struct amp_profile *, FILE *);

#endif
