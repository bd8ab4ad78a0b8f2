/* Darknet's activations and their gradients (activations.h there), for C and for CUDA. As in
 * Darknet, the gradient is a function of the activation's OUTPUT: backward need not keep the
 * input. Of mish and swish it is a function of the input.
 *
 * Arithmetic is FP32, but double inside exp and tanh, as in Darknet; all FP32 in mish and swish. We
 * changed one formula: tanh. Darknet's (exp(2x)-1)/(exp(2x)+1) is NaN from x = 355 on. */
#ifndef AMPK_ACTIVATION_H
#define AMPK_ACTIVATION_H

#include <math.h>

#include "kernels.h"

#ifdef __CUDACC__
#define AMPK_FORMULA       static __device__ __noinline__ /* large: exp and tanh */
#define AMPK_SHORT_FORMULA static __device__ __forceinline__
#else
#define AMPK_FORMULA       static inline
#define AMPK_SHORT_FORMULA static inline
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

/* ---- mish, swish ----
 *
 * Both are x times a share that goes from 0 to 1. Below -87 e^x is no normal number and stays what
 * it is there, where the share is below 2e-38; above `most` the share is 1. NaN stays NaN. */

AMPK_SHORT_FORMULA float ampk_not_below(float x)
{
    return x < -87 ? -87 : x;
}

AMPK_SHORT_FORMULA float ampk_between(float x, float most)
{
    return x > most ? most : ampk_not_below(x);
}

/* x * tanh(ln(1 + e^x)), from Misra 2019, "Mish: A Self Regularized Neural Activation Function".
 * With e = e^x and n = e*(e+2) the share is n / (n+2). From x = 20 on n+2 is n. */
AMPK_SHORT_FORMULA float ampk_mish(float x)
{
    float e = expf(ampk_between(x, 20)), n = e * (e + 2);
    return ampk_not_below(x) * (n / (n + 2));
}

/* The share, and x times its derivative, 4e(1+e) / (n+2)^2. */
AMPK_SHORT_FORMULA float ampk_mish_gradient(float x)
{
    x = ampk_between(x, 20);
    float e = expf(x), n = e * (e + 2), r = 1 / (n + 2);
    return n * r + 4 * x * (e * r) * ((1 + e) * r);
}

/* x / (1 + e^-x), from Ramachandran, Zoph, Le 2017, "Searching for Activation Functions". */
AMPK_SHORT_FORMULA float ampk_swish(float x)
{
    return ampk_not_below(x) / (1 + expf(-ampk_between(x, 87)));
}

AMPK_SHORT_FORMULA float ampk_swish_gradient(float x)
{
    x = ampk_between(x, 87);
    float e = expf(-x), r = 1 / (1 + e);
    return r * (1 + x * (e * r));
}

/* ---- any ---- */

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
    case AMPK_MISH:
        return ampk_mish(x);
    case AMPK_SWISH:
        return ampk_swish(x);
    default:
        return x;
    }
}

/* out: of mish and swish the input. */
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
    case AMPK_MISH:
        return ampk_mish_gradient(out);
    case AMPK_SWISH:
        return ampk_swish_gradient(out);
    default:
        return 1;
    }
}

#endif
