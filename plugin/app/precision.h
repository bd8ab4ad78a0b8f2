/* Compares passes in mixed precision with the same passes in FP32, layer by layer, and draws
 * conclusions. Pure C.
 *
 * For each batch: the FP32 pass, the mixed pass, amp_precision_end_batch. Largest values are those
 * of all batches; errors, cosines and shares are taken over all their elements together. Errors,
 * cosines and lost shares come from at most AMP_PRECISION_SAMPLE elements of a tensor and batch,
 * evenly spread; largest values and zeros from all elements. */
#ifndef AMP_PRECISION_H
#define AMP_PRECISION_H

#include <stdbool.h>
#include <stdio.h>

#include "plugin/core/net/net.h"
#include "plugin/core/read/options.h"
#include "plugin/include/amp_observe.h"

#define AMP_PRECISION_SAMPLE 65536
#define AMP_FP16_LARGEST     65504.0
#define AMP_BF16_LARGEST     3.3895313892515355e38

struct amp_sums {
    double n, zeros;                         /* of all elements in mixed precision */
    double difference, fp32, mixed, product; /* squares and products of the sample */
    double nonzero, n_lost, lost; /* not zero in FP32; zero only in mixed: number, squares */
};

/* One tensor of one layer. */
struct amp_compared {
    bool seen; /* in both passes */
    const char *format;
    double largest;      /* in mixed precision, as stored: deltas times the loss scale */
    double fp32_largest; /* in FP32; without a scale */
    double error;        /* relative: |mixed - fp32| / |fp32|, L2 */
    double cosine;       /* between the two */
    double zero;         /* share of elements that are zero in mixed precision */
    double lost;         /* share of the elements not zero in FP32 that are zero in mixed */
    double lost_norm;    /* |lost| / |fp32|, L2, in FP32: how much the lost ones matter */
    float *sample;       /* of the FP32 pass */
    size_t n_sample;
    struct amp_sums batch, all; /* the last pass, and all batches before it */
    double batch_largest;
};

/* A line to write into the cfg. */
struct amp_advice {
    int layer;    /* the layer it is about; -1: the loss scale */
    int line;     /* of the cfg */
    bool replace; /* replaces that line; else: a new line below it */
    const char *key, *value;
    char why[240];
};

struct amp_precision {
    const struct amp_net_desc *net;
    const struct amp_cfg_file *cfg;
    struct amp_options options;             /* the cfg's */
    double scale;                           /* of the mixed pass; set before it */
    int batches;                            /* that ended */
    struct amp_compared *tensors[AMP_SEEN]; /* n each */
    bool *advised;                          /* the layer stays FP32, by advice or by the cfg */
    bool *rounds_weights;                   /* to FP16 */
    int n_advice;                           /* in the order in which it was found */
    struct amp_advice *advice;
    int left; /* a layer with wrong gradients and no more advice; -1: none */
    char left_why[240];
};

/* cfg: what net was read from. 0, or -1: out of memory. */
int amp_precision_init(struct amp_precision *, const struct amp_net_desc *,
                       const struct amp_cfg_file *cfg, const struct amp_options *);
void amp_precision_free(struct amp_precision *);

/* amp_see_function; user: the struct. The FP32 pass comes first. A pass that is seen twice counts
 * once. */
void amp_precision_see_fp32(const struct amp_seen *, void *precision);
void amp_precision_see_mixed(const struct amp_seen *, void *precision);
void amp_precision_end_batch(struct amp_precision *);

/* Gives a layer's FP32 weights, which it rounds to FP16. If they do not survive that, the layer is
 * named. */
void amp_precision_weights(struct amp_precision *, int layer, const float *weights, size_t n);
/* A layer left FP16 in a forward pass. */
void amp_precision_left(struct amp_precision *, int layer, const char *tensor, double magnitude);
/* Call if gradients overflow at p->scale and the options do not let it fall further. If another
 * option would let it, that option is advised, else layers are. The pass, which is not clean, may
 * have been seen. */
void amp_precision_overflow(struct amp_precision *, int layer, const char *tensor,
                            double magnitude);
/* Adds advice from all batches. A layer is named for what it does itself, not for errors that it is
 * given. Wrong weight gradients are always named, as advice or in `left`. */
void amp_precision_judge(struct amp_precision *);

/* The rest of the report: inputs and memory. */
struct amp_check_summary {
    const char *data, *cfg, *weights; /* weights NULL: random ones */
    int images, images_per_iteration, redone;
    size_t fp32_bytes, mixed_bytes; /* activations of a pass */
    bool random_size;               /* training changes the network's size: these are the cfg's */
};
void amp_precision_print(const struct amp_precision *, const struct amp_check_summary *, FILE *);
void amp_precision_print_json(const struct amp_precision *, const struct amp_check_summary *,
                              FILE *);

/* ==== comparison.c: runs batches of a training's own images through two networks with the same
 * weights, one of them in FP32. Calls Darknet ==== */

struct network; /* Darknet's */

struct amp_comparison {
    const char *data, *weights; /* weights NULL: random ones */
    const struct amp_cfg_file *cfg;
    struct amp_precision *precision;
    struct network *fp32, *mixed;
    int images, redone; /* images compared; backward passes that were repeated */
    double began, told; /* seconds: the start, and the last line of progress */
};

/* Runs the comparison. Both networks stay as the last batch left them. 0, or -1 with a message on
 * stderr. */
int amp_comparison_run(struct amp_comparison *);
/* Prints a line of progress on stderr if the last one is long enough ago. */
__attribute__((format(printf, 2, 3))) void amp_comparison_tell(struct amp_comparison *,
                                                               const char *what, ...);
void amp_comparison_free(struct amp_comparison *);

#endif
