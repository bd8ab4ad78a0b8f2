/* 1x1 convolutions of BF16 with AVX512-BF16, which multiplies pairs: a pixel's channels lie side by
 * side, so that two of them are a pair as they are. The sums of some pixels times two panels of
 * weights stay in registers until they are whole, are rounded and stored from there, and
 * batch-norm's sums are taken of them: nothing is written in FP32 only to be read again. Compiled
 * for AVX-512 only, because nothing else multiplies BF16. */
#include "cpu.h"
#include "dnnl_compat.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES = AMPK_DNNL_LANES,
    PIXELS = 12, /* with two panels 24 sums, of 32 registers */
    RUN = 3,     /* pixels that are addressed from one pointer */
    LINE = 64,   /* bytes of the cache's */
};

/* The lanes of two panels, of some pixels; or of one, which is multiplied twice then. */
struct block {
    const struct ampk_product *of;
    size_t pixel, lane, panels;
};

/* ---- products ---- */

INLINE void multiply(const int pixels, const struct block *b, __m512 sum[PIXELS][2])
{
    const struct ampk_product *o = b->of;
    size_t row = o->pairs * sizeof(uint32_t), panel = o->pairs * LANES;
    const uint32_t *w = o->panels + b->lane * o->pairs, *end = w + panel;
    size_t second = (b->panels - 1) * panel;
    const char *x[PIXELS / RUN];
#pragma GCC unroll 4
    for (int i = 0; i * RUN < pixels; i++) {
        x[i] = (const char *)o->x + (b->pixel + i * RUN) * row;
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
            int word; /* x need not be a word's multiple */
            memcpy(&word, x[p / RUN] + p % RUN * row, sizeof word);
            __m512bh pair = (__m512bh)_mm512_set1_epi32(word);
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
        for (size_t i = 0; i < 2 && i < b->panels; i++)
            _mm512_storeu_ps(out + i * LANES, sum[p][i]);
}

INLINE __m512 widened(__m256i bf16)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}

INLINE void add_stored(const int pixels, const struct block *b, const uint16_t *y,
                       __m512 sum[PIXELS][2])
{
#pragma GCC unroll 12
    for (int p = 0; p < pixels; p++, y += b->of->stride)
        for (size_t i = 0; i < 2 && i < b->panels; i++)
            sum[p][i] = widened(_mm256_loadu_si256((const __m256i *)(y + i * LANES))) + sum[p][i];
}

/* Leaves what was stored: in sum[p][0] of even lanes, in sum[p][1] of odd ones. The instruction
 * takes denormals for 0, as the one that multiplies does: only what was added to can be one. */
INLINE __m512i store_bf16(const int pixels, const struct block *b, uint16_t *y,
                          __m512 sum[PIXELS][2], __m512i largest)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
#pragma GCC unroll 12
    for (int p = 0; p < pixels; p++, y += b->of->stride) {
        for (size_t i = 0; i < 2 && i < b->panels; i++)
            largest = _mm512_max_epu32(largest,
                                       _mm512_and_si512(magnitude, _mm512_castps_si512(sum[p][i])));
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh(sum[p][1], sum[p][0]);
        if (b->panels > 1)
            _mm512_storeu_si512(y, both);
        else
            _mm256_storeu_si256((__m256i *)y, _mm512_castsi512_si256(both));
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
    for (size_t i = 0; i < 2 && i < b->panels; i++) {
        __m512 sum = _mm512_permutex2var_ps(even, _mm512_loadu_si512(order[i]), odd);
        float *at = sums + b->lane + i * LANES;
        _mm512_storeu_ps(at, _mm512_loadu_ps(at) + sum);
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
    __m512 low = _mm512_loadu_ps(shift), high = _mm512_loadu_ps(shift + (b->panels - 1) * LANES);
    __m512 center[2], sum[2], squares[2];
    for (int i = 0; i < 2; i++) {
        center[i] = _mm512_permutex2var_ps(low, _mm512_loadu_si512(order[i]), high);
        sum[i] = squares[i] = _mm512_setzero_ps();
    }
#pragma GCC unroll 12
    for (int p = 0; p < pixels; p++)
        for (int i = 0; i < 2; i++) {
            __m512 v = value[p][i] - center[i];
            sum[i] += v;
            squares[i] = _mm512_fmadd_ps(v, v, squares[i]);
        }
    raise_sums(b, b->of->sums, sum[0], sum[1]);
    raise_sums(b, b->of->squares, squares[0], squares[1]);
}

/* ---- blocks ---- */

enum finish { TO_FP32, TO_BF16, ADDED, WITH_SUMS };

INLINE __m512i run_block(const int pixels, const enum finish finish, const struct block *b,
                         __m512i largest)
{
    __m512 sum[PIXELS][2];
    multiply(pixels, b, sum);
    if (finish == TO_FP32) {
        store_fp32(pixels, b, sum);
        return largest;
    }
    uint16_t *y = b->of->y + b->pixel * b->of->stride + b->lane;
    if (finish == ADDED) add_stored(pixels, b, y, sum);
    largest = store_bf16(pixels, b, y, sum, largest);
    if (finish == WITH_SUMS) take_sums(pixels, b, sum);
    return largest;
}

/* All that is written of pixels from the first on. While they are multiplied, the next ones are
 * fetched, which lie behind them. */
INLINE __m512i run_panels(const int pixels, const enum finish finish, const struct ampk_product *o,
                          size_t first, __m512i largest)
{
    size_t row = o->pairs * sizeof(uint32_t), blocks = (o->written + 2 * LANES - 1) / (2 * LANES);
    const char *next = (const char *)o->x + (first + pixels) * row;
    size_t part = first + pixels < o->pixels ? pixels * row / blocks : 0;
    for (size_t lane = 0; lane < o->written; lane += 2 * LANES, next += part) {
        for (size_t at = 0; at < part; at += LINE)
            _mm_prefetch(next + at, _MM_HINT_T0);
        const struct block b = {o, first, lane, o->written - lane > LANES ? 2 : 1};
        largest = run_block(pixels, finish, &b, largest);
    }
    return largest;
}

/* Blocks of about the same size, because a small one waits for each of its few sums. Their sizes
 * are constants of the code that runs them. */
INLINE __m512i run(const enum finish finish, const struct ampk_product *o)
{
    size_t blocks = (o->pixels + PIXELS - 1) / PIXELS;
    __m512i largest = _mm512_setzero_si512();
    for (size_t i = 0, first = 0; i < blocks; i++) {
        size_t end = (i + 1) * o->pixels / blocks;
        switch (end - first) {
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        largest = run_panels(n, finish, o, first, largest);                                        \
        break
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
            CASE(12);
#undef CASE
        }
        first = end;
    }
    return largest;
}

uint32_t ampk_avx512_product(const struct ampk_product *o)
{
    if (o->out) run(TO_FP32, o);
    if (o->out) return 0;
    __m512i largest = o->shift        ? run(WITH_SUMS, o)
                      : o->accumulate ? run(ADDED, o)
                                      : run(TO_BF16, o);
    return _mm512_reduce_max_epu32(largest);
}
