/* What plans for one problem are timed on: operands, result and workspace of its size. */
#ifndef AMPK_CUDA_BENCH_H
#define AMPK_CUDA_BENCH_H

#include "plans.h"

static const float AMPK_TC_MEAN_OF_Y = .5f;

struct ampk_tc_bench {
    struct ampk_tc *tc;
    ampk_rt_stream stream;
    void *first, *second, *result, *workspace; /* a second operand that is there is taken */
    size_t result_bytes;
    float *vectors; /* of problems with sums: memory of theirs, and */
    void *y;        /* of data gradients, within .5 of AMPK_TC_MEAN_OF_Y */
    struct ampk_tc_sums sums;
    size_t workspace_bytes; /* 0 to begin with: as much as plans may want, or as there is */
    ampk_rt_event from, to;
    const char *what;                    /* the key, for a message */
    const struct ampk_tc_engine *blamed; /* NULL: none */
    bool guessed;                        /* what runs is not timed */
    char refusal[400];                   /* why the last way that refused did */
};

/* False where there is no memory for it. To be ended in either case. */
bool ampk_tc_bench_begin(struct ampk_tc_bench *, const struct ampk_tc_problem *);
void ampk_tc_bench_end(struct ampk_tc_bench *);

/* What was given to the device is done. A device that faulted ends the program with a message. */
void ampk_tc_bench_wait(struct ampk_tc_bench *);
/* If that happens from now on, it is this way's fault, left out by its key; NULL: nobody's. */
void ampk_tc_bench_blame(struct ampk_tc_bench *, const struct ampk_tc_engine *, const char *key);

/* False where the library refuses, but not since the device faulted. */
bool ampk_tc_bench_run(struct ampk_tc_bench *, const struct ampk_tc_engine *);

/* Around what is timed, on the bench's stream. The device is busy clearing the workspace while the
 * host starts what comes between: what starting takes is not in the time, as in a recording.
 * Operands come from memory then, not from the cache. */
void ampk_tc_bench_start(struct ampk_tc_bench *);
float ampk_tc_bench_stop(struct ampk_tc_bench *); /* milliseconds */

#endif
