/* Decides when mAP is measured while a detector trains, and which weights are the best so far: with
 * ema_alpha their moving average is measured and kept. It must not know how mAP is computed
 * (detect.c, average_precision.c), how weights are saved whole (amp.h), or which weights the twin
 * is given (twin.c).
 *
 * A second network, the twin, is measured: the trained one would need batch 1 for that, and
 * inference moves state that training needs. */
#define _GNU_SOURCE
#include "train.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "amp_observe.h"
#include "counts.h"
#include "detect.h"
#include "map.h"
#include "utils.h"

#include "plugin/core/read/cfg.h"
#include "plugin/core/files/file.h"
#include "plugin/core/host.h"
#include "plugin/core/read/lines.h"
#include "plugin/core/read/options.h"
#include "plugin/core/read/text.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/spread/launcher.h"

/* The defaults of `detector map`, so that both give the same number. */
static const float thresh = .005f, nms = .45f;
enum { LEAST_EVERY = 100 };

struct amp_training_map {
    struct amp_eval_set set;
    network *twin;
    size_t every, burn_in, total, step; /* total: iterations; step: images of an iteration */
    unsigned long long weights_bytes;
    char weights[PATH_MAX], record[PATH_MAX];
    struct amp_evaluation last, best;
    enum amp_dialect dialect;
    struct amp_counts_settings rules; /* of AlexeyAB's number, if the dialect is his */
    bool averaged;                    /* the twin has the moving average of the weights */
    int rank;
};

/* ---- the best so far ---- */

static const struct amp_evaluation none = {.map50 = NAN, .map75 = NAN, .map = NAN};

/* The record names its weights file by hash (file.h): the two are written one after the other, and
 * a program may be killed in between. */
#define RECORD(number, hash)                                                                       \
    "{\"iteration\": %lu, \"map50\": " number ", \"map75\": " number ", \"map\": " number          \
    ", \"weights\": \"" hash "\"}\n"
#define RECORD_READ    RECORD("%lf", "%" SCNx64)
#define RECORD_WRITTEN RECORD("%.9g", "%016" PRIx64)

/* Returns 0 if the record is there and belongs to these weights. */
static int read_record(struct amp_training_map *m, const struct amp_file_id *weights)
{
    uint64_t hash = 0;
    struct amp_evaluation e = none;
    FILE *f = fopen(m->record, "r");
    int n = f ? fscanf(f, RECORD_READ, &e.iteration, &e.map50, &e.map75, &e.map, &hash) : 0;
    if (f) fclose(f);
    if (n != 5 || hash != weights->hash) return -1;
    m->best = e;
    return 0;
}

/* After the weights: the record names them by the hash of what is on the disk. */
static int write_record(const struct amp_training_map *m, char *err, size_t err_size)
{
    struct amp_whole_file f = {.fd = -1};
    struct amp_file_id id;
    const struct amp_evaluation *b = &m->best;
    int failed = amp_file_identify(m->weights, &id, err, err_size) ||
                 amp_whole_begin(&f, m->record, err, err_size);
    if (!failed &&
        dprintf(f.fd, RECORD_WRITTEN, b->iteration, b->map50, b->map75, b->map, id.hash) < 0) {
        snprintf(err, err_size, "%s: cannot be written: %s", m->record, strerror(errno));
        failed = -1;
    }
    failed = failed || amp_whole_flush(&f, err, err_size) || amp_whole_place(&f, err, err_size) ||
             amp_folder_flush(m->record, err, err_size);
    amp_whole_drop(&f);
    return failed ? -1 : 0;
}

/* Ties go to the older: a record that is equalled is not replaced. */
static bool is_better(double map50, double than)
{
    return isnan(than) || map50 > than;
}

/* With AlexeyAB's rules, his number in place of ours. */
static int compute_fork(const struct amp_training_map *m, const struct amp_ap_set *ap,
                        double *map50, char *err, size_t err_size)
{
    struct amp_counts map;
    if (m->dialect != AMP_DIALECT_FORK) return 0;
    if (amp_counts_compute(ap, &m->rules, &map, err, err_size)) return -1;
    *map50 = map.all.ap;
    amp_counts_free(&map);
    return 0;
}

/* The figure of these rows, measured since `start`. */
static int compute(const struct amp_training_map *m, const struct amp_ap_set *ap, size_t iteration,
                   double start, struct amp_evaluation *e)
{
    char err[512];
    struct amp_map_result result = {0};
    int failed = amp_map_compute(ap, .5, &result, err, sizeof err) ||
                 compute_fork(m, ap, &result.mean.ap50, err, sizeof err);
    if (failed) fprintf(stderr, "error: %s\n", err);
    if (!failed)
        *e = (struct amp_evaluation){.iteration = (unsigned long)iteration,
                                     .map50 = result.mean.ap50,
                                     .map75 = result.mean.ap75,
                                     .map = result.mean.ap,
                                     .seconds = amp_clock_seconds() - start};
    amp_map_result_free(&result);
    return failed ? -1 : 0;
}

static int measure_alone(struct amp_training_map *m, size_t iteration, struct amp_evaluation *e)
{
    double start = amp_clock_seconds();
    struct amp_ap_set *ap = amp_detect_ap(m->twin, &m->set, thresh, nms);
    int failed = !ap || compute(m, ap, iteration, start, e);
    amp_ap_set_free(ap);
    return failed ? -1 : 0;
}

static int measure_together(struct amp_training_map *m, size_t iteration, struct amp_evaluation *e)
{
    double start = amp_clock_seconds();
    struct amp_ap_set *ap;
    int failed = amp_detect_ap_shared(m->twin, &m->set, thresh, nms, &ap) ||
                 (ap && compute(m, ap, iteration, start, e));
    amp_ap_set_free(ap);
    return failed ? -1 : 0;
}

/* Finds the best of the run that goes on: what its record says, or, if the record is not of these
 * weights (a program may be killed between the two files), measured again. */
static void take_up_best(struct amp_training_map *m)
{
    char err[3 * PATH_MAX];
    struct amp_file_id id;
    if (amp_file_unreadable(m->weights) || amp_file_identify(m->weights, &id, err, sizeof err))
        return;
    /* A record does not say by which IoU and points AlexeyAB's number was. */
    bool found = !read_record(m, &id), again = m->dialect == AMP_DIALECT_FORK;
    if (found && !again) return;
    if (id.bytes != m->weights_bytes) {
        fprintf(stderr, "darknet-amp: %s is another network's; the best is looked for anew\n",
                m->weights);
        return;
    }
    if (found)
        fprintf(stderr, "darknet-amp: %s are measured again, by the words of this run\n",
                m->weights);
    else
        fprintf(stderr, "darknet-amp: %s is not of %s, which are measured again\n", m->record,
                m->weights);
    load_weights(m->twin, m->weights);
    /* Loading has set `seen`; the twin itself trains nothing, so it goes back to 0. */
    size_t iteration = *m->twin->seen / m->step;
    *m->twin->seen = 0;
    measure_alone(m, iteration, &m->best);
}

/* A failure is told and training goes on: there will be other weights. The best stays what the file
 * on disk holds. */
static bool keep_best(struct amp_training_map *m, network *trained)
{
    char err[3 * PATH_MAX];
    struct amp_evaluation before = m->best;
    m->best = m->last;
    int failed = m->averaged
                     ? amp_save_averages(trained, m->weights, err, sizeof err)
                     : amp_save_whole(trained, m->weights, m->weights_bytes, err, sizeof err);
    if (!failed && !write_record(m, err, sizeof err)) return true;
    fprintf(stderr, "darknet-amp: the best weights are not kept: %s\n", err);
    m->best = before;
    return false;
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
static void read_schedule(struct amp_training_map *m, const struct amp_cfg_file *data,
                          const struct amp_net_desc *net, const struct amp_train_words *w)
{
    size_t step = (size_t)net->batch * (size_t)net->subdivisions;
    size_t images = count_lines(amp_cfg_string(data->sections, "train", "data/train.list"));
    size_t epochs = (images + step - 1) / step * (size_t)(w->map_epochs ? w->map_epochs : 1);
    m->every = w->map_every ? (size_t)w->map_every : epochs > LEAST_EVERY ? epochs : LEAST_EVERY;
    m->step = step;
    m->burn_in = (size_t)net->burn_in;
    m->total = (size_t)net->max_batches;
    m->weights_bytes = amp_weights_saved_bytes(net);
}

/* Darknet's default folder and its own basecfg, so that the files lie beside its other weights. */
static void name_files(struct amp_training_map *m, const struct amp_cfg_file *data,
                       const char *cfg_path)
{
    const char *folder = amp_cfg_string(data->sections, "backup", "/backup/");
    char *base = basecfg((char *)cfg_path);
    snprintf(m->weights, sizeof m->weights, "%s/%s_best.weights", folder, base);
    snprintf(m->record, sizeof m->record, "%s/%s_best.json", folder, base);
    free(base);
}

/* .25: counts hits, which -map does not show. */
static void read_rules(struct amp_training_map *m, const struct amp_cfg_file *cfg,
                       const struct amp_train_words *w)
{
    m->dialect = cfg->dialect;
    m->rules = (struct amp_counts_settings){
        .iou = w->iou, .thresh = .25, .points = w->points, .rule = AMP_MATCH_FORK};
    if (m->dialect != AMP_DIALECT_FORK && !m->rank && (w->iou != .5 || w->points))
        fprintf(stderr,
                "darknet-amp: -iou_thresh and -points have no effect: %s is not trained by "
                "AlexeyAB's rules (amp_dialect=fork)\n",
                w->cfg);
}

static int read_files(struct amp_training_map *m, const struct amp_train_words *w, char *err,
                      size_t err_size)
{
    struct amp_options options;
    struct amp_net_desc *net = NULL;
    struct amp_cfg_file *data = amp_cfg_read_data(w->data, err, err_size);
    struct amp_cfg_file *cfg = data ? amp_cfg_read(w->cfg, err, err_size) : NULL;
    if (cfg && !amp_options_read(cfg, &options, NULL, 0, err, err_size))
        net = amp_net_describe(cfg, 0, 0, options.mixed_precision, err, err_size);
    if (net) {
        read_schedule(m, data, net, w);
        read_rules(m, cfg, w);
        name_files(m, data, w->cfg);
    }
    int result = net ? 0 : -1;
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    amp_cfg_free(data);
    return result;
}

/* Decodes all images now: while training, one that cannot be decoded would end the run. */
static int check_images(const struct amp_eval_set *set)
{
    int bad = 0;
    struct amp_progress progress;
    amp_progress_start(&progress, stderr, "decoding the valid images", (size_t)set->images.count);
    for (int i = 0; i < set->images.count; i++) {
        image im = load_image_color(set->images.line[i], 0, 0);
        if (!amp_detect_is_decoded(im, set->images.line[i])) {
            fprintf(stderr, "error: %s: cannot be decoded as an image\n", set->images.line[i]);
            bad++;
        }
        free_image(im);
        amp_progress_update(&progress, (size_t)i + 1);
    }
    return bad ? -1 : 0;
}

/* Without boxes every result would be undefined, and no weights the best. */
static int check_set(const struct amp_training_map *m, const struct amp_train_words *w)
{
    if (amp_map_check_network(w->cfg, NULL, &m->set, gpu_index >= 0, stderr)) return -1;
    if (!m->set.n_truths) {
        fprintf(stderr, "error: %s: the valid list has no boxes at all, so -map has no result\n",
                w->data);
        return -1;
    }
    return check_images(&m->set);
}

/* Cheap checks first, then all images, then the twin, which takes memory. */
static int prepare(struct amp_training_map *m, const struct amp_train_words *w, bool goes_on)
{
    char err[3 * PATH_MAX];
    if (read_files(m, w, err, sizeof err)) {
        fprintf(stderr, "error: %s\n", err);
        return -1;
    }
    if (amp_eval_set_load(w->data, m->dialect, &m->set, stderr)) return -1;
    if (check_set(m, w)) return -1;
    fprintf(stderr, "-map: the network that evaluates, one image at a time:\n");
    if (amp_twin_create(w->cfg, &m->twin, err, sizeof err)) {
        fprintf(stderr, "error: %s\n", err);
        return -1;
    }
    if (goes_on) take_up_best(m);
    return 0;
}

/* Process 0 has looked at its own. The twin comes first: from then on this process prints no longer
 * what process 0 prints, on stderr. */
static int prepare_helper(struct amp_training_map *m, const struct amp_train_words *w)
{
    char err[3 * PATH_MAX], who[120];
    FILE *errors = fdopen(dup(STDERR_FILENO), "w");
    if (!errors) return -1;
    int failed =
        read_files(m, w, err, sizeof err) || amp_twin_create(w->cfg, &m->twin, err, sizeof err);
    amp_launch_who(who, sizeof who);
    if (failed) fprintf(errors, "error: %s%s\n", who, err);
    failed = failed || amp_eval_set_load(w->data, m->dialect, &m->set, errors);
    fclose(errors);
    return failed ? -1 : 0;
}

/* Also for a map that is half built. */
static void free_map(struct amp_training_map *m)
{
    if (m->twin) free_network(m->twin);
    amp_eval_set_free(&m->set);
    free(m);
}

struct amp_training_map *amp_training_map_open(const struct amp_train_words *w, int rank,
                                               bool goes_on)
{
    struct amp_training_map *m = calloc(1, sizeof *m);
    if (!m) {
        fprintf(stderr, "error: out of memory\n");
        return NULL;
    }
    m->last = m->best = none;
    m->rank = rank;
    if (!(rank ? prepare_helper(m, w) : prepare(m, w, goes_on))) return m;
    free_map(m);
    return NULL;
}

/* ---- measuring ---- */

bool amp_training_map_due(const struct amp_training_map *m, size_t iteration)
{
    if (iteration >= m->total) return true;
    /* During burn-in the learning rate is tiny, and the weights are not worth a measurement. */
    return iteration > m->burn_in && iteration % m->every == 0;
}

static void print_percent(double value)
{
    if (isnan(value))
        printf("-");
    else
        printf("%.2f %%", 100 * value);
}

/* On stdout, among Darknet's own lines about the iteration. */
static void print_line(const struct amp_training_map *m, bool kept)
{
    bool fork = m->dialect == AMP_DIALECT_FORK;
    printf("mAP at iteration %lu: mAP@%g ", m->last.iteration, fork ? m->rules.iou : .5);
    print_percent(m->last.map50);
    printf(", mAP@0.75 ");
    print_percent(m->last.map75);
    printf(", mAP@[.5:.95] ");
    print_percent(m->last.map);
    if (fork) printf(" (the first by AlexeyAB's rules)");
    if (kept) {
        printf("; the best so far, saved to %s", m->weights);
    } else {
        printf("; best so far ");
        print_percent(m->best.map50);
        printf(" at iteration %lu", m->best.iteration);
    }
    printf("; %.1f s\n", m->last.seconds);
    fflush(stdout);
}

int amp_training_map_measure(struct amp_training_map *m, network *trained, size_t iteration)
{
    /* Every time: the twin has the weights of the last measurement. */
    amp_twin_take_weights(m->twin, trained);
    m->averaged = amp_copy_averages(m->twin, trained);
    int failed = measure_together(m, iteration, &m->last);
    if (m->rank) return 0; /* process 0 says and keeps all that follows */
    if (failed) {
        fprintf(stderr, "darknet-amp: no mAP at iteration %zu; training goes on\n", iteration);
        return -1;
    }
    bool kept = is_better(m->last.map50, m->best.map50) && keep_best(m, trained);
    amp_log_evaluation(trained, &m->last);
    print_line(m, kept);
    return 0;
}

const struct amp_evaluation *amp_training_map_last(const struct amp_training_map *m)
{
    return &m->last;
}

const struct amp_evaluation *amp_training_map_best(const struct amp_training_map *m)
{
    return &m->best;
}
