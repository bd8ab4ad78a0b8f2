/* `darknet amp check`: decides what is checked and in which order, and the exit status. It must not
 * know how two passes are compared (comparison.c), what the numbers mean (precision.c) or how they
 * are printed (precision_report.c). */

#define _GNU_SOURCE

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "amp.h"
#include "amp_observe.h"
#include "darknet.h"
#include "plugin/core/host.h"
#include "plugin/core/read/text.h"
#include "plugin/core/engine/layers.h"
#include "plugin/core/read/options.h"
#include "plugin/core/plan/plan.h"
#include "commands.h"
#include "measuring.h"
#include "precision.h"

struct check {
    const char *data, *cfg, *weights;
    bool json;
    int gpu;
    struct amp_measured subject;
    struct amp_precision precision;
    struct amp_comparison comparison;
    struct amp_check_summary summary;
};

/* ---- the command line and the files ---- */

static void read_arguments(int argc, char **argv, struct check *c)
{
    const struct amp_argument options[] = {
        {.name = "json", .help = "Print one JSON object", .target = &c->json},
        AMP_GPU_ARGUMENTS(&c->gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "DATA CFG [WEIGHTS]",
        .help =
            "Compares mixed precision with FP32 on batches of your own training images, layer by "
            "layer, and prints the lines to write into the cfg where they differ too much. "
            "Trains nothing and writes no file. Status 0: every layer is fine; 2: there are "
            "lines to write; 1: an error.",
        .file = {&c->data, &c->cfg, &c->weights},
        .least_files = 2,
        .options = options};
    amp_arguments_read(&line, argc, argv);
}

/* Nothing would be compared: both networks would be the same. */
static int refuse_fp32(const struct check *c)
{
    char err[PATH_MAX + 200];
    const struct amp_cfg_entry *e = amp_cfg_find(c->subject.cfg->sections, "amp_dtype");
    if (c->subject.options.dtype != AMP_DTYPE_FP32) return 0;
    snprintf(err, sizeof err,
             "%s:%d: amp_dtype=fp32 computes and stores every layer in FP32: there is nothing to "
             "compare. amp_dtype=fp16 or bf16 can be checked",
             c->cfg, e ? e->line : 0);
    return amp_complain(err);
}

/* ---- the whole ---- */

/* From a plan with mixed_precision on, whatever the cfg says: "mixed" is what the user would
 * get. */
static int predict_memory(struct check *c)
{
    char err[512];
    struct amp_options options = c->subject.options;
    options.mixed_precision = true;
    struct amp_plan *plan = amp_plan_make(c->subject.net, &options,
                                          amp_layers_ours(amp_machine_backend(&options, c->gpu)),
                                          NULL, true, err, sizeof err);
    if (!plan) return amp_complain(err);
    c->summary.fp32_bytes = plan->darknet_bytes;
    c->summary.mixed_bytes = plan->mixed_bytes;
    amp_plan_free(plan);
    return 0;
}

/* The last layer decides, as in detector train. */
static bool has_random_size(const struct amp_net_desc *net)
{
    return net->layers[net->n - 1].random;
}

static void summarize(struct check *c)
{
    struct amp_check_summary *s = &c->summary;
    s->data = c->data;
    s->cfg = c->cfg;
    s->weights = c->weights;
    s->random_size = has_random_size(c->subject.net);
    s->images = c->comparison.images;
    s->images_per_iteration = c->subject.net->batch * c->subject.net->subdivisions;
    s->redone = c->comparison.redone;
}

/* Darknet prints to stdout while it builds and runs; the result must stand there alone. */
static int compare(struct check *c)
{
    c->comparison = (struct amp_comparison){
        .data = c->data, .weights = c->weights, .cfg = c->subject.cfg, .precision = &c->precision};
    int kept = amp_quiet_begin();
    int failed = amp_comparison_run(&c->comparison);
    amp_quiet_end(kept);
    return failed;
}

static int work(struct check *c)
{
    if (amp_inputs_check(c->data, c->cfg, c->weights, false) ||
        amp_measured_read(&c->subject, c->cfg, c->gpu) || refuse_fp32(c))
        return -1;
    if (amp_precision_init(&c->precision, c->subject.net, c->subject.cfg, &c->subject.options))
        return amp_complain("out of memory");
    if (compare(c) || predict_memory(c)) return -1;
    summarize(c);
    return 0;
}

int amp_command_check(int argc, char **argv)
{
    struct check c = {0};
    read_arguments(argc, argv, &c);
    amp_machine_choose(c.gpu);
    /* A batch with a black image in place of a broken one would be compared as if it were real. */
    amp_refuse_bad_images(1);
    int failed = work(&c), status = c.precision.n_advice || c.precision.left >= 0 ? 2 : 0;
    if (!failed)
        (c.json ? amp_precision_print_json : amp_precision_print)(&c.precision, &c.summary, stdout);
    if (!failed) failed = amp_result_flush();
    amp_comparison_free(&c.comparison);
    if (c.precision.net) amp_precision_free(&c.precision);
    amp_measured_free(&c.subject);
    return failed ? 1 : status;
}
