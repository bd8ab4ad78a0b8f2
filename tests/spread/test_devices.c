/* Whether processes can use NCCL, by what each tells of its device. */
#include "plugin/spread/devices.h"

#include "tests/rig/harness.h"

#include <string.h>

enum { MOST = 3 };

static const char *hosts; /* a letter for each */

static const char *host_of(int rank)
{
    static char names[MOST][2];
    names[rank][0] = hosts[rank];
    return names[rank];
}

/* cards: a letter for each. */
static void check(const char *on, const char *cards, const int *versions, const char *refused)
{
    char why[400] = "";
    struct amp_device_member m[MOST] = {{0}};
    hosts = on;
    for (int r = 0; r < MOST; r++) {
        m[r].version = versions[r];
        m[r].card[0] = cards[r];
        if (versions[r] < 0) strcpy(m[r].why, "no such file");
    }
    CHECK_INT(amp_devices_decide(m, MOST, host_of, why, sizeof why), refused == NULL);
    if (refused && !strstr(why, refused)) TEST_FAIL("%s", why);
}

AMP_TEST(who_has_the_same_nccl_and_a_gpu_of_its_own_uses_it)
{
    check("aaa", "xyz", (int[]){21800, 21800, 21800}, NULL);
    check("aab", "xyx", (int[]){22803, 22803, 22803}, NULL); /* the same name on another host */
}

AMP_TEST(else_the_reason_is_named)
{
    check("aab", "xyz", (int[]){21800, 21800, -1},
          "rank 2 on b has no NCCL 2.18 or later (no such file)");
    check("abc", "xyz", (int[]){-1, 21800, -1}, "rank 0 on a has no NCCL");
    check("aab", "xyz", (int[]){21800, 22803, 21800},
          "rank 1 on a has NCCL 22803, and rank 0 on a NCCL 21800");
    check("aba", "xyx", (int[]){21800, 21800, 21800}, "ranks 0 and 2 use the same GPU of a");
}

AMP_TEST_MAIN
