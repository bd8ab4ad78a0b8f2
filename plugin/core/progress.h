/* A progress line, at most one every AMP_PROGRESS_SECONDS. */
#ifndef AMP_PROGRESS_H
#define AMP_PROGRESS_H

#include <stddef.h>
#include <stdio.h>

#define AMP_PROGRESS_SECONDS 2.0

struct amp_progress {
    FILE *out;
    const char *what; /* "evaluating" */
    const char *unit; /* unit of total: "images", unless the caller changes it after the start */
    size_t total;
    double start, last;
};

/* Seconds on a clock that only goes forward. */
double amp_clock_seconds(void);

/* out: NULL for silence. */
void amp_progress_start(struct amp_progress *progress, FILE *out, const char *what, size_t total);
/* Says that done of total are finished; prints if it is time for a line. */
void amp_progress_update(struct amp_progress *progress, size_t done);

#endif
