/* Kernels for the emulation's own test, some of them wrong on purpose. */
#include "kernels/cuda/conv/mma.h"
#include "kernels.h"

/* ---- a sum over a block, in shared memory; the wrong one lacks the barriers ---- */

template <bool barriers> static __global__ void sum_block(const int *x, int *sum)
{
    AMPK_SHARED_MEMORY(int, part);
    part[threadIdx.x] = x[ampk_first()];
    if (barriers) __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        if (barriers) __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(sum, part[0]);
}

/* ---- every operation of a warp ---- */

static __global__ void use_warp(const int *x, int *out)
{
    __shared__ int last;
    unsigned lane = threadIdx.x % 32;
    int v = x[threadIdx.x];
    int *to = out + threadIdx.x * 8;
    to[0] = __shfl_xor_sync(~0u, v, 5);
    to[1] = __shfl_down_sync(~0u, v, 3);
    to[2] = __shfl_up_sync(~0u, v, 3);
    to[3] = __shfl_sync(~0u, v, 7);
    to[4] = (int)__ballot_sync(~0u, v & 1);
    to[5] = __any_sync(~0u, v == 4) + 2 * __all_sync(~0u, v >= 0);
    to[6] = lane < 8 ? __shfl_xor_sync(0xffu, v, 1) : __shfl_xor_sync(~0xffu, v, 1);
    __syncwarp();
    if (threadIdx.x == blockDim.x - 1) last = v;
    __syncthreads();
    to[7] = last;
}

/* ---- a matrix product ---- */

template <typename T>
static __global__ void multiply(const uint16_t *a, const uint16_t *b, float *d)
{
    unsigned group = threadIdx.x / 4, pair = threadIdx.x % 4 * 2;
    uint32_t of_a[4], of_b[2];
    float of_d[4];
    for (unsigned i = 0; i < 4; i++) {
        const uint16_t *at = a + (group + i % 2 * 8) * 16 + pair + i / 2 * 8;
        of_a[i] = at[0] | (uint32_t)at[1] << 16;
        of_d[i] = d[(group + i / 2 * 8) * 8 + pair + i % 2];
    }
    for (unsigned i = 0; i < 2; i++) {
        const uint16_t *at = b + (pair + i * 8) * 8 + group;
        of_b[i] = at[0] | (uint32_t)at[8] << 16;
    }
    ampk_mma<T>(of_d, of_a, of_b);
    for (unsigned i = 0; i < 4; i++)
        d[(group + i / 2 * 8) * 8 + pair + i % 2] = of_d[i];
}

/* ---- what ends the program ---- */

static __global__ void diverge_at_barrier(void)
{
    if (threadIdx.x < 40) __syncthreads();
}

static __global__ void meet_at_two_barriers(void)
{
    if (threadIdx.x < 40)
        __syncthreads();
    else
        __syncthreads();
}

static __global__ void miss_a_lane(int *out)
{
    if (threadIdx.x != 40) out[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
}

static __global__ void take_from_outside(int *out)
{
    if (threadIdx.x < 4) out[threadIdx.x] = __shfl_xor_sync(0xfu, 1, 4);
}

static __global__ void misalign(float *x)
{
    float v[4] = {0, 0, 0, 0};
    ampk_store(x + 1, v);
}

static __global__ void leave_shared_memory(void)
{
    AMPK_SHARED_MEMORY(int, x);
    x[threadIdx.x] = 1;
}

static __global__ void do_nothing(void) {}

static __global__ void take_argument(struct kernels_large) {}

/* ---- launches ---- */

void kernels_mma(bool bf16, const uint16_t *a, const uint16_t *b, float *d)
{
    auto product = bf16 ? multiply<ampk_bf16> : multiply<ampk_fp16>;
    AMPK_LAUNCH(product, 1, 32, 0, NULL, a, b, d);
}

void kernels_sum(bool barriers, const int *x, int blocks, int *sum)
{
    if (barriers)
        AMPK_LAUNCH(sum_block<true>, blocks, 128, 128 * sizeof(int), NULL, x, sum);
    else
        AMPK_LAUNCH(sum_block<false>, blocks, 128, 128 * sizeof(int), NULL, x, sum);
}

void kernels_warp(const int *x, int *out)
{
    AMPK_LAUNCH(use_warp, 1, 64, 0, NULL, x, out);
}

/* Work of `first` that `second` waits for, then more of it. */
static void go_ahead()
{
    ampk_rt_stream first = ampk_rt_stream_create(), second = ampk_rt_stream_create();
    AMPK_LAUNCH(do_nothing, 1, 64, 0, first);
    ampk_rt_order(ampk_rt_event_create(false), first, second);
    emulation_check_behind(second, "the first call");
    AMPK_LAUNCH(do_nothing, 1, 64, 0, first);
    emulation_check_behind(second, "the second call");
}

void kernels_wrong(enum kernels_mistake mistake)
{
    int out[128];
    float *x = (float *)ampk_rt_alloc(64);
    struct kernels_large large = {{0}};
    switch (mistake) {
    case DIVERGE_AT_BARRIER:
        AMPK_LAUNCH(diverge_at_barrier, 3, 64, 0, NULL);
        break;
    case MEET_AT_TWO_BARRIERS:
        AMPK_LAUNCH(meet_at_two_barriers, 3, 64, 0, NULL);
        break;
    case MISS_A_LANE:
        AMPK_LAUNCH(miss_a_lane, 1, 64, 0, NULL, out);
        break;
    case MISS_HALF_A_WARP:
        AMPK_LAUNCH(miss_a_lane, 1, 48, 0, NULL, out);
        break;
    case TAKE_FROM_OUTSIDE:
        AMPK_LAUNCH(take_from_outside, 1, 32, 0, NULL, out);
        break;
    case MISALIGN:
        AMPK_LAUNCH(misalign, 1, 32, 0, NULL, x);
        break;
    case LEAVE_SHARED_MEMORY:
        AMPK_LAUNCH(leave_shared_memory, 1, 64, 63 * sizeof(int), NULL);
        break;
    case TOO_MANY_THREADS:
        AMPK_LAUNCH(do_nothing, 1, dim3(64, 17), 0, NULL);
        break;
    case TOO_DEEP_A_BLOCK:
        AMPK_LAUNCH(do_nothing, 1, dim3(1, 1, 65), 0, NULL);
        break;
    case NO_THREADS:
        AMPK_LAUNCH(do_nothing, 1, 0, 0, NULL);
        break;
    case NO_BLOCKS:
        AMPK_LAUNCH(do_nothing, 0, 64, 0, NULL);
        break;
    case NO_BLOCKS_IN_Y:
        AMPK_LAUNCH(do_nothing, dim3(1, 0), 64, 0, NULL);
        break;
    case TOO_MANY_BLOCKS:
        AMPK_LAUNCH(do_nothing, 1u << 31, 64, 0, NULL);
        break;
    case TOO_MANY_BLOCKS_IN_Y:
        AMPK_LAUNCH(do_nothing, dim3(1, 65536), 64, 0, NULL);
        break;
    case TOO_MANY_BLOCKS_IN_Z:
        AMPK_LAUNCH(do_nothing, dim3(1, 1, 65536), 64, 0, NULL);
        break;
    case TOO_MUCH_SHARED_MEMORY:
        AMPK_LAUNCH(do_nothing, 1, 64, (48 << 10) + 1, NULL);
        break;
    case TOO_LARGE_ARGUMENTS:
        AMPK_LAUNCH(take_argument, 1, 32, 0, NULL, large);
        break;
    case TAKE_MEMORY_WHILE_RECORDING:
        ampk_rt_record_begin(NULL);
        ampk_rt_alloc(1);
        break;
    case WAIT_WHILE_RECORDING:
        ampk_rt_record_begin(NULL);
        ampk_rt_stream_wait(NULL);
        break;
    case GO_AHEAD_OF_A_STREAM:
        go_ahead();
        break;
    case TOUCH_DEVICE_MEMORY:
        *(volatile float *)x = 1;
        break;
    }
    ampk_rt_free(x);
}

/* ---- arguments ---- */

struct padded {
    alignas(8) char set;
};

static __global__ void take_padded(padded p)
{
    (void)p;
}

void kernels_padded(const void *address)
{
    padded p;
    memcpy(static_cast<void *>(&p), &address, sizeof p);
    p.set = 1;
    AMPK_LAUNCH(take_padded, 1, 32, 0, NULL, p);
}

/* ---- numbers ---- */

uint32_t kernels_quotient(uint32_t x, uint32_t by)
{
    return ampk_quotient(x, ampk_divide_by(by));
}

float kernels_fp16_value(uint16_t bits)
{
    ampk_fp16 x = {bits};
    return ampk_to_float(x);
}

float kernels_bf16_value(uint16_t bits)
{
    ampk_bf16 x = {bits};
    return ampk_to_float(x);
}

uint16_t kernels_fp16_bits(float value)
{
    ampk_fp16 x;
    ampk_from_float(value, &x);
    return x.bits;
}

uint16_t kernels_bf16_bits(float value)
{
    ampk_bf16 x;
    ampk_from_float(value, &x);
    return x.bits;
}
