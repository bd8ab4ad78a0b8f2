/* The emulation of CUDA itself: it runs what is right, shows what is wrong, and rounds exactly. */
#include "kernels/cuda/runtime/runtime.h"
#include "emulation.h"
#include "kernels.h"
#include "tests/rig/harness.h"

#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 5, SEEDS = 10 };

static int sum_with_seed(bool barriers, int seed)
{
    int x[BLOCKS * 128], sum = 0;
    for (int i = 0; i < BLOCKS * 128; i++)
        x[i] = i;
    emulation_seed(seed);
    kernels_sum(barriers, x, BLOCKS, &sum);
    return sum;
}

AMP_TEST(barriers_order_threads)
{
    for (int seed = 0; seed < SEEDS; seed++)
        CHECK_INT(sum_with_seed(true, seed), BLOCKS * 128 * (BLOCKS * 128 - 1) / 2);
}

AMP_TEST(missing_barrier_shows)
{
    int wrong = 0;
    for (int seed = 0; seed < SEEDS; seed++)
        wrong += sum_with_seed(false, seed) != BLOCKS * 128 * (BLOCKS * 128 - 1) / 2;
    CHECK_INT(wrong, SEEDS);
}

AMP_TEST(seed_fixes_the_order)
{
    CHECK_INT(sum_with_seed(false, 3), sum_with_seed(false, 3));
    CHECK(sum_with_seed(false, 3) != sum_with_seed(false, 4));
}

AMP_TEST(warp_operations)
{
    int x[64], out[64 * 8];
    for (int i = 0; i < 64; i++)
        x[i] = 3 * i % 64;
    for (int seed = 0; seed < SEEDS; seed++) {
        emulation_seed(seed);
        kernels_warp(x, out);
        for (int i = 0; i < 64; i++) {
            const int *warp = x + i / 32 * 32, *got = out + i * 8;
            int lane = i % 32, odd = 0, four = 0;
            for (int l = 0; l < 32; l++)
                odd |= (int)((warp[l] & 1u) << l), four |= warp[l] == 4;
            CHECK_INT(got[0], warp[lane ^ 5]);
            CHECK_INT(got[1], warp[lane + 3 < 32 ? lane + 3 : lane]);
            CHECK_INT(got[2], warp[lane >= 3 ? lane - 3 : lane]);
            CHECK_INT(got[3], warp[7]);
            CHECK_INT(got[4], odd);
            CHECK_INT(got[5], four + 2);
            CHECK_INT(got[6], warp[lane ^ 1]);
            CHECK_INT(got[7], x[63]);
        }
    }
}

/* Small whole numbers: every sum is exact. */
AMP_TEST(matrix_products)
{
    for (int round = 0; round < 2 * SEEDS; round++) {
        bool bf16 = round % 2;
        int a[16][16], b[16][8];
        uint16_t a_bits[16][16], b_bits[16][8];
        float d[16][8];
        emulation_seed(round);
        for (int k = 0; k < 16; k++) {
            for (int i = 0; i < 16; i++) {
                a[i][k] = (int)(test_random() % 17) - 8;
                a_bits[i][k] =
                    bf16 ? kernels_bf16_bits((float)a[i][k]) : kernels_fp16_bits((float)a[i][k]);
            }
            for (int j = 0; j < 8; j++) {
                b[k][j] = (int)(test_random() % 17) - 8;
                b_bits[k][j] =
                    bf16 ? kernels_bf16_bits((float)b[k][j]) : kernels_fp16_bits((float)b[k][j]);
                d[k][j] = (float)(k - j);
            }
        }
        kernels_mma(bf16, a_bits[0], b_bits[0], d[0]);
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                int sum = i - j;
                for (int k = 0; k < 16; k++)
                    sum += a[i][k] * b[k][j];
                CHECK_INT(d[i][j], sum);
            }
    }
}

/* Runs the mistake in a process of its own, which must abort and say `expected`. */
static void check_mistake(enum kernels_mistake mistake, const char *expected)
{
    char said[4096] = "";
    int ends[2], status;
    REQUIRE(pipe(ends) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        setenv("AMPK_EMULATION_GUARD", "1", 1);
        kernels_wrong(mistake);
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; length < sizeof said - 1 &&
                    (n = read(ends[0], said + length, sizeof said - 1 - length)) > 0;)
        length += (size_t)n;
    close(ends[0]);
    waitpid(child, &status, 0);
    bool died = WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0);
    if (!died || !strstr(said, expected))
        TEST_FAIL("mistake %d: status %d, expected \"%s\", said:\n%s", mistake, status, expected,
                  said);
}

AMP_TEST(mistakes_end_the_program)
{
    check_mistake(DIVERGE_AT_BARRIER, "a barrier that not all threads of the block reach");
    check_mistake(MEET_AT_TWO_BARRIERS, "a barrier that not all threads of the block reach");
    check_mistake(MISS_A_LANE, "a warp operation whose mask has lanes that do not come to it");
    check_mistake(MISS_HALF_A_WARP, "lanes that the block does not have");
    check_mistake(TAKE_FROM_OUTSIDE, "lane that is not in its mask");
    check_mistake(MISALIGN, "not a multiple of its size");
#ifdef __SANITIZE_ADDRESS__
    check_mistake(LEAVE_SHARED_MEMORY, "heap-buffer-overflow");
    check_mistake(TOUCH_DEVICE_MEMORY, "SEGV");
#else
    check_mistake(LEAVE_SHARED_MEMORY, "shared memory was written beyond");
    check_mistake(TOUCH_DEVICE_MEMORY, "the host touched the device's memory");
#endif
    check_mistake(TAKE_MEMORY_WHILE_RECORDING, "memory is taken while work is recorded");
    check_mistake(WAIT_WHILE_RECORDING, "the host waits while work is recorded");
    check_mistake(GO_AHEAD_OF_A_STREAM,
                  "the second call on a stream that does not wait for work before it");
}

/* What a device refuses, with the kernel's name. */
AMP_TEST(launches_that_a_device_refuses_end_the_program)
{
    static const char block[] = "at most 64 of them in z\n  kernel do_nothing,";
    static const char grid[] = "1 to 65535 in y and z\n  kernel do_nothing,";
    check_mistake(TOO_MANY_THREADS, block);
    check_mistake(TOO_DEEP_A_BLOCK, block);
    check_mistake(NO_THREADS, block);
    check_mistake(NO_BLOCKS, grid);
    check_mistake(NO_BLOCKS_IN_Y, grid);
    check_mistake(TOO_MANY_BLOCKS, grid);
    check_mistake(TOO_MANY_BLOCKS_IN_Y, grid);
    check_mistake(TOO_MANY_BLOCKS_IN_Z, grid);
    check_mistake(TOO_MUCH_SHARED_MEMORY, "48 KiB of dynamic shared memory\n  kernel do_nothing,");
    check_mistake(TOO_LARGE_ARGUMENTS, "4 KiB of arguments\n  kernel take_argument,");
}

AMP_TEST(padding_of_arguments_is_no_address)
{
    emulation_devices(2);
    emulation_use_device(1);
    char *others = ampk_rt_alloc(256);
    emulation_use_device(0);
    kernels_padded(others);
    emulation_use_device(1);
    ampk_rt_free(others);
    emulation_use_device(0);
    emulation_devices(1);
}

/* ---- fp16 and bf16, from the definition of the formats ---- */

struct format {
    int fraction, inf; /* fraction bits; the bits of inf */
    float (*value)(uint16_t);
    uint16_t (*bits)(float);
};

/* Of a positive pattern; at `inf`, what the next larger finite number would be. */
static double value_of(const struct format *f, int bits)
{
    int exponent = bits >> f->fraction, one = 1 << f->fraction, bias = (f->inf >> f->fraction) / 2;
    if (exponent == 0) return ldexp(bits, 1 - bias - f->fraction);
    return ldexp(one + bits % one, exponent - bias - f->fraction);
}

static void check_patterns(const struct format *f)
{
    for (int i = 0; i < 65536; i++) {
        int size = i & 0x7fff;
        float value = f->value((uint16_t)i);
        if (size > f->inf) {
            CHECK(isnan(value) && (f->bits(value) & 0x7fff) > f->inf);
            continue;
        }
        CHECK(fabs(value) == (size == f->inf ? INFINITY : value_of(f, size)));
        CHECK_INT(signbit(value) != 0, i >> 15);
        CHECK_INT(f->bits(value), i);
    }
}

/* The middle between two neighbours goes to the even one, what is beside it to the nearer one. */
static void check_halfway(const struct format *f, int i, int sign)
{
    float middle = (float)((value_of(f, i) + value_of(f, i + 1)) / 2), s = sign ? -1 : 1;
    int high = sign << 15;
    CHECK_INT(f->bits(s * nextafterf(middle, 0)), high | i);
    CHECK_INT(f->bits(s * middle), high | (i % 2 ? i + 1 : i));
    CHECK_INT(f->bits(s * nextafterf(middle, INFINITY)), high | (i + 1));
}

AMP_TEST(formats_round_to_nearest_even)
{
    static const struct format formats[] = {{10, 0x7c00, kernels_fp16_value, kernels_fp16_bits},
                                            {7, 0x7f80, kernels_bf16_value, kernels_bf16_bits}};
    for (int f = 0; f < 2; f++) {
        check_patterns(&formats[f]);
        for (int i = 0; i < formats[f].inf; i++) {
            check_halfway(&formats[f], i, 0);
            check_halfway(&formats[f], i, 1);
        }
    }
    CHECK_INT(kernels_fp16_bits(3e38f), 0x7c00);
    CHECK_INT(kernels_fp16_bits(-1e-30f), 0x8000);
    CHECK_INT(kernels_bf16_bits(-INFINITY), 0xff80);
}

/* Not the emulation's, but as important for every kernel. */
AMP_TEST(quotients_are_exact)
{
    for (int round = 0; round < 100000; round++) {
        uint32_t by = (uint32_t)(test_random() >> (32 + test_random() % 32)), near;
        if (round < 1000) by = (uint32_t)round + 1;
        if (by == 0) by = UINT32_MAX;
        near = (uint32_t)test_random() / by * by; /* a multiple, and what is beside it */
        CHECK_INT(kernels_quotient(near, by), near / by);
        CHECK_INT(kernels_quotient(near - 1, by), (near - 1) / by);
        CHECK_INT(kernels_quotient(UINT32_MAX, by), UINT32_MAX / by);
    }
}

/* ---- recordings ---- */

AMP_TEST(a_recording_runs_when_it_is_played)
{
    int x[128], sum = 0;
    for (int i = 0; i < 128; i++)
        x[i] = 1;
    CHECK(ampk_rt_record_begin(NULL));
    ampk_rt_zero(&sum, sizeof sum, NULL);
    for (int blocks = 1; blocks > 0; blocks--) /* arguments are those of the launch */
        kernels_sum(true, x, blocks, &sum);
    ampk_rt_recording recording = ampk_rt_record_end(NULL);
    REQUIRE(recording != NULL);
    sum = 7;
    for (int k = 0; k < 2; k++) {
        CHECK(ampk_rt_replay(recording, NULL));
        CHECK_INT(sum, 128);
    }
    ampk_rt_recording_destroy(recording);
    CHECK(!ampk_rt_spoil_recording("nothing is recorded"));
    CHECK(ampk_rt_record_begin(NULL) && ampk_rt_spoil_recording("why"));
    CHECK(ampk_rt_record_end(NULL) == NULL);
    CHECK_STR(ampk_rt_error(), "why");
}

/* ---- memory ---- */

AMP_TEST(memory_is_counted_and_limited)
{
    struct emulation_memory before = emulation_memory();
    unsigned char *a = ampk_rt_alloc(1000);
    REQUIRE(a != NULL);
    CHECK_INT((uintptr_t)a % 256, 0);
    CHECK_INT(a[0] & a[999], 0xff);
    CHECK_INT(emulation_memory().allocations, before.allocations + 1);
    CHECK_INT(emulation_memory().bytes, before.bytes + 1000);
    emulation_memory_limit(before.bytes + 1500);
    CHECK(ampk_rt_alloc(501) == NULL);
    CHECK_STR(ampk_rt_error(), "out of memory");
    emulation_memory_limit(SIZE_MAX);
    ampk_rt_free(a);
    CHECK_INT(emulation_memory().bytes, before.bytes);
    CHECK(emulation_memory().peak_bytes >= before.bytes + 1000);
}

AMP_TEST_MAIN
