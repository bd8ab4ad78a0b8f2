/* Replacing a pair, with the program killed or an error in every system call that it makes: there
 * is always a matching pair to resume from, and the next save cleans up.
 *
 * Linked with --wrap for the calls below. */
#include "tests/rig/harness.h"

#include <errno.h>
#include <sys/wait.h>

#include "plugin/core/checkpoint.h"
#include "tests/rig/files.h"

/* ---- system calls ---- */

static int calls, die_at, fail_at; /* 0: never */

/* Whether the call is to fail. */
static bool counted(void)
{
    ++calls;
    if (calls == die_at) _exit(77);
    errno = EIO;
    return calls == fail_at;
}

int __real_link(const char *, const char *);
int __real_rename(const char *, const char *);
int __real_unlink(const char *);
int __wrap_fsync(int);
int __wrap_link(const char *, const char *);
int __wrap_rename(const char *, const char *);
int __wrap_unlink(const char *);
static bool without_links;

int __wrap_fsync(int fd)
{
    (void)fd;
    return counted() ? -1 : 0;
}
int __wrap_link(const char *from, const char *to)
{
    if (without_links) errno = EPERM;
    return without_links || counted() ? -1 : __real_link(from, to);
}
int __wrap_rename(const char *from, const char *to)
{
    return counted() ? -1 : __real_rename(from, to);
}
int __wrap_unlink(const char *path)
{
    return counted() ? -1 : __real_unlink(path);
}

/* ---- pairs: the sidecar's t is the number in the weights ---- */

static char err[3 * PATH_MAX], warning[3 * PATH_MAX];
static float momentum[3];
static struct amp_param param = {.kind = AMP_PARAM_WEIGHTS, .layer = 0, .n = 3, .update = momentum};
static enum amp_format demoted[1];

static struct amp_run run_at(int t)
{
    return (struct amp_run){.seen = (uint64_t)t,
                            .t = t,
                            .scaler = {.dynamic = true, .scale = 8, .min = 1, .max = 1024},
                            .n_layers = 1,
                            .demoted = demoted,
                            .n_params = 1,
                            .params = &param};
}

static void begin(struct amp_whole_file *f, const char *name)
{
    if (amp_whole_begin(f, scratch(name), err, sizeof err)) TEST_FAIL("%s", err);
    REQUIRE(f->fd >= 0);
}

/* What an attached network's save_weights does. */
static int save(int t, bool pair)
{
    struct amp_whole_file weights = {.fd = -1}, sidecar = {.fd = -1};
    struct amp_file_id id;
    begin(&weights, "w");
    dprintf(weights.fd, "weights %d", t);
    REQUIRE(!amp_file_identify(weights.temp, &id, err, sizeof err));
    if (pair) {
        struct amp_run r = run_at(t);
        begin(&sidecar, "w.amp");
        REQUIRE(!amp_sidecar_write(sidecar.fd, &r, &id, err, sizeof err));
    }
    int failed = amp_checkpoint_place(&weights, pair ? &sidecar : NULL, err, sizeof err);
    amp_whole_drop(&weights);
    amp_whole_drop(&sidecar);
    return failed;
}

/* The t that training resumes from; -1: weights without a sidecar. *previous: of the older pair. */
static int resume(bool *previous)
{
    struct amp_checkpoint found;
    struct amp_run r = run_at(0);
    char text[100];
    amp_checkpoint_find(scratch("w"), &r, &found, warning, sizeof warning);
    *previous = strcmp(found.weights, scratch("w")) != 0;
    CHECK((*previous || !found.sidecar) == (*warning != 0) || !found.sidecar);
    if (!found.sidecar) return -1;
    REQUIRE(!amp_sidecar_restore(found.sidecar, &r, err, sizeof err));
    amp_sidecar_close(found.sidecar);
    scratch_read(*previous ? "w.prev" : "w", text, sizeof text);
    CHECK_INT(atoi(text + strlen("weights ")), r.t);
    return (int)r.t;
}

static void start_with_a_pair(void)
{
    if (scratch_path[0]) scratch_empty();
    die_at = fail_at = calls = 0;
    CHECK_INT(save(1, true), 0);
}

/* Saves in a process that dies at its call number `at`; false where it does not get so far. */
static bool save_and_die(int t, int at)
{
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        calls = 0;
        die_at = at;
        save(t, true);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
    return WEXITSTATUS(status) == 77;
}

static void check_next_save(int t)
{
    bool previous;
    CHECK_INT(save(t, true), 0);
    CHECK_INT(resume(&previous), t);
    CHECK(!previous && !*warning);
    CHECK_INT(scratch_count(), 2);
}

/* ---- tests ---- */

AMP_TEST(pairs_replace_pairs)
{
    bool previous;
    start_with_a_pair();
    for (int t = 1; t < 4; ++t) {
        CHECK_INT(resume(&previous), t);
        CHECK(!previous && !*warning);
        CHECK_INT(scratch_count(), 2);
        CHECK_INT(save(t + 1, true), 0);
    }
    scratch_empty();
}

AMP_TEST(killed_at_every_call)
{
    int at = 1, resumed, newest = 0, older = 0;
    bool previous;
    for (bool killed = true; killed; ++at) {
        start_with_a_pair();
        killed = save_and_die(2, at);
        resumed = resume(&previous);
        CHECK(resumed == 1 || resumed == 2);
        CHECK(killed || resumed == 2);
        newest += resumed == 2;
        older += previous;
        check_next_save(3);
        if (test_failures) TEST_FAIL("killed at call %d", at);
    }
    CHECK(at > 10 && newest > 1);
    CHECK_INT(older, 1);
    scratch_empty();
}

AMP_TEST(killed_twice)
{
    bool previous, killed = true, again;
    for (int first = 1; killed; ++first) {
        again = true;
        for (int second = 1; again; ++second) {
            start_with_a_pair();
            killed = save_and_die(2, first);
            again = save_and_die(3, second);
            int resumed = resume(&previous);
            CHECK(resumed >= 1 && resumed <= 3);
            check_next_save(4);
            if (test_failures) TEST_FAIL("killed at calls %d, %d", first, second);
        }
    }
    scratch_empty();
}

AMP_TEST(killed_where_links_are_not_possible)
{
    bool previous, killed = true;
    without_links = true;
    for (int at = 1; killed; ++at) {
        start_with_a_pair();
        killed = save_and_die(2, at);
        int resumed = resume(&previous);
        CHECK(resumed == 1 || resumed == 2);
        check_next_save(3);
        if (test_failures) TEST_FAIL("killed at call %d", at);
    }
    without_links = false;
    scratch_empty();
}

AMP_TEST(error_at_every_call)
{
    bool previous;
    int made = 1000, failures = 0;
    for (int at = 1; at <= made; ++at) {
        start_with_a_pair();
        calls = 0;
        fail_at = at;
        *err = 0;
        int failed = save(2, true), resumed;
        fail_at = 0;
        if (calls < at) break;
        resumed = resume(&previous);
        CHECK(resumed == 2 || (failed && resumed == 1));
        CHECK(!failed || strstr(err, "Input/output error"));
        failures += failed != 0;
        check_next_save(3);
        if (test_failures) TEST_FAIL("error at call %d", at);
    }
    CHECK(failures >= 6);
    scratch_empty();
}

AMP_TEST(first_save_of_all)
{
    bool previous, killed = true;
    for (int at = 1; killed; ++at) {
        scratch("");
        scratch_empty();
        killed = save_and_die(1, at);
        int resumed = resume(&previous);
        CHECK(!previous && (resumed == 1 || (killed && access(scratch("w"), F_OK))));
        check_next_save(2);
    }
    scratch_empty();
}

AMP_TEST(weights_alone_take_the_sidecar_away)
{
    bool previous;
    start_with_a_pair();
    CHECK_INT(save(2, false), 0);
    CHECK_INT(scratch_count(), 1);
    CHECK_INT(resume(&previous), -1);
    CHECK_STR(warning, "");
    scratch_empty();
}

AMP_TEST(weights_that_another_program_wrote)
{
    bool previous;
    start_with_a_pair();
    scratch_write("w", "weights 9", 9);
    CHECK_INT(resume(&previous), -1);
    CHECK(!previous && strstr(warning, "w.amp: belongs to other weights than those in"));
    CHECK(strstr(warning, "momentum and loss scale start anew") != NULL);
    check_next_save(2);
    scratch_empty();
}

AMP_TEST(damaged_sidecar)
{
    bool previous;
    start_with_a_pair();
    scratch_write("w.amp", "damaged", 7);
    CHECK_INT(resume(&previous), -1);
    CHECK(!previous && strstr(warning, "w.amp: is cut off; momentum"));
    check_next_save(2);
    scratch_empty();
}

/* A previous pair is no reason to leave weights that match their sidecar. */
AMP_TEST(pair_of_another_network)
{
    struct amp_checkpoint found;
    bool previous;
    start_with_a_pair();
    amp_whole_keep(scratch("w"), scratch("w.prev"), err, sizeof err);
    amp_whole_keep(scratch("w.amp"), scratch("w.prev.amp"), err, sizeof err);
    CHECK_INT(save(2, true), 0);
    amp_whole_keep(scratch("w"), scratch("w.prev"), err, sizeof err);
    amp_whole_keep(scratch("w.amp"), scratch("w.prev.amp"), err, sizeof err);
    struct amp_run r = run_at(0);
    r.n_layers = 2;
    amp_checkpoint_find(scratch("w"), &r, &found, warning, sizeof warning);
    CHECK(!found.sidecar && !strcmp(found.weights, scratch("w")));
    CHECK(strstr(warning, "belongs to another network") != NULL);
    CHECK_INT(resume(&previous), 2);
    CHECK(!previous);
    scratch_empty();
}

AMP_TEST_MAIN
