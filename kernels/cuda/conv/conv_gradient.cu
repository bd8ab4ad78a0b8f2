/* Watches, stores or adds the weight gradients of a network's convolutions, some fifty in a
 * launch: many layers are too small to fill a GPU by themselves. Memory bandwidth bounds all of
 * it. Products and sums are rounded one by one (no fused multiply-add), so that the bits are the
 * CPU backend's. Must not know where a gradient came from, a library or a kernel of ours. */
#include "conv_kernels.h"
#include "conv_tile.h"
#include "kernels/cuda/ops/list.h"

static const int THREADS = 256;

/* ---- looked at ---- */

/* Bytes that a block reads: four loads of 16 bytes per thread. */
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

struct gradient {
    const void *packed;
    float *dst;
    uint32_t *amax;
    ampk_conv_tiles tiles;
    bool wide_packed, wide_dst; /* 16 bytes at once */
};

/* Stores N values of [c][taps] at once; returns the largest magnitude, taken before the factor. N
 * neighbours may cross from one channel to the next: c and tap advance value by value. */
template <int N>
static __device__ __forceinline__ uint32_t store_tile(const gradient &g, const ampk_conv_tile &at,
                                                      const float *tile, float factor,
                                                      bool accumulate)
{
    const ampk_conv_tiles &t = g.tiles;
    float *dst = g.dst + ampk_place_in_order(t, at);
    uint32_t largest = 0;
    for (int i = threadIdx.x * N; i < t.channels * t.covered; i += THREADS * N) {
        int c = i / t.covered, tap = i % t.covered;
        if (at.channel + c >= t.c || at.tap + tap >= t.taps) continue;
        float *to = dst + (size_t)c * t.taps + tap;
        float v[N], old[N] = {};
        if (accumulate) ampk_load(to, old);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float value = tile[tap * t.pitch + c];
            largest = ampk_larger(largest, ampk_magnitude(value));
            v[k] = __fmul_rn(value, factor);
            if (accumulate) v[k] = __fadd_rn(old[k], v[k]);
            if (++tap == t.covered) tap = 0, c++;
        }
        ampk_store(to, v);
    }
    return largest;
}

template <typename From>
static __global__ void __launch_bounds__(THREADS)
    add_gradients(const ampk_list<gradient> list, float factor, bool accumulate)
{
    alignas(16) __shared__ float tile[AMPK_TILE_FLOATS];
    const int item = ampk_find_item(list);
    const gradient &g = list.items[item];
    const ampk_conv_tile at = ampk_find_tile(g.tiles, blockIdx.x - list.first_block[item]);
    const From *packed = static_cast<const From *>(g.packed);
    if (g.wide_packed)
        ampk_load_tile<ampk_wide<From>::elements>(g.tiles, at, packed, tile);
    else
        ampk_load_tile<1>(g.tiles, at, packed, tile);
    __syncthreads();
    uint32_t largest;
    if (g.wide_dst)
        largest = store_tile<4>(g, at, tile, factor, accumulate);
    else
        largest = store_tile<1>(g, at, tile, factor, accumulate);
    ampk_raise_amax(g.amax, largest);
}

/* ---- launches ---- */

static gradient make_item(const struct ampk_conv_gradient &from)
{
    gradient g = {from.packed, from.dst, from.amax, ampk_cut_weights(from.layout), false, false};
    g.wide_packed = ampk_is_wide_packed(g.tiles, from.dtype);
    g.wide_dst = ampk_is_wide_in_order(g.tiles, from.dst);
    return g;
}

static size_t packed_values(const struct ampk_conv_gradient &g)
{
    return (size_t)g.layout.padded_k * g.layout.taps * g.layout.padded_c;
}

/* Gradients without a destination: only amax wants them. */
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

/* A kernel's arguments hold 4096 bytes at most, so a list has as many items as fit (ops/list.h). */
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
            const gradient g = make_item(all[i]);
            l.add(g, g.tiles.blocks());
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
