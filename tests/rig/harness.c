/* The harness itself: that checks fail when they must, whatever NDEBUG says, and that filters and
 * seeds work. A harness that cannot fail would make every other test worthless. */

#define NDEBUG
#include "harness.h"

#include <sys/wait.h>

static int failures_of(void (*run)(void))
{
    int before = test_failures;
    jmp_buf outer;
    memcpy(&outer, &test_end, sizeof(outer));
    if (!setjmp(test_end)) run();
    memcpy(&test_end, &outer, sizeof(outer));
    int found = test_failures - before;
    test_failures = before;
    return found;
}

static void wrong_checks(void)
{
    CHECK(0);
    CHECK_INT(1, 2);
    CHECK_NEAR(1.0, 1.1, 0.05);
    CHECK_NEAR(NAN, 1.0, 1e30);
    CHECK_STR("a", "b");
    CHECK_STR(NULL, "b");
}

static void right_checks(void)
{
    CHECK(1);
    CHECK_INT(-1, -1LL);
    CHECK_NEAR(1.0, 1.1, 0.2);
    CHECK_NEAR(INFINITY, INFINITY, 0);
    CHECK_STR("a", "a");
}

static void required(void)
{
    REQUIRE(0);
    CHECK(0);
}

AMP_TEST(checks_fail_when_wrong)
{
    CHECK_INT(failures_of(wrong_checks), 6);
}

AMP_TEST(checks_pass_when_right)
{
    CHECK_INT(failures_of(right_checks), 0);
}

AMP_TEST(require_ends_the_test)
{
    CHECK_INT(failures_of(required), 1);
}

AMP_TEST(a_test_that_ends_the_program_has_failed)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        test_process = getpid();
        exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 1);
}

AMP_TEST(filter_selects_by_name)
{
    CHECK(strstr(test_first->name, "checks"));
    char *argv[] = {"harness", "no such test", NULL};
    int failures = test_failures;
    CHECK_INT(test_main(2, argv), 1);
    test_failures += failures;
}

AMP_TEST(seed_repeats_the_numbers)
{
    test_random_state = 7;
    uint64_t first = test_random();
    CHECK(test_random() != first);
    test_random_state = 7;
    CHECK(test_random() == first);
    for (int i = 0; i < 1000; i++) {
        double x = test_uniform(-2, 3);
        CHECK(x >= -2 && x < 3);
    }
}

AMP_TEST_MAIN
