/* What we use of NCCL, the library that joins GPUs of several processes: 2.18 or later, loaded at
 * run time, so that nothing needs it where it is not there.
 *
 * An operation is begun on a stream of the device, then polled until the library has handed it to
 * the stream; it is done when the stream is. One at a time. All processes begin the same operations
 * in the same order. Unverified on hardware. */
#ifndef AMP_NCCL_H
#define AMP_NCCL_H

#include <stddef.h>

enum { AMP_NCCL_ID = 128, AMP_NCCL_LEAST = 21800 };

/* Returns the version, 10000 * major + 100 * minor + patch; -1: there is none, with the reason in
 * err. */
int amp_nccl_load(char *err, size_t err_size);

/* 0: begun; -1: it failed, and amp_nccl_error says why.
 * One process makes the id by which all find each other. The thread that joins uses the device that
 * the process computes on; it then belongs to the others' as long as the process lives. */
int amp_nccl_make_id(char id[AMP_NCCL_ID]);
int amp_nccl_join(const char id[AMP_NCCL_ID], int rank, int size);

/* x: n floats of the device, or n numbers in BF16. Adds up over all processes; every process gets
 * the same bits. A sum in BF16 is rounded at every addition. */
int amp_nccl_add(void *x, size_t n, int unused, void *stream);
int amp_nccl_add_bf16(void *x, size_t n, int unused, void *stream);
int amp_nccl_broadcast(void *x, size_t n, int from, void *stream);
int amp_nccl_send(void *x, size_t n, int to, void *stream);
int amp_nccl_receive(void *x, size_t n, int from, void *stream);

/* 1: the stream has it; 0: not yet; -1: it failed. */
int amp_nccl_poll(void);
const char *amp_nccl_error(void);

/* The device stops waiting for others; what an operation under way wrote to is undefined. No
 * operation may follow. */
void amp_nccl_abort(void);

#endif
