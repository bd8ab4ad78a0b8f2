/* Copies between dtypes, layouts and channel ranges. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

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
            if (accumulate) v = ampk_vec_add(ampk_vec_load(to.data, at, D, left), v);
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

/* ---- convert, between layouts: a matrix [rows][columns] is transposed tile by tile ---- */

enum { TILE_SIDE = 64, TILE_AREA = TILE_SIDE * TILE_SIDE };

/* A tile of the source matrix. */
struct tile {
    size_t row, rows, column, columns;
};

/* Side of a tile along `length`: tiles of narrow matrices are long. */
static size_t tile_side(size_t length, size_t other)
{
    size_t side = other < TILE_SIDE ? TILE_AREA / other : TILE_SIDE;
    return length < side ? length : side;
}

/* Reads or writes a tile of an image with rows of `width` elements; a tile as wide as the image is
 * one row. The other side is dense FP32. */
static void load_tile(float *buffer, const struct ampk_tensor *t, size_t image, struct tile tile,
                      size_t width)
{
    struct rows from = rows_at(t, image, tile.row * width + tile.column, width);
    struct rows to = {buffer, AMPK_FP32, tile.columns};
    if (tile.columns == width)
        copy_rows(to, from, 1, tile.rows * width, false);
    else
        copy_rows(to, from, tile.rows, tile.columns, false);
}

static uint32_t store_tile(const struct ampk_tensor *t, size_t image, struct tile tile,
                           size_t width, float *buffer, bool accumulate)
{
    struct rows to = rows_at(t, image, tile.row * width + tile.column, width);
    struct rows from = {buffer, AMPK_FP32, tile.columns};
    if (tile.columns == width) return copy_rows(to, from, 1, tile.rows * width, accumulate);
    return copy_rows(to, from, tile.rows, tile.columns, accumulate);
}

static uint32_t transpose_tile(const struct ampk_tensor *src, const struct ampk_tensor *dst,
                               size_t image, struct tile tile, size_t rows, size_t columns,
                               bool accumulate)
{
    float in[TILE_AREA], out[TILE_AREA];
    load_tile(in, src, image, tile, columns);
    for (size_t c = 0; c < tile.columns; c++)
        for (size_t r = 0; r < tile.rows; r++)
            out[c * tile.rows + r] = in[r * tile.columns + c];
    struct tile turned = {tile.column, tile.columns, tile.row, tile.rows};
    return store_tile(dst, image, turned, rows, out, accumulate);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
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

/* Where element i of an NHWC image, counted in NCHW order, lies. */
static size_t place_of(const struct ampk_tensor *t, size_t i)
{
    size_t area = (size_t)t->h * t->w;
    return i % area * t->c + i / area;
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

/* Memory order is NCHW order. */
static bool is_planar(const struct ampk_tensor *t)
{
    return t->layout == AMPK_NCHW || t->c == 1 || (size_t)t->h * t->w == 1;
}

void AMPK_CPU(convert)(struct ampk_context *ctx, const struct ampk_tensor *src,
                       const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    const struct ampk_tensor *pixels = is_planar(src) ? dst : src; /* the one in NHWC order */
    size_t area = (size_t)pixels->h * pixels->w, c = pixels->c;
    uint32_t largest;
    if (is_planar(src) ? is_planar(dst) : !is_planar(dst) && src->c == dst->c)
        largest = copy_images(ctx, src, dst, accumulate);
    else if (is_planar(src))
        largest = transpose_images(ctx, src, dst, c, area, accumulate);
    else if (is_planar(dst))
        largest = transpose_images(ctx, src, dst, area, c, accumulate);
    else
        largest = regroup_images(ctx, src, dst, accumulate);
    ampk_amax_raise(amax, largest);
}

/* ---- channel ranges ---- */

/* dst[to + c] (+)= src[from + c] for c in [0, channels) of every pixel. */
static uint32_t copy_channels(struct ampk_context *ctx, const struct ampk_tensor *src, int from,
                              const struct ampk_tensor *dst, int to, int channels, bool accumulate)
{
    size_t area = (size_t)src->h * src->w, block = (AMPK_PIECE + channels - 1) / channels;
    size_t blocks = (area + block - 1) / block, all = src->n * blocks;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (all > 1)
    for (size_t i = 0; i < all; i++) {
        size_t image = i / blocks, pixel = i % blocks * block;
        uint32_t m = copy_rows(rows_at(dst, image, pixel * dst->c + to, dst->c),
                               rows_at(src, image, pixel * src->c + from, src->c),
                               smaller(area - pixel, block), channels, accumulate);
        if (m > largest) largest = m;
    }
    return largest;
}

void AMPK_CPU(channels_scatter)(struct ampk_context *ctx, const struct ampk_tensor *src,
                                const struct ampk_tensor *dst, int first, uint32_t *amax)
{
    ampk_amax_raise(amax, copy_channels(ctx, src, 0, dst, first, src->c, false));
}

void AMPK_CPU(channels_gather)(struct ampk_context *ctx, const struct ampk_tensor *src,
                               const struct ampk_tensor *dst, int first, bool accumulate,
                               uint32_t *amax)
{
    ampk_amax_raise(amax, copy_channels(ctx, src, first, dst, 0, dst->c, accumulate));
}
