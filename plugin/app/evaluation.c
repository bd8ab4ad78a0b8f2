/* Decides when a network is measured while it trains, and what is said and kept of it: with
 * ema_alpha the moving average of the weights is measured and kept. It must not know what is
 * measured (measure_map.c, measure_top.c), how weights are kept (best.c), or which weights the twin
 * is given (twin.c).
 *
 * A second network, the twin, is measured: the trained one would need batch 1 for that, and
 * inference moves state that training needs. */
#define _GNU_SOURCE
#include "evaluation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "amp_observe.h"

#include "plugin/core/host.h"
#include "plugin/core/net/net.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/core/read/cfg.h"
#include "plugin/core/read/options.h"
#include "plugin/spread/launcher.h"

#define LEAST_EVERY 100 /* iterations between two measurements, unless the user says otherwise */

struct amp_evaluator {
    const struct amp_measure *measure;
    void *own; /* the measure's */
    network *twin;
    size_t every, burn_in, total, step; /* total: iterations, 0 without end; step: images of one */
    struct amp_evaluation last;
    struct amp_best best;
    bool averaged; /* the twin has the moving average of the weights */
    int patience;  /* evaluations; 0: no end before the last iteration */
    int rank;
};

static const struct amp_evaluation none = {.values = {NAN, NAN, NAN}};

/* ---- measuring ---- */

static int measure(struct amp_evaluator *e, bool shared, size_t iteration,
                   struct amp_evaluation *result)
{
    double start = amp_clock_seconds();
    struct amp_evaluation found = none;
    if (e->measure->run(e->own, e->twin, shared, found.values)) return -1;
    found.iteration = (unsigned long)iteration;
    found.seconds = amp_clock_seconds() - start;
    *result = found;
    return 0;
}

/* Finds the best of the run that goes on: what its record says, or measured again. */
static void take_up_best(struct amp_evaluator *e)
{
    int found = amp_best_find(&e->best);
    if (!found || (found > 0 && e->measure->lasts(e->own))) return;
    e->best.evaluation = none;
    if (found > 0)
        fprintf(stderr, "darknet-amp: %s are measured again, by the words of this run\n",
                e->best.weights);
    else
        fprintf(stderr, "darknet-amp: %s is not of %s, which are measured again\n", e->best.record,
                e->best.weights);
    load_weights(e->twin, e->best.weights);
    /* Loading has set `seen`; the twin itself trains nothing, so it goes back to 0. */
    size_t iteration = *e->twin->seen / e->step;
    *e->twin->seen = 0;
    measure(e, false, iteration, &e->best.evaluation);
}

/* ---- what is needed ---- */

/* An image a line, as Darknet's get_paths reads the list. */
static size_t count_lines(const char *path)
{
    char *line = NULL;
    size_t size = 0, lines = 0;
    FILE *f = fopen(path, "r");
    while (f && getline(&line, &size, f) >= 0)
        lines++;
    free(line);
    if (f) fclose(f);
    return lines;
}

/* Epochs, but at least LEAST_EVERY iterations: on a small list measuring would take longer than
 * training. */
static void read_schedule(struct amp_evaluator *e, const struct amp_cfg_file *data,
                          const struct amp_net_desc *net, const struct amp_train_words *w)
{
    size_t step = (size_t)net->batch * (size_t)net->subdivisions;
    size_t images = count_lines(amp_cfg_string(data->sections, "train", "data/train.list"));
    size_t epochs = (images + step - 1) / step * (size_t)(w->map_epochs ? w->map_epochs : 1);
    e->every = w->map_every ? (size_t)w->map_every : epochs > LEAST_EVERY ? epochs : LEAST_EVERY;
    e->step = step;
    e->burn_in = (size_t)net->burn_in;
    e->total = (size_t)net->max_batches;
    e->best.bytes = amp_weights_saved_bytes(net);
}

static int read_files(struct amp_evaluator *e, const struct amp_train_words *w, char *err,
                      size_t err_size)
{
    struct amp_options options;
    struct amp_net_desc *net = NULL;
    struct amp_cfg_file *data = amp_cfg_read_data(w->data, err, err_size);
    struct amp_cfg_file *cfg = data ? amp_cfg_read(w->cfg, err, err_size) : NULL;
    if (cfg && !amp_options_read(cfg, &options, NULL, 0, err, err_size))
        net = amp_net_describe(cfg, 0, 0, options.mixed_precision, err, err_size);
    if (net) {
        read_schedule(e, data, net, w);
        amp_best_name(&e->best, e->measure, amp_cfg_string(data->sections, "backup", "/backup/"),
                      w->cfg);
    }
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    amp_cfg_free(data);
    return net ? 0 : -1;
}

/* Cheap checks first, then all images, then the twin, which takes memory. */
static int prepare(struct amp_evaluator *e, const struct amp_train_words *w, bool resumed)
{
    char err[3 * PATH_MAX];
    if (read_files(e, w, err, sizeof err)) {
        fprintf(stderr, "error: %s\n", err);
        return -1;
    }
    e->own = e->measure->open(w, true, stderr);
    if (!e->own) return -1;
    fprintf(stderr, "%s: the network that evaluates, one image at a time:\n", e->measure->option);
    if (amp_twin_create(w->cfg, &e->twin, err, sizeof err)) {
        fprintf(stderr, "error: %s\n", err);
        return -1;
    }
    if (resumed) take_up_best(e);
    return 0;
}

/* Process 0 has looked at its own. The twin comes first: from then on this process prints no longer
 * what process 0 prints, on stderr. */
static int prepare_helper(struct amp_evaluator *e, const struct amp_train_words *w)
{
    char err[3 * PATH_MAX], who[120];
    FILE *errors = fdopen(dup(STDERR_FILENO), "w");
    if (!errors) return -1;
    int failed =
        read_files(e, w, err, sizeof err) || amp_twin_create(w->cfg, &e->twin, err, sizeof err);
    amp_launch_who(who, sizeof who);
    if (failed) fprintf(errors, "error: %s%s\n", who, err);
    if (!failed) e->own = e->measure->open(w, false, errors);
    fclose(errors);
    return e->own ? 0 : -1;
}

/* Also one that is half built. */
static void free_evaluator(struct amp_evaluator *e)
{
    if (e->twin) free_network(e->twin);
    if (e->own) e->measure->close(e->own);
    free(e);
}

struct amp_evaluator *amp_evaluator_open(const struct amp_measure *measured,
                                         const struct amp_train_words *w, int rank, bool resumed)
{
    struct amp_evaluator *e = calloc(1, sizeof *e);
    if (!e) {
        fprintf(stderr, "error: out of memory\n");
        return NULL;
    }
    e->measure = measured;
    e->last = e->best.evaluation = none;
    e->rank = rank;
    e->patience = w->patience;
    if (!(rank ? prepare_helper(e, w) : prepare(e, w, resumed))) return e;
    free_evaluator(e);
    return NULL;
}

/* ---- while it trains ---- */

bool amp_evaluator_is_due(const struct amp_evaluator *e, size_t iteration)
{
    if (e->total && iteration >= e->total) return true;
    /* During burn-in the learning rate is tiny, and the weights are not worth a measurement. */
    return iteration > e->burn_in && iteration % e->every == 0;
}

/* On stdout, among Darknet's own lines about the iteration. */
static void print_result(const struct amp_evaluator *e, bool kept)
{
    printf("%s at iteration %lu: ", e->measure->what, e->last.iteration);
    e->measure->print(e->own, e->last.values);
    if (kept)
        printf("; the best so far, saved to %s", e->best.weights);
    else if (isnan(e->best.evaluation.values[0]))
        printf("; best so far - at iteration %lu", e->best.evaluation.iteration);
    else
        printf("; best so far %.2f %% at iteration %lu", 100 * e->best.evaluation.values[0],
               e->best.evaluation.iteration);
    printf("; %.1f s\n", e->last.seconds);
    e->measure->print_classes(e->own);
    fflush(stdout);
}

static void log_result(const struct amp_evaluator *e, const network *trained)
{
    struct amp_figure figures[AMP_FIGURES];
    int n = 0, n_classes = 0;
    for (; n < AMP_FIGURES && e->measure->figures[n]; n++)
        figures[n] = (struct amp_figure){e->measure->figures[n], e->last.values[n]};
    struct amp_class_figure *of_classes = e->measure->of_classes(e->own, &n_classes);
    amp_log_evaluation(trained, e->last.iteration, e->last.seconds, figures, n, of_classes,
                       n_classes);
    free(of_classes);
}

int amp_evaluator_measure(struct amp_evaluator *e, network *trained, size_t iteration)
{
    /* Every time: the twin has the weights of the last measurement. */
    amp_twin_take_weights(e->twin, trained);
    e->averaged = amp_copy_averages(e->twin, trained);
    int failed = measure(e, true, iteration, &e->last);
    if (e->rank) return 0; /* process 0 says and keeps all that follows */
    if (failed) {
        fprintf(stderr, "darknet-amp: no %s at iteration %zu; training goes on\n", e->measure->what,
                iteration);
        return -1;
    }
    bool kept = amp_best_is_beaten(&e->best, &e->last) &&
                amp_best_keep(&e->best, trained, e->averaged, &e->last);
    log_result(e, trained);
    print_result(e, kept);
    return 0;
}

/* Whether the last evaluation is the patience-th since the best one or a later one, also where an
 * earlier run had that. Without a best one, keeping it has failed, and told why. */
static bool is_in_vain(const struct amp_evaluator *e)
{
    size_t last = e->last.iteration, best = e->best.evaluation.iteration;
    bool ends_anyway = e->total && last >= e->total;
    return !isnan(e->best.evaluation.values[0]) && !ends_anyway && last > best &&
           (last - best) / e->every >= (size_t)e->patience;
}

bool amp_evaluator_gives_up(const struct amp_evaluator *e)
{
    size_t nothing = 0;
    void *rows = NULL;
    bool ends = !e->rank && e->patience && is_in_vain(e);
    if (ends)
        fprintf(stderr,
                "darknet-amp: %s has not been better than %.2f %% for %d evaluations (-patience "
                "%d): training ends at iteration %lu; the best was iteration %lu: %s\n",
                e->measure->what, 100 * e->best.evaluation.values[0], e->patience, e->patience,
                e->last.iteration, e->best.evaluation.iteration, e->best.weights);
    /* One that has "failed" makes all of them see it. */
    return e->patience && amp_processes_collect(&rows, &nothing, ends);
}

const struct amp_evaluation *amp_evaluator_last(const struct amp_evaluator *e)
{
    return &e->last;
}

const struct amp_evaluation *amp_evaluator_best(const struct amp_evaluator *e)
{
    return &e->best.evaluation;
}
