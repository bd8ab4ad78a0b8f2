/* Which launcher started this process, and as which of how many: read from the environment, before
 * anything of MPI is loaded. */
#ifndef AMP_LAUNCHER_H
#define AMP_LAUNCHER_H

#include <stddef.h>

enum amp_launcher {
    AMP_LAUNCHER_NONE,
    AMP_LAUNCHER_OPEN_MPI, /* its mpirun */
    AMP_LAUNCHER_PMI,      /* mpirun of MPICH and its relatives */
    AMP_LAUNCHER_SLURM     /* srun */
};

/* This variable makes a group of the one process that a launcher started: it then exchanges with
 * itself, which shows NCCL on one GPU (tests/gpu/processes.py). */
#define AMP_ONE_AS_SEVERAL "AMP_ONE_AS_SEVERAL"

struct amp_launch {
    enum amp_launcher launcher; /* NONE: one process, also where a launcher started only one */
    int rank, size;             /* 0 of 1 without a launcher */
    int local;                  /* among the processes of its host, as far as the launcher says */
};

/* get: getenv, or a stand-in with its rules. */
struct amp_launch amp_launch_read(char *(*get)(const char *name));

/* What errors of this process begin with: "rank 1 on HOST: "; "" in rank 0, or without a launcher.
 */
void amp_launch_who(char *text, size_t size);

/* "Open MPI's mpirun" and so on. */
const char *amp_launcher_name(enum amp_launcher);

#endif
