/* simd.h with AVX2 and F16C: 8 lanes. The last lanes of a row go through masks (FP32) or through
 * the stack, because AVX2 has no masks for 16-bit and 8-bit elements. */
#ifndef AMPK_SIMD_AVX2_H
#define AMPK_SIMD_AVX2_H

#include <immintrin.h>

enum { AMPK_LANES = 8 };
typedef __m256 ampk_vec;
typedef __m256i ampk_vec_amax;

AMPK_INLINE ampk_vec ampk_vec_set(float v)
{
    return _mm256_set1_ps(v);
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
AMPK_INLINE ampk_vec ampk_vec_sqrt(ampk_vec v)
{
    return _mm256_sqrt_ps(v);
}
AMPK_INLINE ampk_vec ampk_vec_times_power(ampk_vec x, ampk_vec n)
{
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return x * _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
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

/* There is no instruction: integer addition rounds to nearest even, and NaNs are made quiet
 * instead. */
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
/* The lanes hold whole numbers in [0, 255], so that no step saturates. */
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
/* Lanes beyond the end count as 0. Bits compare as unsigned numbers (kernels.h, amax). */
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

/* Every stage doubles what lies together: 1, 2, 4 lanes. */
AMPK_INLINE void ampk_vec_transpose(ampk_vec r[8])
{
    ampk_vec s[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 8
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(s[i + j], s[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(s[i + j], s[i + j + 2], 0xee);
        }
#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        s[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        s[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        r[i] = s[i];
}

#endif
