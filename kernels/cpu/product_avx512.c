/* 1x1 convolutions of BF16 with AVX512-BF16, which multiplies pairs: a pixel's channels lie side by
 * side, so that two of them are a pair as they are. The sums of some pixels times two panels of
 * weights stay in registers until they are whole, are rounded and stored from there, and
 * batch-norm's sums are taken of them: nothing is written in FP32 only to be read again. Compiled
 * for AVX-512 only, because nothing else multiplies BF16. */
#include "cpu.h"
#include "dnnl_compat.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES = AMPK_DNNL_LANES,
    PIXELS = 12, /* with two panels 24 sums, of 32 registers */
    RUN = 3,     /* pixels that are addressed from one pointer */
    LINE = 64,   /* bytes of the cache's */
};

/* Two panels' lanes of some pixels. `lanes`: those of both that are there; of a single panel the
 * second half repeats the first. */
struct block {
    const struct ampk_product *of;
    size_t pixel, lane;
    __mmask32 lanes;
};

INLINE __mmask16 half(const struct block *b, int i)
{
    return (__mmask16)(b->lanes >> (i * LANES));
}

/* ---- products ---- */

INLINE void multiply(const int pixels, const struct block *b, __m512 sum[PIXELS][2])
{
    const struct ampk_product *o = b->of;
    size_t row = o->pairs * sizeof(uint32_t), panel = o->pairs * LANES;
    const uint32_t *w = o->panels + b->lane * o->pairs, *end = w + panel;
    size_t second = half(b, 1) ? panel : 0;
    const char *x[PIXELS / RUN];
#pragma GCC unroll 4
    for (int i = 0; i * RUN < pixels; i++) {
        x[i] = (const char *)(o->x + b->pixel * o->pairs) + i * RUN * row;
        __asm__("" : "+r"(x[i])); /* else the compiler keeps more pointers than registers */
    }
#pragma GCC unroll 12
    for (int p = 0; p < pixels; p++)
        sum[p][0] = sum[p][1] = _mm512_setzero_ps();
    for (; w < end; w += LANES) {
        __m512bh first = (__m512bh)_mm512_loadu_si512(w);
        __m512bh other = (__m512bh)_mm512_loadu_si512(w + second);
#pragma GCC unroll 12
        for (int p = 0; p < pixels; p++) {
            const int *at = (const int *)(x[p / RUN] + p % RUN * row);
            __m512bh pair = (__m512bh)_mm512_set1_epi32(*at);
            sum[p][0] = _mm512_dpbf16_ps(sum[p][0], pair, first);
            sum[p][1] = _mm512_dpbf16_ps(sum[p][1], pair, other);
        }
#pragma GCC unroll 4
        for (int i = 0; i * RUN < pixels; i++)
            x[i] += sizeof(uint32_t);
    }
}

/* ---- what becomes of them ---- */

INLINE void store_fp32(const int pixels, const struct block *b, __m512 sum[PIXELS][2])
{
    float *out = b->of->out + b->pixel * b->of->written + b->lane;
#pragma GCC unroll 12
    for (int p = 0; p < pixels; p++, out += b->of->written)
        for (int i = 0; i < 2; i++)
            _mm512_mask_storeu_ps(out + i * LANES, half(b, i), sum[p][i]);
}

INLINE __m512 widened(__m256i bf16)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}

INLINE void add_stored(const int pixels, const struct block *b, const uint16_t *y,
                       __m512 sum[PIXELS][2])
{
#pragma GCC unroll 12
    for (int p = 0; p < pixels; p++, y += b->of->stride) {
        __m512i old = _mm512_maskz_loadu_epi16(b->lanes, y);
        sum[p][0] = widened(_mm512_castsi512_si256(old)) + sum[p][0];
        sum[p][1] = widened(_mm512_extracti64x4_epi64(old, 1)) + sum[p][1];
    }
}

/* Leaves what was stored: in sum[p][0] of even lanes, in sum[p][1] of odd ones. The instruction
 * takes denormals for 0; the products' sums never are denormal. */
INLINE __m512i store_bf16(const int pixels, const struct block *b, uint16_t *y,
                          __m512 sum[PIXELS][2], __m512i largest)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
#pragma GCC unroll 12
    for (int p = 0; p < pixels; p++, y += b->of->stride) {
        for (int i = 0; i < 2; i++)
            largest =
                _mm512_mask_max_epu32(largest, half(b, i), largest,
                                      _mm512_and_si512(magnitude, _mm512_castps_si512(sum[p][i])));
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh(sum[p][1], sum[p][0]);
        _mm512_mask_storeu_epi16(y, b->lanes, both);
        sum[p][0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        sum[p][1] = _mm512_castsi512_ps(_mm512_and_si512(both, high));
    }
    return largest;
}

/* Even and odd lanes, in order. */
INLINE void raise_sums(const struct block *b, float *sums, __m512 even, __m512 odd)
{
    static const uint32_t order[2][LANES] = {
        {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23},
        {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31}};
    for (int i = 0; i < 2; i++) {
        __m512 sum = _mm512_permutex2var_ps(even, _mm512_loadu_si512(order[i]), odd);
        float *at = sums + b->lane + i * LANES;
        _mm512_mask_storeu_ps(at, half(b, i), _mm512_maskz_loadu_ps(half(b, i), at) + sum);
    }
}

/* Of what store_bf16 left. The sums of a block are added to those of the run: short sums round
 * less. */
INLINE void take_sums(const int pixels, const struct block *b, __m512 value[PIXELS][2])
{
    static const uint32_t order[2][LANES] = {
        {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30},
        {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31}};
    const float *shift = b->of->shift + b->lane;
    __m512 low = _mm512_loadu_ps(shift), high = _mm512_maskz_loadu_ps(half(b, 1), shift + LANES);
    __m512 sum[2], squares[2];
    for (int i = 0; i < 2; i++) {
        __m512 s = _mm512_permutex2var_ps(low, _mm512_loadu_si512(order[i]), high);
        sum[i] = squares[i] = _mm512_setzero_ps();
#pragma GCC unroll 12
        for (int p = 0; p < pixels; p++) {
            __m512 v = value[p][i] - s;
            sum[i] += v;
            squares[i] = _mm512_fmadd_ps(v, v, squares[i]);
        }
    }
    raise_sums(b, b->of->sums, sum[0], sum[1]);
    raise_sums(b, b->of->squares, squares[0], squares[1]);
}

INLINE __m512i run_block(const int pixels, const struct block *b, __m512i largest)
{
    __m512 sum[PIXELS][2];
    multiply(pixels, b, sum);
    if (b->of->out) {
        store_fp32(pixels, b, sum);
        return largest;
    }
    uint16_t *y = b->of->y + b->pixel * b->of->stride + b->lane;
    if (b->of->accumulate) add_stored(pixels, b, y, sum);
    largest = store_bf16(pixels, b, y, sum, largest);
    if (b->of->shift) take_sums(pixels, b, sum);
    return largest;
}

/* ---- blocks ---- */

/* The number of pixels as a constant. */
static __m512i run_pixels(size_t pixels, const struct block *b, __m512i largest)
{
    switch (pixels) {
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        return run_block(n, b, largest)
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
        CASE(11);
#undef CASE
    default:
        return run_block(PIXELS, b, largest);
    }
}

/* Blocks of about the same size: a short one would wait for each of its few sums. While one is
 * multiplied, the next one's pixels are fetched, which lie behind it. */
uint32_t ampk_avx512_product(const struct ampk_product *o)
{
    size_t blocks = (o->pixels + PIXELS - 1) / PIXELS;
    size_t row = o->pairs * sizeof(uint32_t), panels = (o->written + 2 * LANES - 1) / (2 * LANES);
    __m512i largest = _mm512_setzero_si512();
    for (size_t i = 0; i < blocks; i++) {
        size_t first = i * o->pixels / blocks, end = (i + 1) * o->pixels / blocks;
        const char *next = (const char *)(o->x + end * o->pairs);
        size_t part = PIXELS * row / panels;
        for (size_t lane = 0; lane < o->written; lane += 2 * LANES, next += part) {
            for (size_t at = 0; at < part && i + 1 < blocks; at += LINE)
                _mm_prefetch(next + at, _MM_HINT_T0);
            bool both = o->written - lane > LANES;
            const struct block b = {o, first, lane, both ? ~0u : 0xffff};
            largest = run_pixels(end - first, &b, largest);
        }
    }
    return _mm512_reduce_max_epu32(largest);
}
