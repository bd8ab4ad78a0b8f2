/* Batch-norm with activation and the maxpool of 2 x 2 by 2 behind it, in one: neither the
 * activated values nor their gradient go to memory.
 *
 * A row of a kernel is a cell, the part of the image under a window: 2 x 2 pixels, fewer at odd
 * sides. The last cells may belong to no window. Passes over memory: forward reads y and writes
 * the maxima and their places; both of backward's kernels read y and these two, and the second
 * writes dy. */
#include "batchnorm.h"

/* ---- cells ---- */

struct cell_sides {
    ampk_sides pixels, cells, windows;
};

static struct cell_sides find_sides(const struct ampk_tensor *y, const struct ampk_tensor *maxima)
{
    return {{y->h, y->w}, {(y->h + 1) / 2, (y->w + 1) / 2}, {maxima->h, maxima->w}};
}

static unsigned cell_count(const struct ampk_tensor *y)
{
    return (unsigned)y->n * ((unsigned)(y->h + 1) / 2) * ((unsigned)(y->w + 1) / 2);
}

/* Where a cell is; pixels and windows are rows of their tensors. */
struct cell {
    unsigned first, line; /* row of the upper left pixel; rows to the pixel below */
    unsigned window;      /* 0 if the cell has none: values read there are not used */
    bool has_right, has_lower, has_window;

    __device__ __forceinline__ cell(unsigned row, const cell_sides &sides)
    {
        ampk_pixel at(row, sides.cells);
        first = ampk_row_of(at.image, 2 * at.h, 2 * at.w, sides.pixels);
        line = (unsigned)sides.pixels.w;
        has_right = 2 * at.w + 1 < sides.pixels.w;
        has_lower = 2 * at.h + 1 < sides.pixels.h;
        has_window = at.h < sides.windows.h && at.w < sides.windows.w;
        window = has_window ? ampk_row_of(at.image, at.h, at.w, sides.windows) : 0;
    }
    __device__ __forceinline__ bool has(int k) const
    {
        return (k % 2 == 0 || has_right) && (k / 2 == 0 || has_lower);
    }
    __device__ __forceinline__ unsigned pixel(int k) const
    {
        return first + (unsigned)(k % 2) + (unsigned)(k / 2) * line;
    }
};

/* Loads the pixels of a cell; those outside of the image stay as they are. */
template <typename A>
static __device__ __forceinline__ void
load_pixels(const ampk_view &y, const cell &at, unsigned channel, float (&v)[AMPK_CELL][A::width])
{
#pragma unroll
    for (int k = 0; k < AMPK_CELL; k++)
        if (at.has(k)) A::load(y, at.pixel(k), channel, v[k]);
}

/* ---- forward ---- */

/* Finds the first largest of the activated values, as they would be stored: rounding can make two
 * values equal, and then the first one wins, as in the separate operations. amax is of all
 * activated values. */
template <typename A>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS, 2)
    pool_normalized(ampk_cover cover, cell_sides sides, ampk_view y, ampk_batchnorm bn,
                    ampk_slope activation, ampk_view out, uint8_t *argmax, uint32_t *y_amax,
                    uint32_t *amax)
{
    const int N = A::width;
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0, largest_y = 0;
    if (channel < cover.channels) {
        const ampk_normalizer<N> layer(bn, channel);
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            const cell at(ampk_row_at(cover, row, AMPK_LAST_ROW_FIRST), sides);
            float v[AMPK_CELL][N], max[N];
            uint32_t place[N];
            load_pixels<A>(y, at, channel, v);
#pragma unroll
            for (int i = 0; i < N; i++) {
                max[i] = -FLT_MAX;
                place[i] = AMPK_NOWHERE;
            }
#pragma unroll
            for (int k = 0; k < AMPK_CELL; k++)
                if (at.has(k)) {
                    largest_y = ampk_magnitude(v[k], largest_y);
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        float x = activation.forward(layer.apply(i, v[k][i]));
                        largest = ampk_larger(largest, ampk_magnitude(x));
                        x = A::rounded(y, x);
                        if (x > max[i]) {
                            max[i] = x;
                            place[i] = (uint32_t)k;
                        }
                    }
                }
            if (!at.has_window) continue;
            A::store(out, at.window, channel, max);
            ampk_store_index(argmax + (size_t)at.window * cover.channels + channel, place);
        }
    }
    ampk_raise_stored_amax(y_amax, largest_y, y);
    ampk_raise_amax(amax, largest);
}

/* ---- backward ---- */

/* The inputs of both backward kernels. */
struct pooled_gradient {
    cell_sides sides;
    ampk_view y, d;
    const uint8_t *argmax;
    ampk_batchnorm bn;
    ampk_slope activation;

    template <typename A>
    __device__ __forceinline__ void load(const cell &at, unsigned channel,
                                         const ampk_normalizer<A::width> &layer,
                                         ampk_cell_gradient<A::width> &in) const
    {
        const int N = A::width;
        float d_there[N];
        A::load(d, at.window, channel, d_there);
        ampk_load_index(argmax + (size_t)at.window * d.c + channel, in.chosen);
        load_pixels<A>(y, at, channel, in.y);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (!at.has_window) in.chosen[i] = AMPK_NOWHERE;
        in.find(layer, activation, d_there);
    }
};

/* Sums g and g * (y - mean). g is 0 except at the maximum, so a cell adds one product. count:
 * values of a channel, all pixels. */
template <typename A>
static __global__ void __launch_bounds__(AMPK_SUM_THREADS, 1)
    sum_cells(ampk_cover cover, pooled_gradient gradient, float count, float *partial,
              unsigned *counters, float *dscale, float *dbias, ampk_coefficients to,
              uint32_t *db_amax)
{
    const int N = A::width;
    __shared__ float shared[ampk_sum_shared<A, 2>()];
    unsigned channel = ampk_channel<A>(cover);
    float x[2 * N] = {0};
    if (channel < cover.channels) {
        const ampk_normalizer<N> layer(gradient.bn, channel);
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            ampk_cell_gradient<N> in;
            gradient.load<A>(cell(row, gradient.sides), channel, layer, in);
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[i] += in.g[i];
                x[N + i] = fmaf(in.g[i], layer.distance(i, in.at[i]), x[N + i]);
            }
        }
    }
    if (!ampk_grid_sums(cover, x, shared, partial, counters)) return;
    ampk_finish_channels<A>(cover, gradient.bn, count, shared, dscale, dbias, to, db_amax);
}

/* Writes dy for all pixels of a cell: batch-norm gives a gradient to those without a maximum, too.
 */
template <typename A>
static __global__ void __launch_bounds__(AMPK_MAP_THREADS, 2)
    pass_back_cells(ampk_cover cover, pooled_gradient gradient, ampk_coefficients by, ampk_view dy,
                    uint32_t *amax)
{
    const int N = A::width;
    unsigned channel = ampk_channel<A>(cover);
    uint32_t largest = 0;
    if (channel < cover.channels) {
        const ampk_normalizer<N> layer(gradient.bn, channel);
        const ampk_gradient_factors<N> factors(by, channel);
        for (unsigned row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
            const cell at(ampk_row_at(cover, row, AMPK_LAST_ROW_FIRST), gradient.sides);
            ampk_cell_gradient<N> in;
            gradient.load<A>(at, channel, layer, in);
#pragma unroll
            for (int k = 0; k < AMPK_CELL; k++)
                if (at.has(k)) {
                    float v[N];
#pragma unroll
                    for (int i = 0; i < N; i++)
                        v[i] = in.pass(layer, factors, k, i);
                    largest = ampk_put<A>(dy, at.pixel(k), channel, v, false, largest);
                }
        }
    }
    ampk_raise_amax(amax, largest);
}

/* ---- operations ---- */

extern "C" void ampk_cuda_bn_act_pool_forward(struct ampk_context *ctx, const struct ampk_tensor *y,
                                              const struct ampk_batchnorm *bn,
                                              enum ampk_activation activation,
                                              const struct ampk_tensor *out, void *argmax,
                                              uint32_t *y_amax, uint32_t *amax)
{
    struct ampk_view from = ampk_pixels(y), to = ampk_pixels(out);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_cover cover = ampk_cover_map<A>(cell_count(y), from.c);
        AMPK_LAUNCH(pool_normalized<A>, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover,
                    find_sides(y, out), from, *bn, ampk_slope_of(activation), to, (uint8_t *)argmax,
                    y_amax, amax);
    };
    ampk_with_access(run, from, to);
}

static struct pooled_gradient gradient_of(const struct ampk_layer_gradient *g)
{
    return {find_sides(g->y, g->d),
            ampk_pixels(g->y),
            ampk_pixels(g->d),
            (const uint8_t *)g->argmax,
            *g->bn,
            ampk_slope_of(g->activation)};
}

template <typename A>
static struct ampk_coefficients run_sums(struct ampk_context *ctx,
                                         const struct ampk_layer_gradient *g, float *dscale,
                                         float *dbias, uint32_t *db_amax)
{
    size_t c = (size_t)g->y->c, vectors = AMPK_COEFFICIENTS * c;
    struct ampk_cover cover = ampk_cover_sum<A>(cell_count(g->y), (unsigned)c);
    float *work =
        (float *)ampk_cuda_work(ctx, ampk_sum_bytes<A>(cover, 2) + vectors * sizeof(float));
    struct ampk_coefficients by = ampk_coefficients_at(work, c);
    AMPK_LAUNCH(sum_cells<A>, cover.grid, AMPK_SUM_THREADS, 0, ctx->stream, cover, gradient_of(g),
                (float)ampk_pixel_count(g->y), work + vectors, ctx->counters, dscale, dbias, by,
                db_amax);
    if (g->bn->peers)
        ampk_cuda_share_sums(ctx, g->bn, (unsigned)c, ampk_pixel_count(g->y), &by, dscale, dbias,
                             db_amax);
    return by;
}

struct ampk_coefficients ampk_cuda_sum_pooled_gradient(struct ampk_context *ctx,
                                                       const struct ampk_layer_gradient *g,
                                                       float *dscale, float *dbias,
                                                       uint32_t *db_amax)
{
    struct ampk_coefficients by = {};
    auto run = [&](auto access) {
        by = run_sums<decltype(access)>(ctx, g, dscale, dbias, db_amax);
    };
    ampk_with_access(run, ampk_pixels(g->y), ampk_pixels(g->d));
    return by;
}

extern "C" void ampk_cuda_bn_act_pool_backward(
    struct ampk_context *ctx, const struct ampk_tensor *y, const struct ampk_batchnorm *bn,
    enum ampk_activation activation, const struct ampk_tensor *d, const void *argmax,
    const struct ampk_tensor *dy, float *dscale, float *dbias, uint32_t *dy_amax, uint32_t *db_amax)
{
    const struct ampk_layer_gradient g = {y, bn, activation, d, argmax};
    struct ampk_view to = ampk_pixels(dy);
    auto run = [&](auto access) {
        typedef decltype(access) A;
        struct ampk_coefficients by = run_sums<A>(ctx, &g, dscale, dbias, db_amax);
        struct ampk_cover cover = ampk_cover_map<A>(cell_count(y), to.c);
        AMPK_LAUNCH(pass_back_cells<A>, cover.grid, AMPK_MAP_THREADS, 0, ctx->stream, cover,
                    gradient_of(&g), by, to, dy_amax);
    };
    ampk_with_access(run, ampk_pixels(y), to, ampk_pixels(d));
}
