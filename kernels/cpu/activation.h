/* Darknet's activations and their gradients (activations.h there) on vectors. The gradient is a
 * function of the activation's OUTPUT, as in Darknet.
 *
 * A loop over elements is instantiated for the activations that nets use, each a few vector
 * instructions, and once for all others, which go through scalar code: AMPK_WITH_ACTIVATION.
 * Arithmetic is FP32, inside exp and tanh double as in Darknet. Of Darknet's formulas only tanh is
 * written otherwise: (exp(2x)-1)/(exp(2x)+1) is NaN from x = 355 on.
 */
#ifndef AMPK_ACTIVATION_H
#define AMPK_ACTIVATION_H

#include "kernels/cpu/simd.h"
#include <math.h>

/* Runs the statement with A a constant for the fast activations, a variable for the others. */
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

static inline float ampk_activate(float x, enum ampk_activation a)
{
    switch (a) {
    case AMPK_LOGISTIC:
        return (float)(1 / (1 + exp(-(double)x)));
    case AMPK_RELU:
        return x > 0 ? x : x * 0; /* NaN stays NaN */
    case AMPK_RELIE:
        return x > 0 ? x : .01f * x;
    case AMPK_RAMP:
        return (x > 0 ? x : x * 0) + .1f * x;
    case AMPK_TANH:
        return (float)tanh((double)x);
    case AMPK_PLSE:
        if (x < -4) return .01f * (x + 4);
        if (x > 4) return .01f * (x - 4) + 1;
        return .125f * x + .5f;
    case AMPK_LEAKY:
        return x > 0 ? x : .1f * x;
    case AMPK_ELU:
        return x >= 0 ? x : (float)(exp((double)x) - 1);
    case AMPK_LOGGY:
        return (float)(2 / (1 + exp(-(double)x)) - 1);
    case AMPK_STAIR: {
        double n = floor((double)x);
        return (float)(fmod(n, 2) == 0 ? floor(x / 2.) : (x - n) + floor(x / 2.));
    }
    case AMPK_HARDTAN:
        return x < -1 ? -1 : x > 1 ? 1 : x;
    case AMPK_LHTAN:
        return x < 0 ? .001f * x : x > 1 ? .001f * (x - 1) + 1 : x;
    case AMPK_SELU:
        return (float)(x >= 0 ? 1.0507 * x : 1.0507 * 1.6732 * (exp((double)x) - 1));
    default:
        return x;
    }
}

static inline float ampk_activation_gradient(float out, enum ampk_activation a)
{
    switch (a) {
    case AMPK_LOGISTIC:
        return (1 - out) * out;
    case AMPK_RELU:
        return out > 0 ? 1 : 0;
    case AMPK_RELIE:
        return out > 0 ? 1 : .01f;
    case AMPK_RAMP:
        return (out > 0 ? 1 : 0) + .1f;
    case AMPK_TANH:
        return 1 - out * out;
    case AMPK_PLSE:
        return out < 0 || out > 1 ? .01f : .125f;
    case AMPK_LEAKY:
        return out > 0 ? 1 : .1f;
    case AMPK_ELU:
        return out >= 0 ? 1 : out + 1;
    case AMPK_LOGGY: {
        float y = (out + 1) / 2;
        return 2 * (1 - y) * y;
    }
    case AMPK_STAIR:
        return floorf(out) == out ? 0 : 1;
    case AMPK_HARDTAN:
        return out > -1 && out < 1 ? 1 : 0;
    case AMPK_LHTAN:
        return out > 0 && out < 1 ? 1 : .001f;
    case AMPK_SELU:
        return out >= 0 ? 1.0507f : out + 1.0507f * 1.6732f;
    default:
        return 1;
    }
}

/* activation(x) */
AMPK_INLINE ampk_vec ampk_vec_activate(ampk_vec x, enum ampk_activation a)
{
    if (a == AMPK_LINEAR) return x;
    if (a == AMPK_LEAKY) return ampk_vec_if_positive(x, x, ampk_vec_mul(x, ampk_vec_set(.1f)));
    if (a == AMPK_RELU) return ampk_vec_if_positive(x, x, ampk_vec_mul(x, ampk_vec_set(0)));
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
    if (a == AMPK_LEAKY) return ampk_vec_if_positive(out, d, ampk_vec_mul(d, ampk_vec_set(.1f)));
    if (a == AMPK_RELU) return ampk_vec_if_positive(out, d, ampk_vec_mul(d, ampk_vec_set(0)));
    float lanes[AMPK_LANES];
    ampk_vec_store(lanes, 0, AMPK_FP32, AMPK_LANES, out);
    for (int i = 0; i < AMPK_LANES; i++)
        lanes[i] = ampk_activation_gradient(lanes[i], a);
    return ampk_vec_mul(d, ampk_vec_load(lanes, 0, AMPK_FP32, AMPK_LANES));
}

#endif
