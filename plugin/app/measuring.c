/* Decides how the program picks a GPU, collects versions for reports, reads options as if mixed
 * precision were on, and builds networks from a changed copy of the user's cfg: Darknet reads a
 * network's keys from a file only. It must not know what is measured. */

#define _GNU_SOURCE
#include "measuring.h"

#include <dnnl.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "amp_observe.h"
#include "commands.h"
#include "darknet.h"
#include "plugin/core/engine/layers.h"
#include "plugin/core/files/file.h"
#include "plugin/core/plan/need.h"
#include "plugin/core/read/named_files.h"
#include "plugin/core/read/text.h"
#include "plugin/input/check_train.h"

#ifdef GPU
#include <cuda_runtime.h>
#include <cudnn.h>
#endif

/* patch below 0: the library has no third number. */
static void add_version(struct amp_machine *m, const char *name, int major, int minor, int patch)
{
    char *number = m->versions[m->n_versions].number;
    size_t size = sizeof m->versions[0].number;
    m->versions[m->n_versions++].name = name;
    if (patch < 0)
        snprintf(number, size, "%d.%d", major, minor);
    else
        snprintf(number, size, "%d.%d.%d", major, minor, patch);
}

#ifdef GPU
static void name_gpu(struct amp_machine *m, int gpu)
{
    struct cudaDeviceProp properties;
    snprintf(m->device, sizeof m->device, "GPU %d", gpu);
    if (cudaGetDeviceProperties(&properties, gpu) == cudaSuccess)
        snprintf(m->device, sizeof m->device, "%s", properties.name);
}

static void look_at_cuda(struct amp_machine *m)
{
    int driver = 0, runtime = 0, cudnn = (int)cudnnGetVersion();
    int thousand = cudnn >= 90000 ? 10000 : 1000; /* since cuDNN 9 a version is 90000 + ... */
    if (cudaDriverGetVersion(&driver) == cudaSuccess)
        add_version(m, "CUDA driver", driver / 1000, driver % 1000 / 10, -1);
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess)
        add_version(m, "CUDA runtime", runtime / 1000, runtime % 1000 / 10, -1);
    add_version(m, "cuDNN", cudnn / thousand, cudnn % thousand / 100, cudnn % 100);
}
#endif

/* Before any network is built: Darknet reads gpu_index while it parses. cuda_set_device is the
 * plugin's, which sets gpu_index to -1 if there is no GPU. */
void amp_machine_choose(int gpu)
{
#ifdef GPU
    gpu_index = gpu;
    if (gpu >= 0) cuda_set_device(gpu);
#else
    (void)gpu;
    gpu_index = -1;
#endif
}

void amp_machine_look(struct amp_machine *m, int gpu)
{
    *m =
        (struct amp_machine){.backend = gpu < 0 ? "cpu" : "cuda", .threads = omp_get_max_threads()};
    const dnnl_version_t *version = dnnl_version();
    add_version(m, "oneDNN", version->major, version->minor, version->patch);
#ifdef GPU
    look_at_cuda(m);
    if (gpu >= 0) name_gpu(m, gpu);
#endif
}

int amp_gpus_there(void)
{
    int n = 0;
#ifdef GPU
    if (cudaGetDeviceCount(&n) != cudaSuccess) n = 0;
#endif
    return n;
}

static bool trains_on_gpu(const struct amp_options *options, int gpu)
{
    return gpu >= 0 && options->backend != AMP_BACKEND_CPU && amp_gpus_there() > 0;
}

void amp_machine_settle_dtype(struct amp_options *options, int gpu)
{
    amp_options_settle_dtype(options, trains_on_gpu(options, gpu), amp_multiplies_bf16());
}

const struct ampk_backend *amp_machine_backend(const struct amp_options *options, int gpu)
{
    return amp_backend_on(trains_on_gpu(options, gpu));
}

/* ---- darknet amp --version ---- */

/* "model name" is x86's; other machines are "unknown". */
static void print_cpu(int threads)
{
    char *line = NULL, *name = NULL;
    size_t size = 0;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && !name && getline(&line, &size, f) >= 0)
        if (!strncmp(line, "model name", 10)) name = strchr(line, ':');
    printf("CPU: %.*s, %d thread%s\n", name ? (int)strcspn(name + 2, "\n") : 7,
           name ? name + 2 : "unknown", threads, threads == 1 ? "" : "s");
    free(line);
    if (f) fclose(f);
}

static void print_gpus(void)
{
#ifdef GPU
    struct amp_machine m = {0};
    int n = amp_gpus_there();
    if (!n) puts("GPU: none found");
    for (int i = 0; i < n; i++) {
        name_gpu(&m, i);
        printf("GPU %d: %s\n", i, m.device);
    }
#else
    puts("GPU: this build uses none");
#endif
}

int amp_print_version(void)
{
    struct amp_machine m;
    amp_machine_look(&m, -1);
    puts("darknet-amp " AMP_VERSION "\nDarknet " AMP_DARKNET_VERSION);
    for (int i = 0; i < m.n_versions; i++)
        printf("%s %s\n", m.versions[i].name, m.versions[i].number);
    print_cpu(m.threads);
    print_gpus();
    return fflush(stdout) ? 1 : 0;
}

/* ---- the user's cfg ---- */

bool amp_trains_mixed(const char *path)
{
    char err[9000];
    struct amp_options options = {0};
    struct amp_cfg_file *cfg = path ? amp_cfg_read(path, err, sizeof err) : NULL;
    bool mixed = cfg && !amp_options_read(cfg, &options, NULL, 0, err, sizeof err) &&
                 options.mixed_precision;
    amp_cfg_free(cfg);
    return mixed;
}

/* Without mixed_precision=1 most keys are not even read. It is set in what was read of the user's
 * cfg, not in a variant, so that messages name the user's file and lines. */
static int read_as_mixed(struct amp_cfg_file *cfg, struct amp_options *options, char *notes,
                         size_t notes_size, char *err, size_t err_size)
{
    static char key[] = "mixed_precision", one[] = "1";
    struct amp_cfg_section *net = cfg->sections, as_written = *net;
    if (amp_cfg_put(net, key, one)) {
        snprintf(err, err_size, "%s: out of memory", cfg->path);
        return -1;
    }
    amp_dialect_settle(cfg); /* for the caller's description too */
    int failed = amp_options_read(cfg, options, notes, notes_size, err, err_size);
    options->mixed_precision = false;
    free(net->entries);
    *net = as_written;
    return failed;
}

int amp_mixed_options_read(struct amp_cfg_file *cfg, struct amp_options *options, char *err,
                           size_t err_size)
{
    char notes[4096] = "";
    if (amp_options_read(cfg, options, notes, sizeof notes, err, err_size)) return -1;
    if (!options->mixed_precision &&
        read_as_mixed(cfg, options, notes, sizeof notes, err, err_size))
        return -1;
    amp_notes_print(notes, stderr);
    return 0;
}

void amp_mixed_tell_off(const struct amp_cfg_file *cfg, const char *meaning)
{
    const struct amp_cfg_entry *e = amp_cfg_find(cfg->sections, "mixed_precision");
    if (e)
        fprintf(stderr, "darknet-amp: %s:%d: mixed_precision=0: mixed precision is off; %s\n",
                cfg->path, e->line, meaning);
    else
        fprintf(stderr,
                "darknet-amp: %s: mixed precision is off, mixed_precision=1 is missing under "
                "[net]; %s\n",
                cfg->path, meaning);
}

int amp_machine_settle_pass(struct amp_net_desc *net, const struct amp_cfg_file *cfg,
                            const struct amp_options *options, int gpu, char *err, size_t err_size)
{
    const struct ampk_backend *backend = amp_machine_backend(options, gpu);
    return amp_need_settle(net, cfg, options, backend, amp_layers_ours(backend), err, err_size);
}

int amp_complain(const char *what)
{
    fprintf(stderr, "error: %s\n", what);
    return -1;
}

int amp_output_try(const char *option, const char *path, const char *mark)
{
    char err[PATH_MAX + 800];
    if (!path) return 0;
    if (!*path || !strcmp(path, "-"))
        snprintf(err, sizeof err, "\"%s\" is no name of a file", path);
    else if (!amp_whole_try_marked(path, mark, err, sizeof err))
        return 0;
    fprintf(stderr, "error: %s: %s\n", option, err);
    return -1;
}

int amp_outputs_differ(const char *option, const char *path, const char *other, const char *its)
{
    if (!path || !its || strcmp(path, its)) return 0;
    fprintf(stderr, "error: %s and %s name the same file, %s\n", option, other, path);
    return -1;
}

int amp_result_flush(void)
{
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    fprintf(stderr, "error: standard output: not written in full: %s\n",
            errno ? strerror(errno) : "a write failed (is the disk full?)");
    return -1;
}

/* By its last layer. A cfg with a fault is looked at as a detector's, which tells it. */
static bool ends_as_classifier(const char *path)
{
    char err[2 * PATH_MAX];
    struct amp_cfg_file *cfg = amp_cfg_read(path, err, sizeof err);
    struct amp_net_desc *net = cfg ? amp_net_describe(cfg, 0, 0, true, err, sizeof err) : NULL;
    bool found = net && !amp_layer_is_head(&net->layers[net->n - 1]);
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    return found;
}

static bool data_has(const char *path, const char *key)
{
    char err[2 * PATH_MAX];
    struct amp_cfg_file *data = amp_cfg_read_data(path, err, sizeof err);
    bool found = data && amp_cfg_find(data->sections, key);
    amp_cfg_free(data);
    return found;
}

bool amp_is_classifier(const char *data, const char *cfg)
{
    return cfg ? ends_as_classifier(cfg) : data_has(data, "labels");
}

int amp_inputs_check(const char *data, const char *cfg, const char *weights, bool measures)
{
    static char err[1 << 16];
    /* clear: of the weights' count of images */
    const struct amp_trainer_inputs in = {.data = data,
                                          .cfg = cfg,
                                          .weights = weights,
                                          .clear = true,
                                          .on_gpu = gpu_index >= 0,
                                          .measures = measures && data_has(data, "valid") &&
                                                      !data_has(data, "tag")};
    int failed = amp_is_classifier(data, cfg)
                     ? amp_check_trainer_inputs("classifier", &in, stderr, stderr, err, sizeof err)
                     : amp_check_train_inputs(&in, stderr, stderr, err, sizeof err);
    if (!failed && amp_trains_mixed(cfg)) amp_cut_line_ends();
    if (!failed) return 0;
    amp_print_faults(err, stderr);
    return -1;
}

int amp_measured_read(struct amp_measured *m, const char *path, int gpu)
{
    char err[2 * PATH_MAX];
    *m = (struct amp_measured){.cfg = amp_cfg_read_asked(path, true, err, sizeof err)};
    if (!m->cfg || amp_named_files_check(m->cfg, err, sizeof err) ||
        amp_mixed_options_read(m->cfg, &m->options, err, sizeof err))
        return amp_complain(err);
    amp_machine_settle_dtype(&m->options, gpu);
    m->net = amp_net_describe(m->cfg, 0, 0, true, err, sizeof err);
    if (!m->net || amp_machine_settle_pass(m->net, m->cfg, &m->options, gpu, err, sizeof err))
        return amp_complain(err);
    return 0;
}

void amp_measured_free(struct amp_measured *m)
{
    amp_net_desc_free(m->net);
    amp_cfg_free(m->cfg);
}

/* A net with subdivisions=auto is fitted to what is free, and a GPU's driver takes more addresses
 * than any limit leaves. */
void amp_machine_report_limit(const char *path, int gpu, int processes)
{
    char err[2 * PATH_MAX];
    const double gib = 1 << 30;
    struct rlimit most;
    struct amp_options options;
    struct amp_fit fit = {0};
    if (gpu >= 0 || getrlimit(RLIMIT_AS, &most) || most.rlim_cur == RLIM_INFINITY) return;
    struct amp_cfg_file *cfg = amp_cfg_read(path, err, sizeof err);
    int passes = cfg ? amp_cfg_int(cfg->sections, "subdivisions", 1) : 0;
    if (passes > 0 && !amp_options_read(cfg, &options, NULL, 0, err, sizeof err)) {
        amp_machine_settle_dtype(&options, gpu);
        const struct ampk_backend *backend = amp_machine_backend(&options, gpu);
        const struct amp_fitter f = {cfg, &options, backend, amp_layers_ours(backend),
                                     0,   processes};
        if (!amp_fit_predict(&f, amp_cfg_int(cfg->sections, "batch", 1), passes, &fit, err,
                             sizeof err) &&
            fit.bytes > most.rlim_cur)
            fprintf(stderr,
                    "darknet-amp: %s: this training is predicted to take %.2f GiB of memory, and "
                    "the limit of address space is %.2f: raise it (ulimit -v), lower batch or "
                    "raise subdivisions\n",
                    path, (double)fit.bytes / gib, (double)most.rlim_cur / gib);
    }
    amp_cfg_free(cfg);
}

/* ---- networks ---- */

network *amp_variant_load(const char *what, const struct amp_cfg_file *cfg,
                          const struct amp_cfg_key *keys, int n, const char *weights)
{
    char err[2 * PATH_MAX];
    struct amp_cfg_variant variant;
    fprintf(stderr, "%s\n", what);
    if (amp_cfg_variant_open(&variant, cfg, keys, n, err, sizeof err)) {
        fprintf(stderr, "error: %s\n", err);
        return NULL;
    }
    /* clear = 1: `seen` starts at 0, whatever the weights have. */
    network *net = load_network(variant.path, (char *)weights, 1);
    amp_cfg_variant_close(&variant);
    return net;
}

static void take_detector(load_args *a, layer head)
{
    a->coords = head.coords;
    a->classes = head.classes;
    a->jitter = head.jitter;
    a->num_boxes = head.max_boxes;
    a->type = DETECTION_DATA;
}

/* As Darknet's train_classifier. */
static void take_classifier(load_args *a, list *options)
{
    char *tree = option_find_str(options, "tree", NULL);
    bool tag = option_find_int_quiet(options, "tag", 0);
    a->classes = option_find_int(options, "classes", 2);
    a->labels = tag ? NULL : get_labels(option_find_str(options, "labels", "data/labels.list"));
    a->hierarchy = tree ? read_tree(tree) : NULL;
    a->size = a->w;
    a->center = 0;
    a->type = tag ? TAG_DATA : CLASSIFICATION_DATA;
}

void amp_training_args(const network *net, const char *data, load_args *a)
{
    const layer last = net->layers[net->n - 1];
    list *options = read_data_cfg((char *)data);
    list *paths = get_paths(option_find_str(options, "train", "data/train.list"));
    *a = get_base_args((network *)net);
    a->paths = (char **)list_to_array(paths);
    a->m = paths->size;
    a->n = net->batch;
    a->threads = 8; /* amp_loader_threads decides */
    if (last.type == YOLO || last.type == REGION || last.type == DETECTION)
        take_detector(a, last);
    else
        take_classifier(a, options);
}

/* Darknet prints with printf, so the descriptor itself is redirected. fflush first: what is in the
 * buffer belongs before. */
int amp_quiet_begin(void)
{
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (kept >= 0 && nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
    if (nowhere >= 0) close(nowhere);
    return kept;
}

void amp_quiet_end(int kept)
{
    fflush(stdout);
    if (kept < 0) return;
    dup2(kept, STDOUT_FILENO);
    close(kept);
}
