/* Numbers for the log about tensors and gradients: largest magnitude, zeros, sum of squares.
 * Decides nothing by them. */
#include "cpu.h"
#include "simd.h"

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

/* One FP32 sum per lane; the lanes are added up in FP64. */
static double squares(const float *x, size_t n)
{
    ampk_vec sums = ampk_vec_set(0);
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = ampk_vec_load(x, i, AMPK_FP32, n - i);
        sums += v * v;
    }
    float lanes[AMPK_LANES];
    double sum = 0;
    ampk_vec_store(lanes, 0, AMPK_FP32, AMPK_LANES, sums);
    for (int k = 0; k < AMPK_LANES; k++)
        sum += lanes[k];
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
