/* Random numbers that depend on a counter and a key alone, so that any thread can compute any of
 * them: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2,
 * 3", SC 2011. It encrypts a 128-bit counter under a 64-bit key. tests/core/stream.c has the
 * authors' known answers. For C and for CUDA. */
#ifndef AMPK_PHILOX_H
#define AMPK_PHILOX_H

#include <math.h>

#include "kernels.h"

#ifdef __CUDACC__
#define AMPK_RANDOM static __device__ __forceinline__
#else
#define AMPK_RANDOM static inline
#endif

enum { AMPK_PHILOX_ROUNDS = 10 };

/* out = the counter, encrypted. */
AMPK_RANDOM void ampk_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < AMPK_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * a, p1 = (uint64_t)0xcd9e8d57u * c;
        a = (uint32_t)(p1 >> 32) ^ b ^ k0;
        b = (uint32_t)p1;
        c = (uint32_t)(p0 >> 32) ^ d ^ k1;
        d = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
}

/* Numbers 4 * block to 4 * block + 3 of a draw. */
AMPK_RANDOM void ampk_draw_four(const struct ampk_draw *draw, uint32_t block, uint32_t out[4])
{
    const uint32_t counter[4] = {draw->counter[0] + block, draw->counter[1], draw->counter[2],
                                 draw->counter[3]};
    ampk_philox(counter, draw->key, out);
}

/* A 32-bit number x stands for u = x / 2^32, in [0, 1). u < probability exactly if x is below this
 * bound. */
static inline uint32_t ampk_drops_below(float probability)
{
    return (uint32_t)ceil(ldexp((double)probability, 32));
}

#endif
