/* `darknet amp bench-loader`: decides what is measured, in which order, and on which network. It
 * must not know how images are loaded (loading.c) or what the times mean (loading_report.c). */
#define _GNU_SOURCE

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "amp_observe.h"
#include "commands.h"
#include "darknet.h"
#include "loading.h"

#include "plugin/core/host.h"
#include "plugin/core/net/net.h"
#include "plugin/core/read/options.h"
#include "plugin/core/read/text.h"
#include "plugin/input/check_train.h"

#ifdef GPU
static const bool on_gpu = true;
#else
static const bool on_gpu = false;
#endif

enum { LEAST_PASSES = 3, MOST_PASSES = 20, MOST_SKIPPED = 20 };
static const double enough_seconds = 5, most_seconds = 20; /* for the passes */

struct bench {
    const char *data, *cfg;
    bool json;
    int gpu;
    struct amp_cfg_file *cfg_file;
    struct amp_options options;
    struct amp_net_desc *desc;
    network *net;
    load_args args; /* as detector train loads a pass */
    struct amp_loading result;
};

static int complain(const char *what)
{
    fprintf(stderr, "error: %s\n", what);
    return -1;
}

/* ---- the command line and the files ---- */

static void read_arguments(int argc, char **argv, struct bench *b)
{
    const struct amp_argument options[] = {
        {.name = "json", .help = "Print one JSON object", .target = &b->json},
        AMP_GPU_ARGUMENTS(&b->gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "DATA CFG",
        .help = "Times how fast one core loads images of your training list, by Darknet's own way "
                "and by darknet-amp's, and a training step of the network, and says whether "
                "loading keeps up. Trains nothing and writes no file.",
        .file = {&b->data, &b->cfg},
        .least_files = 2,
        .options = options};
    amp_arguments_read(&line, argc, argv);
}

static int check_inputs(const struct bench *b)
{
    static char err[1 << 16];
    if (!amp_check_train_inputs(b->data, b->cfg, NULL, true, on_gpu, stderr, stderr, err,
                                sizeof err))
        return 0;
    amp_print_faults(err, stderr);
    return -1;
}

static int read_net(struct bench *b)
{
    char err[2 * PATH_MAX];
    b->cfg_file = amp_cfg_read(b->cfg, err, sizeof err);
    if (b->cfg_file && !amp_mixed_options_read(b->cfg_file, &b->options, err, sizeof err)) {
        amp_machine_settle_dtype(&b->options, b->gpu);
        b->desc = amp_net_describe(b->cfg_file, 0, 0, true, err, sizeof err);
        if (b->desc &&
            amp_machine_settle_pass(b->desc, b->cfg_file, &b->options, b->gpu, err, sizeof err))
            return complain(err);
    }
    if (!b->desc) return complain(err);
    if (!b->options.mixed_precision)
        amp_mixed_tell_off(b->cfg_file, "so Darknet loads all images; with mixed_precision=1:");
    return 0;
}

/* ---- the network ---- */

/* One pass is a step. No seed: the images' numbers are drawn from srand's. No log: nothing is
 * trained. */
static int build(struct bench *b)
{
    char batch[16];
    const int steps = b->desc->time_steps > 1 ? b->desc->time_steps : 1;
    snprintf(batch, sizeof batch, "%d", b->desc->batch / steps);
    const struct amp_cfg_key keys[] = {{.key = "mixed_precision", .value = "1"},
                                       {.key = "batch", .value = batch},
                                       {.key = "subdivisions", .value = "1"},
                                       {.key = "seed"},
                                       {.key = "amp_log"},
                                       {.key = "amp_log_layers"}};
    srand(1);
    b->net = amp_variant_load("amp bench-loader: the network", b->cfg_file, keys,
                              sizeof keys / sizeof *keys, NULL);
    return b->net ? 0 : -1;
}

/* ---- a training step ---- */

static void load_batch(const struct bench *b)
{
    data loaded;
    load_args a = b->args;
    a.d = &loaded;
    a.threads = b->result.cores;
    pthread_join(load_data(a), NULL);
    get_next_batch(loaded, b->net->batch, 0, b->net->input, b->net->truth);
    free_data(loaded);
}

/* Layers may leave FP16, and the loss scale falls, until a pass is clean. */
static bool warm_up(network *net)
{
    struct amp_pass pass = {0};
    for (int k = 0; k < net->n + MOST_SKIPPED && !pass.clean; k++)
        amp_pass(net, NULL, NULL, &pass);
    return pass.clean;
}

static bool is_timed(int passes, double start)
{
    double seconds = amp_clock_seconds() - start;
    return passes >= MOST_PASSES || (passes >= LEAST_PASSES && seconds > enough_seconds) ||
           (passes && seconds > most_seconds);
}

/* The fastest pass counts, since other work on the machine only adds time. The update is left out:
 * it is little beside an iteration's passes. */
static int time_step(struct bench *b)
{
    struct amp_loading *l = &b->result;
    struct amp_pass pass;
    double fastest = INFINITY;
    fprintf(stderr, "amp bench-loader: timing a training step\n");
    load_batch(b);
    if (!warm_up(b->net))
        return complain("no pass of the network is without overflow; `darknet amp check` says why");
    for (double start = amp_clock_seconds(); !is_timed(l->passes, start); l->passes++) {
        double begin = amp_clock_seconds();
        amp_pass(b->net, NULL, NULL, &pass);
        fastest = fmin(fastest, amp_clock_seconds() - begin);
    }
    l->step = fastest * b->desc->subdivisions;
    l->step_images = b->net->batch * b->desc->subdivisions;
    amp_machine_look(&l->machine, gpu_index);
    return 0;
}

/* ---- the whole ---- */

static void describe(struct bench *b)
{
    struct amp_loading *l = &b->result;
    int images = b->desc->batch * b->desc->subdivisions;
    l->data = b->data;
    l->cfg = b->cfg;
    l->width = b->desc->w;
    l->height = b->desc->h;
    l->loader = b->options.loader;
    l->reduces = b->options.jpeg_scale;
    l->precision = amp_dtype_word(b->options.dtype);
    l->cores = amp_cores();
    l->threads_given = b->options.loader_threads > 0;
    l->threads = l->threads_given ? b->options.loader_threads : l->cores;
    if (l->threads > images) l->threads = images; /* a thread has at least one image */
}

/* Loading comes first: then no thread of the backend is there yet. Darknet prints to stdout while
 * it builds and runs; the result must stand there alone. */
static int measure(struct bench *b)
{
    char err[2 * PATH_MAX];
    int kept = amp_quiet_begin(), failed = build(b);
    if (!failed) {
        amp_detector_args(b->net, b->data, &b->args);
        b->result.random_size = b->net->layers[b->net->n - 1].random;
        failed = amp_loading_measure(&b->result, &b->args, stderr, err, sizeof err);
        if (failed) complain(err);
    }
    if (!failed) failed = time_step(b);
    amp_quiet_end(kept);
    return failed;
}

int amp_command_bench_loader(int argc, char **argv)
{
    struct bench b = {0};
    read_arguments(argc, argv, &b);
    amp_machine_choose(b.gpu);
    /* A black image in place of a broken one would load fast. */
    amp_refuse_bad_images(1);
    int failed = check_inputs(&b) || read_net(&b);
    if (!failed) {
        describe(&b);
        failed = measure(&b);
    }
    if (!failed) (b.json ? amp_loading_print_json : amp_loading_print)(&b.result, stdout);
    if (!failed && (fflush(stdout) || ferror(stdout))) failed = complain(strerror(errno));
    if (b.net) free_network(b.net);
    amp_net_desc_free(b.desc);
    amp_cfg_free(b.cfg_file);
    return failed ? 1 : 0;
}
