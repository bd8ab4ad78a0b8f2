/* What FP32 arithmetic may lose in an activation and in its gradient, for tolerances. */
#ifndef CONFORMANCE_ACTIVATION_ERROR_H
#define CONFORMANCE_ACTIVATION_ERROR_H

#include "kernels/reference/activation.h"
#include "conformance.h"

UNUSED static enum ampk_activation random_activation(void)
{
    if (random_bool()) return (enum ampk_activation)RANDOM_OF(AMPK_LEAKY, AMPK_LINEAR, AMPK_RELU);
    return (enum ampk_activation)random_int(0, AMPK_ACTIVATIONS - 1);
}

/* Formulas of one rounding or none; the others evaluate exp, or subtract. */
static bool is_simple(enum ampk_activation a)
{
    return a == AMPK_LINEAR || a == AMPK_RELU || a == AMPK_LEAKY || a == AMPK_RELIE ||
           a == AMPK_HARDTAN;
}

/* Of activation(v) where v itself has `terms` roundings of the magnitude. No activation is steeper
 * than 1.7581 (selu); those with exp are computed to 8 units in the last place of 1 + |result|. */
UNUSED static struct tolerance activated(enum ampk_activation a, double terms,
                                         const struct ampk_tensor *magnitude)
{
    double steepness = a == AMPK_SELU ? 1.7581 : a == AMPK_RAMP ? 1.1 : 1;
    double ulp = 0x1p-23;
    if (is_simple(a)) return (struct tolerance){terms, magnitude, ulp, 0};
    return (struct tolerance){steepness * terms, magnitude, 8 * ulp, 8 * ulp};
}

/* A bound of all that is added and subtracted to find the gradient. */
static double gradient_size(enum ampk_activation a, double out)
{
    return is_simple(a) ? fabs(ampk_ref_gradient(out, a)) : 2 * (1 + fabs(out)) * (1 + fabs(out));
}

/* |d| * gradient_size(out), as a dense FP32 tensor of d's shape. */
UNUSED static struct ampk_tensor gradient_magnitude(struct rig *r, enum ampk_activation a,
                                                    const struct ampk_tensor *out,
                                                    const struct ampk_tensor *d)
{
    struct ampk_tensor m = absolute(r, d);
    size_t image = (size_t)d->c * d->h * d->w;
    for (int n = 0; n < d->n; n++)
        for (size_t j = 0; j < image; j++) {
            double slope = gradient_size(a, ampk_ref_get_flat(out, n, j));
            ampk_ref_set_flat(&m, n, j, slope * ampk_ref_get_flat(&m, n, j), false, NULL);
        }
    return m;
}

/* Outputs of activations, kinks included. */
UNUSED static double random_output(void)
{
    return test_random() % 4 == 0 ? random_int(-2, 2) : random_value() / 4;
}

#endif
