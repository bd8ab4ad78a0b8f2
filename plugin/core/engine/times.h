/* Where the time of a run went, by the clock of the thread that trains: at every moment it does one
 * of these. */
#ifndef AMP_TIMES_H
#define AMP_TIMES_H

#include <stdbool.h>
#include <stdio.h>

#include "plugin/core/read/json.h"

enum amp_time {
    AMP_TIME_WAITING, /* for images */
    AMP_TIME_FORWARD,
    AMP_TIME_BACKWARD,
    AMP_TIME_UPDATE,
    AMP_TIME_PEERS, /* waiting for other processes, and adding up with them */
    AMP_TIME_EVALUATION,
    AMP_TIME_SAVING,
    AMP_TIME_OTHER, /* Darknet's own work between these: printing, resizing, freeing batches */
    AMP_TIMES
};

struct amp_times {
    double spent[AMP_TIMES]; /* seconds */
    double began, since;     /* the run; since when `now` was not added yet */
    enum amp_time now;
    bool runs; /* before that nothing counts */
};

void amp_times_start(struct amp_times *);
/* From now on it does this. */
void amp_times_enter(struct amp_times *, enum amp_time);
/* So many of the seconds that were counted as `from` were for `to`. */
void amp_times_move(struct amp_times *, enum amp_time from, enum amp_time to, double seconds);
/* Seconds from the start to the last thing that was done. */
double amp_times_total(const struct amp_times *);
/* 0..1 */
double amp_times_share(const struct amp_times *, enum amp_time);

/* A table; who begins every line. What never happened has no row. */
void amp_times_print(const struct amp_times *, const char *who, FILE *);
/* The same as members of an object. */
void amp_times_write(const struct amp_times *, struct amp_json *);

#endif
