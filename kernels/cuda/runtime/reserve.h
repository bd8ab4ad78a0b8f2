/* Addresses first, memory later.
 *
 * A reserved range has an address that can be stored and passed on, but no memory behind it;
 * touching it is a fault. Committing gives it memory. Two implementations: reserve_cuda.c on the
 * driver's virtual memory management, and tests/emulation/reserve_host.c on mmap. */
#ifndef AMPK_CUDA_RESERVE_H
#define AMPK_CUDA_RESERVE_H

#include <stdbool.h>
#include <stddef.h>

/* Reserves a range of at least that many bytes on the current device. NULL if the device or its
 * driver cannot. */
void *ampk_reserve(size_t bytes);
/* Gives a range memory, once, filled from the host's `initial` or with zeros. False: no memory
 * left. */
bool ampk_commit(void *range, size_t bytes, const void *initial);
/* committed: whether ampk_commit succeeded on it. */
void ampk_unreserve(void *range, size_t bytes, bool committed);

#endif
