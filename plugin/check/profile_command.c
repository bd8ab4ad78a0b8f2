#define _GNU_SOURCE
#include "profile_command.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "darknet.h"
#include "network.h"
#include "plugin/data/cfg_variant.h"
#include "plugin/data/progress.h"
#include "plugin/decide/named_files.h"
#include "plugin/data/check_train_net.h"
#include "plugin/decide/options.h"
#include "profile.h"
#include "quiet.h"

/* Mixed precision searches its loss scale in the first step. */
static const int warm_up[AMP_PROFILE_WAYS] = {1, 2};
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 15 };
static const double enough_seconds = 20;

/* A network whose layers are timed: Darknet's pointers, or the plugin's, as they were. */
struct timed {
    network *net;
    void (**forward)(layer, network);
    void (**backward)(layer, network);
    double (*seconds)[AMP_PROFILE_PASSES]; /* of this round */
};

static struct timed *running;

static int complain(const char *what)
{
    fprintf(stderr, "error: %s\n", what);
    return -1;
}

/* ---- timing ---- */

static void timed_forward(layer l, network net)
{
    double start = amp_clock_seconds();
    int i = net.index;
    running->forward[i](l, net);
    running->seconds[i][AMP_PROFILE_FORWARD] = amp_clock_seconds() - start;
}

static void timed_backward(layer l, network net)
{
    double start = amp_clock_seconds();
    int i = net.index;
    running->backward[i](l, net);
    running->seconds[i][AMP_PROFILE_BACKWARD] = amp_clock_seconds() - start;
}

static int time_layers(struct timed *t, network *net)
{
    size_t n = (size_t)net->n;
    t->net = net;
    t->forward = calloc(n, sizeof *t->forward);
    t->backward = calloc(n, sizeof *t->backward);
    t->seconds = calloc(n, sizeof *t->seconds);
    if (!t->forward || !t->backward || !t->seconds) return complain("out of memory");
    for (int i = 0; i < net->n; ++i) {
        t->forward[i] = net->layers[i].forward;
        t->backward[i] = net->layers[i].backward;
        if (t->forward[i]) net->layers[i].forward = timed_forward;
        if (t->backward[i]) net->layers[i].backward = timed_backward;
    }
    return 0;
}

/* One step; returns the seconds of its update. */
static double step(struct timed *t)
{
    running = t;
    *t->net->seen += (size_t)t->net->batch;
    t->net->train = 1;
    forward_network(t->net);
    backward_network(t->net);
    double start = amp_clock_seconds();
    update_network(t->net);
    return amp_clock_seconds() - start;
}

static void end_timed(struct timed *t)
{
    free(t->forward);
    free(t->backward);
    free(t->seconds);
    if (t->net) free_network(t->net);
}

/* ---- networks ---- */

/* Random images, and labels where it is known what they look like. */
static void fill_batch(network *net)
{
    unsigned state = 7;
    LAYER_TYPE head = net->layers[net->n - 1].type;
    for (int i = 0; i < net->inputs * net->batch; ++i) {
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
    char err[2 * PATH_MAX], batch[16];
    struct amp_cfg_key keys[64];
    struct amp_cfg_variant variant;
    int n_rows, n = 0, steps = desc->time_steps > 1 ? desc->time_steps : 1;
    const struct amp_option_row *rows = amp_option_rows(&n_rows);
    snprintf(batch, sizeof batch, "%d", desc->batch / steps);
    keys[n++] = (struct amp_cfg_key){.key = "batch", .value = batch};
    keys[n++] = (struct amp_cfg_key){.key = "subdivisions", .value = "1"};
    keys[n++] = (struct amp_cfg_key){.key = "mixed_precision", .value = mixed ? "1" : NULL};
    for (int i = 0; i < n_rows && n < 64; ++i) {
        bool log = !strncmp(rows[i].key, "amp_log", 7), own = !strcmp(rows[i].key, "seed");
        if (strcmp(rows[i].key, "mixed_precision") && (!mixed || log || own))
            keys[n++] = (struct amp_cfg_key){.key = rows[i].key};
    }
    if (amp_cfg_variant_open(&variant, cfg, keys, n, err, sizeof err)) return complain(err);
    srand(1);
    amp_hush_begin();
    *net = parse_network_cfg(variant.path);
    amp_hush_end();
    amp_cfg_variant_close(&variant);
    fill_batch(*net);
    return 0;
}

/* ---- medians ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* All seconds of all rounds: [round][layer][way][pass], then the updates [round][way]. */
struct rounds {
    int n;
    double *layers, *updates;
};

static double *at(const struct rounds *r, const struct amp_profile *p, int round, int layer,
                  int way, int pass)
{
    size_t i = ((size_t)round * (size_t)p->net->n + (size_t)layer) * AMP_PROFILE_WAYS + (size_t)way;
    return &r->layers[i * AMP_PROFILE_PASSES + (size_t)pass];
}

static void take_medians(const struct rounds *r, struct amp_profile *p)
{
    double x[MOST_ROUNDS];
    p->rounds = r->n;
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way) {
        for (int i = 0; i < p->net->n; ++i)
            for (int pass = 0; pass < AMP_PROFILE_PASSES; ++pass) {
                for (int k = 0; k < r->n; ++k)
                    x[k] = *at(r, p, k, i, way, pass);
                p->layers[i].seconds[way][pass] = median(x, r->n);
            }
        for (int k = 0; k < r->n; ++k)
            x[k] = r->updates[k * AMP_PROFILE_WAYS + way];
        p->update[way] = median(x, r->n);
    }
}

static void run_round(struct rounds *r, const struct amp_profile *p, struct timed *ways)
{
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way) {
        memset(ways[way].seconds, 0, (size_t)p->net->n * sizeof *ways[way].seconds);
        r->updates[r->n * AMP_PROFILE_WAYS + way] = step(&ways[way]);
        for (int i = 0; i < p->net->n; ++i)
            memcpy(at(r, p, r->n, i, way, 0), ways[way].seconds[i], sizeof *ways[way].seconds);
    }
    ++r->n;
}

/* In turns, until there are enough. */
static int measure(struct amp_profile *p, struct timed *ways)
{
    size_t each = (size_t)p->net->n * AMP_PROFILE_WAYS * AMP_PROFILE_PASSES;
    struct rounds r = {0, calloc(MOST_ROUNDS * each, sizeof(double)),
                       calloc(MOST_ROUNDS * AMP_PROFILE_WAYS, sizeof(double))};
    int failed = !r.layers || !r.updates ? complain("out of memory") : 0;
    for (int way = 0; way < AMP_PROFILE_WAYS && !failed; ++way)
        for (int k = 0; k < warm_up[way]; ++k)
            step(&ways[way]);
    double start = amp_clock_seconds();
    while (!failed && r.n < MOST_ROUNDS &&
           (r.n < LEAST_ROUNDS || amp_clock_seconds() - start < enough_seconds))
        run_round(&r, p, ways);
    if (!failed) take_medians(&r, p);
    free(r.layers);
    free(r.updates);
    return failed;
}

/* ---- the command ---- */

struct request {
    const char *cfg;
    bool all, json;
};

static int read_arguments(int argc, char **argv, struct request *r)
{
    for (int i = 3; i < argc && argv[i]; ++i) {
        if (!strcmp(argv[i], "--all"))
            r->all = true;
        else if (!strcmp(argv[i], "--json"))
            r->json = true;
        else if (!strcmp(argv[i], "-nogpu"))
            continue; /* there is no other way */
        else if (argv[i][0] == '-' || r->cfg)
            return -1;
        else
            r->cfg = argv[i];
    }
    return r->cfg ? 0 : -1;
}

static void tell_crash(void *failed, const char *message)
{
    *(int *)failed = complain(message);
}

// Darknet's FP32 is one of the two that are timed.
static int check_stock(const struct amp_cfg_file *cfg, const struct amp_net_desc *net)
{
    int failed = 0;
    amp_train_stock_check(cfg, net, tell_crash, &failed);
    if (failed) complain("there is no FP32 time of Darknet's to compare with");
    return failed;
}

static int profile(const struct request *r, const struct amp_cfg_file *cfg, struct amp_profile *p)
{
    struct timed ways[AMP_PROFILE_WAYS] = {0};
    network *net = NULL;
    int kept = amp_quiet_begin(), failed = 0;
    p->layers = calloc((size_t)p->net->n, sizeof *p->layers);
    if (!p->layers) failed = complain("out of memory");
    for (int way = 0; way < AMP_PROFILE_WAYS && !failed; ++way)
        failed = build(cfg, p->net, way == AMP_PROFILE_MIXED, &net) || time_layers(&ways[way], net);
    if (!failed) failed = measure(p, ways);
    amp_quiet_end(kept);
    if (!failed) {
        amp_profile_count(p);
        if (r->json)
            amp_profile_print_json(p, stdout);
        else
            amp_profile_print(p, r->all, stdout);
        if (fflush(stdout) || ferror(stdout)) failed = complain(strerror(errno));
    }
    for (int way = 0; way < AMP_PROFILE_WAYS; ++way)
        end_timed(&ways[way]);
    free(p->layers);
    return failed;
}

int amp_command_profile(int argc, char **argv)
{
    char err[2 * PATH_MAX];
    struct request r = {0};
    struct amp_options options;
    struct amp_net_desc *net = NULL;
    struct amp_plan *plan = NULL;
    if (read_arguments(argc, argv, &r)) {
        fprintf(stderr, "usage: %s amp profile CFG [--all] [--json]\n", argv[0]);
        return 1;
    }
#ifdef GPU
    fprintf(stderr,
            "amp profile times the CPU: on a GPU it would have to wait for every layer, which "
            "it does not\n");
#endif
    gpu_index = -1;
    struct amp_cfg_file *cfg = amp_cfg_read(r.cfg, err, sizeof err);
    if (cfg && !amp_named_files_check(cfg, err, sizeof err) &&
        !amp_options_read(cfg, &options, NULL, 0, err, sizeof err))
        net = amp_net_describe(cfg, 0, 0, true, err, sizeof err);
    if (net) plan = amp_plan_make(net, &options, 0, NULL, true, err, sizeof err);
    struct amp_profile p = {.net = net, .plan = plan};
    int failed = plan ? check_stock(cfg, net) || profile(&r, cfg, &p) : complain(err);
    amp_plan_free(plan);
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    return failed ? 1 : 0;
}
