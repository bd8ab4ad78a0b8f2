/* Kernels for the emulation's own test. */
#ifndef EMULATION_KERNELS_H
#define EMULATION_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* *sum += all of x, 128 elements for each block. Without its barriers it is wrong. */
void kernels_sum(bool barriers, const int *x, int blocks, int *sum);
/* 64 threads with one x each; 8 results for each. */
void kernels_warp(const int *x, int *out);
/* d += a b: 16 x 8 floats, 16 x 16 and 16 x 8 FP16 or BF16 values as bits, by rows. */
void kernels_mma(bool bf16, const uint16_t *a, const uint16_t *b, float *d);

enum kernels_mistake {
    DIVERGE_AT_BARRIER,
    MEET_AT_TWO_BARRIERS,
    MISS_A_LANE,
    MISS_HALF_A_WARP,
    TAKE_FROM_OUTSIDE,
    MISALIGN,
    LEAVE_SHARED_MEMORY,
    TOO_MANY_THREADS,
    TOO_DEEP_A_BLOCK,
    NO_THREADS,
    NO_BLOCKS,
    NO_BLOCKS_IN_Y,
    TOO_MANY_BLOCKS,
    TOO_MANY_BLOCKS_IN_Y,
    TOO_MANY_BLOCKS_IN_Z,
    TOO_MUCH_SHARED_MEMORY,
    TOO_LARGE_ARGUMENTS,
    TOUCH_DEVICE_MEMORY,
    TAKE_MEMORY_WHILE_RECORDING,
    WAIT_WHILE_RECORDING,
    GO_AHEAD_OF_A_STREAM,
};
void kernels_wrong(enum kernels_mistake);

struct kernels_large {
    char bytes[4097];
};

/* A kernel with an argument that has this address in it, but for the lowest byte, as padding. */
void kernels_padded(const void *address);

/* x / by, with what device.h makes of by. */
uint32_t kernels_quotient(uint32_t x, uint32_t by);

float kernels_fp16_value(uint16_t bits);
float kernels_bf16_value(uint16_t bits);
uint16_t kernels_fp16_bits(float value);
uint16_t kernels_bf16_bits(float value);

#ifdef __cplusplus
}
#endif

#endif
