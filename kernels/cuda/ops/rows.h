/* Loops over tensors as rows of channels, and sums over them; most kernels are such loops. A row is
 * a pixel (NHWC), or an image taken as flat.
 *
 * A template argument says how elements are read: struct ampk_packed (vectors of 16 bytes, all
 * tensors NHWC of one dtype without gaps between images) or ampk_any (one element, any mixture of
 * dtypes and layouts). ampk_with_access chooses. The threads of a block stand in lanes along the
 * channels and in lines along the rows. So a thread keeps its channels, and their parameters stay
 * in registers:
 *
 *      float bias[A::width]; ...
 *      for (size_t row = ampk_row(cover); row < cover.rows; row += ampk_row_step(cover)) {
 *          float v[A::width];
 *          A::load(x, row, channel, v); */
#ifndef AMPK_CUDA_ROWS_H
#define AMPK_CUDA_ROWS_H

#include "device.h"

/* ---- tensors in kernels ----
 * As in Darknet, a batch has fewer than 2^31 pixels and an image fewer than 2^31 elements. So rows
 * and channels are 32-bit numbers; places in memory are 64-bit. */

struct ampk_view {
    void *data;
    enum ampk_dtype dtype;
    bool is_planar;   /* NCHW */
    unsigned c, area; /* area: rows in an image */
    size_t image_stride,
        stride; /* elements; stride: from row to row if that is the same everywhere */
};

/* ampk_raise_amax for values that v stores: an inf in FP16 counts as the smallest magnitude that
 * becomes inf. */
static __device__ __forceinline__ void ampk_raise_stored_amax(uint32_t *amax, uint32_t magnitude,
                                                              const ampk_view &v)
{
    bool refused = v.dtype == AMPK_FP16 && magnitude == AMPK_INF;
    ampk_raise_amax(amax, refused ? AMPK_FP16_OVERFLOW : magnitude);
}

/* A view in which row i is pixel i, counted over all images. */
static inline struct ampk_view ampk_pixels(const struct ampk_tensor *t)
{
    struct ampk_view v = {};
    v.data = t->data;
    v.dtype = t->dtype;
    v.c = (unsigned)t->c;
    v.area = (unsigned)t->h * (unsigned)t->w;
    v.is_planar = t->layout == AMPK_NCHW && v.area > 1;
    v.image_stride = t->image_stride;
    v.stride = v.area == 1 ? t->image_stride : (size_t)ampk_pitch(t);
    return v;
}

/* A view in which row i is image i in memory order; not for slices. */
static inline struct ampk_view ampk_flat(const struct ampk_tensor *t)
{
    struct ampk_view v = ampk_pixels(t);
    v.c *= v.area;
    v.area = 1;
    v.is_planar = false;
    v.stride = v.image_stride;
    return v;
}

static inline unsigned ampk_pixel_count(const struct ampk_tensor *t)
{
    return (unsigned)t->n * (unsigned)t->h * (unsigned)t->w;
}

/* ---- pixels ---- */

struct ampk_sides {
    int h, w;
};

/* The position of a row: its image, and its h and w there. */
struct ampk_pixel {
    int image, h, w;

    __device__ __forceinline__ ampk_pixel(unsigned row, ampk_sides sides)
    {
        int line = (int)row / sides.w;
        image = line / sides.h;
        h = line - image * sides.h;
        w = (int)row - line * sides.w;
    }
};

static __device__ __forceinline__ unsigned ampk_row_of(int image, int h, int w, ampk_sides sides)
{
    return (unsigned)((image * sides.h + h) * sides.w + w);
}

/* ---- access ---- */

template <typename T> struct ampk_packed {
    static const int width = ampk_wide<T>::elements;
    static const int lanes = 8; /* lanes that cover 128 bytes of a row, a line of the cache */

    static __device__ __forceinline__ T *at(const ampk_view &v, unsigned row, unsigned channel)
    {
        return (T *)v.data + row * v.stride + channel;
    }
    static __device__ __forceinline__ void load(const ampk_view &v, unsigned row, unsigned channel,
                                                float (&x)[width])
    {
        ampk_load(at(v, row, channel), x);
    }
    static __device__ __forceinline__ void store(const ampk_view &v, unsigned row, unsigned channel,
                                                 const float (&x)[width])
    {
        ampk_store(at(v, row, channel), x);
    }
    /* The value that a load would give after a store of x. */
    static __device__ __forceinline__ float rounded(const ampk_view &, float x)
    {
        T stored;
        ampk_from_float(x, &stored);
        return ampk_to_float(stored);
    }
};

struct ampk_any {
    static const int width = 1;
    static const int lanes = 32;

    static __device__ __forceinline__ size_t index(const ampk_view &v, unsigned row,
                                                   unsigned channel)
    {
        unsigned image = row / v.area, pixel = row - image * v.area;
        return image * v.image_stride +
               (v.is_planar ? channel * v.area + pixel : pixel * v.stride + channel);
    }
    static __device__ __forceinline__ void load(const ampk_view &v, unsigned row, unsigned channel,
                                                float (&x)[1])
    {
        size_t i = index(v, row, channel);
        x[0] = 0;
        AMPK_WITH_TYPE(v.dtype, T, x[0] = ampk_to_float(((const T *)v.data)[i]));
    }
    static __device__ __forceinline__ void store(const ampk_view &v, unsigned row, unsigned channel,
                                                 const float (&x)[1])
    {
        size_t i = index(v, row, channel);
        AMPK_WITH_TYPE(v.dtype, T, ampk_from_float(x[0], (T *)v.data + i));
    }
    static __device__ __forceinline__ float rounded(const ampk_view &v, float x)
    {
        AMPK_WITH_TYPE(v.dtype, T, x = ampk_packed<T>::rounded(v, x));
        return x;
    }
};

/* Stores x, or adds it to the old value in FP32 and stores the sum. Returns the larger of
 * `largest` and the magnitudes before rounding. */
template <typename A>
static __device__ __forceinline__ uint32_t ampk_put(const ampk_view &v, unsigned row,
                                                    unsigned channel, float (&x)[A::width],
                                                    bool accumulate, uint32_t largest)
{
    if (accumulate) {
        float old[A::width];
        A::load(v, row, channel, old);
#pragma unroll
        for (int i = 0; i < A::width; i++)
            x[i] = old[i] + x[i];
    }
    A::store(v, row, channel, x);
    return ampk_magnitude(x, largest);
}

template <typename T> static inline bool ampk_is_packed(const struct ampk_view &v)
{
    const int width = ampk_wide<T>::elements;
    bool has_gaps = v.area > 1 && v.image_stride != v.stride * v.area;
    return (ampk_dtype_bytes(v.dtype) == sizeof(T)) && !v.is_planar && !has_gaps &&
           v.c % width == 0 && ampk_fits<T, width>(v.data, v.stride);
}

template <enum ampk_dtype dtype, typename T, typename... Views>
static inline bool ampk_are_packed(const Views &...views)
{
    return ((views.dtype == dtype && ampk_is_packed<T>(views)) && ...);
}

/* Calls run with an object of the access type that fits all the views. Mixtures of dtypes share
 * ampk_any: every further type would multiply the number of kernels. */
template <typename Run, typename... Views>
static inline void ampk_with_access(Run run, const Views &...views)
{
    if (ampk_are_packed<AMPK_FP16, ampk_fp16>(views...))
        run(ampk_packed<ampk_fp16>());
    else if (ampk_are_packed<AMPK_BF16, ampk_bf16>(views...))
        run(ampk_packed<ampk_bf16>());
    else if (ampk_are_packed<AMPK_FP32, float>(views...))
        run(ampk_packed<float>());
    else
        run(ampk_any());
}

/* ---- threads ---- */

/* How a grid covers rows x channels. The shape alone decides, because it also decides how sums are
 * split. */
struct ampk_cover {
    unsigned rows, channels;
    unsigned lane_bits; /* a line of a block has 2^lane_bits threads */
    dim3 grid;
};

/* threads: of a block, a power of two. most_blocks: about so many blocks; a thread then does
 * several rows. */
template <typename A>
static inline struct ampk_cover ampk_cover_with(unsigned rows, unsigned channels, unsigned threads,
                                                unsigned most_blocks, bool long_lines)
{
    const unsigned fill = 256; /* so many blocks keep a large GPU busy */
    unsigned vectors = (channels + A::width - 1) / A::width;
    struct ampk_cover cover = {rows, channels, 0, dim3()};
    unsigned lanes = 1;
    while (lanes < vectors && lanes < threads &&
           (lanes < A::lanes || (long_lines && threads / lanes > rows)))
        lanes *= 2, cover.lane_bits++;
    unsigned across = (vectors + lanes - 1) / lanes, lines = threads / lanes;
    unsigned most = across < most_blocks ? most_blocks / across : 1;
    unsigned each = 4; /* rows of a thread: reading parameters must pay; fewer if work is short */
    while (each > 1 && rows / (lines * each) * across < fill)
        each /= 2;
    unsigned down = (rows + lines * each - 1) / (lines * each);
    cover.grid = dim3(across, down < most ? down : most);
    return cover;
}

/* Kernels that only map have 256 threads: 2048 blocks are then about 4 waves of the largest GPU.
 * Few rows get long lines. A second launch bound of 4 grants 64 registers; left alone, nvcc would
 * spill some to fit more blocks. */
static const int AMPK_MAP_THREADS = 256;

template <typename A>
static inline struct ampk_cover ampk_cover_map(unsigned rows, unsigned channels)
{
    return ampk_cover_with<A>(rows, channels, AMPK_MAP_THREADS, 2048, true);
}

/* First of a thread's A::width channels; the thread has none if it is not below cover.channels. */
template <typename A>
static __device__ __forceinline__ unsigned ampk_channel(const ampk_cover &cover)
{
    unsigned lane = threadIdx.x & ((1u << cover.lane_bits) - 1);
    return ((blockIdx.x << cover.lane_bits) + lane) * A::width;
}

static __device__ __forceinline__ unsigned ampk_row(const ampk_cover &cover)
{
    unsigned lines = blockDim.x >> cover.lane_bits;
    return blockIdx.y * lines + (threadIdx.x >> cover.lane_bits);
}

static __device__ __forceinline__ unsigned ampk_row_step(const ampk_cover &cover)
{
    return gridDim.y * (blockDim.x >> cover.lane_bits);
}

/* The direction in which a kernel walks the rows. Data that was read or written last is still in
 * the cache, so the mapping kernels of batch-norm begin with the last rows. They end with the
 * first rows, where the next convolution begins. */
enum ampk_order { AMPK_FIRST_ROW_FIRST, AMPK_LAST_ROW_FIRST };

/* The row at a place of the walk. */
static __device__ __forceinline__ unsigned ampk_row_at(const ampk_cover &cover, unsigned place,
                                                       enum ampk_order order)
{
    return order == AMPK_LAST_ROW_FIRST ? cover.rows - 1 - place : place;
}

/* Calls load(row, input) and then use(row, input) for every row of the thread. `ahead` rows are
 * loaded before the first is used: a store in `use` would hold up the next load. */
template <int ahead, typename Input, enum ampk_order order = AMPK_FIRST_ROW_FIRST, typename Load,
          typename Use>
static __device__ __forceinline__ void ampk_for_rows(const ampk_cover &cover, Load load, Use use)
{
    unsigned i = ampk_row(cover), step = ampk_row_step(cover);
#pragma unroll 1
    for (; i + (ahead - 1) * step < cover.rows; i += ahead * step) {
        Input input[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            load(ampk_row_at(cover, i + k * step, order), input[k]);
#pragma unroll
        for (int k = 0; k < ahead; k++)
            use(ampk_row_at(cover, i + k * step, order), input[k]);
    }
#pragma unroll 1
    for (; ahead > 1 && i < cover.rows; i += step) {
        Input input;
        load(ampk_row_at(cover, i, order), input);
        use(ampk_row_at(cover, i, order), input);
    }
}

/* ---- sums over rows, per channel: over threads, then over blocks, always in the same order ----
 *
 * A thread adds up its rows in registers, a block its threads in shared memory. If several blocks
 * in a column share the channels, each leaves its sums in work memory and counts itself. The last
 * block to come adds them up by number, so the order does not depend on which block is last. This
 * needs no second launch and no floating-point atomics. */

/* 512 threads and 256 blocks are two blocks for every multiprocessor of the largest GPU. With four
 * loads of 16 bytes per thread under way, they keep its memory busy, and leave few partial sums
 * for the last block. */
static const int AMPK_SUM_THREADS = 512;
static const unsigned AMPK_SUM_BLOCKS = AMPK_COUNTERS;

template <typename A>
static inline struct ampk_cover ampk_cover_sum(unsigned rows, unsigned channels)
{
    return ampk_cover_with<A>(rows, channels, AMPK_SUM_THREADS, AMPK_SUM_BLOCKS, false);
}

/* Floats of shared memory for S sums per channel: a row for every warp, or a value for every
 * thread that adds up partial sums. */
template <typename A, int S> static __device__ constexpr int ampk_sum_shared()
{
    return AMPK_SUM_THREADS / AMPK_WARP * S * A::width * A::lanes;
}

/* Bytes of work memory for the partial sums. */
template <typename A> static inline size_t ampk_sum_bytes(const struct ampk_cover &cover, int sums)
{
    return ((size_t)cover.grid.x * cover.grid.y * sums * A::width << cover.lane_bits) *
           sizeof(float);
}

/* Adds up x[first], x[first + step] ... as long as the index is below `end`, in this order. The
 * loads of `ahead` terms are under way at once. In a plain loop each would wait for the addition
 * before it: nvcc does not know how many there are, so it tests after each, unrolled or not. A term
 * behind the end counts as 0. That changes no bit, because a sum that begins with 0 is never -0. */
template <int ahead>
static __device__ __forceinline__ float ampk_sum_every(const float *x, unsigned first,
                                                       unsigned step, unsigned end)
{
    float total = 0;
#pragma unroll 1
    for (unsigned i = first; i < end; i += ahead * step) {
        const float *from = x + i;
        float terms[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            terms[k] = i + k * step < end ? from[k * step] : 0;
#pragma unroll
        for (int k = 0; k < ahead; k++)
            total += terms[k];
    }
    return total;
}

/* Adds up `rows` rows of `width` floats into shared[0..width). The block has at least `width`
 * threads. */
static __device__ __forceinline__ void ampk_add_up(float *shared, unsigned rows, unsigned width)
{
    __syncthreads();
    if (threadIdx.x < width) {
        float total = 0;
        for (unsigned i = 0; i < rows; i++)
            total += shared[i * width + threadIdx.x];
        shared[threadIdx.x] = total; /* no other thread reads this column */
    }
    __syncthreads();
}

/* Adds up V values of each thread over the lines of the block. Afterwards the sum of x[v] of a
 * lane is in shared[(v << lane_bits) + lane]. */
template <int V>
static __device__ __forceinline__ void ampk_block_sums(const ampk_cover &cover, float (&x)[V],
                                                       float *shared)
{
    unsigned lanes = 1u << cover.lane_bits;
    unsigned warp = threadIdx.x / AMPK_WARP, lane = threadIdx.x % AMPK_WARP;
#pragma unroll
    for (int v = 0; v < V; v++) {
        for (unsigned apart = lanes; apart < AMPK_WARP; apart *= 2)
            x[v] += __shfl_xor_sync(0xffffffffu, x[v], apart);
        if (lane < lanes) shared[((warp * V + v) << cover.lane_bits) + lane] = x[v];
    }
    ampk_add_up(shared, blockDim.x / AMPK_WARP, (unsigned)V << cover.lane_bits);
}

/* Whether the block is the last of `count` blocks to come to this counter. In the last block,
 * everything that the others wrote before they came can be read, and the counter is 0 again.
 *
 * A fence makes a warp wait for memory, so one thread alone has them. That is enough, because a
 * fence counts for more than its thread's own accesses: what the block's threads wrote before the
 * first barrier is visible before thread 0's count is, and what thread 0 could read after its
 * second fence, all can read after the second barrier. CUDA's own barrier for a grid, in
 * cooperative_groups, does the same. */
static __device__ __forceinline__ bool ampk_is_last(unsigned *counter, unsigned count)
{
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicAdd(counter, 1u) == count - 1;
        if (is_last) {
            __threadfence();
            *counter = 0;
        }
    }
    __syncthreads();
    return is_last;
}

/* ampk_block_sums over the whole column of blocks. Returns true in one block of the column, which
 * finds the sums in shared. Every column of several blocks has a counter, because there are at
 * most AMPK_SUM_BLOCKS blocks. */
template <int V>
static __device__ __forceinline__ bool ampk_grid_sums(const ampk_cover &cover, float (&x)[V],
                                                      float *shared, float *partial,
                                                      unsigned *counters)
{
    unsigned width = (unsigned)V << cover.lane_bits;
    ampk_block_sums(cover, x, shared);
    if (gridDim.y == 1) return true;

    float *mine = partial + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * width;
    if (threadIdx.x < width) mine[threadIdx.x] = shared[threadIdx.x];
    if (!ampk_is_last(&counters[blockIdx.x], gridDim.y)) return false;

    /* A thread adds at most 64 rows where it has 16 values, 32 where it has fewer: four rounds of
     * loads. More under way would take registers, and with them the third block of many kernels on
     * a multiprocessor. */
    const int ahead = V < 16 ? 8 : 16;
    unsigned groups = blockDim.x / width, group = threadIdx.x / width;
    unsigned row = gridDim.x * width, own = blockIdx.x * width + threadIdx.x % width;
    shared[threadIdx.x] =
        ampk_sum_every<ahead>(partial, group * row + own, groups * row, gridDim.y * row);
    ampk_add_up(shared, groups, width);
    return true;
}

#endif
