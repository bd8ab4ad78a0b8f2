/* The hash by which processes compare what they train: every number counts. */
#include "plugin/spread/spread.h"

#include "tests/rig/harness.h"

enum { FLOATS = 10000 }; /* more than are read at once */

static float arrays[5][FLOATS];

static void read_host(struct ampk_context *context, void *to, const void *from, size_t bytes)
{
    (void)context;
    memcpy(to, from, bytes);
}

static uint64_t hash(bool moments)
{
    const struct ampk_backend host = {.read = read_host};
    const struct amp_param p = {.value = arrays[0],
                                .update = arrays[1],
                                .m = moments ? arrays[2] : NULL,
                                .v = moments ? arrays[3] : NULL,
                                .n = FLOATS};
    const struct amp_rolling r = {.value = arrays[4], .n = FLOATS};
    return amp_spread_hash(&host, NULL, &p, 1, &r, 1);
}

AMP_TEST(every_number_counts)
{
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < FLOATS; i++)
            arrays[k][i] = (float)test_uniform(-1, 1);
    uint64_t before = hash(true), without = hash(false);
    for (int n = 0; n < 200; n++) {
        int k = n % 5, ends[] = {0, FLOATS - 1};
        float *x = &arrays[k][n < 10 ? ends[n / 5] : (int)(test_random() % FLOATS)], was = *x;
        *x += 1;
        CHECK(hash(true) != before);
        CHECK((hash(false) == without) == (k == 2 || k == 3));
        *x = was;
    }
    CHECK(hash(true) == before);
}

AMP_TEST_MAIN
