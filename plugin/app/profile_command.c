#define _GNU_SOURCE

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "amp_observe.h"
#include "arguments.h"
#include "commands.h"
#include "darknet.h"
#include "plugin/input/check_train_net.h"
#include "plugin/core/named_files.h"
#include "plugin/core/options.h"
#include "profile_time.h"
#include "variant.h"

static int complain(const char *what)
{
    fprintf(stderr, "error: %s\n", what);
    return -1;
}

/* ---- networks ---- */

/* Random images, and labels where it is known what they look like. */
static void fill_batch(network *net)
{
    unsigned state = 7;
    LAYER_TYPE head = net->layers[net->n - 1].type;
    for (int i = 0; i < net->inputs * net->batch; i++) {
        state = state * 1664525u + 1013904223u;
        net->input[i] = (float)(state >> 8) / (1 << 24);
    }
    memset(net->truth, 0, (size_t)net->truths * (size_t)net->batch * sizeof(float));
    for (int b = 0; b < net->batch; ++b) {
        float *t = net->truth + b * net->truths;
        if (net->truths < 5 || (head != YOLO && head != REGION)) continue;
        t[0] = t[1] = .5f;
        t[2] = t[3] = .3f;
    }
}

static int build(const struct amp_cfg_file *cfg, const struct amp_net_desc *desc, bool mixed,
                 network **net)
{
    char batch[16];
    struct amp_cfg_key keys[64];
    int n_rows, n = 0, steps = desc->time_steps > 1 ? desc->time_steps : 1;
    const struct amp_option_row *rows = amp_option_rows(&n_rows);
    snprintf(batch, sizeof batch, "%d", desc->batch / steps);
    keys[n++] = (struct amp_cfg_key){.key = "batch", .value = batch};
    keys[n++] = (struct amp_cfg_key){.key = "subdivisions", .value = "1"};
    keys[n++] = (struct amp_cfg_key){.key = "learning_rate", .value = "0"}; /* nothing is learned */
    keys[n++] =
        (struct amp_cfg_key){.key = "amp_on_divergence", .value = mixed ? "continue" : NULL};
    keys[n++] = (struct amp_cfg_key){.key = "mixed_precision", .value = mixed ? "1" : NULL};
    for (int i = 0; i < n_rows && n < 64; i++) {
        bool log = !strncmp(rows[i].key, "amp_log", 7), own = !strcmp(rows[i].key, "seed");
        bool set =
            !strcmp(rows[i].key, "mixed_precision") || !strcmp(rows[i].key, "amp_on_divergence");
        if (!set && (!mixed || log || own)) keys[n++] = (struct amp_cfg_key){.key = rows[i].key};
    }
    srand(1);
    *net = amp_variant_load(mixed ? "amp profile: the network in mixed precision"
                                  : "amp profile: the network in Darknet's FP32",
                            cfg, keys, n, NULL);
    if (!*net) return -1;
    fill_batch(*net);
    return 0;
}

static int build_all(const struct amp_cfg_file *cfg, const struct amp_profile *p,
                     network *nets[AMP_PROFILE_WAYS])
{
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way) {
        bool mixed = way == AMP_PROFILE_MIXED;
        if ((mixed || !p->no_fp32) && build(cfg, p->net, mixed, &nets[way])) return -1;
    }
    return 0;
}

/* ---- the command line ---- */

struct request {
    const char *cfg;
    bool json;
    int gpu;
};

static void read_arguments(int argc, char **argv, struct request *r)
{
    const struct amp_argument options[] = {
        {.name = "json", .help = "Print one JSON object", .target = &r->json},
        AMP_GPU_ARGUMENTS(&r->gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "CFG",
        .help =
            "Times training steps layer by layer, forward and backward, in Darknet's FP32 and in "
            "mixed precision, on random weights and images. Needs no data; trains nothing.",
        .file = {&r->cfg},
        .least_files = 1,
        .options = options};
    amp_arguments_read(&line, argc, argv);
}

/* ---- the whole ---- */

struct reason {
    char text[2 * PATH_MAX];
};

static void take_first(void *reason, const char *message)
{
    struct reason *first = reason;
    if (!first->text[0]) snprintf(first->text, sizeof first->text, "%s", message);
}

static void tell_left_fp16(const network *net)
{
    for (int i = 0; i < net->n; i++)
        if (amp_left_fp16(net, i))
            fprintf(stderr,
                    "amp profile: layer %d left FP16, where its values overflow; its times are "
                    "those of FP32\n",
                    i);
}

static int print(const struct request *r, const struct amp_profile *p)
{
    if (r->json)
        amp_profile_print_json(p, stdout);
    else
        amp_profile_print(p, stdout);
    return fflush(stdout) || ferror(stdout) ? complain(strerror(errno)) : 0;
}

static int profile(const struct request *r, const struct amp_cfg_file *cfg, struct amp_profile *p)
{
    char err[256];
    network *nets[AMP_PROFILE_WAYS] = {0};
    p->layers = calloc((size_t)p->net->n, sizeof *p->layers);
    if (!p->layers) return complain("out of memory");
    int kept = amp_quiet_begin(), failed = build_all(cfg, p, nets);
    if (!failed && amp_profile_time(p, nets, stderr, err, sizeof err)) failed = complain(err);
    amp_quiet_end(kept);
    if (!failed) {
        tell_left_fp16(nets[AMP_PROFILE_MIXED]);
        amp_machine_look(&p->machine, gpu_index);
        amp_profile_count(p);
        failed = print(r, p);
    }
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way)
        if (nets[way]) free_network(nets[way]);
    free(p->layers);
    return failed;
}

int amp_command_profile(int argc, char **argv)
{
    char err[2 * PATH_MAX];
    struct request r = {0};
    struct amp_options options;
    struct amp_profile p = {0};
    struct amp_net_desc *net = NULL;
    struct reason no_fp32 = {""};
    read_arguments(argc, argv, &r);
    amp_machine_choose(r.gpu);
    struct amp_cfg_file *cfg = amp_cfg_read(r.cfg, err, sizeof err);
    if (cfg && !amp_named_files_check(cfg, err, sizeof err) &&
        !amp_options_read(cfg, &options, NULL, 0, err, sizeof err))
        net = amp_net_describe(cfg, 0, 0, true, err, sizeof err);
    if (net) amp_train_stock_check(cfg, net, gpu_index >= 0, take_first, &no_fp32);
    p.net = net;
    p.no_fp32 = no_fp32.text[0] ? no_fp32.text : NULL;
    int failed = net ? profile(&r, cfg, &p) : complain(err);
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    return failed ? 1 : 0;
}
