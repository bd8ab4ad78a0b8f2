/* Vectors of FP32 with loads and stores from FP32, FP16 and BF16 memory: AVX-512, AVX2 + F16C, or
 * portable C with vectors of one lane. The build compiles a file that includes this once for each
 * of them (per_isa in CMakeLists.txt). Such a file may contain only static functions and functions
 * named by AMPK_CPU(), or the copies would clash.
 *
 * Every conversion rounds to nearest even, even if the processor treats denormals as zero
 * (Darknet's -ffast-math asks for that). `left` is the number of elements from index i to the end
 * of the row: beyond it a load gives 0 and a store writes nothing. Types are compile-time
 * constants at every call, so that the switches below vanish: see AMPK_WITH_DTYPE. */
#ifndef AMPK_SIMD_H
#define AMPK_SIMD_H

#include "kernels/kernels.h"
#include <string.h>

#define AMPK_INLINE static inline __attribute__((always_inline))

/* Runs the statement with T a constant equal to `dtype`. */
#define AMPK_WITH_DTYPE(dtype, T, statement)                                                       \
    do {                                                                                           \
        if ((dtype) == AMPK_FP16) {                                                                \
            const enum ampk_dtype T = AMPK_FP16;                                                   \
            statement;                                                                             \
        } else if ((dtype) == AMPK_BF16) {                                                         \
            const enum ampk_dtype T = AMPK_BF16;                                                   \
            statement;                                                                             \
        } else {                                                                                   \
            const enum ampk_dtype T = AMPK_FP32;                                                   \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

/* ---- scalars ---- */

AMPK_INLINE uint32_t ampk_bits(float v)
{
    uint32_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}

AMPK_INLINE float ampk_from_bits(uint32_t b)
{
    float v;
    memcpy(&v, &b, sizeof v);
    return v;
}

AMPK_INLINE float ampk_fp16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00) /* inf, or NaN: it becomes quiet and keeps its payload */
        return ampk_from_bits(sign | AMPK_INF_BITS | (magnitude & 0x3ff) << 13 |
                              (magnitude > 0x7c00 ? 0x400000 : 0));
    if (magnitude >= 0x400) return ampk_from_bits(sign | ((magnitude << 13) + (112u << 23)));
    if (magnitude == 0) return ampk_from_bits(sign);
    int shift = __builtin_clz(magnitude) - 21; /* moves the leading one to bit 10 */
    return ampk_from_bits(sign | (uint32_t)(113 - shift) << 23 |
                          ((magnitude << shift) & 0x3ff) << 13);
}

AMPK_INLINE uint16_t ampk_float_to_fp16(float v)
{
    uint32_t b = ampk_bits(v), sign = b >> 16 & 0x8000, magnitude = b & 0x7fffffff;
    if (magnitude > AMPK_INF_BITS) return sign | 0x7e00 | (magnitude >> 13 & 0x3ff);
    if (magnitude >= AMPK_FP16_OVERFLOW_BITS) return sign | 0x7c00;
    if (magnitude >= 0x38800000) /* a normal FP16 */
        return sign | (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    if (magnitude <= 0x33000000) return sign; /* <= 2^-25: half of the smallest denormal */
    uint32_t shift = 126 - (magnitude >> 23), m = (magnitude & 0x7fffff) | 0x800000;
    uint32_t half = 1u << (shift - 1), quotient = m >> shift, rest = m & ((1u << shift) - 1);
    return sign | (quotient + (rest > half || (rest == half && (quotient & 1))));
}

AMPK_INLINE float ampk_bf16_to_float(uint16_t h)
{
    return ampk_from_bits((uint32_t)h << 16);
}

/* Rounds to nearest even by integer addition; a NaN stays NaN, because rounding could carry it to
 * inf. */
AMPK_INLINE uint16_t ampk_float_to_bf16(float v)
{
    uint32_t b = ampk_bits(v);
    if ((b & 0x7fffffff) > AMPK_INF_BITS) return b >> 16 | 0x40;
    return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

/* Adding 0xfff plus the last kept bit rounds to nearest even. A carry into the exponent gives the
 * next power of two, which is right. */
AMPK_INLINE float ampk_round_tf32(float v)
{
    uint32_t b = ampk_bits(v);
    if ((b & 0x7fffffff) > AMPK_INF_BITS) return v;
    return ampk_from_bits((b + 0xfff + (b >> 13 & 1)) & ~0x1fffu);
}

AMPK_INLINE float ampk_load(const void *base, size_t i, enum ampk_dtype t)
{
    if (t == AMPK_FP16) return ampk_fp16_to_float(((const uint16_t *)base)[i]);
    if (t == AMPK_BF16) return ampk_bf16_to_float(((const uint16_t *)base)[i]);
    return ((const float *)base)[i];
}

AMPK_INLINE void ampk_store(void *base, size_t i, enum ampk_dtype t, float v)
{
    if (t == AMPK_FP16)
        ((uint16_t *)base)[i] = ampk_float_to_fp16(v);
    else if (t == AMPK_BF16)
        ((uint16_t *)base)[i] = ampk_float_to_bf16(v);
    else
        ((float *)base)[i] = v;
}

/* ---- vectors ----
 *
 * ampk_vec has AMPK_LANES floats and the operators + - * /. Each of the three headers has
 *
 *     ampk_vec_set             all lanes the same
 *     ampk_vec_fma             a*b + c: one rounding, two in portable C
 *     ampk_vec_if_positive     x > 0 ? a : b, lane by lane; NaN is not > 0
 *     ampk_vec_if_greater      a > b ? x : y, likewise
 *     ampk_vec_if_equal        a == b ? x : y, likewise
 *     ampk_vec_sqrt
 *     ampk_vec_times_power     x * 2^n, n a whole number; x, 2^n and the product are normal numbers
 *     ampk_vec_round_tf32
 *     ampk_vec_load, _store    from and to memory of a type
 *     ampk_vec_round           what a load would give after a store
 *     ampk_vec_load_bytes, _store_bytes   a lane holds a whole number in [0, 255]
 *     ampk_vec_amax_zero, _raise, _get    the largest magnitude of all lanes, as bits
 *     ampk_vec_transpose       as many vectors as one has lanes
 */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#include "simd_avx2.h"
#else
#include "simd_base.h"
#endif

/* Stores v and raises *m by the stored lanes, before they are rounded. */
AMPK_INLINE void ampk_vec_store_amax(void *base, size_t i, enum ampk_dtype t, size_t left,
                                     ampk_vec v, ampk_vec_amax *m)
{
    ampk_vec_store(base, i, t, left, v);
    *m = ampk_vec_amax_raise(*m, v, left);
}

/* The sum of the lanes, in FP64. */
AMPK_INLINE double ampk_vec_sum(ampk_vec v)
{
    float lanes[AMPK_LANES];
    double sum = 0;
    ampk_vec_store(lanes, 0, AMPK_FP32, AMPK_LANES, v);
    for (int k = 0; k < AMPK_LANES; k++)
        sum += lanes[k];
    return sum;
}

/* Elements whose squares are added up in FP32 lanes, before the lanes go into a sum in FP64. So few
 * lose at most 64 roundings a lane. */
#define AMPK_SUM_RUN ((size_t)64 * AMPK_LANES)

/* to[columns][rows] = from[rows][columns], of types F and T; the steps are elements from row to
 * row. */
AMPK_INLINE void ampk_turn(const void *from, enum ampk_dtype F, size_t from_step, size_t rows,
                           size_t columns, void *to, enum ampk_dtype T, size_t to_step)
{
    for (size_t r = 0; r < rows; r += AMPK_LANES)
        for (size_t c = 0; c < columns; c += AMPK_LANES) {
            ampk_vec v[AMPK_LANES];
#pragma GCC unroll 16
            for (size_t i = 0; i < AMPK_LANES; i++)
                v[i] = r + i < rows ? ampk_vec_load(from, (r + i) * from_step + c, F, columns - c)
                                    : ampk_vec_set(0);
            ampk_vec_transpose(v);
#pragma GCC unroll 16
            for (size_t i = 0; i < AMPK_LANES; i++)
                if (c + i < columns) ampk_vec_store(to, (c + i) * to_step + r, T, rows - r, v[i]);
        }
}

#endif
