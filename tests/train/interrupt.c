/* Signals while training, each case in a process of its own: what is saved, how it ends, and when a
 * signal does what it does without the plugin. */

#include "tests/rig/harness.h"
#include "tests/rig/attached.h"
#include "tests/rig/child.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#define SMALL  "width=4\nheight=4\nloss_scale_init=2\nloss_scale_window=3\n"
#define SEEDED SMALL MIXED "seed=3\n"

static const char layers[] =
    CONV(3, NORMALIZED) "[connected]\noutput=4\nactivation=linear\n[cost]\n";

static void check_ends_as_without_plugin(void (*program)(void))
{
    CHECK_INT(run(program), -SIGTERM);
    CHECK(!strstr(text, "told to stop") && !exists("a.backup"));
    scratch_empty();
}

/* Darknet's trainers read their data file so. */
static void read_backup_folder(void)
{
    scratch_write("a.data", "backup=.\n", 9);
    list *options = read_data_cfg((char *)scratch("a.data"));
    if (strcmp(option_find_str(options, "backup", "/backup/"), ".")) _exit(98);
    if (chdir(scratch(""))) _exit(98);
}

static network *begin(const char *keys)
{
    read_backup_folder();
    return parse(keys, layers);
}

/* ---- the first signal ---- */

static int signal_number = SIGTERM;

static void in_the_middle_of_a_step(void)
{
    network *net = begin(SEEDED);
    steps(net, 2);
    pass(net);
    raise(signal_number);
    save(net, "a_2.weights"); /* stops nothing: the step is half done */
    pass(net);
}

static void unbroken(void)
{
    network *net = begin(SEEDED);
    steps(net, 3);
    save(net, "three.backup");
    steps(net, 4);
    save(net, "seven.backup");
}

static void resumed(void)
{
    network *net = begin(SEEDED);
    load(net, "a.backup");
    steps(net, 4);
    save(net, "resumed.backup");
}

AMP_TEST(the_step_is_finished_and_saved)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXCPU};
    static const char *const names[] = {"SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE", "SIGXCPU"};
    char expected[60];
    CHECK_INT(run(unbroken), ALIVE);
    for (int i = 0; i < 5; i++) {
        signal_number = numbers[i];
        CHECK_INT(run(in_the_middle_of_a_step), 128 + numbers[i]);
        snprintf(expected, sizeof expected, "stopped by %s after iteration 3. ", names[i]);
        CHECK_SAYS(text, expected);
        CHECK_SAYS(text, "a.cfg ./a.backup\n");
        CHECK_SAYS(text, "told to stop: this iteration is finished first, then saved; ");
        CHECK_SAYS(text, "mixed precision: 3 iterations");
        check_same_pair("a.backup", "three.backup");
        CHECK_INT(run(resumed), ALIVE);
        check_same_pair("resumed.backup", "seven.backup");
        CHECK(!unlink(scratch("a.backup")) && !unlink(scratch("a.backup.amp")));
    }
    signal_number = SIGTERM;
    scratch_empty();
}

AMP_TEST(another_runs_backup_stays)
{
    char bytes[10];
    scratch_write("a.backup", "older", 5);
    CHECK_INT(run(in_the_middle_of_a_step), 128 + SIGTERM);
    CHECK_SAYS(text, "a.cfg ./a_stopped.backup\n");
    CHECK(exists("a_stopped.backup") && exists("a_stopped.backup.amp"));
    CHECK(scratch_read("a.backup", bytes, sizeof bytes) == 5 && !memcmp(bytes, "older", 5));
    scratch_empty();
}

/* Loaded from a backup, it is this run's to replace. */
static void goes_on_and_stops(void)
{
    network *net = begin(SEEDED);
    load(net, "a.backup");
    steps(net, 1);
    pass(net);
    raise(SIGTERM);
    pass(net);
}

AMP_TEST(the_backup_it_went_on_from_is_replaced)
{
    CHECK_INT(run(in_the_middle_of_a_step), 128 + SIGTERM);
    CHECK_INT(run(goes_on_and_stops), 128 + SIGTERM);
    CHECK_SAYS(text, "stopped by SIGTERM after iteration 5. ");
    CHECK_SAYS(text, "a.cfg ./a.backup\n");
    CHECK(!exists("a_stopped.backup"));
    scratch_empty();
}

/* A run with a backup of its own, under another name in the same folder. */
static void goes_on_from_another_name(void)
{
    network *net = begin(SEEDED);
    load(net, "mine.backup");
    pass(net);
    raise(SIGTERM);
    pass(net);
}

AMP_TEST(a_backup_of_another_name_does_not_make_it_this_runs)
{
    char bytes[10];
    CHECK_INT(run(in_the_middle_of_a_step), 128 + SIGTERM);
    CHECK(!rename(scratch("a.backup"), scratch("mine.backup")));
    CHECK(!rename(scratch("a.backup.amp"), scratch("mine.backup.amp")));
    scratch_write("a.backup", "older", 5);
    CHECK_INT(run(goes_on_from_another_name), 128 + SIGTERM);
    CHECK_SAYS(text, "stopped by SIGTERM after iteration 4. ");
    CHECK_SAYS(text, "a.cfg ./a_stopped.backup\n");
    CHECK(scratch_read("a.backup", bytes, sizeof bytes) == 5 && !memcmp(bytes, "older", 5));
    scratch_empty();
}

static void in_the_last_iteration(void)
{
    network *net = begin(SEEDED);
    net->max_batches = 2;
    steps(net, 1);
    pass(net);
    raise(SIGTERM);
    pass(net);
    save(net, "a_final.weights");
}

AMP_TEST(after_the_last_iteration_the_program_ends_by_itself)
{
    CHECK_INT(run(in_the_last_iteration), ALIVE);
    CHECK(!strstr(text, "stopped by") && exists("a_final.weights") && !exists("a.backup"));
    scratch_empty();
}

static void in_the_first_pass(void)
{
    network *net = begin(SEEDED);
    pass(net);
    raise(SIGTERM);
    pass(net);
}

AMP_TEST(before_the_first_iteration_ends)
{
    CHECK_INT(run(in_the_first_pass), 128 + SIGTERM);
    CHECK_SAYS(text, "stopped by SIGTERM after iteration 1. ");
    CHECK(exists("a.backup") && exists("a.backup.amp"));
    scratch_empty();
}

static void while_a_batch_is_loaded(void)
{
    network *net = begin(SEEDED);
    load_args none = {.type = STUDY_DATA};
    steps(net, 3);
    raise(SIGTERM);
    load_data(none);
}

AMP_TEST(no_further_step_is_begun)
{
    CHECK_INT(run(unbroken), ALIVE);
    CHECK_INT(run(while_a_batch_is_loaded), 128 + SIGTERM);
    check_same_pair("a.backup", "three.backup");
    scratch_empty();
}

/* ---- while something is saved ---- */

static void (*on_fsync)(void);
static int failing; /* fsyncs that fail */

int fsync(int fd)
{
    (void)fd;
    if (on_fsync) on_fsync();
    errno = EIO;
    return failing && failing-- ? -1 : 0;
}

static void signal_once(void)
{
    on_fsync = NULL;
    raise(SIGTERM);
}

static void saving(const char *name)
{
    network *net = begin(SEEDED);
    steps(net, 3);
    on_fsync = signal_once;
    save(net, name);
}

static void saving_a_backup(void)
{
    saving("a.backup");
}
static void saving_a_numbered_file(void)
{
    saving("a_3.weights");
}
static void saving_the_final_file(void)
{
    saving("a_final.weights");
}

AMP_TEST(in_the_middle_of_a_save)
{
    CHECK_INT(run(unbroken), ALIVE);
    CHECK_INT(run(saving_a_backup), 128 + SIGTERM);
    check_same_pair("a.backup", "three.backup");
    unlink(scratch("a.backup"));
    CHECK_INT(run(saving_a_numbered_file), 128 + SIGTERM);
    CHECK(same_file("a_3.weights", "a.backup"));
    unlink(scratch("a.backup"));
    CHECK_INT(run(saving_the_final_file), ALIVE); /* training is over */
    check_same_pair("a_final.weights", "three.backup");
    CHECK(!exists("a.backup"));
    scratch_empty();
}

static void failing_to_save(void)
{
    network *net = begin(SEEDED);
    steps(net, 3);
    save(net, "a.backup");
    pass(net);
    raise(SIGTERM);
    failing = 1;
    pass(net);
}

AMP_TEST(a_save_that_fails)
{
    CHECK_INT(run(unbroken), ALIVE);
    CHECK_INT(run(failing_to_save), 1);
    CHECK_SAYS(text, "weights are not saved: ");
    CHECK(!strstr(text, "stopped by"));
    check_same_pair("a.backup", "three.backup");
    scratch_empty();
}

static void diverged(void)
{
    network *net = begin(SEEDED);
    pass(net);
    raise(SIGTERM);
    net->layers[1].bias_updates[0] = INFINITY;
    pass(net);
}

AMP_TEST(weights_that_are_not_finite)
{
    CHECK_INT(run(diverged), 1);
    CHECK_SAYS(text, "training diverged: ");
    CHECK(!exists("a.backup"));
    scratch_empty();
}

/* Gradients overflow for the last time that is allowed. */
static void overflow_once_more(network *net)
{
    struct amp_scaler *s = &amp_session_of(net->layers)->step.scaler;
    s->scale = 0x1p60;
    s->floor_skips = AMP_SCALER_FLOOR_STOP - 1;
    steps(net, 1);
}

static const char fixed_scale[] = "width=4\nheight=4\n" MIXED "loss_scale=64\n";

static void overflows(void)
{
    network *net = begin(fixed_scale);
    steps(net, 3);
    overflow_once_more(net);
}

static void saves_and_overflows(void)
{
    network *net = begin(fixed_scale);
    steps(net, 3);
    save(net, "a_3.weights");
    overflow_once_more(net);
}

static void fails_to_save_and_overflows(void)
{
    network *net = begin(fixed_scale);
    steps(net, 3);
    save(net, "no_such_folder/a.backup");
    overflow_once_more(net);
}

static void goes_on_and_overflows(void)
{
    network *net = begin(fixed_scale);
    save(net, "a.backup");
    network *other = parse(fixed_scale, layers);
    load(other, "a.backup");
    steps(other, 1);
    overflow_once_more(other);
}

AMP_TEST(a_run_that_diverges_names_its_last_weights)
{
    CHECK_INT(run(overflows), 1);
    CHECK_SAYS(text, " This run has saved nothing.\n");
    CHECK_INT(run(fails_to_save_and_overflows), 1);
    CHECK_SAYS(text, " This run has saved nothing.\n");
    CHECK_INT(run(saves_and_overflows), 1);
    CHECK_SAYS(text, " The last good weights are ");
    CHECK_SAYS(text, "/a_3.weights\n");
    CHECK_INT(run(goes_on_and_overflows), 1);
    CHECK_SAYS(text, "/a.backup\n");
    scratch_empty();
}

/* Of layers that left FP16, one a step. */
static int left_fp16;

static void ends_while_layers_leave(void)
{
    network *net = begin(SEEDED);
    steps(net, 3);
    struct amp_step *step = &amp_session_of(net->layers)->step;
    step->poisoned = true;
    step->fault = (struct amp_fault){.class = AMP_FAULT_FORWARD};
    step->divergence.count = left_fp16;
    save(net, "a_final.weights");
}

AMP_TEST(one_layer_that_left_fp16_does_not_cost_the_final_weights_but_several_do)
{
    left_fp16 = 1;
    CHECK_INT(run(ends_while_layers_leave), ALIVE);
    CHECK(exists("a_final.weights"));
    scratch_empty();
    for (left_fp16 = 2; left_fp16 < 4; left_fp16++) {
        CHECK_INT(run(ends_while_layers_leave), 1);
        CHECK_SAYS(text, "weights are not saved: ");
        CHECK(!exists("a_final.weights"));
    }
    scratch_empty();
}

/* ---- the second signal ---- */

/* The plugin's clock, so that a busy machine puts no time between two signals. */
static volatile int clock_ms; /* 0: the real one */

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    if (!clock_ms) return __real_clock_gettime(clock, t);
    t->tv_sec = clock_ms / 1000;
    t->tv_nsec = clock_ms % 1000 * 1000000;
    return 0;
}

static struct {
    int first, ms, second;
} sent;

static void twice(void)
{
    network *net = begin(SEEDED);
    steps(net, 3);
    save(net, "a.backup");
    pass(net);
    clock_ms = 1000000;
    raise(sent.first);
    clock_ms += sent.ms;
    raise(sent.second);
    pass(net);
}

static int run_twice(int first, int ms, int second)
{
    sent.first = first;
    sent.ms = ms;
    sent.second = second;
    return run(twice);
}

AMP_TEST(a_second_signal_ends_at_once)
{
    CHECK_INT(run(unbroken), ALIVE);
    CHECK_INT(run_twice(SIGTERM, 200, SIGTERM), 128 + SIGTERM);
    CHECK(!strstr(text, "stopped by"));
    CHECK_INT(run_twice(SIGTERM, 250, SIGHUP), 128 + SIGHUP);
    CHECK(!strstr(text, "stopped by"));
    check_same_pair("a.backup", "three.backup");
    scratch_empty();
}

/* `timeout` sends its signal to the program and to the program's group, systemd SIGHUP behind
 * SIGTERM, a wrapper SIGTERM when a Ctrl-C ends it, the kernel SIGXCPU every second. A Ctrl-C may
 * reach us after the end of who reads us. */
AMP_TEST(one_signal_that_comes_twice)
{
    static const struct {
        int first, ms, second;
    } once[] = {{SIGTERM, 199, SIGTERM}, {SIGTERM, 0, SIGHUP},    {SIGXCPU, 250, SIGXCPU},
                {SIGPIPE, 250, SIGPIPE}, {SIGTERM, 250, SIGPIPE}, {SIGPIPE, 0, SIGINT},
                {SIGINT, 0, SIGTERM}};
    CHECK_INT(run(unbroken), ALIVE);
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) {
        CHECK_INT(run_twice(once[i].first, once[i].ms, once[i].second), 128 + once[i].first);
        CHECK_SAYS(text, " after iteration 4. ");
    }
    CHECK_INT(run(resumed), ALIVE);
    scratch_empty();
}

/* ---- where signals are not ours ---- */

static void without_the_key(void)
{
    network *net = begin(SMALL);
    steps(net, 1);
    raise(SIGTERM);
}

static void before_training(void)
{
    network *net = begin(SEEDED);
    network_predict(net, net->input);
    raise(SIGTERM);
}

static void with_no_backup_folder(void)
{
    network *net = parse(SEEDED, layers);
    steps(net, 1);
    raise(SIGTERM);
}

static void after_the_network(void)
{
    network *net = begin(SEEDED);
    steps(net, 1);
    free_network(net);
    raise(SIGTERM);
}

static void signal_that_nobody_obeyed(void)
{
    network *net = begin(SEEDED);
    steps(net, 1);
    raise(SIGTERM);
    free_network(net);
    raise(SIGKILL);
}

static void two_networks(void)
{
    network *net = begin(SEEDED), *other = parse(SEEDED, layers);
    steps(net, 1);
    steps(other, 1);
    steps(net, 1);
    raise(SIGTERM);
}

AMP_TEST(elsewhere_it_ends_as_without_the_plugin)
{
    check_ends_as_without_plugin(without_the_key);
    check_ends_as_without_plugin(before_training);
    check_ends_as_without_plugin(with_no_backup_folder);
    check_ends_as_without_plugin(after_the_network);
    check_ends_as_without_plugin(two_networks);
    CHECK_INT(run(signal_that_nobody_obeyed), -SIGTERM);
    scratch_empty();
}

/* The second network is over: the first is alone again. */
static void one_of_two_is_left(void)
{
    network *net = begin(SEEDED), *other = parse(SEEDED, layers);
    steps(net, 1);
    steps(other, 1);
    free_network(other);
    pass(net);
    raise(SIGTERM);
    pass(net);
}

AMP_TEST(the_last_of_several_networks_is_saved)
{
    CHECK_INT(run(one_of_two_is_left), 128 + SIGTERM);
    CHECK_SAYS(text, "stopped by SIGTERM after iteration 2. ");
    CHECK(exists("a.backup"));
    scratch_empty();
}

static void to_the_last_backup(void)
{
    network *net = parse(SEEDED, layers);
    steps(net, 2);
    save(net, "mine.backup");
    pass(net); /* from here on it is known */
    raise(SIGTERM);
    pass(net);
}

/* A program that reads no data file. */
AMP_TEST(file_known_from_a_save)
{
    CHECK_INT(run(unbroken), ALIVE);
    CHECK_INT(run(to_the_last_backup), 128 + SIGTERM);
    check_same_pair("mine.backup", "three.backup");
    CHECK(!exists("a.backup"));
    scratch_empty();
}

static volatile sig_atomic_t caught;

static void own_handler(int number)
{
    (void)number;
    caught++;
}

static void own_handlers(void)
{
    signal(SIGTERM, own_handler);
    signal(SIGHUP, SIG_IGN);
    network *net = begin(SEEDED);
    pass(net);
    raise(SIGTERM);
    raise(SIGHUP);
    pass(net);
    if (caught != 1 || exists("a.backup")) _exit(1);
    raise(SIGINT);
    pass(net);
    pass(net);
}

AMP_TEST(handlers_of_the_program_and_ignored_signals_stay)
{
    CHECK_INT(run(own_handlers), 128 + SIGINT);
    CHECK_SAYS(text, "stopped by SIGINT after iteration 2. ");
    scratch_empty();
}

static bool ends_the_program(int number)
{
    struct sigaction is;
    return !sigaction(number, NULL, &is) && is.sa_handler == SIG_DFL;
}

static void save_without_room(network *net, const char *name)
{
    static const struct rlimit small = {5, 5}; /* for this process, from here on */
    if (setrlimit(RLIMIT_FSIZE, &small)) _exit(1);
    dup2(open("/dev/null", O_WRONLY), 2);
    save(net, name);
}

static void file_limit(void)
{
    network *net = begin(SEEDED), *other = parse(SEEDED, layers);
    steps(net, 1);
    steps(other, 1);
    free_network(other);
    save(net, "a.backup");
    save_without_room(net, "a.backup");
    if (ends_the_program(SIGXFSZ)) _exit(2);
}

static void file_limit_with_a_handler(void)
{
    signal(SIGXFSZ, own_handler);
    network *net = begin(SEEDED);
    steps(net, 1);
    save_without_room(net, "b.backup");
    if (!caught) _exit(2);
}

/* ulimit -f */
AMP_TEST(a_file_that_may_not_grow_ends_nothing)
{
    CHECK_INT(run(file_limit), ALIVE);
    CHECK(exists("a.backup") && exists("a.backup.amp"));
    CHECK_INT(run(file_limit_with_a_handler), ALIVE);
    CHECK(!exists("b.backup"));
    scratch_empty();
}

/* As a pool of worker processes is ended. */
static void child_process(void)
{
    int status;
    network *net = begin(SEEDED);
    pass(net);
    pid_t child = fork();
    if (!child) {
        alarm(900);
        for (;;)
            pause();
    }
    kill(child, SIGTERM);
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) _exit(1);
    pass(net);
}

AMP_TEST(children_end_as_they_would)
{
    CHECK_INT(run(child_process), ALIVE);
    CHECK(!exists("a.backup"));
    scratch_empty();
}

AMP_TEST_MAIN
