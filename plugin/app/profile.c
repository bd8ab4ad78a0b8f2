/* `darknet amp profile`: times training steps layer by layer. Decides how a step is run and which
 * times count. Darknet's own layers are timed through their function pointers, mixed precision
 * through the plugin (amp_observe.h). It must not know how the result is shown (profile_report.c).
 *
 * On a GPU the device is waited for before and after every layer, since work is only started there;
 * so a step takes longer than in training. */
#define _GNU_SOURCE
#include "profile.h"

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
#include "loading_trace.h"
#include "network.h"
#include "measuring.h"

#include "plugin/attach/device.h"
#include "plugin/core/files/file.h"
#include "plugin/core/host.h"
#include "plugin/core/read/options.h"
#include "plugin/input/check_train.h"

#ifdef GPU
#include "cuda.h"
#endif

/* Steps before the first that counts: memory is touched, plans are chosen. Mixed precision also
 * searches its loss scale in the first one. */
static const int warm_up[AMP_PROFILE_WAYS] = {1, 2};
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 15, MOST_PASSES = 20, MOST_SKIPPED = 20 };
static const double enough_seconds = 20, seconds_between_lines = 5;
static const double enough_of_passes = 5, most_of_passes = 20; /* seconds, beside loading */

/* One way's network. */
struct timed {
    network *net;                          /* NULL: this way is not timed */
    void (**forward)(layer, network);      /* Darknet's own pointers; NULL if */
    void (**backward)(layer, network);     /* the plugin watches this network */
    double (*seconds)[AMP_PROFILE_PASSES]; /* per layer, of the current step */
    double whole[AMP_PROFILE_PASSES], update;
    double begin;            /* of the current layer */
    struct amp_trace *trace; /* gets what runs; NULL: nothing does */
    int row;
    bool went_back;
};

/* The network whose step runs: Darknet's function pointers have no argument for it. */
static struct timed *now;

/* ---- one layer ---- */

/* Waits for all that was started, and returns the time. */
static double finished(const network *net)
{
#ifdef GPU
    if (net->gpu_index >= 0) check_error(cudaDeviceSynchronize());
#else
    (void)net;
#endif
    return amp_clock_seconds();
}

static void begin_layer(void)
{
    now->begin = finished(now->net);
}

static void trace_layer(const struct timed *t, int layer, enum amp_profile_pass pass, double end)
{
    char name[60];
    LAYER_TYPE type = t->net->layers[layer].type;
    snprintf(name, sizeof name, "%d %s%s", layer, amp_layer_type_name((enum amp_layer_type)type),
             pass == AMP_PROFILE_BACKWARD ? " backward" : "");
    amp_trace_add(t->trace, t->row, "layer", name, t->begin, end);
}

static void end_layer(int layer, enum amp_profile_pass pass)
{
    struct timed *t = now;
    double end = finished(t->net);
    t->seconds[layer][pass] += end - t->begin;
    if (t->trace) trace_layer(t, layer, pass, end);
    t->went_back = t->went_back || pass == AMP_PROFILE_BACKWARD;
}

static void timed_forward(layer l, network net)
{
    begin_layer();
    now->forward[net.index](l, net);
    end_layer(net.index, AMP_PROFILE_FORWARD);
}

static void timed_backward(layer l, network net)
{
    begin_layer();
    now->backward[net.index](l, net);
    end_layer(net.index, AMP_PROFILE_BACKWARD);
}

static void watched_layer(int layer, int backward, int done, void *user)
{
    (void)user;
    if (done)
        end_layer(layer, backward ? AMP_PROFILE_BACKWARD : AMP_PROFILE_FORWARD);
    else
        begin_layer();
}

/* ---- one step ---- */

/* Not every layer has both pointers; NULL stays NULL. */
static bool replace_pointers(struct timed *t)
{
    size_t n = (size_t)t->net->n;
    bool device = t->net->gpu_index >= 0;
    t->forward = calloc(n, sizeof *t->forward);
    t->backward = calloc(n, sizeof *t->backward);
    if (!t->forward || !t->backward) return false;
    for (int i = 0; i < t->net->n; i++) {
        layer *l = &t->net->layers[i];
        t->forward[i] = AMP_SIDE(device, l, forward);
        t->backward[i] = AMP_SIDE(device, l, backward);
        if (t->forward[i]) AMP_SIDE(device, l, forward) = timed_forward;
        if (t->backward[i]) AMP_SIDE(device, l, backward) = timed_backward;
    }
    return true;
}

/* By AlexeyAB's rules FP32 is the plugin's own, since Darknet has none. */
static bool is_own(const struct amp_net_desc *net, enum amp_profile_way way)
{
    return way == AMP_PROFILE_MIXED || net->dialect == AMP_DIALECT_FORK;
}

static bool start_watching(struct timed *t, network *net, bool own)
{
    t->net = net;
    t->seconds = calloc((size_t)net->n, sizeof *t->seconds);
    if (!t->seconds) return false;
    if (!own) return replace_pointers(t);
    amp_watch_layers(net, watched_layer, NULL);
    return true;
}

/* Puts Darknet's pointers back. The plugin's network stays watched: watching also keeps its
 * training log silent. */
static void stop_watching(struct timed *t)
{
    bool device = t->net && t->net->gpu_index >= 0;
    for (int i = 0; t->forward && t->backward && i < t->net->n; i++) {
        AMP_SIDE(device, &t->net->layers[i], forward) = t->forward[i];
        AMP_SIDE(device, &t->net->layers[i], backward) = t->backward[i];
    }
    free(t->forward);
    free(t->backward);
    free(t->seconds);
}

/* train_network_datum without its update rule: one pass is a step here. `seen` grows first, as
 * there. */
static void step(struct timed *t)
{
    network *net = t->net;
    now = t;
    t->went_back = false;
    memset(t->seconds, 0, (size_t)net->n * sizeof *t->seconds);
    *net->seen += (size_t)net->batch;
    net->train = 1;
    double start = finished(net);
    forward_network(net);
    double forward = finished(net);
    backward_network(net);
    double backward = finished(net);
    update_network(net);
    t->whole[AMP_PROFILE_FORWARD] = forward - start;
    t->whole[AMP_PROFILE_BACKWARD] = backward - forward;
    double end = finished(net);
    t->update = end - backward;
    if (!t->trace) return;
    amp_trace_add(t->trace, t->row, "pass", "forward", start, forward);
    amp_trace_add(t->trace, t->row, "pass", "backward", forward, backward);
    amp_trace_add(t->trace, t->row, "pass", "update", backward, end);
}

/* True if mixed precision skipped the step: then no layer of ours ran its backward. */
static bool is_skipped(const struct timed *t)
{
    const struct amp_plan *plan = amp_plan_in_use(t->net);
    return !t->went_back && plan->first_backward < plan->n;
}

/* ---- the fastest of all rounds ---- */

/* NaN is "not known": fmin takes the other number then. */
static void forget(struct amp_profile *p)
{
    double *of_all[] = {p->update, p->step};
    for (int way = 0; way < AMP_PROFILE_WAYS; way++) {
        for (int k = 0; k < 2; k++)
            of_all[k][way] = NAN;
        for (int pass = 0; pass < AMP_PROFILE_PASSES; pass++) {
            p->other.seconds[way][pass] = NAN;
            for (int i = 0; i < p->net->n; i++)
                p->layers[i].seconds[way][pass] = NAN;
        }
    }
}

/* Keeps the smallest times. `other` is what the layers leave of a pass in the same round: the
 * fastest pass less every layer's fastest time would hold what disturbed layers. */
static void keep(struct amp_profile *p, const struct timed *t, enum amp_profile_way way)
{
    for (int pass = 0; pass < AMP_PROFILE_PASSES; pass++) {
        double *other = &p->other.seconds[way][pass], rest = t->whole[pass];
        for (int i = 0; i < p->net->n; i++) {
            double *seconds = &p->layers[i].seconds[way][pass];
            *seconds = fmin(*seconds, t->seconds[i][pass]); /* fmin takes the number beside a NaN */
            rest -= t->seconds[i][pass];
        }
        *other = fmin(*other, rest);
    }
    p->update[way] = fmin(p->update[way], t->update);
    p->step[way] = fmin(p->step[way], t->update + amp_profile_both(t->whole));
}

/* Layers may leave FP16 at first, each in a step that is then skipped; so at most one more step per
 * layer. */
static void warm_up_way(struct timed *t, enum amp_profile_way way)
{
    int most = warm_up[way] + t->net->n + MOST_SKIPPED;
    for (int good = 0, k = 0; good < warm_up[way] && k < most; k++) {
        step(t);
        good += way == AMP_PROFILE_FP32 || !is_skipped(t);
    }
}

/* Both networks take turns, so that a machine that slows down slows both. */
static void run_rounds(struct amp_profile *p, struct timed *ways, FILE *progress)
{
    for (int way = 0; way < AMP_PROFILE_WAYS; way++)
        if (ways[way].net) warm_up_way(&ways[way], (enum amp_profile_way)way);
    double start = amp_clock_seconds(), told = start;
    for (int skipped = 0; p->rounds < MOST_ROUNDS && skipped < MOST_SKIPPED;) {
        double seconds = amp_clock_seconds();
        if (p->rounds >= LEAST_ROUNDS && seconds - start > enough_seconds) break;
        if (seconds - told > seconds_between_lines)
            fprintf(progress, "amp profile: round %d of at most %d, %.0f s\n", p->rounds + 1,
                    MOST_ROUNDS, (told = seconds) - start);
        for (int way = 0; way < AMP_PROFILE_WAYS; way++) {
            struct timed *t = &ways[way];
            if (!t->net) continue;
            step(t);
            bool mixed = way == AMP_PROFILE_MIXED, bad = mixed && is_skipped(t);
            if (!bad) keep(p, t, (enum amp_profile_way)way);
            skipped += bad;
            p->rounds += mixed && !bad;
        }
    }
}

/* One more step of each way. Beside that of mixed precision, the images of the next one load, as in
 * training. */
static void trace_steps(const struct amp_profile *p, struct timed *ways)
{
    struct amp_loading_trace *l = NULL;
    if (!p->trace) return;
    for (int way = 0; way < AMP_PROFILE_WAYS; way++) {
        struct timed *t = &ways[way];
        if (!t->net) continue;
        t->trace = p->trace;
        t->row = way;
        bool loads = way == AMP_PROFILE_MIXED && p->trained;
        if (loads)
            l = amp_loading_trace_start(p->trace, p->loading, t->net, p->trained, p->net->batch,
                                        AMP_PROFILE_LOADER_ROW);
        if (loads && !l) fputs("amp profile: no thread could be started that loads\n", stderr);
        step(t);
        t->trace = NULL;
    }
    if (l) amp_loading_trace_end(l);
}

int amp_profile_time(struct amp_profile *p, network *nets[AMP_PROFILE_WAYS], FILE *progress,
                     char *err, size_t err_size)
{
    struct timed ways[AMP_PROFILE_WAYS] = {0};
    bool ready = true;
    fprintf(progress, "amp profile: %s, %d %s a pass: %s, %d to %d rounds, about %.0f s\n",
            p->net->cfg_path, p->net->batch, amp_profile_unit(p->net),
            !nets[AMP_PROFILE_FP32]            ? "mixed precision alone"
            : is_own(p->net, AMP_PROFILE_FP32) ? "amp_dtype=fp32 and mixed precision in turns"
                                               : "Darknet's FP32 and mixed precision in turns",
            LEAST_ROUNDS, MOST_ROUNDS, enough_seconds);
    for (int way = 0; way < AMP_PROFILE_WAYS; way++)
        if (nets[way] && ready)
            ready =
                start_watching(&ways[way], nets[way], is_own(p->net, (enum amp_profile_way)way));
    p->rounds = 0;
    forget(p);
    if (ready) run_rounds(p, ways, progress);
    if (!ready)
        snprintf(err, err_size, "out of memory");
    else if (p->rounds < LEAST_ROUNDS)
        snprintf(
            err, err_size,
            "mixed precision skips its steps: values overflow; `darknet amp check` says where");
    else
        trace_steps(p, ways);
    p->plan = amp_plan_in_use(nets[AMP_PROFILE_MIXED]);
    for (int way = 0; way < AMP_PROFILE_WAYS; way++)
        stop_watching(&ways[way]);
    return p->rounds < LEAST_ROUNDS ? -1 : 0;
}

/* ---- networks ---- */

/* Fills in random images, and one label per image if the head's format is known: [yolo] and
 * [region] without any object would skip work. */
static void fill_batch(network *net)
{
    unsigned state = 7;
    LAYER_TYPE head = net->layers[net->n - 1].type;
    for (int i = 0; i < net->inputs * net->batch; i++) {
        state = state * 1664525u + 1013904223u;
        net->input[i] = (float)(state >> 8) / (1 << 24);
    }
    memset(net->truth, 0, (size_t)net->truths * (size_t)net->batch * sizeof(float));
    for (int b = 0; b < net->batch; b++) {
        float *t = net->truth + b * net->truths;
        if (net->truths < 5 || (head != YOLO && head != REGION)) continue;
        t[0] = t[1] = .5f;
        t[2] = t[3] = .3f;
    }
}

/* Keys of ours that a way's network is built without. Darknet's own would attach with them; of FP32
 * only the loss scale and what it must not exceed. */
static bool is_left_out(const char *key, enum amp_profile_way way, bool own)
{
    bool scale = !strncmp(key, "loss_scale", 10) || !strcmp(key, "amp_level");
    return !own || !strncmp(key, "amp_log", 7) || !strcmp(key, "seed") ||
           (way == AMP_PROFILE_FP32 && scale);
}

/* A rate of 0 keeps the weights as they are, so that every round does the same. */
static int build(const struct amp_cfg_file *cfg, const struct amp_net_desc *desc,
                 enum amp_profile_way way, network **net)
{
    char batch[16];
    bool own = is_own(desc, way), own_fp32 = own && way == AMP_PROFILE_FP32;
    struct amp_cfg_key keys[64];
    int n_rows, n = 0, steps = desc->time_steps > 1 ? desc->time_steps : 1;
    const struct amp_option_row *rows = amp_option_rows(&n_rows);
    snprintf(batch, sizeof batch, "%d", desc->batch / steps);
    keys[n++] = (struct amp_cfg_key){.key = "batch", .value = batch};
    keys[n++] = (struct amp_cfg_key){.key = "subdivisions", .value = "1"};
    keys[n++] = (struct amp_cfg_key){.key = "learning_rate", .value = "0"}; /* no weight changes */
    keys[n++] = (struct amp_cfg_key){.key = "policy", .value = "constant"};
    keys[n++] = (struct amp_cfg_key){.key = "amp_on_divergence", .value = own ? "continue" : NULL};
    keys[n++] = (struct amp_cfg_key){.key = "mixed_precision", .value = own ? "1" : NULL};
    if (own_fp32) keys[n++] = (struct amp_cfg_key){.key = "amp_dtype", .value = "fp32"};
    for (int i = 0; i < n_rows && n < 64; i++) {
        const char *key = rows[i].key;
        bool set = !strcmp(key, "mixed_precision") || !strcmp(key, "amp_on_divergence") ||
                   (own_fp32 && !strcmp(key, "amp_dtype"));
        if (!set && is_left_out(key, way, own)) keys[n++] = (struct amp_cfg_key){.key = key};
    }
    /* The same initial weights for both. */
    srand(1);
    *net = amp_variant_load(own_fp32 ? "amp profile: the network with amp_dtype=fp32"
                            : own    ? "amp profile: the network in mixed precision"
                                     : "amp profile: the network in Darknet's FP32",
                            cfg, keys, n, NULL);
    if (!*net) return -1;
    fill_batch(*net);
    return 0;
}

static int build_all(const struct amp_cfg_file *cfg, const struct amp_profile *p,
                     network *nets[AMP_PROFILE_WAYS])
{
    for (int way = 0; way < AMP_PROFILE_WAYS; way++) {
        enum amp_profile_way w = (enum amp_profile_way)way;
        if ((w == AMP_PROFILE_MIXED || !p->no_fp32) && build(cfg, p->net, w, &nets[w])) return -1;
    }
    return 0;
}

/* ---- the command line ---- */

struct request {
    const char *cfg, *data; /* data NULL: loading is not timed */
    const char *trace;      /* file; NULL: none */
    bool json;
    int gpu;
};

static void read_arguments(int argc, char **argv, struct request *r)
{
    const struct amp_argument options[] = {
        {.name = "json", .help = "Print one JSON object", .target = &r->json},
        {.name = "trace",
         .value = "FILE",
         .help = "Write when each layer and pass of a step ran, and with DATA what the threads did "
                 "that load meanwhile, for Chrome's tracing and Perfetto",
         .kind = AMP_ARGUMENT_TEXT,
         .target = &r->trace},
        AMP_GPU_ARGUMENTS(&r->gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "CFG [DATA]",
        .help =
            "Times training steps layer by layer, forward and backward, in Darknet's FP32 and in "
            "mixed precision, on random weights and images. With DATA it also times how fast one "
            "core loads its training images, by Darknet's own way and by darknet-amp's, or by "
            "AlexeyAB's rules, and says whether loading keeps up. Trains nothing.",
        .file = {&r->cfg, &r->data},
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

static void report_left_fp16(const network *net)
{
    for (int i = 0; i < net->n; i++)
        if (amp_left_fp16(net, i))
            fprintf(stderr,
                    "amp profile: layer %d left FP16, where its values overflow; its times are "
                    "those of FP32\n",
                    i);
}

static int print_result(const struct request *r, const struct amp_profile *p)
{
    if (r->json)
        amp_profile_print_json(p, stdout);
    else
        amp_profile_print(p, stdout);
    return amp_result_flush();
}

/* ---- loading, and the step that it must keep up with ---- */

/* Layers may leave FP16, and the loss scale falls, until a pass is clean. */
static bool warm_up_passes(network *net)
{
    struct amp_pass pass = {0};
    for (int k = 0; k < net->n + MOST_SKIPPED && !pass.clean; k++)
        amp_pass(net, NULL, NULL, &pass);
    return pass.clean;
}

static bool is_enough(int passes, double start)
{
    double seconds = amp_clock_seconds() - start;
    return passes >= MOST_PASSES || (passes >= LEAST_ROUNDS && seconds > enough_of_passes) ||
           (passes && seconds > most_of_passes);
}

/* Of passes that no layer of is waited for. The fastest counts, since other work on the machine
 * only adds time. The update is left out: it is little beside an iteration's passes. */
static int time_step(struct amp_loading *l, network *net, int subdivisions, char *err,
                     size_t err_size)
{
    struct amp_pass pass;
    double fastest = INFINITY;
    if (!warm_up_passes(net)) {
        snprintf(err, err_size,
                 "no pass of the network is without overflow; `darknet amp check` says why");
        return -1;
    }
    for (double start = amp_clock_seconds(); !is_enough(l->passes, start); l->passes++) {
        double begin = amp_clock_seconds();
        amp_pass(net, NULL, NULL, &pass);
        fastest = fmin(fastest, amp_clock_seconds() - begin);
    }
    l->step = fastest * subdivisions;
    return 0;
}

static void describe_loading(struct amp_loading *l, const struct request *r,
                             const struct amp_profile *p, const struct amp_options *options)
{
    l->step_images = p->net->batch * p->net->subdivisions;
    l->data = r->data;
    l->width = p->net->w;
    l->height = p->net->h;
    l->random_size = p->net->layers[p->net->n - 1].random;
    l->by_fork = amp_net_has_forks_head(p->net);
    l->mixing = !l->by_fork ? NULL : p->net->mosaic ? "mosaic" : p->net->mixup ? "mixup" : NULL;
    l->loader = l->by_fork ? AMP_LOADER_FAST : options->loader;
    l->cache = l->loader == AMP_LOADER_FAST ? options->image_cache : 0;
    l->precision = amp_dtype_word(options->dtype);
    l->machine = &p->machine;
    l->cores = amp_cores();
    l->threads_given = options->loader_threads > 0;
    l->threads = l->threads_given ? options->loader_threads : l->cores;
    if (l->threads > l->step_images) l->threads = l->step_images; /* each has at least one image */
}

static int time_loading(const struct request *r, struct amp_profile *p, struct amp_loading *l,
                        load_args *args, network *net, const struct amp_options *options)
{
    char err[2 * PATH_MAX];
    if (!r->data) return 0;
    describe_loading(l, r, p, options);
    amp_training_args(net, r->data, args);
    if (amp_loading_measure(l, net, args, stderr, err, sizeof err) ||
        time_step(l, net, p->net->subdivisions, err, sizeof err))
        return amp_complain(err);
    p->loading = l;
    p->trained = args;
    return 0;
}

static int write_trace(const struct request *r, const struct amp_profile *p)
{
    char err[2 * PATH_MAX], loaders[AMP_TRACE_THREADS][40];
    const char *names[AMP_PROFILE_WAYS + AMP_TRACE_THREADS + 1] = {
        is_own(p->net, AMP_PROFILE_FP32) ? "amp_dtype=fp32" : "Darknet's FP32", "mixed precision"};
    for (int i = 0; p->loading && i < p->loading->threads && i < AMP_TRACE_THREADS; i++) {
        snprintf(loaders[i], sizeof loaders[i], "loader thread %d", i);
        names[AMP_PROFILE_LOADER_ROW + i] = loaders[i];
    }
    return amp_trace_write(p->trace, names, r->trace, err, sizeof err) ? amp_complain(err) : 0;
}

static int profile_cfg(const struct request *r, const struct amp_cfg_file *cfg,
                       const struct amp_options *options, struct amp_profile *p)
{
    char err[256];
    network *nets[AMP_PROFILE_WAYS] = {0};
    struct amp_loading loading = {0};
    load_args args;
    p->layers = calloc((size_t)p->net->n, sizeof *p->layers);
    if (!p->layers) return amp_complain("out of memory");
    int kept = amp_quiet_begin(), failed = build_all(cfg, p, nets);
    /* Loading comes first: then no thread of the backend is there yet. */
    if (!failed) failed = time_loading(r, p, &loading, &args, nets[AMP_PROFILE_MIXED], options);
    if (!failed && amp_profile_time(p, nets, stderr, err, sizeof err)) failed = amp_complain(err);
    amp_quiet_end(kept);
    if (!failed) {
        report_left_fp16(nets[AMP_PROFILE_MIXED]);
        amp_machine_look(&p->machine, gpu_index);
        amp_profile_count(p);
        failed = (r->trace && write_trace(r, p)) || print_result(r, p);
    }
    for (int way = 0; way < AMP_PROFILE_WAYS; way++)
        if (nets[way]) free_network(nets[way]);
    free(p->layers);
    return failed;
}

static int profile(const struct request *r, const struct amp_measured *subject)
{
    struct amp_trace trace = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct amp_profile p = {.net = subject->net, .trace = r->trace ? &trace : NULL};
    struct reason no_fp32 = {""};
    if (amp_output_try("--trace", r->trace, AMP_TRACE_FORMAT)) return -1;
    /* Layers that Darknet crashes on are told, and only mixed precision is timed. */
    if (!is_own(subject->net, AMP_PROFILE_FP32))
        amp_train_stock_check(subject->cfg, subject->net, gpu_index >= 0, take_first, &no_fp32);
    if (no_fp32.text[0]) p.no_fp32 = no_fp32.text;
    if (r->data && !subject->options.mixed_precision)
        amp_mixed_tell_off(subject->cfg, "so Darknet loads all images; with mixed_precision=1:");
    /* A black image in place of a broken one would load fast. */
    if (r->data) amp_refuse_bad_images(1);
    if (r->data && amp_inputs_check(r->data, r->cfg, NULL, false)) return -1;
    int failed = profile_cfg(r, subject->cfg, &subject->options, &p);
    amp_trace_free(&trace);
    return failed;
}

int amp_command_profile(int argc, char **argv)
{
    struct request r = {0};
    struct amp_measured subject;
    read_arguments(argc, argv, &r);
    amp_machine_choose(r.gpu);
    int failed = amp_measured_read(&subject, r.cfg, r.gpu) || profile(&r, &subject);
    amp_measured_free(&subject);
    return failed ? 1 : 0;
}
