/* Arrays that wait for their memory: attach/device_memory.h on the host's virtual memory, where
 * touching an address without memory is a fault. */
#include "plugin/attach/device_memory.h"
#include "tests/emulation/emulation.h"
#include "tests/rig/harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGE = 1 << 20, WEIGHTS = LARGE + 8 }; /* floats */

static const size_t sizes[] = {WEIGHTS};

static float *make_for(const void *owner, const float *x, size_t n)
{
    amp_deferred_begin(owner, sizes, 1);
    float *array = amp_deferred_make(x, n);
    amp_deferred_end();
    return array;
}

static float *make(const float *x, size_t n)
{
    return make_for(NULL, x, n);
}

/* How a child ends that reads the array. */
static int signal_of_reading(const volatile float *array)
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(array[0] != 0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static int commit_all_but(void *unused)
{
    size_t short_of;
    return amp_deferred_commit(NULL, &unused, 1, &short_of);
}

AMP_TEST(small_arrays_and_weights_are_not_deferred)
{
    CHECK(make(NULL, 1000) == NULL);
    CHECK(make(NULL, WEIGHTS) == NULL);
    CHECK(amp_deferred_make(NULL, LARGE) == NULL); /* outside begin and end */
    CHECK(emulation_bytes_without_memory() == 0);
}

AMP_TEST(a_network_without_weights_defers_too)
{
    amp_deferred_begin(NULL, NULL, 0);
    float *array = amp_deferred_make(NULL, WEIGHTS);
    amp_deferred_end();
    CHECK(array && emulation_bytes_without_memory() == WEIGHTS * sizeof(float));
    CHECK(amp_deferred_free(array));
}

AMP_TEST(an_unused_array_has_no_memory)
{
    float *used = make(NULL, LARGE), *unused = make(NULL, 2 * LARGE);
    REQUIRE(used && unused && used != unused);
    CHECK(emulation_bytes_without_memory() == 3 * LARGE * sizeof(float));
    CHECK(amp_deferred_bytes() == 3 * LARGE * sizeof(float));
    CHECK(commit_all_but(unused) == 0);
    CHECK(emulation_bytes_without_memory() == 2 * LARGE * sizeof(float));
    CHECK(amp_deferred_bytes() == 2 * LARGE * sizeof(float));
    CHECK(used[0] == 0 && used[LARGE - 1] == 0);
    CHECK(signal_of_reading(used) == 0);
    CHECK(signal_of_reading(unused) == SIGSEGV);
    CHECK(amp_deferred_free(used));
    CHECK(amp_deferred_free(unused));
    CHECK(emulation_bytes_without_memory() == 0);
}

AMP_TEST(contents_arrive_with_the_memory_and_stay)
{
    float *x = calloc(LARGE, sizeof *x);
    REQUIRE(x != NULL);
    x[5] = 7;
    float *array = make(x, LARGE);
    x[LARGE - 1] = 9; /* what the host array holds when the memory comes */
    CHECK(commit_all_but(NULL) == 0);
    CHECK(array[5] == 7 && array[LARGE - 1] == 9);
    array[5] = 8;
    free(x);
    CHECK(commit_all_but(NULL) == 0);
    CHECK(array[5] == 8);
    CHECK(amp_deferred_free(array));
}

AMP_TEST(a_later_plan_commits_more)
{
    float *array = make(NULL, LARGE);
    CHECK(commit_all_but(array) == 0);
    CHECK(emulation_bytes_without_memory() == LARGE * sizeof(float));
    CHECK(commit_all_but(NULL) == 0);
    CHECK(emulation_bytes_without_memory() == 0);
    array[0] = 1;
    CHECK(amp_deferred_free(array));
    CHECK(!amp_deferred_free(array)); /* no longer ours */
}

AMP_TEST(each_network_commits_its_own)
{
    float *array = make(NULL, LARGE), *other = make_for(sizes, NULL, LARGE);
    CHECK(commit_all_but(NULL) == 0);
    CHECK(signal_of_reading(array) == 0);
    CHECK(signal_of_reading(other) == SIGSEGV);
    CHECK(amp_deferred_free(array));
    CHECK(amp_deferred_free(other));
}

AMP_TEST(a_driver_that_cannot_is_said_once)
{
    char said[1000] = "";
    FILE *to = tmpfile();
    REQUIRE(to != NULL);
    int was = dup(2);
    dup2(fileno(to), 2);
    emulation_reserve_nothing(true);
    CHECK(make(NULL, LARGE) == NULL);
    CHECK(make(NULL, LARGE) == NULL);
    emulation_reserve_nothing(false);
    dup2(was, 2);
    close(was);
    rewind(to);
    said[fread(said, 1, sizeof said - 1, to)] = 0;
    fclose(to);
    const char *first = strstr(said, "darknet-amp: this GPU, or its driver, gives no memory");
    CHECK(first && !strstr(first + 1, "darknet-amp"));
    CHECK(amp_deferred_bytes() == 0);
}

AMP_TEST_MAIN
