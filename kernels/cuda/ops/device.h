/* The first include of every kernel file (.cu): the CUDA language, or the emulation of it.
 *
 * nvcc compiles a kernel file for the device. Without nvcc, and for the tests, the host's C++
 * compiler does, with tests/emulation/cuda_emulation.h in front. That header supplies __global__,
 * threadIdx, __syncthreads, shuffles and atomics; AMPK_LAUNCH then runs the threads one after
 * another in random order. Kernel files include no header of CUDA and use only what this file and
 * that one offer.
 *
 * A kernel file has three parts: device functions and kernels; how each is launched; the
 * operations of the contract, extern "C", declared in backend.h. Blocks have a multiple of 32
 * threads. All threads reach every barrier and ampk_raise_amax: a thread without work goes along
 * with magnitude 0. */
#ifndef AMPK_CUDA_DEVICE_H
#define AMPK_CUDA_DEVICE_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/cuda/runtime/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/runtime.h"

/* AMPK_LAUNCH(kernel, grid, block, shared_bytes, stream, argument...): put a kernel with a comma
 * in its template arguments in parentheses.
 * AMPK_SHARED_MEMORY(type, name): in a kernel, declares `type *name`, the shared_bytes of the
 * launch.
 * AMPK_CHECK_ALIGNED: the emulation checks what the device would punish with a fault. */
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define AMPK_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                \
    (kernel<<<(grid), (block), (shared_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__),             \
     ampk_rt_launched(#kernel))
#define AMPK_SHARED_MEMORY(type, name)                                                             \
    extern __shared__ __align__(16) unsigned char ampk_shared_memory[];                            \
    type *name = reinterpret_cast<type *>(ampk_shared_memory)
#define AMPK_CHECK_ALIGNED(p, bytes) ((void)0)
#else
#include "tests/emulation/cuda_emulation.h"
#define AMPK_SHARED_MEMORY(type, name) type *name = static_cast<type *>(emulation_shared_memory())
#define AMPK_CHECK_ALIGNED(p, bytes)   emulation_check_aligned((p), (bytes))
#endif

/* ---- element types: fp16 and bf16 as stored, arithmetic in float ---- */

#ifdef __CUDACC__
typedef __half ampk_fp16;
typedef __nv_bfloat16 ampk_bf16;
static __device__ __forceinline__ float ampk_to_float(ampk_fp16 x)
{
    return __half2float(x);
}
static __device__ __forceinline__ float ampk_to_float(ampk_bf16 x)
{
    return __bfloat162float(x);
}
/* Rounds to nearest even; a value that is too large becomes inf. */
static __device__ __forceinline__ void ampk_from_float(float x, ampk_fp16 *to)
{
    *to = __float2half_rn(x);
}
static __device__ __forceinline__ void ampk_from_float(float x, ampk_bf16 *to)
{
    *to = __float2bfloat16_rn(x);
}
#endif
static __device__ __forceinline__ float ampk_to_float(float x)
{
    return x;
}
static __device__ __forceinline__ void ampk_from_float(float x, float *to)
{
    *to = x;
}

/* Packs two 16-bit elements into a word, the first one in the low half. memcpy, because reading
 * one type through another's pointer is undefined. */
template <typename T> static __device__ __forceinline__ uint32_t ampk_pack(float a, float b)
{
    T x[2];
    uint32_t word;
    ampk_from_float(a, &x[0]);
    ampk_from_float(b, &x[1]);
    memcpy(&word, x, sizeof word);
    return word;
}

template <typename T>
static __device__ __forceinline__ void ampk_unpack(uint32_t word, float *a, float *b)
{
    T x[2];
    memcpy(x, &word, sizeof word);
    *a = ampk_to_float(x[0]);
    *b = ampk_to_float(x[1]);
}

/* Runs the statement with `type` as the element type of a dtype. */
#define AMPK_WITH_TYPE(dtype, type, ...)                                                           \
    do {                                                                                           \
        switch (dtype) {                                                                           \
        case AMPK_FP32: {                                                                          \
            typedef float type;                                                                    \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        case AMPK_FP16: {                                                                          \
            typedef ampk_fp16 type;                                                                \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        case AMPK_BF16: {                                                                          \
            typedef ampk_bf16 type;                                                                \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        }                                                                                          \
    } while (0)

/* ---- vectors: N elements loaded and stored at once, in pieces of at most 16 bytes ---- */

template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) ampk_vector {
    T at[N];
};

/* Elements of T in 16 bytes. */
template <typename T> struct ampk_wide {
    static const int elements = 16 / sizeof(T);
};

/* Stores words to device memory in one instruction. Left alone, nvcc takes words made of halves
 * apart and stores them two by two; through a uint4 pointer it moves loads across the store until
 * registers spill. CUDA's __stwb does neither, but is a strong store, as for a value that another
 * thread waits for. Nobody waits for these, so this is a plain store. */
#ifdef __CUDACC__
static __device__ __forceinline__ void ampk_store_words(void *p,
                                                        const ampk_vector<uint32_t, 1> &words)
{
    asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(words.at[0]) : "memory");
}
static __device__ __forceinline__ void ampk_store_words(void *p,
                                                        const ampk_vector<uint32_t, 2> &words)
{
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(words.at[0]), "r"(words.at[1])
                 : "memory");
}
static __device__ __forceinline__ void ampk_store_words(void *p,
                                                        const ampk_vector<uint32_t, 4> &words)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(words.at[0]),
                 "r"(words.at[1]), "r"(words.at[2]), "r"(words.at[3])
                 : "memory");
}
#else
template <int N> static inline void ampk_store_words(void *p, const ampk_vector<uint32_t, N> &words)
{
    *static_cast<ampk_vector<uint32_t, N> *>(p) = words;
}
#endif

/* Loads N elements of device memory as floats; N is a power of two, for 16-bit elements at most 8.
 * p is aligned as ampk_vector<T, N> is. */
template <int N, typename T>
static __device__ __forceinline__ void ampk_load(const T *p, float (&x)[N])
{
    AMPK_CHECK_ALIGNED(p, alignof(ampk_vector<T, N>));
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        const auto words = *reinterpret_cast<const ampk_vector<uint32_t, N / 2> *>(p);
#pragma unroll
        for (int i = 0; i < N; i += 2)
            ampk_unpack<T>(words.at[i / 2], &x[i], &x[i + 1]);
    } else {
        const auto v = *reinterpret_cast<const ampk_vector<T, N> *>(p);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = ampk_to_float(v.at[i]);
    }
}

template <int N, typename T>
static __device__ __forceinline__ void ampk_store(T *p, const float (&x)[N])
{
    AMPK_CHECK_ALIGNED(p, alignof(ampk_vector<T, N>));
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        ampk_vector<uint32_t, N / 2> words;
#pragma unroll
        for (int i = 0; i < N; i += 2)
            words.at[i / 2] = ampk_pack<T>(x[i], x[i + 1]);
        ampk_store_words(p, words);
    } else {
        ampk_vector<T, N> v;
#pragma unroll
        for (int i = 0; i < N; i++)
            ampk_from_float(x[i], &v.at[i]);
        *reinterpret_cast<ampk_vector<T, N> *>(p) = v;
    }
}

/* Whether address and stride (in elements) allow vectors of N elements everywhere. */
template <typename T, int N> static inline bool ampk_fits(const void *p, size_t stride)
{
    return (uintptr_t)p % alignof(ampk_vector<T, N>) == 0 && stride % N == 0;
}

/* ---- max-pooling's index of the maximum ----
 * The position in the window, counted row by row; size*size if nothing exceeded -FLT_MAX. An index
 * is one byte if that is enough, else four. Indices are dense in NHWC order. */

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

/* ---- reductions ---- */

static const int AMPK_WARP = 32;

/* The sum over a warp, in every lane. All 32 lanes must call. The exchange pattern is fixed, so
 * the order of additions is, too. */
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

static __device__ __forceinline__ uint32_t ampk_larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Words of amax: inf, and the value (65520) that an inf counts as where a library stored it in
 * FP16. */
static const uint32_t AMPK_INF = AMPK_INF_BITS, AMPK_FP16_OVERFLOW = AMPK_FP16_OVERFLOW_BITS;

/* |x| as bits, in the form that amax has in kernels.h. */
static __device__ __forceinline__ uint32_t ampk_magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

/* The larger of `largest` and all magnitudes in x. */
template <int N>
static __device__ __forceinline__ uint32_t ampk_magnitude(const float (&x)[N], uint32_t largest)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        largest = ampk_larger(largest, ampk_magnitude(x[i]));
    return largest;
}

/* Raises *amax (may be NULL) to the largest magnitude in the block. All threads must call. One
 * thread reads the word first and skips the atomic if nothing would change: a single place in the
 * cache serves the atomics of all blocks. */
static __device__ __forceinline__ void ampk_raise_amax(uint32_t *amax, uint32_t magnitude)
{
    __shared__ uint32_t of_warps[AMPK_WARP];
    unsigned lane = threadIdx.x % AMPK_WARP, warps = blockDim.x / AMPK_WARP;
    if (!amax) return;
    magnitude = ampk_warp_max(magnitude);
    __syncthreads(); /* the previous call has read of_warps */
    if (lane == 0) of_warps[threadIdx.x / AMPK_WARP] = magnitude;
    __syncthreads();
    if (threadIdx.x >= AMPK_WARP) return;
    magnitude = ampk_warp_max(lane < warps ? of_warps[lane] : 0);
    if (lane == 0 && magnitude > *(volatile uint32_t *)amax) atomicMax(amax, magnitude);
}

/* Rounds to TF32, which is stored as FP32: 10 bits of fraction, to nearest even. inf and NaN stay.
 */
static __device__ __forceinline__ float ampk_round_to_tf32(float x)
{
    uint32_t bits = __float_as_uint(x);
    if ((bits & AMPK_INF) == AMPK_INF) return x;
    return __uint_as_float((bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu);
}

/* ---- tensors ---- */

/* Elements of one image. */
static inline size_t ampk_image_size(const struct ampk_tensor *t)
{
    return (size_t)t->c * t->h * t->w;
}

/* ---- indices ---- */

/* For grid-stride loops over items of one-dimensional grids:
 *     for (size_t i = ampk_first(); i < n; i += ampk_stride()) */
static __device__ __forceinline__ size_t ampk_first(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ size_t ampk_stride(void)
{
    return (size_t)gridDim.x * blockDim.x;
}

/* Division of 32-bit numbers by a number that the host knows: a product, a sum and a shift
 * (Granlund and Montgomery 1994, figure 4.1). The device has no instruction for integer division.
 */
struct ampk_divisor {
    uint32_t value, factor, places;
};

static inline struct ampk_divisor ampk_divide_by(uint32_t value)
{
    uint32_t places = 0;
    while (places < 32 && (uint64_t)1 << places < value)
        places++;
    uint64_t rest = ((uint64_t)1 << places) - value;
    return {value, (uint32_t)((rest << 32) / value + 1), places};
}

static __device__ __forceinline__ uint32_t ampk_quotient(uint32_t x, struct ampk_divisor by)
{
    uint64_t high = (uint64_t)x * by.factor >> 32;
    return (uint32_t)((high + x) >> by.places);
}

/* x / by and the remainder. */
static __device__ __forceinline__ uint32_t ampk_split(uint32_t x, struct ampk_divisor by,
                                                      uint32_t *remainder)
{
    uint32_t quotient = ampk_quotient(x, by);
    *remainder = x - quotient * by.value;
    return quotient;
}

/* ---- lists: one launch for many arrays ----
 * The kernel's arguments describe the arrays, and each array gets blocks of its own. Small arrays
 * would not fill a GPU one by one, and each launch takes time. */

/* As many items as fit 4 KiB of kernel arguments beside a rule of 64 bytes, but 64 at most. */
template <typename Item> struct ampk_list {
    static constexpr int fit = (4096 - 64 - 8) / (int)(sizeof(Item) + sizeof(unsigned));
    static constexpr int most = fit < 64 ? fit : 64;
    Item items[most];
    unsigned first_block[most + 1]; /* first block of each item; the last entry: all blocks */
    int count;

    bool is_full() const
    {
        return count == most;
    }
    void clear()
    {
        count = 0;
        first_block[0] = 0;
    }
    void add(const Item &item, unsigned blocks)
    {
        items[count] = item;
        first_block[count + 1] = first_block[count] + blocks;
        count++;
    }
    unsigned blocks() const
    {
        return first_block[count];
    }
};

/* The item of this block, by bisection. */
template <typename Item>
static __device__ __forceinline__ int ampk_find_item(const ampk_list<Item> &l)
{
    int low = 0, high = l.count; /* first_block[low] <= blockIdx.x < first_block[high] */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (l.first_block[middle] <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
