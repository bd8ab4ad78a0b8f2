/* The arithmetic of exponentials, activations and batch-norm on vectors. All loops use these
 * functions, so that each value has the same bits wherever it is computed.
 *
 * AMPK_WITH_ACTIVATION instantiates a loop over elements once for each activation that is a few
 * vector instructions, and once for all others: logistic, mish and swish, which are vector code
 * too, and those that go through scalar code. */
#ifndef AMPK_CPU_ARITHMETIC_H
#define AMPK_CPU_ARITHMETIC_H

#include "cpu.h"
#include "simd.h"
#include "kernels/activation.h"

#include <math.h>

/* ---- exponentials ---- */

/* The larger one; NaN stays NaN. */
AMPK_INLINE ampk_vec ampk_vec_not_below(ampk_vec x, float least)
{
    ampk_vec low = ampk_vec_set(least);
    return ampk_vec_if_greater(low, x, low, x);
}

AMPK_INLINE ampk_vec ampk_vec_between(ampk_vec x, float least, float most)
{
    ampk_vec high = ampk_vec_set(most);
    return ampk_vec_if_greater(x, high, high, ampk_vec_not_below(x, least));
}

/* exp(x) with a relative error below 2e-7, for x in [-87, 88]: x = n*ln(2) + r, and a polynomial of
 * r (the first terms of its series, for |r| <= ln(2)/2). */
AMPK_INLINE ampk_vec ampk_vec_exp_between(ampk_vec x)
{
    /* Adding 1.5 * 2^23 rounds to a whole number. */
    const ampk_vec whole = ampk_vec_set(12582912.f);
    ampk_vec n = ampk_vec_fma(x, ampk_vec_set(1.44269504f), whole) - whole;
    ampk_vec r = ampk_vec_fma(n, ampk_vec_set(-0.693359375f), x);
    r = ampk_vec_fma(n, ampk_vec_set(2.12194440e-4f), r);
    static const float series[] = {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 1.f / 2, 1, 1};
    ampk_vec sum = ampk_vec_set(1.f / 5040);
    for (size_t k = 0; k < sizeof series / sizeof *series; k++)
        sum = ampk_vec_fma(sum, r, ampk_vec_set(series[k]));
    return ampk_vec_times_power(sum, n);
}

/* The same of every x; beyond the ends, where e^x is no normal number, as there. */
AMPK_INLINE ampk_vec ampk_vec_exp(ampk_vec x)
{
    return ampk_vec_exp_between(ampk_vec_between(x, -87, 88));
}

/* ---- activations ---- */

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

/* Logistic, mish and swish and their gradients at x: kernels/activation.h has the formulas. They
 * are not inlined, or every loop would have them all; a call is nothing beside an exponential. */
#define AMPK_CALLED static __attribute__((noinline, unused))

AMPK_CALLED ampk_vec ampk_vec_logistic(ampk_vec x)
{
    const ampk_vec one = ampk_vec_set(1), zero = ampk_vec_set(0);
    return one / (one + ampk_vec_exp(zero - x));
}

AMPK_CALLED ampk_vec ampk_vec_mish(ampk_vec x)
{
    const ampk_vec two = ampk_vec_set(2);
    ampk_vec e = ampk_vec_exp_between(ampk_vec_between(x, -87, 20)), n = e * (e + two);
    return ampk_vec_not_below(x, -87) * (n / (n + two));
}

AMPK_CALLED ampk_vec ampk_vec_mish_gradient(ampk_vec x)
{
    const ampk_vec one = ampk_vec_set(1), two = ampk_vec_set(2), four = ampk_vec_set(4);
    x = ampk_vec_between(x, -87, 20);
    ampk_vec e = ampk_vec_exp_between(x), n = e * (e + two), r = one / (n + two);
    return ampk_vec_fma(four * x, (e * r) * ((one + e) * r), n * r);
}

AMPK_CALLED ampk_vec ampk_vec_swish(ampk_vec x)
{
    const ampk_vec one = ampk_vec_set(1), zero = ampk_vec_set(0);
    ampk_vec e = ampk_vec_exp_between(zero - ampk_vec_between(x, -87, 87));
    return ampk_vec_not_below(x, -87) / (one + e);
}

AMPK_CALLED ampk_vec ampk_vec_swish_gradient(ampk_vec x)
{
    const ampk_vec one = ampk_vec_set(1), zero = ampk_vec_set(0);
    x = ampk_vec_between(x, -87, 87);
    ampk_vec e = ampk_vec_exp_between(zero - x), r = one / (one + e);
    return r * ampk_vec_fma(x, e * r, one);
}

/* activation(x) */
AMPK_INLINE ampk_vec ampk_vec_activate(ampk_vec x, enum ampk_activation a)
{
    if (a == AMPK_LINEAR) return x;
    if (a == AMPK_LEAKY) return ampk_vec_if_positive(x, x, x * ampk_vec_set(.1f));
    /* x * 0, not 0: NaN stays NaN. */
    if (a == AMPK_RELU) return ampk_vec_if_positive(x, x, x * ampk_vec_set(0));
    if (a == AMPK_LOGISTIC) return ampk_vec_logistic(x);
    if (a == AMPK_MISH) return ampk_vec_mish(x);
    if (a == AMPK_SWISH) return ampk_vec_swish(x);
    float lanes[AMPK_LANES];
    ampk_vec_store(lanes, 0, AMPK_FP32, AMPK_LANES, x);
    for (int i = 0; i < AMPK_LANES; i++)
        lanes[i] = ampk_activate(lanes[i], a);
    return ampk_vec_load(lanes, 0, AMPK_FP32, AMPK_LANES);
}

/* d * activation'(out); out: of mish and swish the input. */
AMPK_INLINE ampk_vec ampk_vec_activation_backward(ampk_vec d, ampk_vec out, enum ampk_activation a)
{
    if (a == AMPK_LINEAR) return d;
    if (a == AMPK_LEAKY) return ampk_vec_if_positive(out, d, d * ampk_vec_set(.1f));
    if (a == AMPK_RELU) return ampk_vec_if_positive(out, d, d * ampk_vec_set(0));
    if (a == AMPK_LOGISTIC) return d * ((ampk_vec_set(1) - out) * out);
    if (a == AMPK_MISH) return d * ampk_vec_mish_gradient(out);
    if (a == AMPK_SWISH) return d * ampk_vec_swish_gradient(out);
    float lanes[AMPK_LANES];
    ampk_vec_store(lanes, 0, AMPK_FP32, AMPK_LANES, out);
    for (int i = 0; i < AMPK_LANES; i++)
        lanes[i] = ampk_activation_gradient(lanes[i], a);
    return d * ampk_vec_load(lanes, 0, AMPK_FP32, AMPK_LANES);
}

/* ---- batch-norm ----
 *
 * The parameters of a layer are six arrays of c floats: mean, factor and bias for the normalizer;
 * the factors of g and of y and the constant for the gradient. */

enum { AMPK_BN_PARAMETERS = 6 };

/* The input of the activation is (y - mean) * factor + bias. */
struct ampk_normalizer {
    ampk_vec mean, factor, bias;
};

AMPK_INLINE struct ampk_normalizer ampk_normalizer_at(const float *const *parameters,
                                                      size_t channel, size_t left)
{
    return (struct ampk_normalizer){ampk_vec_load(parameters[0], channel, AMPK_FP32, left),
                                    ampk_vec_load(parameters[1], channel, AMPK_FP32, left),
                                    ampk_vec_load(parameters[2], channel, AMPK_FP32, left)};
}

AMPK_INLINE ampk_vec ampk_normalized(const struct ampk_normalizer *n, ampk_vec y)
{
    return ampk_vec_fma(y - n->mean, n->factor, n->bias);
}

/* The gradient at y is g*of_g + ((y - mean)*of_y + constant), where g is the gradient before the
 * activation. */
struct ampk_gradient_factors {
    ampk_vec of_g, of_y, constant;
};

AMPK_INLINE struct ampk_gradient_factors ampk_gradient_factors_at(const float *const *parameters,
                                                                  size_t channel, size_t left)
{
    return (struct ampk_gradient_factors){ampk_vec_load(parameters[3], channel, AMPK_FP32, left),
                                          ampk_vec_load(parameters[4], channel, AMPK_FP32, left),
                                          ampk_vec_load(parameters[5], channel, AMPK_FP32, left)};
}

AMPK_INLINE ampk_vec ampk_gradient_at(const struct ampk_gradient_factors *f, ampk_vec mean,
                                      ampk_vec y, ampk_vec g)
{
    ampk_vec v = ampk_vec_fma(y - mean, f->of_y, f->constant);
    return ampk_vec_fma(g, f->of_g, v);
}

/* ---- batch-norm of a whole layer ---- */

/* x_hat = (y - mean) * factor, by the rule of the build that we replace (kernels.h). */
static inline double ampk_forward_factor(const struct ampk_batchnorm *bn, size_t i)
{
    double variance = bn->variance[i];
    return 1 / (bn->rule == AMPK_BN_DARKNET_CPU ? sqrt(variance) + 1e-6 : sqrt(variance + 1e-5));
}

/* Sets the normalizer's parameters; memory: c floats. */
static inline void ampk_set_normalizer(const float *parameters[AMPK_BN_PARAMETERS],
                                       const struct ampk_batchnorm *bn, size_t c, float *memory)
{
    for (size_t i = 0; i < c; i++)
        memory[i] = (float)(bn->scale[i] * ampk_forward_factor(bn, i));
    parameters[0] = bn->mean;
    parameters[1] = memory;
    parameters[2] = bn->bias;
}

/* Raises *amax to the largest magnitude of c values. */
static inline void ampk_watch_channels(const float *v, size_t c, uint32_t *amax)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < c; i++) {
        uint32_t magnitude = ampk_bits(v[i]) & 0x7fffffff;
        if (magnitude > largest) largest = magnitude;
    }
    ampk_amax_raise(amax, largest);
}

/* Computes dscale, dbias and the gradient's parameters. sums: c sums of g, then c sums of g * (y -
 * mean), over `count` values each; of several processes they become the means. memory: 3*c floats.
 * The arithmetic is double; each result is rounded once. */
static inline void ampk_set_gradient(const float *parameters[AMPK_BN_PARAMETERS],
                                     const struct ampk_batchnorm *bn, size_t c, double count,
                                     float *sums, float *memory, float *dscale, float *dbias,
                                     uint32_t *db_amax)
{
    if (bn->peers) bn->peers->mean(bn->peers->user, sums, 2 * c);
    float *of_g = memory, *of_y = memory + c, *constant = memory + 2 * c;
    for (size_t i = 0; i < c; i++) {
        double inverse = 1 / sqrt((double)bn->variance[i] + 1e-5);
        double a = bn->scale[i] * inverse, sum = sums[i], product = sums[c + i];
        dbias[i] = (float)sum;
        dscale[i] = (float)(product * ampk_forward_factor(bn, i));
        of_g[i] = (float)a;
        of_y[i] = (float)(-a * inverse * inverse * product / count);
        constant[i] = (float)(-a * sum / count);
    }
    parameters[3] = of_g;
    parameters[4] = of_y;
    parameters[5] = constant;
    ampk_watch_channels(dscale, c, db_amax);
    ampk_watch_channels(dbias, c, db_amax);
}

#endif
