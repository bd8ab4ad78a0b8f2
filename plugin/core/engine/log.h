/* Everything that training prints or logs: a line when something happens to the loss scale, a
 * progress line about every ten seconds, a summary at the end, one JSON object per iteration in
 * amp_log=FILE, and the lines that Darknet's own loss layers print after every pass. */
#ifndef AMP_LOG_H
#define AMP_LOG_H

#include <stdint.h>
#include <stdio.h>

#include "guard.h"
#include "graph.h"
#include "noise.h"
#include "times.h"
#include "plugin/include/amp.h"
#include "plugin/core/net/net.h"

/* Numbers of one layer. NAN: the number does not exist, or is not finite. */
struct amp_layer_numbers {
    const char *type, *format; /* of output and delta: "fp32", "fp16" or "bf16" */
    double out_max;            /* largest magnitude of the output */
    double delta_max;          /* of its delta, times the loss scale */
    double delta_zero;         /* share of the delta's elements that are zero */
};

struct amp_numbers {
    double grad_norm; /* of the step's gradient sums, unscaled; NAN: the step was skipped; inf: FP32
                         cannot hold its square */
    double learning_rate;
    double
        pass_norm; /* of the gradients of one of the step's passes, unscaled; NAN: not asked for */
    double pass_images, step_images;
    int64_t clipped; /* steps so far whose gradients clip_grad_norm made smaller, this one too */
    int n_layers;    /* 0: this step did not look at layers */
    struct amp_layer_numbers *layers;
};

/* In bytes; 0: unknown. */
struct amp_memory {
    size_t host;                         /* of this process, resident */
    size_t device_used, device_reserved; /* kernels.h, memory */
};

struct amp_log {
    FILE *out;        /* lines for people */
    FILE *json;       /* NULL: none */
    bool json_is_own; /* the file is a regular one that only the log writes; a new run empties it */
    bool json_failed; /* a write failed during training; the file is not tried again */
    bool clips;       /* clip_grad_norm: the number of clipped steps is told */
    bool onecycle;    /* the policy, which takes no burn_in: advice names max_batches */
    int64_t clipped;  /* the last one told */
    bool told_norm;   /* that a norm could not be computed */
    int layers_every; /* iterations from one look at the layers to the next; 0: never */
    int place;        /* among the processes that train together: only 0 has the file, and prints
                         the progress */
    char who[24];     /* begin of lines about another process */
    const struct amp_net_desc *net;
    double started, last_progress, last_iteration; /* seconds, monotonic */
    double window_start;
    int64_t window_iterations, iterations;
    int images_per_iteration;
    struct amp_scaler start;     /* counts of earlier runs, before the first step of this one */
    struct amp_fault last_fault; /* to count repeats instead of repeating them */
    enum amp_verdict last_verdict;
    int64_t repeats;
    double repeat_scale;
    double loss;   /* of the last iteration; NAN: lost */
    bool averages; /* average is that of a loss at least */
    float average; /* of the losses told, as Darknet's trainers smooth them */
    size_t iteration, total;
    double learning_rate;
    size_t listed;        /* images of the training list; 0: it has no such list */
    double waiting;       /* seconds for images in this iteration */
    double saving, saved; /* seconds that backups held up training: in this iteration, in the run */
    struct amp_times times;
    struct amp_memory memory;
    double memory_looked; /* when it was looked at */
    bool noisy;           /* the gradient noise scale is asked for */
    struct amp_noise noise;
    long long (*replaced)(void); /* images that could not be decoded, and others took their place;
                                    NULL: nobody counts */
    const char *feeding;         /* what would shorten the waiting; NULL: nothing is known */
    bool exchanges;              /* with other processes; in this iteration: */
    double for_others, reducing; /* seconds */
    int slowest;                 /* the process that the others waited for */
    uint64_t exchanged;          /* bytes of this process */
};

void amp_log_start(struct amp_log *, const struct amp_net_desc *);
/* Opens the file for iterations unless it is open; path "" = none. An existing file must be an
 * older log, empty, or not a regular file. -1 with the reason in err. */
int amp_log_open(struct amp_log *, const char *path, char *err, size_t err_size);
/* Prints the summary: this run's iterations and counts. A resumed run also has the counts of the
 * runs before; the summary names them separately. */
void amp_log_close(struct amp_log *, const struct amp_scaler *);
/* A step begins: the first one starts the clock. */
void amp_log_step(struct amp_log *, const struct amp_scaler *);
/* Training waited so long for the images of the coming iteration, which is part of its time. */
void amp_log_waited(struct amp_log *, double seconds);
/* A backup held up training so long, which is part of the time of the iteration to come. Not with
 * amp_backup_every=auto, which needs no advice. */
void amp_log_saved(struct amp_log *, double seconds);
/* Whether it is time to look at the memory again; what was seen. */
bool amp_log_wants_memory(const struct amp_log *);
void amp_log_memory(struct amp_log *, const struct amp_memory *);
/* What this iteration's exchange with other processes took: seconds of waiting until all had come,
 * seconds of adding up, which process came last, and bytes of this one that were exchanged. */
void amp_log_exchanged(struct amp_log *, double waiting, double reducing, int slowest,
                       uint64_t bytes);
/* A pass failed, and verdict says what follows. old_scale: the scale of that pass. image: path or
 * NULL. */
void amp_log_fault(struct amp_log *, const struct amp_fault *, enum amp_verdict, double old_scale,
                   double new_scale, int subdivision, const char *image);
/* The same of another process; rank -1: of this one. */
void amp_log_fault_of(struct amp_log *, int rank, const struct amp_fault *, enum amp_verdict,
                      double old_scale, double new_scale, int subdivision, const char *image);
/* What makes the rate rise more slowly, for advice: "lengthen burn_in", or what fits the policy. */
const char *amp_log_slower_start(const struct amp_log *);
/* Layers left FP16 in so many of the last iterations that it cannot be chance. */
void amp_log_many_demotions(struct amp_log *, int iterations, int window);
/* A fault that would have ended the run, if amp_on_divergence=continue did not forbid it. */
void amp_log_carry_on(struct amp_log *, const char *why);
/* The search ended, or the scale grew. */
void amp_log_scale(struct amp_log *, const char *why, double old_scale, double new_scale);
/* Whether the file gets numbers of the layers in this iteration. */
bool amp_log_wants_layers(const struct amp_log *, size_t iteration);
/* A step ended. */
void amp_log_iteration(struct amp_log *, const struct amp_scaler *, size_t iteration, size_t total,
                       double loss, int images, const struct amp_numbers *);

/* What Darknet is told of the last iteration, whose loss it prints and averages: the loss, or, if
 * it is lost, Darknet's own average, which that leaves as it is, with a line that says so; -1, by
 * which its trainers know that there is none, if no loss came before. Once per iteration. */
float amp_log_tell(struct amp_log *, float loss);

/* Writes an object of its own to the file: a measurement of this iteration's weights. seconds: time
 * that it took; they do not count as training time. */
void amp_log_add_evaluation(struct amp_log *, size_t iteration, double seconds,
                            const struct amp_figure *, int n, const struct amp_class_figure *,
                            int n_classes);

/* ---- the file (log_file.c); nothing where there is none ---- */

/* Epochs so far, a fraction; NAN: no list. The progress line has it too. */
double amp_log_epoch(const struct amp_log *);
void amp_log_write_iteration(struct amp_log *, const struct amp_scaler *, double seconds,
                             const struct amp_numbers *);
void amp_log_write_evaluation(struct amp_log *, size_t iteration, double seconds,
                              const struct amp_figure *, int n, const struct amp_class_figure *,
                              int n_classes);
void amp_log_write_summary(struct amp_log *);

/* Reads the numbers of the layers for amp_log, from the last pass, which was inspected. backward:
 * that pass ran backward. layers: room for one per layer of the graph. */
void amp_numbers_read(struct amp_graph *, bool backward, struct amp_layer_numbers *layers);

/* Prints the lines of yolo and region layers whose loss is ours, from the last sums read,
 * in the layers' order. */
void amp_loss_lines_print(const struct amp_graph *, FILE *);

#endif
