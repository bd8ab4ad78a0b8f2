/* Who started the process, and which passes it has. */
#include "plugin/spread/launcher.h"
#include "plugin/spread/share.h"

#include "tests/rig/harness.h"

#include <stdbool.h>

/* ---- launchers ---- */

#define OPEN_MPI(rank, size) "OMPI_COMM_WORLD_RANK", rank, "OMPI_COMM_WORLD_SIZE", size
#define PMI(rank, size)      "PMI_RANK", rank, "PMI_SIZE", size
#define SLURM(rank, size)    "SLURM_PROCID", rank, "SLURM_STEP_NUM_TASKS", size

static const char *const *environment; /* NAME, value, NAME, value ..., NULL */

static char *look_up(const char *name)
{
    for (const char *const *e = environment; *e; e += 2)
        if (!strcmp(*e, name)) return (char *)e[1];
    return NULL;
}

static void check(const char *const *e, enum amp_launcher launcher, int rank, int size)
{
    environment = e;
    struct amp_launch found = amp_launch_read(look_up);
    CHECK_INT(found.launcher, launcher);
    CHECK_INT(found.rank, rank);
    CHECK_INT(found.size, size);
}

/* Which GPU a process gets. */
AMP_TEST(a_process_knows_its_place_on_its_host)
{
    static const char *const of_open_mpi[] = {OPEN_MPI("5", "8"), "OMPI_COMM_WORLD_LOCAL_RANK", "1",
                                              NULL};
    static const char *const of_pmi[] = {PMI("5", "8"), "MPI_LOCALRANKID", "2", NULL};
    static const char *const of_slurm[] = {SLURM("5", "8"), "SLURM_LOCALID", "3", NULL};
    static const char *const unsaid[] = {PMI("5", "8"), NULL}, *const none[] = {NULL};
    const char *const *const cases[] = {none, of_open_mpi, of_pmi, of_slurm, unsaid};
    for (int i = 0; i < 5; i++) {
        environment = cases[i];
        CHECK_INT(amp_launch_read(look_up).local, i < 4 ? i : 5);
    }
}

AMP_TEST(each_launcher_is_known)
{
    check((const char *[]){"HOME", "/", NULL}, AMP_LAUNCHER_NONE, 0, 1);
    check((const char *[]){OPEN_MPI("3", "8"), NULL}, AMP_LAUNCHER_OPEN_MPI, 3, 8);
    check((const char *[]){PMI("2", "4"), NULL}, AMP_LAUNCHER_PMI, 2, 4);
    check((const char *[]){SLURM("5", "6"), NULL}, AMP_LAUNCHER_SLURM, 5, 6);
}

/* mpirun started by srun, one process of each; srun's numbers are those of mpirun itself. */
AMP_TEST(the_inner_launcher_counts)
{
    check((const char *[]){SLURM("0", "2"), OPEN_MPI("1", "4"), NULL}, AMP_LAUNCHER_OPEN_MPI, 1, 4);
    check((const char *[]){SLURM("1", "2"), OPEN_MPI("0", "1"), NULL}, AMP_LAUNCHER_NONE, 0, 1);
}

AMP_TEST(one_process_has_no_launcher)
{
    check((const char *[]){OPEN_MPI("0", "1"), NULL}, AMP_LAUNCHER_NONE, 0, 1);
    check((const char *[]){OPEN_MPI("0", "1"), AMP_ONE_AS_SEVERAL, "1", NULL},
          AMP_LAUNCHER_OPEN_MPI, 0, 1);
    check((const char *[]){"SLURM_PROCID", "0", "SLURM_NTASKS", "8", NULL}, AMP_LAUNCHER_NONE, 0,
          1); /* a batch script */
}

AMP_TEST(numbers_that_are_none_do_not_count)
{
    check((const char *[]){OPEN_MPI("8", "8"), NULL}, AMP_LAUNCHER_NONE, 0, 1);
    check((const char *[]){OPEN_MPI("-1", "8"), NULL}, AMP_LAUNCHER_NONE, 0, 1);
    check((const char *[]){OPEN_MPI("", "8"), NULL}, AMP_LAUNCHER_NONE, 0, 1);
    check((const char *[]){OPEN_MPI("1x", "8"), NULL}, AMP_LAUNCHER_NONE, 0, 1);
}

/* ---- shares ---- */

AMP_TEST(shares_cover_the_step)
{
    for (int passes = 1; passes <= 40; passes++)
        for (int size = 1; size <= passes; size++) {
            int next = 0;
            for (int r = 0; r < size; r++) {
                struct amp_share s = amp_share_of(passes, r, size);
                CHECK_INT(s.first, next);
                CHECK(s.passes == passes / size || s.passes == (passes + size - 1) / size);
                next = s.first + s.passes;
            }
            CHECK_INT(next, passes);
        }
}

static bool fits(int batch, int passes, int size)
{
    return batch % passes == 0 && passes % size == 0;
}

AMP_TEST(more_processes_than_passes)
{
    CHECK_INT(amp_share_subdivisions(64, 16, 3), 16);
    CHECK_INT(amp_share_subdivisions(64, 16, 16), 16);
    CHECK_INT(amp_share_subdivisions(64, 2, 4), 4);
    CHECK_INT(amp_share_subdivisions(48, 2, 3), 3);
    CHECK_INT(amp_share_subdivisions(64, 2, 3), 0);
    CHECK_INT(amp_share_subdivisions(4, 2, 8), 0);
    for (int batch = 1; batch <= 48; batch++)
        for (int size = 2; size <= 60; size++) {
            int found = amp_share_subdivisions(batch, 1, size), smallest = 0;
            for (int n = batch; n >= 1; n--)
                if (fits(batch, n, size)) smallest = n;
            CHECK_INT(found, smallest);
        }
}

/* What is said where `size` processes cannot have as many passes each. */
static const char *uneven(int batch, int subdivisions, int size)
{
    static char text[200];
    const char *allowed;
    CHECK_INT(amp_share_check_even(batch, subdivisions, size, text, sizeof text), -1);
    allowed = strstr(text, "allowed: ");
    CHECK(allowed && strstr(text, "amp_sync_bn=1"));
    return allowed ? allowed + strlen("allowed: ") : "";
}

AMP_TEST(even_shares_are_listed)
{
    char text[200];
    CHECK_STR(uneven(12, 3, 2), "2, 4, 6, 12");
    CHECK_STR(uneven(12, 4, 3), "3, 6, 12");
    CHECK_STR(uneven(8, 4, 3), "none with batch=8; change that to a multiple of 3");
    CHECK_STR(uneven(7, 1, 7), "7");
    CHECK_INT(amp_share_check_even(12, 6, 3, text, sizeof text), 0);
    CHECK_INT(amp_share_check_even(7, 7, 7, text, sizeof text), 0);
}

AMP_TEST(what_is_possible_is_listed)
{
    char text[200], *next = text;
    amp_share_possible(12, 2, text, sizeof text);
    CHECK(!strcmp(text, "1, 2, 3, 4, 6, 12"));
    amp_share_possible(8, 1, text, sizeof text);
    CHECK(!strcmp(text, "1, 2, 4, 8"));
    for (int size = 1; size <= 8; size++) {
        bool listed = strtol(next, NULL, 10) == size;
        CHECK_INT(listed, amp_share_subdivisions(8, 1, size) > 0);
        if (listed && strchr(next, ',')) next = strchr(next, ',') + 1;
    }
}

AMP_TEST_MAIN
