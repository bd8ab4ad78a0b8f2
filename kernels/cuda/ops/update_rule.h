/* The update rules of kernels.h for one weight; update.cu applies them to whole arrays,
 * conv_weights.cu to the weights of convolutions. Products and sums are rounded one by one (no
 * fused multiply-add), so that the bits are the CPU backend's. */
#ifndef AMPK_CUDA_UPDATE_RULE_H
#define AMPK_CUDA_UPDATE_RULE_H

#include "device.h"

/* Parameters of one array, as struct ampk_param has them. */
struct ampk_rates {
    float unscale, rate, decay, clip;
    const float *trust;
};

/* Clamps to [-clip, clip] if clip > 0; NaN stays NaN, so that it is seen and not hidden. */
static __device__ __forceinline__ float ampk_clamp(float x, float clip)
{
    if (!(clip > 0)) return x;
    x = x > clip ? clip : x;
    return x < -clip ? -clip : x;
}

/* What all rules do alike: the gradient before them, the moving average after them. */
struct ampk_any_rule {
    float limit, average_rest;

    __device__ __forceinline__ float gradient(float g, const ampk_rates &p) const
    {
        return ampk_clamp(__fmul_rn(p.unscale, g), limit);
    }
    __device__ __forceinline__ float average(float a, float w) const
    {
        return __fadd_rn(a, __fmul_rn(average_rest, __fsub_rn(w, a)));
    }
};

/* SGD and LARS: the next velocity. Momentum is applied after the update, as in Darknet. states: how
 * many numbers are kept per weight beside the weight itself. */
struct ampk_sgd : ampk_any_rule {
    static const int states = 1;
    bool lars;
    float momentum;

    __device__ __forceinline__ void step(float &w, float (&state)[1], float g, float rate,
                                         const ampk_rates &p) const
    {
        g = gradient(g, p);
        float v, added;
        if (lars) {
            g = __fsub_rn(g, __fmul_rn(p.decay, w));
            v = added = __fadd_rn(state[0], __fmul_rn(rate, g));
        } else {
            v = __fadd_rn(state[0], g);
            if (p.decay != 0) v = __fsub_rn(v, __fmul_rn(p.decay, w));
            added = __fmul_rn(rate, v);
        }
        w = ampk_clamp(__fadd_rn(w, added), p.clip);
        state[0] = __fmul_rn(v, momentum);
    }
    /* What LARS compares the weights with. */
    __device__ __forceinline__ float compared(float, const float (&)[1], float g,
                                              const ampk_rates &p) const
    {
        return gradient(g, p);
    }
};

/* Adam, and with decoupled decay AdamW. */
struct ampk_adam : ampk_any_rule {
    static const int states = 2;
    bool decoupled;
    float b1, b2, rest1, rest2, eps; /* rest: 1 - b */
    float unbias1, unbias2;          /* 1 - b^t */

    __device__ __forceinline__ void add(float (&state)[2], float d) const
    {
        state[0] = __fadd_rn(__fmul_rn(state[0], b1), __fmul_rn(d, rest1));
        state[1] = __fadd_rn(__fmul_rn(state[1], b2), __fmul_rn(__fmul_rn(d, d), rest2));
    }
    /* The divisor of a direction whose dividend is mean times anything. */
    __device__ __forceinline__ float spread(const float (&state)[2]) const
    {
        return __fadd_rn(__fsqrt_rn(__fdiv_rn(state[1], unbias2)), eps);
    }
    __device__ __forceinline__ float decoupled_step(const float (&state)[2], float decay) const
    {
        return __fsub_rn(__fdiv_rn(__fdiv_rn(state[0], unbias1), spread(state)), decay);
    }
    __device__ __forceinline__ void step(float &w, float (&state)[2], float g, float rate,
                                         const ampk_rates &p) const
    {
        const float decay = __fmul_rn(p.decay, w);
        g = gradient(g, p);
        float added;
        if (decoupled) {
            add(state, g);
            added = __fmul_rn(rate, decoupled_step(state, decay));
        } else {
            add(state, __fsub_rn(g, decay));
            added = __fdiv_rn(__fmul_rn(rate, __fdiv_rn(state[0], unbias1)), spread(state));
        }
        w = ampk_clamp(__fadd_rn(w, added), p.clip);
    }
    /* What LAMB compares the weights with. */
    __device__ __forceinline__ float compared(float w, const float (&old)[2], float g,
                                              const ampk_rates &p) const
    {
        float state[2] = {old[0], old[1]};
        add(state, gradient(g, p));
        return decoupled_step(state, __fmul_rn(p.decay, w));
    }
};

static inline ampk_any_rule ampk_common_rule(const struct ampk_rule *r)
{
    return {r->limit, r->average_rest};
}

static inline ampk_sgd ampk_sgd_rule(const struct ampk_rule *r)
{
    return {ampk_common_rule(r), r->optimizer == AMPK_LARS, r->momentum};
}

static inline ampk_adam ampk_adam_rule(const struct ampk_rule *r)
{
    return {ampk_common_rule(r),
            r->optimizer == AMPK_ADAMW,
            r->b1,
            r->b2,
            1 - r->b1,
            1 - r->b2,
            r->eps,
            (float)(1 - pow(r->b1, r->t)),
            (float)(1 - pow(r->b2, r->t))};
}

static inline bool ampk_has_moments(const struct ampk_rule *r)
{
    return r->optimizer == AMPK_ADAM || r->optimizer == AMPK_ADAMW;
}

/* ---- arrays ---- */

template <typename Rule> struct ampk_updated {
    float *w, *state[Rule::states], *average; /* average: NULL: none */
    ampk_rates rates;
};

static inline ampk_rates ampk_rates_of(const struct ampk_param &p)
{
    return {p.unscale, p.rate, p.decay, p.clip, p.trust};
}

static inline ampk_updated<ampk_sgd> ampk_updated_by(const ampk_sgd &, const struct ampk_param &p)
{
    return {p.value, {p.update}, p.average, ampk_rates_of(p)};
}

static inline ampk_updated<ampk_adam> ampk_updated_by(const ampk_adam &, const struct ampk_param &p)
{
    return {p.value, {p.m, p.v}, p.average, ampk_rates_of(p)};
}

/* Loads N weights from i on, and their state. */
template <int N, typename Rule>
static __device__ __forceinline__ void ampk_load_updated(const ampk_updated<Rule> &p, size_t i,
                                                         float (&w)[N],
                                                         float (&state)[Rule::states][N])
{
    ampk_load(p.w + i, w);
#pragma unroll
    for (int s = 0; s < Rule::states; s++)
        ampk_load(p.state[s] + i, state[s]);
}

/* Updates N weights from i on; w receives the new weights. */
template <int N, typename Rule>
static __device__ __forceinline__ void ampk_update(const Rule &rule, const ampk_updated<Rule> &p,
                                                   size_t i, const float (&g)[N], float (&w)[N])
{
    const float rate = p.rates.trust ? __fmul_rn(p.rates.rate, *p.rates.trust) : p.rates.rate;
    float state[Rule::states][N];
    ampk_load_updated<N>(p, i, w, state);
#pragma unroll
    for (int k = 0; k < N; k++) {
        float of_weight[Rule::states];
#pragma unroll
        for (int s = 0; s < Rule::states; s++)
            of_weight[s] = state[s][k];
        rule.step(w[k], of_weight, g[k], rate, p.rates);
#pragma unroll
        for (int s = 0; s < Rule::states; s++)
            state[s][k] = of_weight[s];
    }
    ampk_store(p.w + i, w);
#pragma unroll
    for (int s = 0; s < Rule::states; s++)
        ampk_store(p.state[s] + i, state[s]);
    if (!p.average) return;
    float average[N];
    ampk_load(p.average + i, average);
#pragma unroll
    for (int k = 0; k < N; k++)
        average[k] = rule.average(average[k], w[k]);
    ampk_store(p.average + i, average);
}

#endif
