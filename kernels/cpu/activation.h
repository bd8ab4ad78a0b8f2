/* Activations and their gradients on vectors.
 *
 * AMPK_WITH_ACTIVATION instantiates a loop over elements once for each activation that nets use
 * most, which is a few vector instructions, and once for all others, which go through scalar code.
 */
#ifndef AMPK_CPU_ACTIVATION_H
#define AMPK_CPU_ACTIVATION_H

#include "kernels/activation.h"
#include "simd.h"

/* Runs the statement with A as a constant for the fast activations, as a variable for the others.
 * A constant lets the compiler drop the branches in the functions below. */
#define AMPK_WITH_ACTIVATION(activation, A, statement)                                             \
    do {                                                                                           \
        if ((activation) == AMPK_LEAKY) {                                                          \
            const enum ampk_activation A = AMPK_LEAKY;                                             \
            statement;                                                                             \
        } else if ((activation) == AMPK_LINEAR) {                                                  \
            const enum ampk_activation A = AMPK_LINEAR;                                            \
            statement;                                                                             \
        } else if ((activation) == AMPK_RELU) {                                                    \
            const enum ampk_activation A = AMPK_RELU;                                              \
            statement;                                                                             \
        } else {                                                                                   \
            const enum ampk_activation A = (activation);                                           \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

/* activation(x) */
AMPK_INLINE ampk_vec ampk_vec_activate(ampk_vec x, enum ampk_activation a)
{
    if (a == AMPK_LINEAR) return x;
    if (a == AMPK_LEAKY) return ampk_vec_if_positive(x, x, x * ampk_vec_set(.1f));
    /* x * 0, not 0: NaN stays NaN. */
    if (a == AMPK_RELU) return ampk_vec_if_positive(x, x, x * ampk_vec_set(0));
    float lanes[AMPK_LANES];
    ampk_vec_store(lanes, 0, AMPK_FP32, AMPK_LANES, x);
    for (int i = 0; i < AMPK_LANES; i++)
        lanes[i] = ampk_activate(lanes[i], a);
    return ampk_vec_load(lanes, 0, AMPK_FP32, AMPK_LANES);
}

/* d * activation'(out) */
AMPK_INLINE ampk_vec ampk_vec_activation_backward(ampk_vec d, ampk_vec out, enum ampk_activation a)
{
    if (a == AMPK_LINEAR) return d;
    if (a == AMPK_LEAKY) return ampk_vec_if_positive(out, d, d * ampk_vec_set(.1f));
    if (a == AMPK_RELU) return ampk_vec_if_positive(out, d, d * ampk_vec_set(0));
    float lanes[AMPK_LANES];
    ampk_vec_store(lanes, 0, AMPK_FP32, AMPK_LANES, out);
    for (int i = 0; i < AMPK_LANES; i++)
        lanes[i] = ampk_activation_gradient(lanes[i], a);
    return d * ampk_vec_load(lanes, 0, AMPK_FP32, AMPK_LANES);
}

#endif
