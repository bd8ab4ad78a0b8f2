/* The time of a training step: seconds and FLOPs of every layer and pass, in Darknet's FP32 and in
 * mixed precision. Of a net of AlexeyAB's rules FP32 is the plugin's, by amp_dtype=fp32. */
#ifndef AMP_PROFILE_H
#define AMP_PROFILE_H

#include <stdio.h>

#include "loading.h"
#include "trace.h"
#include "measuring.h"
#include "plugin/core/net/net.h"
#include "plugin/core/plan/plan.h"

struct network; /* Darknet's */
struct load_args;

enum amp_profile_way { AMP_PROFILE_FP32, AMP_PROFILE_MIXED, AMP_PROFILE_WAYS };
enum amp_profile_pass { AMP_PROFILE_FORWARD, AMP_PROFILE_BACKWARD, AMP_PROFILE_PASSES };

/* Times of one step on one batch. NaN: not known. */
struct amp_profile_layer {
    double seconds[AMP_PROFILE_WAYS][AMP_PROFILE_PASSES];
    double flop[AMP_PROFILE_PASSES]; /* of convolutions and matrix products */
};

struct amp_profile {
    const struct amp_net_desc *net;
    const struct amp_plan *plan; /* of mixed precision, as it ran */
    struct amp_machine machine;
    const char *no_fp32; /* why Darknet's FP32 is not timed, its numbers NaN; NULL: it is */
    int rounds;          /* the seconds are the fastest of them, each for itself */
    struct amp_profile_layer *layers;
    struct amp_profile_layer other;    /* seconds of the passes that are no layer's */
    double update[AMP_PROFILE_WAYS];   /* seconds, of all layers together */
    double step[AMP_PROFILE_WAYS];     /* seconds of the fastest whole step */
    const struct amp_loading *loading; /* NULL: not measured */
    struct amp_trace *trace;           /* of one more step of each way; NULL: none */
    const struct load_args *trained;   /* images that threads load meanwhile; NULL: none */
};

/* Rows of the trace; threads that load follow. */
enum { AMP_PROFILE_LOADER_ROW = AMP_PROFILE_WAYS };

/* Sets the FLOPs, from the descriptions. */
void amp_profile_count(struct amp_profile *);

/* Sum of all layers and of `other`: shares are shares of it. Each part is the fastest of the rounds
 * for itself, so on a disturbed machine the sum is less than the passes of a whole step. */
struct amp_profile_layer amp_profile_total(const struct amp_profile *);
/* The unit of a batch: "images", or "inputs" if the net reads sequences. */
const char *amp_profile_unit(const struct amp_net_desc *);
/* Forward and backward. */
double amp_profile_both(const double passes[AMP_PROFILE_PASSES]);

/* One table with a row for each layer. */
void amp_profile_print(const struct amp_profile *, FILE *);
/* Prints the result as one JSON object. */
void amp_profile_print_json(const struct amp_profile *, FILE *);

/* Runs steps on the contents of net->input and net->truth, both ways in turns; one pass is a step.
 * nets[AMP_PROFILE_FP32]: a network without the plugin (by AlexeyAB's rules: with it), or NULL;
 * nets[AMP_PROFILE_MIXED]: an attached one, to be freed afterwards. Sets p's seconds (p->layers is
 * the caller's), rounds and plan, which lives as long as the network. Prints progress every five
 * seconds. 0, or -1 with text in err. */
int amp_profile_time(struct amp_profile *p, struct network *nets[AMP_PROFILE_WAYS], FILE *progress,
                     char *err, size_t err_size);

#endif
