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

/* Adds n floats of the backend's memory up over all processes; they travel in BF16. False: there
 * was no memory. */
bool amp_devices_add_rounded(const struct ampk_backend *, struct ampk_context *, float *x,
                             size_t n);

#endif
