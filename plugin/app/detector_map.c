#include "detector_map.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "darknet.h"

#include "average_precision.h"
#include "check_network.h"
#include "detect.h"
#include "eval_set.h"
#include "map_report.h"

static const char usage[] =
    "usage: darknet detector map DATA CFG WEIGHTS [options]\n"
    "Mean average precision of a detector on the images of the data file's valid= list.\n"
    "  --iou X      IoU of the per-class column, above 0, at most 1 (default 0.5)\n"
    "  --coco       also print the ten parts of COCO's mAP@[.5:.95]\n"
    "  --thresh X   drop detections below this score, 0 <= X < 1 (default 0.005)\n"
    "  --nms X      non-maximum suppression at this IoU, 0 (none) to 1 (default 0.45)\n"
    "  --json FILE  also write the result as JSON\n"
    "  --bootstrap N  and in it the mAPs of N drawings of as many images with replacement,\n"
    "               the same drawings for every network (default 0)\n"
    "  -i N         GPU to use, in a GPU build (default 0); -nogpu: none\n";

struct command {
    char *data, *cfg, *weights, *json;
    double iou, thresh, nms;
    bool coco;
    int gpu, drawings;
};

/* ---- the command line ---- */

static int complain(const char *what, const char *argument)
{
    fprintf(stderr, "error: %s \"%s\"\n%s", what, argument, usage);
    return -1;
}

static bool is_option(const char *argument, const char *name)
{
    if (argument[0] != '-') return false;
    return strcmp(argument + 1, name) == 0 ||
           (argument[1] == '-' && strcmp(argument + 2, name) == 0);
}

/* A number in [low, high] (or (low, high) where open). */
static int read_number(const char *name, const char *text, double low, bool low_open, double high,
                       bool high_open, double *value)
{
    char *end;
    *value = strtod(text, &end);
    bool above = low_open ? *value > low : *value >= low;
    bool below = high_open ? *value < high : *value <= high;
    if (end != text && *end == '\0' && above && below) return 0;
    fprintf(stderr, "error: --%s %s: must be a number from %g%s to %g%s\n%s", name, text, low,
            low_open ? " (not itself)" : "", high, high_open ? " (not itself)" : "", usage);
    return -1;
}

/* A whole number from 0 to most; what: what it must be. */
static int read_count(const char *what, const char *text, long most, int *count)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 0 || value > most) return complain(what, text);
    *count = (int)value;
    return 0;
}

/* The option at argv[i] and its value; *used is how many arguments that is. */
static int read_option_at(int argc, char **argv, int i, struct command *command, int *used)
{
    const char *option = argv[i];
    char *value = i + 1 < argc ? argv[i + 1] : NULL;
    *used = 1;
    if (is_option(option, "coco")) {
        command->coco = true;
        return 0;
    }
    if (is_option(option, "nogpu")) {
        command->gpu = -1;
        return 0;
    }
    bool known = is_option(option, "iou") || is_option(option, "thresh") ||
                 is_option(option, "nms") || is_option(option, "json") || is_option(option, "i") ||
                 is_option(option, "bootstrap");
    if (!known) return complain("unknown option", option);
    if (!value) return complain("no value after", option);
    *used = 2;
    if (is_option(option, "iou"))
        return read_number("iou", value, 0, true, 1, false, &command->iou);
    if (is_option(option, "thresh"))
        return read_number("thresh", value, 0, false, 1, true, &command->thresh);
    if (is_option(option, "nms"))
        return read_number("nms", value, 0, false, 1, false, &command->nms);
    if (is_option(option, "i"))
        return read_count("-i: must be the number of a GPU, not", value, 1023, &command->gpu);
    if (is_option(option, "bootstrap"))
        return read_count("--bootstrap: must be a whole number up to 1000000, not", value, 1000000,
                          &command->drawings);
    command->json = value;
    return 0;
}

static int read_command_line(int argc, char **argv, struct command *command)
{
    char **positions[] = {&command->data, &command->cfg, &command->weights};
    int n_positions = 0, used = 1;
    for (int i = 3; i < argc; i += used) { /* after "darknet detector map" */
        used = 1;
        if (argv[i][0] == '-') {
            if (read_option_at(argc, argv, i, command, &used)) return -1;
        } else if (n_positions < 3) {
            *positions[n_positions++] = argv[i];
        } else {
            return complain("unexpected argument", argv[i]);
        }
    }
    if (command->drawings && !command->json)
        return complain("--bootstrap goes into the file of", "--json");
    if (n_positions == 3) return 0;
    fprintf(stderr, "error: DATA, CFG and WEIGHTS are needed\n%s", usage);
    return -1;
}

/* ---- the work ---- */

static int check_json(const struct command *command)
{
    char err[4700];
    if (!command->json || amp_map_check_json(command->json, err, sizeof err) == 0) return 0;
    fprintf(stderr, "error: --json: %s\n", err);
    return -1;
}

/* As Darknet's main does it; where there is no such GPU, gpu_index may be -1 afterwards. */
static void choose_gpu(int gpu)
{
#ifdef GPU
    gpu_index = gpu;
    if (gpu >= 0) cuda_set_device(gpu);
#else
    (void)gpu;
    gpu_index = -1;
#endif
}

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
    choose_gpu(command.gpu);
    int failed = amp_map_check_network(command.cfg, command.weights, &set, gpu_index >= 0, stderr);
    if (!failed) {
        network *net = load_network(command.cfg, command.weights, 0);
        amp_refuse_bad_images(0); // each is named, with the others
        failed = evaluate(&command, net, &set);
        free_network(net);
    }
    amp_eval_set_free(&set);
    return failed ? 1 : 0;
}
