/* Saving and loading inside one process: in the middle of a step, back and forth, before any
 * training, beside a network that is not attached, and the line that names the file. */

#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include <fcntl.h>
#include <sys/stat.h>

#define SMALL  "width=4\nheight=4\nloss_scale_init=2\nloss_scale_window=3\n"
#define SEEDED SMALL MIXED "seed=3\n"

static const char layers[] =
    CONV(3, NORMALIZED) "[connected]\noutput=4\nactivation=linear\n[cost]\n";

/* 0: there is no such file. */
static size_t iterations_in_file(const char *name)
{
    struct {
        int version[3];
        size_t seen __attribute__((packed));
    } head = {{0}, 0};
    FILE *f = fopen(scratch(name), "rb");
    if (f) {
        REQUIRE(fread(&head, 20, 1, f) == 1);
        fclose(f);
    }
    return head.seen / 8; /* the batch of parse */
}

AMP_TEST(in_the_middle_of_a_step)
{
    network *net = parse(SEEDED "amp_backup_every=0\n", layers);
    steps(net, 1);
    save(net, "a.backup");
    CHECK(exists("a.backup.amp"));
    pass(net);
    save(net, "a.backup");
    CHECK(exists("a.backup") && !exists("a.backup.amp"));
    pass(net);
    save(net, "a.backup");
    CHECK(exists("a.backup.amp"));
    free_network(net);
    scratch_empty();
}

AMP_TEST(going_back_to_an_earlier_state)
{
    network *net = parse(SEEDED, layers);
    steps(net, 2);
    save(net, "two.backup");
    steps(net, 3);
    save(net, "five.backup");
    load(net, "two.backup");
    steps(net, 3);
    save(net, "again.backup");
    check_same_pair("five.backup", "again.backup");
    load(net, "two.backup");
    load(net, "five.backup");
    save(net, "copy.backup");
    check_same_pair("five.backup", "copy.backup");
    free_network(net);
    scratch_empty();
}

AMP_TEST(a_file_loaded_in_mid_run_brings_the_layers_that_left_fp16)
{
    network *from = parse(SEEDED, layers), *to = parse(SEEDED, layers);
    struct amp_session *s = amp_session_of(from->layers);
    s->demoted[0] = AMP_FORMAT_FP32;
    s->replan = true;
    steps(from, 2);
    save(from, "a.backup");
    steps(to, 1);
    s = amp_session_of(to->layers);
    CHECK_INT(s->plan->layers[0].in, AMP_FORMAT_FP16);
    load(to, "a.backup");
    steps(to, 1);
    CHECK_INT(s->plan->layers[0].in, AMP_FORMAT_FP32);
    CHECK_INT(s->demoted[1], AMP_FORMATS);
    steps(from, 1);
    CHECK_SAME(to, from);
    free_network(from);
    free_network(to);
    scratch_empty();
}

AMP_TEST(inference_leaves_the_state_to_training)
{
    network *net = parse(SEEDED, layers);
    steps(net, 4);
    save(net, "whole.backup");
    free_network(net);
    net = parse(SEEDED, layers);
    steps(net, 2);
    save(net, "half.backup");
    free_network(net);
    net = parse(SEEDED, layers);
    load(net, "half.backup");
    network_predict(net, net->input);
    CHECK(amp_session_of(net->layers)->sidecar != NULL);
    steps(net, 2);
    CHECK(amp_session_of(net->layers)->sidecar == NULL);
    save(net, "resumed.backup");
    check_same_pair("whole.backup", "resumed.backup");
    free_network(net);
    scratch_empty();
}

AMP_TEST(a_network_that_is_not_attached)
{
    network *net = parse(SEEDED, layers), *plain = parse(SMALL, layers);
    steps(net, 1);
    save(net, "a.backup");
    load(plain, "a.backup");
    save(plain, "b.backup");
    CHECK(same_file("a.backup", "b.backup") && !exists("b.backup.amp"));
    free_network(net);
    free_network(plain);
    scratch_empty();
}

/* `detector train` ends with NAME_final.weights, `classifier train` and others with NAME.weights.
 */
AMP_TEST(backup_and_final_weights_get_a_sidecar)
{
    static const struct {
        const char *name, *sidecar;
        bool wanted;
    } files[] = {{"a.backup", "a.backup.amp", true},
                 {"a_final.weights", "a_final.weights.amp", true},
                 {"a.weights", "a.weights.amp", true},
                 {"a2.weights", "a2.weights.amp", true},
                 {"a_1000.weights", "a_1000.weights.amp", false}};
    network *net = parse(SEEDED, layers);
    steps(net, 1);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        save(net, files[i].name);
        CHECK_INT(exists(files[i].sidecar), files[i].wanted);
    }
    free_network(net);
    scratch_empty();
}

/* Darknet's own line names the file that it writes beside it. */
AMP_TEST(the_file_in_place_is_named)
{
    char text[1 << 12], expected[PATH_MAX];
    network *net = parse(SEEDED, layers);
    fflush(stderr);
    int before = dup(2), file = open(scratch("said"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(file, 2);
    save(net, "a.backup");
    dup2(before, 2);
    close(before);
    close(file);
    CHECK(scratch_read("said", text, sizeof text) > 0);
    snprintf(expected, sizeof expected, "\nSaved as %s\n", scratch("a.backup"));
    CHECK_INT(count(text, expected), 1);
    free_network(net);
    scratch_empty();
}

/* As Darknet's trainers: a backup and a numbered file after every iteration. The first backup is
 * written; a run that goes on from one counts from its start. */
AMP_TEST(backups_that_follow_too_soon)
{
    static const size_t at[2][8] = {{1, 1, 1, 4, 4, 4, 7, 7}, {7, 7, 10, 10, 10, 13, 13, 13}};
    for (int run = 0; run < 2; run++) {
        network *net = parse(SEEDED "amp_backup_every=3\n", layers);
        if (run) load(net, "a.backup");
        for (size_t n = 1; n <= 8; n++) {
            char name[20];
            steps(net, 1);
            save(net, "a.backup");
            snprintf(name, sizeof name, "a_%zu.weights", n);
            save(net, name);
            CHECK_INT(iterations_in_file("a.backup"), at[run][n - 1]);
            CHECK_INT(iterations_in_file(name), n + (size_t)run * 7);
        }
        free_network(net);
    }
    scratch_empty();
}

/* Such as `darknet rescale`. */
AMP_TEST(a_program_that_does_not_train_saves)
{
    network *net = parse(SEEDED "amp_backup_every=3\n", layers);
    steps(net, 1);
    save(net, "a.backup");
    free_network(net);
    net = parse(SEEDED "amp_backup_every=3\n", layers);
    load(net, "a.backup");
    CHECK(!unlink(scratch("a.backup")));
    save(net, "a.backup");
    CHECK_INT(iterations_in_file("a.backup"), 1);
    free_network(net);
    scratch_empty();
}

/* ---- amp_backup_every=auto ---- */

static double seconds_now, seconds_of_a_save; /* 0: by the real clock */

/* Each look at the clock is one end of a save; the plugin takes its time between the two. */
double __real_amp_clock_seconds(void);
double __wrap_amp_clock_seconds(void);
double __wrap_amp_clock_seconds(void)
{
    return seconds_now > 0 ? seconds_now += seconds_of_a_save : __real_amp_clock_seconds();
}

/* A save that takes so long by the test's clock, of which nothing else takes any. */
static void save_in(network *net, const char *name, double seconds)
{
    seconds_of_a_save = seconds;
    save(net, name);
    seconds_of_a_save = 0;
}

/* Darknet's trainer asks for a backup. Whether it was written. */
static bool backs_up(network *net, double at)
{
    size_t before = iterations_in_file("a.backup");
    steps(net, 1);
    seconds_now = at;
    save(net, "a.backup");
    return iterations_in_file("a.backup") != before;
}

AMP_TEST(backups_wait_a_hundred_times_as_long_as_they_take)
{
    seconds_now = 1000;
    network *net = parse(SEEDED, layers);
    const struct amp_session *s = amp_session_of(net->layers);
    steps(net, 1);
    save_in(net, "a.backup", .5); /* the first one is written */
    CHECK_INT(iterations_in_file("a.backup"), 1);
    double due = s->backup_due.time, saved = seconds_now;
    CHECK_NEAR(due - saved, 100 * .5, 1);
    CHECK(!backs_up(net, due - 1));
    save(net, "a_4.weights"); /* other files are written as ever */
    CHECK(exists("a_4.weights"));
    CHECK(backs_up(net, due));
    CHECK(backs_up(net, due)); /* the last one took no time */
    free_network(net);
    seconds_now = 0;
    scratch_empty();
}

/* A run that goes on from one does not know how long it took. */
AMP_TEST(the_first_backup_of_a_run_is_written)
{
    seconds_now = 1000;
    network *net = parse(SEEDED, layers);
    steps(net, 1);
    save_in(net, "a.backup", 9);
    free_network(net);
    net = parse(SEEDED, layers);
    load(net, "a.backup");
    CHECK(backs_up(net, seconds_now));
    free_network(net);
    seconds_now = 0;
    scratch_empty();
}

/* ---- the time of saves ---- */

/* But of none behind the last iteration, and not of the final file. */
AMP_TEST(the_time_of_backups_is_counted)
{
    network *net = parse(SEEDED "amp_backup_every=0\n", layers);
    const struct amp_log *log = &amp_session_of(net->layers)->log;
    steps(net, 1);
    save(net, "a_final.weights");
    steps(net, 1);
    CHECK_INT(log->saved > 0, false);
    save(net, "a.backup");
    CHECK_INT(log->saved > 0, false);
    steps(net, 1);
    CHECK(log->saved > 0);
    free_network(net);
    scratch_empty();
}

AMP_TEST_MAIN
