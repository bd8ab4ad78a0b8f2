/* `darknet detector map`: decides the order of checks, run and report. It must not know how mAP is
 * computed (average_precision.c) or what the table looks like (map_report.c). Everything that can
 * fail cheaply is tried before the network is built. */

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "darknet.h"

#include "average_precision.h"
#include "commands.h"
#include "detect.h"
#include "fork_map.h"
#include "map.h"
#include "measuring.h"

#include "plugin/core/read/cfg.h"

struct command {
    const char *data, *cfg, *weights, *json;
    double iou, thresh, nms; /* thresh below 0: not given */
    bool coco;
    int gpu, drawings, points;
    enum amp_dialect dialect; /* the cfg's */
};

static const double least_score = .005, counted_score = .25; /* defaults of --thresh */

/* ---- the command line ---- */

static int read_command_line(int argc, char **argv, struct command *c)
{
    const struct amp_argument options[] = {
        {.name = "iou",
         .value = "X",
         .help = "IoU of the per-class column, above 0, at most 1 (default: 0.5)",
         .kind = AMP_ARGUMENT_NUMBER,
         .target = &c->iou,
         .high = 1,
         .low_open = true},
        {.name = "iou_thresh",
         .value = "X",
         .help = "The same, as AlexeyAB's Darknet has it; also of the mAP by its rules",
         .kind = AMP_ARGUMENT_NUMBER,
         .target = &c->iou,
         .high = 1,
         .low_open = true},
        {.name = "points",
         .value = "N",
         .help = "With a cfg of AlexeyAB's rules: 0 (area under the curve, the default), 11 or 101 "
                 "recalls",
         .kind = AMP_ARGUMENT_COUNT,
         .target = &c->points,
         .high = 101},
        {.name = "coco",
         .help = "Print the ten parts of COCO's mAP@[.5:.95] too",
         .target = &c->coco},
        {.name = "thresh",
         .value = "X",
         .help = "Drop detections below this score, 0 to below 1 (default: 0.005); with a cfg of "
                 "AlexeyAB's rules, as there: count hits and false alarms above it (default: 0.25)",
         .kind = AMP_ARGUMENT_NUMBER,
         .target = &c->thresh,
         .high = 1,
         .high_open = true},
        {.name = "nms",
         .value = "X",
         .help = "Suppress boxes that overlap a better one by this IoU, 0 (none) to 1 (default: "
                 "0.45)",
         .kind = AMP_ARGUMENT_NUMBER,
         .target = &c->nms,
         .high = 1},
        {.name = "json",
         .value = "FILE",
         .help = "Write the result as JSON too",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &c->json},
        {.name = "bootstrap",
         .value = "N",
         .help = "Add to it the mAPs of N drawings of as many images with replacement, the same "
                 "drawings for every network (default: 0)",
         .kind = AMP_ARGUMENT_COUNT,
         .target = &c->drawings,
         .high = 1000000},
        AMP_GPU_ARGUMENTS(&c->gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "DATA CFG WEIGHTS",
        .help = "Measures the mean average precision of a detector on the images that the data "
                "file's valid= lists.",
        .file = {&c->data, &c->cfg, &c->weights},
        .least_files = 3,
        .options = options};
    amp_arguments_read(&line, argc, argv);
    if (c->points && c->points != 11 && c->points != 101) {
        fprintf(stderr, "error: --points %d: allowed: 0, 11, 101\n", c->points);
        return -1;
    }
    if (!c->drawings || c->json) return 0;
    fprintf(stderr, "error: --bootstrap writes into the file of --json, which is missing\n");
    return -1;
}

/* ---- by whose rules ---- */

static bool is_fork(const struct command *c)
{
    return c->dialect == AMP_DIALECT_FORK;
}

/* A cfg that cannot be read is refused later, with its reason. */
static void read_dialect(struct command *c)
{
    char err[4700];
    struct amp_cfg_file *cfg = amp_cfg_read(c->cfg, err, sizeof err);
    if (cfg) c->dialect = cfg->dialect;
    if (cfg && !is_fork(c) && c->points)
        fprintf(stderr,
                "darknet-amp: --points has no effect: %s is not of AlexeyAB's rules "
                "(mixed_precision=1 with amp_dialect=fork)\n",
                c->cfg);
    amp_cfg_free(cfg);
}

/* The score below which detections are dropped. */
static double dropped_below(const struct command *c)
{
    return is_fork(c) || c->thresh < 0 ? least_score : c->thresh;
}

/* Floats, as the other program compares them. */
static int compute_fork(const struct command *c, const struct amp_ap_set *ap,
                        struct amp_fork_map *fork, char *err, size_t err_size)
{
    const struct amp_fork_settings s = {
        .iou = (double)(float)c->iou,
        .thresh = (double)(float)(c->thresh < 0 ? counted_score : c->thresh),
        .points = c->points};
    return is_fork(c) ? amp_fork_map_compute(ap, &s, fork, err, err_size) : 0;
}

/* ---- the work ---- */

/* What is reported. */
struct measured {
    struct amp_map_settings settings;
    struct amp_map_result result;
    struct amp_bootstrap bootstrap;
    struct amp_fork_map fork; /* only by the fork's rules */
};

/* Tried before the work: an evaluation may take an hour. */
static int check_json(const struct command *command)
{
    char err[4700];
    if (!command->json || amp_map_check_json(command->json, err, sizeof err) == 0) return 0;
    fprintf(stderr, "error: --json: %s\n", err);
    return -1;
}

/* The table first: it survives a JSON file that cannot be written. */
static int report(const struct command *command, const struct amp_eval_set *set,
                  const struct measured *m)
{
    char err[4700];
    amp_map_print(stdout, &m->settings, set, &m->result, command->coco);
    if (is_fork(command)) {
        puts("\nAs AlexeyAB's Darknet counts:");
        amp_fork_map_print(stdout, &m->fork, set);
    }
    if (fflush(stdout)) {
        fprintf(stderr, "error: standard output: %s\n", strerror(errno));
        return -1;
    }
    if (!command->json) return 0;
    if (amp_map_write_json(command->json, &m->settings, set, &m->result, &m->bootstrap,
                           is_fork(command) ? &m->fork : NULL, err, sizeof err)) {
        fprintf(stderr, "error: --json: %s\n", err);
        return -1;
    }
    return 0;
}

/* All use the same sorted set; without --bootstrap there are 0 drawings. */
static int measure(const struct command *command, struct measured *m,
                   const struct amp_eval_set *set, const struct amp_ap_set *ap)
{
    char err[512];
    int failed = amp_map_compute(ap, command->iou, &m->result, err, sizeof err) ||
                 amp_bootstrap_run(ap, set->images.count, command->drawings, &m->bootstrap, stderr,
                                   err, sizeof err) ||
                 compute_fork(command, ap, &m->fork, err, sizeof err);
    if (failed) fprintf(stderr, "error: %s\n", err);
    failed = failed || report(command, set, m);
    amp_fork_map_free(&m->fork);
    amp_bootstrap_free(&m->bootstrap);
    amp_map_result_free(&m->result);
    return failed ? -1 : 0;
}

/* Settings are collected here, where network and command are both at hand. */
static int evaluate(const struct command *command, network *net, const struct amp_eval_set *set)
{
    double thresh = dropped_below(command);
    struct amp_ap_set *ap = amp_detect_ap(net, set, (float)thresh, (float)command->nms);
    struct measured m = {.settings = {
                             .data = command->data,
                             .cfg = command->cfg,
                             .weights = command->weights,
                             .width = net->w,
                             .height = net->h,
                             .resize = amp_detect_resize(net),
                             .iou = command->iou,
                             .thresh = thresh,
                             .nms = command->nms,
                         }};
    int failed = ap ? measure(command, &m, set, ap) : -1;
    amp_ap_set_free(ap);
    return failed;
}

int amp_command_detector_map(int argc, char **argv)
{
    struct command command = {.iou = 0.5, .thresh = -1, .nms = 0.45};
    struct amp_eval_set set;
    if (read_command_line(argc, argv, &command) || check_json(&command)) return 1;
    read_dialect(&command);
    if (amp_eval_set_load(command.data, command.dialect, &set, stderr)) return 1;
    amp_machine_choose(command.gpu);
    int failed = amp_map_check_network(command.cfg, command.weights, &set, gpu_index >= 0, stderr);
    if (!failed) {
        network *net = load_network((char *)command.cfg, (char *)command.weights, 0);
        amp_refuse_bad_images(0); /* detect.c names all of them instead */
        failed = evaluate(&command, net, &set);
        free_network(net);
    }
    amp_eval_set_free(&set);
    return failed ? 1 : 0;
}
