/* Finds out what went wrong in a pass, from the magnitudes that the kernels recorded.
 *
 * Each watched tensor has one word: the largest |v| before it was stored, as IEEE-754 bits
 * (kernels.h). The words of a pass, in the order of computation, tell four faults apart:
 *
 * - INPUT: the image or its label was not finite. Skip the step, keep the scale.
 * - FORWARD: a finite FP32 value did not fit FP16 in the forward pass. Skip the step; that layer
 *   leaves FP16.
 * - DIVERGED: FP32 arithmetic on finite values gave inf or NaN. Stop.
 * - BACKWARD: a gradient overflowed. Lower the loss scale. */
#ifndef AMP_FAULT_H
#define AMP_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum amp_fault_class {
    AMP_FAULT_NONE,
    AMP_FAULT_INPUT,
    AMP_FAULT_FORWARD,
    AMP_FAULT_DIVERGED,
    AMP_FAULT_BACKWARD
};

/* The words of one layer; order of the enum = order within the layer. */
enum amp_watch {
    AMP_WATCH_INPUT, /* layer 0 only: the images as Darknet gives them */
    AMP_WATCH_TRUTH, /* layer 0 only: the labels */
    AMP_WATCH_WEIGHTS,
    AMP_WATCH_Y,       /* convolution output before batch-norm */
    AMP_WATCH_ROLLING, /* batch-norm's running statistics */
    AMP_WATCH_OUT,     /* layer output */
    AMP_WATCH_COPY,    /* conversions of the output for its readers */
    AMP_WATCH_LOSS,    /* a loss layer's own delta, unscaled */
    AMP_WATCH_DELTA,   /* sum of the contributions to this layer's delta, scaled */
    AMP_WATCH_DY,
    AMP_WATCH_DW,
    AMP_WATCH_DBIAS, /* bias and batch-norm scale gradients */
    AMP_WATCHES
};

struct amp_fault {
    enum amp_fault_class class;
    int layer;
    enum amp_watch tensor;
    double magnitude; /* largest |v|; inf or NaN if the tensor held that */
};

/* Reports the first faulty word in order of computation. watch: n_layers x AMP_WATCHES words. fp16:
 * per layer, bit w is set if tensor w is stored as FP16. backward false: looks at the words of
 * forward only. */
struct amp_fault amp_fault_find(const uint32_t (*watch)[AMP_WATCHES], const uint16_t *fp16,
                                int n_layers, bool backward);

const char *amp_watch_name(enum amp_watch);

#define AMP_MANY_DEMOTIONS                                                                         \
    3 /* steps within a window in which a layer left FP16: no coincidence                          \
       */

/* When layers left FP16. One or two layers may need the range of FP32. More of them within a window
 * are no coincidence: their values grow from step to step. */
struct amp_demotions {
    int64_t last[AMP_MANY_DEMOTIONS]; /* the latest iterations, oldest first */
    int n;
    bool told;
};

/* Notes that a layer left FP16 in this iteration. True, once, when AMP_MANY_DEMOTIONS of them lie
 * within the window. */
bool amp_demotions_add(struct amp_demotions *, int64_t iteration, int window);

/* Whether x holds neither inf nor NaN; right even if the compiler was told that there are none. */
bool amp_all_finite(const float *x, size_t n);

#endif
