/* The weights of a network's convolutions, some fifty or thirty-five in a launch: watches, stores
 * or adds their gradients, and sums their squares; updates and packs them. Many layers are too
 * small to fill a GPU by themselves. Memory bandwidth bounds all of it; a tile in shared memory
 * lets one pass read the packed gradient, update the masters and write the packed weights.
 *
 * Products and sums are rounded one by one (no fused multiply-add), so that the bits are the CPU
 * backend's. The optimizer's arithmetic is update_rule.h's. Must not know where a gradient came
 * from, a library or a kernel of ours. */
#include "conv_kernels.h"
#include "kernels/cuda/libs/tensor_core.h"
#include "kernels/cuda/ops/loss.h"
#include "kernels/cuda/ops/update_rule.h"

static const int THREADS = 256;

/* ---- tiles: channels times taps of a filter ----
 *
 * Kernels use them to move weights between [taps][padded c], the order of the libraries, and
 * [c][taps], the order of the masters. One block handles one tile.
 *
 * The tile lies in shared memory tap by tap, and taps start 4 banks apart. Threads that take
 * neighbouring values of [c][taps] then find them in different banks. */

static const int TILE_TAPS = 32, TILE_VALUES = 2048, TILE_CHANNELS = 8, TILE_BANKS = 32;
static const int TILE_FLOATS = TILE_VALUES + TILE_TAPS * (TILE_BANKS - TILE_CHANNELS + 4);

struct weight_tiles {
    int filters, c, taps, padded_c; /* as ampk_conv_weights has them */
    int channels, covered, pitch;   /* of a tile: channels, taps, floats from tap to tap */
    int down, across;               /* tiles of a filter */

    unsigned blocks() const
    {
        return (unsigned)filters * down * across;
    }
};

/* Cuts each filter into tiles of about one size, with a channel count that fills whole 16-byte
 * loads. */
static weight_tiles cut_weights(struct ampk_conv_weights w)
{
    if (w.taps == 1 && w.c == w.padded_c) { /* both orders are the same: treat all as one filter */
        w.c = w.padded_c = w.k * w.c;
        w.k = 1;
    }
    weight_tiles t = {};
    t.filters = w.k;
    t.c = w.c;
    t.taps = w.taps;
    t.padded_c = w.padded_c;
    t.covered = w.taps < TILE_TAPS ? w.taps : TILE_TAPS;
    t.across = (w.taps + t.covered - 1) / t.covered;
    const int most = TILE_VALUES / t.covered / TILE_CHANNELS * TILE_CHANNELS;
    t.down = (w.c + most - 1) / most;
    const int each = (w.c + t.down - 1) / t.down;
    t.channels = (each + TILE_CHANNELS - 1) / TILE_CHANNELS * TILE_CHANNELS;
    t.pitch = (t.channels + TILE_BANKS - 1) / TILE_BANKS * TILE_BANKS + 4;
    return t;
}

/* Whether threads can move 16 bytes at once: packed elements of these tiles that begin at a
 * multiple of 16 bytes; and floats of [c][taps] that begin at dst. */
static bool is_wide_packed(const weight_tiles &t, enum ampk_dtype dtype)
{
    return t.padded_c % (16 / (int)ampk_dtype_bytes(dtype)) == 0;
}

static bool is_wide_in_order(const weight_tiles &t, const float *dst)
{
    return t.across == 1 && ampk_fits<float, 4>(dst, (size_t)t.c * t.taps);
}

/* Where a block's tile begins: filter, channel and tap. */
struct weight_tile {
    size_t filter;
    int channel, tap;
};

static __device__ __forceinline__ weight_tile find_tile(const weight_tiles &t, unsigned block)
{
    const unsigned tiles = (unsigned)t.down * t.across, tile = block % tiles;
    return {block / tiles, (int)(tile / t.across) * t.channels, (int)(tile % t.across) * t.covered};
}

/* Index of the tile's first value in [k][taps][padded c], and in [k][c][taps]. */
static __device__ __forceinline__ size_t place_packed(const weight_tiles &t, const weight_tile &at)
{
    return (at.filter * t.taps + at.tap) * t.padded_c + at.channel;
}

static __device__ __forceinline__ size_t place_in_order(const weight_tiles &t,
                                                        const weight_tile &at)
{
    return (at.filter * t.c + at.channel) * t.taps + at.tap;
}

/* Loads a tile with all threads of a block, N channels of a tap at once. */
template <int N, typename From>
static __device__ __forceinline__ void load_tile(const weight_tiles &t, const weight_tile &at,
                                                 const From *packed, float *tile)
{
    packed += place_packed(t, at);
    const int runs = t.channels / N;
    for (int i = threadIdx.x; i < runs * t.covered; i += blockDim.x) {
        const int tap = i / runs, c = i % runs * N;
        if (at.channel + c >= t.c || at.tap + tap >= t.taps) continue;
        float v[N];
        ampk_load(packed + (size_t)tap * t.padded_c + c, v);
        ampk_store(tile + tap * t.pitch + c, v);
    }
}

/* ---- gradients: their squares ----
 *
 * The kernels that watch gradients also sum their squares, where a step wants the norm: each block
 * stores one number, and one block adds these in a fixed order. What they are is decided by shapes
 * alone. */

/* `squares`, of one thread, becomes a part of its block's number. parts NULL: nobody wants it. */
static __device__ __forceinline__ void store_squares(float squares, float *parts)
{
    if (!parts) return;
    squares = ampk_block_sum(squares);
    if (threadIdx.x == 0) parts[blockIdx.x] = squares;
}

/* ---- gradients: looked at ---- */

/* Bytes that a block reads: four loads of 16 bytes per thread. */
static const int PIECE_BYTES = THREADS * 64;

struct watched {
    const void *packed;
    size_t n;
    uint32_t *amax;
};

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    watch_gradients(const ampk_list<watched> list, float *parts)
{
    const int N = ampk_wide<T>::elements;
    const size_t PIECE = PIECE_BYTES / sizeof(T);
    const int at = ampk_find_item(list);
    const watched &w = list.items[at];
    const T *x = static_cast<const T *>(w.packed);
    const size_t first = (size_t)(blockIdx.x - list.first_block[at]) * PIECE;
    const size_t end = w.n - first < PIECE ? w.n : first + PIECE;
    uint32_t largest = 0;
    float squares = 0;
    size_t i = first + threadIdx.x * N;
    for (; i + N <= end; i += THREADS * N) {
        float v[N];
        ampk_load(x + i, v);
        largest = ampk_magnitude(v, largest);
#pragma unroll
        for (int k = 0; k < N; k++)
            squares += v[k] * v[k];
    }
    for (; i < end; i++) { /* what is left of the item */
        const float v = ampk_to_float(x[i]);
        largest = ampk_larger(largest, ampk_magnitude(v));
        squares += v * v;
    }
    ampk_raise_amax(w.amax, largest);
    store_squares(squares, parts);
}

/* ---- gradients: stored or added ---- */

struct gradient {
    const void *packed;
    float *dst;
    uint32_t *amax;
    weight_tiles tiles;
    bool wide_packed, wide_dst; /* 16 bytes at once */
};

struct taking {
    float factor;
    bool accumulate, read_only; /* read_only: nothing is stored, only squares are wanted */
    float *parts;               /* NULL: no squares */
};

/* What a thread has seen. */
struct seen {
    uint32_t largest; /* magnitude, before the factor */
    float squares;    /* of what is stored */
};

/* Stores N values of [c][taps] at once. N neighbours may cross from one channel to the next: c and
 * tap advance value by value. */
template <int N>
static __device__ __forceinline__ seen store_tile(const gradient &g, const weight_tile &at,
                                                  const float *tile, const taking &how)
{
    const weight_tiles &t = g.tiles;
    float *dst = g.dst + place_in_order(t, at);
    seen s = {0, 0};
    for (int i = threadIdx.x * N; i < t.channels * t.covered; i += THREADS * N) {
        int c = i / t.covered, tap = i % t.covered;
        if (at.channel + c >= t.c || at.tap + tap >= t.taps) continue;
        float *to = dst + (size_t)c * t.taps + tap;
        float v[N], old[N] = {};
        if (how.accumulate) ampk_load(to, old);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float value = tile[tap * t.pitch + c];
            s.largest = ampk_larger(s.largest, ampk_magnitude(value));
            v[k] = __fmul_rn(value, how.factor);
            if (how.accumulate) v[k] = __fadd_rn(old[k], v[k]);
            s.squares += v[k] * v[k];
            if (++tap == t.covered) tap = 0, c++;
        }
        if (!how.read_only) ampk_store(to, v);
    }
    return s;
}

template <typename From>
static __global__ void __launch_bounds__(THREADS)
    add_gradients(const ampk_list<gradient> list, const taking how)
{
    alignas(16) __shared__ float tile[TILE_FLOATS];
    const int item = ampk_find_item(list);
    const gradient &g = list.items[item];
    const weight_tile at = find_tile(g.tiles, blockIdx.x - list.first_block[item]);
    const From *packed = static_cast<const From *>(g.packed);
    if (g.wide_packed)
        load_tile<ampk_wide<From>::elements>(g.tiles, at, packed, tile);
    else
        load_tile<1>(g.tiles, at, packed, tile);
    __syncthreads();
    seen s;
    if (g.wide_dst)
        s = store_tile<4>(g, at, tile, how);
    else
        s = store_tile<1>(g, at, tile, how);
    ampk_raise_amax(g.amax, s.largest);
    store_squares(s.squares, how.parts);
}

/* ---- gradients: launches ---- */

static gradient make_item(const struct ampk_conv_gradient &from)
{
    gradient g = {from.packed, from.dst, from.amax, cut_weights(from.layout), false, false};
    g.wide_packed = is_wide_packed(g.tiles, from.dtype);
    g.wide_dst = is_wide_in_order(g.tiles, from.dst);
    return g;
}

static size_t packed_values(const struct ampk_conv_gradient &g)
{
    return (size_t)g.layout.padded_k * g.layout.taps * g.layout.padded_c;
}

static unsigned watching_blocks(const struct ampk_conv_gradient &g)
{
    const size_t piece = PIECE_BYTES / ampk_dtype_bytes(g.dtype);
    return (unsigned)((packed_values(g) + piece - 1) / piece);
}

/* Gradients without a destination. */
template <typename T>
static void watch_those(struct ampk_context *ctx, const struct ampk_conv_gradient *all, int count,
                        enum ampk_dtype dtype, taking *how)
{
    ampk_list<watched> l;
    for (int i = 0; i < count;) {
        l.clear();
        for (; i < count && !l.is_full(); i++) {
            const struct ampk_conv_gradient &g = all[i];
            if (g.dtype != dtype || g.dst || !(g.amax || how->parts)) continue;
            l.add({g.packed, packed_values(g), g.amax}, watching_blocks(g));
        }
        if (!l.count) continue;
        AMPK_LAUNCH(watch_gradients<T>, l.blocks(), THREADS, 0, ctx->stream, l, how->parts);
        if (how->parts) how->parts += l.blocks();
    }
}

/* A kernel's arguments hold 4096 bytes at most, so a list has as many items as fit (ops/device.h).
 */
template <typename T>
static void add_those(struct ampk_context *ctx, const struct ampk_conv_gradient *all, int count,
                      enum ampk_dtype dtype, taking *how)
{
    static_assert(sizeof(ampk_list<gradient>) + sizeof(taking) <= 4096, "kernel arguments");
    ampk_list<gradient> l;
    for (int i = 0; i < count;) {
        l.clear();
        for (; i < count && !l.is_full(); i++) {
            if (all[i].dtype != dtype || !all[i].dst) continue;
            const gradient g = make_item(all[i]);
            l.add(g, g.tiles.blocks());
        }
        if (!l.count) continue;
        AMPK_LAUNCH(add_gradients<T>, l.blocks(), THREADS, 0, ctx->stream, l, *how);
        if (how->parts) how->parts += l.blocks();
    }
}

/* how.parts: a number for each block; moves on with every launch. */
static void take(struct ampk_context *ctx, const struct ampk_conv_gradient *all, int count,
                 taking how)
{
    static const enum ampk_dtype dtypes[] = {AMPK_FP16, AMPK_BF16, AMPK_FP32};
    for (enum ampk_dtype dtype : dtypes)
        AMPK_WITH_TYPE(dtype, T, {
            watch_those<T>(ctx, all, count, dtype, &how);
            add_those<T>(ctx, all, count, dtype, &how);
        });
}

extern "C" void ampk_conv_take_gradients(struct ampk_context *ctx,
                                         const struct ampk_conv_gradient *all, int count,
                                         float factor, bool accumulate)
{
    take(ctx, all, count, {factor, accumulate, false, nullptr});
}

extern "C" void ampk_conv_square_gradients(struct ampk_context *ctx,
                                           const struct ampk_conv_gradient *all, int count,
                                           const struct ampk_conv_squares *squares)
{
    unsigned blocks = 0;
    for (int i = 0; i < count; i++)
        blocks += all[i].dst ? cut_weights(all[i].layout).blocks() : watching_blocks(all[i]);
    float *parts = (float *)ampk_cuda_work(ctx, (blocks + 1) * sizeof *parts);
    take(ctx, all, count, {squares->factor, squares->accumulate, squares->read_only, parts});
    ampk_add_squares(ctx, parts, blocks, squares->square, squares->adds);
}

/* ---- updates ---- */

template <typename Rule> struct weight_update {
    const void *gradient; /* packed; NULL: none */
    const float *sum;     /* in place of gradient, in the masters' order [c][taps]; NULL: none */
    void *packed;
    uint32_t *amax;
    ampk_updated<Rule> weights;
    weight_tiles tiles;
    bool wide_gradient, wide_in_order, wide_packed; /* 16 bytes at once */
    bool tf32;
};

/* Updates N weights at once in the order of the masters. In the tile, each new weight replaces its
 * gradient: no other thread reads that place. Returns the largest magnitude. */
template <int N, typename Rule>
static __device__ __forceinline__ uint32_t update_tile(const weight_update<Rule> &u,
                                                       const Rule &rule, const weight_tile &at,
                                                       float *tile)
{
    const weight_tiles &t = u.tiles;
    const size_t first = place_in_order(t, at);
    uint32_t largest = 0;
    for (int i = threadIdx.x * N; i < t.channels * t.covered; i += THREADS * N) {
        int c = i / t.covered, tap = i % t.covered, place[N];
        if (at.channel + c >= t.c || at.tap + tap >= t.taps) continue;
        const size_t weight = first + (size_t)c * t.taps + tap;
#pragma unroll
        for (int k = 0; k < N; k++) {
            place[k] = tap * t.pitch + c;
            if (++tap == t.covered) tap = 0, c++;
        }
        float g[N] = {}, w[N];
        if (u.sum) ampk_load(u.sum + weight, g);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (u.gradient) g[k] = tile[place[k]];
        ampk_update<N>(rule, u.weights, weight, g, w);
        largest = ampk_magnitude(w, largest);
#pragma unroll
        for (int k = 0; k < N; k++)
            tile[place[k]] = w[k];
    }
    return largest;
}

/* Packs N channels of a tap at once. Channels behind the last are padding. */
template <int N, typename To>
static __device__ __forceinline__ void pack_tile(const weight_tiles &t, const weight_tile &at,
                                                 const float *tile, bool tf32, To *packed)
{
    packed += place_packed(t, at);
    const int runs = t.channels / N;
    for (int i = threadIdx.x; i < runs * t.covered; i += THREADS) {
        const int tap = i / runs, c = i % runs * N;
        if (at.channel + c >= t.c || at.tap + tap >= t.taps) continue;
        float v[N];
        ampk_load(tile + tap * t.pitch + c, v);
#pragma unroll
        for (int k = 0; k < N; k++) {
            if (at.channel + c + k >= t.c) v[k] = 0;
            if (tf32) v[k] = ampk_round_to_tf32(v[k]);
        }
        ampk_store(packed + (size_t)tap * t.padded_c + c, v);
    }
}

/* Two barriers: the tile must be complete before it is read in another order, and updated before
 * it is packed. */
template <typename From, typename To, typename Rule>
static __global__ void __launch_bounds__(THREADS)
    update_weights(const ampk_list<weight_update<Rule>> list, const Rule rule)
{
    alignas(16) __shared__ float tile[TILE_FLOATS];
    const int item = ampk_find_item(list);
    const weight_update<Rule> &u = list.items[item];
    const weight_tile at = find_tile(u.tiles, blockIdx.x - list.first_block[item]);
    const From *gradient = static_cast<const From *>(u.gradient);
    if (gradient && u.wide_gradient)
        load_tile<ampk_wide<From>::elements>(u.tiles, at, gradient, tile);
    else if (gradient)
        load_tile<1>(u.tiles, at, gradient, tile);
    __syncthreads();
    uint32_t largest;
    if (u.wide_in_order)
        largest = update_tile<4>(u, rule, at, tile);
    else
        largest = update_tile<1>(u, rule, at, tile);
    __syncthreads();
    To *packed = static_cast<To *>(u.packed);
    if (u.wide_packed)
        pack_tile<ampk_wide<To>::elements>(u.tiles, at, tile, u.tf32, packed);
    else
        pack_tile<1>(u.tiles, at, tile, u.tf32, packed);
    ampk_raise_amax(u.amax, largest);
}

/* ---- updates: launches ---- */

template <typename Rule>
static weight_update<Rule> make_item(const struct ampk_conv_update &from, const Rule &rule)
{
    weight_update<Rule> u = {};
    const float *sum = from.param->grad;
    u.gradient = sum ? nullptr : from.gradient;
    u.sum = sum;
    u.packed = from.packed;
    u.amax = from.amax;
    u.weights = ampk_updated_by(rule, *from.param);
    u.tiles = cut_weights(from.layout);
    u.wide_gradient = is_wide_packed(u.tiles, from.dtype);
    u.wide_packed = is_wide_packed(u.tiles, ampk_tc_operand(from.compute));
    u.wide_in_order = is_wide_in_order(u.tiles, u.weights.w) && is_wide_in_order(u.tiles, sum);
    for (float *state : u.weights.state)
        u.wide_in_order = u.wide_in_order && is_wide_in_order(u.tiles, state);
    u.wide_in_order = u.wide_in_order && is_wide_in_order(u.tiles, u.weights.average);
    u.tf32 = from.compute == AMPK_COMPUTE_TF32;
    return u;
}

/* Updates the items of the list whose gradients and weights have these types. */
template <typename From, typename To, typename Rule>
static void update_those(struct ampk_context *ctx, const struct ampk_conv_update *all, int count,
                         enum ampk_dtype gradients, enum ampk_dtype weights, const Rule &rule)
{
    static_assert(sizeof(ampk_list<weight_update<Rule>>) + sizeof(Rule) <= 4096,
                  "kernel arguments");
    ampk_list<weight_update<Rule>> l;
    for (int i = 0; i < count;) {
        l.clear();
        for (; i < count && !l.is_full(); i++) {
            const struct ampk_conv_update &from = all[i];
            if (from.dtype != gradients || ampk_tc_operand(from.compute) != weights) continue;
            const weight_update<Rule> u = make_item(from, rule);
            l.add(u, u.tiles.blocks());
        }
        if (l.count)
            AMPK_LAUNCH((update_weights<From, To, Rule>), l.blocks(), THREADS, 0, ctx->stream, l,
                        rule);
    }
}

/* Every pair of types that conv_choice.c can produce: a gradient has the operands' type or FP32. */
template <typename Rule>
static void update_all(struct ampk_context *ctx, const struct ampk_conv_update *all, int count,
                       const Rule &rule)
{
    update_those<ampk_fp16, ampk_fp16>(ctx, all, count, AMPK_FP16, AMPK_FP16, rule);
    update_those<float, ampk_fp16>(ctx, all, count, AMPK_FP32, AMPK_FP16, rule);
    update_those<ampk_bf16, ampk_bf16>(ctx, all, count, AMPK_BF16, AMPK_BF16, rule);
    update_those<float, ampk_bf16>(ctx, all, count, AMPK_FP32, AMPK_BF16, rule);
    update_those<float, float>(ctx, all, count, AMPK_FP32, AMPK_FP32, rule);
}

extern "C" void ampk_conv_update_weights(struct ampk_context *ctx, const struct ampk_rule *rule,
                                         const struct ampk_conv_update *all, int count)
{
    if (ampk_has_moments(rule))
        update_all(ctx, all, count, ampk_adam_rule(rule));
    else
        update_all(ctx, all, count, ampk_sgd_rule(rule));
}
