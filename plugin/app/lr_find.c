/* `darknet amp lr-find`: trains a copy of the network with a rate that grows, and keeps nothing of
 * it. Decides what is trained and on which images. It must not know which rates are tried
 * (rate_sweep.c) or how the result is shown (rate_report.c). */
#define _GNU_SOURCE

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "amp.h"
#include "amp_observe.h"
#include "commands.h"
#include "darknet.h"
#include "measuring.h"
#include "network.h"
#include "rate_sweep.h"

#include "plugin/core/files/file.h"
#include "plugin/core/read/text.h"

/* At first layers leave FP16 and the loss scale is searched: such an iteration has no loss. */
enum { MOST_TRIES = 20, LEAST_ITERATIONS = 20 };

struct finder {
    const char *data, *cfg, *weights, *chart;
    bool json;
    int gpu, most;
    struct amp_cfg_file *cfg_file;
    struct amp_options options;
    network *net;
    load_args args;
    struct amp_whole_file picture;
    struct amp_sweep sweep;
};

/* ---- the command line and the files ---- */

static void read_arguments(int argc, char **argv, struct finder *f)
{
    const struct amp_argument options[] = {
        {.name = "json", .help = "Print one JSON object", .target = &f->json},
        {.name = "chart",
         .value = "FILE.svg",
         .help = "Draw loss over learning rate",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &f->chart},
        {.name = "iterations",
         .value = "N",
         .help = "Iterations from the lowest rate to the highest (default: 100)",
         .kind = AMP_ARGUMENT_COUNT,
         .target = &f->most,
         .low = LEAST_ITERATIONS,
         .high = 100000},
        AMP_GPU_ARGUMENTS(&f->gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "DATA CFG [WEIGHTS]",
        .help = "Trains the network on your images with a learning rate that grows from 1e-6 to 1, "
                "until the smoothed loss is 4 times its smallest, and suggests a tenth of the rate "
                "at which it was smallest. Keeps nothing of what is trained.",
        .file = {&f->data, &f->cfg, &f->weights},
        .least_files = 2,
        .options = options};
    amp_arguments_read(&line, argc, argv);
}

static int read_options(struct finder *f)
{
    char err[2 * PATH_MAX];
    f->cfg_file = amp_cfg_read(f->cfg, err, sizeof err);
    if (!f->cfg_file || amp_mixed_options_read(f->cfg_file, &f->options, err, sizeof err))
        return amp_complain(err);
    if (!f->options.mixed_precision) amp_mixed_tell_off(f->cfg_file, "with mixed_precision=1:");
    return 0;
}

/* A picture of ours is replaced, any other file is not: its name is probably a mistake. */
static int begin_picture(struct finder *f)
{
    char err[9000];
    f->picture.fd = -1;
    if (!f->chart) return 0;
    return amp_whole_try_marked(f->chart, AMP_RATE_PICTURE, err, sizeof err) ||
                   amp_whole_begin(&f->picture, f->chart, err, sizeof err)
               ? amp_complain(err)
               : 0;
}

static int end_picture(struct finder *f, const struct amp_rate_result *r)
{
    char err[9000];
    if (!f->chart) return 0;
    FILE *out = amp_whole_stream(&f->picture, err, sizeof err);
    if (out) amp_rate_draw(r, out);
    if (!out || amp_whole_end_stream(&f->picture, out, err, sizeof err) ||
        amp_whole_flush(&f->picture, err, sizeof err) ||
        amp_whole_place(&f->picture, err, sizeof err))
        return amp_complain(err);
    return 0;
}

/* ---- the network ---- */

/* Its rate is the one that it is given, whatever the cfg's policy. No moving average, log or
 * sidecar: nothing is kept. */
static int build(struct finder *f)
{
    static const struct amp_cfg_key keys[] = {{.key = "mixed_precision", .value = "1"},
                                              {.key = "policy", .value = "constant"},
                                              {.key = "max_batches", .value = "1000000000"},
                                              {.key = "amp_on_divergence", .value = "continue"},
                                              {.key = "amp_sidecar", .value = "none"},
                                              {.key = "burn_in"},
                                              {.key = "steps"},
                                              {.key = "scales"},
                                              {.key = "step"},
                                              {.key = "scale"},
                                              {.key = "gamma"},
                                              {.key = "learning_rate_min"},
                                              {.key = "sgdr_cycle"},
                                              {.key = "sgdr_mult"},
                                              {.key = "cyclic_step"},
                                              {.key = "momentum_min"},
                                              {.key = "ema_alpha"},
                                              {.key = "amp_log"},
                                              {.key = "amp_log_layers"},
                                              {.key = "amp_log_noise"}};
    f->net = amp_variant_load("amp lr-find: the network", f->cfg_file, keys,
                              sizeof keys / sizeof *keys, f->weights);
    if (!f->net) return -1;
    amp_train_unkept(f->net);
    amp_training_args(f->net, f->data, &f->args);
    f->args.n = f->net->batch * f->net->subdivisions;
    return 0;
}

/* ---- the sweep ---- */

/* NaN: a value was not finite, and the step was skipped. */
static double train(struct finder *f, double rate)
{
    data loaded;
    load_args a = f->args;
    a.d = &loaded;
    pthread_join(load_data(a), NULL);
    f->net->learning_rate = (float)rate;
    train_network(f->net, loaded);
    free_data(loaded);
    return amp_last_loss(f->net);
}

static void run_sweep(struct finder *f)
{
    struct amp_progress line;
    bool on = true;
    amp_progress_start(&line, stderr, "amp lr-find", (size_t)f->most);
    line.unit = "iterations";
    while (on) {
        double rate = amp_sweep_rate(&f->sweep), loss = NAN;
        for (int k = 0; k < MOST_TRIES && !isfinite(loss); k++)
            loss = train(f, rate);
        on = amp_sweep_add(&f->sweep, loss);
        amp_progress_update(&line, (size_t)f->sweep.n);
    }
}

/* Darknet prints to stdout while it builds and runs; the result must stand there alone. */
static int measure(struct finder *f)
{
    if (amp_sweep_init(&f->sweep, f->most)) return amp_complain("out of memory");
    int kept = amp_quiet_begin(), failed = build(f);
    if (!failed) run_sweep(f);
    amp_quiet_end(kept);
    if (!failed && !f->sweep.n)
        return amp_complain("no iteration has a finite loss, even at the lowest rate; `darknet amp "
                            "check` says where");
    return failed;
}

static int tell(struct finder *f)
{
    const struct amp_cfg_section *net = f->cfg_file->sections;
    const struct amp_cfg_entry *e = amp_cfg_find(net, "learning_rate");
    const struct amp_schedule *schedule = &f->options.schedule;
    bool has_least =
        schedule->policy != AMP_POLICY_OF_DARKNET && schedule->policy != AMP_POLICY_ONECYCLE;
    const struct amp_rate_result r = {.data = f->data,
                                      .cfg = f->cfg,
                                      .weights = f->weights,
                                      .images = f->args.n,
                                      .cfg_rate = amp_cfg_float(net, "learning_rate", .001),
                                      .cfg_line = e ? e->line : 0,
                                      .least = has_least ? schedule->rate_min : 0,
                                      .sweep = &f->sweep};
    (f->json ? amp_rate_print_json : amp_rate_print)(&r, stdout);
    return amp_result_flush() || end_picture(f, &r);
}

int amp_command_lr_find(int argc, char **argv)
{
    struct finder f = {.most = 100};
    read_arguments(argc, argv, &f);
    amp_machine_choose(f.gpu);
    amp_refuse_bad_images(1);
    int failed = amp_inputs_check(f.data, f.cfg, f.weights, false) || read_options(&f) ||
                 begin_picture(&f) || measure(&f) || tell(&f);
    amp_whole_drop(&f.picture);
    amp_sweep_free(&f.sweep);
    if (f.net) free_network(f.net);
    amp_cfg_free(f.cfg_file);
    return failed ? 1 : 0;
}
