/* Which passes of a step a process runs. A step has `subdivisions` passes, whatever the number of
 * processes; each process runs consecutive ones. */
#ifndef AMP_SHARE_H
#define AMP_SHARE_H

#include "plugin/core/net/net.h"

#include <stddef.h>

struct amp_share {
    int first, passes;
};

/* The share of one of `size` processes; shares differ by one pass at most. size <= passes: every
 * process has one. */
struct amp_share amp_share_of(int passes, int rank, int size);

/* The subdivisions with which `size` processes train: those of the cfg if every process gets a
 * pass; else the smallest multiple of size that divides batch (the images of a step); 0: there is
 * none. */
int amp_share_subdivisions(int batch, int subdivisions, int size);

/* Lists the numbers of processes for which there are such subdivisions: "1 to 4, 8, 16". */
void amp_share_possible(int batch, int subdivisions, char *text, size_t size);

/* For amp_sync_bn=1, where pass k of every process is part of one larger pass: 0 if all of `size`
 * processes have as many passes; else -1, and err says which subdivisions of batch allow that. */
int amp_share_check_even(int batch, int subdivisions, int size, char *err, size_t err_size);

/* 0, or -1 and err says why several processes cannot train the net. */
int amp_share_check_net(const struct amp_net_desc *, char *err, size_t err_size);

#endif
