/* `-gpus 0,1` with mixed_precision=1: a process for each GPU, started by mpirun. */
#ifndef AMP_PROCESSES_H
#define AMP_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>

/* How many GPUs the value of -gpus names. */
int amp_gpus_named(const char *gpus);

/* Starts the program again, once for each GPU named, by the mpirun in the PATH, and prints the
 * command. argv: all words of this process, -gpus among them. Returns only if that fails: -1 with
 * the reason on stderr. */
int amp_start_processes(int argc, char **argv, const char *gpus);

/* The GPU of this process, one of several on its host. gpus: the value of -gpus; NULL: GPU k for
 * the k-th process of a host. -1 with text in err: there are more processes than GPUs named. */
int amp_gpu_of_process(const char *gpus, int local, char *err, size_t err_size);

#endif
