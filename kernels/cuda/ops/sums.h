/* Sums over rows, per channel: threads, then blocks, always in the same order.
 *
 * A thread adds up its rows in registers, a block its threads in shared memory. Where a column of
 * blocks shares the channels, each leaves its sums in work memory and counts itself; the last one
 * to come adds them up (no second launch, no floating-point atomics).
 */
#ifndef AMPK_CUDA_SUMS_H
#define AMPK_CUDA_SUMS_H

#include "rows.h"

/* 512 threads, 256 blocks: two for every multiprocessor of the largest GPU, which with four loads
 * of 16 bytes per thread on the way keep its memory busy; and few partial sums for the last. */
static const int AMPK_SUM_THREADS = 512;
static const unsigned AMPK_SUM_BLOCKS = AMPK_COUNTERS;

template <typename A>
static inline struct ampk_cover ampk_cover_sum(unsigned rows, unsigned channels)
{
    return ampk_cover_with<A>(rows, channels, AMPK_SUM_THREADS, AMPK_SUM_BLOCKS, false);
}

/* Floats of shared memory for S sums per channel: a row for every warp, or for every thread that
 * adds up partial sums. */
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

/* Adds up `rows` rows of `width` floats; the result is in shared[0..width). There are as many
 * threads at least. */
static __device__ __forceinline__ void ampk_add_up(float *shared, unsigned rows, unsigned width)
{
    __syncthreads();
    if (threadIdx.x < width) {
        float total = 0;
        for (unsigned i = 0; i < rows; i++)
            total += shared[i * width + threadIdx.x];
        shared[threadIdx.x] = total; /* of this column alone: no other thread reads it */
    }
    __syncthreads();
}

/* V values of each thread, added up over the lines of the block: the sum of x[v] of a lane is in
 * shared[(v << lane_bits) + lane] then. */
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

/* Whether the block is the last of `count` that come to this counter; what the others wrote before
 * they came is then there to be read, and the counter is 0 again. */
static __device__ __forceinline__ bool ampk_is_last(unsigned *counter, unsigned count)
{
    __shared__ bool is_last;
    __threadfence(); /* what was written is out before the count is */
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(counter, 1u) == count - 1;
    __syncthreads();
    if (!is_last) return false;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    return true;
}

/* ampk_block_sums over the whole column of blocks. True in one block of the column, the one that
 * finds the sums in shared. A column of several blocks has a counter, as there are at most
 * AMPK_SUM_BLOCKS.
 */
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
