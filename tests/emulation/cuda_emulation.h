/* The part of CUDA that our kernels use, for the host's C++ compiler. Tests only; device.h includes
 * it where nvcc does not compile.
 *
 * AMPK_LAUNCH runs a kernel to its end before it returns, or records it (runtime_host.c). Blocks
 * run one after another, in random order. The threads of a block are fibers: one runs until it ends
 * or waits at a barrier, then a randomly chosen one goes on. So whatever depends on an order that
 * CUDA does not promise, such as shared memory read without a barrier, gives other results with
 * another seed.
 *
 * These end the program with a message that names kernel, block, thread and line:
 *  - a barrier or a warp's shuffle that not all its threads reach, or not in the same line
 *  - a shuffle from a lane outside the mask
 *  - a vector that is loaded or stored at an address which is not a multiple of its size
 *  - dynamic shared memory written beyond the bytes asked for (read: ASan tells)
 *  - a stream or memory of another device than the one that the host's thread uses
 *  - a block of more than 1024 threads, a grid without blocks or with too many, more than 48 KiB of
 *    dynamic shared memory, more than 4 KiB of arguments
 *
 * Not emulated: blocks at the same time, threads at the same time between two barriers (TSan
 * reports what they share without an order: racecheck.h), caches, speed. Shared memory that is not
 * dynamic keeps what the block before left in it, and is not counted.
 */
#ifndef CUDA_EMULATION_H
#define CUDA_EMULATION_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tuple>

#include "emulation.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__      static
#define __restrict__ __restrict
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

/* Of the running thread. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* ---- what the scheduler offers (cuda_emulation.cc) ---- */

enum emulation_operation { EMULATION_SHUFFLE, EMULATION_BALLOT, EMULATION_SYNCWARP };

struct emulation_launch {
    const char *kernel;
    dim3 grid, block;
    size_t shared_bytes, argument_bytes;
    void (*run)(const void *call); /* one thread */
    const void *call;
};

void emulation_run(const struct emulation_launch *);
void emulation_barrier(const char *file, int line);
/* All lanes of mask meet. Shuffle: value of lane `from`. Ballot: lanes whose value is not 0. */
uint64_t emulation_warp(enum emulation_operation, unsigned mask, uint64_t value, unsigned from,
                        const char *file, int line);
void *emulation_shared_memory(void);
/* Ends the program unless p is a multiple of bytes. */
void emulation_check_aligned(const void *p, size_t bytes);
static inline unsigned emulation_lane(void)
{
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}

/* A kernel and its arguments, as they are when it is launched: a recording runs it later, and
 * again. */
template <typename... P> struct emulation_call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
};

template <typename... P> static inline void emulation_call_thread(const void *call)
{
    const auto *c = static_cast<const emulation_call<P...> *>(call);
    std::apply(c->kernel, c->arguments);
}

template <typename... P> struct emulation_recorded {
    struct emulation_launch launch;
    emulation_call<P...> call;
};

template <typename... P> static inline void emulation_run_recorded(void *recorded)
{
    emulation_run(&static_cast<emulation_recorded<P...> *>(recorded)->launch);
}

template <typename... P> static inline void emulation_drop_recorded(void *recorded)
{
    delete static_cast<emulation_recorded<P...> *>(recorded);
}

/* What is set of a kernel's argument: of a list (kernels/cuda/ops/device.h) its items. */
template <typename List>
static inline auto emulation_used_bytes(const List &l, int)
    -> decltype(l.items[l.count], l.first_block[l.count], size_t{})
{
    return (size_t)l.count * sizeof l.items[0];
}

template <typename T> static inline size_t emulation_used_bytes(const T &x, ...)
{
    return sizeof x;
}

/* What lies between the members of an argument is what was there before, an address of another
 * device's perhaps. Compilers without this builtin leave it. */
template <typename T> static inline void emulation_clear_padding([[maybe_unused]] T &x)
{
#ifdef __has_builtin
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&x);
#endif
#endif
}

template <typename... P, typename... A>
static inline void emulation_start(const char *name, dim3 grid, dim3 block, size_t shared_bytes,
                                   struct ampk_rt_a_stream *stream, void (*kernel)(P...),
                                   A... arguments)
{
    const size_t bytes = (size_t{0} + ... + sizeof(P));
    auto *r = new emulation_recorded<P...>{
        {name, grid, block, shared_bytes, bytes, emulation_call_thread<P...>, nullptr},
        {kernel, std::tuple<P...>(arguments...)}};
    r->launch.call = &r->call;
    emulation_check_stream(stream, name);
    (emulation_clear_padding(arguments), ...);
    (emulation_check_words(&arguments, emulation_used_bytes(arguments, 0), name), ...);
    if (emulation_record(emulation_run_recorded<P...>, r, emulation_drop_recorded<P...>)) return;
    emulation_run(&r->launch);
    delete r;
}

#define AMPK_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                \
    emulation_start(#kernel, (grid), (block), (shared_bytes), (stream), kernel, ##__VA_ARGS__)

/* ---- barriers, shuffles, votes ---- */

#define __syncthreads() emulation_barrier(__FILE__, __LINE__)
#define __syncwarp()    emulation_warp(EMULATION_SYNCWARP, ~0u, 0, 0, __FILE__, __LINE__)
#define __threadfence() ((void)0)
#define __ballot_sync(mask, predicate)                                                             \
    (unsigned)emulation_warp(EMULATION_BALLOT, (mask), (predicate) ? 1 : 0, 0, __FILE__, __LINE__)
#define __any_sync(mask, predicate) (__ballot_sync(mask, predicate) != 0)
#define __all_sync(mask, predicate) (__ballot_sync(mask, !(predicate)) == 0)

template <typename T>
static inline T emulation_shuffle(unsigned mask, T value, unsigned from, const char *file, int line)
{
    uint64_t bits = 0;
    static_assert(sizeof value <= sizeof bits, "a shuffle moves 4 or 8 bytes");
    memcpy(&bits, &value, sizeof value);
    bits = emulation_warp(EMULATION_SHUFFLE, mask, bits, from, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The lane that `to` is if it exists, else this one. */
static inline unsigned emulation_lane_or_own(unsigned to)
{
    return to < 32 ? to : emulation_lane();
}

#define __shfl_sync(mask, value, from)                                                             \
    emulation_shuffle(mask, value, (from) % 32u, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, lanes)                                                        \
    emulation_shuffle(mask, value, emulation_lane_or_own(emulation_lane() ^ (unsigned)(lanes)),    \
                      __FILE__, __LINE__)
#define __shfl_down_sync(mask, value, lanes)                                                       \
    emulation_shuffle(mask, value, emulation_lane_or_own(emulation_lane() + (unsigned)(lanes)),    \
                      __FILE__, __LINE__)
#define __shfl_up_sync(mask, value, lanes)                                                         \
    emulation_shuffle(mask, value, emulation_lane_or_own(emulation_lane() - (unsigned)(lanes)),    \
                      __FILE__, __LINE__)

/* d += a b of one warp, as ampk_mma has them; d is rounded once. The lanes meet here, but CUDA
 * promises no order of memory for that: a vote has none, and TSan does not look at these arrays. */
__attribute__((no_sanitize("thread"))) static inline void
emulation_mma(float (&d)[4], const float (&a)[8], const float (&b)[4])
{
    static float rows[32][16][16], columns[32][8][16]; /* of every warp of a block */
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned group = emulation_lane() / 4, pair = emulation_lane() % 4 * 2;
    auto &row = rows[thread / 32];
    auto &column = columns[thread / 32];
    for (unsigned i = 0; i < 8; i++)
        row[group + (i / 2 % 2) * 8][pair + i % 2 + i / 4 * 8] = a[i];
    for (unsigned i = 0; i < 4; i++)
        column[group][pair + i % 2 + i / 2 * 8] = b[i];
    (void)__any_sync(~0u, 1);
    for (unsigned i = 0; i < 4; i++) {
        double sum = d[i];
        for (unsigned k = 0; k < 16; k++)
            sum += (double)row[group + i / 2 * 8][k] * column[pair + i % 2][k];
        d[i] = (float)sum;
    }
    (void)__any_sync(~0u, 1);
}

/* ---- atomics of whole numbers; their orders are for TSan (racecheck.h) ---- */

/* Acquires and releases: with the __threadfence before it, the last block's turn comes so. */
template <typename T> static inline T atomicAdd(T *p, T value)
{
    return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL);
}

template <typename T> static inline T atomicMax(T *p, T value)
{
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
    }
    return old;
}

/* ---- numbers ---- */

template <typename To, typename From> static inline To emulation_bits(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "");
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline unsigned __float_as_uint(float x)
{
    return emulation_bits<unsigned>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return emulation_bits<float>(x);
}

/* Compiled with -ffp-contract=off: no product is fused with a sum. */
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
/* As far off as the device's may be, by 2 ulp. By another name: newer C libraries have this one. */
static inline float emulation_rsqrtf(float a)
{
    return 1 / sqrtf(a) * (1 + 0x1p-22f);
}
#define rsqrtf emulation_rsqrtf
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

/* fp16 and bf16 as stored. Integers only, so that no mode of the processor matters. */
struct ampk_fp16 {
    uint16_t bits;
};
struct ampk_bf16 {
    uint16_t bits;
};

/* x / 2^places, to nearest even; 0 < places < 32. */
static inline uint32_t emulation_shift_rounded(uint32_t x, unsigned places)
{
    uint32_t half = 1u << (places - 1), whole = x >> places, rest = x & (2 * half - 1);
    return whole + (rest > half || (rest == half && whole % 2));
}

static inline float ampk_to_float(ampk_fp16 x)
{
    uint32_t sign = (x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31,
             fraction = x.bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0 && fraction == 0) return __uint_as_float(sign);
    if (exponent == 0) { /* subnormal: shift the leading one to its place */
        unsigned places = __builtin_clz(fraction) - 21;
        fraction = fraction << places & 1023;
        exponent = 1 - places;
    }
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline float ampk_to_float(ampk_bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

static inline void ampk_from_float(float x, ampk_fp16 *to)
{
    uint32_t sign = __float_as_uint(x) >> 16 & 0x8000, size = __float_as_uint(x) & 0x7fffffff;
    uint32_t exponent = size >> 23, bits;
    if (size > 0x7f800000) /* NaN */
        bits = 0x7fff, sign = 0;
    else if (exponent >= 127 + 16)
        bits = 0x7c00;
    else if (exponent >= 127 - 14)
        bits = emulation_shift_rounded(size - (112u << 23), 13); /* may carry into inf */
    else if (exponent >= 127 - 25)
        bits = emulation_shift_rounded((size & 0x7fffff) | 0x800000, 126 - exponent);
    else
        bits = 0;
    to->bits = (uint16_t)(sign | bits);
}

static inline void ampk_from_float(float x, ampk_bf16 *to)
{
    uint32_t bits = __float_as_uint(x);
    bool nan = (bits & 0x7fffffff) > 0x7f800000;
    to->bits = (uint16_t)(nan ? 0x7fff : emulation_shift_rounded(bits, 16));
}

#endif
