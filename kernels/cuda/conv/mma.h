/* Matrix products on Tensor Cores for our kernels: one 16 x 8 x 16 product of a warp. Chooses
 * among the instructions of a GPU generation; knows nothing of convolutions. */
#ifndef AMPK_CUDA_MMA_H
#define AMPK_CUDA_MMA_H

#include "kernels/cuda/ops/device.h"

/* d += a b with 16-bit elements T, products summed in FP32. All 32 lanes must call.
 *
 * A lane holds these elements, two to a word, the first one in the low half (PTX ISA, "Matrix
 * Fragments for mma.m16n8k16"), with group = lane / 4 and pair = lane % 4 * 2:
 *       a (16 x 16)   row group:     columns pair, pair + 1 in a[0]; pair + 8, pair + 9 in a[2]
 *                     row group + 8: the same in a[1] and a[3]
 *       b (16 x 8)    column group:  rows pair, pair + 1 in b[0]; pair + 8, pair + 9 in b[1]
 *       d (16 x 8)    columns pair, pair + 1: row group in d[0], d[1]; row group + 8 in d[2], d[3]
 *
 * FP16 works in code for Turing and later, BF16 in code for Ampere and later. Older code computes
 * nothing, so whoever launches a kernel with it asks ampk_has_mma first. */
template <typename T>
static __device__ __forceinline__ void ampk_mma(float (&d)[4], const uint32_t (&a)[4],
                                                const uint32_t (&b)[2]);

/* Asks for the capability that the code was compiled for, not that of the device: a newer device
 * may run older code. */
static inline bool ampk_has_mma(const struct ampk_context *ctx, enum ampk_dtype operand)
{
    int oldest = operand == AMPK_FP16 ? 75 : operand == AMPK_BF16 ? 80 : 1 << 30;
    return ctx->compiled >= oldest;
}

#ifdef __CUDACC__

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define AMPK_MMA(type)                                                                             \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                    \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                 \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <>
__device__ __forceinline__ void ampk_mma<ampk_fp16>(float (&d)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2])
{
    AMPK_MMA("f16");
}
template <>
__device__ __forceinline__ void ampk_mma<ampk_bf16>(float (&d)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2])
{
    AMPK_MMA("bf16");
}
#undef AMPK_MMA
#else
/* Turing has only m16n8k8: two products, each over half of the sixteen columns of a. */
template <>
__device__ __forceinline__ void ampk_mma<ampk_fp16>(float (&d)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
#pragma unroll
    for (int half = 0; half < 2; half++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}
template <>
__device__ __forceinline__ void ampk_mma<ampk_bf16>(float (&)[4], const uint32_t (&)[4],
                                                    const uint32_t (&)[2])
{
}
#endif

#else

template <typename T>
static inline void ampk_mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    float of_a[8], of_b[4];
    for (int i = 0; i < 4; i++)
        ampk_unpack<T>(a[i], &of_a[2 * i], &of_a[2 * i + 1]);
    for (int i = 0; i < 2; i++)
        ampk_unpack<T>(b[i], &of_b[2 * i], &of_b[2 * i + 1]);
    emulation_mma(d, of_a, of_b);
}

#endif

#endif
