/* Decides what a training run prints and logs, and how often. It must not decide anything about the
 * training itself: it gets verdicts and numbers and puts them into words. */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/core/read/json.h"
#include "plugin/core/read/text.h"
#include "plugin/core/host.h"
#include "tensors.h"

#define PROGRESS_SECONDS 10
#define WAITING_TOO_LONG 0.1 /* share of the time */
#define SAVING_TOO_LONG  0.02
#define LINE_BEGINS      "{\"iteration\": " /* every line of amp_log */

void amp_log_start(struct amp_log *log, const struct amp_net_desc *net)
{
    memset(log, 0, sizeof *log);
    log->out = stderr;
    log->net = net;
    log->last_fault.class = AMP_FAULT_NONE;
}

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

static void print_waiting(const struct amp_log *log, double seconds)
{
    double share = seconds > 0 ? log->waited / seconds : 0;
    fprintf(log->out, "mixed precision: %swaited for images %.1f %% of the time", log->who,
            100 * share);
    if (share > WAITING_TOO_LONG && log->feeding) fprintf(log->out, "; %s", log->feeding);
    fputc('\n', log->out);
}

static void print_saving(const struct amp_log *log, double seconds)
{
    if (seconds > 0 && log->saved > SAVING_TOO_LONG * seconds)
        fprintf(log->out,
                "mixed precision: %sbackups held up training for %.1f %% of the time; "
                "amp_backup_every=auto or a larger one leaves out more of them\n",
                log->who, 100 * log->saved / seconds);
}

/* Also prints redone and skipped of all runs together, since progress lines and amp_log show those
 * numbers. */
static void print_summary(struct amp_log *log, const struct amp_scaler *s)
{
    char scale[32];
    /* Up to the last iteration: saving at the end is no training time. */
    double seconds = log->last_iteration - log->started;
    const struct amp_scaler *from = &log->start;
    fprintf(
        log->out,
        "mixed precision: %s%lld iterations in %.1f s (%.1f images/s); loss scale %s at the end, "
        "raised %lld times, "
        "lowered %lld times; %lld passes redone, %lld steps skipped",
        log->who, (long long)log->iterations, seconds,
        seconds > 0 ? (double)log->iterations * log->images_per_iteration / seconds : 0,
        amp_scale_text(s->scale, scale), (long long)(s->grown - from->grown),
        (long long)(s->backed_off - from->backed_off), (long long)(s->redone - from->redone),
        (long long)(s->skipped - from->skipped));
    /* Only for a resumed run; otherwise both numbers are equal. */
    if (from->redone || from->skipped)
        fprintf(log->out, " (%lld and %lld with the runs before)", (long long)s->redone,
                (long long)s->skipped);
    if (log->replaced && log->replaced())
        fprintf(log->out, "; %lld images that could not be decoded replaced by others",
                log->replaced());
    if (log->clips) fprintf(log->out, "; gradients of %lld steps clipped", (long long)log->clipped);
    fputc('\n', log->out);
    print_waiting(log, seconds);
    print_saving(log, seconds);
}

/* A fault that repeats is counted, not printed again: at the floor every step would print a
 * line. */
static void flush_repeats(struct amp_log *log)
{
    char scale[32];
    if (log->repeats)
        fprintf(log->out, "mixed precision: %sthe same %lld more times; loss scale now %s\n",
                log->who, (long long)log->repeats, amp_scale_text(log->repeat_scale, scale));
    log->repeats = 0;
}

void amp_log_close(struct amp_log *log, const struct amp_scaler *s)
{
    flush_repeats(log);
    if (log->iterations) print_summary(log, s);
    if (log->json) fclose(log->json);
    log->json = NULL;
    log->iterations = 0;
}

/* What the user wants to know next: does it cost a pass, a step, or precision? */
static const char *consequence(const struct amp_fault *f, enum amp_verdict verdict)
{
    if (verdict == AMP_VERDICT_RETRY) return "backward pass redone";
    switch (f->class) {
    case AMP_FAULT_INPUT:
        return "step skipped; the loss scale is not to blame and stays";
    case AMP_FAULT_FORWARD:
        return "step skipped; this layer continues in FP32, the loss scale stays";
    default:
        return "step skipped";
    }
}

static const char *description(const struct amp_fault *f)
{
    switch (f->class) {
    case AMP_FAULT_INPUT:
        return isfinite(f->magnitude) ? "is no box" : "is not finite";
    case AMP_FAULT_FORWARD:
        return "does not fit FP16";
    case AMP_FAULT_DIVERGED:
        return "is not finite although all its operands are";
    default:
        return "overflowed";
    }
}

/* Two bad images are two facts, so they are never taken for a repeat. */
static int same_place(const struct amp_fault *a, const struct amp_fault *b)
{
    if (a->class == AMP_FAULT_INPUT) return 0; /* another image */
    return a->class == b->class && a->layer == b->layer && a->tensor == b->tensor;
}

void amp_log_fault(struct amp_log *log, const struct amp_fault *f, enum amp_verdict verdict,
                   double old_scale, double new_scale, int subdivision, const char *image)
{
    if (same_place(f, &log->last_fault) && verdict == log->last_verdict) {
        log->repeats++;
        log->repeat_scale = new_scale;
        return;
    }
    flush_repeats(log);
    log->last_fault = *f;
    log->last_verdict = verdict;
    char from[32], to[32];
    flockfile(log->out); /* threads of other networks print lines too */
    fprintf(log->out,
            "mixed precision: %s%s of layer %d (%s) %s (largest %.3g, subdivision %d%s%s)",
            log->who, amp_fault_tensor(f, log->net), f->layer,
            amp_layer_type_name(log->net->layers[f->layer].type), description(f), f->magnitude,
            subdivision, image ? ", image " : "", image ? image : "");
    if (new_scale != old_scale)
        fprintf(log->out, "; loss scale %s -> %s", amp_scale_text(old_scale, from),
                amp_scale_text(new_scale, to));
    fprintf(log->out, "; %s\n", consequence(f, verdict));
    funlockfile(log->out);
}

void amp_log_fault_of(struct amp_log *log, int rank, const struct amp_fault *f,
                      enum amp_verdict verdict, double old_scale, double new_scale, int subdivision,
                      const char *image)
{
    char who[sizeof log->who];
    memcpy(who, log->who, sizeof who);
    if (rank >= 0) snprintf(log->who, sizeof log->who, "rank %d: ", rank);
    amp_log_fault(log, f, verdict, old_scale, new_scale, subdivision, image);
    memcpy(log->who, who, sizeof who);
}

const char *amp_log_slower_start(const struct amp_log *log)
{
    return log->onecycle ? "raise max_batches" : "lengthen burn_in";
}

void amp_log_many_demotions(struct amp_log *log, int iterations, int window)
{
    fprintf(log->out,
            "mixed precision: %slayers left FP16 in %d of the last %d iterations: values that grow "
            "like this look like divergence; lower learning_rate, or %s\n",
            log->who, iterations, window, amp_log_slower_start(log));
}

/* The repeats come first, so that lines stay in the order of events. */
void amp_log_carry_on(struct amp_log *log, const char *why)
{
    flush_repeats(log);
    fprintf(log->out, "mixed precision: %s%s; going on, as amp_on_divergence=continue says\n",
            log->who, why);
}

void amp_log_scale(struct amp_log *log, const char *why, double old_scale, double new_scale)
{
    char from[32], to[32];
    flush_repeats(log);
    log->last_fault.class = AMP_FAULT_NONE; /* the next overflow is printed in full */
    fprintf(log->out, "mixed precision: %sloss scale %s -> %s (%s)\n", log->who,
            amp_scale_text(old_scale, from), amp_scale_text(new_scale, to), why);
}

static void print_progress(struct amp_log *log, const struct amp_scaler *s, double time)
{
    char scale[32], duration[32], loss[32] = "lost";
    if (isfinite(log->loss)) snprintf(loss, sizeof loss, "%.4g", log->loss);
    /* Speed since the last progress line, not since the start: it shows changes. */
    double per_iteration = (time - log->window_start) / (double)log->window_iterations;
    double share = log->total ? 100.0 * (double)log->iteration / (double)log->total : 0;
    size_t left = log->total > log->iteration ? log->total - log->iteration : 0;
    flush_repeats(log);
    /* The line is printed in pieces; no other thread may print between them. */
    flockfile(log->out);
    fprintf(log->out,
            "mixed precision: %zu/%zu (%.1f %%), %.1f images/s, loss %s, scale %s, %lld redone, "
            "%lld skipped, ",
            log->iteration, log->total, share, log->images_per_iteration / per_iteration, loss,
            amp_scale_text(s->scale, scale), (long long)s->redone, (long long)s->skipped);
    fprintf(log->out, "%s left\n", amp_duration_text(per_iteration * (double)left, duration));
    funlockfile(log->out);
    log->last_progress = log->window_start = time;
    log->window_iterations = 0;
}

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

static void write_json(struct amp_log *log, const struct amp_scaler *s, double seconds,
                       const struct amp_numbers *numbers)
{
    /* A run from the beginning starts a new log; a resumed one appends. */
    bool begins = log->json_is_own && log->iteration == 1 && log->iterations == 1;
    bool emptied = begins && !ftruncate(fileno(log->json), 0);
    (void)emptied; /* an error here shows in the writing too */
    struct amp_json j = begin_line(log, log->iteration);
    amp_json_number(&j, "loss", log->loss);
    amp_json_number(&j, "loss_scale", s->scale);
    amp_json_put(&j, "redone", "%lld", (long long)s->redone);
    amp_json_put(&j, "skipped", "%lld", (long long)s->skipped);
    amp_json_number(&j, "seconds", seconds);
    amp_json_number(&j, "loading_seconds", log->waiting);
    if (log->exchanges) {
        amp_json_number(&j, "wait_seconds", log->for_others);
        amp_json_number(&j, "reduce_seconds", log->reducing);
        amp_json_put(&j, "slowest_rank", "%d", log->slowest);
        amp_json_put(&j, "exchanged_bytes", "%llu", (unsigned long long)log->exchanged);
    }
    amp_json_number(&j, "grad_norm", numbers->grad_norm);
    if (log->clips) amp_json_put(&j, "clipped", "%lld", (long long)numbers->clipped);
    write_layers(&j, numbers);
    end_line(log, &j);
}

void amp_log_step(struct amp_log *log, const struct amp_scaler *s)
{
    /* The clock starts at the first step, not at the start of the program: loading is no training
     * time. */
    if (log->started > 0) return;
    log->start = *s;
    log->started = log->window_start = log->last_progress = log->last_iteration =
        amp_clock_seconds();
}

void amp_log_saved(struct amp_log *log, double seconds)
{
    log->saving += seconds;
}

void amp_log_waited(struct amp_log *log, double seconds)
{
    if (!(log->started > 0)) return; /* the first batch: the clock does not run yet */
    log->waiting += seconds;
    log->waited += seconds;
}

void amp_log_exchanged(struct amp_log *log, double waiting, double reducing, int slowest,
                       uint64_t bytes)
{
    log->exchanges = true;
    log->for_others = waiting;
    log->reducing = reducing;
    log->slowest = slowest;
    log->exchanged = bytes;
}

/* Finite gradients whose norm is inf: the factor of clip_grad_norm is 0. */
static void tell_norm(struct amp_log *log)
{
    log->told_norm = true;
    flush_repeats(log);
    fprintf(log->out,
            "mixed precision: iteration %zu: the gradients' norm is so large that FP32 cannot hold "
            "its square, so clip_grad_norm makes them 0, now and whenever it happens again; values "
            "that grow like this look like divergence; lower learning_rate, or %s\n",
            log->iteration, amp_log_slower_start(log));
}

void amp_log_iteration(struct amp_log *log, const struct amp_scaler *s, size_t iteration,
                       size_t total, double loss, int images, const struct amp_numbers *numbers)
{
    double time = amp_clock_seconds(), seconds = time - log->last_iteration;
    log->last_iteration = time;
    log->iterations++;
    log->window_iterations++;
    log->loss = loss;
    log->clipped = numbers->clipped;
    log->iteration = iteration;
    log->total = total;
    log->images_per_iteration = images;
    if (log->json) write_json(log, s, seconds, numbers);
    log->waiting = 0;
    log->saved += log->saving;
    log->saving = 0;
    if (log->clips && isinf(numbers->grad_norm) && !log->told_norm && !log->place) tell_norm(log);
    if (!log->place && time - log->last_progress >= PROGRESS_SECONDS) print_progress(log, s, time);
}

/* With Darknet's arithmetic. */
static float add_to_average(struct amp_log *log, float loss)
{
    if (!log->averages) log->average = loss;
    log->averages = true;
    log->average = (float)((double)log->average * .9 + (double)loss * .1);
    return loss;
}

float amp_log_tell(struct amp_log *log, float loss)
{
    if (isfinite(log->loss) && isfinite(loss)) return add_to_average(log, loss);
    float told = log->averages ? log->average : -1;
    if (!log->place)
        fprintf(log->out,
                "mixed precision: iteration %zu: its loss is lost, since a value in it is not "
                "finite; Darknet's line shows %g, %s\n",
                log->iteration, (double)told,
                log->averages ? "the average of the losses before" : "as there was no loss before");
    return told;
}

void amp_log_add_evaluation(struct amp_log *log, size_t iteration, double seconds,
                            const struct amp_figure *figures, int n,
                            const struct amp_class_figure *of_classes, int n_classes)
{
    /* All clocks move on by the time of the evaluation, so that speeds and seconds count training
     * only. */
    log->last_iteration += seconds;
    log->window_start += seconds;
    log->started += seconds;
    if (!log->json) return;
    struct amp_json j = begin_line(log, iteration);
    amp_json_begin(&j, "evaluation", '{');
    amp_json_number(&j, "seconds", seconds);
    for (int i = 0; i < n; i++)
        amp_json_number(&j, figures[i].name, figures[i].value);
    if (n_classes) amp_json_begin(&j, "classes", '[');
    for (int i = 0; i < n_classes; i++) {
        amp_json_begin(&j, NULL, '{');
        amp_json_string(&j, "name", of_classes[i].class_name);
        amp_json_number(&j, of_classes[i].figure.name, of_classes[i].figure.value);
        amp_json_end(&j, '}');
    }
    if (n_classes) amp_json_end(&j, ']');
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

/* ---- lines of losses ---- */

/* In Darknet's words, since scripts parse these lines. Averages over no truths are NaN, as
 * Darknet's are. */
static void print_yolo(const struct ampk_loss_sums *s, int layer, float boxes, FILE *to)
{
    fprintf(to,
            "Region %d Avg IOU: %f, Class: %f, Obj: %f, No Obj: %f, .5R: %f, .75R: %f,  "
            "count: %d\n",
            layer, (double)(s->iou / s->count), (double)(s->category / s->category_count),
            (double)(s->object / s->count), (double)(s->any_object / boxes),
            (double)(s->recall / s->count), (double)(s->recall75 / s->count), (int)s->count);
}

static void print_region(const struct ampk_loss_sums *s, float boxes, FILE *to)
{
    fprintf(to, "Region Avg IOU: %f, Class: %f, Obj: %f, No Obj: %f, Avg Recall: %f,  count: %d\n",
            (double)(s->iou / s->count), (double)(s->category / s->category_count),
            (double)(s->object / s->count), (double)(s->any_object / boxes),
            (double)(s->recall / s->count), (int)s->count);
}

void amp_loss_lines_print(const struct amp_graph *g, FILE *to)
{
    for (int i = 0; i < g->n; i++) {
        const struct amp_layer_desc *l = &g->net->layers[i];
        const struct ampk_loss_sums *s = amp_graph_loss(g, i);
        float boxes = (float)l->w * (float)l->h * (float)l->num * (float)g->net->batch;
        if (s && l->type == AMP_YOLO) print_yolo(s, i, boxes, to);
        if (s && l->type == AMP_REGION) print_region(s, boxes, to);
    }
}
