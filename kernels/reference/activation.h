/* Darknet's activations and their gradients as functions of the output (activations.h there), of
 * mish and swish as functions of the input, in double precision. All are written so that large
 * arguments do not overflow. */
#ifndef AMPK_REFERENCE_ACTIVATION_H
#define AMPK_REFERENCE_ACTIVATION_H

#include <math.h>

#include "kernels/kernels.h"

static inline double ampk_ref_stair(double x)
{
    double step = floor(x);
    return fmod(step, 2) == 0 ? floor(x / 2) : x - step + floor(x / 2);
}

static inline double ampk_ref_plse(double x)
{
    if (x < -4) return .01 * (x + 4);
    if (x > 4) return .01 * (x - 4) + 1;
    return .125 * x + .5;
}

static inline double ampk_ref_lhtan(double x)
{
    if (x < 0) return .001 * x;
    if (x > 1) return .001 * (x - 1) + 1;
    return x;
}

static inline double ampk_ref_hardtan(double x)
{
    return x < -1 ? -1 : x > 1 ? 1 : x;
}

/* Each is 0 long before. NaN stays NaN. */
static inline double ampk_ref_not_below(double x)
{
    return x < -700 ? -700 : x;
}

static inline double ampk_ref_logistic(double x)
{
    return 1 / (1 + exp(-ampk_ref_not_below(x)));
}

static inline double ampk_ref_mish(double x)
{
    return ampk_ref_not_below(x) * tanh(log1p(exp(ampk_ref_not_below(x))));
}

static inline double ampk_ref_swish(double x)
{
    return ampk_ref_not_below(x) * ampk_ref_logistic(x);
}

/* From the definition, x * tanh(s) with s = ln(1 + e^x): s' is the logistic, and tanh' 1 - tanh^2,
 * here as 1 / cosh^2. Both shares are constant beyond 700. */
static inline double ampk_ref_mish_gradient(double x)
{
    double at = x > 300 ? 300 : ampk_ref_not_below(x), s = log1p(exp(at));
    return tanh(s) + at * ampk_ref_logistic(at) / (cosh(s) * cosh(s));
}

static inline double ampk_ref_swish_gradient(double x)
{
    double at = x > 700 ? 700 : ampk_ref_not_below(x);
    return ampk_ref_logistic(at) * (1 + at * ampk_ref_logistic(-at));
}

static inline double ampk_ref_activate(double x, enum ampk_activation a)
{
    switch (a) {
    case AMPK_LOGISTIC:
        return 1 / (1 + exp(-x));
    case AMPK_RELU:
        return x * (x > 0);
    case AMPK_RELIE:
        return x > 0 ? x : .01 * x;
    case AMPK_RAMP:
        return x * (x > 0) + .1 * x;
    case AMPK_TANH:
        return tanh(x);
    case AMPK_PLSE:
        return ampk_ref_plse(x);
    case AMPK_LEAKY:
        return x > 0 ? x : .1 * x;
    case AMPK_ELU:
        return x >= 0 ? x : exp(x) - 1;
    case AMPK_LOGGY:
        return 2 / (1 + exp(-x)) - 1;
    case AMPK_STAIR:
        return ampk_ref_stair(x);
    case AMPK_HARDTAN:
        return ampk_ref_hardtan(x);
    case AMPK_LHTAN:
        return ampk_ref_lhtan(x);
    case AMPK_SELU:
        return x >= 0 ? 1.0507 * x : 1.0507 * 1.6732 * (exp(x) - 1);
    case AMPK_MISH:
        return ampk_ref_mish(x);
    case AMPK_SWISH:
        return ampk_ref_swish(x);
    case AMPK_LINEAR:
    case AMPK_ACTIVATIONS:
        break;
    }
    return x;
}

/* The derivative at the place where the output is y; of mish and swish where the input is y. */
static inline double ampk_ref_gradient(double y, enum ampk_activation a)
{
    switch (a) {
    case AMPK_LOGISTIC:
        return (1 - y) * y;
    case AMPK_RELU:
        return y > 0;
    case AMPK_RELIE:
        return y > 0 ? 1 : .01;
    case AMPK_RAMP:
        return (y > 0) + .1;
    case AMPK_TANH:
        return 1 - y * y;
    case AMPK_PLSE:
        return y < 0 || y > 1 ? .01 : .125;
    case AMPK_LEAKY:
        return y > 0 ? 1 : .1;
    case AMPK_ELU:
        return y >= 0 ? 1 : y + 1;
    case AMPK_LOGGY:
        return 2 * (1 - (y + 1) / 2) * (y + 1) / 2;
    case AMPK_STAIR:
        return floor(y) != y;
    case AMPK_HARDTAN:
        return y > -1 && y < 1;
    case AMPK_LHTAN:
        return y > 0 && y < 1 ? 1 : .001;
    case AMPK_SELU:
        return y >= 0 ? 1.0507 : y + 1.0507 * 1.6732;
    case AMPK_MISH:
        return ampk_ref_mish_gradient(y);
    case AMPK_SWISH:
        return ampk_ref_swish_gradient(y);
    case AMPK_LINEAR:
    case AMPK_ACTIVATIONS:
        break;
    }
    return 1;
}

#endif
