/* How the processes of a host share its cores. The group's own file is part of this one, so that a
 * group can be made up without MPI. */
#include "plugin/spread/group.c"

#include "tests/rig/harness.h"

enum { MOST = 4 };

static struct member members[MOST];

/* Process r is on host `hosts[r]` and may use cores [first[r], end[r]). */
static void make_group(int size, const char *hosts, const int *first, const int *end)
{
    memset(members, 0, sizeof members);
    group.size = size;
    group.members = members;
    for (int r = 0; r < size; r++) {
        members[r].host[0] = hosts[r];
        for (int core = first[r]; core < end[r]; core++)
            CPU_SET(core, &members[r].cores);
    }
}

static void check_cores(int rank, int cores)
{
    group.rank = rank;
    CHECK_INT(amp_group_cores(), cores);
}

AMP_TEST(who_may_use_the_same_cores_shares_them)
{
    make_group(4, "aaaa", (int[]){0, 0, 0, 0}, (int[]){8, 8, 8, 8});
    check_cores(0, 2);
    check_cores(3, 2);
    make_group(3, "aab", (int[]){0, 0, 0}, (int[]){8, 8, 8});
    check_cores(0, 4);
    check_cores(1, 4);
    check_cores(2, 8); /* alone on its host */
}

AMP_TEST(who_is_bound_has_its_cores_alone)
{
    make_group(2, "aa", (int[]){0, 4}, (int[]){4, 8});
    check_cores(0, 4);
    check_cores(1, 4);
    make_group(3, "aaa", (int[]){0, 0, 6}, (int[]){6, 6, 8});
    check_cores(0, 3);
    check_cores(2, 2);
}

AMP_TEST(everybody_has_a_core)
{
    make_group(4, "aaaa", (int[]){0, 0, 0, 0}, (int[]){2, 2, 2, 2});
    check_cores(0, 1);
}

AMP_TEST_MAIN
