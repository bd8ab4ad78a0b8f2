/* Saves that are written from a copy while training goes on, each case in a process of its own:
 * their bytes are those of the moment of the save, the files are replaced in the order of the
 * saves, whatever ends a run waits for them, and a program that is killed in the middle leaves a
 * pair.
 *
 * Linked with --wrap for the calls below. The thread that writes stops at one of its calls until it
 * is let go, so that the other one is certainly further. */

#include "tests/rig/harness.h"
#include "tests/rig/attached.h"
#include "tests/rig/child.h"
#include "tests/rig/small_set.h"

#include "plugin/attach/run/run.h"
#include "plugin/attach/run/save.h"
#include "plugin/core/files/background.h"
#include "plugin/include/amp.h"

#include "list.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define SEEDED "width=4\nheight=4\nloss_scale_window=3\nseed=3\n" MIXED

static const char layers[] =
    CONV(3, NORMALIZED) "[connected]\noutput=4\nactivation=linear\n[cost]\n";

/* ---- the calls of the thread that writes ---- */

static pthread_t trainer;
static int calls, stop_at, fail_at; /* the first is 1; 0: never */
static sem_t halted, let_go;
static atomic_bool wait_lets_go; /* the other thread lets it go by waiting for it */
static bool no_memory, no_file, no_thread;
static int copies, copies_at_wait; /* of weights, so far */

/* Whether the call is to fail. */
static bool in_the_writer(void)
{
    if (pthread_equal(pthread_self(), trainer)) return false;
    calls++;
    if (calls == stop_at) {
        sem_post(&halted);
        while (sem_wait(&let_go))
            ;
    }
    errno = EIO;
    return calls == fail_at;
}

#define WRAPPED(type, name, parameters, arguments, failed)                                         \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        return failed ? (type)-1 : __real_##name arguments;                                        \
    }

WRAPPED(ssize_t, write, (int fd, const void *bytes, size_t n), (fd, bytes, n), in_the_writer())
WRAPPED(int, fsync, (int fd), (fd), in_the_writer())
WRAPPED(int, link, (const char *from, const char *to), (from, to), in_the_writer())
WRAPPED(int, rename, (const char *from, const char *to), (from, to), in_the_writer())
WRAPPED(int, unlink, (const char *path), (path), in_the_writer())
WRAPPED(int, memfd_create, (const char *name, unsigned flags), (name, flags), (copies++, no_file))

size_t __real_amp_free_memory(void);
size_t __wrap_amp_free_memory(void);
size_t __wrap_amp_free_memory(void)
{
    return no_memory ? 1000 : __real_amp_free_memory();
}

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *),
                          void *what)
{
    return no_thread ? EAGAIN : __real_pthread_create(thread, how, run, what);
}

int __real_pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *);
int __wrap_pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    if (atomic_exchange(&wait_lets_go, false)) {
        copies_at_wait = copies;
        sem_post(&let_go);
    }
    return __real_pthread_cond_wait(cond, mutex);
}

/* Before main: children have the thread that forks them, and semaphores of their own. */
__attribute__((constructor)) static void begin(void)
{
    trainer = pthread_self();
    sem_init(&halted, 0, 0);
    sem_init(&let_go, 0, 0);
}

static void complain(const char *why)
{
    fprintf(stderr, "not saved: %s\n", why);
}

static void save_later(network *net, const char *name)
{
    char err[AMP_SAVE_ERR_SIZE];
    struct amp_session *s = amp_session_of(net->layers);
    if (amp_save(s, scratch(name), complain, err, sizeof err) != AMP_SAVED) _exit(97);
}

/* The same; the writer has stopped at its call number `at`. */
static void save_until(network *net, const char *name, int at)
{
    calls = 0;
    stop_at = at;
    save_later(net, name);
    while (sem_wait(&halted))
        ;
    stop_at = 0;
}

static void write_to_the_end(void)
{
    sem_post(&let_go);
    amp_background_wait();
}

/* ---- its bytes ---- */

static const char *keys = SEEDED;
static const char *net_layers = layers;

static void saved_at_once(void)
{
    network *net = parse(keys, net_layers);
    steps(net, 3);
    save(net, "three.backup");
    save(net, "three_3.weights");
    steps(net, 2);
    save(net, "five.backup");
}

static void saved_from_a_copy(void)
{
    network *net = parse(keys, net_layers);
    steps(net, 3);
    amp_session_of(net->layers)->demoted[0] = AMP_FORMATS;
    save_until(net, "copy.backup", 1);
    save_later(net, "copy_3.weights");
    steps(net, 2);
    amp_session_of(net->layers)->demoted[0] = AMP_FORMAT_FP32; /* after the copy */
    if (exists("copy.backup") || exists("copy_3.weights")) _exit(1);
    write_to_the_end();
    amp_session_of(net->layers)->demoted[0] = AMP_FORMATS;
    save(net, "on.backup"); /* training went on as without it */
}

static void check_bytes(int saved)
{
    CHECK_INT(run(saved_at_once), ALIVE);
    CHECK_INT(run(saved_from_a_copy), ALIVE);
    check_same_pair("copy.backup", "three.backup");
    CHECK(same_file("copy_3.weights", "three_3.weights") && !exists("copy_3.weights.amp"));
    check_same_pair("on.backup", "five.backup");
    CHECK(!same_file("copy.backup", "on.backup") && !same_file("copy.backup.amp", "on.backup.amp"));
    CHECK_INT(count(text, "Saved as "), saved);
}

AMP_TEST(bytes_of_the_moment_of_the_save)
{
    static const char *const all[] = {SEEDED, SEEDED "adam=1\n", SEEDED "optimizer=adamw\n",
                                      SEEDED "amp_dtype=bf16\nclip_grad_norm=1\n"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        keys = all[i];
        check_bytes(3);
        scratch_empty();
        if (test_failures) TEST_FAIL("%s", all[i]);
    }
    keys = SEEDED "ema_alpha=0.5\n";
    check_bytes(5); /* two averages */
    CHECK(same_file("copy_ema.weights", "three_ema.weights"));
    CHECK(!same_file("copy_ema.weights", "on_ema.weights"));
    CHECK(!same_file("copy_ema.weights", "copy.backup"));
    scratch_empty();
    keys = SEEDED;
    net_layers = "[rnn]\noutput=3\nhidden=3\nactivation=leaky\n"
                 "[connected]\noutput=4\nactivation=linear\n[cost]\n";
    check_bytes(3);
    net_layers = layers;
    scratch_empty();
}

/* ---- their order ---- */

static void three_saves(void)
{
    network *net = parse(SEEDED, layers);
    steps(net, 1);
    save_until(net, "a.backup", 1);
    steps(net, 1);
    save_later(net, "a_2.weights");
    steps(net, 1);
    wait_lets_go = true; /* two are begun at most */
    save_later(net, "a.backup");
    if (copies_at_wait != 2 || copies != 3) _exit(1);
    steps(net, 1);
    amp_background_wait();
}

AMP_TEST(saves_follow_each_other)
{
    CHECK_INT(run(saved_at_once), ALIVE);
    CHECK_INT(run(three_saves), ALIVE);
    check_same_pair("a.backup", "three.backup");
    const char *first = strstr(text, "/a.backup\n"), *second = strstr(text, "/a_2.weights\n");
    CHECK(first && second && first < second && strstr(second, "/a.backup\n"));
    scratch_empty();
}

static void save_at_once_after_one_from_a_copy(void)
{
    network *net = parse(SEEDED, layers);
    steps(net, 1);
    save_until(net, "a.backup", 1);
    steps(net, 2);
    wait_lets_go = true;
    save(net, "a.backup");
}

AMP_TEST(a_save_at_once_is_the_last_one)
{
    CHECK_INT(run(saved_at_once), ALIVE);
    CHECK_INT(run(save_at_once_after_one_from_a_copy), ALIVE);
    check_same_pair("a.backup", "three.backup");
    CHECK_INT(count(text, "Saved as "), 2);
    scratch_empty();
}

/* ---- which ones ---- */

static data batch;

static void hold_a_batch(void)
{
    static char *names[] = {"boxes", "masks"};
    load_args args = {.type = CLASSIFICATION_DATA,
                      .paths = box_paths,
                      .n = 16,
                      .m = SMALL_SET_IMAGES,
                      .labels = names,
                      .classes = 2,
                      .size = 8,
                      .min = 8,
                      .max = 14,
                      .threads = 1,
                      .d = &batch};
    pthread_join(load_data(args), NULL);
}

static void as_darknets_trainers(void)
{
    network *net = parse(SEEDED, layers);
    steps(net, 3);
    hold_a_batch();
    calls = 0;
    stop_at = 1;
    save(net, "a.backup");
    while (sem_wait(&halted))
        ;
    if (exists("a.backup")) _exit(1);
    steps(net, 2);
    wait_lets_go = true;
    save(net, "a_final.weights"); /* the last file */
    if (!exists("a.backup.amp") || !exists("a_final.weights.amp")) _exit(1);
    free_data(batch);
    save(net, "b.backup");
    if (!exists("b.backup.amp")) _exit(1);
}

AMP_TEST(those_of_a_trainer_with_a_batch_in_hand)
{
    CHECK_INT(run(saved_at_once), ALIVE);
    CHECK_INT(run(as_darknets_trainers), ALIVE);
    check_same_pair("a.backup", "three.backup");
    check_same_pair("a_final.weights", "five.backup");
    scratch_empty();
}

static void without_room(void)
{
    network *net = parse(SEEDED, layers);
    steps(net, 3);
    save_later(net, "a.backup");
    if (!exists("a.backup.amp")) _exit(1);
    save_later(net, "b.backup");
    if (!exists("b.backup.amp") || calls) _exit(1);
}

AMP_TEST(without_memory_or_thread_training_waits)
{
    static const char *const reasons[] = {"MiB, more than half of the 0 MiB that are free",
                                          "no file in memory: ", "no thread"};
    CHECK_INT(run(saved_at_once), ALIVE);
    for (int i = 0; i < 3; i++) {
        no_memory = i == 0;
        no_file = i == 1;
        no_thread = i == 2;
        CHECK_INT(run(without_room), ALIVE);
        CHECK_INT(count(text, "a.backup cannot be saved from a copy ("), 1);
        CHECK_INT(count(text, reasons[i]), 1);
        CHECK_INT(count(text, "Saved as "), 2);
        check_same_pair("a.backup", "three.backup");
        check_same_pair("b.backup", "three.backup");
        CHECK(!unlink(scratch("a.backup")) && !unlink(scratch("b.backup")));
    }
    no_thread = false;
    scratch_empty();
}

/* ---- ends ---- */

static network *net_at_the_end;
static void (*end)(void);

/* The writer is at its first call, and goes on when somebody waits for it. */
static void ends(void)
{
    scratch_write("a.data", "backup=.\n", 9); /* Darknet's trainers read their data file so */
    list *options = read_data_cfg((char *)scratch("a.data"));
    option_find_str(options, "backup", "/backup/");
    free_list_contents(options);
    free_list(options);
    if (chdir(scratch(""))) _exit(98);
    network *net = net_at_the_end = parse(SEEDED, layers);
    steps(net, 3);
    save_until(net, "a_3.weights", 1);
    pass(net);
    wait_lets_go = true;
    end();
}

static void by_exit(void)
{
    exit(5);
}
static void by_quick_exit(void)
{
    quick_exit(5);
}
static void by_an_error(void)
{
    amp_fail("an error");
}
static void by_a_signal(void)
{
    raise(SIGTERM);
    pass(net_at_the_end);
}
static void by_a_signal_that_nobody_obeyed(void)
{
    raise(SIGTERM);
    free_network(net_at_the_end);
}
static void by_detaching(void)
{
    amp_detach(net_at_the_end);
    _exit(5);
}
static void by_divergence(void)
{
    amp_run_stop(amp_session_of(net_at_the_end->layers), "diverged.");
}
static void by_memory(void)
{
    amp_give_up(amp_session_of(net_at_the_end->layers), "no memory");
}
static void by_loading(void)
{
    load(net_at_the_end, "a_3.weights");
    _exit(5);
}
static void by_a_command(void)
{
    char command[700];
    snprintf(command, sizeof command, "cp %s %s", scratch("a_3.weights"), scratch("copied"));
    _exit(system(command) ? 1 : 5);
}

AMP_TEST(every_end_waits)
{
    static const struct {
        void (*end)(void);
        int status;
    } all[] = {{by_exit, 5},
               {by_quick_exit, 5},
               {by_an_error, 1},
               {by_a_signal, 128 + SIGTERM},
               {by_a_signal_that_nobody_obeyed, -SIGTERM},
               {by_detaching, 5},
               {by_divergence, 1},
               {by_memory, 1},
               {by_loading, 5},
               {by_a_command, 5}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK_INT(run(saved_at_once), ALIVE);
        end = all[i].end;
        CHECK_INT(run(ends), all[i].status);
        CHECK(same_file("a_3.weights", "three_3.weights"));
        CHECK_INT(count(text, "Saved as "),
                  all[i].end == by_a_signal || all[i].end == by_memory ? 2 : 1);
        if (all[i].end == by_divergence) CHECK_SAYS(text, "The last good weights are ");
        if (all[i].end == by_a_signal) CHECK(exists("a.backup.amp"));
        scratch_empty();
        if (test_failures) TEST_FAIL("end %zu\n%s", i, text);
    }
}

#ifndef AMP_ARCHER /* clang 14's archer crashes at the end of a forked child */
/* The child has no such thread; its parent's save is not its own. */
static void child_ends(void)
{
    network *net = parse(SEEDED, layers);
    steps(net, 3);
    save_until(net, "a.backup", 1);
    pid_t child = fork();
    if (!child) exit(6);
    int status;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 6) _exit(1);
    write_to_the_end();
}

AMP_TEST(a_forked_child_waits_for_nothing)
{
    CHECK_INT(run(saved_at_once), ALIVE);
    CHECK_INT(run(child_ends), ALIVE);
    check_same_pair("a.backup", "three.backup");
    scratch_empty();
}
#endif

/* ---- killed, and calls that fail ---- */

static int at; /* the call */

static void one_and_two(void)
{
    network *net = parse(SEEDED, layers);
    steps(net, 1);
    save(net, "one.backup");
    steps(net, 1);
    save(net, "two.backup");
}

static void second_save(void)
{
    network *net = parse(SEEDED, layers);
    steps(net, 1);
    save(net, "a.backup");
    steps(net, 1);
    if (at) {
        save_until(net, "a.backup", at);
        steps(net, 2);
        kill(getpid(), SIGKILL);
    }
    save_later(net, "a.backup");
    amp_background_wait();
    char number[16];
    int n = snprintf(number, sizeof number, "%d", calls);
    scratch_write("calls", number, (size_t)n);
}

static void second_save_that_fails(void)
{
    fail_at = at;
    network *net = parse(SEEDED, layers);
    steps(net, 1);
    save(net, "a.backup");
    steps(net, 1);
    calls = 0;
    save_later(net, "a.backup");
    steps(net, 2);
    amp_background_wait();
}

/* What training would go on from. */
static void found(void)
{
    network *net = parse(SEEDED, layers);
    load(net, "a.backup");
    save(net, "found.backup");
}

static bool finds(const char *name)
{
    char sidecar[60];
    snprintf(sidecar, sizeof sidecar, "%s.amp", name);
    return same_file("found.backup", name) && same_file("found.backup.amp", sidecar);
}

static void next_save(void)
{
    network *net = parse(SEEDED, layers);
    load(net, "a.backup");
    steps(net, 1);
    save(net, "a.backup");
}

static int count_calls(void)
{
    char number[16] = "";
    at = 0;
    CHECK_INT(run(second_save), ALIVE);
    scratch_read("calls", number, sizeof number);
    return atoi(number);
}

AMP_TEST(killed_at_every_call_while_training_is_further)
{
    int all = count_calls(), older = 0;
    CHECK(all > 8);
    for (at = 1; at <= all; at++) {
        scratch_empty();
        CHECK_INT(run(one_and_two), ALIVE);
        CHECK_INT(run(second_save), -SIGKILL);
        CHECK_INT(run(found), ALIVE);
        CHECK(finds("one.backup") || finds("two.backup"));
        older += finds("one.backup");
        CHECK_INT(run(next_save), ALIVE);
        CHECK(!exists("a.backup.prev") && !exists("a.backup.prev.amp"));
        CHECK_INT(scratch_count(), 10); /* three pairs and the next one, the cfg, what was said */
        if (test_failures) TEST_FAIL("killed at call %d of %d", at, all);
    }
    CHECK(older > 4 && older < all);
    scratch_empty();
}

AMP_TEST(failing_at_every_call)
{
    int all = count_calls(), told = 0;
    for (at = 1; at <= all; at++) {
        scratch_empty();
        CHECK_INT(run(one_and_two), ALIVE);
        CHECK_INT(run(second_save_that_fails), ALIVE);
        bool failed = strstr(text, "not saved: ") != NULL;
        CHECK(!failed || (strstr(text, "a.backup") && strstr(text, strerror(EIO))));
        CHECK_INT(count(text, "Saved as "), 1 + !failed);
        CHECK_INT(run(found), ALIVE);
        CHECK(finds("two.backup") || (failed && finds("one.backup")));
        told += failed;
        CHECK_INT(run(next_save), ALIVE);
        CHECK(!exists("a.backup.prev") && !exists("a.backup.prev.amp"));
        CHECK_INT(scratch_count(), 10);
        if (test_failures) TEST_FAIL("call %d of %d fails", at, all);
    }
    fail_at = 0;
    CHECK(told > 5);
    scratch_empty();
}

static void failing_backup(void)
{
    network *net = parse(SEEDED "amp_backup_every=100\n", layers);
    struct amp_session *s = amp_session_of(net->layers);
    steps(net, 1);
    save_later(net, "a.backup");
    amp_background_wait();
    steps(net, 1);
    if (amp_save_is_due(s, scratch("a.backup"))) _exit(1);
    calls = 0;
    fail_at = 1;
    save_later(net, "a.backup");
    amp_background_wait();
    if (!amp_save_is_due(s, scratch("a.backup"))) _exit(2);
}

AMP_TEST(a_backup_that_failed_is_due_again)
{
    CHECK_INT(run(failing_backup), ALIVE);
    CHECK_INT(count(text, "not saved: "), 1);
    scratch_empty();
}

AMP_TEST_MAIN
