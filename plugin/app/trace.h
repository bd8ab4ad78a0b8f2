/* What ran when, on which thread, in the format of Chrome's tracing, which Perfetto reads too. */
#ifndef AMP_TRACE_H
#define AMP_TRACE_H

#include <pthread.h>
#include <stddef.h>

struct amp_trace {
    pthread_mutex_t lock; /* of all below: loader threads add, too */
    struct amp_trace_event *events;
    size_t n, room;
    int failed; /* no memory for an event */
};

struct amp_trace_event {
    char name[60];
    const char *kind; /* that can be filtered by */
    int row;          /* of the picture */
    double begin, end;
};

/* For threads at once. begin, end: by amp_clock_seconds. name is copied, and cut off where it is
 * long. */
void amp_trace_add(struct amp_trace *, int row, const char *kind, const char *name, double begin,
                   double end);
#define AMP_TRACE_FORMAT "darknet-amp trace 1" /* near the beginning of the file */
/* Writes the file, whole or not at all. names: of rows, then NULL. 0, or -1 with text in err. */
int amp_trace_write(const struct amp_trace *, const char *const *names, const char *path, char *err,
                    size_t err_size);
void amp_trace_free(struct amp_trace *);

#endif
