/* Computes a first convolution's weight gradient and batch-norm's dy in one: dy is made in
 * registers, rounded as it would be stored, and multiplied on Tensor Cores with the image.
 *
 * dw [filter][tap and channel] = sum over pixels of dy [pixel][filter] * x [pixel + tap][channel].
 * This is a matrix product whose depth is all pixels of the batch, and we may choose which lane
 * has which pixels. We choose so that the dy that a lane computes is the lane's own part of the
 * first operand (mma.h). With lane = 4 * group + t, a lane has N neighbouring filters from group *
 * N on, of cell t, a square of 2 x 2 pixels. The upper two pixels are depths 2t and 2t + 1 of the
 * product, the lower two these + 8; filters group * N + 2i and + 1 are rows group and group + 8 of
 * product i. A maxpool's window is such a cell, too.
 *
 * A warp goes through tiles of 2 rows x 32 columns, four cells at a time. A tile needs 4 x 34
 * pixels of the image. They lie in shared memory, each channel of a row by itself, in words of two
 * neighbouring pixels, one word for each pixel. A word at any shift is then one operand word.
 *
 * A block has the same tiles on every device. Sums of warps, then of blocks, are added in one
 * order.
 *
 * Must not know plans: conv.c decides which way a convolution goes. */
#include "conv_kernels.h"

#include "kernels/cuda/ops/batchnorm.h"
#include "mma.h"

static const int THREADS = 128, WARPS = THREADS / AMPK_WARP;
static const int TAPS = 9, MOST_FILTERS = 64, MOST_CHANNELS = 4;
static const unsigned MOST_BLOCKS = 2048; /* about five waves of the largest GPU */

static const int GROUPS = 8, LANES = 4; /* lanes of a group */
static const int TILE_ROWS = 2, TILE_COLUMNS = 32;
static const int STEP_COLUMNS = 2 * LANES, STEPS = TILE_COLUMNS / STEP_COLUMNS;

/* ---- the image in shared memory ---- */

static const int IMAGE_ROWS = TILE_ROWS + 2;
/* Words from one channel to the next: at least TILE_COLUMNS + 3, and such that three channels of a
 * row lie in different banks. */
static const int PLANE = 42;

/* The sizes of the product. N: filters of a lane. Columns: products of 8 columns (taps and
 * channels). K: number of filters, so that the compiler knows the distance between pixels; 0: any
 * number. */
template <typename T, int K, int N, int Columns> struct multiplication {
    typedef T type;
    static const int all_filters = K, filters = N, of_warp = GROUPS * N;
    static const int products = N / 2, columns = Columns;
    static const int channels = Columns * 8 / TAPS; /* there is room for */
    static const int image_row = channels * PLANE, image_words = IMAGE_ROWS * image_row;
    static const int sums = products * columns * 4, values = sums * AMPK_WARP;
    static const int shared_words =
        WARPS * image_words > WARPS / 2 * values ? WARPS *image_words : WARPS / 2 * values;
    /* How many steps to load before the first is used: more loads in flight, as far as registers
     * allow. */
    static const int ahead = K == 0 ? 1 : N == 2 ? 4 : 2;
};

/* ---- places ---- */

struct tiles {
    ampk_sides image, windows; /* windows: of a maxpool */
    ampk_divisor across, down;
    unsigned count, each; /* each: of a block */
};

/* The first pixel of a tile. */
struct tile_place {
    int image, row, column;
    bool is_whole;

    __device__ __forceinline__ tile_place(unsigned tile, const tiles &all)
    {
        uint32_t across, down;
        image = (int)ampk_split(ampk_split(tile, all.across, &across), all.down, &down);
        row = (int)down * TILE_ROWS;
        column = (int)across * TILE_COLUMNS;
        is_whole = row + TILE_ROWS <= all.image.h && column + TILE_COLUMNS <= all.image.w;
    }
};

/* Whether pixel k of the cell at row and column is in the image. */
static __device__ __forceinline__ bool has_pixel(int row, int column, int k, ampk_sides image)
{
    return row + k / 2 < image.h && column + k % 2 < image.w;
}

/* The inputs of a layer, in device memory. */
struct layer {
    const void *x, *y, *d;
    const uint8_t *argmax;
    int c, k;
    ampk_batchnorm bn;
    ampk_slope activation;
    ampk_coefficients by;
};

/* ---- the second operand ---- */

/* Puts pixel `column` of a row, counted from the one to the left of the tile. It is the first half
 * of word column + 1 and the second half of the word before. */
static __device__ __forceinline__ void put_pixel(uint16_t *plane, int column, uint16_t v)
{
    plane[2 * (column + 1)] = v;
    plane[2 * column + 1] = v;
}

/* The pixel in x, NULL outside of the image, where x counts as 0. */
static __device__ __forceinline__ const uint16_t *
find_pixel(const layer &l, const tiles &all, const tile_place &at, int row, int column)
{
    row += at.row - 1;
    column += at.column - 1;
    bool inside = row >= 0 && row < all.image.h && column >= 0 && column < all.image.w;
    if (!inside) return NULL;
    return (const uint16_t *)l.x + (size_t)ampk_row_of(at.image, row, column, all.image) * l.c;
}

/* Loads a warp's part of the image: each lane a column, then one value of the two columns that are
 * left. */
template <typename M>
static __device__ __forceinline__ void load_image(const layer &l, const tiles &all,
                                                  const tile_place &at, uint32_t *words)
{
    const int lane = threadIdx.x % AMPK_WARP;
    uint16_t *halves = reinterpret_cast<uint16_t *>(words);
    const int last_row = lane / 8, last_column = AMPK_WARP + lane / 4 % 2, last_c = lane % 4;
    const uint16_t *at_last = find_pixel(l, all, at, last_row, last_column);
    const uint16_t last = at_last && last_c < l.c ? at_last[last_c] : (uint16_t)0;
    __syncwarp(); /* the tile before has been read */
#pragma unroll 1
    for (int row = 0; row < IMAGE_ROWS; row += 2) {
        uint16_t v[2][M::channels];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint16_t *from = find_pixel(l, all, at, row + i, lane);
#pragma unroll
            for (int c = 0; c < M::channels; c++)
                v[i][c] = from && c < l.c ? from[c] : (uint16_t)0;
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < M::channels; c++)
                put_pixel(halves + 2 * ((row + i) * M::image_row + c * PLANE), lane, v[i][c]);
    }
    if (last_c < M::channels)
        put_pixel(halves + 2 * (last_row * M::image_row + last_c * PLANE), last_column, last);
    __syncwarp();
}

/* Finds, for the lane's column of each product, the word that belongs to the upper pixels of its
 * cell in the tile's first step. Columns without a tap read another column's word; their results
 * are not stored. */
template <typename M>
static __device__ __forceinline__ void find_columns(int c, int (&words)[M::columns])
{
    const int group = threadIdx.x % AMPK_WARP / LANES, t = threadIdx.x % LANES;
#pragma unroll
    for (int j = 0; j < M::columns; j++) {
        int column = 8 * j + group;
        if (column >= TAPS * c) column = 0;
        const int tap = column / c, channel = column % c;
        words[j] = tap / 3 * M::image_row + channel * PLANE + tap % 3 + 2 * t + 1;
    }
}

/* ---- the first operand ---- */

template <typename T, int N>
static __device__ __forceinline__ ampk_vector<T, N> load_vector(const T *from)
{
    AMPK_CHECK_ALIGNED(from, alignof(ampk_vector<T, N>));
    return *reinterpret_cast<const ampk_vector<T, N> *>(from);
}

template <typename T, int N>
static __device__ __forceinline__ void unpack(const ampk_vector<uint32_t, N / 2> &words,
                                              float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i += 2)
        ampk_unpack<T>(words.at[i / 2], &x[i], &x[i + 1]);
}

/* A lane's filters of a cell, as stored; pixels outside of the image are 0. */
template <int N> struct plain_input {
    typedef ampk_vector<uint32_t, N / 2> words;
    words y[AMPK_CELL], d[AMPK_CELL];
};

template <int N> struct pooled_input {
    typedef ampk_vector<uint32_t, N / 2> words;
    words y[AMPK_CELL], d;
    ampk_vector<uint8_t, N> chosen;
};

template <int N>
static __device__ __forceinline__ ampk_vector<uint32_t, N / 2> load_words(const void *from,
                                                                          size_t element)
{
    return load_vector<uint32_t, N / 2>(
        reinterpret_cast<const uint32_t *>((const uint16_t *)from + element));
}

/* Where a lane's filters of a cell are: in y, and in d and argmax at the maxima. */
struct cell_place {
    int row, column;
    size_t pixel, window;

    __device__ __forceinline__ cell_place(const layer &l, const tiles &all, const tile_place &at,
                                          int filter)
    {
        row = at.row;
        column = at.column + 2 * (threadIdx.x % LANES);
        pixel = (size_t)ampk_row_of(at.image, row, column, all.image) * l.k + filter;
        window = (size_t)ampk_row_of(at.image, row / 2, column / 2, all.windows) * l.k + filter;
    }
    __device__ __forceinline__ void go_on(size_t stride)
    {
        column += STEP_COLUMNS;
        pixel += STEP_COLUMNS * stride;
        window += STEP_COLUMNS / 2 * stride;
    }
};

/* stride: elements from pixel to pixel. */
template <int N, bool Whole>
static __device__ __forceinline__ void load_pixels(const tiles &all, const cell_place &at,
                                                   size_t stride, const void *from,
                                                   ampk_vector<uint32_t, N / 2> (&to)[AMPK_CELL])
{
    const size_t rows[2] = {at.pixel, at.pixel + (size_t)all.image.w * stride};
#pragma unroll
    for (int k = 0; k < AMPK_CELL; k++) {
        to[k] = {};
        if (Whole || has_pixel(at.row, at.column, k, all.image))
            to[k] = load_words<N>(from, rows[k / 2] + k % 2 * stride);
    }
}

template <int N, bool Whole>
static __device__ __forceinline__ void
load_cell(const layer &l, const tiles &all, const cell_place &at, size_t stride, plain_input<N> &in)
{
    load_pixels<N, Whole>(all, at, stride, l.y, in.y);
    load_pixels<N, Whole>(all, at, stride, l.d, in.d);
}

template <int N, bool Whole>
static __device__ __forceinline__ void load_cell(const layer &l, const tiles &all,
                                                 const cell_place &at, size_t stride,
                                                 pooled_input<N> &in)
{
    load_pixels<N, Whole>(all, at, stride, l.y, in.y);
    in.d = {};
#pragma unroll
    for (int i = 0; i < N; i++)
        in.chosen.at[i] = AMPK_NOWHERE;
    if (!Whole && (at.row / 2 >= all.windows.h || at.column / 2 >= all.windows.w)) return;
    in.d = load_words<N>(l.d, at.window);
    in.chosen = load_vector<uint8_t, N>(l.argmax + at.window);
}

/* Factors that make dy, for a lane's filters. */
template <int N> struct factors {
    ampk_normalizer<N> layer;
    ampk_gradient_factors<N> by;
    ampk_slope activation;
};

template <typename T, int N>
static __device__ __forceinline__ void make_dy(const plain_input<N> &in, const factors<N> &f,
                                               float (&dy)[AMPK_CELL][N])
{
#pragma unroll
    for (int k = 0; k < AMPK_CELL; k++) {
        float y[N], d[N];
        unpack<T, N>(in.y[k], y);
        unpack<T, N>(in.d[k], d);
#pragma unroll
        for (int i = 0; i < N; i++)
            dy[k][i] = f.by.apply(i, f.layer.distance(i, y[i]),
                                  f.activation.backward(d[i], f.layer.apply(i, y[i])));
    }
}

template <typename T, int N>
static __device__ __forceinline__ void make_dy(const pooled_input<N> &in, const factors<N> &f,
                                               float (&dy)[AMPK_CELL][N])
{
    ampk_cell_gradient<N> cell;
    float d[N];
#pragma unroll
    for (int k = 0; k < AMPK_CELL; k++)
        unpack<T, N>(in.y[k], cell.y[k]);
    unpack<T, N>(in.d, d);
#pragma unroll
    for (int i = 0; i < N; i++)
        cell.chosen[i] = in.chosen.at[i];
    cell.find(f.layer, f.activation, d);
#pragma unroll
    for (int k = 0; k < AMPK_CELL; k++)
#pragma unroll
        for (int i = 0; i < N; i++)
            dy[k][i] = cell.pass(f.layer, f.by, k, i);
}

/* ---- products ---- */

/* Multiplies one step of a tile. words: the image at the step. */
template <typename M>
static __device__ __forceinline__ void
multiply(const float (&dy)[AMPK_CELL][M::filters], const uint32_t *words,
         const int (&columns)[M::columns], float (&sums)[M::products * M::columns][4])
{
    typedef typename M::type T;
    uint32_t a[M::products][4];
#pragma unroll
    for (int i = 0; i < M::products; i++)
#pragma unroll
        for (int part = 0; part < 4; part++) { /* of upper and lower pixels, two filters each */
            const int k = part / 2 * 2, filter = 2 * i + part % 2;
            a[i][part] = ampk_pack<T>(dy[k][filter], dy[k + 1][filter]);
        }
#pragma unroll
    for (int j = 0; j < M::columns; j++) {
        const uint32_t b[2] = {words[columns[j]], words[columns[j] + M::image_row]};
#pragma unroll
        for (int i = 0; i < M::products; i++)
            ampk_mma<T>(sums[i * M::columns + j], a[i], b);
    }
}

/* Takes a whole tile: makes dy and multiplies. Returns the larger of `largest` and the magnitudes
 * of dy. Whole: no pixel is outside of the image, so the tests for that are compiled away. */
template <typename M, typename Input, bool Whole>
static __device__ __forceinline__ uint32_t take_tile(const layer &l, const tiles &all,
                                                     const tile_place &at, int filter,
                                                     const factors<M::filters> &f, uint32_t *image,
                                                     const int (&columns)[M::columns],
                                                     float (&sums)[M::products * M::columns][4],
                                                     uint32_t largest)
{
    const int N = M::filters, ahead = Whole ? M::ahead : 1;
    const size_t stride = M::all_filters ? M::all_filters : l.k;
    cell_place next(l, all, at, filter);
#pragma unroll 1
    for (int step = 0; step < STEPS; step += ahead) {
        Input in[ahead];
        const int row = next.row, column = next.column;
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            load_cell<N, Whole>(l, all, next, stride, in[i]);
            next.go_on(stride);
        }
        if (step == 0) load_image<M>(l, all, at, image);
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            float dy[AMPK_CELL][N];
            make_dy<typename M::type>(in[i], f, dy);
#pragma unroll
            for (int k = 0; k < AMPK_CELL; k++) {
                if (!Whole && !has_pixel(row, column, k, all.image)) {
#pragma unroll
                    for (int n = 0; n < N; n++)
                        dy[k][n] = 0;
                }
                largest = ampk_magnitude(dy[k], largest);
            }
            multiply<M>(dy, image + (step + i) * STEP_COLUMNS, columns, sums);
        }
    }
    return largest;
}

/* Adds the sums of all warps into those of the first. Halving the warps keeps the order fixed and
 * needs shared memory for half of them only. */
template <typename M>
static __device__ __forceinline__ void add_warps(float (&sums)[M::products * M::columns][4],
                                                 float *shared)
{
    const int lane = threadIdx.x % AMPK_WARP, warp = threadIdx.x / AMPK_WARP;
#pragma unroll 1
    for (int half = WARPS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (warp >= half && warp < 2 * half)
#pragma unroll
            for (int i = 0; i < M::sums; i++)
                shared[(warp - half) * M::values + i * AMPK_WARP + lane] = sums[i / 4][i % 4];
        __syncthreads();
        if (warp < half)
#pragma unroll
            for (int i = 0; i < M::sums; i++)
                sums[i / 4][i % 4] += shared[warp * M::values + i * AMPK_WARP + lane];
    }
}

/* Sums one block's tiles, for filters blockIdx.y * M::of_warp and on; partial gets M::values
 * floats of each block. The last tiles come first: what was read just before may still be in the
 * cache. */
template <typename M, typename Input>
static __global__ void __launch_bounds__(THREADS, M::filters == 2 ? 4 : 3)
    ampk_multiply_gradient(layer l, tiles all, float *partial, uint32_t *amax)
{
    const int N = M::filters;
    alignas(16) __shared__ uint32_t shared[M::shared_words];
    const int lane = threadIdx.x % AMPK_WARP, warp = threadIdx.x / AMPK_WARP;
    int filter = blockIdx.y * M::of_warp + lane / LANES * N;
    if (filter >= l.k) filter = 0; /* computed twice; this one is not stored */
    const factors<N> f = {{l.bn, (unsigned)filter}, {l.by, (unsigned)filter}, l.activation};
    float sums[M::products * M::columns][4] = {};
    int columns[M::columns];
    find_columns<M>(l.c, columns);
    uint32_t largest = 0, *image = shared + warp * M::image_words;
    const unsigned first = blockIdx.x * all.each;
    const unsigned end = all.count - first < all.each ? all.count : first + all.each;
#pragma unroll 1
    for (unsigned i = first + warp; i < end; i += WARPS) {
        const tile_place at(all.count - 1 - i, all);
        if (at.is_whole)
            largest =
                take_tile<M, Input, true>(l, all, at, filter, f, image, columns, sums, largest);
        else
            largest =
                take_tile<M, Input, false>(l, all, at, filter, f, image, columns, sums, largest);
    }
    add_warps<M>(sums, reinterpret_cast<float *>(shared));
    if (warp == 0) {
        float *to = partial + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * M::values + lane;
#pragma unroll
        for (int i = 0; i < M::sums; i++)
            to[i * AMPK_WARP] = sums[i / 4][i % 4];
    }
    ampk_raise_amax(amax, largest);
}

/* ---- the sums of blocks ---- */

static const int ADDING_THREADS = 512;

/* Adds up dw [filter][tap][padded c] from the sums that `blocks` blocks left. There is one block
 * for each sum that a lane has. It adds that sum for all 32 lanes, and its warps take different
 * blocks' sums at once. */
template <typename M>
static __global__ void __launch_bounds__(ADDING_THREADS)
    ampk_add_blocks(const float *partial, unsigned blocks, int k, int c, int padded_c, float *dw)
{
    __shared__ float shared[ADDING_THREADS];
    const int lane = threadIdx.x % AMPK_WARP, line = threadIdx.x / AMPK_WARP;
    const int lines = ADDING_THREADS / AMPK_WARP;
    const float *from = partial + (size_t)blockIdx.y * blocks * M::values;
    const unsigned own = blockIdx.x * AMPK_WARP + lane;
    shared[threadIdx.x] =
        ampk_sum_every<16>(from, line * M::values + own, lines * M::values, blocks * M::values);
    ampk_add_up(shared, lines, AMPK_WARP);
    if (line) return;
    const int number = blockIdx.x % 4, product = blockIdx.x / 4 / M::columns;
    const int column = blockIdx.x / 4 % M::columns * 8 + lane % LANES * 2 + number % 2;
    const int filter =
        blockIdx.y * M::of_warp + lane / LANES * M::filters + 2 * product + number / 2;
    const int tap = column / c, channel = column % c;
    if (tap >= TAPS || filter >= k) return;
    float *to = dw + ((size_t)filter * TAPS + tap) * padded_c;
    to[channel] = shared[lane];
    for (int i = c; i < padded_c && channel == 0; i++)
        to[i] = 0;
}

/* ---- launches ---- */

static bool is_dense(const struct ampk_tensor *t, enum ampk_dtype dtype)
{
    return t->dtype == dtype && t->layout == AMPK_NHWC && ampk_pitch(t) == t->c &&
           (t->n == 1 || t->image_stride == ampk_image_size(t)) && (uintptr_t)t->data % 16 == 0;
}

extern "C" bool ampk_image_gradient_fits(const struct ampk_context *ctx,
                                         const struct ampk_conv_shape *s,
                                         const struct ampk_tensor *x,
                                         const struct ampk_layer_gradient *g)
{
    bool window = s->kh == 3 && s->kw == 3 && s->stride == 1 && s->pad == 1 && s->groups == 1;
    bool sizes = s->c <= MOST_CHANNELS && s->k % 8 == 0 && s->k <= MOST_FILTERS;
    bool at_y = g->argmax || (g->d->h == g->y->h && g->d->w == g->y->w);
    bool type = (s->compute == AMPK_COMPUTE_FP16 && x->dtype == AMPK_FP16) ||
                (s->compute == AMPK_COMPUTE_BF16 && x->dtype == AMPK_BF16);
    return window && sizes && at_y && type && !s->forward_only &&
           ampk_is_two_slopes(g->activation) && is_dense(x, x->dtype) && is_dense(g->y, x->dtype) &&
           is_dense(g->d, x->dtype) && (uintptr_t)g->argmax % 16 == 0 &&
           ampk_has_mma(ctx, x->dtype);
}

static struct tiles cut(const struct ampk_tensor *x, ampk_sides windows)
{
    unsigned across = ((unsigned)x->w + TILE_COLUMNS - 1) / TILE_COLUMNS;
    unsigned down = ((unsigned)x->h + TILE_ROWS - 1) / TILE_ROWS;
    unsigned count = (unsigned)x->n * down * across;
    unsigned each = (count + MOST_BLOCKS - 1) / MOST_BLOCKS;
    each = (each + WARPS - 1) / WARPS * WARPS;
    return {{x->h, x->w}, windows, ampk_divide_by(across), ampk_divide_by(down), count, each};
}

static unsigned block_count(const struct tiles &all)
{
    return (all.count + all.each - 1) / all.each;
}

/* How many times a warp's filters fit into k: so many blocks read each tile. */
template <typename M> static unsigned part_count(int k)
{
    return ((unsigned)k + M::of_warp - 1) / M::of_warp;
}

/* Calls run with the types for so many filters and channels. 16 and 32 filters have code of their
 * own, with constant distances between pixels. */
template <typename T, typename Run> static void with_multiplication(int k, int c, Run run)
{
    if (c > 3)
        run(multiplication<T, 0, 4, 5>());
    else if (k == 16)
        run(multiplication<T, 16, 2, 4>());
    else if (k == 32)
        run(multiplication<T, 32, 4, 4>());
    else
        run(multiplication<T, 0, 4, 4>());
}

/* Floats before the sums of blocks: batch-norm's coefficients, rounded up to whole 256-byte
 * pieces. */
static size_t coefficient_floats(int k)
{
    return (AMPK_COEFFICIENTS * (size_t)k + 63) / 64 * 64;
}

extern "C" size_t ampk_image_gradient_work(const struct ampk_tensor *x, int k)
{
    size_t floats = 0;
    with_multiplication<ampk_fp16>(k, x->c, [&](auto m) {
        typedef decltype(m) M;
        floats = (size_t)part_count<M>(k) * block_count(cut(x, {})) * M::values;
    });
    return (coefficient_floats(k) + floats) * sizeof(float);
}

template <typename M, typename Input>
static void run(struct ampk_context *ctx, const struct ampk_conv_weights &w, const layer &l,
                const tiles &all, float *partial, float *dw, uint32_t *amax)
{
    unsigned parts = part_count<M>(w.k), blocks = block_count(all);
    AMPK_LAUNCH((ampk_multiply_gradient<M, Input>), dim3(blocks, parts), THREADS, 0, ctx->stream, l,
                all, partial, amax);
    AMPK_LAUNCH(ampk_add_blocks<M>, dim3(M::sums, parts), ADDING_THREADS, 0, ctx->stream, partial,
                blocks, w.k, w.c, w.padded_c, dw);
}

extern "C" void ampk_image_gradient(struct ampk_context *ctx, const struct ampk_conv_weights *w,
                                    const struct ampk_tensor *x,
                                    const struct ampk_layer_gradient *g, float *dw, float *dscale,
                                    float *dbias, uint32_t *dy_amax, uint32_t *db_amax)
{
    float *work = (float *)ampk_cuda_work(ctx, ampk_image_gradient_work(x, w->k));
    struct ampk_coefficients by = ampk_cuda_sum_gradient(ctx, g, dscale, dbias, db_amax);
    struct ampk_slope activation = ampk_slope_of(g->activation);
    layer l = {x->data, g->y->data, g->d->data, (const uint8_t *)g->argmax, x->c, w->k,
               *g->bn,  activation, by};
    tiles all = cut(x, {g->d->h, g->d->w});
    float *partial = work + coefficient_floats(w->k);
    auto with_type = [&](auto m) {
        typedef decltype(m) M;
        if (g->argmax)
            run<M, pooled_input<M::filters>>(ctx, *w, l, all, partial, dw, dy_amax);
        else
            run<M, plain_input<M::filters>>(ctx, *w, l, all, partial, dw, dy_amax);
    };
    if (x->dtype == AMPK_FP16)
        with_multiplication<ampk_fp16>(w->k, w->c, with_type);
    else
        with_multiplication<ampk_bf16>(w->k, w->c, with_type);
}
