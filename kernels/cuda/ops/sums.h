/* Sums over rows, per channel: over threads, then over blocks, always in the same order.
 *
 * A thread adds up its rows in registers, a block its threads in shared memory. If several blocks
 * in a column share the channels, each leaves its sums in work memory and counts itself. The last
 * block to come adds them up by number, so the order does not depend on which block is last. This
 * needs no second launch and no floating-point atomics. */
#ifndef AMPK_CUDA_SUMS_H
#define AMPK_CUDA_SUMS_H

#include "rows.h"

/* 512 threads and 256 blocks are two blocks for every multiprocessor of the largest GPU. With four
 * loads of 16 bytes per thread under way, they keep its memory busy, and leave few partial sums
 * for the last block. */
static const int AMPK_SUM_THREADS = 512;
static const unsigned AMPK_SUM_BLOCKS = AMPK_COUNTERS;

template <typename A>
static inline struct ampk_cover ampk_cover_sum(unsigned rows, unsigned channels)
{
    return ampk_cover_with<A>(rows, channels, AMPK_SUM_THREADS, AMPK_SUM_BLOCKS, false);
}

/* Floats of shared memory for S sums per channel: a row for every warp, or a value for every
 * thread that adds up partial sums. */
template <typename A, int S> static __device__ constexpr int ampk_sum_shared()
{
    return AMPK_SUM_THREADS / AMPK_WARP * S * A::width * A::lanes;
}

/* Bytes of work memory for the partial sums. */
template <typename A> static inline size_t ampk_sum_bytes(const struct ampk_cover &cover, int sums)
{
    return ((size_t)cover.grid.x * cover.grid.y * sums * A::width << cover.lane_bits) *
           sizeof(float);
}

/* Adds up `rows` rows of `width` floats into shared[0..width). The block has at least `width`
 * threads. */
static __device__ __forceinline__ void ampk_add_up(float *shared, unsigned rows, unsigned width)
{
    __syncthreads();
    if (threadIdx.x < width) {
        float total = 0;
        for (unsigned i = 0; i < rows; i++)
            total += shared[i * width + threadIdx.x];
        shared[threadIdx.x] = total; /* no other thread reads this column */
    }
    __syncthreads();
}

/* Adds up V values of each thread over the lines of the block. Afterwards the sum of x[v] of a
 * lane is in shared[(v << lane_bits) + lane]. */
template <int V>
static __device__ __forceinline__ void ampk_block_sums(const ampk_cover &cover, float (&x)[V],
                                                       float *shared)
{
    unsigned lanes = 1u << cover.lane_bits;
    unsigned warp = threadIdx.x / AMPK_WARP, lane = threadIdx.x % AMPK_WARP;
#pragma unroll
    for (int v = 0; v < V; v++) {
        for (unsigned apart = lanes; apart < AMPK_WARP; apart *= 2)
            x[v] += __shfl_xor_sync(0xffffffffu, x[v], apart);
        if (lane < lanes) shared[((warp * V + v) << cover.lane_bits) + lane] = x[v];
    }
    ampk_add_up(shared, blockDim.x / AMPK_WARP, (unsigned)V << cover.lane_bits);
}

/* Whether the block is the last of `count` blocks to come to this counter. In the last block,
 * everything that the others wrote before they came can be read, and the counter is 0 again. */
static __device__ __forceinline__ bool ampk_is_last(unsigned *counter, unsigned count)
{
    __shared__ bool is_last;
    __threadfence(); /* our writes are visible before our count is */
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(counter, 1u) == count - 1;
    __syncthreads();
    if (!is_last) return false;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    return true;
}

/* ampk_block_sums over the whole column of blocks. Returns true in one block of the column, which
 * finds the sums in shared. Every column of several blocks has a counter, because there are at
 * most AMPK_SUM_BLOCKS blocks. */
template <int V>
static __device__ __forceinline__ bool ampk_grid_sums(const ampk_cover &cover, float (&x)[V],
                                                      float *shared, float *partial,
                                                      unsigned *counters)
{
    unsigned width = (unsigned)V << cover.lane_bits;
    ampk_block_sums(cover, x, shared);
    if (gridDim.y == 1) return true;

    float *mine = partial + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * width;
    if (threadIdx.x < width) mine[threadIdx.x] = shared[threadIdx.x];
    if (!ampk_is_last(&counters[blockIdx.x], gridDim.y)) return false;

    unsigned groups = blockDim.x / width, group = threadIdx.x / width;
    const float *column = partial + (size_t)blockIdx.x * width + threadIdx.x % width;
    float total = 0;
#pragma unroll 16
    for (unsigned i = group; i < gridDim.y; i += groups)
        total += column[(size_t)i * gridDim.x * width];
    shared[threadIdx.x] = total;
    ampk_add_up(shared, groups, width);
    return true;
}

#endif
