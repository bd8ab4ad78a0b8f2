/* `darknet detector map`: decides the order of checks, run and report. It must not know how mAP is
 * computed (average_precision.c), what counts as a hit (counts.c) or what tables and page look like
 * (map_report.c, map_page.c). Everything that can fail cheaply is tried before a network is built.
 */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "darknet.h"

#include "average_precision.h"
#include "commands.h"
#include "counts.h"
#include "detect.h"
#include "inference.h"
#include "map.h"
#include "map_page.h"
#include "measuring.h"

#include "plugin/core/files/file.h"
#include "plugin/core/read/cfg.h"
#include "plugin/core/read/half.h"

enum { MOST_WEIGHTS = 2 };

struct command {
    const char *data, *cfg, *weights[MOST_WEIGHTS], *json, *page;
    double iou, thresh, nms;
    bool coco, half;
    int gpu, drawings, points;
    enum amp_dialect dialect; /* the cfg's */
};

/* Detections below it are dropped: area under a curve needs low scores, but not the lowest. */
static const double least_score = .005;

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
         .help =
             "Count hits and false alarms above this score, 0 to below 1 (default: 0.25); AP has "
             "those of 0.005 or more",
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
         .help = "Write the result as JSON too; of one WEIGHTS",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &c->json},
        {.name = "page",
         .value = "FILE.html",
         .help = "Draw precision over recall, F1 over scores and what is taken for what; of two "
                 "WEIGHTS in one picture",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &c->page},
        {.name = "bootstrap",
         .value = "N",
         .help = "Add to it the mAPs of N drawings of as many images with replacement, the same "
                 "drawings for every network (default: 0)",
         .kind = AMP_ARGUMENT_COUNT,
         .target = &c->drawings,
         .high = 1000000},
        {.name = "half",
         .help = "Compute in 16 bits, as mixed_precision=1 in the cfg would",
         .target = &c->half},
        AMP_GPU_ARGUMENTS(&c->gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "DATA CFG WEIGHTS [WEIGHTS]",
        .help = "Measures on the images that the data file's valid= lists what a detector finds: "
                "mean average precision, hits, false alarms and misses. With a second weights "
                "file both, one after the other.",
        .file = {&c->data, &c->cfg, &c->weights[0], &c->weights[1]},
        .least_files = 3,
        .options = options};
    amp_arguments_read(&line, argc, argv);
    if (c->points && c->points != 11 && c->points != 101) {
        fprintf(stderr, "error: --points %d: allowed: 0, 11, 101\n", c->points);
        return -1;
    }
    if (c->json && c->weights[1])
        return amp_complain("--json is of one weights file: leave out one of them");
    if (!c->drawings || c->json) return 0;
    return amp_complain("--bootstrap writes into the file of --json, which is missing");
}

/* ---- by whose rules ---- */

static bool is_fork(const struct command *c)
{
    return c->dialect == AMP_DIALECT_FORK;
}

/* A cfg that cannot be read is refused later, with its reason. */
static void read_dialect(struct command *c)
{
    char err[4700], note[4700];
    struct amp_cfg_file *cfg = amp_cfg_read_asked(c->cfg, c->half, err, sizeof err);
    if (cfg && c->half) amp_half_ask(cfg, note, sizeof note, err, sizeof err);
    if (cfg) c->dialect = cfg->dialect;
    if (cfg && !is_fork(c) && c->points)
        fprintf(stderr,
                "darknet-amp: --points has no effect: %s is not of AlexeyAB's rules "
                "(mixed_precision=1 with amp_dialect=fork)\n",
                c->cfg);
    amp_cfg_free(cfg);
}

/* The IoU is a float, as AlexeyAB's program compares it, or that of the other columns. */
static struct amp_counts_settings counts_settings(const struct command *c)
{
    return (struct amp_counts_settings){.iou = is_fork(c) ? (double)(float)c->iou : c->iou,
                                        .thresh = (float)c->thresh,
                                        .points = is_fork(c) ? c->points : 0,
                                        .rule = is_fork(c) ? AMP_MATCH_FORK : AMP_MATCH_VOC};
}

/* ---- files that are written ---- */

/* Tried before the work: an evaluation may take an hour. */
static int check_files(const struct command *c)
{
    return amp_output_try("--json", c->json, AMP_MAP_FORMAT) ||
                   amp_output_try("--page", c->page, AMP_MAP_PAGE) ||
                   amp_outputs_differ("--json", c->json, "--page", c->page)
               ? -1
               : 0;
}

static int write_json(const struct command *c, const struct amp_map_report *r)
{
    char err[4700];
    if (!c->json || !amp_map_write_json(c->json, &r->settings, r->set, &r->result, &r->bootstrap,
                                        &r->counts, err, sizeof err))
        return 0;
    fprintf(stderr, "error: --json: %s\n", err);
    return -1;
}

static int write_page(const struct command *c, const struct amp_map_report *reports, int n)
{
    char err[4700];
    if (!c->page || !amp_map_page_write(c->page, reports, n, err, sizeof err)) return 0;
    fprintf(stderr, "error: --page: %s\n", err);
    return -1;
}

/* ---- the work ---- */

/* Before the files: it survives one that cannot be written. */
static int print(const struct command *c, const struct amp_map_report *r)
{
    amp_map_print(stdout, &r->settings, r->set, &r->result, c->coco);
    amp_counts_print(stdout, &r->counts, r->set);
    if (is_fork(c)) {
        puts("\nAs AlexeyAB's Darknet counts:");
        amp_counts_print_fork(stdout, &r->counts, r->set);
    }
    return amp_result_flush();
}

/* All use the same sorted set; without --bootstrap there are 0 drawings. */
static int compute(const struct command *c, const struct amp_ap_set *ap, struct amp_map_report *r)
{
    char err[512];
    struct amp_counts_settings settings = counts_settings(c);
    int failed = amp_map_compute(ap, c->iou, &r->result, err, sizeof err) ||
                 amp_bootstrap_run(ap, r->set->images.count, c->drawings, &r->bootstrap, stderr,
                                   err, sizeof err) ||
                 amp_counts_compute(ap, &settings, &r->counts, err, sizeof err);
    return failed ? amp_complain(err) : 0;
}

/* Settings are collected here, where network and command are both at hand. */
static int measure(const struct command *c, const struct amp_inference *inference,
                   const char *weights, struct amp_map_report *r)
{
    network *net = amp_inference_load(inference, weights);
    amp_refuse_bad_images(0); /* detect.c names all of them instead */
    r->settings = (struct amp_map_settings){.data = c->data,
                                            .cfg = c->cfg,
                                            .weights = weights,
                                            .width = net->w,
                                            .height = net->h,
                                            .resize = amp_detect_resize(net),
                                            .iou = c->iou,
                                            .thresh = least_score,
                                            .nms = c->nms};
    struct amp_ap_set *ap = amp_detect_ap(net, r->set, (float)least_score, (float)c->nms);
    int failed = !ap || compute(c, ap, r);
    amp_ap_set_free(ap);
    free_network(net);
    return failed || print(c, r) || write_json(c, r) ? -1 : 0;
}

/* One network at a time: two may not fit. */
static int measure_all(const struct command *c, const struct amp_eval_set *set)
{
    struct amp_map_report reports[MOST_WEIGHTS] = {{.set = set}, {.set = set}};
    int n = c->weights[1] ? 2 : 1, failed = 0;
    struct amp_inference inference;
    if (amp_inference_open(&inference, c->cfg, c->half, set->images.count)) return -1;
    for (int i = 0; i < n && !failed; i++)
        failed = measure(c, &inference, c->weights[i], &reports[i]);
    amp_inference_close(&inference);
    failed = failed || write_page(c, reports, n);
    for (int i = 0; i < n; i++) {
        amp_counts_free(&reports[i].counts);
        amp_bootstrap_free(&reports[i].bootstrap);
        amp_map_result_free(&reports[i].result);
    }
    return failed ? -1 : 0;
}

static int check_networks(const struct command *c, const struct amp_eval_set *set)
{
    for (int i = 0; i < MOST_WEIGHTS && c->weights[i]; i++)
        if (amp_map_check_network(c->cfg, c->half, c->weights[i], set, gpu_index >= 0, stderr))
            return -1;
    return 0;
}

int amp_command_detector_map(int argc, char **argv)
{
    struct command command = {.iou = 0.5, .thresh = .25, .nms = 0.45};
    struct amp_eval_set set;
    if (read_command_line(argc, argv, &command) || check_files(&command)) return 1;
    read_dialect(&command);
    if (amp_eval_set_load(command.data, command.dialect, &set, stderr)) return 1;
    amp_machine_choose(command.gpu);
    int failed = check_networks(&command, &set) || measure_all(&command, &set);
    amp_eval_set_free(&set);
    return failed ? 1 : 0;
}
