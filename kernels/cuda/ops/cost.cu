/* Darknet's cost and logistic layers, and the backward of all losses. */
#include "loss.h"

struct binary_cross_entropy {
    __device__ ampk_element_loss operator()(float p, float t) const
    {
        return {t - p, -t * logf(p + 1e-7f) - (1 - t) * logf(1 - p + 1e-7f)};
    }
};

struct cost_of_element {
    struct ampk_cost o;
    float inputs;

    __device__ ampk_element_loss plain(float x, float t) const
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

    __device__ ampk_element_loss operator()(float x, float t) const
    {
        if (o.smooth != 0) t = (1 - o.smooth) * t + o.smooth / inputs;
        ampk_element_loss e = plain(x, t);
        if (o.type == AMPK_COST_MASKED && t == AMPK_TRUTH_UNKNOWN) e = {0, 0};
        if (o.type == AMPK_COST_SEG && t == 0)
            e = {e.delta * o.noobject_scale, e.error * o.noobject_scale};
        if (fabsf(e.delta) < o.threshold / inputs) e.delta = 0;
        e.delta *= o.scale;
        return e;
    }
};

extern "C" void ampk_cuda_logistic_loss(struct ampk_context *ctx, const struct ampk_tensor *out,
                                        const float *truth, float *delta,
                                        struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    ampk_element_losses(ctx, binary_cross_entropy{}, out, truth, delta, NULL, sums, NULL,
                        delta_amax);
}

extern "C" void ampk_cuda_cost_loss(struct ampk_context *ctx, const struct ampk_cost *o,
                                    const struct ampk_tensor *x, const float *truth,
                                    const struct ampk_tensor *out, float *delta,
                                    struct ampk_loss_sums *sums, uint32_t *amax,
                                    uint32_t *delta_amax)
{
    float inputs = (float)x->c * x->h * x->w;
    ampk_element_losses(ctx, cost_of_element{*o, inputs}, x, truth, delta, (float *)out->data, sums,
                        amax, delta_amax);
}

/* ---- backward ---- */

static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    pass_delta(const float *__restrict__ delta, size_t n, float scale, float *__restrict__ dx,
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

extern "C" void ampk_cuda_loss_backward(struct ampk_context *ctx, const float *delta, size_t n,
                                        float scale, float *dx, bool accumulate, uint32_t *amax)
{
    unsigned blocks = ampk_cuda_blocks(ctx, n, AMPK_LOSS_THREADS, AMPK_LOSS_THREADS);
    AMPK_LAUNCH(pass_delta, blocks, AMPK_LOSS_THREADS, 0, ctx->stream, delta, n, scale, dx,
                accumulate, amax);
}
