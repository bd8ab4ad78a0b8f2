/* Decides what a training run prints and logs, and how often. It must not decide anything about the
 * training itself: it gets verdicts and numbers and puts them into words. */
#include "log.h"

#include <math.h>
#include <string.h>

#include "plugin/core/host.h"
#include "plugin/core/read/text.h"
#include "tensors.h"

#define PROGRESS_SECONDS 10
#define MEMORY_SECONDS   1   /* from one look at the memory to the next */
#define WAITING_TOO_LONG 0.1 /* share of the time */
#define SAVING_TOO_LONG  0.02

void amp_log_start(struct amp_log *log, const struct amp_net_desc *net)
{
    memset(log, 0, sizeof *log);
    log->out = stderr;
    log->net = net;
    log->last_fault.class = AMP_FAULT_NONE;
}

/* A share of the time above which a sentence says what helps. */
static void advise(const struct amp_log *log)
{
    static const struct {
        enum amp_time what;
        double most;
        const char *remedy; /* NULL: log->feeding */
    } rows[] = {
        {AMP_TIME_WAITING, WAITING_TOO_LONG, NULL},
        {AMP_TIME_UPDATE, .2, "a larger batch makes fewer updates (amp plan CFG --memory GIB)"},
        {AMP_TIME_PEERS, .2,
         "amp_log's slowest_rank says for whom; amp_wire=bf16 sends half the bytes"},
        {AMP_TIME_EVALUATION, .25, "-map_every or -mAP_epochs measures less often"},
        {AMP_TIME_OTHER, .1,
         "it is Darknet's own work between iterations, its lines on a slow terminal among it: "
         "-quiet leaves them out"},
    };
    static const char *const words[AMP_TIMES] = {[AMP_TIME_WAITING] = "waited for images",
                                                 [AMP_TIME_UPDATE] = "updates took",
                                                 [AMP_TIME_PEERS] = "other processes took",
                                                 [AMP_TIME_EVALUATION] = "evaluation took",
                                                 [AMP_TIME_OTHER] =
                                                     "what is no part of a step took"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double share = amp_times_share(&log->times, rows[i].what);
        const char *remedy = rows[i].remedy ? rows[i].remedy : log->feeding;
        if (share > rows[i].most && remedy)
            fprintf(log->out, "mixed precision: %s%s %.1f %% of the time; %s\n", log->who,
                    words[rows[i].what], 100 * share, remedy);
    }
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
    amp_times_print(&log->times, log->who, log->out);
    advise(log);
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
    if (log->iterations) amp_log_write_summary(log);
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

bool amp_log_wants_memory(const struct amp_log *log)
{
    return !log->place && amp_clock_seconds() - log->memory_looked >= MEMORY_SECONDS;
}

void amp_log_memory(struct amp_log *log, const struct amp_memory *memory)
{
    log->memory = *memory;
    log->memory_looked = amp_clock_seconds();
}

static void print_memory(const struct amp_log *log)
{
    const double gib = 1 << 30;
    const struct amp_memory *m = &log->memory;
    if (m->host) fprintf(log->out, "memory %.2f GiB, ", (double)m->host / gib);
    if (m->device_reserved)
        fprintf(log->out, "device %.2f GiB used, %.2f reserved, ", (double)m->device_used / gib,
                (double)m->device_reserved / gib);
}

static void print_progress(struct amp_log *log, const struct amp_scaler *s, double time)
{
    char scale[32], duration[32], loss[32] = "lost", epoch[40] = "";
    double epochs = amp_log_epoch(log);
    if (isfinite(log->loss)) snprintf(loss, sizeof loss, "%.4g", log->loss);
    if (isfinite(epochs)) snprintf(epoch, sizeof epoch, "epoch %.2f, ", epochs);
    /* Speed since the last progress line, not since the start: it shows changes. */
    double per_iteration = (time - log->window_start) / (double)log->window_iterations;
    double share = log->total ? 100.0 * (double)log->iteration / (double)log->total : 0;
    size_t left = log->total > log->iteration ? log->total - log->iteration : 0;
    flush_repeats(log);
    /* The line is printed in pieces; no other thread may print between them. */
    flockfile(log->out);
    fprintf(log->out,
            "mixed precision: %zu/%zu (%.1f %%), %s%.1f images/s, loss %s, rate %.3g, scale %s, "
            "%lld redone, %lld skipped, ",
            log->iteration, log->total, share, epoch, log->images_per_iteration / per_iteration,
            loss, log->learning_rate, amp_scale_text(s->scale, scale), (long long)s->redone,
            (long long)s->skipped);
    print_memory(log);
    fprintf(log->out, "%s left\n", amp_duration_text(per_iteration * (double)left, duration));
    funlockfile(log->out);
    log->last_progress = log->window_start = time;
    log->window_iterations = 0;
}

void amp_log_step(struct amp_log *log, const struct amp_scaler *s)
{
    /* The clock starts at the first step, not at the start of the program: loading is no training
     * time. */
    if (log->started > 0) return;
    log->start = *s;
    log->started = log->window_start = log->last_progress = log->last_iteration =
        amp_clock_seconds();
    amp_times_start(&log->times);
}

void amp_log_saved(struct amp_log *log, double seconds)
{
    log->saving += seconds;
}

void amp_log_waited(struct amp_log *log, double seconds)
{
    if (!(log->started > 0)) return; /* the first batch: the clock does not run yet */
    log->waiting += seconds;
    amp_times_move(&log->times, AMP_TIME_OTHER, AMP_TIME_WAITING, seconds);
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
    log->learning_rate = numbers->learning_rate;
    if (log->noisy && !log->place)
        amp_noise_add(&log->noise, numbers->pass_norm, numbers->pass_images, numbers->grad_norm,
                      numbers->step_images);
    if (log->json) amp_log_write_iteration(log, s, seconds, numbers);
    log->waiting = 0;
    log->saved += log->saving;
    log->saving = 0;
    if (log->clips && isinf(numbers->grad_norm) && !log->told_norm && !log->place) tell_norm(log);
    if (!log->place && time - log->last_progress >= PROGRESS_SECONDS) print_progress(log, s, time);
    amp_times_enter(&log->times, AMP_TIME_OTHER);
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

void amp_log_add_evaluation(struct amp_log *log, size_t iteration, double map50, double map75,
                            double map, double seconds)
{
    /* All clocks move on by the time of the evaluation, so that speeds and seconds count training
     * only. */
    log->last_iteration += seconds;
    log->window_start += seconds;
    log->started += seconds;
    amp_times_move(&log->times, AMP_TIME_OTHER, AMP_TIME_EVALUATION, seconds);
    amp_log_write_evaluation(log, iteration, map50, map75, map, seconds);
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
