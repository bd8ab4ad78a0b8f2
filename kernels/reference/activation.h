/* Darknet's activations and their gradients as functions of the output (activations.h there), in
 * double precision. tanh and stair are written so that large arguments do not overflow. */
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
    case AMPK_LINEAR:
    case AMPK_ACTIVATIONS:
        break;
    }
    return x;
}

/* The derivative at the place where the output is y. */
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
    case AMPK_LINEAR:
    case AMPK_ACTIVATIONS:
        break;
    }
    return 1;
}

#endif
