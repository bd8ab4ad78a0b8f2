/* Converts padding, rounding and layout between tensors and what Tensor Cores read and write; also
 * fills and compares the arrays that plans are timed on. Memory bandwidth bounds all of it, so
 * every kernel moves 8 channels per thread where the addresses allow. Must not know passes or
 * plans. */
#include "conv_kernels.h"
#include "kernels/cuda/ops/activation.h"
#include "kernels/cuda/libs/tensor_core.h"

static const int THREADS = 256;

/* ---- magnitudes ---- */

/* The magnitude of a value that is stored in a T. A library may have rounded it already: an inf in
 * FP16 then counts as the smallest magnitude that rounds to inf. */
template <typename T> static __device__ __forceinline__ uint32_t magnitude_in(float x)
{
    return ampk_magnitude(x);
}

template <> __device__ __forceinline__ uint32_t magnitude_in<ampk_fp16>(float x)
{
    uint32_t magnitude = ampk_magnitude(x);
    return magnitude == AMPK_INF ? AMPK_FP16_OVERFLOW : magnitude;
}

/* ---- operands ---- */

/* Elements of a tensor; its images are `stride` elements apart. */
template <typename T> struct slice {
    T *data;
    size_t stride;
};

/* Each thread packs N channels of a pixel; N divides `padded`. Channels from c on are padding and
 * become 0. */
template <typename From, typename To, int N>
static __global__ void __launch_bounds__(THREADS)
    ampk_pack_rows(slice<const From> x, int c, int padded, size_t pixels, size_t pixels_of_image,
                   bool tf32, To *__restrict__ packed)
{
    int runs = padded / N;
    for (size_t i = ampk_first(); i < pixels * runs; i += ampk_stride()) {
        size_t pixel = i / runs, image = pixel / pixels_of_image;
        int first = (int)(i % runs) * N;
        const From *from = x.data + image * x.stride + pixel % pixels_of_image * c;
        float v[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            v[j] = first + j < c ? ampk_to_float(from[first + j]) : 0;
            if (tf32) v[j] = ampk_round_to_tf32(v[j]);
        }
        ampk_store(packed + pixel * padded + first, v);
    }
}

/* ---- results ---- */

/* Operations on a value before it is stored. unpack_... applies them in FP32, so that the store is
 * the only rounding. */
struct add_or_not {
    bool accumulate;

    __device__ __forceinline__ float operator()(float v, int channel, float old) const
    {
        (void)channel;
        return accumulate ? v + old : v;
    }
    __device__ __forceinline__ bool needs_old() const
    {
        return accumulate;
    }
};

/* A: struct ampk_slope or ampk_curve */
template <typename A> struct activate {
    const float *bias;
    A activation;

    __device__ __forceinline__ float operator()(float v, int channel, float) const
    {
        return activation.forward(v + bias[channel]);
    }
    __device__ __forceinline__ bool needs_old() const
    {
        return false;
    }
};

template <typename Finish, typename To>
static __device__ __forceinline__ uint32_t store_finished(float v, int channel,
                                                          const Finish &finish, To *to)
{
    v = finish(v, channel, finish.needs_old() ? ampk_to_float(*to) : 0);
    ampk_from_float(v, to);
    return magnitude_in<To>(v);
}

/* Each thread unpacks N channels of a pixel; N divides c. It does not read the padding. */
template <typename Finish, typename From, typename To, int N>
static __global__ void __launch_bounds__(THREADS)
    ampk_unpack_nhwc(const From *__restrict__ packed, int padded, int c, size_t pixels,
                     size_t pixels_of_image, slice<To> y, Finish finish, uint32_t *amax)
{
    uint32_t largest = 0;
    int runs = c / N;
    for (size_t i = ampk_first(); i < pixels * runs; i += ampk_stride()) {
        size_t pixel = i / runs, image = pixel / pixels_of_image;
        int first = (int)(i % runs) * N;
        To *to = y.data + image * y.stride + pixel % pixels_of_image * c + first;
        float v[N], old[N] = {0};
        ampk_load(packed + pixel * padded + first, v);
        if (finish.needs_old()) ampk_load(to, old);
#pragma unroll
        for (int j = 0; j < N; j++) {
            v[j] = finish(v[j], first + j, old[j]);
            largest = ampk_larger(largest, magnitude_in<To>(v[j]));
        }
        ampk_store(to, v);
    }
    ampk_raise_amax(amax, largest);
}

/* A tile of pixels times channels goes through shared memory: NHWC runs along channels, NCHW along
 * pixels, and this way both sides move in runs. The extra column of the tile puts a column's
 * values into different banks. */
static const int TILE = 32;

template <typename Finish, typename From, typename To>
static __global__ void __launch_bounds__(THREADS)
    ampk_unpack_nchw(const From *__restrict__ packed, int padded, int c, int pixels, slice<To> y,
                     Finish finish, uint32_t *amax)
{
    __shared__ float tile[TILE][TILE + 1];
    int across = (pixels + TILE - 1) / TILE, down = (c + TILE - 1) / TILE;
    int lane = threadIdx.x % TILE, row = threadIdx.x / TILE, rows = THREADS / TILE;
    size_t image = blockIdx.x / ((size_t)across * down);
    int first_pixel = (int)(blockIdx.x % across) * TILE;
    int first_channel = (int)(blockIdx.x / across % down) * TILE;
    for (int p = row; p < TILE; p += rows)
        if (first_pixel + p < pixels && first_channel + lane < c)
            tile[p][lane] = ampk_to_float(
                packed[(image * pixels + first_pixel + p) * padded + first_channel + lane]);
    __syncthreads();
    uint32_t largest = 0;
    for (int k = row; k < TILE; k += rows)
        if (first_channel + k < c && first_pixel + lane < pixels)
            largest = ampk_larger(largest, store_finished(tile[lane][k], first_channel + k, finish,
                                                          y.data + image * y.stride +
                                                              (size_t)(first_channel + k) * pixels +
                                                              first_pixel + lane));
    ampk_raise_amax(amax, largest);
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    ampk_find_stored_amax(const T *__restrict__ x, size_t n, uint32_t *amax)
{
    uint32_t largest = 0;
    for (size_t i = ampk_first() * N; i < n; i += ampk_stride() * N) {
        float v[N];
        if (n - i >= N) {
            ampk_load(x + i, v);
        } else {
#pragma unroll
            for (int j = 0; j < N; j++)
                v[j] = i + j < n ? ampk_to_float(x[i + j]) : 0;
        }
#pragma unroll
        for (int j = 0; j < N; j++)
            largest = ampk_larger(largest, magnitude_in<T>(v[j]));
    }
    ampk_raise_amax(amax, largest);
}

/* ---- weights ---- */

/* Blocks transpose [c][taps] of one filter in tiles of channels times taps. Both sides of a tile
 * move in runs; with few taps, a tile has many channels. */
static const int TILE_TAPS = 32, TILE_VALUES = 1024;

struct weight_tiles {
    struct ampk_conv_weights w;
    int channels, taps; /* of a tile */
    int down, across;   /* tiles of a filter */
};

struct weight_tile {
    int filter, channel, tap; /* where it begins */
};

static __device__ __forceinline__ struct weight_tile find_tile(const struct weight_tiles &t,
                                                               unsigned block)
{
    int tile = (int)(block % ((unsigned)t.down * t.across));
    struct weight_tile at = {(int)(block / ((unsigned)t.down * t.across)),
                             tile / t.across * t.channels, tile % t.across * t.taps};
    return at;
}

/* Weights to be packed as To. */
struct packing {
    const float *weights;
    void *packed;
    uint32_t *amax;
    struct weight_tiles tiles;
    bool tf32;
};

/* Reads in the order of the masters, writes in the order of the library. Positions outside of the
 * masters are padding and become 0; later updates leave them alone. */
template <typename To>
static __global__ void __launch_bounds__(THREADS) pack_weights(const ampk_list<packing> list)
{
    __shared__ float tile[2 * TILE_VALUES];
    const int item = ampk_find_item(list);
    const packing &p = list.items[item];
    const struct weight_tiles &t = p.tiles;
    struct weight_tile at = find_tile(t, blockIdx.x - list.first_block[item]);
    To *packed = static_cast<To *>(p.packed);
    /* An odd pitch: threads that read one tap of successive channels hit different banks. */
    int pitch = t.taps | 1;
    uint32_t largest = 0;
    for (int i = threadIdx.x; i < t.channels * t.taps; i += THREADS) {
        int c = at.channel + i / t.taps, tap = at.tap + i % t.taps;
        bool inside = at.filter < t.w.k && c < t.w.c && tap < t.w.taps;
        float v = inside ? p.weights[((size_t)at.filter * t.w.c + c) * t.w.taps + tap] : 0;
        largest = ampk_larger(largest, ampk_magnitude(v));
        tile[i / t.taps * pitch + i % t.taps] = p.tf32 ? ampk_round_to_tf32(v) : v;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < t.channels * t.taps; i += THREADS) {
        int c = at.channel + i % t.channels, tap = at.tap + i / t.channels;
        if (c < t.w.padded_c && tap < t.w.taps)
            ampk_from_float(tile[i % t.channels * pitch + i / t.channels],
                            &packed[((size_t)at.filter * t.w.taps + tap) * t.w.padded_c + c]);
    }
    ampk_raise_amax(p.amax, largest);
}

/* ---- numbers to time on ---- */

/* Mixes the index with an integer hash; the top 24 bits become a number in [mean - .5, mean + .5).
 */
template <typename T>
static __global__ void __launch_bounds__(THREADS) ampk_fill_with_numbers(T *x, size_t n, float mean)
{
    for (size_t i = ampk_first(); i < n; i += ampk_stride()) {
        uint32_t mixed = (uint32_t)(i + n);
        mixed = (mixed ^ mixed >> 16) * 0x7feb352du;
        mixed = (mixed ^ mixed >> 15) * 0x846ca68bu;
        mixed ^= mixed >> 16;
        ampk_from_float((float)(mixed >> 8) * 0x1p-24f - .5f + mean, &x[i]);
    }
}

/* A NaN in either array gives a difference of NaN, whose bits are larger than all others. Two equal
 * infs do not differ: made-up operands may overflow FP16 in a large sum. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    ampk_compare(const T *__restrict__ a, const T *__restrict__ b, size_t n, uint32_t *words)
{
    uint32_t apart = 0, largest = 0;
    for (size_t i = ampk_first() * N; i < n; i += ampk_stride() * N) {
        float of_a[N] = {0}, of_b[N] = {0};
        if (n - i >= N) {
            ampk_load(a + i, of_a);
            ampk_load(b + i, of_b);
        } else {
            for (int j = 0; j < (int)(n - i); j++) {
                of_a[j] = ampk_to_float(a[i + j]);
                of_b[j] = ampk_to_float(b[i + j]);
            }
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            float difference = of_a[j] == of_b[j] ? 0 : of_a[j] - of_b[j];
            apart = ampk_larger(apart, ampk_magnitude(difference));
            largest = ampk_larger(largest, ampk_magnitude(of_a[j]));
        }
    }
    ampk_raise_amax(&words[0], apart);
    ampk_raise_amax(&words[1], largest);
}

/* ---- launches ---- */

template <typename From, typename To, int N>
static void launch_pack(struct ampk_context *ctx, const struct ampk_tensor *x, bool tf32,
                        int padded, void *packed)
{
    size_t area = (size_t)x->h * x->w, pixels = x->n * area;
    slice<const From> from = {static_cast<const From *>(x->data), x->image_stride};
    unsigned blocks = ampk_cuda_blocks(ctx, pixels * (padded / N), THREADS, THREADS);
    AMPK_LAUNCH((ampk_pack_rows<From, To, N>), blocks, THREADS, 0, ctx->stream, from, x->c, padded,
                pixels, area, tf32, static_cast<To *>(packed));
}

/* Eight channels at a time need a padded count that 8 divides; groups are not padded. */
extern "C" void ampk_conv_pack(struct ampk_context *ctx, const struct ampk_tensor *x,
                               enum ampk_compute compute, int padded, void *packed)
{
    bool tf32 = compute == AMPK_COMPUTE_TF32;
    AMPK_WITH_TYPE(x->dtype, From, {
        if (compute == AMPK_COMPUTE_FP16 && padded % 8 == 0)
            launch_pack<From, ampk_fp16, 8>(ctx, x, tf32, padded, packed);
        else if (compute == AMPK_COMPUTE_FP16)
            launch_pack<From, ampk_fp16, 1>(ctx, x, tf32, padded, packed);
        else if (compute == AMPK_COMPUTE_BF16 && padded % 8 == 0)
            launch_pack<From, ampk_bf16, 8>(ctx, x, tf32, padded, packed);
        else if (compute == AMPK_COMPUTE_BF16)
            launch_pack<From, ampk_bf16, 1>(ctx, x, tf32, padded, packed);
        else
            launch_pack<From, float, 1>(ctx, x, tf32, padded, packed);
    });
}

template <typename Finish, typename From, typename To, int N>
static void launch_unpack_nhwc(struct ampk_context *ctx, const From *packed, int padded,
                               const struct ampk_tensor *y, slice<To> to, Finish finish,
                               uint32_t *amax)
{
    size_t area = (size_t)y->h * y->w, pixels = y->n * area;
    unsigned blocks = ampk_cuda_blocks(ctx, pixels * (y->c / N), THREADS, THREADS);
    AMPK_LAUNCH((ampk_unpack_nhwc<Finish, From, To, N>), blocks, THREADS, 0, ctx->stream, packed,
                padded, y->c, pixels, area, to, finish, amax);
}

/* Planes go through tiles; NHWC goes eight channels at a time if the addresses allow it, else one
 * by one. */
template <typename Finish, typename From, typename To>
static void launch_unpack(struct ampk_context *ctx, const void *packed, int padded,
                          const struct ampk_tensor *y, Finish finish, uint32_t *amax)
{
    const From *from = static_cast<const From *>(packed);
    slice<To> to = {static_cast<To *>(y->data), y->image_stride};
    const int N = 8;
    bool wide = y->c % N == 0 && ampk_fits<From, N>(from, padded) &&
                ampk_fits<To, N>(to.data, y->n > 1 ? to.stride : 0);
    if (y->layout == AMPK_NCHW && y->h * y->w > 1) {
        int pixels = y->h * y->w;
        unsigned tiles = (unsigned)y->n * ((pixels + TILE - 1) / TILE) * ((y->c + TILE - 1) / TILE);
        AMPK_LAUNCH((ampk_unpack_nchw<Finish, From, To>), tiles, THREADS, 0, ctx->stream, from,
                    padded, y->c, pixels, to, finish, amax);
    } else if (wide) {
        launch_unpack_nhwc<Finish, From, To, N>(ctx, from, padded, y, to, finish, amax);
    } else {
        launch_unpack_nhwc<Finish, From, To, 1>(ctx, from, padded, y, to, finish, amax);
    }
}

template <typename Finish>
static void unpack(struct ampk_context *ctx, const void *packed, enum ampk_dtype dtype, int padded,
                   const struct ampk_tensor *y, Finish finish, uint32_t *amax)
{
    AMPK_WITH_TYPE(dtype, From, {
        AMPK_WITH_TYPE(y->dtype, To,
                       { launch_unpack<Finish, From, To>(ctx, packed, padded, y, finish, amax); });
    });
}

extern "C" void ampk_conv_unpack(struct ampk_context *ctx, const void *packed,
                                 enum ampk_dtype dtype, int padded, const struct ampk_tensor *y,
                                 bool accumulate, uint32_t *amax)
{
    add_or_not finish = {accumulate};
    unpack(ctx, packed, dtype, padded, y, finish, amax);
}

extern "C" void ampk_conv_unpack_activated(struct ampk_context *ctx, const void *packed,
                                           enum ampk_dtype dtype, int padded, const float *bias,
                                           enum ampk_activation activation,
                                           const struct ampk_tensor *y, uint32_t *amax)
{
    ampk_with_activation(activation, [&](auto a) {
        activate<decltype(a)> finish = {bias, a};
        unpack(ctx, packed, dtype, padded, y, finish, amax);
    });
}

extern "C" void ampk_conv_amax(struct ampk_context *ctx, const void *stored, enum ampk_dtype dtype,
                               size_t n, uint32_t *amax)
{
    if (!amax) return;
    AMPK_WITH_TYPE(dtype, T, {
        const int N = ampk_wide<T>::elements;
        AMPK_LAUNCH((ampk_find_stored_amax<T, N>), ampk_cuda_blocks(ctx, n, THREADS * N, THREADS),
                    THREADS, 0, ctx->stream, static_cast<const T *>(stored), n, amax);
    });
}

/* Cuts a filter into tiles of at most TILE_VALUES values. */
static struct weight_tiles tiles_of(const struct ampk_conv_weights *w)
{
    struct weight_tiles t = {*w, 0, w->taps < TILE_TAPS ? w->taps : TILE_TAPS, 0, 0};
    t.channels = TILE_VALUES / t.taps;
    t.down = (w->padded_c + t.channels - 1) / t.channels;
    t.across = (w->taps + t.taps - 1) / t.taps;
    return t;
}

/* Packs the weights of the list whose operands are stored as To. One launch has one type, so each
 * type passes over the list once. */
template <typename To>
static void pack_those(struct ampk_context *ctx, const struct ampk_conv_packing *packings,
                       int count, enum ampk_dtype dtype)
{
    ampk_list<packing> l;
    for (int i = 0; i < count;) {
        l.clear();
        for (; i < count && !l.is_full(); i++) {
            const struct ampk_conv_packing &p = packings[i];
            if (ampk_tc_operand(p.compute) != dtype) continue;
            struct weight_tiles t = tiles_of(&p.layout);
            l.add({p.weights, p.packed, p.amax, t, p.compute == AMPK_COMPUTE_TF32},
                  (unsigned)p.layout.padded_k * t.down * t.across);
        }
        if (l.count) AMPK_LAUNCH(pack_weights<To>, l.blocks(), THREADS, 0, ctx->stream, l);
    }
}

extern "C" void ampk_conv_pack_weights(struct ampk_context *ctx,
                                       const struct ampk_conv_packing *packings, int count)
{
    pack_those<ampk_fp16>(ctx, packings, count, AMPK_FP16);
    pack_those<ampk_bf16>(ctx, packings, count, AMPK_BF16);
    pack_those<float>(ctx, packings, count, AMPK_FP32);
}

extern "C" void ampk_conv_fill(ampk_rt_stream stream, void *data, enum ampk_dtype dtype, size_t n,
                               float mean)
{
    AMPK_WITH_TYPE(dtype, T, {
        AMPK_LAUNCH(ampk_fill_with_numbers<T>, 1024, THREADS, 0, stream, static_cast<T *>(data), n,
                    mean);
    });
}

extern "C" void ampk_conv_compare(ampk_rt_stream stream, const void *a, const void *b,
                                  enum ampk_dtype dtype, size_t bytes, uint32_t words[2])
{
    AMPK_WITH_TYPE(dtype, T, {
        AMPK_LAUNCH((ampk_compare<T, ampk_wide<T>::elements>), 1024, THREADS, 0, stream,
                    static_cast<const T *>(a), static_cast<const T *>(b), bytes / sizeof(T), words);
    });
}
