/* What every kernel file (.cu) includes first: the CUDA language, or the emulation of it.
 *
 * nvcc compiles a kernel file for the device. Without nvcc, or for the tests, the host's C++
 * compiler does, with tests/emulation/cuda_emulation.h in front, which supplies __global__,
 * threadIdx, __syncthreads, shuffles and atomics; AMPK_LAUNCH then runs the threads one after
 * another in random order. Kernel files use no header of CUDA and nothing but what this file and
 * that one offer.
 */
#ifndef AMPK_CUDA_DEVICE_H
#define AMPK_CUDA_DEVICE_H

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "runtime.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define AMPK_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                \
    kernel<<<(grid), (block), (shared_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__)
#else
#include "tests/emulation/cuda_emulation.h"
#endif

/* ---- element types: fp16 and bf16 as stored, arithmetic in float ---- */

#ifdef __CUDACC__
typedef __half ampk_fp16;
typedef __nv_bfloat16 ampk_bf16;
static __device__ __forceinline__ float ampk_to_float(ampk_fp16 x) { return __half2float(x); }
static __device__ __forceinline__ float ampk_to_float(ampk_bf16 x) { return __bfloat162float(x); }
/* To nearest even; too large becomes inf. */
static __device__ __forceinline__ void ampk_from_float(float x, ampk_fp16 *to) { *to = __float2half_rn(x); }
static __device__ __forceinline__ void ampk_from_float(float x, ampk_bf16 *to) { *to = __float2bfloat16_rn(x); }
#endif
static __device__ __forceinline__ float ampk_to_float(float x) { return x; }
static __device__ __forceinline__ void ampk_from_float(float x, float *to) { *to = x; }

/* N elements that are loaded and stored at once; aligned to their size (16 bytes where N *
 * sizeof(T) = 16). */
template <typename T, int N> struct alignas(sizeof(T) * N) ampk_vector {
    T at[N];
};

/* ---- reductions ---- */

static const int AMPK_WARP = 32;

/* The sum over a warp, in every lane; all 32 lanes must call. */
static __device__ __forceinline__ float ampk_warp_sum(float x)
{
    for (int lanes = AMPK_WARP / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, lanes);
    return x;
}

static __device__ __forceinline__ uint32_t ampk_warp_max(uint32_t x)
{
    for (int lanes = AMPK_WARP / 2; lanes > 0; lanes /= 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, x, lanes);
        x = x > other ? x : other;
    }
    return x;
}

/* |x| as kernels.h's amax wants it. */
static __device__ __forceinline__ uint32_t ampk_magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

/* Raises *amax (may be NULL) to the largest magnitude in the block; all threads of it must call. */
static __device__ __forceinline__ void ampk_raise_amax(uint32_t *amax, uint32_t magnitude)
{
    if (!amax) return;
    magnitude = ampk_warp_max(magnitude);
    if (threadIdx.x % AMPK_WARP == 0 && magnitude > *(volatile uint32_t *)amax)
        atomicMax(amax, magnitude);
}

#endif
