/* Batch-norm with activation and the maxpool of 2 x 2 by 2 behind it, in one: neither the
 * activated values nor their gradient are stored.
 *
 * All are loops over cells. A cell is the part of the image under a window: 2 x 2 pixels, fewer at
 * odd sides. The last cells may belong to no window. Vectors run along the channels. A piece of
 * the work is some rows of cells of one image; the shape alone decides how many. Sums over a piece
 * are FP32, sums over pieces double. */
#include "arithmetic.h"

#include <assert.h>
#include <float.h>
#include <string.h>

enum {
    PIXELS = 4, /* of a cell: 0 1 above 2 3; argmax counts them so */
    NONE = 4,   /* argmax if nothing exceeds -FLT_MAX */
    TILE = 512, /* elements of y in a tile of up to this many channels, else one cell */
    TILE_CHANNELS = 128,
};

/* Cells side by side that all have the same rows and columns of pixels. Addresses are those of the
 * first cell. */
struct tile {
    const void *y, *d; /* d, out: NULL if the cells belong to no window */
    void *dy, *out;
    const uint8_t *from;
    uint8_t *to;
    size_t cells, channels, line; /* line: elements from a pixel to the one below */
    enum ampk_dtype dtype;
    int rows, columns;
    float *sums[2]; /* the kernel adds its sums */
};

/* One operation. */
struct job {
    /* Returns the largest magnitude found, as amax bits. */
    uint32_t (*kernel)(const struct job *, const struct tile *);
    const struct ampk_tensor *y, *d, *out, *dy; /* all but y may be NULL: unused */
    const uint8_t *from;                        /* argmax to read */
    uint8_t *to;                                /* argmax to write */
    const float *parameter[AMPK_BN_PARAMETERS];
    enum ampk_activation activation;
    float *sums[2]; /* per channel, NULL: not there */
};

/* ---- kernels ---- */

/* A kernel is a function of one column: as many channels as a vector has lanes, or `left` of them,
 * over all cells of a tile. It returns `largest`, raised. */
#define COLUMN(name)                                                                               \
    AMPK_INLINE ampk_vec_amax name(const struct job *job, const struct tile *tile, size_t i,       \
                                   size_t left, ampk_vec_amax largest, enum ampk_dtype t,          \
                                   enum ampk_activation a, int rows, int columns)

/* Defines name_tile(job, tile), which calls name(...) for all columns with the tile's dtype, the
 * job's activation and the sides of a whole cell as constants. */
#define KERNEL(name)                                                                               \
    AMPK_INLINE ampk_vec_amax name##_columns(const struct job *job, const struct tile *tile,       \
                                             enum ampk_dtype t, enum ampk_activation a, int rows,  \
                                             int columns)                                          \
    {                                                                                              \
        const struct job j = *job; /* copies: no store can change them */                          \
        const struct tile k = *tile;                                                               \
        size_t i = 0;                                                                              \
        ampk_vec_amax largest = ampk_vec_amax_zero();                                              \
        for (; i + AMPK_LANES <= k.channels; i += AMPK_LANES)                                      \
            largest = name(&j, &k, i, AMPK_LANES, largest, t, a, rows, columns);                   \
        if (i < k.channels)                                                                        \
            largest = name(&j, &k, i, k.channels - i, largest, t, a, rows, columns);               \
        return largest;                                                                            \
    }                                                                                              \
    AMPK_INLINE ampk_vec_amax name##_cells(const struct job *job, const struct tile *tile,         \
                                           enum ampk_dtype t, enum ampk_activation a)              \
    {                                                                                              \
        if (tile->rows == 2 && tile->columns == 2) return name##_columns(job, tile, t, a, 2, 2);   \
        return name##_columns(job, tile, t, a, tile->rows, tile->columns);                         \
    }                                                                                              \
    static uint32_t name##_tile(const struct job *job, const struct tile *tile)                    \
    {                                                                                              \
        ampk_vec_amax largest = ampk_vec_amax_zero();                                              \
        AMPK_WITH_DTYPE(                                                                           \
            tile->dtype, T,                                                                        \
            AMPK_WITH_ACTIVATION(job->activation, A, largest = name##_cells(job, tile, T, A)));    \
        return ampk_vec_amax_get(largest);                                                         \
    }

/* Runs the statement for every existing pixel of a cell, with K as a constant. A loop would keep
 * vectors in memory with compilers that do not unroll it. */
#define FOR_PIXELS(rows, columns, K, statement)                                                    \
    do {                                                                                           \
        {                                                                                          \
            enum { K = 0 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
        if ((columns) == 2) {                                                                      \
            enum { K = 1 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
        if ((rows) == 2) {                                                                         \
            enum { K = 2 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
        if ((rows) == 2 && (columns) == 2) {                                                       \
            enum { K = 3 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

/* Index of pixel k of a cell, in elements. */
AMPK_INLINE size_t place(const struct tile *tile, size_t cell, int k)
{
    return (2 * cell + (size_t)(k % 2)) * tile->channels + (size_t)(k / 2) * tile->line;
}

AMPK_INLINE void raise_sum(const struct tile *tile, int which, size_t i, size_t left, ampk_vec sum)
{
    float *sums = tile->sums[which];
    sum = ampk_vec_load(sums, i, AMPK_FP32, left) + sum;
    ampk_vec_store(sums, i, AMPK_FP32, left, sum);
}

struct maximum {
    ampk_vec value, place;
};

/* Compares with the activated value of pixel k. Only a greater value wins, so the first of equal
 * ones stays. */
AMPK_INLINE void compare(struct maximum *max, ampk_vec v, int k)
{
    max->place = ampk_vec_if_greater(v, max->value, ampk_vec_set((float)k), max->place);
    max->value = ampk_vec_if_greater(v, max->value, v, max->value);
}

/* Activates pixel k of a cell, watches its magnitude and returns the value that would be stored. */
AMPK_INLINE ampk_vec activated(const struct tile *tile, const struct ampk_normalizer *n,
                               size_t cell, int k, size_t i, size_t left, ampk_vec_amax *largest,
                               enum ampk_dtype t, enum ampk_activation a)
{
    ampk_vec v = ampk_vec_load(tile->y, place(tile, cell, k) + i, t, left);
    v = ampk_vec_activate(ampk_normalized(n, v), a);
    *largest = ampk_vec_amax_raise(*largest, v, left);
    return ampk_vec_round(v, t);
}

/* out and argmax: the first largest of the activated values, as they would be stored. Rounding can
 * make two values equal, as in the separate operations. Magnitudes are of all activated values. */
COLUMN(maxima)
{
    const struct ampk_normalizer n = ampk_normalizer_at(job->parameter, i, left);
    for (size_t cell = 0; cell < tile->cells; cell++) {
        struct maximum max = {ampk_vec_set(-FLT_MAX), ampk_vec_set(NONE)};
        FOR_PIXELS(rows, columns, K,
                   compare(&max, activated(tile, &n, cell, K, i, left, &largest, t, a), K));
        if (!tile->out) continue;
        ampk_vec_store(tile->out, cell * tile->channels + i, t, left, max.value);
        ampk_vec_store_bytes(tile->to + cell * tile->channels + i, left, max.place);
    }
    return largest;
}
KERNEL(maxima)

/* The inputs of both backward kernels, for one cell. */
struct cell {
    ampk_vec y[PIXELS];
    ampk_vec chosen; /* the pixel with the maximum */
    ampk_vec at;     /* y there */
    ampk_vec g;      /* the gradient before the activation there; 0 elsewhere */
};

AMPK_INLINE struct cell read_cell(const struct tile *tile, const struct ampk_normalizer *n,
                                  size_t which, size_t i, size_t left, enum ampk_dtype t,
                                  enum ampk_activation a, int rows, int columns)
{
    size_t window = which * tile->channels + i;
    struct cell cell = {.chosen = ampk_vec_set(NONE)};
    ampk_vec d = ampk_vec_set(0);
    if (tile->d) {
        d = ampk_vec_load(tile->d, window, t, left);
        cell.chosen = ampk_vec_load_bytes(tile->from + window, left);
        d = ampk_vec_if_equal(cell.chosen, ampk_vec_set(NONE), ampk_vec_set(0), d);
    }
    FOR_PIXELS(rows, columns, K,
               cell.y[K] = ampk_vec_load(tile->y, place(tile, which, K) + i, t, left));
    cell.at = cell.y[0];
    FOR_PIXELS(rows, columns, K,
               cell.at = ampk_vec_if_equal(cell.chosen, ampk_vec_set(K), cell.y[K], cell.at));
    cell.g = ampk_vec_activation_backward(d, ampk_normalized(n, cell.at), a);
    return cell;
}

/* With g the gradient before the activation: sum(g) and sum(g * (y - mean)). */
COLUMN(gradient_sums)
{
    const struct ampk_normalizer n = ampk_normalizer_at(job->parameter, i, left);
    ampk_vec sum = ampk_vec_set(0), product = ampk_vec_set(0);
    for (size_t which = 0; which < tile->cells; which++) {
        const struct cell cell = read_cell(tile, &n, which, i, left, t, a, rows, columns);
        sum += cell.g;
        product = ampk_vec_fma(cell.g, cell.at - n.mean, product);
    }
    raise_sum(tile, 0, i, left, sum);
    raise_sum(tile, 1, i, left, product);
    return largest;
}
KERNEL(gradient_sums)

/* dy at pixel k. */
AMPK_INLINE ampk_vec gradient_of(const struct cell *cell, const struct ampk_gradient_factors *f,
                                 ampk_vec mean, int k)
{
    ampk_vec here = ampk_vec_set((float)k);
    ampk_vec g = ampk_vec_if_equal(cell->chosen, here, cell->g, ampk_vec_set(0));
    return ampk_gradient_at(f, mean, cell->y[k], g);
}

/* dy, and the magnitudes of it. */
COLUMN(gradient)
{
    const struct ampk_normalizer n = ampk_normalizer_at(job->parameter, i, left);
    const struct ampk_gradient_factors f = ampk_gradient_factors_at(job->parameter, i, left);
    for (size_t which = 0; which < tile->cells; which++) {
        const struct cell cell = read_cell(tile, &n, which, i, left, t, a, rows, columns);
        FOR_PIXELS(rows, columns, K,
                   ampk_vec_store_amax(tile->dy, place(tile, which, K) + i, t, left,
                                       gradient_of(&cell, &f, n.mean, K), &largest));
    }
    return largest;
}
KERNEL(gradient)

/* ---- tiles, rows and pieces ---- */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* `cells` cells from cell (row, column) on. */
static struct tile tile_at(const struct job *job, size_t image, size_t row, size_t column,
                           size_t cells)
{
    const struct ampk_tensor *y = job->y, *maxima = job->out ? job->out : job->d;
    size_t c = (size_t)y->c, w = (size_t)y->w, h = (size_t)y->h;
    size_t pixel = (2 * row * w + 2 * column) * c;
    struct tile tile = {.y = ampk_at(y, image, pixel),
                        .cells = cells,
                        .channels = c,
                        .line = w * c,
                        .dtype = y->dtype,
                        .rows = 2 * row + 1 < h ? 2 : 1,
                        .columns = 2 * column + 1 < w ? 2 : 1,
                        .sums = {job->sums[0], job->sums[1]}};
    if (job->dy) tile.dy = ampk_at(job->dy, image, pixel);
    if (row >= (size_t)maxima->h || column >= (size_t)maxima->w) return tile;
    size_t window = (row * (size_t)maxima->w + column) * c;
    size_t index = image * ampk_image_size(maxima) + window;
    if (job->out) tile.out = ampk_at(job->out, image, window);
    if (job->to) tile.to = job->to + index;
    if (job->d) tile.d = ampk_at(job->d, image, window);
    if (job->from) tile.from = job->from + index;
    return tile;
}

/* Cells in a tile. A kernel walks a tile column by column. That order must stay close to the order
 * in memory, or the processor's prefetching fails. */
static size_t tile_cells(size_t channels)
{
    return channels <= TILE_CHANNELS ? TILE / PIXELS / channels : 1;
}

static uint32_t run_row(const struct job *job, size_t image, size_t row)
{
    size_t whole = (size_t)job->y->w / 2, step = tile_cells((size_t)job->y->c);
    uint32_t found = 0;
    for (size_t column = 0; column < whole; column += step) {
        struct tile tile = tile_at(job, image, row, column, smaller(step, whole - column));
        found = (uint32_t)larger(found, job->kernel(job, &tile));
    }
    if (job->y->w % 2) {
        struct tile tile = tile_at(job, image, row, whole, 1);
        found = (uint32_t)larger(found, job->kernel(job, &tile));
    }
    return found;
}

/* Rows of cells in an image. */
static size_t row_count(const struct ampk_tensor *y)
{
    return ((size_t)y->h + 1) / 2;
}

static size_t piece_count(const struct ampk_tensor *y)
{
    size_t step = ampk_bn_piece_pairs(y->c, y->w);
    return (row_count(y) + step - 1) / step;
}

/* Runs the job on all of y. sums: how many per channel, 0 or 2; partial: sums*c floats for each
 * piece of each image. */
static uint32_t run(const struct job *job, int threads, size_t sums, float *partial)
{
    size_t rows = row_count(job->y), step = ampk_bn_piece_pairs(job->y->c, job->y->w);
    size_t pieces = piece_count(job->y), c = (size_t)job->y->c;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(threads) reduction(max : largest)
    for (size_t i = 0; i < pieces * (size_t)job->y->n; i++) {
        struct job piece = *job;
        for (size_t j = 0; j < sums; j++) {
            piece.sums[j] = partial + (i * sums + j) * c;
            memset(piece.sums[j], 0, c * sizeof(float));
        }
        size_t first = i % pieces * step, last = smaller(first + step, rows);
        for (size_t row = first; row < last; row++) {
            uint32_t found = run_row(&piece, i / pieces, row);
            if (found > largest) largest = found;
        }
    }
    return largest;
}

/* ---- operations ---- */

static void check(const struct ampk_tensor *y, const struct ampk_tensor *maxima)
{
    assert(y->layout == AMPK_NHWC && maxima->layout == AMPK_NHWC && y->dtype == maxima->dtype);
    assert(maxima->h == y->h / 2 || maxima->h == (y->h + 1) / 2);
    assert(maxima->w == y->w / 2 || maxima->w == (y->w + 1) / 2);
    (void)y, (void)maxima;
}

void AMPK_CPU(bn_act_pool_forward)(struct ampk_context *ctx, const struct ampk_tensor *y,
                                   const struct ampk_batchnorm *bn, enum ampk_activation activation,
                                   const struct ampk_tensor *out, void *argmax, uint32_t *y_amax,
                                   uint32_t *amax)
{
    check(y, out);
    struct job job = {
        .kernel = maxima_tile, .y = y, .out = out, .to = argmax, .activation = activation};
    size_t c = (size_t)y->c;
    ampk_set_normalizer(job.parameter, bn, c, ampk_memory(ctx, c * sizeof(float)));
    ampk_amax_raise(amax, run(&job, ctx->threads, 0, NULL));
    if (y_amax) AMPK_CPU(watch_stored)(ctx, y, y_amax);
}

void AMPK_CPU(bn_act_pool_backward)(struct ampk_context *ctx, const struct ampk_tensor *y,
                                    const struct ampk_batchnorm *bn,
                                    enum ampk_activation activation, const struct ampk_tensor *d,
                                    const void *argmax, const struct ampk_tensor *dy, float *dscale,
                                    float *dbias, uint32_t *dy_amax, uint32_t *db_amax)
{
    check(y, d);
    struct job job = {
        .kernel = gradient_sums_tile, .y = y, .d = d, .from = argmax, .activation = activation};
    size_t c = (size_t)y->c, pieces = piece_count(y) * (size_t)y->n;
    float *sums = ampk_memory(ctx, (2 * pieces + AMPK_BN_ARRAYS) * c * sizeof(float));
    float *factor = sums + 2 * c, *of_g = factor + c, *partial = of_g + 3 * c;
    ampk_set_normalizer(job.parameter, bn, c, factor);
    run(&job, ctx->threads, 2, partial);
    AMPK_CPU(add_partial)(partial, pieces, 2 * c, sums);
    double count = (double)y->n * y->h * y->w;
    ampk_set_gradient(job.parameter, bn, c, count, sums, of_g, dscale, dbias, db_amax);
    job.kernel = gradient_tile;
    job.dy = dy;
    ampk_amax_raise(dy_amax, run(&job, ctx->threads, 0, NULL));
}
