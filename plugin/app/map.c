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
#include "map.h"
#include "measuring.h"

struct command {
    const char *data, *cfg, *weights, *json;
    double iou, thresh, nms;
    bool coco;
    int gpu, drawings;
};

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
        {.name = "coco",
         .help = "Print the ten parts of COCO's mAP@[.5:.95] too",
         .target = &c->coco},
        {.name = "thresh",
         .value = "X",
         .help = "Drop detections below this score, 0 to below 1 (default: 0.005)",
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
    if (!c->drawings || c->json) return 0;
    fprintf(stderr, "error: --bootstrap writes into the file of --json, which is missing\n");
    return -1;
}

/* ---- the work ---- */

/* Tried before the work: an evaluation may take an hour. */
static int check_json(const struct command *command)
{
    char err[4700];
    if (!command->json || amp_map_check_json(command->json, err, sizeof err) == 0) return 0;
    fprintf(stderr, "error: --json: %s\n", err);
    return -1;
}

/* The table first: it survives a JSON file that cannot be written. */
static int report(const struct command *command, const struct amp_map_settings *settings,
                  const struct amp_eval_set *set, const struct amp_map_result *result,
                  const struct amp_bootstrap *bootstrap)
{
    char err[4700];
    amp_map_print(stdout, settings, set, result, command->coco);
    if (fflush(stdout)) {
        fprintf(stderr, "error: standard output: %s\n", strerror(errno));
        return -1;
    }
    if (!command->json) return 0;
    if (amp_map_write_json(command->json, settings, set, result, bootstrap, err, sizeof err)) {
        fprintf(stderr, "error: --json: %s\n", err);
        return -1;
    }
    return 0;
}

/* Both use the same sorted set; without --bootstrap there are 0 drawings. */
static int measure(const struct command *command, const struct amp_map_settings *settings,
                   const struct amp_eval_set *set, const struct amp_ap_set *ap)
{
    char err[512];
    int failed = -1;
    struct amp_map_result result = {0};
    struct amp_bootstrap bootstrap = {0};
    if (amp_map_compute(ap, command->iou, &result, err, sizeof err) == 0 &&
        amp_bootstrap_run(ap, set->images.count, command->drawings, &bootstrap, stderr, err,
                          sizeof err) == 0)
        failed = report(command, settings, set, &result, &bootstrap);
    else
        fprintf(stderr, "error: %s\n", err);
    amp_bootstrap_free(&bootstrap);
    amp_map_result_free(&result);
    return failed;
}

/* Settings are collected here, where network and command are both at hand. */
static int evaluate(const struct command *command, network *net, const struct amp_eval_set *set)
{
    struct amp_ap_set *ap = amp_detect_ap(net, set, (float)command->thresh, (float)command->nms);
    struct amp_map_settings settings = {
        .data = command->data,
        .cfg = command->cfg,
        .weights = command->weights,
        .width = net->w,
        .height = net->h,
        .resize = amp_detect_resize(net),
        .iou = command->iou,
        .thresh = command->thresh,
        .nms = command->nms,
    };
    int failed = ap ? measure(command, &settings, set, ap) : -1;
    amp_ap_set_free(ap);
    return failed;
}

int amp_command_detector_map(int argc, char **argv)
{
    struct command command = {.iou = 0.5, .thresh = 0.005, .nms = 0.45};
    struct amp_eval_set set;
    if (read_command_line(argc, argv, &command) || check_json(&command)) return 1;
    if (amp_eval_set_load(command.data, &set, stderr)) return 1;
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
