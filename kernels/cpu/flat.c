/* Flat FP32 arrays: largest magnitude, scaling, accumulation, copies; and numbers for the log about
 * arrays and tensors, which decide nothing here. Products and sums are rounded one by
 * one (no fused multiply-add), so that every instruction set gives the same bits. */
#include "cpu.h"
#include "simd.h"

#include <string.h>

/* The last vector may be shorter: simd.h treats elements from n on as missing. */
AMPK_INLINE ampk_vec load(const float *p, size_t i, size_t n)
{
    return ampk_vec_load(p, i, AMPK_FP32, n - i);
}

AMPK_INLINE void store(float *p, size_t i, size_t n, ampk_vec v)
{
    ampk_vec_store(p, i, AMPK_FP32, n - i, v);
}

/* ---- amax, scale, accumulate ---- */

static uint32_t find_largest(const float *x, size_t n)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES)
        largest = ampk_vec_amax_raise(largest, load(x, i, n), n - i);
    return ampk_vec_amax_get(largest);
}

/* The operations below, except copies, cut their arrays into pieces of a fixed size, which the
 * threads share. */
void AMPK_CPU(amax)(struct ampk_context *ctx, const float *x, size_t n, uint32_t *amax)
{
    size_t pieces = ampk_pieces(n);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (pieces > 1)
    for (size_t p = 0; p < pieces; p++) {
        uint32_t m = find_largest(x + p * AMPK_PIECE, ampk_piece(n, p * AMPK_PIECE));
        if (m > largest) largest = m;
    }
    ampk_amax_raise(amax, largest);
}

static void scale_piece(float *x, size_t n, float factor)
{
    for (size_t i = 0; i < n; i += AMPK_LANES)
        store(x, i, n, load(x, i, n) * ampk_vec_set(factor));
}

void AMPK_CPU(scale)(struct ampk_context *ctx, float *x, size_t n, float factor)
{
    size_t pieces = ampk_pieces(n);
#pragma omp parallel for num_threads(ctx->threads) if (pieces > 1)
    for (size_t p = 0; p < pieces; p++)
        scale_piece(x + p * AMPK_PIECE, ampk_piece(n, p * AMPK_PIECE), factor);
}

static void accumulate_piece(const float *g, size_t n, float factor, float *sum)
{
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = load(g, i, n) * ampk_vec_set(factor);
        store(sum, i, n, load(sum, i, n) + v);
    }
}

void AMPK_CPU(accumulate)(struct ampk_context *ctx, const float *g, size_t n, float factor,
                          float *sum)
{
    size_t pieces = ampk_pieces(n);
#pragma omp parallel for num_threads(ctx->threads) if (pieces > 1)
    for (size_t p = 0; p < pieces; p++) {
        size_t first = p * AMPK_PIECE;
        accumulate_piece(g + first, ampk_piece(n, first), factor, sum + first);
    }
}

AMPK_INLINE uint32_t loss_piece(const float *delta, size_t n, float scale, float *dx,
                                bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = load(delta, i, n) * ampk_vec_set(scale);
        if (accumulate) v = load(dx, i, n) + v;
        ampk_vec_store_amax(dx, i, AMPK_FP32, n - i, v, &largest);
    }
    return ampk_vec_amax_get(largest);
}

void AMPK_CPU(loss_backward)(struct ampk_context *ctx, const float *delta, size_t n, float scale,
                             float *dx, bool accumulate, uint32_t *amax)
{
    size_t pieces = ampk_pieces(n);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (pieces > 1)
    for (size_t p = 0; p < pieces; p++) {
        size_t first = p * AMPK_PIECE;
        uint32_t m = loss_piece(delta + first, ampk_piece(n, first), scale, dx + first, accumulate);
        if (m > largest) largest = m;
    }
    ampk_amax_raise(amax, largest);
}

/* ---- copies ---- */

void AMPK_CPU(copy_many)(struct ampk_context *ctx, const struct ampk_span *spans, int count)
{
    (void)ctx;
    for (int i = 0; i < count; i++)
        if (spans[i].n) memcpy(spans[i].dst, spans[i].src, spans[i].n * sizeof(float));
}

/* ---- numbers for the log: largest magnitude, zeros, sum of squares ---- */

struct seen {
    uint32_t largest, zeros;
};

/* Looks at n elements. The counts are in FP32 lanes and exact, because a piece has few elements. */
AMPK_INLINE struct seen look(const void *data, enum ampk_dtype t, size_t n)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    ampk_vec zeros = ampk_vec_set(0);
    const ampk_vec zero = ampk_vec_set(0), one = ampk_vec_set(1);
    size_t i = 0;
    for (; i + AMPK_LANES <= n; i += AMPK_LANES) {
        ampk_vec v = ampk_vec_load(data, i, t, AMPK_LANES);
        largest = ampk_vec_amax_raise(largest, v, AMPK_LANES);
        zeros += ampk_vec_if_equal(v, zero, one, zero);
    }
    float lanes[AMPK_LANES], count = 0;
    ampk_vec_store(lanes, 0, AMPK_FP32, AMPK_LANES, zeros);
    for (int k = 0; k < AMPK_LANES; k++)
        count += lanes[k];
    struct seen seen = {ampk_vec_amax_get(largest), (uint32_t)count};
    for (; i < n; i++) {
        float v = ampk_load(data, i, t);
        uint32_t magnitude = ampk_bits(v) & 0x7fffffff;
        if (magnitude > seen.largest) seen.largest = magnitude;
        seen.zeros += v == 0;
    }
    return seen;
}

void AMPK_CPU(inspect)(struct ampk_context *ctx, const struct ampk_tensor *x, uint32_t *amax,
                       uint32_t *zeros)
{
    bool slice = ampk_pitch(x) != x->c;
    size_t area = (size_t)x->h * x->w, c = (size_t)x->c;
    size_t rows = slice ? area : 1, length = slice ? c : area * c;
    size_t pieces = ampk_pieces(length), all = (size_t)x->n * rows * pieces;
    uint32_t largest = 0, count = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest)                        \
    reduction(+ : count) if (all > 1)
    for (size_t i = 0; i < all; i++) {
        size_t first = i % pieces * AMPK_PIECE, row = i / pieces;
        const void *at = ampk_at(x, row / rows, row % rows * (size_t)ampk_pitch(x) + first);
        struct seen seen;
        AMPK_WITH_DTYPE(x->dtype, T, seen = look(at, T, ampk_piece(length, first)));
        if (seen.largest > largest) largest = seen.largest;
        count += seen.zeros;
    }
    ampk_amax_raise(amax, largest);
    *zeros += count;
}

/* amax of values that are already stored: an inf in FP16 counts as the smallest magnitude that
 * becomes inf (kernels.h). */
void AMPK_CPU(watch_stored)(struct ampk_context *ctx, const struct ampk_tensor *x, uint32_t *amax)
{
    uint32_t largest = 0, zeros = 0;
    AMPK_CPU(inspect)(ctx, x, &largest, &zeros);
    if (x->dtype == AMPK_FP16 && largest == AMPK_INF_BITS) largest = AMPK_FP16_OVERFLOW_BITS;
    ampk_amax_raise(amax, largest);
}

static double squares(const float *x, size_t n)
{
    double sum = 0;
    for (size_t run = 0; run < n; run += AMPK_SUM_RUN) {
        size_t end = n - run < AMPK_SUM_RUN ? n : run + AMPK_SUM_RUN;
        ampk_vec sums = ampk_vec_set(0);
        for (size_t i = run; i < end; i += AMPK_LANES) {
            ampk_vec v = ampk_vec_load(x, i, AMPK_FP32, n - i);
            sums += v * v;
        }
        sum += ampk_vec_sum(sums);
    }
    return sum;
}

/* Pieces have a fixed size and are added in order, so the result does not depend on the number of
 * threads. */
void AMPK_CPU(sum_squares)(struct ampk_context *ctx, const float *x, size_t n, float *sum)
{
    size_t pieces = ampk_pieces(n);
    double *parts = ampk_memory(ctx, (pieces + 1) * sizeof *parts), all = 0;
#pragma omp parallel for num_threads(ctx->threads) if (pieces > 1)
    for (size_t p = 0; p < pieces; p++)
        parts[p] = squares(x + p * AMPK_PIECE, ampk_piece(n, p * AMPK_PIECE));
    for (size_t p = 0; p < pieces; p++)
        all += parts[p];
    *sum = (float)all;
}
