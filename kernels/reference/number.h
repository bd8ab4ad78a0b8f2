/* Number formats by their definition: rounding to p bits to nearest even, and the 16-bit
 * encodings. Nothing here uses the conversions of the hardware, so that tests can judge those by
 * it. */
#ifndef AMPK_REFERENCE_NUMBER_H
#define AMPK_REFERENCE_NUMBER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

/* A binary format: bits of precision (with the hidden bit), exponent of the smallest subnormal,
 * largest finite value. */
struct ampk_ref_format {
    int precision, least_exponent;
    double largest;
};

/* The format to which a convolution rounds its operands. */
static inline struct ampk_ref_format ampk_ref_compute_format(enum ampk_compute compute)
{
    switch (compute) {
    case AMPK_COMPUTE_TF32:
        return (struct ampk_ref_format){11, -136, 0x1.ffcp127};
    case AMPK_COMPUTE_FP16:
        return (struct ampk_ref_format){11, -24, 65504};
    case AMPK_COMPUTE_BF16:
        return (struct ampk_ref_format){8, -133, 0x1.fep127};
    case AMPK_COMPUTE_FP32:
        break;
    }
    return (struct ampk_ref_format){24, -149, 0x1.fffffep127};
}

/* The nearest value of the format, ties to even; inf beyond the largest finite value. ldexp is
 * exact here, so nearbyint does the only rounding; it rounds to even in the default mode. */
static inline double ampk_ref_round(double v, struct ampk_ref_format f)
{
    if (!isfinite(v) || v == 0) return v;
    int exponent = ilogb(v) - f.precision + 1;
    if (exponent < f.least_exponent) exponent = f.least_exponent;
    double rounded = ldexp(nearbyint(ldexp(v, -exponent)), exponent);
    return fabs(rounded) > f.largest ? copysign(INFINITY, v) : rounded;
}

static inline uint32_t ampk_ref_float_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* Sign, 5 bits of exponent, 10 of fraction. Exponent 0 means subnormal, 31 inf or NaN. */
static inline double ampk_ref_from_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double v;
    if (exponent == 31)
        v = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        v = ldexp(fraction, -24);
    else
        v = ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -v : v;
}

/* Rounds first; the encoding is then exact. */
static inline uint16_t ampk_ref_to_half(double v)
{
    v = ampk_ref_round(v, ampk_ref_compute_format(AMPK_COMPUTE_FP16));
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double size = fabs(v);
    if (isnan(v)) return sign | 0x7e00;
    if (isinf(v)) return sign | 0x7c00;
    if (size < 0x1p-14) return sign | (uint16_t)ldexp(size, 24);
    int exponent = ilogb(size);
    return sign | (uint16_t)((exponent + 14) * 1024 + (int)ldexp(size, 10 - exponent));
}

/* A BF16 is the upper half of an FP32. */
static inline double ampk_ref_from_bfloat(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float v;
    memcpy(&v, &word, sizeof v);
    return v;
}

/* NaN first: the shift below could leave only zeros of its payload. */
static inline uint16_t ampk_ref_to_bfloat(double v)
{
    if (isnan(v)) return signbit(v) ? 0xffc0 : 0x7fc0;
    v = ampk_ref_round(v, ampk_ref_compute_format(AMPK_COMPUTE_BF16));
    return (uint16_t)(ampk_ref_float_bits((float)v) >> 16);
}

#endif
