/* What a log has written after each iteration, what its summary counts, and what it makes of time,
 * by a clock that the test moves. Without a graph. */
#include "tests/rig/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plugin/core/engine/log.h"
#include "tests/rig/files.h"

static struct amp_scaler scaler = {.dynamic = true, .scale = 8, .min = 1, .max = 1024};
static char err[400];

static int lines_of(const char *text)
{
    int n = 0;
    for (; (text = strchr(text, '\n')); text++)
        n++;
    return n;
}

static const struct amp_figure figures[] = {{"map50", .5}, {"map", .25}};
static const struct amp_class_figure of_classes[] = {{"a \"b\"", {"ap50", .75}},
                                                     {"c", {"ap50", NAN}}};

/* Somebody who looks at the file while the training runs sees all iterations so far, each of them
 * whole: a killed run loses none. */
AMP_TEST(every_iteration_is_in_the_file_at_once)
{
    struct amp_log log;
    struct amp_numbers numbers = {.grad_norm = 1};
    char text[4096];
    amp_log_start(&log, NULL);
    REQUIRE(!amp_log_open(&log, scratch("log"), err, sizeof err));
    for (int i = 1; i <= 9; i++) {
        amp_log_step(&log, &scaler);
        amp_log_iteration(&log, &scaler, (size_t)i, 9, 1. / i, 4, &numbers);
        long bytes = scratch_read("log", text, sizeof text);
        CHECK_INT(lines_of(text), i);
        CHECK(bytes > 0 && text[bytes - 1] == '\n');
    }
    amp_log_add_evaluation(&log, 9, 1, figures, 2, NULL, 0);
    scratch_read("log", text, sizeof text);
    CHECK_INT(lines_of(text), 10);
    log.iterations = 0; /* no summary on stderr */
    amp_log_close(&log, &scaler);
    scratch_empty();
}

/* Whatever begins as a log's line and ends early is one: a run may have been killed. */
AMP_TEST(what_is_no_log_is_refused)
{
    static const char *const texts[] = {
        "", "{", "{\"iteration\": ", "{\"iteration\":x", "{\"iteration\": 7, \"loss\"", "my notes"};
    for (int i = 0; i < 6; i++) {
        struct amp_log log;
        char text[100];
        bool is_log = i != 3 && i != 5;
        amp_log_start(&log, NULL);
        scratch_write("log", texts[i], strlen(texts[i]));
        CHECK_INT(amp_log_open(&log, scratch("log"), err, sizeof err), is_log ? 0 : -1);
        if (!is_log) CHECK_SAYS(err, "a file that is no log");
        amp_log_close(&log, &scaler);
        scratch_read("log", text, sizeof text);
        CHECK_STR(text, texts[i]);
    }
    scratch_empty();
}

/* The summary of a run of two iterations that begins with these counts and adds its own to them. */
static char *summary_after(struct amp_scaler s)
{
    struct amp_log log;
    struct amp_numbers numbers = {.grad_norm = 1};
    char *text = NULL;
    size_t size;
    amp_log_start(&log, NULL);
    log.out = open_memstream(&text, &size);
    REQUIRE(log.out);
    for (int i = 0; i < 2; i++) {
        amp_log_step(&log, &s);
        s.grown += 1;
        s.backed_off += 2;
        s.redone += 3;
        s.skipped += 4;
        amp_log_iteration(&log, &s, (size_t)i + 1, 2, 1, 4, &numbers);
    }
    amp_log_close(&log, &s);
    fclose(log.out);
    return text;
}

AMP_TEST(a_summary_counts_its_own_run)
{
    struct amp_scaler resumed = scaler;
    resumed.grown = 100, resumed.backed_off = 200, resumed.redone = 300, resumed.skipped = 400;
    const char *counts = "raised 2 times, lowered 4 times; 6 passes redone, 8 steps skipped";
    char *first = summary_after(scaler), *second = summary_after(resumed);
    CHECK(strstr(first, ": 2 iterations in ") && strstr(second, ": 2 iterations in "));
    CHECK_SAYS(first, counts);
    CHECK(!strstr(first, "runs before"));
    CHECK_SAYS(second, counts);
    CHECK_SAYS(second, "skipped (306 and 408 with the runs before)\n");
    free(first);
    free(second);
}

/* ---- faults ---- */

/* One that differs in layer, tensor, kind or consequence is told; so is every bad image. */
AMP_TEST(only_the_same_fault_is_a_repeat)
{
    static const struct {
        struct amp_fault fault;
        enum amp_verdict verdict;
        bool told;
    } faults[] = {
        {{AMP_FAULT_BACKWARD, 1, AMP_WATCH_DELTA, 7e4}, AMP_VERDICT_RETRY, true},
        {{AMP_FAULT_BACKWARD, 1, AMP_WATCH_DELTA, 8e4}, AMP_VERDICT_RETRY, false},
        {{AMP_FAULT_BACKWARD, 1, AMP_WATCH_DELTA, 8e4}, AMP_VERDICT_SKIP, true},
        {{AMP_FAULT_BACKWARD, 1, AMP_WATCH_DY, 8e4}, AMP_VERDICT_SKIP, true},
        {{AMP_FAULT_BACKWARD, 2, AMP_WATCH_DY, 8e4}, AMP_VERDICT_SKIP, true},
        {{AMP_FAULT_BACKWARD, 2, AMP_WATCH_DY, 8e4}, AMP_VERDICT_SKIP, false},
        {{AMP_FAULT_FORWARD, 2, AMP_WATCH_DY, 8e4}, AMP_VERDICT_SKIP, true},
        {{AMP_FAULT_INPUT, 0, AMP_WATCH_INPUT, NAN}, AMP_VERDICT_SKIP, true},
        {{AMP_FAULT_INPUT, 0, AMP_WATCH_INPUT, NAN}, AMP_VERDICT_SKIP, true},
    };
    struct amp_layer_desc layers[3] = {{.w = 0}};
    struct amp_net_desc net = {.n = 3, .layers = layers};
    struct amp_log log;
    char *text;
    size_t size;
    int told = 0;
    amp_log_start(&log, &net);
    log.out = open_memstream(&text, &size);
    REQUIRE(log.out);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        amp_log_fault(&log, &faults[i].fault, faults[i].verdict, 8, 8, 0, NULL);
        fflush(log.out);
        /* The line that counts repeats comes with the next fault. */
        told += faults[i].told + (i > 0 && !faults[i - 1].told);
        if (lines_of(text) != told)
            TEST_FAIL("fault %zu: %d lines, not %d", i, lines_of(text), told);
    }
    amp_log_close(&log, &scaler);
    fclose(log.out);
    free(text);
}

/* What is said of a fault, of what follows from it, of its repeats and of the scale. */
AMP_TEST(every_word_of_a_fault)
{
    static const char expected[] =
        "mixed precision: delta of layer 1 (maxpool) overflowed (largest 7e+04, subdivision 3); "
        "loss scale 2^6 -> 2^5; backward pass redone\n"
        "mixed precision: the same 2 more times; loss scale now 2^3\n"
        "mixed precision: output of layer 2 (dropout) does not fit FP16 (largest 1e+05, "
        "subdivision 0); step skipped; this layer continues in FP32, the loss scale stays\n"
        "mixed precision: dW of layer 0 (convolutional) overflowed (largest 7e+04, subdivision "
        "1); step skipped\n"
        "mixed precision: input of layer 0 (convolutional) is not finite (largest nan, subdivision "
        "2, image a.jpg); step skipped; the loss scale is not to blame and stays\n"
        "mixed precision: truth of layer 0 (convolutional) is no box (largest 1e+06, subdivision "
        "2, image b.jpg); step skipped; the loss scale is not to blame and stays\n"
        "mixed precision: weights of layer 0 (convolutional) is not finite although all its "
        "operands are (largest inf, subdivision 0); step skipped\n"
        "mixed precision: loss scale 2^3 -> 2^4 (gradients have room)\n"
        "mixed precision: layers left FP16 in 5 of the last 40 iterations: values that grow like "
        "this look like divergence; lower learning_rate, or lengthen burn_in\n"
        "mixed precision: layers left FP16 in 5 of the last 40 iterations: values that grow like "
        "this look like divergence; lower learning_rate, or raise max_batches\n"
        "mixed precision: it diverged; going on, as amp_on_divergence=continue says\n";
    struct amp_layer_desc layers[3] = {
        {.type = AMP_CONVOLUTIONAL}, {.type = AMP_MAXPOOL}, {.type = AMP_DROPOUT}};
    struct amp_net_desc net = {.n = 3, .layers = layers};
    const struct amp_fault delta = {AMP_FAULT_BACKWARD, 1, AMP_WATCH_DELTA, 7e4};
    const struct amp_fault output = {AMP_FAULT_FORWARD, 2, AMP_WATCH_OUT, 1e5};
    const struct amp_fault dw = {AMP_FAULT_BACKWARD, 0, AMP_WATCH_DW, 7e4};
    const struct amp_fault input = {AMP_FAULT_INPUT, 0, AMP_WATCH_INPUT, NAN};
    const struct amp_fault truth = {AMP_FAULT_INPUT, 0, AMP_WATCH_TRUTH, 1e6};
    const struct amp_fault weights = {AMP_FAULT_DIVERGED, 0, AMP_WATCH_WEIGHTS, INFINITY};
    struct amp_log log;
    char *text;
    size_t size;
    amp_log_start(&log, &net);
    log.out = open_memstream(&text, &size);
    REQUIRE(log.out);
    for (int i = 0; i < 3; i++)
        amp_log_fault(&log, &delta, AMP_VERDICT_RETRY, 64 >> i, 32 >> i, 3, NULL);
    amp_log_fault(&log, &output, AMP_VERDICT_SKIP, 8, 8, 0, NULL);
    amp_log_fault(&log, &dw, AMP_VERDICT_SKIP, 8, 8, 1, NULL);
    amp_log_fault(&log, &input, AMP_VERDICT_SKIP, 8, 8, 2, "a.jpg");
    amp_log_fault(&log, &truth, AMP_VERDICT_SKIP, 8, 8, 2, "b.jpg");
    amp_log_fault(&log, &weights, AMP_VERDICT_SKIP, 8, 8, 0, NULL);
    amp_log_scale(&log, "gradients have room", 8, 16);
    amp_log_many_demotions(&log, 5, 40);
    log.onecycle = true;
    amp_log_many_demotions(&log, 5, 40);
    amp_log_carry_on(&log, "it diverged");
    amp_log_close(&log, &scaler);
    fclose(log.out);
    CHECK_STR(text, expected);
    free(text);
}

/* Of a run of several processes, with clipping; nobody has looked at the layers. */
AMP_TEST(every_number_of_a_line)
{
    struct amp_scaler s = {.scale = 64, .redone = 3, .skipped = 4};
    struct amp_numbers numbers = {.grad_norm = 2.5, .learning_rate = .125, .clipped = 5};
    struct amp_layer_numbers layers[2] = {{"convolutional", "fp16", 1.5, .25, .125},
                                          {"yolo", "fp32", NAN, NAN, NAN}};
    struct amp_log log;
    char *text;
    size_t size;
    amp_log_start(&log, NULL);
    log.json = open_memstream(&text, &size);
    REQUIRE(log.json);
    log.clips = true;
    log.listed = 8;
    CHECK(amp_log_wants_memory(&log));
    amp_log_memory(&log, &(struct amp_memory){3000, 200, 4000});
    CHECK(!amp_log_wants_memory(&log));
    amp_log_exchanged(&log, .5, .25, 3, 1000);
    amp_log_step(&log, &s);
    amp_log_iteration(&log, &s, 7, 9, 1.25, 4, &numbers);
    numbers.layers = layers;
    numbers.n_layers = 2;
    amp_log_iteration(&log, &s, 8, 9, NAN, 4, &numbers);
    fflush(log.json);
    CHECK_SAYS(text, "{\"iteration\": 7, \"epoch\": 3.5, \"loss\": 1.25, \"learning_rate\": "
                     "0.125, \"loss_scale\": 64, \"redone\": 3, \"skipped\": 4, \"seconds\": ");
    CHECK_SAYS(text, ", \"wait_seconds\": 0.5, \"reduce_seconds\": 0.25, \"slowest_rank\": 3, "
                     "\"exchanged_bytes\": 1000, \"grad_norm\": 2.5, \"clipped\": 5, "
                     "\"host_memory_bytes\": 3000, \"device_memory_used_bytes\": 200, "
                     "\"device_memory_reserved_bytes\": 4000}\n");
    CHECK_SAYS(text, "\"iteration\": 8, \"epoch\": 4, \"loss\": null, ");
    CHECK_SAYS(text, "_bytes\": 4000, \"layers\": [{\"layer\": 0, \"type\": "
                     "\"convolutional\", \"format\": \"fp16\", \"out_max\": 1.5, "
                     "\"delta_max\": 0.25, \"delta_zero\": 0.125}, {\"layer\": 1, \"type\": "
                     "\"yolo\", \"format\": \"fp32\", \"out_max\": null, \"delta_max\": null, "
                     "\"delta_zero\": null}]}\n");
    log.iterations = 0; /* no summary on stderr */
    amp_log_close(&log, &s);
    free(text);
}

/* ---- time ---- */

static double seconds_now; /* 0: by the real clock */

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    if (seconds_now == 0) return __real_clock_gettime(clock, t);
    t->tv_sec = (time_t)seconds_now;
    t->tv_nsec = (long)((seconds_now - (double)t->tv_sec) * 1e9);
    return 0;
}

/* Of a run of so many iterations of 8 images, a second each. */
static void iterations_of(size_t total, struct amp_log *log, size_t from, size_t to)
{
    struct amp_scaler fixed = {.scale = 16};
    struct amp_numbers numbers = {.grad_norm = NAN, .learning_rate = .001};
    for (size_t i = from; i <= to; i++) {
        seconds_now += 1;
        amp_log_iteration(log, &fixed, i, total, 2.5, 8, &numbers);
    }
}

static void iterations(struct amp_log *log, size_t from, size_t to)
{
    iterations_of(100, log, from, to);
}

/* *told is what it prints, after fflush or fclose. */
static void start_telling(struct amp_log *log, char **told)
{
    static const struct amp_net_desc net = {.n = 0};
    static size_t size;
    seconds_now = 1000;
    amp_log_start(log, &net);
    log->out = open_memstream(told, &size);
    REQUIRE(log->out);
}

/* The run goes on without the file, and says so once. */
AMP_TEST(a_full_disk_ends_the_log)
{
    struct amp_log log;
    struct amp_numbers numbers = {.grad_norm = 1};
    char *told;
    start_telling(&log, &told);
    REQUIRE(!amp_log_open(&log, "/dev/full", err, sizeof err));
    for (size_t i = 1; i <= 3; i++) {
        amp_log_step(&log, &scaler);
        amp_log_iteration(&log, &scaler, i, 9, 1, 4, &numbers);
        CHECK(!log.json && log.json_failed);
        CHECK(!amp_log_open(&log, "/dev/full", err, sizeof err) && !log.json);
    }
    amp_log_add_evaluation(&log, 3, 1, figures, 2, NULL, 0);
    fflush(log.out);
    const char *said = strstr(told, "amp_log can no longer be written: No space left on device\n");
    CHECK(said && !strstr(said + 1, "amp_log"));
    amp_log_close(&log, &scaler);
    fclose(log.out);
    free(told);
    seconds_now = 0;
}

AMP_TEST(time_left_has_hours)
{
    struct amp_log log;
    char *told;
    start_telling(&log, &told);
    amp_log_step(&log, &(struct amp_scaler){.scale = 16});
    iterations_of(5000, &log, 1, 10);
    fflush(log.out);
    CHECK_SAYS(told, "10/5000 (0.2 %), ");
    CHECK_SAYS(told, ", 1:23:10 left\n");
    amp_log_close(&log, &scaler);
    fclose(log.out);
    free(told);
    seconds_now = 0;
}

AMP_TEST(an_evaluation_is_not_in_the_speed)
{
    struct amp_net_desc net = {.n = 0};
    struct amp_log log;
    char *told, *json;
    size_t told_size, json_size;
    seconds_now = 1000;
    amp_log_start(&log, &net);
    log.out = open_memstream(&told, &told_size);
    log.json = open_memstream(&json, &json_size);
    REQUIRE(log.out && log.json);
    log.listed = 64;
    amp_log_memory(&log, &(struct amp_memory){(size_t)3 << 29, (size_t)1 << 29, (size_t)2 << 30});
    amp_log_step(&log, &(struct amp_scaler){.scale = 16});
    iterations(&log, 1, 5);
    seconds_now += 60;
    amp_log_add_evaluation(&log, 5, 60, figures, 2, of_classes, 2);
    iterations(&log, 6, 6);
    fflush(log.out);
    CHECK_STR(told, "mixed precision: 6/100 (6.0 %), epoch 0.75, 8.0 images/s, loss 2.5, rate "
                    "0.001, scale 2^4, 0 redone, 0 skipped, memory 1.50 GiB, device 0.50 GiB used, "
                    "2.00 reserved, 0:01:34 left\n");
    CHECK_SAYS(json, "{\"iteration\": 5, \"evaluation\": {\"seconds\": 60, \"map50\": 0.5, "
                     "\"map\": 0.25, \"classes\": [{\"name\": \"a \\\"b\\\"\", \"ap50\": 0.75}, "
                     "{\"name\": \"c\", \"ap50\": null}]}}\n");
    CHECK_SAYS(strstr(json, "{\"iteration\": 6,"), "\"seconds\": 1,");
    iterations(&log, 7, 15); /* nine seconds after that line */
    fflush(log.out);
    CHECK(strchr(told, '\n') == told + told_size - 1);
    iterations(&log, 16, 16);
    fflush(log.out);
    CHECK_SAYS(told, "mixed precision: 16/100 (16.0 %), epoch 2.00, 8.0 images/s");
    amp_log_close(&log, &scaler); /* closes json */
    fclose(log.out);
    CHECK_SAYS(told, ": 16 iterations in 16.0 s (8.0 images/s); ");
    free(told);
    free(json);
    seconds_now = 0;
}

/* More than 2 % of the time. */
/* Darknet's trainers: an average below 0 takes the next loss whole. */
static float average_as_darknet(float average, float loss)
{
    if (average < 0) average = loss;
    return (float)((double)average * .9 + (double)loss * .1);
}

AMP_TEST(a_lost_loss_is_said_and_leaves_the_average)
{
    static const struct {
        double loss;
        float darknet, told;
        const char *said; /* "": nothing */
    } steps[] = {
        {NAN, 0, -1,
         "mixed precision: iteration 1: its loss is lost, since a value in it is not "
         "finite; Darknet's line shows -1, as there was no loss before\n"},
        {INFINITY, 0, -1, "iteration 2: its loss is lost"},
        {40, 40, 40, ""},
        {20, 20, 20, ""},
        {NAN, 7, 38,
         "iteration 5: its loss is lost, since a value in it is not finite; Darknet's "
         "line shows 38, the average of the losses before\n"},
        {10, 10, 10, ""},
    };
    struct amp_numbers numbers = {.grad_norm = NAN};
    struct amp_log log;
    float darknet = -1, without = -1;
    amp_log_start(&log, NULL);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char *said = NULL;
        size_t size;
        log.out = open_memstream(&said, &size);
        REQUIRE(log.out != NULL);
        amp_log_iteration(&log, &scaler, i + 1, 6, steps[i].loss, 4, &numbers);
        float told = amp_log_tell(&log, steps[i].darknet);
        fclose(log.out);
        CHECK_NEAR(told, steps[i].told, 1e-5);
        if (*steps[i].said ? !strstr(said, steps[i].said) : *said != '\0')
            TEST_FAIL("step %zu: %s", i + 1, said);
        darknet = average_as_darknet(darknet, told);
        if (isfinite(steps[i].loss)) without = average_as_darknet(without, told);
        CHECK_NEAR(darknet, without, 1e-5);
        free(said);
    }
}

AMP_TEST(backups_that_hold_up_training_are_said)
{
    for (int too_long = 0; too_long < 2; too_long++) {
        struct amp_log log;
        char *told;
        start_telling(&log, &told);
        amp_log_step(&log, &scaler);
        iterations(&log, 1, 5);
        amp_log_saved(&log, .1);
        amp_log_saved(&log, too_long ? .11 : .09);
        iterations(&log, 6, 10);
        amp_log_saved(&log, 5); /* behind the last iteration */
        amp_log_close(&log, &scaler);
        fclose(log.out);
        CHECK_INT(strstr(told, "backups held up training for 2.1 % of the time; amp_backup_every"
                               "=auto or a larger one leaves out more of them\n") != NULL,
                  too_long);
        CHECK_INT(strstr(told, "held up") != NULL, too_long);
        free(told);
    }
    seconds_now = 0;
}

/* Two of ten seconds: said with its remedy. One of ten: only in the table. The wait for the first
 * batch is no training time. */
AMP_TEST(waiting_for_images_is_said)
{
    for (int waits = 1; waits <= 2; waits++) {
        struct amp_net_desc net = {.n = 0};
        struct amp_log log;
        char *told, *json;
        size_t told_size, json_size;
        seconds_now = 1000;
        amp_log_start(&log, &net);
        log.out = open_memstream(&told, &told_size);
        log.json = open_memstream(&json, &json_size);
        REQUIRE(log.out && log.json);
        log.feeding = "buy a disk";
        amp_log_waited(&log, 5);
        amp_log_step(&log, &scaler);
        iterations(&log, 1, 4);
        for (int i = 0; i < waits; i++) {
            amp_log_waited(&log, .75);
            amp_log_waited(&log, .25);
            iterations(&log, 5 + (size_t)i, 5 + (size_t)i);
        }
        iterations(&log, 5 + (size_t)waits, 10);
        CHECK_SAYS(strstr(json, "{\"iteration\": 4,"), "\"loading_seconds\": 0,");
        CHECK_SAYS(strstr(json, "{\"iteration\": 5,"), "\"loading_seconds\": 1,");
        CHECK_SAYS(strstr(json, "{\"iteration\": 10,"), "\"loading_seconds\": 0,");
        amp_log_close(&log, &scaler); /* closes json */
        fclose(log.out);
        CHECK_SAYS(told, waits == 1 ? "  waiting for images       1.0 s  10.0 %\n"
                                    : "  waiting for images       2.0 s  20.0 %\n");
        CHECK_INT(strstr(told, "waited for images 20.0 % of the time; buy a disk\n") != NULL,
                  waits == 2);
        CHECK_INT(strstr(told, "buy a disk") != NULL, waits == 2);
        free(told);
        free(json);
    }
    seconds_now = 0;
}

/* The table of a run in which every second is known, in the summary and in the file. */
AMP_TEST(every_second_is_in_the_table)
{
    static const struct {
        enum amp_time what;
        double seconds;
    } course[] = {{AMP_TIME_FORWARD, 2}, {AMP_TIME_BACKWARD, 5}, {AMP_TIME_OTHER, .5},
                  {AMP_TIME_FORWARD, 1}, {AMP_TIME_BACKWARD, 4}, {AMP_TIME_PEERS, .25},
                  {AMP_TIME_UPDATE, 3}};
    struct amp_numbers numbers = {.grad_norm = 1};
    struct amp_log log;
    char *told, *json;
    size_t size;
    start_telling(&log, &told);
    log.json = open_memstream(&json, &size);
    REQUIRE(log.json);
    amp_log_step(&log, &scaler);
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < sizeof course / sizeof *course; k++) {
            amp_times_enter(&log.times, course[k].what);
            seconds_now += course[k].seconds;
        }
        amp_log_iteration(&log, &scaler, (size_t)i + 1, 2, 1, 4, &numbers);
        seconds_now += 1.5;
        amp_log_waited(&log, 1);
    }
    /* A device says that a second of what was counted as backward was forward's. */
    amp_times_move(&log.times, AMP_TIME_BACKWARD, AMP_TIME_FORWARD, 1);
    seconds_now += 13;
    amp_log_add_evaluation(&log, 2, 13, figures, 2, NULL, 0);
    seconds_now += 3;
    amp_times_move(&log.times, AMP_TIME_OTHER, AMP_TIME_SAVING, 3);
    seconds_now += 100;           /* nobody trains */
    amp_log_close(&log, &scaler); /* closes json */
    fclose(log.out);
    CHECK_SAYS(told, "mixed precision: where the time went:\n"
                     "mixed precision:   waiting for images       2.0 s   4.0 %\n"
                     "mixed precision:   forward                  7.0 s  13.9 %\n"
                     "mixed precision:   backward                17.0 s  33.7 %\n"
                     "mixed precision:   update                   6.0 s  11.9 %\n"
                     "mixed precision:   other processes          0.5 s   1.0 %\n"
                     "mixed precision:   evaluation              13.0 s  25.7 %\n"
                     "mixed precision:   saving                   3.0 s   5.9 %\n"
                     "mixed precision:   other                    2.0 s   4.0 %\n"
                     "mixed precision:   all                     50.5 s\n"
                     "mixed precision: evaluation took 25.7 % of the time; -map_every, "
                     "-mAP_epochs or -topk_every measures less often\n");
    CHECK_SAYS(json, "{\"iteration\": 2, \"summary\": {\"seconds\": 50.5, \"waiting_seconds\": 2, "
                     "\"forward_seconds\": 7, \"backward_seconds\": 17, \"update_seconds\": 6, "
                     "\"processes_seconds\": 0.5, \"evaluation_seconds\": 13, "
                     "\"saving_seconds\": 3, \"other_seconds\": 2}}\n");
    free(told);
    free(json);
    seconds_now = 0;
}

AMP_TEST_MAIN
