/* Computes convolutions that read images: windows of 3 x 3 by 1, padded by 1, at most 4 channels,
 * few filters; and batch-norm's statistics of the result.
 *
 * With so few products a byte, memory sets the pace. So the kernel reads x once, without padded
 * channels, writes y once, and takes batch-norm's sums of y, rounded as stored, from registers.
 *
 * A block goes through a run of tiles of 16 x 32 pixels of y. The part of x that a tile needs lies
 * in shared memory with 4 channels a pixel; meanwhile the next tile's part is on its way from
 * memory. A warp computes 16 pixels of a row at a time: one product on Tensor Cores for each row
 * of the window, 4 pixels x 4 channels deep. The fourth pixel is not in the window. The weights
 * stay in registers.
 *
 * Must not know plans: conv.c decides which way a convolution goes. */
#include "conv_kernels.h"

#include "kernels/cuda/ops/batchnorm.h"
#include "mma.h"

static const int THREADS = 256, WARPS = THREADS / AMPK_WARP;
static const int ROWS = 16, COLUMNS = 32,
                 ACROSS = 16; /* tile of y in pixels; ACROSS: pixels of a product */
static const int WINDOW = 3, PACKED_CHANNELS = 8; /* channels of the packed weights */
static const int MOST_FILTERS = 32; /* of a block: their weights and sums fill registers */
/* Pixels staged on either side of a tile. The window needs 1; with 4, runs of 4 pixels begin at
 * multiples of 4. */
static const int MARGIN = 4;
static const int STAGED_ROWS = ROWS + 2, STAGED_COLUMNS = COLUMNS + 2 * MARGIN;
static const int PIXEL = 2; /* words of a staged pixel */

/* Blocks leave their sums in work memory, in groups. The last block of a group to finish adds up
 * the group; the last of these blocks adds up the groups. So no block reads more than GROUP rows
 * at either step. */
static const unsigned GROUP = 32, MOST_BLOCKS = GROUP * GROUP;
static const unsigned FILL = 256; /* Enough blocks to keep a large GPU busy. */

struct image_tiles {
    int c, h, w, k;
    int down, across;     /* tiles of an image */
    unsigned count, each; /* tiles of all images, tiles of a block */
    unsigned pixels;
};

/* A tile's first pixel. advance() avoids the divisions of the constructor. */
struct tile_place {
    int image, row, column;

    __device__ __forceinline__ tile_place(const image_tiles &t, unsigned tile)
    {
        unsigned line = tile / (unsigned)t.across;
        column = (int)(tile - line * t.across) * COLUMNS;
        image = (int)(line / t.down);
        row = (int)(line - (unsigned)image * t.down) * ROWS;
    }
    __device__ __forceinline__ void advance(const image_tiles &t)
    {
        column += COLUMNS;
        if (column < t.w) return;
        column = 0;
        row += ROWS;
        if (row < t.h) return;
        row = 0;
        image++;
    }
};

/* ---- x, from memory to shared memory: first loaded into registers, then put ---- */

static __device__ __forceinline__ const uint16_t *pixel_at(const image_tiles &t, const uint16_t *x,
                                                           int image, int row, int column)
{
    return x + (((size_t)image * t.h + row) * t.w + column) * t.c;
}

static __device__ __forceinline__ bool is_inside(const image_tiles &t, int row, int column)
{
    return (unsigned)row < (unsigned)t.h && (unsigned)column < (unsigned)t.w;
}

/* Each thread loads 4 pixels of 3 channels, 24 bytes, as three loads of 8. Rows must have a length
 * that is a multiple of 4. */
struct by_fours {
    static const int LINE = STAGED_COLUMNS / 4, COUNT = STAGED_ROWS * LINE;
    static_assert(COUNT <= THREADS, "a thread has one piece");
    uint32_t words[6];

    __device__ __forceinline__ void load(const image_tiles &t, const uint16_t *x,
                                         const tile_place &at)
    {
        int row = at.row - 1 + (int)threadIdx.x / LINE;
        int column = at.column - MARGIN + (int)threadIdx.x % LINE * 4;
        bool wanted = threadIdx.x < COUNT && is_inside(t, row, column);
        const uint16_t *from = pixel_at(t, x, at.image, row, column);
#pragma unroll
        for (int i = 0; i < 3; i++) {
            ampk_vector<uint32_t, 2> two = {};
            if (wanted) {
                AMPK_CHECK_ALIGNED(from + 4 * i, sizeof two);
                two = reinterpret_cast<const ampk_vector<uint32_t, 2> *>(from)[i];
            }
            words[2 * i] = two.at[0];
            words[2 * i + 1] = two.at[1];
        }
    }
    __device__ __forceinline__ void put(ampk_vector<uint32_t, 4> *staged) const
    {
        if (threadIdx.x >= COUNT) return;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t *w = words + 3 * i;
            staged[2 * threadIdx.x + i] = {
                {w[0], w[1] & 0xffff, w[1] >> 16 | w[2] << 16, w[2] >> 16}};
        }
    }
};

/* Loads pixel by pixel, for any number of channels and any row length. */
struct by_ones {
    static const int LINE = COLUMNS + 2, COUNT = STAGED_ROWS * LINE;
    static const int EACH = (COUNT + THREADS - 1) / THREADS;
    uint32_t words[EACH][PIXEL];

    __device__ __forceinline__ void load(const image_tiles &t, const uint16_t *x,
                                         const tile_place &at)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int piece = (int)threadIdx.x + i * THREADS;
            int row = at.row - 1 + piece / LINE, column = at.column - 1 + piece % LINE;
            bool wanted = piece < COUNT && is_inside(t, row, column);
            const uint16_t *from = pixel_at(t, x, at.image, row, column);
            uint32_t channels[4];
#pragma unroll
            for (int c = 0; c < 4; c++)
                channels[c] = wanted && c < t.c ? from[c] : 0;
            words[i][0] = channels[0] | channels[1] << 16;
            words[i][1] = channels[2] | channels[3] << 16;
        }
    }
    __device__ __forceinline__ void put(ampk_vector<uint32_t, 4> *staged) const
    {
        auto *pixels = reinterpret_cast<ampk_vector<uint32_t, 2> *>(staged);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int piece = (int)threadIdx.x + i * THREADS;
            if (piece < COUNT)
                pixels[piece / LINE * STAGED_COLUMNS + MARGIN - 1 + piece % LINE] = {
                    {words[i][0], words[i][1]}};
        }
    }
};

/* ---- products ---- */

/* The second operand of the products: 16 x 16 numbers of pixels times 8 filters, for one row of
 * the window (mma.h). The depth of a product is a pixel's own 4 channels and those of the next
 * three staged pixels. Column 2i + e of product j is filter 2 (i J + j) + e, so that a lane's
 * results are 2 J filters in a row and it can store them at once. */
template <int J> struct filters {
    uint32_t b[WINDOW][J][2];

    __device__ __forceinline__ void load(const uint32_t *weights)
    {
        const int tap = PACKED_CHANNELS / 2; /* words */
        int lane = threadIdx.x % AMPK_WARP, group = lane / 4, quarter = lane % 4;
#pragma unroll
        for (int row = 0; row < WINDOW; row++)
#pragma unroll
            for (int j = 0; j < J; j++) {
                int filter = group / 2 * 2 * J + 2 * j + group % 2;
                const uint32_t *from = weights + (filter * WINDOW + row) * WINDOW * tap;
                b[row][j][0] = from[quarter / 2 * tap + quarter % 2];
                b[row][j][1] = quarter < 2 ? from[2 * tap + quarter] : 0;
            }
    }
};

/* Computes d of 16 pixels. from: the lane's word of the first row. The fourth pixel is replaced by
 * 0 rather than multiplied by a weight of 0: it may be infinite, and 0 * inf is NaN. */
template <typename T, int J>
static __device__ __forceinline__ void multiply(const uint32_t *from, const filters<J> &weights,
                                                float (&d)[J][4])
{
    bool in_window = threadIdx.x % 4 < 2;
#pragma unroll
    for (int row = 0; row < WINDOW; row++, from += STAGED_COLUMNS * PIXEL) {
        uint32_t a[4] = {from[0], from[8 * PIXEL], in_window ? from[2 * PIXEL] : 0,
                         in_window ? from[10 * PIXEL] : 0};
#pragma unroll
        for (int j = 0; j < J; j++)
            ampk_mma<T>(d[j], a, weights.b[row][j]);
    }
}

/* ---- results ---- */

template <typename T, int J>
static __device__ __forceinline__ void store_filters(const uint32_t (&words)[J], T *to)
{
    const int piece = J % 4 == 0 ? 4 : J % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < J; i += piece) {
        ampk_vector<uint32_t, piece> some;
#pragma unroll
        for (int j = 0; j < piece; j++)
            some.at[j] = words[i + j];
        AMPK_CHECK_ALIGNED(to + 2 * i, sizeof some);
        ampk_store_words(to + 2 * i, some);
    }
}

/* Stores a lane's filters of one pixel and adds them to its sums as they were stored. The sums are
 * of y - shift, as in bn_statistics. */
template <typename T, int J>
static __device__ __forceinline__ void finish_pixel(const float (&d)[J][4], int first, T *to,
                                                    const float (&shift)[2 * J],
                                                    float (&sums)[4 * J])
{
    uint32_t words[J];
#pragma unroll
    for (int j = 0; j < J; j++)
        words[j] = ampk_pack<T>(d[j][first], d[j][first + 1]);
    store_filters(words, to);
#pragma unroll
    for (int j = 0; j < J; j++) {
        float v[2];
        ampk_unpack<T>(words[j], &v[0], &v[1]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = 2 * j + e;
            float distance = v[e] - shift[i];
            sums[i] += distance;
            sums[2 * J + i] = fmaf(distance, distance, sums[2 * J + i]);
        }
    }
}

/* Leaves the block's `width` sums in its row. In the last of `count` blocks, adds up all rows,
 * leaves the totals in shared and returns true. */
static __device__ __forceinline__ bool gather(float *shared, unsigned width, float *rows,
                                              unsigned own, unsigned count, unsigned *counter)
{
    if (threadIdx.x < width) rows[own * width + threadIdx.x] = shared[threadIdx.x];
    if (!ampk_is_last(counter, count)) return false;
    unsigned lines = THREADS / width, line = threadIdx.x / width;
    shared[threadIdx.x] =
        ampk_sum_every<16>(rows, threadIdx.x, lines * width, line < lines ? count * width : 0);
    ampk_add_up(shared, lines, width);
    return true;
}

/* The same over all blocks, group by group. Which block is last varies, but the order of the sums
 * does not: each total adds the rows by number. */
static __device__ __forceinline__ bool gather_all(float *shared, unsigned width, float *partial,
                                                  unsigned *counters)
{
    unsigned group = blockIdx.x / GROUP, groups = (gridDim.x + GROUP - 1) / GROUP;
    unsigned left = gridDim.x - group * GROUP, members = left < GROUP ? left : GROUP;
    partial += blockIdx.y * (gridDim.x + groups) * width;
    counters += blockIdx.y * (GROUP + 1);
    float *of_group = partial + group * GROUP * width, *of_groups = partial + gridDim.x * width;
    return gather(shared, width, of_group, blockIdx.x % GROUP, members, counters + group) &&
           gather(shared, width, of_groups, group, groups, counters + GROUP);
}

/* The state of a lane from tile to tile: the sums of y - shift and of its square, for its 2 * J
 * filters. */
template <int J> struct lane_sums {
    static const int OWN = 2 * J;
    float shift[OWN], sums[2 * OWN];
};

/* Computes a tile whose part of x is staged; first: the lane's first filter. Each warp has two
 * rows, each in two parts. With these loops unrolled, places in shared memory are constants, but
 * for the lane's own offset. */
template <typename T, int J>
static __device__ __forceinline__ void
convolve_tile(const image_tiles &t, const tile_place &at, const ampk_vector<uint32_t, 4> *staged,
              const filters<J> &weights, T *y, int first, lane_sums<J> &lane)
{
    int warp = threadIdx.x / AMPK_WARP, group = threadIdx.x % AMPK_WARP / 4;
    const uint32_t *words = reinterpret_cast<const uint32_t *>(staged) + threadIdx.x % 4 +
                            (warp * STAGED_COLUMNS + MARGIN - 1 + group) * PIXEL;
    int rows = t.h - at.row - warp, columns = t.w - at.column; /* left in the image */
    size_t row = (size_t)at.image * t.h + at.row + warp;
    T *to = y + (row * t.w + at.column + group) * t.k + first;
#pragma unroll
    for (int i = 0; i < ROWS; i += WARPS, to += (size_t)WARPS * t.w * t.k) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j += ACROSS) {
            if (i >= rows || j >= columns) break;
            float d[J][4] = {};
            multiply<T>(words + (i * STAGED_COLUMNS + j) * PIXEL, weights, d);
            if (j + group < columns) finish_pixel(d, 0, to + j * t.k, lane.shift, lane.sums);
            if (j + 8 + group < columns)
                finish_pixel(d, 2, to + (j + 8) * t.k, lane.shift, lane.sums);
        }
    }
}

/* A block's filters begin at blockIdx.y * 8 * J. */
template <int J>
static __device__ __forceinline__ void leave_statistics(const image_tiles &t, lane_sums<J> &lane,
                                                        const ampk_bn_statistics &s, float *partial,
                                                        unsigned *counters)
{
    const unsigned OWN = 2 * J, LANES = 4, LANE_BITS = 2, ROOM = WARPS * 2 * OWN * LANES;
    __shared__ float shared[ROOM > THREADS ? ROOM : THREADS];
    ampk_cover cover = {};
    cover.lane_bits = LANE_BITS;
    ampk_block_sums(cover, lane.sums, shared);
    if (!gather_all(shared, 2 * OWN * LANES, partial, counters)) return;
    uint32_t largest = 0;
    unsigned place = threadIdx.x; /* ampk_block_sums */
    if (place < OWN * LANES) {
        unsigned c = blockIdx.y * 8 * J + place % LANES * OWN + place / LANES;
        const ampk_channel_statistics of(s.rule, t.pixels, s.rolling_mean[c], shared[place],
                                         shared[place + OWN * LANES]);
        largest = of.store(s, c, 0);
    }
    ampk_raise_amax(s.amax, largest);
}

template <typename T, int J, typename Pieces>
static __global__ void __launch_bounds__(THREADS, 2)
    convolve_image(image_tiles t, const uint16_t *x, const uint32_t *weights, T *y,
                   ampk_bn_statistics s, float *partial, unsigned *counters)
{
    __shared__ ampk_vector<uint32_t, 4> staged[2][STAGED_ROWS * STAGED_COLUMNS * PIXEL / 4];
    int first = blockIdx.y * 8 * J + threadIdx.x % 4 * 2 * J;
    filters<J> of_block;
    lane_sums<J> lane = {};
    of_block.load(weights + blockIdx.y * 8 * J * WINDOW * WINDOW * (PACKED_CHANNELS / 2));
    ampk_read_parameters(s.rolling_mean, first, lane.shift);

    unsigned tile = blockIdx.x * t.each, end = tile + t.each < t.count ? tile + t.each : t.count;
    tile_place at(t, tile);
    Pieces next;
    next.load(t, x, at);
#pragma unroll 1
    for (int turn = 0; tile < end; tile++, turn ^= 1) {
        tile_place here = at;
        next.put(staged[turn]);
        __syncthreads(); /* also: no warp reads the other half any more */
        at.advance(t);
        if (tile + 1 < end) next.load(t, x, at);
        convolve_tile(t, here, staged[turn], of_block, y, first, lane);
    }
    leave_statistics(t, lane, s, partial, counters);
}

/* ---- operations ---- */

extern "C" bool ampk_image_conv_fits(const struct ampk_context *ctx,
                                     const struct ampk_conv_shape *s)
{
    bool window = s->kh == WINDOW && s->kw == WINDOW && s->stride == 1 && s->pad == 1;
    bool filters = s->k % 8 == 0 && (s->k <= MOST_FILTERS || s->k == 48 || s->k == 64);
    bool narrow = s->compute == AMPK_COMPUTE_FP16 || s->compute == AMPK_COMPUTE_BF16;
    return window && filters && narrow && s->groups == 1 && s->c <= 4 &&
           ampk_has_mma(ctx, s->compute == AMPK_COMPUTE_FP16 ? AMPK_FP16 : AMPK_BF16);
}

/* Cuts y into runs of tiles. The shape alone decides, because the cut splits the sums. A block
 * takes several tiles, so that loading the weights pays; fewer where there is little work. */
static struct image_tiles cut(const struct ampk_tensor *x, int k)
{
    struct image_tiles t = {};
    t.c = x->c, t.h = x->h, t.w = x->w, t.k = k;
    t.pixels = ampk_pixel_count(x);
    t.down = (x->h + ROWS - 1) / ROWS;
    t.across = (x->w + COLUMNS - 1) / COLUMNS;
    t.count = (unsigned)x->n * t.down * t.across;
    t.each = 4;
    while (t.each > 1 && t.count / t.each < FILL)
        t.each /= 2;
    unsigned least = (t.count + MOST_BLOCKS - 1) / MOST_BLOCKS;
    if (t.each < least) t.each = least;
    return t;
}

/* More than MOST_FILTERS filters go to two rows of blocks (grid.y), which read x twice: the
 * weights and sums of 64 filters would not fit a thread's registers. */
template <typename T, int J>
static void run(struct ampk_context *ctx, const struct ampk_tensor *x, const void *weights,
                const struct ampk_tensor *y, const struct ampk_bn_statistics *statistics)
{
    struct image_tiles t = cut(x, y->c);
    dim3 grid((t.count + t.each - 1) / t.each, y->c / (8 * J));
    unsigned rows = grid.x + (grid.x + GROUP - 1) / GROUP;
    float *partial =
        (float *)ampk_cuda_work(ctx, (size_t)rows * grid.y * 2 * 8 * J * sizeof(float));
    bool fours = x->c == 3 && x->w % 4 == 0;
    auto kernel = fours ? convolve_image<T, J, by_fours> : convolve_image<T, J, by_ones>;
    AMPK_LAUNCH(kernel, grid, THREADS, 0, ctx->stream, t, (const uint16_t *)x->data,
                (const uint32_t *)weights, (T *)y->data, *statistics, partial, ctx->counters);
}

template <typename T>
static void run_for_filters(struct ampk_context *ctx, const struct ampk_tensor *x,
                            const void *weights, const struct ampk_tensor *y,
                            const struct ampk_bn_statistics *statistics)
{
    int products = y->c > MOST_FILTERS ? y->c / 16 : y->c / 8;
    auto way = products == 1   ? run<T, 1>
               : products == 2 ? run<T, 2>
               : products == 3 ? run<T, 3>
                               : run<T, 4>;
    way(ctx, x, weights, y, statistics);
}

extern "C" void ampk_image_conv(struct ampk_context *ctx, const struct ampk_tensor *x,
                                const void *weights, const struct ampk_tensor *y,
                                const struct ampk_bn_statistics *statistics)
{
    auto way = y->dtype == AMPK_FP16 ? run_for_filters<ampk_fp16> : run_for_filters<ampk_bf16>;
    way(ctx, x, weights, y, statistics);
}
