/* TF32, which is stored as FP32. */
#ifndef AMPK_CUDA_TF32_H
#define AMPK_CUDA_TF32_H

#include "kernels/cuda/ops/device.h"

/* To 10 bits of fraction, to nearest even. */
static __device__ __forceinline__ float ampk_round_to_tf32(float x)
{
    uint32_t bits = __float_as_uint(x);
    if ((bits & AMPK_INF) == AMPK_INF) return x;
    return __uint_as_float((bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu);
}

#endif
