/* Sums of several processes that travel in BF16 (amp_wire=bf16): mpirun starts this program as
 * often as it likes, with the module of MPI where the linker looks. Every process knows the parts
 * of all, as they are drawn by AMP_TEST_SEED. */
#include "plugin/spread/devices.h"
#include "plugin/spread/group.h"

#include "tests/rig/harness.h"

static struct ampk_context *context;

static void tell(const char *message)
{
    fprintf(stderr, "%s\n", message);
}

static void fail(const char *why)
{
    tell(why);
    exit(1);
}

static void join(void)
{
    static const struct amp_group_calls calls = {tell, fail, fail};
    struct amp_launch launch = amp_launch_read(getenv);
    char err[700] = "";
    if (context) return;
    REQUIRE(launch.size > 1);
    if (amp_group_start(&launch, 1, 30, &calls, err, sizeof err)) TEST_FAIL("%s", err);
    REQUIRE(amp_group_is_on());
    context = ampk_cpu.context_create(1, err, sizeof err);
    REQUIRE(context != NULL);
}

/* Of many magnitudes and both signs, so that some sums are far smaller than their parts. */
static float draw(void)
{
    double magnitude = ldexp(1, (int)(test_random() % 40) - 30);
    return (float)(test_uniform(-1, 1) * magnitude);
}

/* Both the parts and their sum are rounded, by 2^-8 of their magnitude at most; the sum before that
 * is FP32, whose additions round by 2^-24. */
static void check_sums(size_t n)
{
    int size = amp_group_size(), rank = amp_group_rank();
    const double u = 0x1p-8, most = 2 * u + u * u + size * 0x1p-23;
    float *own = calloc(n, sizeof *own), *all = calloc(n * (size_t)size, sizeof *all);
    double *sum = calloc(n, sizeof *sum), *magnitude = calloc(n, sizeof *magnitude), worst = 0;
    REQUIRE(own && all && sum && magnitude);
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < n; i++) {
            float part = draw();
            if (r == rank) own[i] = part;
            sum[i] += part;
            magnitude[i] += fabs(part);
        }
    uint64_t before = amp_group_exchanged();
    REQUIRE(amp_devices_add_rounded(&ampk_cpu, context, own, n));
    CHECK_INT(amp_group_exchanged() - before, 2 * n);
    for (size_t i = 0; i < n; i++) {
        CHECK_NEAR(own[i], sum[i], most * magnitude[i]);
        worst = fmax(worst, fabs(own[i] - sum[i]) / magnitude[i]);
    }
    if (n > 1000) CHECK(worst > u); /* it has been rounded, and twice */
    amp_group_gather(own, all, n * sizeof *own);
    for (int r = 0; r < size; r++)
        CHECK(!memcmp(all + (size_t)r * n, own, n * sizeof *own));
    free(own);
    free(all);
    free(sum);
    free(magnitude);
}

AMP_TEST(sums_are_within_their_bound_and_the_same_in_all)
{
    join();
    check_sums(100003);
}

/* Fewer elements than processes, and shares that differ. */
AMP_TEST(any_number_of_elements)
{
    join();
    for (size_t n = 1; n < 20; n++)
        check_sums(n);
}

AMP_TEST(halves_go_to_the_even_side)
{
    join();
    int size = amp_group_size(), rank = amp_group_rank();
    /* 256 + 1 lies between two numbers of BF16, as 258 + 1 does; each has 0 in the other ranks. */
    float x[3] = {rank ? 0 : 257, rank == size - 1 ? 259 : 0, rank ? 1 : 256};
    REQUIRE(amp_devices_add_rounded(&ampk_cpu, context, x, 3));
    CHECK_NEAR(x[0], 256, 0);
    CHECK_NEAR(x[1], 260, 0);
    CHECK_NEAR(x[2], size == 2 ? 256 : size == 3 ? 258 : 260, 0);
}

AMP_TEST(all_leave)
{
    join();
    amp_group_leave();
}

AMP_TEST_MAIN
