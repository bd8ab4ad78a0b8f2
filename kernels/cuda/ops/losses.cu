/* Darknet's softmax, logistic and cost layers, and the backward of all losses. yolo and region are
 * in heads.cu. */
#include "loss.h"

/* ---- softmax ---- */

/* One thread computes one softmax: a cell of a group of a row. It subtracts the largest value
 * first, so that exp does not overflow. */
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    softmax_cells(struct ampk_softmax_planes p, const float *__restrict__ x,
                  float *__restrict__ out, uint32_t *amax)
{
    size_t n = (size_t)p.rows * p.groups * p.area;
    uint32_t largest_out = 0;
    for (size_t i = ampk_first(); i < n; i += ampk_stride()) {
        int group = (int)(i / p.area % p.groups);
        int plane = p.first + (p.group_offset ? p.group_offset[group] : 0);
        int size = p.group_size ? p.group_size[group] : p.size;
        size_t first = i / p.area / p.groups * p.row_stride + (size_t)plane * p.area + i % p.area;
        float largest = -FLT_MAX, sum = 0;
        for (int k = 0; k < size; k++)
            largest = fmaxf(largest, x[first + (size_t)k * p.area]);
        for (int k = 0; k < size; k++)
            sum += expf(x[first + (size_t)k * p.area] - largest);
            /* Unrolled, nvcc 13.0 spills registers here for sm_80. */
#pragma unroll 1
        for (int k = 0; k < size; k++) {
            float v = expf(x[first + (size_t)k * p.area] - largest) / sum;
            out[first + (size_t)k * p.area] = v;
            largest_out = ampk_larger(largest_out, ampk_magnitude(v));
        }
    }
    ampk_raise_amax(amax, largest_out);
}

void ampk_softmax_over_planes(struct ampk_context *ctx, struct ampk_softmax_planes p,
                              const struct ampk_tensor *x, const struct ampk_tensor *out,
                              uint32_t *amax)
{
    size_t n = (size_t)p.rows * p.groups * p.area;
    unsigned blocks = ampk_cuda_blocks(ctx, n, AMPK_LOSS_THREADS, AMPK_LOSS_THREADS);
    AMPK_LAUNCH(softmax_cells, blocks, AMPK_LOSS_THREADS, 0, ctx->stream, p, (const float *)x->data,
                (float *)out->data, amax);
}

/* The maximum over the block, in every thread. All threads must call. */
static __device__ __forceinline__ float block_max(float x)
{
    __shared__ float warps[AMPK_WARP];
    int lane = threadIdx.x % AMPK_WARP, n = blockDim.x / AMPK_WARP;
    for (int lanes = AMPK_WARP / 2; lanes > 0; lanes /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    __syncthreads();
    if (lane == 0) warps[threadIdx.x / AMPK_WARP] = x;
    __syncthreads();
    x = warps[lane < n ? lane : 0];
    for (int lanes = AMPK_WARP / 2; lanes > 0; lanes /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
    return x;
}

/* One block computes one softmax, of a group of an image whose values lie side by side. */
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    softmax_groups(struct ampk_softmax o, unsigned groups, int part, size_t image,
                   const float *__restrict__ x, float *__restrict__ out, uint32_t *amax)
{
    unsigned group = blockIdx.x % groups, n = o.tree.classes ? o.tree.group_size[group] : part;
    size_t first = blockIdx.x / groups * image +
                   (o.tree.classes ? o.tree.group_offset[group] : (size_t)group * part);
    float largest = -FLT_MAX, sum = 0;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
        largest = fmaxf(largest, x[first + i]);
    largest = block_max(largest);
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
        sum += expf((x[first + i] - largest) / o.temperature);
    sum = ampk_block_sum(sum);
    uint32_t largest_out = 0;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        float v = expf((x[first + i] - largest) / o.temperature) / sum;
        out[first + i] = v;
        largest_out = ampk_larger(largest_out, ampk_magnitude(v));
    }
    ampk_raise_amax(amax, largest_out);
}

/* Over channels, the values of one softmax lie far apart and cells are many: a thread for each.
 * Over parts of a row they lie side by side: a block for each. */
extern "C" void ampk_cuda_softmax_forward(struct ampk_context *ctx, const struct ampk_softmax *o,
                                          const struct ampk_tensor *x,
                                          const struct ampk_tensor *out, uint32_t *amax)
{
    int area = x->h * x->w, image = x->c * area;
    if (o->spatial && !o->tree.classes) {
        struct ampk_softmax_planes p = {x->n, 1, area, 0, x->c, (size_t)image, NULL, NULL};
        ampk_softmax_over_planes(ctx, p, x, out, amax);
        return;
    }
    unsigned groups = (unsigned)(o->tree.classes ? o->tree.groups : o->groups);
    int part = image / o->groups;
    AMPK_LAUNCH(softmax_groups, groups * (unsigned)x->n, part > 128 ? 256 : 64, 0, ctx->stream, *o,
                groups, part, (size_t)image, (const float *)x->data, (float *)out->data, amax);
}

/* ---- losses of one element each ---- */

/* delta points downhill, as in Darknet. */
struct element_loss {
    float delta, error;
};

/* Computes an element-wise loss; error may be NULL. Each block leaves its part of the cost. */
template <typename Loss>
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    ampk_lose(Loss loss, size_t n, const float *__restrict__ x, const float *__restrict__ truth,
              float *__restrict__ delta, float *__restrict__ error, float *cost, uint32_t *amax,
              uint32_t *delta_amax)
{
    float sum = 0;
    uint32_t largest_error = 0, largest_delta = 0;
    for (size_t i = ampk_first(); i < n; i += ampk_stride()) {
        element_loss e = loss(x[i], truth[i]);
        delta[i] = e.delta;
        if (error) error[i] = e.error;
        sum += e.error;
        largest_error = ampk_larger(largest_error, ampk_magnitude(e.error));
        largest_delta = ampk_larger(largest_delta, ampk_magnitude(e.delta));
    }
    sum = ampk_block_sum(sum);
    if (threadIdx.x == 0) cost[blockIdx.x] = sum;
    ampk_raise_amax(amax, largest_error);
    ampk_raise_amax(delta_amax, largest_delta);
}

template <typename Loss>
static void element_losses(struct ampk_context *ctx, Loss loss, const struct ampk_tensor *x,
                           const float *truth, float *delta, float *error,
                           struct ampk_loss_sums *sums, uint32_t *amax, uint32_t *delta_amax)
{
    size_t n = (size_t)x->n * x->c * x->h * x->w;
    struct ampk_loss_parts_of parts = ampk_loss_work(ctx, ampk_loss_parts(n), 0, 0);
    AMPK_LAUNCH(ampk_lose<Loss>, parts.costs, AMPK_LOSS_THREADS, 0, ctx->stream, loss, n,
                (const float *)x->data, truth, delta, error, parts.cost, amax, delta_amax);
    ampk_finish_loss(ctx, parts, sums);
}

struct cross_entropy {
    bool masked;

    __device__ element_loss operator()(float p, float t) const
    {
        if (masked && t == AMPK_TRUTH_UNKNOWN) return {0, 0};
        return {t - p, t != 0 ? -logf(p) : 0.f};
    }
};

extern "C" void ampk_cuda_softmax_loss(struct ampk_context *ctx, const struct ampk_tensor *out,
                                       const float *truth, bool masked, float *delta,
                                       struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    element_losses(ctx, cross_entropy{masked}, out, truth, delta, NULL, sums, NULL, delta_amax);
}

/* ---- logistic ---- */

struct binary_cross_entropy {
    __device__ element_loss operator()(float p, float t) const
    {
        return {t - p, -t * logf(p + 1e-7f) - (1 - t) * logf(1 - p + 1e-7f)};
    }
};

extern "C" void ampk_cuda_logistic_loss(struct ampk_context *ctx, const struct ampk_tensor *out,
                                        const float *truth, float *delta,
                                        struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    element_losses(ctx, binary_cross_entropy{}, out, truth, delta, NULL, sums, NULL, delta_amax);
}

/* ---- cost ---- */

/* The cost layer's loss of one element. Label smoothing comes first, scale last, as in Darknet.
 * inputs: c*h*w. */
struct cost_of_element {
    struct ampk_cost o;
    float inputs;

    __device__ element_loss plain(float x, float t) const
    {
        float miss = t - x, size = fabsf(miss), sign = miss > 0 ? 1.f : -1.f;
        switch (o.type) {
        case AMPK_COST_WGAN:
            return {t > 0 ? 1.f : -1.f, t != 0 ? -x : x};
        case AMPK_COST_L1:
            return {sign, size};
        case AMPK_COST_SMOOTH:
            if (size >= 1) return {sign, 2 * size - 1};
            return {miss, miss * miss};
        default:
            return {miss, miss * miss};
        }
    }

    __device__ element_loss operator()(float x, float t) const
    {
        if (o.smooth != 0) t = (1 - o.smooth) * t + o.smooth / inputs;
        element_loss e = plain(x, t);
        if (o.type == AMPK_COST_MASKED && t == AMPK_TRUTH_UNKNOWN) e = {0, 0};
        if (o.type == AMPK_COST_SEG && t == 0)
            e = {e.delta * o.noobject_scale, e.error * o.noobject_scale};
        if (fabsf(e.delta) < o.threshold / inputs) e.delta = 0;
        e.delta *= o.scale;
        return e;
    }
};

extern "C" void ampk_cuda_cost_loss(struct ampk_context *ctx, const struct ampk_cost *o,
                                    const struct ampk_tensor *x, const float *truth,
                                    const struct ampk_tensor *out, float *delta,
                                    struct ampk_loss_sums *sums, uint32_t *amax,
                                    uint32_t *delta_amax)
{
    float inputs = (float)x->c * x->h * x->w;
    element_losses(ctx, cost_of_element{*o, inputs}, x, truth, delta, (float *)out->data, sums,
                   amax, delta_amax);
}

/* ---- backward ---- */

static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    ampk_pass_delta(const float *__restrict__ delta, size_t n, float scale, float *__restrict__ dx,
                    bool accumulate, uint32_t *amax)
{
    uint32_t largest = 0;
    for (size_t i = ampk_first(); i < n; i += ampk_stride()) {
        float d = __fmul_rn(delta[i], scale);
        if (accumulate) d = __fadd_rn(dx[i], d);
        dx[i] = d;
        largest = ampk_larger(largest, ampk_magnitude(d));
    }
    ampk_raise_amax(amax, largest);
}

/* Product and sum are rounded one by one (no fused multiply-add). */
extern "C" void ampk_cuda_loss_backward(struct ampk_context *ctx, const float *delta, size_t n,
                                        float scale, float *dx, bool accumulate, uint32_t *amax)
{
    unsigned blocks = ampk_cuda_blocks(ctx, n, AMPK_LOSS_THREADS, AMPK_LOSS_THREADS);
    AMPK_LAUNCH(ampk_pass_delta, blocks, AMPK_LOSS_THREADS, 0, ctx->stream, delta, n, scale, dx,
                accumulate, amax);
}
