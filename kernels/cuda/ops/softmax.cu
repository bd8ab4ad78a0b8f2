/* Darknet's softmax layer. */
#include "softmax.h"

struct cross_entropy {
    bool masked;

    __device__ ampk_element_loss operator()(float p, float t) const
    {
        if (masked && t == AMPK_TRUTH_UNKNOWN) return {0, 0};
        return {t - p, t != 0 ? -logf(p) : 0.f};
    }
};

/* A block for each group of each image, its values beside each other. */
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
    largest = ampk_block_max(largest);
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

extern "C" void ampk_cuda_softmax_loss(struct ampk_context *ctx, const struct ampk_tensor *out,
                                       const float *truth, bool masked, float *delta,
                                       struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    ampk_element_losses(ctx, cross_entropy{masked}, out, truth, delta, NULL, sums, NULL,
                        delta_amax);
}
