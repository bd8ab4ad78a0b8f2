/* The CUDA backend's context: stream, device, work memory; and its switches. */
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
    ampk_rt_stream beside; /* of a library (kernels.h, beside); NULL: not asked for yet */
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
    void *read_back;             /* page-locked, AMPK_READ_BACK_BYTES */
    struct ampk_block *blocks;   /* of memory that the caller has */
    ampk_rt_event marks[AMPK_MARKS];
};

enum {
    AMPK_COUNTERS = 256,
    AMPK_READ_BACK_BYTES =
        1 << 16, /* more than a pass reads: watch words and losses of all layers */
};

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

/* ---- switches of the CUDA backend in the environment ----
 * The code asks for each where it matters, mostly when a convolution is made; the answer then holds
 * for that convolution. */

enum ampk_switch {
    /* Only if 0: */
    AMPK_CUDA_IMAGE_FORWARD,  /* images are not computed by our kernel */
    AMPK_CUDA_IMAGE_GRADIENT, /* nor a first layer's weight gradient together with dy */
    /* Only if 1: */
    AMPK_CUDA_SEARCH,     /* plans are searched beyond what cuDNN's heuristics name */
    AMPK_CUDA_UNTIMED,    /* plans that are not known yet are guessed, not timed */
    AMPK_CUDA_UNRECORDED, /* nothing is recorded: to tell what goes wrong in recordings alone */
};

/* 0, 1, or unset. What a switch does not know of the two changes nothing; any other value is named,
 * once for each. */
enum ampk_setting { AMPK_UNSET, AMPK_NEVER, AMPK_ALWAYS };
enum ampk_setting ampk_cuda_setting(enum ampk_switch);

#ifdef __cplusplus
}
#endif

#endif
