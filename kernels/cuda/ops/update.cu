/* Updates and moving averages of lists of flat FP32 arrays, in a few launches for a network, and
 * the trust ratios of LARS and LAMB. The arithmetic of the rules is update_rule.h's. */
#include "apply.h"
#include "loss.h"
#include "update_rule.h"

/* ---- updates ---- */

template <typename Rule> struct update_item {
    ampk_updated<Rule> weights;
    const float *g;
    size_t n;
    __device__ bool is_wide() const
    {
        uintptr_t all = (uintptr_t)weights.w | (uintptr_t)g | (uintptr_t)weights.average;
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

template <typename Rule>
static update_item<Rule> make_item(const struct ampk_param &p, const update<Rule> &u)
{
    return {ampk_updated_by(u.rule, p), p.grad, p.n};
}

extern "C" void ampk_cuda_update(struct ampk_context *ctx, const struct ampk_rule *rule,
                                 const struct ampk_param *params, int count)
{
    if (ampk_has_moments(rule))
        ampk_apply_to<update_item<ampk_adam>>(ctx, params, count,
                                              update<ampk_adam>{ampk_adam_rule(rule)});
    else
        ampk_apply_to<update_item<ampk_sgd>>(ctx, params, count,
                                             update<ampk_sgd>{ampk_sgd_rule(rule)});
}

/* ---- trust ratios: n alone decides how a sum is split, and the parts are added in a fixed order
 * ---- */

template <typename Rule> struct trust_item {
    ampk_updated<Rule> weights;
    const float *g;
    size_t n;
    float *trust;
};

/* Every block writes two numbers: square sums of its weights and of what they are compared with. */
template <typename Rule>
static __global__ void __launch_bounds__(AMPK_APPLY_THREADS)
    square_parts(const ampk_list<trust_item<Rule>> l, const Rule rule, float *parts)
{
    const int at = ampk_find_item(l);
    const trust_item<Rule> &item = l.items[at];
    const size_t first = (size_t)(blockIdx.x - l.first_block[at]) * AMPK_APPLY_PIECE;
    const size_t end = item.n - first < AMPK_APPLY_PIECE ? item.n : first + AMPK_APPLY_PIECE;
    float weights = 0, steps = 0;
    for (size_t i = first + threadIdx.x; i < end; i += AMPK_APPLY_THREADS) {
        float w[1], state[Rule::states][1], of_weight[Rule::states];
        ampk_load_updated<1>(item.weights, i, w, state);
        for (int s = 0; s < Rule::states; s++)
            of_weight[s] = state[s][0];
        const float x = rule.compared(w[0], of_weight, item.g[i], item.weights.rates);
        weights += w[0] * w[0];
        steps += x * x;
    }
    weights = ampk_block_sum(weights);
    steps = ampk_block_sum(steps);
    if (threadIdx.x > 0) return;
    parts[2 * blockIdx.x] = weights;
    parts[2 * blockIdx.x + 1] = steps;
}

/* A block for each item. */
template <typename Rule>
static __global__ void __launch_bounds__(AMPK_APPLY_THREADS)
    divide_norms(const ampk_list<trust_item<Rule>> l, bool lars, const float *parts)
{
    const trust_item<Rule> &item = l.items[blockIdx.x];
    float weights = 0, steps = 0;
    for (unsigned i = l.first_block[blockIdx.x] + threadIdx.x; i < l.first_block[blockIdx.x + 1];
         i += AMPK_APPLY_THREADS) {
        weights += parts[2 * i];
        steps += parts[2 * i + 1];
    }
    weights = sqrtf(ampk_block_sum(weights));
    steps = sqrtf(ampk_block_sum(steps));
    if (lars) steps = (steps + item.weights.rates.decay * weights) / AMPK_LARS_TRUST;
    if (threadIdx.x == 0) *item.trust = weights == 0 || steps == 0 ? 1 : weights / steps;
}

template <typename Rule>
static void find_trust(struct ampk_context *ctx, const Rule &rule, bool lars,
                       const struct ampk_param *params, int count)
{
    static_assert(sizeof(ampk_list<trust_item<Rule>>) + sizeof(Rule) + 16 <= 4096,
                  "kernel arguments");
    ampk_list<trust_item<Rule>> l;
    for (int i = 0; i < count;) {
        l.clear();
        for (; i < count && !l.is_full(); i++) {
            const struct ampk_param &p = params[i];
            if (p.n && p.trust)
                l.add({ampk_updated_by(rule, p), p.grad, p.n, p.trust}, ampk_apply_blocks(p.n));
        }
        if (!l.count) continue;
        float *parts = (float *)ampk_cuda_work(ctx, 2 * (size_t)l.blocks() * sizeof *parts);
        AMPK_LAUNCH(square_parts<Rule>, l.blocks(), AMPK_APPLY_THREADS, 0, ctx->stream, l, rule,
                    parts);
        AMPK_LAUNCH(divide_norms<Rule>, (unsigned)l.count, AMPK_APPLY_THREADS, 0, ctx->stream, l,
                    lars, parts);
    }
}

extern "C" void ampk_cuda_trust_ratios(struct ampk_context *ctx, const struct ampk_rule *rule,
                                       const struct ampk_param *params, int count)
{
    if (ampk_has_moments(rule))
        find_trust(ctx, ampk_adam_rule(rule), false, params, count);
    else
        find_trust(ctx, ampk_sgd_rule(rule), true, params, count);
}

/* ---- moving averages ---- */

struct averaging {
    float rest;
    template <int N> __device__ __forceinline__ void on(const ampk_span_item &p, size_t i) const
    {
        float x[N], average[N];
        ampk_load(p.src + i, x);
        ampk_load(p.dst + i, average);
#pragma unroll
        for (int k = 0; k < N; k++)
            average[k] = __fadd_rn(average[k], __fmul_rn(rest, __fsub_rn(x[k], average[k])));
        ampk_store(p.dst + i, average);
    }
};

static ampk_span_item make_item(const struct ampk_span &s, const averaging &)
{
    return {s.dst, s.src, s.n};
}

extern "C" void ampk_cuda_average_many(struct ampk_context *ctx, const struct ampk_span *spans,
                                       int count, float rest)
{
    ampk_apply_to<ampk_span_item>(ctx, spans, count, averaging{rest});
}
