/* BF16 weights into the lines of oneDNN's layouts and of conv_1x1.c's, 64 bytes at once. Weights
 * lie tap by tap, lines have the same tap of 16 filters or channels side by side: a transposition
 * of 16 x 16 pairs of BF16, in registers. Compiled for AVX-512 only, because nothing else
 * multiplies BF16.
 *
 * Lines are stored past the caches: whole lines need not be read first, and a net's weights would
 * push each other out of the cache before a convolution reads them. (Packing darknet19's 20 million
 * weights took 8.3 ms through the caches, 6.1 ms past them.) The barrier at the end of the parallel
 * region, a locked instruction in libgomp, makes them visible to the other threads. */
#include "cpu.h"
#include "dnnl_compat.h"
#include "simd.h"

enum { LANES = AMPK_DNNL_LANES };

static __mmask16 first(int n)
{
    return (__mmask16)((1u << n) - 1);
}

/* n pairs of a low and a high half. */
static ampk_vec pairs(const uint16_t *low, const uint16_t *high, int n)
{
    __m512i l = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), low));
    __m512i h = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), high));
    return _mm512_castsi512_ps(_mm512_or_si512(l, _mm512_slli_epi32(h, 16)));
}

static void stream(uint16_t *line, ampk_vec pairs)
{
    _mm512_stream_si512((__m512i *)line, _mm512_castps_si512(pairs));
}

/* All taps of one line's filters and channels. */
static void put_taps(const uint16_t *from, size_t lane, size_t other, const size_t *tap, int taps,
                     uint16_t *line)
{
    ampk_vec rows[LANES];
    for (int t = 0; t < taps; t += LANES) {
        int n = taps - t < LANES ? taps - t : LANES;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            rows[i] = pairs(from + i * lane + t, from + i * lane + other + t, n);
        ampk_vec_transpose(rows);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (i < n) stream(line + tap[t + i], rows[i]);
    }
}

/* One tap, 16 filters in a line: pairs of channels lie side by side as they are. */
static void put_filters(const uint16_t *from, size_t filter, int channels, const size_t *channel,
                        uint16_t *to)
{
    ampk_vec rows[LANES];
    for (int c = 0; c < channels; c += 2 * LANES) {
        int n = channels - c < 2 * LANES ? (channels - c) / 2 : LANES;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            rows[i] = _mm512_maskz_loadu_ps(first(n), from + i * filter + c);
        ampk_vec_transpose(rows);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (i < n) stream(to + channel[c + 2 * i], rows[i]);
    }
}

void ampk_avx512_put_lines(const struct ampk_weight_block *b, const struct ampk_dnnl_lines *l,
                           int filter, int channel, uint16_t *to)
{
    size_t tap = (size_t)b->taps, row = b->channels * tap;
    const size_t *at_filter = l->filter + filter, *at_channel = l->channel + channel;
    int filters = l->of_filters ? LANES : 2, channels = l->of_filters ? 2 : LANES;
    for (int k = 0; k < b->filters; k += filters) {
        const uint16_t *from = b->values + k * row;
        if (l->of_filters && b->taps == 1) {
            put_filters(from, row, b->channels, at_channel, to + at_filter[k] + l->tap[0]);
            continue;
        }
        for (int c = 0; c < b->channels; c += channels, from += channels * tap) {
            uint16_t *line = to + at_filter[k] + at_channel[c];
            if (l->of_filters)
                put_taps(from, row, tap, l->tap, b->taps, line);
            else if (b->taps > 1)
                put_taps(from, tap, row, l->tap, b->taps, line);
            else
                stream(line + l->tap[0], pairs(from, from + row, LANES));
        }
    }
}
