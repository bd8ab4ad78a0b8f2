/* The CUDA backend's context: stream, device, work memory. */
#ifndef AMPK_CUDA_CONTEXT_H
#define AMPK_CUDA_CONTEXT_H

#include "runtime.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ampk_context {
    ampk_rt_stream stream; /* runs every operation */
    ampk_rt_event turn;    /* orders stream and default stream */
    /* The stream where weight gradients may run beside data gradients; NULL: nowhere
     * (conv_choice.c). */
    ampk_rt_stream side;
    ampk_rt_event fork, join;
    struct ampk_rt_device device;
    int compiled; /* compute capability of the code that the device runs, 10 * major + minor */
    void *work;   /* see ampk_cuda_work */
    size_t work_bytes;
    unsigned recordings; /* how many use this context's work memory */
    struct ampk_outgrown *outgrown;
    int failed_recordings; /* in a row */
    /* AMPK_COUNTERS counters, all 0 between operations: blocks count themselves, so that the last
     * one can add up the others' sums */
    unsigned *counters;
    struct ampk_tc *tensor_core; /* opened by the first convolution (conv.h) */
};

enum { AMPK_COUNTERS = 256 };

struct ampk_context *ampk_cuda_context_create(int threads, char *err, size_t err_size);
void ampk_cuda_context_destroy(struct ampk_context *);

/* Device memory for data between the kernels of one operation: 256-byte aligned, contents
 * undefined, valid until the next operation. Ends the program with a message when none is left;
 * conv_create reserves the large pieces in advance. */
void *ampk_cuda_work(struct ampk_context *, size_t bytes);
/* Makes sure that ampk_cuda_work can give so many bytes; false if there is no memory. Recordings
 * go on using the memory that they were made with. */
bool ampk_cuda_work_reserve(struct ampk_context *, size_t bytes);
/* Frees memory that only recordings used. Call it after the last recording is gone. */
void ampk_cuda_work_tidy(struct ampk_context *);

/* Waits for the stream; ends the program with a message if a kernel failed. */
void ampk_cuda_wait(struct ampk_context *);

/* Number of blocks of `threads` threads for a grid-stride loop over `items`, `per_block` of them
 * at a time: what the device can hold, no more than there is work for, at least 1. A result must
 * not depend on this number: the shape alone decides how sums are split. */
unsigned ampk_cuda_blocks(const struct ampk_context *, size_t items, int per_block, int threads);

#ifdef __cplusplus
}
#endif

#endif
