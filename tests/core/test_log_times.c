/* What the log makes of time, by a clock that the test moves. */
#include "plugin/core/log.h"

#include "tests/rig/harness.h"

#include <time.h>

static double seconds_now;

int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    t->tv_sec = (time_t)seconds_now;
    t->tv_nsec = (long)((seconds_now - (double)t->tv_sec) * 1e9);
    return 0;
}

/* A run of 100 iterations of 8 images, a second each. */
static void iterations(struct amp_log *log, size_t from, size_t to)
{
    struct amp_scaler scaler = {.scale = 16};
    struct amp_numbers numbers = {.grad_norm = NAN};
    for (size_t i = from; i <= to; i++) {
        seconds_now += 1;
        amp_log_iteration(log, &scaler, i, 100, 2.5, 8, &numbers);
    }
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
    amp_log_step(&log, &(struct amp_scaler){.scale = 16});
    iterations(&log, 1, 5);
    seconds_now += 60;
    amp_log_add_evaluation(&log, 5, .5, .25, .125, 60);
    iterations(&log, 6, 6);
    fflush(log.out);
    CHECK_STR(told, "mixed precision: 6/100 (6.0 %), 8.0 images/s, loss 2.5, scale 2^4, 0 redone, "
                    "0 skipped, 0:01:34 left\n");
    CHECK_SAYS(json, "{\"iteration\": 5, \"evaluation\": {\"seconds\": 60, \"map50\": 0.5, "
                     "\"map75\": 0.25, \"map\": 0.125}}\n");
    CHECK_SAYS(strstr(json, "{\"iteration\": 6,"), "\"seconds\": 1,");
    iterations(&log, 7, 15); /* nine seconds after that line */
    fflush(log.out);
    CHECK(strchr(told, '\n') == told + told_size - 1);
    iterations(&log, 16, 16);
    fflush(log.out);
    CHECK_SAYS(told, "mixed precision: 16/100 (16.0 %), 8.0 images/s");
    fclose(log.out);
    fclose(log.json);
    free(told);
    free(json);
}

AMP_TEST_MAIN
