/* Darknet's activations and their gradients (activations.h there), for C and for CUDA. As in
 * Darknet, the gradient is a function of the activation's OUTPUT: backward need not keep the
 * input.
 *
 * Arithmetic is FP32, but double inside exp and tanh, as in Darknet. We changed one formula: tanh.
 * Darknet's (exp(2x)-1)/(exp(2x)+1) is NaN from x = 355 on. */
#ifndef AMPK_ACTIVATION_H
#define AMPK_ACTIVATION_H

#include <math.h>

#include "kernels.h"

#ifdef __CUDACC__
#define AMPK_FORMULA static __device__ __noinline__ /* large: exp and tanh */
#else
#define AMPK_FORMULA static inline
#endif

/* The slope of an activation of two slopes where x is not above 0. Above 0 the slope is 1. */
static inline float ampk_slope_below(enum ampk_activation two_slopes)
{
    switch (two_slopes) {
    case AMPK_LEAKY:
        return .1f;
    case AMPK_RELU:
        return 0;
    case AMPK_RELIE:
        return .01f;
    default:
        return 1;
    }
}

/* LINEAR is the default case. */
AMPK_FORMULA float ampk_activate(float x, enum ampk_activation a)
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
        return (float)(fmod(n, 2.) == 0 ? floor(x / 2.) : (x - n) + floor(x / 2.));
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

AMPK_FORMULA float ampk_activation_gradient(float out, enum ampk_activation a)
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

#endif
