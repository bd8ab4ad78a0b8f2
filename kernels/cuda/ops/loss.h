/* Sums of losses. The shape alone decides how each sum is split into parts, and the parts are
 * added in a fixed order, so that the same pass gives the same bits. */
#ifndef AMPK_CUDA_LOSS_H
#define AMPK_CUDA_LOSS_H

#include "device.h"

static const int AMPK_LOSS_THREADS = 256;

/* The sum over the block, in every thread. All threads must call. */
static __device__ __forceinline__ float ampk_block_sum(float x)
{
    __shared__ float warps[AMPK_WARP];
    int lane = threadIdx.x % AMPK_WARP, n = blockDim.x / AMPK_WARP;
    x = ampk_warp_sum(x);
    __syncthreads(); /* the sum before this one has been read */
    if (lane == 0) warps[threadIdx.x / AMPK_WARP] = x;
    __syncthreads();
    return ampk_warp_sum(lane < n ? warps[lane] : 0.f);
}

static __device__ __forceinline__ float ampk_logistic(float x)
{
    return 1.f / (1.f + expf(-x));
}

/* ---- parts ---- */

/* Number of parts of a sum over n elements: enough blocks to fill a device, at least eight
 * elements a thread. */
static inline unsigned ampk_loss_parts(size_t n)
{
    size_t parts = n / (8 * AMPK_LOSS_THREADS) + 1;
    return (unsigned)(parts < 256 ? parts : 256);
}

/* The parts of a struct ampk_loss_sums: those of cost, those of any_object, and the next seven
 * numbers for every image, as rows of `images` floats in the struct's order. A yolo head with rules
 * has an eighth row, giou, and box_squares beside cost, as many; others have NULL there. */
struct ampk_loss_parts_of {
    float *cost, *any_object, *image;
    unsigned costs, any_objects, images;
    float *giou, *box_squares;
};

/* Places the parts in the context's work memory. */
static inline struct ampk_loss_parts_of ampk_loss_work(struct ampk_context *ctx, unsigned costs,
                                                       unsigned any_objects, unsigned images)
{
    float *work = (float *)ampk_cuda_work(ctx, ((size_t)costs + any_objects + 7 * (size_t)images) *
                                                   sizeof(float));
    return {work, work + costs, work + costs + any_objects, costs, any_objects, images, NULL, NULL};
}

/* Adds up the parts: one warp for each of the numbers. */
static __global__ void __launch_bounds__(11 * 32)
    ampk_add_parts(struct ampk_loss_parts_of p, struct ampk_loss_sums *sums)
{
    static_assert(sizeof *sums == 11 * sizeof(float), "eleven numbers");
    int field = threadIdx.x / AMPK_WARP, row = field - (field < 4 ? 1 : 2);
    const float *x = field == 0    ? p.cost
                     : field == 4  ? p.any_object
                     : field == 9  ? p.giou
                     : field == 10 ? p.box_squares
                                   : p.image + (size_t)row * p.images;
    unsigned n = field == 0 || field == 10 ? p.costs : field == 4 ? p.any_objects : p.images;
    if (field > 8 && !x) n = 0;
    float sum = 0;
    for (unsigned i = threadIdx.x % AMPK_WARP; i < n; i += AMPK_WARP)
        sum += x[i];
    sum = ampk_warp_sum(sum);
    if (threadIdx.x % AMPK_WARP == 0) reinterpret_cast<float *>(sums)[field] = sum;
}

static inline void ampk_finish_loss(struct ampk_context *ctx, struct ampk_loss_parts_of parts,
                                    struct ampk_loss_sums *sums)
{
    AMPK_LAUNCH(ampk_add_parts, 1, 11 * AMPK_WARP, 0, ctx->stream, parts, sums);
}

/* ---- sums of squares (flat.cu) ---- */

/* *sum (+)= the sum of the parts, in an order that their number decides. */
void ampk_add_squares(struct ampk_context *, const float *parts, unsigned count, float *sum,
                      bool adds);

/* ---- softmax over channels (losses.cu) ---- */

/* Rows start row_stride elements apart. A group of a row is `size` planes of `area` cells from
 * plane `first` on. The groups are those of the tree, else there is one. */
struct ampk_softmax_planes {
    int rows, groups, area, first, size;
    size_t row_stride;
    const int *group_offset, *group_size;
};

/* Computes softmax over the planes of each group, at every cell of every row. */
void ampk_softmax_over_planes(struct ampk_context *, struct ampk_softmax_planes,
                              const struct ampk_tensor *x, const struct ampk_tensor *out,
                              uint32_t *amax);

#endif
