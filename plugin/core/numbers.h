/* What amp_log tells of a step beyond its loss: the gradient's norm, and of every layer what its
 * output and delta look like as stored. */
#ifndef AMP_NUMBERS_H
#define AMP_NUMBERS_H

#include "graph.h"

/* NAN: there is none, or it is not finite. */
struct amp_layer_numbers {
    const char *type, *format; /* of output and delta: "fp32", "fp16" or "bf16" */
    double out_max;            /* largest magnitude of the output */
    double delta_max;          /* of its delta, times the loss scale */
    double delta_zero;         /* share of the delta's elements that are zero */
};

struct amp_numbers {
    double grad_norm; /* of the step's gradient sums, unscaled; NAN: the step was skipped */
    int n_layers;     /* 0: not looked at in this step */
    struct amp_layer_numbers *layers;
};

/* Of the last pass, which was inspected. backward: it got so far. layers: one for each of the
 * graph's. */
void amp_numbers_read(struct amp_graph *, bool backward, struct amp_layer_numbers *layers);

#endif
