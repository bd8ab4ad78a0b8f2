/* How arrays in the memory of devices travel between the processes: by NCCL where all have it, else
 * through the host. */
#ifndef AMP_DEVICES_H
#define AMP_DEVICES_H

#include "nccl.h"
#include "kernels/kernels.h"

#include <stdbool.h>

/* What a process tells of its device. All bytes are set, as it is sent. */
struct amp_device_member {
    int version;          /* of NCCL; -1: none */
    char why[200];        /* there is none */
    char card[32];        /* which GPU of its host */
    char id[AMP_NCCL_ID]; /* of process 0: by which all find each other */
};

/* Whether n processes can use NCCL; else why not, in words. */
bool amp_devices_decide(const struct amp_device_member *, int n, const char *(*host)(int rank),
                        char *why, size_t size);

/* All processes come here before their first exchange; later calls do nothing. Process 0 says once
 * which way is taken. */
void amp_devices_join(const struct ampk_backend *, struct ampk_context *);

/* Both ways of one exchange: rank is whom it is with, as group.h and nccl.h have it. */
struct amp_exchange {
    size_t size; /* of an element, in bytes */
    void (*host)(void *x, size_t n, int rank);
    int (*device)(void *x, size_t n, int rank, void *stream);
};

/* Runs it on n elements of the backend's memory. False: there was no memory on the host. */
bool amp_devices_exchange(const struct ampk_backend *, struct ampk_context *, void *x, size_t n,
                          const struct amp_exchange *, int rank);

/* The same, rank 0, beside the backend's operations: of what those called so far have written.
 * begin returns when NCCL has taken it; finish waits until all that was begun is done. Until then x
 * is not read nor written. Only where processes have NCCL. */
bool amp_devices_have_nccl(void);
void amp_devices_begin(const struct ampk_backend *, struct ampk_context *, void *x, size_t n,
                       const struct amp_exchange *);
void amp_devices_finish(void);

/* Sums over all processes, of floats and of numbers in BF16. */
extern const struct amp_exchange amp_devices_adding, amp_devices_adding_bf16;
/* Rounds n floats of the backend's memory to BF16; back: makes floats of them. */
void amp_devices_round(const struct ampk_backend *, struct ampk_context *, float *x,
                       uint16_t *rounded, size_t n, bool back);
/* Adds n floats of the backend's memory up over all processes; they travel in BF16. False: there
 * was no memory. */
bool amp_devices_add_rounded(const struct ampk_backend *, struct ampk_context *, float *x,
                             size_t n);

#endif
