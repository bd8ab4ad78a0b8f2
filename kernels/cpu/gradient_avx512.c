/* Weight gradients of BF16 with AVX512-BF16, which multiplies pairs: a sum grows by two products at
 * once. A pair are two pixels, of the same place in two bands of rows: so a tap shifts both alike,
 * and each pixel is paired once, whatever the taps and the stride are. Compiled for AVX-512 only,
 * because nothing else multiplies BF16. */
#include "cpu.h"

#include <immintrin.h>

enum {
    LANES = 16,
    FILTERS = AMPK_PAIR_FILTERS,
    CHANNELS = AMPK_PAIR_CHANNELS,
};

/* ---- pairs ---- */

/* Stores up to 32 pairs into one panel, or into up to four. */
typedef void put_pairs(uint32_t *panels, size_t panel_step, size_t count, const __m512i v[2]);

static inline __attribute__((always_inline)) void put_channels(uint32_t *panels, size_t panel_step,
                                                               size_t count, const __m512i v[2])
{
    (void)panel_step;
    (void)count;
    _mm512_storeu_si512(panels, v[0]);
    _mm512_storeu_si512(panels + LANES, v[1]);
}

static inline __attribute__((always_inline)) void put_filters(uint32_t *panels, size_t panel_step,
                                                              size_t count, const __m512i v[2])
{
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; j++)
        if (j * FILTERS < count)
            _mm256_storeu_si256((__m256i *)(panels + j * panel_step),
                                j % 2 ? _mm512_extracti64x4_epi64(v[j / 2], 1)
                                      : _mm512_castsi512_si256(v[j / 2]));
}

/* Values of two pixels as pairs, as far as the masks go, and then 0. */
static inline __attribute__((always_inline)) void
pair(const uint16_t *low, __mmask32 of_low, const uint16_t *high, __mmask32 of_high, __m512i out[2])
{
    static const uint16_t order[2][32] = {
        {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    __m512i l = _mm512_maskz_loadu_epi16(of_low, low), h = _mm512_maskz_loadu_epi16(of_high, high);
    out[0] = _mm512_permutex2var_epi16(l, _mm512_loadu_si512(order[0]), h);
    out[1] = _mm512_permutex2var_epi16(l, _mm512_loadu_si512(order[1]), h);
}

static inline __attribute__((always_inline)) void pair_rows(put_pairs *put, const size_t panel,
                                                            const struct ampk_pair_source *s,
                                                            size_t panel_step, uint32_t *out)
{
    static const uint16_t nothing;
    const uint16_t *low = s->low ? s->low : &nothing, *high = s->high ? s->high : &nothing;
    __mmask32 of_low = s->low ? ~0u : 0, of_high = s->high ? ~0u : 0;
    size_t low_step = s->low ? 1 : 0, high_step = s->high ? 1 : 0;
    for (size_t p = 0; p < s->pixels; p++, out += panel)
        for (size_t i = 0; i < s->values; i += 32) {
            __mmask32 mask = s->values - i < 32 ? (1u << (s->values - i)) - 1 : ~0u;
            size_t at = p * s->stride + i;
            __m512i v[2];
            pair(low + at * low_step, of_low & mask, high + at * high_step, of_high & mask, v);
            put(out + i / panel * panel_step, panel_step, s->values - i, v);
        }
}

static void pair_channels(const struct ampk_pair_source *s, size_t panel_step, uint32_t *out)
{
    pair_rows(put_channels, CHANNELS, s, panel_step, out);
}

static void pair_filters(const struct ampk_pair_source *s, size_t panel_step, uint32_t *out)
{
    pair_rows(put_filters, FILTERS, s, panel_step, out);
}

/* ---- products ---- */

/* The sum of a run of rows starts at 0: short sums round less. */
static inline __attribute__((always_inline)) void multiply(const int columns,
                                                           const struct ampk_gradient_rows *r,
                                                           const uint32_t *dy, const uint32_t *x,
                                                           float *out, size_t out_row, bool add)
{
    __m512 sum[FILTERS][2];
#pragma GCC unroll 8
    for (int k = 0; k < FILTERS; k++)
        for (int i = 0; i < columns; i++)
            sum[k][i] = _mm512_setzero_ps();
    for (size_t row = 0; row < r->rows; row++) {
        const uint32_t *a = dy + row * r->dy_row, *b = x + row * r->x_row;
        for (size_t p = 0; p < r->pixels; p++, a += FILTERS, b += r->x_step) {
            __m512bh v[2];
            for (int i = 0; i < columns; i++)
                v[i] = (__m512bh)_mm512_loadu_si512(b + i * LANES);
#pragma GCC unroll 8
            for (int k = 0; k < FILTERS; k++) {
                __m512bh f = (__m512bh)_mm512_set1_epi32((int)a[k]);
                for (int i = 0; i < columns; i++)
                    sum[k][i] = _mm512_dpbf16_ps(sum[k][i], f, v[i]);
            }
        }
    }
#pragma GCC unroll 8
    for (int k = 0; k < FILTERS; k++)
        for (int i = 0; i < columns; i++) {
            float *to = out + k * out_row + i * LANES;
            _mm512_storeu_ps(to, add ? _mm512_add_ps(_mm512_loadu_ps(to), sum[k][i]) : sum[k][i]);
        }
}

static void multiply_pairs(const struct ampk_gradient_rows *r, const uint32_t *dy,
                           const uint32_t *x, size_t channels, float *out, size_t out_row, bool add)
{
    if (channels > LANES)
        multiply(2, r, dy, x, out, out_row, add);
    else
        multiply(1, r, dy, x, out, out_row, add);
}

const struct ampk_pairs ampk_avx512_pairs = {pair_channels, pair_filters, multiply_pairs};
