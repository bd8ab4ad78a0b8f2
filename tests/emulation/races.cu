/* Kernels that a racecheck must report, and the same without the mistake (racecheck.h).
 * Argument 1: which; argument 2: right or wrong. races.py runs it, and finds in this file the lines
 * that have to be reported, by the word "race". */
#include "kernels/cuda/conv/mma.h"

#include <stdio.h>
#include <stdlib.h>

static const unsigned THREADS = 512; /* more than TSan has clocks */

/* One thread may read before another has written. No other pair of threads shows it. */
template <bool right> static __global__ void read_early(int *out)
{
    __shared__ int word;
    __syncthreads();
    if (threadIdx.x == 7) word = 1; /* race: early */
    if (right) __syncthreads();
    if (threadIdx.x == 300) *out = word; /* race: early */
}

/* Written again while others still read, as two calls of a block's reduction do that have no
 * barrier between them. The other orders hardly ever meet in the emulation. */
template <bool right> static __global__ void write_again(int *out)
{
    __shared__ int of_all;
    for (int i = 0; i < 2; i++) {
        if (threadIdx.x == 0) of_all = i; /* race: again */
        __syncthreads();
        out[threadIdx.x] = of_all; /* race: again */
        if (right) __syncthreads();
    }
}

/* A shuffle brings a warp's lanes together, but orders no memory. */
template <bool right> static __global__ void shuffle(int *out)
{
    __shared__ int all[32];
    all[threadIdx.x] = 1; /* race: shuffle */
    out[32 + threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
    if (right) __syncwarp();
    out[threadIdx.x] = all[31 - threadIdx.x]; /* race: shuffle */
}

/* Neither does a matrix product. */
template <bool right> static __global__ void multiply(int *out)
{
    __shared__ int all[32];
    const uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
    float d[4] = {0, 0, 0, 0};
    all[threadIdx.x] = 1; /* race: multiply */
    ampk_mma<ampk_fp16>(d, a, b);
    if (right) __syncwarp();
    out[threadIdx.x] = all[31 - threadIdx.x] + (int)d[0]; /* race: multiply */
}

int main(int argc, char **argv)
{
    static int out[THREADS];
    const char *which = argc == 3 ? argv[1] : "";
    bool right = argc == 3 && !strcmp(argv[2], "right");
    if (!strcmp(which, "early"))
        AMPK_LAUNCH(right ? read_early<true> : read_early<false>, 2, THREADS, 0, NULL, out);
    else if (!strcmp(which, "again"))
        AMPK_LAUNCH(right ? write_again<true> : write_again<false>, 2, THREADS, 0, NULL, out);
    else if (!strcmp(which, "shuffle"))
        AMPK_LAUNCH(right ? shuffle<true> : shuffle<false>, 2, 32, 0, NULL, out);
    else if (!strcmp(which, "multiply"))
        AMPK_LAUNCH(right ? multiply<true> : multiply<false>, 2, 32, 0, NULL, out);
    else
        return 2;
    return 0;
}
