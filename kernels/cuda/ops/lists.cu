/* Applies update rules and copies to lists of FP32 arrays, in a few launches for a network. The
 * arithmetic of the rules is update_rule.h's. */
#include "list.h"
#include "update_rule.h"

/* 256 threads of four floats, four times: a block has enough work to be worth its start, and small
 * arrays still do not wait for each other. */
static const int THREADS = 256, PIECE = THREADS * 16;

/* Applies the rule to a piece of an item: N = 4 floats at once if the item's addresses allow it.
 * Where they do not, threads keep the same elements, so the results have the same bits. */
template <typename Item, typename Rule>
static __global__ void __launch_bounds__(THREADS) apply(const ampk_list<Item> l, const Rule rule)
{
    const int at = ampk_find_item(l);
    const Item &item = l.items[at];
    const size_t first = (size_t)(blockIdx.x - l.first_block[at]) * PIECE;
    const size_t end = item.n - first < PIECE ? item.n : first + PIECE;
    size_t i = first + threadIdx.x * 4;
    if (item.is_wide())
        for (; i + 4 <= end; i += THREADS * 4)
            rule.template on<4>(item, i);
    else
        for (; i + 4 <= end; i += THREADS * 4)
#pragma unroll 1
            for (int k = 0; k < 4; k++)
                rule.template on<1>(item, i + k);
#pragma unroll 1
    for (; i < end; i++) /* what is left of the item */
        rule.template on<1>(item, i);
}

/* ---- updates ---- */

template <typename Rule> struct update_item {
    ampk_updated<Rule> weights;
    const float *g;
    size_t n;
    __device__ bool is_wide() const
    {
        uintptr_t all = (uintptr_t)weights.w | (uintptr_t)g;
#pragma unroll
        for (int s = 0; s < Rule::states; s++)
            all |= (uintptr_t)weights.state[s];
        return (all & 15) == 0;
    }
};

template <typename Rule> struct update {
    Rule rule;
    template <int N> __device__ __forceinline__ void on(const update_item<Rule> &p, size_t i) const
    {
        float g[N], w[N];
        ampk_load(p.g + i, g);
        ampk_update<N>(rule, p.weights, i, g, w);
    }
};

/* ---- copy ---- */

struct copy_item {
    float *dst;
    const float *src;
    size_t n;
    __device__ bool is_wide() const
    {
        return (((uintptr_t)dst | (uintptr_t)src) & 15) == 0;
    }
};

struct copy {
    template <int N> __device__ __forceinline__ void on(const copy_item &p, size_t i) const
    {
        float x[N];
        ampk_load(p.src + i, x);
        ampk_store(p.dst + i, x);
    }
};

/* ---- launches ---- */

template <typename Rule>
static update_item<Rule> make_item(const struct ampk_param &p, const update<Rule> &u)
{
    return {ampk_updated_by(u.rule, p), p.grad, p.n};
}

static copy_item make_item(const struct ampk_span &s, const copy &)
{
    return {s.dst, s.src, s.n};
}

template <typename Item, typename Array, typename Rule>
static void apply_to(struct ampk_context *ctx, const Array *arrays, int count, const Rule rule)
{
    static_assert(sizeof(ampk_list<Item>) + sizeof(Rule) <= 4096, "kernel arguments");
    ampk_list<Item> l;
    for (int i = 0; i < count;) {
        l.clear();
        for (; i < count && !l.is_full(); i++)
            if (arrays[i].n)
                l.add(make_item(arrays[i], rule), (unsigned)((arrays[i].n + PIECE - 1) / PIECE));
        if (l.count) AMPK_LAUNCH((apply<Item, Rule>), l.blocks(), THREADS, 0, ctx->stream, l, rule);
    }
}

extern "C" void ampk_cuda_copy_many(struct ampk_context *ctx, const struct ampk_span *spans,
                                    int count)
{
    apply_to<copy_item>(ctx, spans, count, copy());
}

extern "C" void ampk_cuda_update_sgd(struct ampk_context *ctx, const struct ampk_param *params,
                                     int count, float momentum)
{
    apply_to<update_item<ampk_sgd>>(ctx, params, count, update<ampk_sgd>{{momentum}});
}

extern "C" void ampk_cuda_update_adam(struct ampk_context *ctx, const struct ampk_param *params,
                                      int count, float b1, float b2, float eps, int t)
{
    apply_to<update_item<ampk_adam>>(ctx, params, count,
                                     update<ampk_adam>{ampk_adam_at(b1, b2, eps, t)});
}
