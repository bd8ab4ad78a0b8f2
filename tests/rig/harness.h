/* Small test harness in one header. A test program:
 *
 *   #include "tests/rig/harness.h"
 *   AMP_TEST(adds) { CHECK_INT(1 + 1, 2); }
 *   AMP_TEST_MAIN
 *
 * Arguments of the program: --list prints the tests, a word runs those whose name contains it.
 * A failed CHECK is reported with file and line and the test goes on; REQUIRE ends the test. The
 * exit status is 1 when anything failed, when no test ran, or when a test ended the program itself
 * (Darknet's exit(0)). Checks do not depend on NDEBUG.
 * Random data comes from test_random(), seeded per test from AMP_TEST_SEED (default 1); a failing
 * test prints its seed. */
#ifndef AMP_TEST_HARNESS_H
#define AMP_TEST_HARNESS_H

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct test_case {
    const char *name;
    void (*run)(void);
    struct test_case *next;
};

static struct test_case *test_first, **test_last = &test_first;
static int test_failures; /* of the running test */
static jmp_buf test_end;
static uint64_t test_random_state;
static const char *test_running; /* NULL: none */
static pid_t test_process;       /* its children may end as they like */

#define AMP_TEST(id)                                                                               \
    static void test_run_##id(void);                                                               \
    __attribute__((constructor)) static void test_register_##id(void)                              \
    {                                                                                              \
        static struct test_case test = {#id, test_run_##id, NULL};                                 \
        *test_last = &test;                                                                        \
        test_last = &test.next;                                                                    \
    }                                                                                              \
    static void test_run_##id(void)

#define TEST_FAIL(...)                                                                             \
    do {                                                                                           \
        if (++test_failures <= 20) {                                                               \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) TEST_FAIL("%s is false", #condition);                                    \
    } while (0)

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            TEST_FAIL("%s is false", #condition);                                                  \
            longjmp(test_end, 1);                                                                  \
        }                                                                                          \
    } while (0)

#define CHECK_INT(actual, expected)                                                                \
    do {                                                                                           \
        long long test_a = (actual), test_e = (expected);                                          \
        if (test_a != test_e) TEST_FAIL("%s is %lld, expected %lld", #actual, test_a, test_e);     \
    } while (0)

/* True difference at most tol; NaN is never near anything. */
#define CHECK_NEAR(actual, expected, tol)                                                          \
    do {                                                                                           \
        double test_a = (actual), test_e = (expected), test_t = (tol);                             \
        if (!(fabs(test_a - test_e) <= test_t) && test_a != test_e)                                \
            TEST_FAIL("%s is %.9g, expected %.9g within %.3g", #actual, test_a, test_e, test_t);   \
    } while (0)

#define CHECK_STR(actual, expected)                                                                \
    do {                                                                                           \
        const char *test_a = (actual), *test_e = (expected);                                       \
        if (!test_a || strcmp(test_a, test_e))                                                     \
            TEST_FAIL("%s is \"%s\", expected \"%s\"", #actual, test_a ? test_a : "(null)",        \
                      test_e);                                                                     \
    } while (0)

/* words: what must stand somewhere in the text. */
#define CHECK_SAYS(text, words)                                                                    \
    do {                                                                                           \
        const char *test_a = (text), *test_w = (words);                                            \
        if (!strstr(test_a, test_w)) TEST_FAIL("\"%s\" does not say \"%s\"", test_a, test_w);      \
    } while (0)

/* The next 64 random bits (splitmix64). */
__attribute__((unused)) static uint64_t test_random(void)
{
    uint64_t z = (test_random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [low, high). */
__attribute__((unused)) static double test_uniform(double low, double high)
{
    return low + (high - low) * (double)(test_random() >> 11) * 0x1p-53;
}

static void test_left(void)
{
    if (!test_running || getpid() != test_process) return;
    fprintf(stderr, "FAILED %s: it ended the program\n", test_running);
    _exit(1);
}

static int test_run_one(const struct test_case *test, uint64_t seed)
{
    test_failures = 0;
    test_random_state = seed;
    test_running = test->name;
    if (!setjmp(test_end)) test->run();
    test_running = NULL;
    if (!test_failures) return 0;
    fprintf(stderr, "FAILED %s: %d checks, AMP_TEST_SEED=%llu\n", test->name, test_failures,
            (unsigned long long)seed);
    return 1;
}

static int test_main(int argc, char **argv)
{
    const char *filter = argc > 1 ? argv[1] : "";
    int list = strcmp(filter, "--list") == 0, ran = 0, failed = 0;
    const char *seed_text = getenv("AMP_TEST_SEED");
    uint64_t seed = seed_text ? strtoull(seed_text, NULL, 10) : 1;
    test_process = getpid();
    atexit(test_left);
    for (const struct test_case *test = test_first; test; test = test->next) {
        if (list) {
            puts(test->name);
        } else if (strstr(test->name, filter)) {
            ran++;
            failed += test_run_one(test, seed);
        }
    }
    if (list) return 0;
    printf("%d tests, %d failed\n", ran, failed);
    return failed || !ran;
}

#define AMP_TEST_MAIN                                                                              \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return test_main(argc, argv);                                                              \
    }

#endif
