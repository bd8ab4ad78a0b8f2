/* simd.h with AVX-512: 16 lanes. Masks handle the last lanes of a row, in every element size. */
#ifndef AMPK_SIMD_AVX512_H
#define AMPK_SIMD_AVX512_H

#include <immintrin.h>

enum { AMPK_LANES = 16 };
typedef __m512 ampk_vec;
typedef __m512i ampk_vec_amax;

AMPK_INLINE ampk_vec ampk_vec_set(float v)
{
    return _mm512_set1_ps(v);
}
AMPK_INLINE ampk_vec ampk_vec_fma(ampk_vec a, ampk_vec b, ampk_vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
AMPK_INLINE ampk_vec ampk_vec_if_positive(ampk_vec x, ampk_vec a, ampk_vec b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), b, a);
}
AMPK_INLINE ampk_vec ampk_vec_if_greater(ampk_vec a, ampk_vec b, ampk_vec x, ampk_vec y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
AMPK_INLINE ampk_vec ampk_vec_if_equal(ampk_vec a, ampk_vec b, ampk_vec x, ampk_vec y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), y, x);
}
AMPK_INLINE ampk_vec ampk_vec_sqrt(ampk_vec v)
{
    return _mm512_sqrt_ps(v);
}
AMPK_INLINE ampk_vec ampk_vec_times_power(ampk_vec x, ampk_vec n)
{
    return _mm512_scalef_ps(x, n);
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

/* Ones for the first `left` lanes. Callers have tested left < 16. */
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

/* By integer addition: plain AVX-512 has no conversion to BF16. */
AMPK_INLINE __m256i ampk_vec_to_bf16(ampk_vec v)
{
    __m512i b = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, b, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}

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

/* Every stage doubles what lies together: 1, 2, 4, 8 lanes. Unrolled, all are in registers. */
AMPK_INLINE void ampk_vec_transpose(ampk_vec r[16])
{
    ampk_vec s[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 16
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_shuffle_ps(s[i + j], s[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm512_shuffle_ps(s[i + j], s[i + j + 2], 0xee);
        }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++)
#pragma GCC unroll 16
        for (int j = 0; j < 16; j += 8) {
            s[i + j] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0x88);
            s[i + j + 4] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0xdd);
        }
#pragma GCC unroll 16
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_f32x4(s[i], s[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(s[i], s[i + 8], 0xdd);
    }
}

#endif
