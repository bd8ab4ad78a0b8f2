/* Flat FP32 arrays: largest magnitude, scaling and accumulation of one; update rules and copies of
 * lists of them, in a few launches for a network; numbers for the log. Products and sums are
 * rounded one by one (no fused multiply-add), so that the bits are the CPU backend's. The
 * arithmetic of the rules is update_rule.h's. */
#include "loss.h"
#include "update_rule.h"

/* 256 threads give full occupancy on every architecture, and a partly filled last block costs
 * little. */
static const int THREADS = 256;

/* ---- one array ----
 * Every operation is a loop over pieces of N floats, N = 4 if addresses allow it. `i` is the first
 * element of a piece; the last piece may have fewer than N. */

template <int N>
static __global__ void __launch_bounds__(THREADS)
    ampk_find_amax(const float *__restrict__ x, size_t n, uint32_t *amax)
{
    uint32_t largest = 0;
    for (size_t i = ampk_first() * N; i < n; i += ampk_stride() * N) {
        if (n - i >= N) {
            float v[N];
            ampk_load(x + i, v);
            largest = ampk_magnitude(v, largest);
        } else {
#pragma unroll 1
            for (size_t k = i; k < n; k++)
                largest = ampk_larger(largest, ampk_magnitude(x[k]));
        }
    }
    ampk_raise_amax(amax, largest);
}

template <int N>
static __global__ void __launch_bounds__(THREADS) ampk_scale_by(float *x, size_t n, float factor)
{
    for (size_t i = ampk_first() * N; i < n; i += ampk_stride() * N) {
        if (n - i >= N) {
            float v[N];
            ampk_load(x + i, v);
#pragma unroll
            for (int k = 0; k < N; k++)
                v[k] = __fmul_rn(v[k], factor);
            ampk_store(x + i, v);
        } else {
#pragma unroll 1
            for (size_t k = i; k < n; k++)
                x[k] = __fmul_rn(x[k], factor);
        }
    }
}

template <int N>
static __global__ void __launch_bounds__(THREADS)
    ampk_accumulate_to(const float *__restrict__ g, size_t n, float factor, float *__restrict__ sum)
{
    for (size_t i = ampk_first() * N; i < n; i += ampk_stride() * N) {
        if (n - i >= N) {
            float v[N], s[N];
            ampk_load(g + i, v);
            ampk_load(sum + i, s);
#pragma unroll
            for (int k = 0; k < N; k++)
                s[k] = __fadd_rn(s[k], __fmul_rn(v[k], factor));
            ampk_store(sum + i, s);
        } else {
#pragma unroll 1
            for (size_t k = i; k < n; k++)
                sum[k] = __fadd_rn(sum[k], __fmul_rn(g[k], factor));
        }
    }
}

/* ---- launches ---- */

/* Whether p can be read in pieces of four floats. */
static bool is_wide(const void *p)
{
    return ampk_fits<float, 4>(p, 0);
}

static unsigned blocks_for(const struct ampk_context *ctx, size_t n, int floats)
{
    return ampk_cuda_blocks(ctx, n, THREADS * floats, THREADS);
}

extern "C" void ampk_cuda_amax(struct ampk_context *ctx, const float *x, size_t n, uint32_t *amax)
{
    if (!n || !amax) return;
    if (is_wide(x))
        AMPK_LAUNCH(ampk_find_amax<4>, blocks_for(ctx, n, 4), THREADS, 0, ctx->stream, x, n, amax);
    else
        AMPK_LAUNCH(ampk_find_amax<1>, blocks_for(ctx, n, 1), THREADS, 0, ctx->stream, x, n, amax);
}

extern "C" void ampk_cuda_scale(struct ampk_context *ctx, float *x, size_t n, float factor)
{
    if (!n) return;
    if (is_wide(x))
        AMPK_LAUNCH(ampk_scale_by<4>, blocks_for(ctx, n, 4), THREADS, 0, ctx->stream, x, n, factor);
    else
        AMPK_LAUNCH(ampk_scale_by<1>, blocks_for(ctx, n, 1), THREADS, 0, ctx->stream, x, n, factor);
}

extern "C" void ampk_cuda_accumulate(struct ampk_context *ctx, const float *g, size_t n,
                                     float factor, float *sum)
{
    if (!n) return;
    if (is_wide(g) && is_wide(sum))
        AMPK_LAUNCH(ampk_accumulate_to<4>, blocks_for(ctx, n, 4), THREADS, 0, ctx->stream, g, n,
                    factor, sum);
    else
        AMPK_LAUNCH(ampk_accumulate_to<1>, blocks_for(ctx, n, 1), THREADS, 0, ctx->stream, g, n,
                    factor, sum);
}

/* ---- lists ---- */

/* Of an item, a block has four floats for each thread, four times: enough work to be worth its
 * start, and small arrays still do not wait for each other. */
static const int PIECE = THREADS * 16;

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

/* ---- update rules ---- */

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

/* ---- launches of lists ---- */

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

/* ---- numbers for the log, which decide nothing here: largest magnitude and zeros ---- */

/* Counts are whole numbers, so atomics give the same result in any order. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    ampk_look(const T *__restrict__ x, size_t images, size_t size, size_t stride, unsigned c,
              unsigned pitch, uint32_t *amax, uint32_t *zeros)
{
    uint32_t largest = 0, count = 0;
    for (size_t i = ampk_first(); i < images * size; i += ampk_stride()) {
        size_t image = i / size, at = i - image * size;
        if (pitch != c) at += at / c * (pitch - c);
        uint32_t magnitude = ampk_magnitude(ampk_to_float(x[image * stride + at]));
        largest = ampk_larger(largest, magnitude);
        count += magnitude == 0;
    }
    ampk_raise_amax(amax, largest);
    for (int lanes = AMPK_WARP / 2; lanes > 0; lanes /= 2)
        count += __shfl_xor_sync(0xffffffffu, count, lanes);
    if (threadIdx.x % AMPK_WARP == 0 && count) atomicAdd(zeros, count);
}

extern "C" void ampk_cuda_inspect(struct ampk_context *ctx, const struct ampk_tensor *x,
                                  uint32_t *amax, uint32_t *zeros)
{
    size_t images = x->n, size = ampk_image_size(x);
    if (!images || !size) return;
    unsigned blocks = ampk_cuda_blocks(ctx, images * size, THREADS * 8, THREADS);
    AMPK_WITH_TYPE(x->dtype, T,
                   AMPK_LAUNCH(ampk_look<T>, blocks, THREADS, 0, ctx->stream, (const T *)x->data,
                               images, size, x->image_stride, (unsigned)x->c,
                               (unsigned)ampk_pitch(x), amax, zeros));
}

/* ---- sum of squares: n alone decides how it is split, and the parts are added in a fixed order
 * ---- */

static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    ampk_square(const float *__restrict__ x, size_t n, float *parts)
{
    float sum = 0;
    for (size_t i = ampk_first(); i < n; i += ampk_stride())
        sum += x[i] * x[i];
    sum = ampk_block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    ampk_add_squares(const float *parts, unsigned count, float *sum)
{
    float all = ampk_block_sum(threadIdx.x < count ? parts[threadIdx.x] : 0.f);
    if (threadIdx.x == 0) *sum = all;
}

extern "C" void ampk_cuda_sum_squares(struct ampk_context *ctx, const float *x, size_t n,
                                      float *sum)
{
    unsigned count = ampk_loss_parts(n); /* at most AMPK_LOSS_THREADS */
    float *parts = (float *)ampk_cuda_work(ctx, count * sizeof *parts);
    AMPK_LAUNCH(ampk_square, count, AMPK_LOSS_THREADS, 0, ctx->stream, x, n, parts);
    AMPK_LAUNCH(ampk_add_squares, 1, AMPK_LOSS_THREADS, 0, ctx->stream, parts, count, sum);
}
