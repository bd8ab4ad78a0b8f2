/* Decides when a progress line is due, and computes rate and time left. It must not know the work
 * that it counts. */
#define _GNU_SOURCE
#include "progress.h"

#include <time.h>

double amp_clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void amp_progress_start(struct amp_progress *progress, FILE *out, const char *what, size_t total)
{
    double now = amp_clock_seconds();
    *progress = (struct amp_progress){out, what, "images", total, now, now};
}

void amp_progress_update(struct amp_progress *progress, size_t done)
{
    double now = amp_clock_seconds();
    /* done == 0 has no rate yet. */
    if (!progress->out || done == 0 || now - progress->last < AMP_PROGRESS_SECONDS) return;
    progress->last = now;
    double rate = (double)done / (now - progress->start);
    fprintf(progress->out, "%s: %zu/%zu %s (%.0f %%), %.4g %s/s, %.0f s left\n", progress->what,
            done, progress->total, progress->unit, 100.0 * (double)done / (double)progress->total,
            rate, progress->unit, (double)(progress->total - done) / rate);
}
