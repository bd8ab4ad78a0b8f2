/* Decides from the environment whether a launcher started this process. It must not know MPI. */
#include "launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Variables that a launcher sets for each of its processes. mpirun may itself run below srun, so it
 * comes first. srun's are those of a job step: a batch script has SLURM_PROCID and SLURM_NTASKS
 * too, and is one process. */
static const struct variables {
    enum amp_launcher launcher;
    const char *rank, *size, *local;
} known[] = {
    {AMP_LAUNCHER_OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {AMP_LAUNCHER_PMI, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {AMP_LAUNCHER_SLURM, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
};
enum { KNOWN = sizeof known / sizeof *known };

/* -1: absent, or no number. */
static int number(char *(*get)(const char *), const char *name)
{
    char *end;
    const char *text = get(name);
    long n = text ? strtol(text, &end, 10) : -1;
    return text && *text && !*end && n >= 0 && n < 1 << 24 ? (int)n : -1;
}

struct amp_launch amp_launch_read(char *(*get)(const char *name))
{
    for (const struct variables *v = known; v < known + KNOWN; v++) {
        int rank = number(get, v->rank), size = number(get, v->size);
        if (rank < 0 || rank >= size) continue;
        if (size == 1 && !get(AMP_ONE_AS_SEVERAL)) break;
        int local = number(get, v->local);
        return (struct amp_launch){v->launcher, rank, size, local < 0 ? rank : local};
    }
    return (struct amp_launch){AMP_LAUNCHER_NONE, 0, 1, 0};
}

void amp_launch_who(char *text, size_t size)
{
    int rank = amp_launch_read(getenv).rank;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(text, rank ? size : 1, "rank %d on %s: ", rank, host);
}

const char *amp_launcher_name(enum amp_launcher launcher)
{
    static const char *const names[] = {"no launcher", "Open MPI's mpirun", "MPICH's mpirun",
                                        "srun"};
    return names[launcher];
}
