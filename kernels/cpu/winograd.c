/* Convolutions of 3 x 3 taps, stride 1 and padding 1 by Winograd's minimal filtering, F(4 x 4, 3 x
 * 3): Lavin, Gray 2016, "Fast Algorithms for Convolutional Neural Networks". A tile of 4 x 4
 * results takes 36 products a channel and filter instead of 144. With ' for transposed and . for
 * products element by element,
 *
 *     y = A' [ (G g G') . (B' x B) ] A              x: 6 x 6, g: 3 x 3, y: 4 x 4
 *     gradient of g = G' [ (A dy A') . (B' x B) ] G
 *
 * The 36 places in the brackets are called points. Each is a product of matrices: tiles by channels
 * by filters. All is FP32; an error is a few times that of FP32 sums of the products. */
#include "cpu.h"
#include "simd.h"

/* ---- matrix products ---- */

enum {
    POINTS = AMPK_WINOGRAD_POINTS,
    TAPS = 9,
    PANEL = AMPK_WINOGRAD_PANEL,
    ROWS = AMPK_LANES == 16 ? 8 : 6, /* of a block that stays in registers */
    COLUMNS = 2 * AMPK_LANES,
};

/* out[rows][COLUMNS] (+)= a[rows][depth] * b[depth][COLUMNS]; the steps from one to the next are in
 * elements. */
AMPK_INLINE void multiply_block(const int rows, size_t depth, const float *a, size_t a_row,
                                size_t a_step, const float *b, size_t b_step, float *out,
                                size_t out_row, bool add)
{
    ampk_vec sum[ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 2; i++)
            sum[r][i] =
                add ? ampk_vec_load(out + r * out_row, i * AMPK_LANES, AMPK_FP32, AMPK_LANES)
                    : ampk_vec_set(0);
    for (size_t k = 0; k < depth; k++) {
        ampk_vec left = ampk_vec_load(b + k * b_step, 0, AMPK_FP32, AMPK_LANES);
        ampk_vec right = ampk_vec_load(b + k * b_step, AMPK_LANES, AMPK_FP32, AMPK_LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            ampk_vec v = ampk_vec_set(a[r * a_row + k * a_step]);
            sum[r][0] = ampk_vec_fma(v, left, sum[r][0]);
            sum[r][1] = ampk_vec_fma(v, right, sum[r][1]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        ampk_vec_store(out + r * out_row, 0, AMPK_FP32, AMPK_LANES, sum[r][0]);
        ampk_vec_store(out + r * out_row, AMPK_LANES, AMPK_FP32, AMPK_LANES, sum[r][1]);
    }
}

/* out[rows][COLUMNS] (+)= a[rows][depth] * b[depth][COLUMNS], of any number of rows: in blocks that
 * differ by one at most, since a block of few rows waits for its sums. */
AMPK_INLINE void multiply_rows(size_t rows, size_t depth, const float *a, const float *b,
                               size_t b_step, float *out, size_t out_row, const bool add)
{
    size_t blocks = (rows + ROWS - 1) / ROWS;
    for (size_t i = 0; i < blocks; i++) {
        size_t first = i * rows / blocks, count = (i + 1) * rows / blocks - first;
        const float *from = a + first * depth;
        float *to = out + first * out_row;
#define BLOCK(rows)                                                                                \
    case rows:                                                                                     \
        multiply_block(rows < ROWS ? rows : ROWS, depth, from, depth, 1, b, b_step, to, out_row,   \
                       add);                                                                       \
        break;
        switch (count) {
            BLOCK(1)
            BLOCK(2)
            BLOCK(3)
            BLOCK(4)
            BLOCK(5)
            BLOCK(6)
            BLOCK(7)
            BLOCK(8)
        }
#undef BLOCK
    }
}

/* From point to point of `count` values. Not a power of two, or all points would share a few sets
 * of the first-level cache. */
static size_t point_step(size_t count)
{
    return count + AMPK_WINOGRAD_GAP;
}

static size_t whole_blocks(size_t rows)
{
    return (rows + ROWS - 1) / ROWS * ROWS;
}

/* ---- transforms along one side ---- */

/* a*factor + b */
AMPK_INLINE ampk_vec plus(ampk_vec b, float factor, ampk_vec a)
{
    return ampk_vec_fma(a, ampk_vec_set(factor), b);
}

/* B', of one row of the tile */
AMPK_INLINE void input_to_points(const ampk_vec d[6], ampk_vec out[6])
{
    ampk_vec a = plus(d[4], -4, d[2]), b = plus(d[3], -4, d[1]);
    ampk_vec c = d[4] - d[2], e = d[3] - d[1];
    out[0] = plus(plus(d[4], -5, d[2]), 4, d[0]);
    out[1] = a + b;
    out[2] = a - b;
    out[3] = plus(c, 2, e);
    out[4] = plus(c, -2, e);
    out[5] = plus(plus(d[5], -5, d[3]), 4, d[1]);
}

/* A' */
AMPK_INLINE void points_to_result(const ampk_vec m[6], ampk_vec out[4])
{
    ampk_vec a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], d = m[3] - m[4];
    out[0] = m[0] + a + c;
    out[1] = plus(b, 2, d);
    out[2] = plus(a, 4, c);
    out[3] = plus(b, 8, d) + m[5];
}

/* A */
AMPK_INLINE void delta_to_points(const ampk_vec y[4], ampk_vec out[6])
{
    ampk_vec a = y[0] + y[2], b = y[1] + y[3];
    ampk_vec c = plus(y[0], 4, y[2]), d = plus(y[1], 4, y[3]);
    out[0] = y[0];
    out[1] = a + b;
    out[2] = a - b;
    out[3] = plus(c, 2, d);
    out[4] = plus(c, -2, d);
    out[5] = y[3];
}

/* G */
AMPK_INLINE void weights_to_points(const ampk_vec g[3], ampk_vec out[6])
{
    ampk_vec a = (g[0] + g[2]) * ampk_vec_set(-1 / 6.f), b = g[1] * ampk_vec_set(1 / 6.f);
    ampk_vec c = plus(g[0] * ampk_vec_set(1 / 24.f), 1 / 6.f, g[2]);
    ampk_vec d = g[1] * ampk_vec_set(1 / 12.f);
    out[0] = g[0] * ampk_vec_set(1 / 4.f);
    out[1] = a - b;
    out[2] = a + b;
    out[3] = c + d;
    out[4] = c - d;
    out[5] = g[2];
}

/* G' */
AMPK_INLINE void points_to_gradient(const ampk_vec s[6], ampk_vec out[3])
{
    ampk_vec a = (s[1] + s[2]) * ampk_vec_set(-1 / 6.f), c = s[3] + s[4];
    out[0] = plus(plus(a, 1 / 24.f, c), 1 / 4.f, s[0]);
    out[1] = plus((s[2] - s[1]) * ampk_vec_set(1 / 6.f), 1 / 12.f, s[3] - s[4]);
    out[2] = plus(a, 1 / 6.f, c) + s[5];
}

/* ---- transforms of a tile ----
 *
 * Of side x side vectors: first along the columns, then along the rows. */

#define TRANSFORM(name, transform, from, to)                                                       \
    AMPK_INLINE void name(const ampk_vec in[from * from], ampk_vec out[to * to])                   \
    {                                                                                              \
        ampk_vec half[to * from], column[from], result[to];                                        \
        for (int x = 0; x < from; x++) {                                                           \
            for (int y = 0; y < from; y++)                                                         \
                column[y] = in[y * from + x];                                                      \
            transform(column, result);                                                             \
            for (int y = 0; y < to; y++)                                                           \
                half[y * from + x] = result[y];                                                    \
        }                                                                                          \
        for (int y = 0; y < to; y++)                                                               \
            transform(half + y * from, out + y * to);                                              \
    }

TRANSFORM(result_tile, points_to_result, 6, 4)
TRANSFORM(weights_tile, weights_to_points, 3, 6)

/* Vectors that lie `step` apart, from or to p. */
AMPK_INLINE void load_points(ampk_vec *v, int count, const float *p, size_t step)
{
    for (int i = 0; i < count; i++)
        v[i] = ampk_vec_load(p + i * step, 0, AMPK_FP32, AMPK_LANES);
}

AMPK_INLINE void store_points(float *p, size_t step, const ampk_vec *v, int count)
{
    for (int i = 0; i < count; i++)
        ampk_vec_store(p + i * step, 0, AMPK_FP32, AMPK_LANES, v[i]);
}

/* 0 beside the image. */
AMPK_INLINE ampk_vec load_pixel(const float *p, const bool inside)
{
    return inside ? ampk_vec_load(p, 0, AMPK_FP32, AMPK_LANES) : ampk_vec_set(0);
}

AMPK_INLINE void store_row(const ampk_vec d[6], float *points, size_t step)
{
    ampk_vec out[6];
    input_to_points(d, out);
    store_points(points, step, out, 6);
}

AMPK_INLINE void store_delta_row(const ampk_vec d[4], float *points, size_t step)
{
    ampk_vec out[6];
    delta_to_points(d, out);
    store_points(points, step, out, 6);
}

/* ---- tiles of a band ---- */

/* Of 6 x 6 pixels. Two rows of points at once, each from the rows of pixels that it needs: 36
 * values do not fit into registers, and to store them takes longer than to load pixels again.
 * delta_points and gradient_taps do the same. Along the columns all three repeat the transforms
 * above, operation by operation. */
AMPK_INLINE void input_points(const float *pixels, int x, int w, size_t c, const bool inside,
                              float *points, size_t step)
{
    size_t row = (size_t)w * c;
    for (size_t i = 0; i < c; i += AMPK_LANES, pixels += AMPK_LANES, points += AMPK_LANES) {
        ampk_vec d[6], a[6], b[6];
#define D(y) load_pixel(pixels + y * row + j * c, inside || (x + j >= 0 && x + j < w))
        for (int j = 0; j < 6; j++) {
            ampk_vec d1 = D(1), d2 = D(2), d3 = D(3), d4 = D(4);
            ampk_vec even = plus(d4, -4, d2), odd = plus(d3, -4, d1);
            a[j] = even + odd;
            b[j] = even - odd;
        }
        store_row(a, points + 6 * step, step);
        store_row(b, points + 12 * step, step);
        for (int j = 0; j < 6; j++) {
            ampk_vec d1 = D(1), d2 = D(2), d3 = D(3), d4 = D(4);
            ampk_vec even = d4 - d2, odd = d3 - d1;
            a[j] = plus(even, 2, odd);
            b[j] = plus(even, -2, odd);
        }
        store_row(a, points + 18 * step, step);
        store_row(b, points + 24 * step, step);
        for (int j = 0; j < 6; j++)
            d[j] = plus(plus(D(4), -5, D(2)), 4, D(0));
        store_row(d, points, step);
        for (int j = 0; j < 6; j++)
            d[j] = plus(plus(D(5), -5, D(3)), 4, D(1));
        store_row(d, points + 30 * step, step);
#undef D
    }
}

/* in: [4*rows + 2][w][c]; points: [36][tiles of `stride` values] */
static void take_input(const struct ampk_winograd_band *b, const float *in, size_t c, float *points,
                       size_t stride, size_t most)
{
    size_t step = point_step(most * stride);
    for (int row = 0; row < b->rows; row++)
        for (int column = 0; column < b->columns; column++, points += stride) {
            int x = column * 4 - 1;
            const float *rows = in + ((ptrdiff_t)row * 4 * b->w + x) * (ptrdiff_t)c;
            if (x >= 0 && x + 6 <= b->w)
                input_points(rows, x, b->w, c, true, points, step);
            else
                input_points(rows, x, b->w, c, false, points, step);
        }
}

/* Of 4 x 4 results; of the last tile of a row fewer columns. */
AMPK_INLINE void delta_points(const float *dy, int columns, size_t row, size_t k, float *points,
                              size_t step)
{
    for (size_t i = 0; i < k; i += AMPK_LANES, dy += AMPK_LANES, points += AMPK_LANES) {
        ampk_vec d[4], a[4], b[4];
#define D(y) load_pixel(dy + (y)*row + j * k, j < columns)
        for (int j = 0; j < 4; j++)
            d[j] = D(0);
        store_delta_row(d, points, step);
        for (int j = 0; j < 4; j++) {
            ampk_vec even = D(0) + D(2), odd = D(1) + D(3);
            a[j] = even + odd;
            b[j] = even - odd;
        }
        store_delta_row(a, points + 6 * step, step);
        store_delta_row(b, points + 12 * step, step);
        for (int j = 0; j < 4; j++) {
            ampk_vec even = plus(D(0), 4, D(2)), odd = plus(D(1), 4, D(3));
            a[j] = plus(even, 2, odd);
            b[j] = plus(even, -2, odd);
        }
        store_delta_row(a, points + 18 * step, step);
        store_delta_row(b, points + 24 * step, step);
        for (int j = 0; j < 4; j++)
            d[j] = D(3);
        store_delta_row(d, points + 30 * step, step);
#undef D
    }
}

/* dy: [4*rows][w][k]; points: [36][step / k][k] */
static void deltas_to_points(const struct ampk_winograd_band *b, const float *dy, size_t k,
                             float *points, size_t step)
{
    size_t line = (size_t)b->w * k;
    for (int row = 0; row < b->rows; row++)
        for (int column = 0; column < b->columns; column++, points += k) {
            const float *rows = dy + row * 4 * line + column * 4 * k;
            int columns = b->w - column * 4;
            if (columns >= 4)
                delta_points(rows, 4, line, k, points, step);
            else
                delta_points(rows, columns, line, k, points, step);
        }
}

/* points: [36][tiles of k values]; out: [4*rows][w][k] */
static void give_output(const struct ampk_winograd_band *b, const float *points, size_t k,
                        size_t most, float *out)
{
    size_t step = point_step(most * k);
    for (int row = 0; row < b->rows; row++)
        for (int column = 0; column < b->columns; column++, points += k) {
            int wide = b->w - column * 4 < 4 ? b->w - column * 4 : 4;
            for (size_t i = 0; i < k; i += AMPK_LANES) {
                ampk_vec in[POINTS], tile[16];
                load_points(in, POINTS, points + i, step);
                result_tile(in, tile);
                for (int y = 0; y < 4; y++)
                    store_points(out + (((size_t)row * 4 + y) * b->w + column * 4) * k + i, k,
                                 tile + y * 4, wide);
            }
        }
}

/* ---- the operations ---- */

static void pack(const float *weights, size_t lane_step, size_t channel_step, size_t channels,
                 float *panel)
{
    bool in_order = channel_step == TAPS;
    size_t columns = in_order ? channels * TAPS : TAPS;
    for (size_t c = 0; c < channels; c += columns / TAPS)
        ampk_turn(weights + c * channel_step, AMPK_FP32, lane_step, PANEL, columns,
                  panel + c * TAPS * PANEL, AMPK_FP32, PANEL);
}

static void to_points(const float *panel, size_t channels, bool flipped, float *points,
                      size_t count)
{
    size_t step = point_step(count);
    for (size_t c = 0; c < channels; c++, panel += TAPS * PANEL, points += PANEL)
        for (int i = 0; i < PANEL; i += AMPK_LANES) {
            ampk_vec in[TAPS], out[POINTS];
            for (int tap = 0; tap < TAPS; tap++)
                in[tap] = ampk_vec_load(panel + (flipped ? TAPS - 1 - tap : tap) * PANEL + i, 0,
                                        AMPK_FP32, AMPK_LANES);
            weights_tile(in, out);
            store_points(points + i, step, out, POINTS);
        }
}

AMPK_INLINE void multiply_points(size_t tiles, size_t channels, const float *x, size_t x_most,
                                 const float *weights, size_t written, float *y, size_t y_most,
                                 const bool add)
{
    size_t w_step = point_step(channels * written), x_step = point_step(x_most * channels);
    size_t y_step = point_step(y_most * written);
    for (int p = 0; p < POINTS; p++)
        for (size_t j = 0; j < written; j += COLUMNS)
            multiply_rows(tiles, channels, x + p * x_step,
                          weights + p * w_step + j / PANEL * PANEL * channels + j % PANEL, PANEL,
                          y + p * y_step + j, written, add);
}

/* One copy that adds and one that does not: to decide that for every block took 4 % of a pass. */
static void multiply(size_t tiles, size_t channels, const float *x, size_t x_most,
                     const float *weights, size_t written, float *y, size_t y_most, bool add)
{
    if (add)
        multiply_points(tiles, channels, x, x_most, weights, written, y, y_most, true);
    else
        multiply_points(tiles, channels, x, x_most, weights, written, y, y_most, false);
}

/* From 36 points that lie `step` apart: one row of taps after another. */
AMPK_INLINE void gradient_taps(const float *points, size_t step, ampk_vec out[TAPS])
{
    ampk_vec row[6];
#define S(y) ampk_vec_load(points + ((y)*6 + j) * step, 0, AMPK_FP32, AMPK_LANES)
    for (int j = 0; j < 6; j++) {
        ampk_vec a = (S(1) + S(2)) * ampk_vec_set(-1 / 6.f), c = S(3) + S(4);
        row[j] = plus(plus(a, 1 / 24.f, c), 1 / 4.f, S(0));
    }
    points_to_gradient(row, out);
    for (int j = 0; j < 6; j++)
        row[j] = plus((S(2) - S(1)) * ampk_vec_set(1 / 6.f), 1 / 12.f, S(3) - S(4));
    points_to_gradient(row, out + 3);
    for (int j = 0; j < 6; j++) {
        ampk_vec a = (S(1) + S(2)) * ampk_vec_set(-1 / 6.f), c = S(3) + S(4);
        row[j] = plus(a, 1 / 6.f, c) + S(5);
    }
    points_to_gradient(row, out + 6);
#undef S
}

/* The gradient at some filters from points that lie `step` apart, COLUMNS from channel to channel.
 * Vectors of filters are turned a few channels at a time. */
static void give_gradient(const float *points, size_t step, size_t channels, float *gradient,
                          size_t filter, ampk_vec_amax *largest)
{
    enum { TURNED = 8 };
    for (size_t c = 0; c < channels; c += TURNED) {
        float taps[TURNED * TAPS][AMPK_LANES];
        for (size_t i = 0; i < TURNED; i++) {
            ampk_vec out[TAPS];
            gradient_taps(points + (c + i) * COLUMNS, step, out);
            for (int tap = 0; tap < TAPS; tap++)
                *largest = ampk_vec_amax_raise(*largest, out[tap], AMPK_LANES);
            store_points(taps[i * TAPS], AMPK_LANES, out, TAPS);
        }
        ampk_turn(taps, AMPK_FP32, AMPK_LANES, TURNED * TAPS, AMPK_LANES, gradient + c * TAPS,
                  AMPK_FP32, filter);
    }
}

/* Points of x, then of dy, of some tiles. */
static void take_tiles(const struct ampk_winograd_band *b, const float *x, size_t channels,
                       const float *dy, size_t filters, size_t first, size_t most, float *points)
{
    size_t x_step = point_step(most * channels), dy_step = point_step(most * filters);
    take_input(b, x, channels, points + first * channels, channels, most);
    deltas_to_points(b, dy, filters, points + POINTS * x_step + first * filters, dy_step);
}

/* Some filters after the other, so that their sums are in the cache when the gradient is taken from
 * them. A block of rows may read beyond its point's channels, into the gap: the sums of such rows
 * are not used. */
static uint32_t add_gradient(const struct ampk_winograd_gradient *g)
{
    size_t x_step = point_step(g->most * g->channels), dy_step = point_step(g->most * g->filters);
    size_t step = point_step(whole_blocks(g->channels) * COLUMNS);
    const float *dy = g->points + POINTS * x_step;
    float *sums = g->sums;
    bool is_all = g->gradient && !g->add;
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t j = 0; j < g->filters; j += COLUMNS, sums += is_all ? 0 : POINTS * step) {
        for (int p = 0; p < POINTS; p++)
            for (size_t i = 0; i < g->channels; i += ROWS)
                multiply_block(ROWS, g->tiles, g->points + p * x_step + i, 1, g->channels,
                               dy + p * dy_step + j, g->filters, sums + p * step + i * COLUMNS,
                               COLUMNS, g->add);
        for (size_t i = 0; i < (g->gradient ? COLUMNS : 0); i += AMPK_LANES)
            give_gradient(sums + i, step, g->channels, g->gradient + (j + i) * g->filter, g->filter,
                          &largest);
    }
    return ampk_vec_amax_get(largest);
}

/* As measured on Zen 4, with 1 MiB of second-level cache a core, and on Zen 3, with 512 KiB. */
const struct ampk_winograd AMPK_CPU(winograd) = {
    .slice_points = (AMPK_LANES == 16 ? 5 << 20 : 1 << 20) / sizeof(float),
    .gradient_slice = AMPK_LANES == 16 ? 128 : 64,
    .shares = AMPK_LANES == 8,
    .pack = pack,
    .to_points = to_points,
    .take_input = take_input,
    .multiply = multiply,
    .give_output = give_output,
    .take_tiles = take_tiles,
    .add_gradient = add_gradient,
};
