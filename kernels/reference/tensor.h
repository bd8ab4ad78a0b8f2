/* Number formats, and access to a tensor one element at a time, by logical index, whatever its
 * dtype and layout; and whole tensors as arrays of double in NCHW order, for operations that read
 * an element more than once.
 *
 * Formats are computed by their definition: rounding to p bits to nearest even, and the 16-bit
 * encodings. Nothing here uses the conversions of the hardware, so that tests can judge those by
 * it. Access is slow on purpose: every access computes its address from the definition, so that
 * layouts and slices cannot go wrong in a second way. */
#ifndef AMPK_REFERENCE_TENSOR_H
#define AMPK_REFERENCE_TENSOR_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

/* ---- number formats ---- */

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

/* ---- elements ---- */

/* Elements of all images. */
static inline size_t ampk_ref_count(const struct ampk_tensor *t)
{
    return (size_t)t->n * t->c * t->h * t->w;
}

/* Index of (c, h, w) in an image in NCHW order. */
static inline size_t ampk_ref_flat(const struct ampk_tensor *t, int c, int h, int w)
{
    return ((size_t)c * t->h + h) * t->w + w;
}

/* Index of an element in memory, counted in elements from t->data. */
static inline size_t ampk_ref_offset(const struct ampk_tensor *t, int n, int c, int h, int w)
{
    size_t inside = t->layout == AMPK_NCHW
                        ? ampk_ref_flat(t, c, h, w)
                        : ((size_t)h * t->w + w) * (size_t)ampk_pitch(t) + (size_t)c;
    return (size_t)n * t->image_stride + inside;
}

/* Every value of the three dtypes is exact in double. */
static inline double ampk_ref_get(const struct ampk_tensor *t, int n, int c, int h, int w)
{
    size_t i = ampk_ref_offset(t, n, c, h, w);
    if (t->dtype == AMPK_FP16) return ampk_ref_from_half(((const uint16_t *)t->data)[i]);
    if (t->dtype == AMPK_BF16) return ampk_ref_from_bfloat(((const uint16_t *)t->data)[i]);
    return ((const float *)t->data)[i];
}

/* Raises *amax (may be NULL) to |v|, as bits. */
static inline void ampk_ref_raise(uint32_t *amax, float v)
{
    uint32_t bits = ampk_ref_float_bits(v) & 0x7fffffff;
    if (amax && bits > *amax) *amax = bits;
}

/* Stores v, or adds it to the old value. The result becomes FP32 first: amax sees that, and that
 * is rounded to the dtype. */
static inline void ampk_ref_set(const struct ampk_tensor *t, int n, int c, int h, int w, double v,
                                bool accumulate, uint32_t *amax)
{
    size_t i = ampk_ref_offset(t, n, c, h, w);
    float result = (float)(accumulate ? ampk_ref_get(t, n, c, h, w) + v : v);
    ampk_ref_raise(amax, result);
    if (t->dtype == AMPK_FP16)
        ((uint16_t *)t->data)[i] = ampk_ref_to_half(result);
    else if (t->dtype == AMPK_BF16)
        ((uint16_t *)t->data)[i] = ampk_ref_to_bfloat(result);
    else
        ((float *)t->data)[i] = result;
}

/* The same by index j of an image in NCHW order. */
static inline double ampk_ref_get_flat(const struct ampk_tensor *t, int n, size_t j)
{
    size_t area = (size_t)t->h * t->w;
    return ampk_ref_get(t, n, (int)(j / area), (int)(j % area) / t->w, (int)(j % area) % t->w);
}

static inline void ampk_ref_set_flat(const struct ampk_tensor *t, int n, size_t j, double v,
                                     bool accumulate, uint32_t *amax)
{
    size_t area = (size_t)t->h * t->w;
    ampk_ref_set(t, n, (int)(j / area), (int)(j % area) / t->w, (int)(j % area) % t->w, v,
                 accumulate, amax);
}

/* ---- whole tensors ---- */

/* Returns `count` zeros. Without memory it ends the program with a message; a real backend would
 * have failed at creation. */
static inline double *ampk_ref_zeros(size_t count)
{
    double *a = calloc(count ? count : 1, sizeof *a);
    if (!a) {
        fprintf(stderr, "reference backend: no memory for %zu numbers\n", count);
        abort();
    }
    return a;
}

/* All elements as dense NCHW; the caller frees. */
static inline double *ampk_ref_load(const struct ampk_tensor *t)
{
    size_t image = ampk_ref_count(t) / t->n;
    double *a = ampk_ref_zeros(ampk_ref_count(t));
    for (int n = 0; n < t->n; n++)
        for (size_t j = 0; j < image; j++)
            a[n * image + j] = ampk_ref_get_flat(t, n, j);
    return a;
}

/* Stores a dense NCHW array. */
static inline void ampk_ref_store(const struct ampk_tensor *t, const double *a, bool accumulate,
                                  uint32_t *amax)
{
    size_t image = ampk_ref_count(t) / t->n;
    for (int n = 0; n < t->n; n++)
        for (size_t j = 0; j < image; j++)
            ampk_ref_set_flat(t, n, j, a[n * image + j], accumulate, amax);
}

#endif
