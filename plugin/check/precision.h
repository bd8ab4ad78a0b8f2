/* A pass in mixed precision beside the same pass in FP32, layer by layer, and what follows from it.
 * Pure C.
 *
 * Errors and cosines are taken from at most AMP_PRECISION_SAMPLE elements of a tensor, evenly
 * spread; largest values and zeros from all. */
#ifndef AMP_PRECISION_H
#define AMP_PRECISION_H

#include <stdbool.h>
#include <stdio.h>

#include "plugin/decide/net_desc.h"
#include "plugin/include/amp_observe.h"

#define AMP_PRECISION_SAMPLE 65536
#define AMP_FP16_LARGEST     65504.0

/* One tensor of one layer. */
struct amp_compared {
    bool seen; /* in both passes */
    const char *format;
    double largest; /* in mixed precision, as stored: deltas times the loss scale */
    double error;   /* relative: |mixed - fp32| / |fp32|, L2 */
    double cosine;  /* between the two */
    double zero;    /* share of elements that are zero in mixed precision */
    double lost;    /* share of those that are not zero in FP32 and are in mixed precision */
    float *sample;  /* of the FP32 pass */
    size_t n_sample;
};

struct amp_advice {
    int layer; /* mixed_precision=0 belongs into its section */
    char why[200];
};

struct amp_precision {
    const struct amp_net_desc *net;
    double scale;                           /* of the mixed pass; set before it */
    struct amp_compared *tensors[AMP_SEEN]; /* n each */
    bool *left;                             /* the layer left FP16 */
    int n_advice;                           /* in the order in which it was found */
    struct amp_advice *advice;
};

/* 0, or -1: out of memory. */
int amp_precision_init(struct amp_precision *, const struct amp_net_desc *);
void amp_precision_free(struct amp_precision *);

/* amp_see_functions, user: the struct; the FP32 pass first. */
void amp_precision_see_fp32(const struct amp_seen *, void *precision);
void amp_precision_see_mixed(const struct amp_seen *, void *precision);
/* A layer left FP16 before a pass was clean. */
void amp_precision_left(struct amp_precision *, int layer, const char *tensor, double magnitude);

/* Adds to the advice. A layer is named for what it does itself, not for what it is given. */
void amp_precision_judge(struct amp_precision *);

/* What stands around the comparison in the report. */
struct amp_check_summary {
    const char *data, *cfg, *weights; /* weights NULL: random ones */
    int images, images_per_iteration, redone;
    double stock_seconds, fp32_seconds, mixed_seconds; /* an iteration's passes */
    size_t fp32_bytes, mixed_bytes;                    /* activations of a pass */
};
void amp_precision_print(const struct amp_precision *, const struct amp_check_summary *, FILE *);
void amp_precision_print_json(const struct amp_precision *, const struct amp_check_summary *,
                              FILE *);

#endif
