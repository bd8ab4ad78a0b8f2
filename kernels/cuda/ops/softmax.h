/* Softmax over channels: at every cell of every row. */
#ifndef AMPK_CUDA_SOFTMAX_H
#define AMPK_CUDA_SOFTMAX_H

#include "loss.h"

/* Rows start row_stride apart; a group of a row is `size` planes of `area` cells from plane `first`
 * on. The groups are those of the tree, or there is one. */
struct ampk_softmax_planes {
    int rows, groups, area, first, size;
    size_t row_stride;
    const int *group_offset, *group_size;
};

/* A thread for each cell of each group of each row. */
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    ampk_softmax_cells(struct ampk_softmax_planes p, const float *__restrict__ x,
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

static inline void ampk_softmax_over_planes(struct ampk_context *ctx, struct ampk_softmax_planes p,
                                            const struct ampk_tensor *x,
                                            const struct ampk_tensor *out, uint32_t *amax)
{
    size_t n = (size_t)p.rows * p.groups * p.area;
    unsigned blocks = ampk_cuda_blocks(ctx, n, AMPK_LOSS_THREADS, AMPK_LOSS_THREADS);
    AMPK_LAUNCH(ampk_softmax_cells, blocks, AMPK_LOSS_THREADS, 0, ctx->stream, p,
                (const float *)x->data, (float *)out->data, amax);
}

#endif
