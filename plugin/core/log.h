/* What training tells: a line when something happens to the loss scale, a progress line about every
 * ten seconds, a summary at the end, one JSON object per iteration in amp_log=FILE, and the lines
 * that Darknet's own loss layers print after every pass.
 */
#ifndef AMP_LOG_H
#define AMP_LOG_H

#include <stdint.h>
#include <stdio.h>

#include "fault.h"
#include "graph.h"
#include "net.h"
#include "scaler.h"

/* NAN: there is none, or it is not finite. */
struct amp_layer_numbers {
    const char *type, *format; /* of output and delta: "fp32", "fp16" or "bf16" */
    double out_max;            /* largest magnitude of the output */
    double delta_max;          /* of its delta, times the loss scale */
    double delta_zero;         /* share of the delta's elements that are zero */
};

struct amp_numbers {
    double grad_norm; /* of the step's gradient sums, unscaled; NAN: the step was skipped */
    int n_layers;     /* 0: not looked at in this step */
    struct amp_layer_numbers *layers;
};

struct amp_log {
    FILE *out;        /* lines for people */
    FILE *json;       /* NULL: none */
    bool json_is_own; /* a regular file of its own, which a new run empties */
    bool json_failed; /* while training: not tried again */
    bool said_no_norm;
    int layers_every;    /* iterations from one look at the layers to the next; 0: never */
    int place, together; /* among the networks that are trained together, and how many; 0: alone */
    char who[24];        /* what its lines begin with, if there are several */
    const struct amp_net_desc *net;
    double started, last_progress, last_iteration; /* seconds, monotonic */
    double window_start;
    int64_t window_iterations, iterations;
    int images_per_iteration;
    struct amp_scaler start; /* what earlier runs had counted before the first step of this one */
    struct amp_fault last_fault; /* to count repeats instead of repeating them */
    enum amp_verdict last_verdict;
    int64_t repeats;
    double repeat_scale;
    double loss;
    size_t iteration, total;
};

void amp_log_start(struct amp_log *, const struct amp_net_desc *);
/* The file for iterations, if it is not open; path "" = none. What is there must be an older log,
 * be empty, or be no regular file. -1 with the reason in err. */
int amp_log_open(struct amp_log *, const char *path, char *err, size_t err_size);
/* Prints the summary: the iterations of this run and what was counted in them. A run that goes on
 * where another one stopped takes over the counts of that one; those are told apart. */
void amp_log_close(struct amp_log *, const struct amp_scaler *);
/* One of several networks that are trained together, each on a GPU. The first (place 0) has the
 * file and prints the progress of all; the other lines say whose they are. 0 of 1: alone. */
void amp_log_share(struct amp_log *, int place, int together, int gpu);

/* A step begins: the first one starts the clock. */
void amp_log_step(struct amp_log *, const struct amp_scaler *);
/* A pass failed; verdict tells what follows. old_scale: the scale it ran with. image: path or NULL.
 */
void amp_log_fault(struct amp_log *, const struct amp_fault *, enum amp_verdict, double old_scale,
                   double new_scale, int subdivision, const char *image);
/* Layers left FP16 in that many of the last iterations: more than chance. */
void amp_log_many_demotions(struct amp_log *, int iterations, int window);
/* What would end a run that does not want to be ended. */
void amp_log_carry_on(struct amp_log *, const char *why);
/* There was no memory for the gradient's norm. */
void amp_log_without_norm(struct amp_log *);
/* The search ended, or the scale grew. */
void amp_log_scale(struct amp_log *, const char *why, double old_scale, double new_scale);
/* Whether the file is to tell of the layers in this iteration. */
bool amp_log_wants_layers(const struct amp_log *, size_t iteration);
/* A step ended. */
void amp_log_iteration(struct amp_log *, const struct amp_scaler *, size_t iteration, size_t total,
                       double loss, int images, const struct amp_numbers *);

/* The weights of this iteration were measured: an object of its own in the file. seconds: what that
 * took, which is nobody's training time. */
void amp_log_add_evaluation(struct amp_log *, size_t iteration, double map50, double map75,
                            double map, double seconds);

/* What amp_log tells of the layers: of the last pass, which was inspected. backward: it got so far.
 * layers: one for each of the graph's. */
void amp_numbers_read(struct amp_graph *, bool backward, struct amp_layer_numbers *layers);

/* The lines of yolo and region layers whose loss is on the device, as last read, in the layers'
 * order. */
void amp_loss_lines_print(const struct amp_graph *, FILE *);

#endif
