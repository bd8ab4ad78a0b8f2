/* `darknet amp plan`: prints what the plan would be, and with --memory which batch fits. It decides
 * nothing; core/plan/plan.c and core/plan/need.c do. It must not build a network: the cfg is
 * enough, also on a machine that could not hold it. */

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "amp_observe.h"
#include "commands.h"
#include "measuring.h"
#include "noise_log.h"
#include "plugin/core/engine/layers.h"
#include "plugin/core/files/checkpoint.h"
#include "plugin/core/net/weights_file.h"
#include "plugin/core/read/named_files.h"
#include "plugin/core/plan/need.h"
#include "plugin/core/plan/plan.h"
#include "plugin/core/read/text.h"
#include "plugin/spread/share.h"

static const double gib = 1 << 30;

struct request {
    const char *path, *weights;
    bool json;
    int gpu;
    double memory; /* GiB; 0: nobody asks */
    int processes; /* that train together */
};

/* ---- what fits ---- */

/* Of the cfg as it is; of its batch; and of the largest batch in a single pass. */
struct answer {
    bool fits, largest_fits;
    struct amp_fit written, fit, largest;
    double rate; /* the cfg's learning_rate */
    /* The gradient noise scale: */
    const char *log;        /* amp_log; NULL: the cfg does not ask for it */
    bool noisy;             /* it is there: */
    double noise;           /* in images */
    size_t noise_iteration; /* when */
};

static void read_noise(const struct amp_options *options, struct answer *a)
{
    if (!options->log_noise || !options->log_path[0]) return;
    a->log = options->log_path;
    a->noisy = !amp_noise_log_read(a->log, &a->noise, &a->noise_iteration);
}

static size_t bytes_of(const struct request *r)
{
    return (size_t)(r->memory * gib);
}

static struct amp_fitter fitter_of(const struct request *r, const struct amp_cfg_file *cfg,
                                   const struct amp_options *options)
{
    const struct ampk_backend *backend = amp_machine_backend(options, r->gpu);
    return (struct amp_fitter){.cfg = cfg,
                               .options = options,
                               .backend = backend,
                               .ours = amp_layers_ours(backend),
                               .device_bytes = amp_device_bytes(backend, bytes_of(r)),
                               .processes = r->processes};
}

static int find_fit(const struct request *r, const struct amp_cfg_file *cfg,
                    const struct amp_options *options, const struct amp_net_desc *net,
                    struct answer *a, char *err, size_t err_size)
{
    int batch = amp_cfg_int(cfg->sections, "batch", 1);
    size_t bytes = bytes_of(r);
    const struct amp_fitter f = fitter_of(r, cfg, options);
    read_noise(options, a);
    a->rate = amp_cfg_float(cfg->sections, "learning_rate", .001);
    if (amp_fit_predict(&f, batch, net->subdivisions, &a->written, err, err_size)) return -1;
    int fit = amp_fit_subdivisions(&f, batch, bytes, &a->fit, err, err_size);
    int largest = amp_fit_batch(&f, bytes, &a->largest, err, err_size);
    a->fits = !fit;
    a->largest_fits = !largest;
    return fit < 0 || largest < 0 ? -1 : 0;
}

/* Goyal et al. 2017, "Accurate, large minibatch SGD": the rate grows with the batch. */
static double scaled_rate(const struct answer *a)
{
    return a->rate * a->largest.batch / a->written.batch;
}

/* Goyal et al. need a warm-up, and show the rule from a batch of 256 to one of 8192. From where on
 * it is told is our choice. */
static const int told_from = 8;

static void print_noise(const struct answer *a)
{
    if (!a->log) return;
    if (!a->noisy) {
        printf("\nThe gradient noise scale is not known yet: %s has none.\n", a->log);
        return;
    }
    printf("\nThe gradient noise scale at iteration %zu was %.4g images (%s): a batch of that size "
           "takes about twice the fewest steps there can be, and much larger ones gain little "
           "(McCandlish et al. 2018). The cfg's batch is %d.\n",
           a->noise_iteration, a->noise, a->log, a->written.batch);
}

static void print_fit(const struct request *r, const struct answer *a)
{
    const struct amp_fit *fit = &a->fit, *largest = &a->largest;
    bool several = r->processes > 1;
    printf("memory, predicted: the cfg as it is takes %.2f GiB", (double)a->written.bytes / gib);
    if (several) printf(" in each of %d processes", r->processes);
    putchar('\n');
    if (a->fits)
        printf("\nOf %g GiB %d images in a pass take %.2f:\n\n    batch=%d\n    subdivisions=%d\n",
               r->memory, fit->images, (double)fit->bytes / gib, fit->batch, fit->subdivisions);
    else
        printf("\nbatch=%d does not fit into %g GiB: with one image in a pass it takes %.2f. Lower "
               "batch, width or height.\n",
               fit->batch, r->memory, (double)fit->bytes / gib);
    print_noise(a);
    if (!a->largest_fits || (a->fits && largest->images == fit->images)) return;
    printf(
        "\nThe largest batch that fits in one pass%s takes %.2f GiB. The learning rate goes with "
        "the batch:\n\n    batch=%d\n    subdivisions=%d\n    learning_rate=%.6g\n",
        several ? " of each process" : "", (double)largest->bytes / gib, largest->batch,
        largest->subdivisions, scaled_rate(a));
    if (largest->batch > told_from * a->written.batch)
        printf("\nThat is %.4g times the rate: it needs a warm-up (burn_in; onecycle has one), and "
               "is shown up to 32 times and a batch of 8192 only (Goyal et al. 2017). `amp "
               "lr-find` finds a rate.\n",
               (double)largest->batch / a->written.batch);
}

static void write_one(struct amp_json *j, const char *key, bool fits, const struct amp_fit *fit,
                      double rate)
{
    if (!fits) {
        amp_json_string(j, key, NULL);
        return;
    }
    amp_json_begin(j, key, '{');
    amp_json_put(j, "batch", "%d", fit->batch);
    amp_json_put(j, "subdivisions", "%d", fit->subdivisions);
    amp_json_number(j, "learning_rate", rate);
    amp_json_put(j, "bytes", "%zu", fit->bytes);
    amp_json_end(j, '}');
}

static void write_fit(struct amp_json *j, const struct answer *a)
{
    write_one(j, "as_written", true, &a->written, a->rate);
    write_one(j, "fit", a->fits, &a->fit, a->rate);
    write_one(j, "largest_fit", a->largest_fits, &a->largest, scaled_rate(a));
    if (!a->log) return;
    amp_json_begin(j, "noise_scale", '{');
    amp_json_string(j, "log", a->log);
    amp_json_number(j, "images", a->noisy ? a->noise : NAN);
    amp_json_number(j, "iteration", a->noisy ? (double)a->noise_iteration : NAN);
    amp_json_end(j, '}');
}

/* ---- the pass of each of several processes ---- */

static int settle_auto(const struct request *r, struct amp_net_desc *net,
                       const struct amp_cfg_file *cfg, const struct amp_options *options, char *err,
                       size_t err_size)
{
    struct amp_fit fit = {0};
    const struct amp_fitter f = fitter_of(r, cfg, options);
    int batch = net->batch * net->subdivisions;
    if (!(r->memory > 0)) {
        snprintf(err, err_size,
                 "%s:%d: subdivisions=auto: several processes need a number; --memory GIB says "
                 "which fits",
                 cfg->path, amp_cfg_line(cfg->sections, "subdivisions"));
        return -1;
    }
    if (amp_fit_subdivisions(&f, batch, bytes_of(r), &fit, err, err_size) < 0) return -1;
    net->batch = fit.images;
    net->subdivisions = fit.subdivisions;
    return 0;
}

static int settle_share(const struct request *r, struct amp_net_desc *net,
                        const struct amp_cfg_file *cfg, const struct amp_options *options,
                        char *err, size_t err_size)
{
    char possible[300];
    int all = net->batch * net->subdivisions, batch = amp_cfg_int(cfg->sections, "batch", 1);
    int passes = amp_share_subdivisions(batch, net->subdivisions, r->processes);
    if (passes && options->sync_bn &&
        amp_share_check_even(batch, passes, r->processes, possible, sizeof possible)) {
        snprintf(err, err_size, "%s:%d: subdivisions=%d: %s", cfg->path,
                 amp_cfg_line(cfg->sections, "subdivisions"), passes, possible);
        return -1;
    }
    if (passes) {
        net->batch = all / passes;
        net->subdivisions = passes;
        return 0;
    }
    amp_share_possible(batch, net->subdivisions, possible, sizeof possible);
    snprintf(err, err_size,
             "%s:%d: %d processes cannot share batch=%d with subdivisions=%d; possible: %s",
             cfg->path, amp_cfg_line(cfg->sections, "subdivisions"), r->processes, batch,
             net->subdivisions, possible);
    return -1;
}

static int settle_pass(const struct request *r, struct amp_net_desc *net,
                       const struct amp_cfg_file *cfg, const struct amp_options *options, char *err,
                       size_t err_size)
{
    if (r->processes == 1) return amp_machine_settle_pass(net, cfg, options, r->gpu, err, err_size);
    if (amp_share_check_net(net, err, err_size)) return -1;
    return net->auto_subdivisions ? settle_auto(r, net, cfg, options, err, err_size)
                                  : settle_share(r, net, cfg, options, err, err_size);
}

/* ---- what training found ---- */

/* Of the weights file, if one is given. */
struct found {
    struct amp_sidecar *sidecar; /* NULL: none */
    enum amp_format *demoted;    /* per layer, as amp_plan_make wants it; NULL: no sidecar */
    int first_absent;            /* the first layer that the file lacks, or -1 */
};

static int read_sidecar(const struct request *r, const struct amp_net_desc *net, struct found *f,
                        char *err, size_t err_size)
{
    char path[PATH_MAX];
    const uint32_t *layers;
    struct amp_file_id id;
    snprintf(path, sizeof path, "%s" AMP_SIDECAR_SUFFIX, r->weights);
    if (access(path, F_OK)) return 0;
    f->sidecar = amp_sidecar_open(path, err, err_size);
    if (!f->sidecar || amp_file_identify(r->weights, &id, err, err_size) ||
        amp_sidecar_check_weights(f->sidecar, &id, r->weights, err, err_size))
        return -1;
    int n = amp_sidecar_demoted(f->sidecar, &layers);
    if (n && layers[n - 1] >= (uint32_t)net->n) {
        snprintf(err, err_size, "%s: belongs to another network: it has a layer %u", path,
                 layers[n - 1]);
        return -1;
    }
    f->demoted = malloc((size_t)net->n * sizeof *f->demoted);
    if (!f->demoted) {
        snprintf(err, err_size, "%s: out of memory", path);
        return -1;
    }
    for (int i = 0; i < net->n; i++)
        f->demoted[i] = AMP_FORMATS;
    for (int i = 0; i < n; i++)
        f->demoted[layers[i]] = AMP_FORMAT_FP32;
    return 0;
}

static int look_at_weights(const struct request *r, const struct amp_net_desc *net, struct found *f,
                           char *err, size_t err_size)
{
    struct amp_weights_info info;
    *f = (struct found){.first_absent = -1};
    if (!r->weights) return 0;
    if (amp_weights_check(r->weights, net, &info, err, err_size)) return -1;
    f->first_absent = info.first_absent;
    return read_sidecar(r, net, f, err, err_size);
}

static void write_found(struct amp_json *j, const struct found *f)
{
    const uint32_t *layers;
    amp_json_put(j, "first_absent", f->first_absent < 0 ? "null" : "%d", f->first_absent);
    if (!f->sidecar) {
        amp_json_string(j, "sidecar", NULL);
        return;
    }
    amp_json_begin(j, "sidecar", '{');
    amp_json_string(j, "file", amp_sidecar_path(f->sidecar));
    amp_json_string(j, "trained_in", amp_dtype_word(amp_sidecar_dtype(f->sidecar)));
    amp_json_begin(j, "left_fp16", '[');
    for (int i = 0, n = amp_sidecar_demoted(f->sidecar, &layers); i < n; i++)
        amp_json_put(j, NULL, "%u", layers[i]);
    amp_json_end(j, ']');
    amp_json_end(j, '}');
}

/* ---- the plan ---- */

static void print_text(const struct request *r, const struct amp_plan *plan,
                       const struct amp_net_desc *net, const struct amp_cfg_file *cfg,
                       const struct amp_options *options, const struct answer *fit)
{
    const struct amp_cfg_section *first = cfg->sections;
    amp_plan_print(plan, net, stdout);
    amp_schedule_print(&options->schedule, &options->rules,
                       amp_cfg_float(first, "learning_rate", .001),
                       amp_cfg_float(first, "momentum", .9), stdout);
    if (r->memory > 0) print_fit(r, fit);
}

/* As Darknet computes it on this machine's device (amp_net_write_json). */
static bool has_bn_under_root(const struct request *r, const struct amp_net_desc *net,
                              const struct amp_options *options)
{
    return net->bn_under_root || amp_machine_backend(options, r->gpu) != amp_backend_on(0);
}

static void print_json(const struct request *r, const struct amp_plan *plan,
                       const struct amp_net_desc *net, const struct amp_cfg_file *cfg,
                       const struct amp_options *options, const struct found *found,
                       const struct answer *fit)
{
    struct amp_json j = {.out = stdout, .digits = AMP_JSON_FLOAT};
    amp_json_begin(&j, NULL, '{');
    amp_plan_write_json(plan, net, &j);
    amp_json_put(&j, "processes", "%d", r->processes);
    if (r->memory > 0) write_fit(&j, fit);
    if (r->weights) write_found(&j, found);
    amp_json_begin(&j, "network", '{');
    amp_net_write_json(net, cfg, has_bn_under_root(r, net, options), &j);
    amp_json_end(&j, '}');
    amp_json_end(&j, '}');
    putchar('\n');
}

static int print_plan(const struct request *r, struct amp_cfg_file *cfg, char *err, size_t err_size)
{
    struct amp_options options;
    struct answer fit = {0};
    struct found found = {0};
    if (amp_named_files_check(cfg, err, err_size) ||
        amp_mixed_options_read(cfg, &options, err, err_size))
        return -1;
    if (!options.mixed_precision)
        amp_mixed_tell_off(cfg, "with mixed_precision=1 the plan would be:");
    amp_machine_settle_dtype(&options, r->gpu);
    struct amp_net_desc *net = amp_net_describe(cfg, 0, 0, true, err, err_size);
    char why[600];
    if (net && amp_net_check_dialect(cfg, net, why, sizeof why)) /* it may be trained already */
        fprintf(stderr, "warning: training refuses this cfg: %s\n", why);
    bool fine = net && !settle_pass(r, net, cfg, &options, err, err_size) &&
                !look_at_weights(r, net, &found, err, err_size);
    struct amp_plan *plan =
        fine ? amp_plan_make(net, &options, amp_layers_ours(amp_machine_backend(&options, r->gpu)),
                             found.demoted, true, err, err_size)
             : NULL;
    int failed = !plan || (r->memory > 0 && find_fit(r, cfg, &options, net, &fit, err, err_size));
    if (!failed && r->json)
        print_json(r, plan, net, cfg, &options, &found, &fit);
    else if (!failed)
        print_text(r, plan, net, cfg, &options, &fit);
    amp_plan_free(plan);
    amp_sidecar_close(found.sidecar);
    free(found.demoted);
    amp_net_desc_free(net);
    return failed ? -1 : 0;
}

int amp_command_plan(int argc, char **argv)
{
    struct request r = {.processes = 1};
    char err[3 * PATH_MAX];
    const struct amp_argument options[] = {
        {.name = "json", .help = "Print one JSON object", .target = &r.json},
        {.name = "memory",
         .value = "GIB",
         .help = "Say which batch and subdivisions fit into so much memory: of the program, or of "
                 "the GPU that it uses",
         .kind = AMP_ARGUMENT_NUMBER,
         .target = &r.memory,
         .low_open = true,
         .high = 1e6},
        {.name = "processes",
         .value = "N",
         .help = "For training by `mpirun -np N`: what each of the processes runs and takes",
         .kind = AMP_ARGUMENT_COUNT,
         .target = &r.processes,
         .low = 1,
         .high = 1 << 16},
        AMP_GPU_ARGUMENTS(&r.gpu),
        {.name = NULL}};
    const struct amp_command_line line = {
        .files = "CFG [WEIGHTS]",
        .help =
            "Prints for every layer of a network in which precision it computes and stores, and "
            "why, and what that takes in memory. Reads the cfg, and of WEIGHTS the size and which "
            "layers left FP16 in training; trains nothing.",
        .file = {&r.path, &r.weights},
        .least_files = 1,
        .options = options};
    amp_arguments_read(&line, argc, argv);
    if (r.memory > 0) amp_machine_choose(r.gpu);
    struct amp_cfg_file *cfg = amp_cfg_read_asked(r.path, true, err, sizeof err);
    int failed = !cfg || print_plan(&r, cfg, err, sizeof err);
    if (!failed && (fflush(stdout) || ferror(stdout))) {
        snprintf(err, sizeof err, "the plan cannot be written: %s", strerror(errno));
        failed = 1;
    }
    if (failed) fprintf(stderr, "error: %s\n", err);
    amp_cfg_free(cfg);
    return failed;
}
