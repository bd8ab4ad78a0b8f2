/* The CUDA backend's context: stream, device, work memory. */
#ifndef AMPK_CUDA_CONTEXT_H
#define AMPK_CUDA_CONTEXT_H

#include "runtime.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ampk_context {
    ampk_rt_stream stream; /* of every operation */
    ampk_rt_event turn;    /* for the order with the default stream */
    /* Where weight gradients may run beside data gradients; NULL: nowhere (conv_choice.c). */
    ampk_rt_stream side;
    ampk_rt_event fork, join;
    struct ampk_rt_device device;
    int compiled; /* compute capability that the kernels' code for the device was compiled for */
    void *work;   /* see ampk_cuda_work */
    size_t work_bytes;
    unsigned recordings; /* that use this context's memory */
    struct ampk_outgrown *outgrown;
    int failed_recordings; /* one after the other */
    /* AMPK_COUNTERS, all 0 between operations: for blocks to count themselves */
    unsigned *counters;
    struct ampk_tc *tensor_core; /* opened by the first convolution (conv.h) */
};

enum { AMPK_COUNTERS = 256 };

struct ampk_context *ampk_cuda_context_create(int threads, char *err, size_t err_size);
void ampk_cuda_context_destroy(struct ampk_context *);

/* Device memory for what is between the kernels of one operation, 256-byte aligned, contents
 * undefined, valid until the next operation. Ends the program with a message when there is none
 * left: conv_create reserves what is large. */
void *ampk_cuda_work(struct ampk_context *, size_t bytes);
/* Makes sure that ampk_cuda_work can give so much; false when there is not. Recordings go on using
 * the memory that they were made with. */
bool ampk_cuda_work_reserve(struct ampk_context *, size_t bytes);
/* After the last recording is gone. */
void ampk_cuda_work_tidy(struct ampk_context *);

/* Waits for the stream; ends the program with a message if a kernel failed. */
void ampk_cuda_wait(struct ampk_context *);

/* Blocks of so many threads for a grid-stride loop over `items`, `per_block` of them at a time:
 * what the device can hold, not more than there is work for, at least 1. A result must not depend
 * on it: sums are split by shape alone. */
unsigned ampk_cuda_blocks(const struct ampk_context *, size_t items, int per_block, int threads);

#ifdef __cplusplus
}
#endif

#endif
