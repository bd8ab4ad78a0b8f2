/* Operands, result and workspace of a problem's size, on which its plans are timed, and the clock.
 */
#ifndef AMPK_CUDA_BENCH_H
#define AMPK_CUDA_BENCH_H

#include "plans.h"

/* The mean of the y that data gradients with sums read; its values are within .5 of it. */
static const float AMPK_TC_MEAN_OF_Y = .5f;

struct ampk_tc_bench {
    struct ampk_tc *tc;
    ampk_rt_stream stream;
    void *first, *second, *result, *workspace; /* set second before begin to share an operand */
    size_t result_bytes;
    float *vectors; /* problems with sums: the vectors of ampk_tc_sums */
    void *y;        /* data gradients with sums: batch-norm's input */
    struct ampk_tc_sums sums;
    size_t workspace_bytes; /* 0 before begin: as much as plans may want, or as there is */
    ampk_rt_event from, to;
    const char *what;                    /* the plan's key, for a message */
    const struct ampk_tc_engine *blamed; /* NULL: none */
    bool guessed;                        /* engines are tried, not timed */
    char refusal[400];                   /* the reason of the last engine that refused */
};

/* False if there is no memory. Call end in either case. */
bool ampk_tc_bench_begin(struct ampk_tc_bench *, const struct ampk_tc_problem *);
void ampk_tc_bench_end(struct ampk_tc_bench *);

/* Waits until the device has done everything. A device that faulted ends the program with a
 * message. */
void ampk_tc_bench_wait(struct ampk_tc_bench *);
/* Sets whom to blame for a fault from now on: this engine, and the key to leave it out by. NULL:
 * nobody. */
void ampk_tc_bench_blame(struct ampk_tc_bench *, const struct ampk_tc_engine *, const char *key);

/* False if the library refuses. A fault of the device does not return: it ends the program. */
bool ampk_tc_bench_run(struct ampk_tc_bench *, const struct ampk_tc_engine *);

/* Call these around what is timed, on the bench's stream. Between them the host starts the work
 * while the device is still busy clearing the workspace. So the time excludes what starting takes,
 * as in a recording. Clearing also pushes the operands out of the cache: they come from memory. */
void ampk_tc_bench_start(struct ampk_tc_bench *);
float ampk_tc_bench_stop(struct ampk_tc_bench *); /* milliseconds */

#endif
