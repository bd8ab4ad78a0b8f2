/* What several processes need from the library that joins them. One engine exists: MPI, in a shared
 * library of its own (mpi.c), so that the program needs no MPI where no launcher started it.
 *
 * An operation is begun, then polled until it is done; one at a time. All processes begin the same
 * operations in the same order. What an operation reads and writes stays untouched meanwhile. */
#ifndef AMP_ENGINE_H
#define AMP_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct amp_engine {
    uint64_t layout; /* AMP_ENGINE_LAYOUT of its build: a hash of this header, else it is refused */
    /* Waits for all processes, once they have found each other no longer than `timeout` seconds.
     * *threads: beats may be sent and heard on another thread than the one that does the rest. -1
     * with the reason in err. */
    int (*start)(double timeout, int *rank, int *size, bool *threads, char *err, size_t err_size);
    /* Call it on all, when all have come to their end: the launcher then reports the status that
     * they exit with. */
    void (*end)(void);

    /* bytes of every process, in the order of their ranks. */
    int (*gather)(const void *mine, void *all, size_t bytes);
    /* Adds up over all processes, in an order of the engine's own; every process gets the same
     * bits. */
    int (*add_floats)(float *x, size_t n);
    int (*add_doubles)(double *x, size_t n);
    /* The same for BF16: sums are FP32, in the order of the ranks, and are rounded once. */
    int (*add_bf16)(uint16_t *x, size_t n);
    int (*broadcast)(void *x, size_t bytes, int from);
    int (*send)(const void *x, size_t bytes, int to);
    int (*receive)(void *x, size_t bytes, int from);
    /* 1: the operation is done; 0: not yet; -1, here and above: it failed. */
    int (*poll)(void);

    /* Beats: messages of one size, apart from the operations. Neither function waits. A beat is
     * left out while the last one to that process is still under way. */
    void (*beat)(const void *x, size_t bytes, int to);
    /* The process that the next beat came from; -1: none has come. */
    int (*hear)(void *x, size_t bytes);
};

#define AMP_ENGINE_MPI    "libdarknet_amp_mpi.so"
#define AMP_ENGINE_SYMBOL "amp_engine_mpi"

#endif
