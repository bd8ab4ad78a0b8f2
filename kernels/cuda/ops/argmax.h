/* Max-pooling's index of the maximum: the position in the window, counted row by row; size*size if
 * nothing exceeded -FLT_MAX. An index is one byte if that is enough, else four. Indices are dense
 * in NHWC order. */
#ifndef AMPK_CUDA_ARGMAX_H
#define AMPK_CUDA_ARGMAX_H

#include "device.h"

/* 15 * 15 = 225 still fits a byte; 16 * 16 = 256 does not. */
static const int AMPK_LARGEST_BYTE_WINDOW = 15;

/* Stores several bytes as words, in one instruction. */
template <typename Index, int N>
static __device__ __forceinline__ void ampk_store_index(Index *to, const uint32_t (&x)[N])
{
    AMPK_CHECK_ALIGNED(to, alignof(ampk_vector<Index, N>));
    if constexpr (sizeof(Index) == 1 && N % 4 == 0) {
        ampk_vector<uint32_t, N / 4> words;
#pragma unroll
        for (int i = 0; i < N; i += 4)
            words.at[i / 4] = x[i] | x[i + 1] << 8 | x[i + 2] << 16 | x[i + 3] << 24;
        ampk_store_words(to, words);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = (Index)x[i];
    }
}

template <typename Index, int N>
static __device__ __forceinline__ void ampk_load_index(const Index *from, uint32_t (&x)[N])
{
    AMPK_CHECK_ALIGNED(from, alignof(ampk_vector<Index, N>));
    if constexpr (sizeof(Index) == 1 && N % 4 == 0) {
        const auto words = *reinterpret_cast<const ampk_vector<uint32_t, N / 4> *>(from);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = words.at[i / 4] >> i % 4 * 8 & 255;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = from[i];
    }
}

#endif
