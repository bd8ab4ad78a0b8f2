/* The optimizers of kernels.h for one weight; flat.cu applies them to whole arrays,
 * conv_weights.cu to the weights of convolutions. Products and sums are rounded one by one (no
 * fused multiply-add), so that the bits are the CPU backend's. */
#ifndef AMPK_CUDA_UPDATE_RULE_H
#define AMPK_CUDA_UPDATE_RULE_H

#include "device.h"

/* Parameters of one array, as struct ampk_param has them. */
struct ampk_rates {
    float unscale, rate, decay_batch, clip;
};

/* Clamps to [-clip, clip] if clip > 0; NaN stays NaN, so that it is seen and not hidden. */
static __device__ __forceinline__ float ampk_clamp(float x, float clip)
{
    if (!(clip > 0)) return x;
    x = x > clip ? clip : x;
    return x < -clip ? -clip : x;
}

/* Momentum is applied after the update, as in Darknet. states: how many numbers are kept per
 * weight beside the weight itself. */
struct ampk_sgd {
    static const int states = 1;
    float momentum;

    __device__ __forceinline__ void step(float &w, float (&state)[1], float g,
                                         const ampk_rates &p) const
    {
        float v = __fadd_rn(state[0], __fmul_rn(p.unscale, g));
        if (p.decay_batch != 0) v = __fsub_rn(v, __fmul_rn(p.decay_batch, w));
        w = ampk_clamp(__fadd_rn(w, __fmul_rn(p.rate, v)), p.clip);
        state[0] = __fmul_rn(v, momentum);
    }
};

/* Darknet adds the step: its gradients point downhill. */
struct ampk_adam {
    static const int states = 2;
    float b1, b2, rest1, rest2, eps; /* rest: 1 - b */
    float unbias1, unbias2;          /* 1 - b^t */

    __device__ __forceinline__ void step(float &w, float (&state)[2], float g,
                                         const ampk_rates &p) const
    {
        float &m = state[0], &v = state[1];
        float d = __fsub_rn(__fmul_rn(p.unscale, g), __fmul_rn(p.decay_batch, w));
        m = __fadd_rn(__fmul_rn(m, b1), __fmul_rn(d, rest1));
        v = __fadd_rn(__fmul_rn(v, b2), __fmul_rn(__fmul_rn(d, d), rest2));
        float mean = __fdiv_rn(m, unbias1), spread = __fsqrt_rn(__fdiv_rn(v, unbias2));
        float step = __fdiv_rn(__fmul_rn(p.rate, mean), __fadd_rn(spread, eps));
        w = ampk_clamp(__fadd_rn(w, step), p.clip);
    }
};

static inline ampk_adam ampk_adam_at(float b1, float b2, float eps, int t)
{
    return {b1, b2, 1 - b1, 1 - b2, eps, (float)(1 - pow(b1, t)), (float)(1 - pow(b2, t))};
}

/* ---- arrays ---- */

template <typename Rule> struct ampk_updated {
    float *w, *state[Rule::states];
    ampk_rates rates;
};

static inline ampk_updated<ampk_sgd> ampk_updated_by(const ampk_sgd &, const struct ampk_param &p)
{
    return {p.value, {p.update}, {p.unscale, p.rate, p.decay_batch, p.clip}};
}

static inline ampk_updated<ampk_adam> ampk_updated_by(const ampk_adam &, const struct ampk_param &p)
{
    return {p.value, {p.m, p.v}, {p.unscale, p.rate, p.decay_batch, p.clip}};
}

/* Updates N weights from i on; w receives the new weights. */
template <int N, typename Rule>
static __device__ __forceinline__ void ampk_update(const Rule &rule, const ampk_updated<Rule> &p,
                                                   size_t i, const float (&g)[N], float (&w)[N])
{
    float state[Rule::states][N];
    ampk_load(p.w + i, w);
#pragma unroll
    for (int s = 0; s < Rule::states; s++)
        ampk_load(p.state[s] + i, state[s]);
#pragma unroll
    for (int k = 0; k < N; k++) {
        float of_weight[Rule::states];
#pragma unroll
        for (int s = 0; s < Rule::states; s++)
            of_weight[s] = state[s][k];
        rule.step(w[k], of_weight, g[k], p.rates);
#pragma unroll
        for (int s = 0; s < Rule::states; s++)
            state[s][k] = of_weight[s];
    }
    ampk_store(p.w + i, w);
#pragma unroll
    for (int s = 0; s < Rule::states; s++)
        ampk_store(p.state[s] + i, state[s]);
}

#endif
