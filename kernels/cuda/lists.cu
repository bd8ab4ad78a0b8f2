/* Lists of FP32 arrays: update rules and copies, a few launches for a network. Products and sums
 * are rounded one by one (no fused multiply-add), so that the bits are the CPU backend's. */
#include "kernels/cuda/list.h"

/* 256 threads of four floats, four times: a block has enough to do to be worth its start, and small
 * arrays still do not wait for each other. */
static const int THREADS = 256, PIECE = THREADS * 16;

/* Does rule(item, elements) on every piece of every item: N = 4 floats at once where the item's
 * addresses allow it. */
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

static __device__ __forceinline__ bool are_wide(const void *a, const void *b, const void *c,
                                                const void *d)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) & 15) == 0;
}

/* To [-clip, clip] if clip > 0; NaN stays NaN. */
static __device__ __forceinline__ float clamp(float x, float clip)
{
    if (!(clip > 0)) return x;
    x = x > clip ? clip : x;
    return x < -clip ? -clip : x;
}

/* ---- SGD ---- */

struct sgd_item {
    float *w, *v;
    const float *g;
    size_t n;
    float unscale, rate, decay_batch, clip;
    __device__ bool is_wide() const
    {
        return are_wide(w, v, g, nullptr);
    }
};

struct sgd {
    float momentum;
    template <int N> __device__ __forceinline__ void on(const sgd_item &p, size_t i) const
    {
        float w[N], v[N], g[N];
        ampk_load(p.w + i, w);
        ampk_load(p.v + i, v);
        ampk_load(p.g + i, g);
#pragma unroll
        for (int k = 0; k < N; k++) {
            v[k] = __fadd_rn(v[k], __fmul_rn(p.unscale, g[k]));
            if (p.decay_batch != 0) v[k] = __fsub_rn(v[k], __fmul_rn(p.decay_batch, w[k]));
            w[k] = clamp(__fadd_rn(w[k], __fmul_rn(p.rate, v[k])), p.clip);
            v[k] = __fmul_rn(v[k], momentum);
        }
        ampk_store(p.w + i, w);
        ampk_store(p.v + i, v);
    }
};

/* ---- Adam ---- */

struct adam_item {
    float *w, *m, *v;
    const float *g;
    size_t n;
    float unscale, rate, decay_batch, clip;
    __device__ bool is_wide() const
    {
        return are_wide(w, m, v, g);
    }
};

struct adam {
    float b1, b2, rest1, rest2, eps; /* rest: 1 - b */
    float unbias1, unbias2;          /* 1 - b^t */
    template <int N> __device__ __forceinline__ void on(const adam_item &p, size_t i) const
    {
        float w[N], m[N], v[N], g[N];
        ampk_load(p.w + i, w);
        ampk_load(p.m + i, m);
        ampk_load(p.v + i, v);
        ampk_load(p.g + i, g);
#pragma unroll
        for (int k = 0; k < N; k++) {
            float gradient = __fmul_rn(p.unscale, g[k]);
            float d = __fsub_rn(gradient, __fmul_rn(p.decay_batch, w[k]));
            m[k] = __fadd_rn(__fmul_rn(m[k], b1), __fmul_rn(d, rest1));
            v[k] = __fadd_rn(__fmul_rn(v[k], b2), __fmul_rn(__fmul_rn(d, d), rest2));
            float mean = __fdiv_rn(m[k], unbias1), spread = __fsqrt_rn(__fdiv_rn(v[k], unbias2));
            float step = __fdiv_rn(__fmul_rn(p.rate, mean), __fadd_rn(spread, eps));
            w[k] = clamp(__fadd_rn(w[k], step), p.clip);
        }
        ampk_store(p.w + i, w);
        ampk_store(p.m + i, m);
        ampk_store(p.v + i, v);
    }
};

/* ---- copy ---- */

struct copy_item {
    float *dst;
    const float *src;
    size_t n;
    __device__ bool is_wide() const
    {
        return are_wide(dst, src, nullptr, nullptr);
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

static sgd_item make_item(const struct ampk_param &p, const sgd &)
{
    return {p.value, p.update, p.grad, p.n, p.unscale, p.rate, p.decay_batch, p.clip};
}

static adam_item make_item(const struct ampk_param &p, const adam &)
{
    return {p.value, p.m, p.v, p.grad, p.n, p.unscale, p.rate, p.decay_batch, p.clip};
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
    apply_to<sgd_item>(ctx, params, count, sgd{momentum});
}

extern "C" void ampk_cuda_update_adam(struct ampk_context *ctx, const struct ampk_param *params,
                                      int count, float b1, float b2, float eps, int t)
{
    const adam rule = {
        b1, b2, 1 - b1, 1 - b2, eps, (float)(1 - pow(b1, t)), (float)(1 - pow(b2, t))};
    apply_to<adam_item>(ctx, params, count, rule);
}
