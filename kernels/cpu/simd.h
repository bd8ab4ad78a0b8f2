/* Vectors of FP32 with loads and stores from FP32, FP16 and BF16 memory: AVX-512, AVX2 + F16C, or
 * portable C with vectors of one lane. A file that includes this is compiled once for each of
 * them (AMPK_CPU_FILES_PER_ISA in CMakeLists.txt) and must contain static functions and functions
 * named by AMPK_CPU() only.
 *
 * Every conversion rounds to nearest even whatever the mode of the processor says about denormals
 * (Darknet's -ffast-math turns them off). `left` is the number of elements from index i to the end
 * of the row: beyond it a load gives 0 and a store writes nothing. Types are compile-time constants
 * at every call, so that the switches below vanish: see AMPK_WITH_DTYPE.
 */
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
    if (magnitude >= 0x7c00) /* inf; a NaN becomes quiet and keeps its payload */
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

AMPK_INLINE uint16_t ampk_float_to_bf16(float v)
{
    uint32_t b = ampk_bits(v);
    if ((b & 0x7fffffff) > AMPK_INF_BITS) return b >> 16 | 0x40;
    return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

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

/* ---- vectors: arithmetic ---- */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
enum { AMPK_LANES = 16 };
typedef __m512 ampk_vec;
typedef __m512i ampk_vec_amax;

AMPK_INLINE ampk_vec ampk_vec_set(float v)
{
    return _mm512_set1_ps(v);
}
AMPK_INLINE ampk_vec ampk_vec_add(ampk_vec a, ampk_vec b)
{
    return _mm512_add_ps(a, b);
}
AMPK_INLINE ampk_vec ampk_vec_sub(ampk_vec a, ampk_vec b)
{
    return _mm512_sub_ps(a, b);
}
AMPK_INLINE ampk_vec ampk_vec_mul(ampk_vec a, ampk_vec b)
{
    return _mm512_mul_ps(a, b);
}
/* a*b + c, one rounding here, two in portable C. */
AMPK_INLINE ampk_vec ampk_vec_fma(ampk_vec a, ampk_vec b, ampk_vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* x > 0 ? a : b, lane by lane; NaN is not > 0. */
AMPK_INLINE ampk_vec ampk_vec_if_positive(ampk_vec x, ampk_vec a, ampk_vec b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), b, a);
}
/* a > b ? x : y and a == b ? x : y, lane by lane; NaN compares false. */
AMPK_INLINE ampk_vec ampk_vec_if_greater(ampk_vec a, ampk_vec b, ampk_vec x, ampk_vec y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
AMPK_INLINE ampk_vec ampk_vec_if_equal(ampk_vec a, ampk_vec b, ampk_vec x, ampk_vec y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), y, x);
}
AMPK_INLINE ampk_vec ampk_vec_div(ampk_vec a, ampk_vec b)
{
    return _mm512_div_ps(a, b);
}
AMPK_INLINE ampk_vec ampk_vec_sqrt(ampk_vec v)
{
    return _mm512_sqrt_ps(v);
}
AMPK_INLINE ampk_vec ampk_vec_round_tf32(ampk_vec v)
{
    __m512i b = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 13), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0xfff)));
    r = _mm512_and_si512(r, _mm512_set1_epi32(~0x1fff));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(nan, r, b));
}

AMPK_INLINE __mmask16 ampk_tail_mask(size_t left)
{
    return (__mmask16)((1u << left) - 1);
}

AMPK_INLINE ampk_vec ampk_vec_load(const void *base, size_t i, enum ampk_dtype t, size_t left)
{
    if (t == AMPK_FP32) {
        const float *p = (const float *)base + i;
        if (left >= 16) return _mm512_loadu_ps(p);
        return _mm512_maskz_loadu_ps(ampk_tail_mask(left), p);
    }
    const uint16_t *p = (const uint16_t *)base + i;
    __m256i h = left >= 16 ? _mm256_loadu_si256((const __m256i *)p)
                           : _mm256_maskz_loadu_epi16(ampk_tail_mask(left), p);
    if (t == AMPK_FP16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

AMPK_INLINE __m256i ampk_vec_to_bf16(ampk_vec v)
{
    __m512i b = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, b, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}

/* What a load would give after a store: v rounded to storage type t. */
AMPK_INLINE ampk_vec ampk_vec_round(ampk_vec v, enum ampk_dtype t)
{
    if (t == AMPK_FP16) return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    if (t == AMPK_BF16)
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(ampk_vec_to_bf16(v)), 16));
    return v;
}

AMPK_INLINE void ampk_vec_store(void *base, size_t i, enum ampk_dtype t, size_t left, ampk_vec v)
{
    if (t == AMPK_FP32) {
        float *p = (float *)base + i;
        if (left >= 16)
            _mm512_storeu_ps(p, v);
        else
            _mm512_mask_storeu_ps(p, ampk_tail_mask(left), v);
        return;
    }
    uint16_t *p = (uint16_t *)base + i;
    __m256i h =
        t == AMPK_FP16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : ampk_vec_to_bf16(v);
    if (left >= 16)
        _mm256_storeu_si256((__m256i *)p, h);
    else
        _mm256_mask_storeu_epi16(p, ampk_tail_mask(left), h);
}

/* Lanes to and from bytes; a lane holds a whole number in [0, 255]. */
AMPK_INLINE ampk_vec ampk_vec_load_bytes(const uint8_t *p, size_t left)
{
    __m128i b = left >= 16 ? _mm_loadu_si128((const __m128i *)p)
                           : _mm_maskz_loadu_epi8(ampk_tail_mask(left), p);
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b));
}
AMPK_INLINE void ampk_vec_store_bytes(uint8_t *p, size_t left, ampk_vec v)
{
    __m128i b = _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v));
    if (left >= 16)
        _mm_storeu_si128((__m128i *)p, b);
    else
        _mm_mask_storeu_epi8(p, ampk_tail_mask(left), b);
}

AMPK_INLINE ampk_vec_amax ampk_vec_amax_zero(void)
{
    return _mm512_setzero_si512();
}
AMPK_INLINE ampk_vec_amax ampk_vec_amax_raise(ampk_vec_amax m, ampk_vec v, size_t left)
{
    __m512i b = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
    if (left >= 16) return _mm512_max_epu32(m, b);
    return _mm512_mask_max_epu32(m, ampk_tail_mask(left), m, b);
}
AMPK_INLINE uint32_t ampk_vec_amax_get(ampk_vec_amax m)
{
    return _mm512_reduce_max_epu32(m);
}

#elif defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#include <immintrin.h>
enum { AMPK_LANES = 8 };
typedef __m256 ampk_vec;
typedef __m256i ampk_vec_amax;

AMPK_INLINE ampk_vec ampk_vec_set(float v)
{
    return _mm256_set1_ps(v);
}
AMPK_INLINE ampk_vec ampk_vec_add(ampk_vec a, ampk_vec b)
{
    return _mm256_add_ps(a, b);
}
AMPK_INLINE ampk_vec ampk_vec_sub(ampk_vec a, ampk_vec b)
{
    return _mm256_sub_ps(a, b);
}
AMPK_INLINE ampk_vec ampk_vec_mul(ampk_vec a, ampk_vec b)
{
    return _mm256_mul_ps(a, b);
}
AMPK_INLINE ampk_vec ampk_vec_fma(ampk_vec a, ampk_vec b, ampk_vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
AMPK_INLINE ampk_vec ampk_vec_if_positive(ampk_vec x, ampk_vec a, ampk_vec b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ));
}
AMPK_INLINE ampk_vec ampk_vec_if_greater(ampk_vec a, ampk_vec b, ampk_vec x, ampk_vec y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
AMPK_INLINE ampk_vec ampk_vec_if_equal(ampk_vec a, ampk_vec b, ampk_vec x, ampk_vec y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}
AMPK_INLINE ampk_vec ampk_vec_div(ampk_vec a, ampk_vec b)
{
    return _mm256_div_ps(a, b);
}
AMPK_INLINE ampk_vec ampk_vec_sqrt(ampk_vec v)
{
    return _mm256_sqrt_ps(v);
}
AMPK_INLINE ampk_vec ampk_vec_round_tf32(ampk_vec v)
{
    __m256i b = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 13), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0xfff)));
    r = _mm256_and_si256(r, _mm256_set1_epi32(~0x1fff));
    return _mm256_blendv_ps(_mm256_castsi256_ps(r), v, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

/* All ones in the first `left` lanes. */
AMPK_INLINE __m256i ampk_tail_mask(size_t left)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(left < 8 ? (int)left : 8), lane);
}

AMPK_INLINE ampk_vec ampk_vec_load(const void *base, size_t i, enum ampk_dtype t, size_t left)
{
    if (t == AMPK_FP32) {
        const float *p = (const float *)base + i;
        return left >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, ampk_tail_mask(left));
    }
    const uint16_t *p = (const uint16_t *)base + i;
    uint16_t tail[8] = {0};
    if (left < 8) p = memcpy(tail, p, left * sizeof *p);
    __m128i h = _mm_loadu_si128((const __m128i *)p);
    if (t == AMPK_FP16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

AMPK_INLINE __m128i ampk_vec_to_bf16(ampk_vec v)
{
    __m256i b = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(b, _mm256_set1_epi32(0x400000)), nan);
    r = _mm256_srli_epi32(r, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

AMPK_INLINE ampk_vec ampk_vec_round(ampk_vec v, enum ampk_dtype t)
{
    if (t == AMPK_FP16) return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    if (t == AMPK_BF16)
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(ampk_vec_to_bf16(v)), 16));
    return v;
}

AMPK_INLINE void ampk_vec_store(void *base, size_t i, enum ampk_dtype t, size_t left, ampk_vec v)
{
    if (t == AMPK_FP32) {
        float *p = (float *)base + i;
        if (left >= 8)
            _mm256_storeu_ps(p, v);
        else
            _mm256_maskstore_ps(p, ampk_tail_mask(left), v);
        return;
    }
    uint16_t *p = (uint16_t *)base + i, tail[8];
    __m128i h =
        t == AMPK_FP16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : ampk_vec_to_bf16(v);
    _mm_storeu_si128((__m128i *)(left >= 8 ? p : tail), h);
    if (left < 8) memcpy(p, tail, left * sizeof *p);
}

AMPK_INLINE ampk_vec ampk_vec_load_bytes(const uint8_t *p, size_t left)
{
    uint8_t tail[8] = {0};
    if (left < 8) p = memcpy(tail, p, left);
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
AMPK_INLINE void ampk_vec_store_bytes(uint8_t *p, size_t left, ampk_vec v)
{
    __m256i words = _mm256_cvttps_epi32(v);
    __m128i b = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    uint8_t tail[8];
    _mm_storel_epi64((__m128i *)(left >= 8 ? p : tail), _mm_packus_epi16(b, b));
    if (left < 8) memcpy(p, tail, left);
}

AMPK_INLINE ampk_vec_amax ampk_vec_amax_zero(void)
{
    return _mm256_setzero_si256();
}
AMPK_INLINE ampk_vec_amax ampk_vec_amax_raise(ampk_vec_amax m, ampk_vec v, size_t left)
{
    __m256i b = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
    if (left < 8) b = _mm256_and_si256(b, ampk_tail_mask(left));
    return _mm256_max_epu32(m, b);
}
AMPK_INLINE uint32_t ampk_vec_amax_get(ampk_vec_amax m)
{
    uint32_t lanes[8], largest = 0;
    _mm256_storeu_si256((__m256i *)lanes, m);
    for (int i = 0; i < 8; i++)
        if (lanes[i] > largest) largest = lanes[i];
    return largest;
}

#else
enum { AMPK_LANES = 1 };
typedef float ampk_vec;
typedef uint32_t ampk_vec_amax;

AMPK_INLINE ampk_vec ampk_vec_set(float v)
{
    return v;
}
AMPK_INLINE ampk_vec ampk_vec_add(ampk_vec a, ampk_vec b)
{
    return a + b;
}
AMPK_INLINE ampk_vec ampk_vec_sub(ampk_vec a, ampk_vec b)
{
    return a - b;
}
AMPK_INLINE ampk_vec ampk_vec_mul(ampk_vec a, ampk_vec b)
{
    return a * b;
}
AMPK_INLINE ampk_vec ampk_vec_fma(ampk_vec a, ampk_vec b, ampk_vec c)
{
    return a * b + c;
}
AMPK_INLINE ampk_vec ampk_vec_if_positive(ampk_vec x, ampk_vec a, ampk_vec b)
{
    return x > 0 ? a : b;
}
AMPK_INLINE ampk_vec ampk_vec_if_greater(ampk_vec a, ampk_vec b, ampk_vec x, ampk_vec y)
{
    return a > b ? x : y;
}
AMPK_INLINE ampk_vec ampk_vec_if_equal(ampk_vec a, ampk_vec b, ampk_vec x, ampk_vec y)
{
    return a == b ? x : y;
}
AMPK_INLINE ampk_vec ampk_vec_div(ampk_vec a, ampk_vec b)
{
    return a / b;
}
AMPK_INLINE ampk_vec ampk_vec_sqrt(ampk_vec v)
{
    return __builtin_sqrtf(v);
}
AMPK_INLINE ampk_vec ampk_vec_round_tf32(ampk_vec v)
{
    return ampk_round_tf32(v);
}
AMPK_INLINE ampk_vec ampk_vec_load(const void *base, size_t i, enum ampk_dtype t, size_t left)
{
    return left > 0 ? ampk_load(base, i, t) : 0;
}
AMPK_INLINE ampk_vec ampk_vec_round(ampk_vec v, enum ampk_dtype t)
{
    if (t == AMPK_FP16) return ampk_fp16_to_float(ampk_float_to_fp16(v));
    if (t == AMPK_BF16) return ampk_bf16_to_float(ampk_float_to_bf16(v));
    return v;
}
AMPK_INLINE void ampk_vec_store(void *base, size_t i, enum ampk_dtype t, size_t left, ampk_vec v)
{
    if (left > 0) ampk_store(base, i, t, v);
}
AMPK_INLINE ampk_vec ampk_vec_load_bytes(const uint8_t *p, size_t left)
{
    return left > 0 ? *p : 0;
}
AMPK_INLINE void ampk_vec_store_bytes(uint8_t *p, size_t left, ampk_vec v)
{
    if (left > 0) *p = (uint8_t)v;
}
AMPK_INLINE ampk_vec_amax ampk_vec_amax_zero(void)
{
    return 0;
}
AMPK_INLINE ampk_vec_amax ampk_vec_amax_raise(ampk_vec_amax m, ampk_vec v, size_t left)
{
    uint32_t b = ampk_bits(v) & 0x7fffffff;
    return left > 0 && b > m ? b : m;
}
AMPK_INLINE uint32_t ampk_vec_amax_get(ampk_vec_amax m)
{
    return m;
}
#endif

/* ---- vectors: what follows from the above ---- */

/* Stores v and raises *m by the lanes stored. */
AMPK_INLINE void ampk_vec_store_amax(void *base, size_t i, enum ampk_dtype t, size_t left,
                                     ampk_vec v, ampk_vec_amax *m)
{
    ampk_vec_store(base, i, t, left, v);
    *m = ampk_vec_amax_raise(*m, v, left);
}

#endif
