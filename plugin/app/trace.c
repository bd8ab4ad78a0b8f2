/* Keeps events in memory, and writes them when all is done. */
#include "trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "plugin/core/files/file.h"
#include "plugin/core/read/json.h"

void amp_trace_add(struct amp_trace *t, int row, const char *kind, const char *name, double begin,
                   double end)
{
    pthread_mutex_lock(&t->lock);
    if (t->n == t->room) {
        size_t room = 2 * t->room + 1000;
        struct amp_trace_event *more = realloc(t->events, room * sizeof *more);
        t->failed |= !more;
        if (more) t->events = more;
        if (more) t->room = room;
    }
    if (t->n < t->room) {
        struct amp_trace_event *e = &t->events[t->n++];
        *e = (struct amp_trace_event){.kind = kind, .row = row, .begin = begin, .end = end};
        snprintf(e->name, sizeof e->name, "%s", name);
    }
    pthread_mutex_unlock(&t->lock);
}

static double first_begin(const struct amp_trace *t)
{
    double first = INFINITY;
    for (size_t i = 0; i < t->n; i++)
        first = fmin(first, t->events[i].begin);
    return first;
}

static void write_row(struct amp_json *j, int row, const char *name)
{
    amp_json_line(j, 1);
    amp_json_begin(j, NULL, '{');
    amp_json_string(j, "ph", "M");
    amp_json_string(j, "name", "thread_name");
    amp_json_put(j, "pid", "%d", 1);
    amp_json_put(j, "tid", "%d", row);
    amp_json_begin(j, "args", '{');
    amp_json_string(j, "name", name);
    amp_json_end(j, '}');
    amp_json_end(j, '}');
}

/* "X": a complete event; times in microseconds. */
static void write_event(struct amp_json *j, const struct amp_trace_event *e, double start)
{
    amp_json_line(j, 1);
    amp_json_begin(j, NULL, '{');
    amp_json_string(j, "ph", "X");
    amp_json_string(j, "name", e->name);
    amp_json_string(j, "cat", e->kind);
    amp_json_put(j, "pid", "%d", 1);
    amp_json_put(j, "tid", "%d", e->row);
    amp_json_put(j, "ts", "%.3f", 1e6 * (e->begin - start));
    amp_json_put(j, "dur", "%.3f", 1e6 * (e->end - e->begin));
    amp_json_end(j, '}');
}

struct printed {
    const struct amp_trace *trace;
    const char *const *names;
};

static int print(FILE *out, const void *user)
{
    const struct printed *p = user;
    struct amp_json j = {.out = out, .digits = AMP_JSON_EXACT};
    double start = first_begin(p->trace);
    amp_json_begin(&j, NULL, '{');
    amp_json_string(&j, "format", AMP_TRACE_FORMAT);
    amp_json_string(&j, "displayTimeUnit", "ms");
    amp_json_begin(&j, "traceEvents", '[');
    for (int row = 0; p->names[row]; row++)
        write_row(&j, row, p->names[row]);
    for (size_t i = 0; i < p->trace->n; i++)
        write_event(&j, &p->trace->events[i], start);
    amp_json_end(&j, ']');
    amp_json_end(&j, '}');
    fputc('\n', out);
    return p->trace->failed ? -1 : 0;
}

int amp_trace_write(const struct amp_trace *t, const char *const *names, const char *path,
                    char *err, size_t err_size)
{
    const struct printed p = {t, names};
    return amp_whole_print(path, print, &p, err, err_size);
}

void amp_trace_free(struct amp_trace *t)
{
    free(t->events);
}
