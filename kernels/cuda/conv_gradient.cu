/* Weight gradients of a network's convolutions, some fifty of them in a launch. All of it is bound
 * by memory. Products and sums are rounded one by one (no fused multiply-add), so that the bits are
 * the CPU backend's. */
#include "kernels/cuda/conv_gradient.h"
#include "kernels/cuda/list.h"

static const int THREADS = 256;

/* ---- looked at ---- */

/* Bytes for a block to read: four times 16 for a thread. */
static const int PIECE_BYTES = THREADS * 64;

struct watched {
    const void *packed;
    size_t n;
    uint32_t *amax;
};

template <typename T>
static __global__ void __launch_bounds__(THREADS) watch_gradients(const ampk_list<watched> list)
{
    const int N = ampk_wide<T>::elements;
    const size_t PIECE = PIECE_BYTES / sizeof(T);
    const int at = ampk_find_item(list);
    const watched &w = list.items[at];
    const T *x = static_cast<const T *>(w.packed);
    const size_t first = (size_t)(blockIdx.x - list.first_block[at]) * PIECE;
    const size_t end = w.n - first < PIECE ? w.n : first + PIECE;
    uint32_t largest = 0;
    size_t i = first + threadIdx.x * N;
    for (; i + N <= end; i += THREADS * N) {
        float v[N];
        ampk_load(x + i, v);
        largest = ampk_magnitude(v, largest);
    }
    for (; i < end; i++) /* what is left of the item */
        largest = ampk_larger(largest, ampk_magnitude(ampk_to_float(x[i])));
    ampk_raise_amax(w.amax, largest);
}

/* ---- stored or added ---- */

/* [taps][c] of a filter becomes [c][taps] in tiles of channels times taps, a block each. A tile
 * lies in shared memory tap by tap, taps 4 banks apart from each other: threads that take
 * neighbouring values of [c][taps] then find them in different banks. */
static const int TILE_TAPS = 32, TILE_VALUES = 2048, CHANNELS = 8, BANKS = 32;
static const int TILE_FLOATS = TILE_VALUES + TILE_TAPS * (BANKS - CHANNELS + 4);

struct gradient {
    const void *packed;
    float *dst;
    uint32_t *amax;
    int c, taps, padded_c;        /* as ampk_conv_weights has them */
    int channels, covered, pitch; /* of a tile: channels, taps, floats from tap to tap */
    int down, across;             /* tiles of a filter */
    bool wide_packed, wide_dst;   /* 16 bytes at once */
};

/* Where a block's tile begins. */
struct tile_place {
    size_t filter;
    int channel, tap;
};

static __device__ __forceinline__ tile_place find_tile(const gradient &g, unsigned block)
{
    const unsigned tiles = (unsigned)g.down * g.across, tile = block % tiles;
    return {block / tiles, (int)(tile / g.across) * g.channels, (int)(tile % g.across) * g.covered};
}

/* N channels of a tap at once. */
template <int N, typename From>
static __device__ __forceinline__ void load_tile(const gradient &g, const tile_place &at,
                                                 float *tile)
{
    const From *packed = static_cast<const From *>(g.packed) +
                         (at.filter * g.taps + at.tap) * g.padded_c + at.channel;
    const int runs = g.channels / N;
    for (int i = threadIdx.x; i < runs * g.covered; i += THREADS) {
        const int tap = i / runs, c = i % runs * N;
        if (at.channel + c >= g.c || at.tap + tap >= g.taps) continue;
        float v[N];
        ampk_load(packed + (size_t)tap * g.padded_c + c, v);
        ampk_store(tile + tap * g.pitch + c, v);
    }
}

/* N values of [c][taps] at once; returns the largest magnitude. */
template <int N>
static __device__ __forceinline__ uint32_t store_tile(const gradient &g, const tile_place &at,
                                                      const float *tile, float factor,
                                                      bool accumulate)
{
    float *dst = g.dst + (at.filter * g.c + at.channel) * g.taps + at.tap;
    uint32_t largest = 0;
    for (int i = threadIdx.x * N; i < g.channels * g.covered; i += THREADS * N) {
        int c = i / g.covered, tap = i % g.covered;
        if (at.channel + c >= g.c || at.tap + tap >= g.taps) continue;
        float *to = dst + (size_t)c * g.taps + tap;
        float v[N], old[N] = {};
        if (accumulate) ampk_load(to, old);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float value = tile[tap * g.pitch + c];
            largest = ampk_larger(largest, ampk_magnitude(value));
            v[k] = __fmul_rn(value, factor);
            if (accumulate) v[k] = __fadd_rn(old[k], v[k]);
            if (++tap == g.covered) tap = 0, c++;
        }
        ampk_store(to, v);
    }
    return largest;
}

template <typename From>
static __global__ void __launch_bounds__(THREADS)
    add_gradients(const ampk_list<gradient> list, float factor, bool accumulate)
{
    alignas(16) __shared__ float tile[TILE_FLOATS];
    const int item = ampk_find_item(list);
    const gradient &g = list.items[item];
    const tile_place at = find_tile(g, blockIdx.x - list.first_block[item]);
    if (g.wide_packed)
        load_tile<ampk_wide<From>::elements, From>(g, at, tile);
    else
        load_tile<1, From>(g, at, tile);
    __syncthreads();
    uint32_t largest;
    if (g.wide_dst)
        largest = store_tile<4>(g, at, tile, factor, accumulate);
    else
        largest = store_tile<1>(g, at, tile, factor, accumulate);
    ampk_raise_amax(g.amax, largest);
}

/* ---- launches ---- */

static int round_up(int a, int multiple)
{
    return (a + multiple - 1) / multiple * multiple;
}

/* Tiles of about one size, whose channels fill 16 bytes. */
static gradient cut(const struct ampk_conv_gradient &from, int *filters)
{
    struct ampk_conv_weights w = from.layout;
    if (w.taps == 1 && w.c == w.padded_c) { /* the same order: as if one filter had it all */
        w.c = w.padded_c = w.k * w.c;
        w.k = 1;
    }
    *filters = w.k;
    gradient g = {};
    g.packed = from.packed;
    g.dst = from.dst;
    g.amax = from.amax;
    g.c = w.c;
    g.taps = w.taps;
    g.padded_c = w.padded_c;
    g.covered = w.taps < TILE_TAPS ? w.taps : TILE_TAPS;
    g.across = (w.taps + g.covered - 1) / g.covered;
    const int most = TILE_VALUES / g.covered / CHANNELS * CHANNELS;
    g.down = (w.c + most - 1) / most;
    g.channels = round_up((w.c + g.down - 1) / g.down, CHANNELS);
    g.pitch = round_up(g.channels, BANKS) + 4;
    g.wide_packed = w.padded_c % (16 / (int)ampk_dtype_bytes(from.dtype)) == 0;
    g.wide_dst = g.across == 1 && ampk_fits<float, 4>(from.dst, (size_t)w.c * w.taps);
    return g;
}

static size_t packed_values(const struct ampk_conv_gradient &g)
{
    return (size_t)g.layout.padded_k * g.layout.taps * g.layout.padded_c;
}

template <typename T>
static void watch_those(struct ampk_context *ctx, const struct ampk_conv_gradient *all, int count,
                        enum ampk_dtype dtype)
{
    const size_t piece = PIECE_BYTES / sizeof(T);
    ampk_list<watched> l;
    for (int i = 0; i < count;) {
        l.clear();
        for (; i < count && !l.is_full(); i++) {
            const struct ampk_conv_gradient &g = all[i];
            if (g.dtype != dtype || g.dst || !g.amax) continue;
            size_t n = packed_values(g);
            l.add({g.packed, n, g.amax}, (unsigned)((n + piece - 1) / piece));
        }
        if (l.count) AMPK_LAUNCH(watch_gradients<T>, l.blocks(), THREADS, 0, ctx->stream, l);
    }
}

template <typename T>
static void add_those(struct ampk_context *ctx, const struct ampk_conv_gradient *all, int count,
                      enum ampk_dtype dtype, float factor, bool accumulate)
{
    static_assert(sizeof(ampk_list<gradient>) + 16 <= 4096, "kernel arguments");
    ampk_list<gradient> l;
    for (int i = 0; i < count;) {
        l.clear();
        for (; i < count && !l.is_full(); i++) {
            if (all[i].dtype != dtype || !all[i].dst) continue;
            int filters;
            gradient g = cut(all[i], &filters);
            l.add(g, (unsigned)filters * g.down * g.across);
        }
        if (l.count)
            AMPK_LAUNCH(add_gradients<T>, l.blocks(), THREADS, 0, ctx->stream, l, factor,
                        accumulate);
    }
}

extern "C" void ampk_conv_take_gradients(struct ampk_context *ctx,
                                         const struct ampk_conv_gradient *all, int count,
                                         float factor, bool accumulate)
{
    static const enum ampk_dtype dtypes[] = {AMPK_FP16, AMPK_BF16, AMPK_FP32};
    for (enum ampk_dtype dtype : dtypes)
        AMPK_WITH_TYPE(dtype, T, {
            watch_those<T>(ctx, all, count, dtype);
            add_those<T>(ctx, all, count, dtype, factor, accumulate);
        });
}
