/* Updates and packs the weights of a network's convolutions, some thirty-five in a launch: many
 * layers are too small to fill a GPU by themselves. Memory bandwidth bounds all of it; a tile in
 * shared memory lets one pass read the packed gradient, update the masters and write the packed
 * weights. The optimizer's arithmetic is update_rule.h's. */
#include "conv_kernels.h"
#include "conv_tile.h"
#include "kernels/cuda/ops/list.h"
#include "kernels/cuda/libs/tensor_core.h"
#include "kernels/cuda/ops/update_rule.h"

static const int THREADS = 256;

template <typename Rule> struct weight_update {
    const void *gradient; /* packed; NULL: none */
    const float *sum;     /* in place of gradient, in the masters' order [c][taps]; NULL: none */
    void *packed;
    uint32_t *amax;
    ampk_updated<Rule> weights;
    ampk_conv_tiles tiles;
    bool wide_gradient, wide_in_order, wide_packed; /* 16 bytes at once */
    bool tf32;
};

/* Updates N weights at once in the order of the masters. In the tile, each new weight replaces its
 * gradient: no other thread reads that place. Returns the largest magnitude. */
template <int N, typename Rule>
static __device__ __forceinline__ uint32_t update_tile(const weight_update<Rule> &u,
                                                       const Rule &rule, const ampk_conv_tile &at,
                                                       float *tile)
{
    const ampk_conv_tiles &t = u.tiles;
    const size_t first = ampk_place_in_order(t, at);
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
static __device__ __forceinline__ void pack_tile(const ampk_conv_tiles &t, const ampk_conv_tile &at,
                                                 const float *tile, bool tf32, To *packed)
{
    packed += ampk_place_packed(t, at);
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
    alignas(16) __shared__ float tile[AMPK_TILE_FLOATS];
    const int item = ampk_find_item(list);
    const weight_update<Rule> &u = list.items[item];
    const ampk_conv_tile at = ampk_find_tile(u.tiles, blockIdx.x - list.first_block[item]);
    const From *gradient = static_cast<const From *>(u.gradient);
    if (gradient && u.wide_gradient)
        ampk_load_tile<ampk_wide<From>::elements>(u.tiles, at, gradient, tile);
    else if (gradient)
        ampk_load_tile<1>(u.tiles, at, gradient, tile);
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

/* ---- launches ---- */

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
    u.tiles = ampk_cut_weights(from.layout);
    u.wide_gradient = ampk_is_wide_packed(u.tiles, from.dtype);
    u.wide_packed = ampk_is_wide_packed(u.tiles, ampk_tc_operand(from.compute));
    u.wide_in_order =
        ampk_is_wide_in_order(u.tiles, u.weights.w) && ampk_is_wide_in_order(u.tiles, sum);
    for (float *state : u.weights.state)
        u.wide_in_order = u.wide_in_order && ampk_is_wide_in_order(u.tiles, state);
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

extern "C" void ampk_conv_update_by_sgd(struct ampk_context *ctx,
                                        const struct ampk_conv_update *all, int count,
                                        float momentum)
{
    update_all(ctx, all, count, ampk_sgd{momentum});
}

extern "C" void ampk_conv_update_by_adam(struct ampk_context *ctx,
                                         const struct ampk_conv_update *all, int count, float b1,
                                         float b2, float eps, int t)
{
    update_all(ctx, all, count, ampk_adam_at(b1, b2, eps, t));
}
