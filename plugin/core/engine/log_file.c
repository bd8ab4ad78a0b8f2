/* The file of amp_log: when it may be written, and what stands in each of its lines. It must not
 * know what people are told (log.c). */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/core/read/json.h"
#include "tensors.h"

#define LINE_BEGINS "{\"iteration\": " /* every line of amp_log */

/* ---- opening ---- */

/* Whether the file begins as our lines do, or is empty; a full disk may have cut its first line
 * off. If it does not, or cannot be read, errno says so. This protects a user's file that amp_log=
 * names by mistake. */
static bool is_log(const char *path)
{
    char begin[sizeof LINE_BEGINS - 1];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, begin, sizeof begin);
    if (fd >= 0) close(fd);
    if (n >= 0) errno = EEXIST;
    return n >= 0 && !memcmp(begin, LINE_BEGINS, (size_t)n);
}

/* By device and inode, since /dev/stdout and the real path are two names of one file. */
static bool is_behind(int fd, const struct stat *file)
{
    struct stat info;
    return !fstat(fd, &info) && info.st_dev == file->st_dev && info.st_ino == file->st_ino;
}

/* If the program's output goes to a file and the log is that same file (amp_log=/dev/stdout): the
 * descriptor that it prints to, so that neither overwrites the other. -1: another file. */
static int find_output(const struct stat *file)
{
    return is_behind(STDOUT_FILENO, file)   ? STDOUT_FILENO
           : is_behind(STDERR_FILENO, file) ? STDERR_FILENO
                                            : -1;
}

/* A descriptor that appends. *own: it belongs to a regular file that only the log writes. -1 with
 * errno. Never waits: opening a pipe without a reader is an error. */
static int open_to_append(const char *path, bool *own)
{
    struct stat info;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
    if (fd < 0) return -1;
    /* Sets the flags to O_APPEND alone: O_NONBLOCK was for opening, writes to a pipe may wait. */
    if (fcntl(fd, F_SETFL, O_APPEND) || fstat(fd, &info)) {
        close(fd);
        return -1;
    }
    *own = false;
    if (!S_ISREG(info.st_mode)) return fd;
    int output = find_output(&info);
    *own = output < 0;
    if (*own && is_log(path)) return fd;
    close(fd);
    return *own ? -1 : fcntl(output, F_DUPFD_CLOEXEC, 0);
}

/* is_log sets EEXIST for a file that is not ours; open sets ENXIO for a pipe without a reader. */
static const char *why_not_opened(const char *path)
{
    struct stat info;
    if (errno == EEXIST)
        return "there is a file that is no log (one begins with " LINE_BEGINS
               "); it is left as it is. Give another name, or remove that file";
    if (errno == ENXIO && !stat(path, &info) && S_ISFIFO(info.st_mode))
        return "it is a pipe that nobody reads";
    return strerror(errno);
}

int amp_log_open(struct amp_log *log, const char *path, char *err, size_t err_size)
{
    /* Only the first of several processes has the file. */
    if (!path[0] || log->place || log->json || log->json_failed) return 0;
    int fd = open_to_append(path, &log->json_is_own);
    log->json = fd < 0 ? NULL : fdopen(fd, "a");
    if (log->json) return 0;
    snprintf(err, err_size, "cannot be written: %s", why_not_opened(path));
    if (fd >= 0) close(fd);
    return -1;
}

/* ---- lines ---- */

/* Without a file nobody would see the numbers, so the look at the layers is spared. */
bool amp_log_wants_layers(const struct amp_log *log, size_t iteration)
{
    return log->json && log->layers_every && iteration % (size_t)log->layers_every == 0;
}

/* Every line of amp_log. */
static struct amp_json begin_line(struct amp_log *log, size_t iteration)
{
    struct amp_json j = {.out = log->json, .digits = AMP_JSON_FLOAT};
    amp_json_begin(&j, NULL, '{');
    amp_json_put(&j, "iteration", "%zu", iteration);
    return j;
}

static void write_layers(struct amp_json *j, const struct amp_numbers *numbers)
{
    if (!numbers->n_layers) return;
    amp_json_begin(j, "layers", '[');
    for (int i = 0; i < numbers->n_layers; i++) {
        const struct amp_layer_numbers *l = &numbers->layers[i];
        amp_json_begin(j, NULL, '{');
        amp_json_put(j, "layer", "%d", i);
        amp_json_string(j, "type", l->type);
        amp_json_string(j, "format", l->format);
        amp_json_number(j, "out_max", l->out_max);
        amp_json_number(j, "delta_max", l->delta_max);
        amp_json_number(j, "delta_zero", l->delta_zero);
        amp_json_end(j, '}');
    }
    amp_json_end(j, ']');
}

/* Puts what was written into the file at once, so that a reader can follow the run. After an error
 * the file is given up: a full disk must not end a training. */
static void end_line(struct amp_log *log, struct amp_json *j)
{
    amp_json_end(j, '}');
    fputc('\n', log->json);
    if (!fflush(log->json)) return;
    fprintf(log->out, "mixed precision: amp_log can no longer be written: %s\n", strerror(errno));
    fclose(log->json);
    log->json = NULL;
    log->json_failed = true;
}

/* What is not there is null, so that a line's columns do not change within a run. */
static void write_memory(struct amp_json *j, const struct amp_memory *m)
{
    amp_json_number(j, "host_memory_bytes", m->host ? (double)m->host : NAN);
    if (!m->device_reserved) return;
    amp_json_number(j, "device_memory_used_bytes", (double)m->device_used);
    amp_json_number(j, "device_memory_reserved_bytes", (double)m->device_reserved);
}

double amp_log_epoch(const struct amp_log *log)
{
    if (!log->listed) return NAN;
    return (double)log->iteration * log->images_per_iteration / (double)log->listed;
}

void amp_log_write_iteration(struct amp_log *log, const struct amp_scaler *s, double seconds,
                             const struct amp_numbers *numbers)
{
    /* A run from the beginning starts a new log; a resumed one appends. */
    bool begins = log->json_is_own && log->iteration == 1 && log->iterations == 1;
    bool emptied = begins && !ftruncate(fileno(log->json), 0);
    (void)emptied; /* an error here shows in the writing too */
    struct amp_json j = begin_line(log, log->iteration);
    amp_json_number(&j, "epoch", amp_log_epoch(log));
    amp_json_number(&j, "loss", log->loss);
    amp_json_put(&j, "learning_rate", "%.7g", numbers->learning_rate); /* a float */
    amp_json_number(&j, "loss_scale", s->scale);
    amp_json_put(&j, "redone", "%lld", (long long)s->redone);
    amp_json_put(&j, "skipped", "%lld", (long long)s->skipped);
    amp_json_number(&j, "seconds", seconds);
    amp_json_number(&j, "images_per_second", log->images_per_iteration / seconds);
    amp_json_number(&j, "loading_seconds", log->waiting);
    if (log->exchanges) {
        amp_json_number(&j, "wait_seconds", log->for_others);
        amp_json_number(&j, "reduce_seconds", log->reducing);
        amp_json_put(&j, "slowest_rank", "%d", log->slowest);
        amp_json_put(&j, "exchanged_bytes", "%llu", (unsigned long long)log->exchanged);
    }
    amp_json_number(&j, "grad_norm", numbers->grad_norm);
    if (log->clips) amp_json_put(&j, "clipped", "%lld", (long long)numbers->clipped);
    if (log->noisy) amp_json_number(&j, "gradient_noise_scale", amp_noise_scale(&log->noise));
    write_memory(&j, &log->memory);
    write_layers(&j, numbers);
    end_line(log, &j);
}

void amp_log_write_evaluation(struct amp_log *log, size_t iteration, double map50, double map75,
                              double map, double seconds)
{
    if (!log->json) return;
    struct amp_json j = begin_line(log, iteration);
    amp_json_begin(&j, "evaluation", '{');
    amp_json_number(&j, "seconds", seconds);
    amp_json_number(&j, "map50", map50);
    amp_json_number(&j, "map75", map75);
    amp_json_number(&j, "map", map);
    amp_json_end(&j, '}');
    end_line(log, &j);
}

void amp_log_write_summary(struct amp_log *log)
{
    if (!log->json) return;
    struct amp_json j = begin_line(log, log->iteration);
    amp_json_begin(&j, "summary", '{');
    amp_times_write(&log->times, &j);
    amp_json_end(&j, '}');
    end_line(log, &j);
}

/* ---- numbers of layers ---- */

/* JSON and the log have no inf: NAN stands for "not finite". */
static double magnitude(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return ampk_amax_is_finite(bits) ? (double)value : NAN;
}

void amp_numbers_read(struct amp_graph *g, bool backward, struct amp_layer_numbers *layers)
{
    size_t n = (size_t)g->n;
    uint32_t *words = calloc(n, AMP_INSPECTED * sizeof *words), *rows[AMP_INSPECTED];
    /* Without memory all numbers of the layers are NAN; training goes on. */
    for (int r = 0; words && r < AMP_INSPECTED; r++)
        rows[r] = words + (size_t)r * n;
    if (words) amp_graph_inspected(g, rows);
    for (int i = 0; i < g->n; i++) {
        bool has_delta = words && backward && amp_graph_has_delta(g, i);
        /* The output of a layer with a fused one after it is stored nowhere. */
        bool has_out = words && amp_plan_writes(g->plan, i) == i;
        double elements = (double)g->net->batch * g->net->layers[i].outputs;
        layers[i] = (struct amp_layer_numbers){
            .type = amp_layer_type_name(g->net->layers[i].type),
            .format = ampk_dtype_name(amp_format_dtype(g->plan->layers[i].out)),
            .out_max = has_out ? magnitude(rows[AMP_INSPECTED_OUT_MAX][i]) : NAN,
            .delta_max = has_delta ? magnitude(rows[AMP_INSPECTED_DELTA_MAX][i]) : NAN,
            .delta_zero = has_delta ? rows[AMP_INSPECTED_DELTA_ZEROS][i] / elements : NAN,
        };
    }
    free(words);
}
