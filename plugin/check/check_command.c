#define _GNU_SOURCE
#include "check_command.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amp.h"
#include "amp_observe.h"
#include "darknet.h"
#include "plugin/data/cfg_variant.h"
#include "plugin/data/check_train_inputs.h"
#include "plugin/data/progress.h"
#include "plugin/decide/options.h"
#include "plugin/decide/plan.h"
#include "precision.h"
#include "quiet.h"

#ifdef GPU
static const bool on_gpu = true;
#else
static const bool on_gpu = false;
#endif

enum { ROUNDS = 3 };
static const double enough_seconds = 20; /* of one way's passes */

struct check {
    const char *data, *cfg, *weights;
    bool json;
    struct amp_cfg_file *cfg_file;
    struct amp_options options;
    struct amp_net_desc *net;
    network *fp32, *mixed;
    struct amp_precision precision;
    struct amp_check_summary summary;
};

static int complain(const char *what)
{
    fprintf(stderr, "error: %s\n", what);
    return -1;
}

/* ---- the command line and the files ---- */

static int read_arguments(int argc, char **argv, struct check *c)
{
    const char **words[] = {&c->data, &c->cfg, &c->weights};
    int n = 0;
    for (int i = 3; i < argc; ++i) {
        if (!strcmp(argv[i], "--json"))
            c->json = true;
        else if (argv[i][0] == '-' || n == 3)
            return -1;
        else
            *words[n++] = argv[i];
    }
    return n >= 2 ? 0 : -1;
}

static int check_inputs(const struct check *c)
{
    static char err[1 << 16];
    if (!amp_check_train_inputs(c->data, c->cfg, c->weights, true, on_gpu, stderr, stderr, err,
                                sizeof err))
        return 0;
    amp_print_faults(err, stderr);
    return -1;
}

static int read_net(struct check *c)
{
    char err[2 * PATH_MAX];
    c->cfg_file = amp_cfg_read(c->cfg, err, sizeof err);
    if (c->cfg_file && !amp_options_read(c->cfg_file, &c->options, NULL, 0, err, sizeof err))
        c->net = amp_net_describe(c->cfg_file, 0, 0, true, err, sizeof err);
    return c->net ? 0 : complain(err);
}

/* ---- two networks ---- */

/* One pass is a whole step; the same initial weights and images for both. */
static int build(struct check *c, const char *dtype, network **net)
{
    char err[2 * PATH_MAX], batch[16], seed[24];
    bool fp32 = dtype;
    snprintf(batch, sizeof batch, "%d",
             c->net->batch / (c->net->time_steps > 1 ? c->net->time_steps : 1));
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)c->options.seed);
    const struct amp_cfg_key keys[] = {{"mixed_precision", "1"},
                                       {"batch", batch},
                                       {"subdivisions", "1"},
                                       {"seed", seed},
                                       {"amp_log", NULL},
                                       {"amp_log_layers", NULL},
                                       {"amp_dtype", dtype},
                                       /* no effect in FP32, which would be told */
                                       {"loss_scale", NULL},
                                       {"loss_scale_init", NULL},
                                       {"loss_scale_window", NULL},
                                       {"loss_scale_growth", NULL},
                                       {"loss_scale_backoff", NULL},
                                       {"loss_scale_min", NULL},
                                       {"loss_scale_max", NULL}};
    struct amp_cfg_variant variant;
    int n = fp32 ? sizeof keys / sizeof *keys : 6;
    if (amp_cfg_variant_open(&variant, c->cfg_file, keys, n, err, sizeof err)) return complain(err);
    *net = load_network(variant.path, (char *)c->weights, 1);
    amp_cfg_variant_close(&variant);
    return 0;
}

static int build_both(struct check *c)
{
    return build(c, "fp32", &c->fp32) || build(c, NULL, &c->mixed) ? -1 : 0;
}

/* As detector train loads them. */
static void load_batch(struct check *c)
{
    list *options = read_data_cfg((char *)c->data);
    char *train = option_find_str(options, "train", "data/train.list");
    list *paths = get_paths(train);
    network *net = c->mixed;
    layer head = net->layers[net->n - 1];
    data loaded;
    load_args args = get_base_args(net);
    args.coords = head.coords;
    args.paths = (char **)list_to_array(paths);
    args.n = net->batch;
    args.m = paths->size;
    args.classes = head.classes;
    args.jitter = head.jitter;
    args.num_boxes = head.max_boxes;
    args.d = &loaded;
    args.type = DETECTION_DATA;
    args.threads = 8;
    pthread_join(load_data(args), NULL);
    get_next_batch(loaded, net->batch, 0, c->fp32->input, c->fp32->truth);
    get_next_batch(loaded, net->batch, 0, net->input, net->truth);
    free_data(loaded);
    c->summary.images = net->batch;
}

/* ---- passes ---- */

static int tell_not_clean(const char *what, const struct amp_pass *pass)
{
    char message[300];
    snprintf(message, sizeof message, "%s: %s of layer %d is not finite (largest %.3g)", what,
             pass->tensor, pass->layer, pass->magnitude);
    return complain(message);
}

static void note_left(struct check *c, const struct amp_pass *pass)
{
    if (amp_left_fp16(c->mixed, pass->layer)) /* before those that read it */
        amp_precision_left(&c->precision, pass->layer, pass->tensor, pass->magnitude);
    for (int i = 0; i < c->net->n; ++i)
        if (amp_left_fp16(c->mixed, i))
            amp_precision_left(&c->precision, i, "input's copy", pass->magnitude);
    if (pass->gradient)
        amp_precision_left(&c->precision, pass->layer,
                           c->options.loss_scale_dynamic ? "delta, even at the smallest loss scale,"
                                                         : "delta at the fixed loss_scale",
                           pass->magnitude);
}

/* Until every value fits: layers leave FP16 one after the other, and the loss scale is found. */
static void settle(struct check *c, struct amp_pass *pass)
{
    do {
        amp_pass(c->mixed, NULL, NULL, pass);
        c->summary.redone += pass->redone;
        if (!pass->clean) note_left(c, pass);
    } while (!pass->clean && pass->left_fp16);
    c->precision.scale = pass->scale;
}

/* Where gradients overflow at every scale there is nothing to compare, but something to advise. */
static int compare(struct check *c)
{
    struct amp_pass pass;
    amp_pass(c->fp32, amp_precision_see_fp32, &c->precision, &pass);
    if (!pass.clean) return tell_not_clean("FP32", &pass);
    settle(c, &pass);
    if (pass.clean) amp_pass(c->mixed, amp_precision_see_mixed, &c->precision, &pass);
    if (!pass.clean && !pass.gradient) return tell_not_clean("mixed precision", &pass);
    amp_precision_judge(&c->precision);
    return 0;
}

/* ---- speed ---- */

static void stock_pass(network *net)
{
    *net->seen += (size_t)net->batch;
    net->train = 1;
    forward_network(net);
    backward_network(net);
}

static void plugin_pass(network *net)
{
    struct amp_pass pass;
    amp_pass(net, NULL, NULL, &pass);
}

static double time_one(network *net, void (*run)(network *))
{
    double start = amp_clock_seconds();
    run(net);
    return amp_clock_seconds() - start;
}

/* The fastest of a few, in turns. */
static void time_passes(struct check *c)
{
    int each = c->net->subdivisions;
    double fp32 = time_one(c->fp32, plugin_pass), mixed = time_one(c->mixed, plugin_pass);
    for (int i = 1; i < ROUNDS && i * (fp32 + mixed) < enough_seconds; ++i) {
        double a = time_one(c->fp32, plugin_pass), b = time_one(c->mixed, plugin_pass);
        fp32 = a < fp32 ? a : fp32;
        mixed = b < mixed ? b : mixed;
    }
    amp_detach(c->fp32);
    double stock = time_one(c->fp32, stock_pass);
    for (int i = 1; i < ROUNDS && i * stock < enough_seconds; ++i) {
        double a = time_one(c->fp32, stock_pass);
        stock = a < stock ? a : stock;
    }
    c->summary.fp32_seconds = each * fp32;
    c->summary.mixed_seconds = each * mixed;
    c->summary.stock_seconds = each * stock;
}

/* ---- the whole ---- */

static int predict_memory(struct check *c)
{
    char err[512];
    struct amp_options options = c->options;
    options.mixed_precision = true;
    struct amp_plan *plan = amp_plan_make(c->net, &options, 0, NULL, true, err, sizeof err);
    if (!plan) return complain(err);
    c->summary.fp32_bytes = plan->darknet_bytes;
    c->summary.mixed_bytes = plan->mixed_bytes;
    amp_plan_free(plan);
    return 0;
}

static int work(struct check *c)
{
    if (check_inputs(c) || read_net(c) || predict_memory(c)) return -1;
    if (amp_precision_init(&c->precision, c->net)) return complain("out of memory");
    c->summary.data = c->data;
    c->summary.cfg = c->cfg;
    c->summary.weights = c->weights;
    c->summary.images_per_iteration = c->net->batch * c->net->subdivisions;
    int kept = amp_quiet_begin();
    int failed = build_both(c);
    if (!failed) {
        load_batch(c);
        failed = compare(c);
    }
    if (!failed) time_passes(c);
    amp_quiet_end(kept);
    return failed;
}

static void choose_device(void)
{
#ifdef GPU
    if (gpu_index >= 0) cuda_set_device(gpu_index);
#else
    gpu_index = -1;
#endif
}

int amp_command_check(int argc, char **argv)
{
    struct check c = {0};
    gpu_index = find_int_arg(argc, argv, "-i", 0);
    if (find_arg(argc, argv, "-nogpu")) gpu_index = -1;
    while (argc > 0 && !argv[argc - 1])
        --argc;
    if (read_arguments(argc, argv, &c)) {
        fprintf(stderr, "usage: %s amp check DATA CFG [WEIGHTS] [--json]\n", argv[0]);
        return 1;
    }
    choose_device();
    amp_refuse_bad_images(1);
    int failed = work(&c), status = c.precision.n_advice ? 2 : 0;
    if (!failed)
        (c.json ? amp_precision_print_json : amp_precision_print)(&c.precision, &c.summary, stdout);
    if (!failed && (fflush(stdout) || ferror(stdout))) failed = complain(strerror(errno));
    if (c.mixed) free_network(c.mixed);
    if (c.fp32) free_network(c.fp32);
    if (c.net) amp_precision_free(&c.precision);
    amp_net_desc_free(c.net);
    amp_cfg_free(c.cfg_file);
    return failed ? 1 : status;
}
