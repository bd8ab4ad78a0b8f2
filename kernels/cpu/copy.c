/* Copies between dtypes, layouts and slices (kernels.h, convert): row by row if both sides have
 * the same order, tile by tile between the orders, element by element between two NHWC shapes. */
#include "cpu.h"
#include "simd.h"

/* ---- rows ---- */

/* Rows of `length` elements, `step` elements apart. */
struct rows {
    void *data;
    enum ampk_dtype dtype;
    size_t step;
};

/* to (+)= from for `count` rows; returns the amax of what was stored. */
AMPK_INLINE uint32_t copy_rows_as(struct rows to, enum ampk_dtype D, struct rows from,
                                  enum ampk_dtype S, size_t count, size_t length, bool accumulate)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; i < length; i += AMPK_LANES) {
            size_t left = length - i, at = r * to.step + i;
            ampk_vec v = ampk_vec_load(from.data, r * from.step + i, S, left);
            if (accumulate) v = ampk_vec_load(to.data, at, D, left) + v;
            ampk_vec_store_amax(to.data, at, D, left, v, &largest);
        }
    return ampk_vec_amax_get(largest);
}

static uint32_t copy_rows(struct rows to, struct rows from, size_t count, size_t length,
                          bool accumulate)
{
    uint32_t largest;
    AMPK_WITH_DTYPE(
        to.dtype, D,
        AMPK_WITH_DTYPE(from.dtype, S,
                        largest = copy_rows_as(to, D, from, S, count, length, accumulate)));
    return largest;
}

/* Rows of t that start at element i of an image. */
static struct rows rows_at(const struct ampk_tensor *t, size_t image, size_t i, size_t step)
{
    return (struct rows){ampk_at(t, image, i), t->dtype, step};
}

/* ---- convert, same order in memory ---- */

static uint32_t copy_images(struct ampk_context *ctx, const struct ampk_tensor *src,
                            const struct ampk_tensor *dst, bool accumulate)
{
    size_t size = ampk_image_size(src), pieces = ampk_pieces(size), all = src->n * pieces;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (all > 1)
    for (size_t i = 0; i < all; i++) {
        size_t image = i / pieces, first = i % pieces * AMPK_PIECE;
        uint32_t m = copy_rows(rows_at(dst, image, first, 0), rows_at(src, image, first, 0), 1,
                               ampk_piece(size, first), accumulate);
        if (m > largest) largest = m;
    }
    return largest;
}

/* ---- convert, slices: pixel by pixel ---- */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static uint32_t copy_pixels(struct ampk_context *ctx, const struct ampk_tensor *src,
                            const struct ampk_tensor *dst, bool accumulate)
{
    size_t c = src->c, area = (size_t)src->h * src->w, block = (AMPK_PIECE + c - 1) / c;
    size_t blocks = (area + block - 1) / block, all = src->n * blocks;
    size_t to = (size_t)ampk_pitch(dst), from = (size_t)ampk_pitch(src);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (all > 1)
    for (size_t i = 0; i < all; i++) {
        size_t image = i / blocks, pixel = i % blocks * block;
        uint32_t m =
            copy_rows(rows_at(dst, image, pixel * to, to), rows_at(src, image, pixel * from, from),
                      smaller(area - pixel, block), c, accumulate);
        if (m > largest) largest = m;
    }
    return largest;
}

/* ---- convert, between layouts: a matrix [rows][columns] is transposed tile by tile ---- */

/* In elements. Two tiles in FP32 are 32 KiB of stack. */
enum { TILE_SIDE = 64, TILE_AREA = TILE_SIDE * TILE_SIDE };

/* A tile of the source matrix. */
struct tile {
    size_t row, rows, column, columns;
};

/* Side of a tile along `length`. Tiles of narrow matrices are long, so that a tile still has full
 * work. */
static size_t tile_side(size_t length, size_t other)
{
    size_t side = other < TILE_SIDE ? TILE_AREA / other : TILE_SIDE;
    return length < side ? length : side;
}

/* Reads or writes a tile of an image whose rows start `step` elements apart. If the tile is as
 * wide as the rows, it is one run in memory. The other side is dense FP32. */
static void load_tile(float *buffer, const struct ampk_tensor *t, size_t image, struct tile tile,
                      size_t step)
{
    struct rows from = rows_at(t, image, tile.row * step + tile.column, step);
    struct rows to = {buffer, AMPK_FP32, tile.columns};
    if (tile.columns == step)
        copy_rows(to, from, 1, tile.rows * step, false);
    else
        copy_rows(to, from, tile.rows, tile.columns, false);
}

static uint32_t store_tile(const struct ampk_tensor *t, size_t image, struct tile tile, size_t step,
                           float *buffer, bool accumulate)
{
    struct rows to = rows_at(t, image, tile.row * step + tile.column, step);
    struct rows from = {buffer, AMPK_FP32, tile.columns};
    if (tile.columns == step) return copy_rows(to, from, 1, tile.rows * step, accumulate);
    return copy_rows(to, from, tile.rows, tile.columns, accumulate);
}

/* Whether the order in memory is that of NCHW. */
static bool is_planar(const struct ampk_tensor *t)
{
    return t->layout == AMPK_NCHW || ampk_pitch(t) == 1 || (size_t)t->h * t->w == 1;
}

/* Elements from row to row of t, taken as a matrix whose rows have `width` elements. */
static size_t row_step(const struct ampk_tensor *t, size_t width)
{
    return is_planar(t) ? width : (size_t)ampk_pitch(t);
}

static uint32_t transpose_tile(const struct ampk_tensor *src, const struct ampk_tensor *dst,
                               size_t image, struct tile tile, size_t rows, size_t columns,
                               bool accumulate)
{
    float in[TILE_AREA], out[TILE_AREA];
    load_tile(in, src, image, tile, row_step(src, columns));
    ampk_turn(in, AMPK_FP32, tile.columns, tile.rows, tile.columns, out, AMPK_FP32, tile.rows);
    struct tile turned = {tile.column, tile.columns, tile.row, tile.rows};
    return store_tile(dst, image, turned, row_step(dst, rows), out, accumulate);
}

/* src is [rows][columns] in memory, dst [columns][rows]. */
static uint32_t transpose_images(struct ampk_context *ctx, const struct ampk_tensor *src,
                                 const struct ampk_tensor *dst, size_t rows, size_t columns,
                                 bool accumulate)
{
    size_t height = tile_side(rows, columns), width = tile_side(columns, rows);
    size_t down = (rows + height - 1) / height, across = (columns + width - 1) / width;
    size_t all = src->n * down * across;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (all > 1)
    for (size_t i = 0; i < all; i++) {
        size_t image = i / (down * across);
        struct tile tile = {.row = i / across % down * height, .column = i % across * width};
        tile.rows = smaller(rows - tile.row, height);
        tile.columns = smaller(columns - tile.column, width);
        uint32_t m = transpose_tile(src, dst, image, tile, rows, columns, accumulate);
        if (m > largest) largest = m;
    }
    return largest;
}

/* ---- convert, between shapes, both NHWC: element by element ---- */

/* Index of element i of an NHWC image, counted in NCHW order. */
static size_t place_of(const struct ampk_tensor *t, size_t i)
{
    size_t area = (size_t)t->h * t->w;
    return i % area * ampk_pitch(t) + i / area;
}

static uint32_t regroup_images(struct ampk_context *ctx, const struct ampk_tensor *src,
                               const struct ampk_tensor *dst, bool accumulate)
{
    size_t size = ampk_image_size(src), all = src->n * size;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest)
    for (size_t i = 0; i < all; i++) {
        void *to = ampk_at(dst, i / size, place_of(dst, i % size));
        float v = ampk_load(ampk_at(src, i / size, place_of(src, i % size)), 0, src->dtype);
        if (accumulate) v = ampk_load(to, 0, dst->dtype) + v;
        ampk_store(to, 0, dst->dtype, v);
        if ((ampk_bits(v) & 0x7fffffff) > largest) largest = ampk_bits(v) & 0x7fffffff;
    }
    return largest;
}

/* An NHWC tensor without gaps between pixels. */
static bool is_dense(const struct ampk_tensor *t)
{
    return !is_planar(t) && ampk_pitch(t) == t->c;
}

/* From the cheapest case to the dearest: one run per image, rows of channels, transposition,
 * single elements. */
void AMPK_CPU(convert)(struct ampk_context *ctx, const struct ampk_tensor *src,
                       const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    const struct ampk_tensor *pixels = is_planar(src) ? dst : src; /* the one in NHWC order */
    size_t area = (size_t)pixels->h * pixels->w, c = pixels->c;
    uint32_t largest;
    if (is_planar(src) ? is_planar(dst) : is_dense(src) && is_dense(dst) && src->c == dst->c)
        largest = copy_images(ctx, src, dst, accumulate);
    else if (!is_planar(src) && !is_planar(dst) && src->c == dst->c)
        largest = copy_pixels(ctx, src, dst, accumulate);
    else if (is_planar(src))
        largest = transpose_images(ctx, src, dst, c, area, accumulate);
    else if (is_planar(dst))
        largest = transpose_images(ctx, src, dst, area, c, accumulate);
    else
        largest = regroup_images(ctx, src, dst, accumulate);
    ampk_amax_raise(amax, largest);
}
