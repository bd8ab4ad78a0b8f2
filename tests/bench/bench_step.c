/* Times training steps (forward, backward, update) on one preloaded batch, and dumps what a step
 * computes.
 *
 *   bench_step CFG WEIGHTS|none [--gpu N] [--steps N] [--group N] [--warmup N] [--serve]
 *              [--heads loss|fixed] [--dump DIR]
 *
 * Compiled twice: with the plugin, and (BENCH_STOCK) against a stock Darknet. Prints a JSON line
 * about the network and the device, and one {"seconds": [...]} of the steps; with --gpu each
 * number is the mean of --group steps, with one wait for the device at their end.
 *
 * --serve: several programs take turns on one device. Nothing is done before the first line on
 * stdin; each further line is a number of seconds to time steps for, answered by a JSON line.
 * --heads fixed: the loss layers do nothing but hand out a fixed gradient, so that another
 * framework can do the same; on a device nothing is copied to or from the host meanwhile.
 * --dump: writes input.bin (NCHW) and delta_H.bin (the fixed gradient of head number H), both read
 * instead where they exist, and after one step head_H.bin (what head H reads) and layer_I_dw.bin
 * (weight gradient, OIHW, Darknet's sign). All files are raw float32.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "darknet.h"
#ifdef GPU
#include "blas.h"
#include "cuda.h"
#include "network.h"
#include "region_layer.h"
#include "softmax_layer.h"
#include "yolo_layer.h"
#endif
#ifndef BENCH_STOCK
#include "amp.h"
#include "kernels/kernels.h"
#ifdef GPU
#include "kernels/cuda/runtime/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "plugin/attach/device_memory.h"
#endif
#endif

struct arguments {
    char *cfg, *weights;
    int gpu, steps, group, warmup, serve, fixed;
    const char *dump;
};

static float *fixed_delta[1000], *fixed_delta_dev[1000]; /* by layer */
static size_t fixed_count[1000];
static int heads_are_fixed;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what, const char *name)
{
    fprintf(stderr, "bench_step: %s %s\n", what, name);
    exit(1);
}

static float noise(unsigned long long *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)((*state >> 40) / 16777216.0);
}

static void write_floats(const char *folder, const char *name, const float *data, size_t n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, sizeof *data, n, f) != n || fclose(f)) die("cannot write", path);
}

static int read_floats(const char *folder, const char *name, float *data, size_t n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    if (fread(data, sizeof *data, n, f) != n) die("too short:", path);
    fclose(f);
    return 1;
}

static int is_head(const layer *l)
{
    return l->type == YOLO || l->type == REGION || l->type == SOFTMAX;
}

static size_t count(const layer *l)
{
    return (size_t)l->batch * (size_t)l->outputs;
}

/* ---- the device ---- */

#ifdef GPU
static int on_device, resident; /* resident: the batch stays on the device */

static void check(cudaError_t status, const char *what)
{
    if (status != cudaSuccess) die(what, cudaGetErrorString(status));
}

static size_t memory_used(void)
{
    size_t free_bytes, total;
    check(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo:");
    return total - free_bytes;
}

/* The most memory in use while it runs; of what other programs use, only changes count. */
static struct {
    pthread_t thread;
    atomic_int stop;
    int gpu;
    size_t before, first, peak; /* first: the peak up to the end of the warm-up */
} memory;

static void *watch_memory(void *unused)
{
    const struct timespec a_moment = {.tv_nsec = 20000000};
    (void)unused;
    check(cudaSetDevice(memory.gpu), "cudaSetDevice:");
    while (!atomic_load(&memory.stop)) {
        /* A look may be refused while a pass is recorded: the next one counts. */
        size_t free_bytes, total;
        if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && total - free_bytes > memory.peak)
            memory.peak = total - free_bytes;
        nanosleep(&a_moment, NULL);
    }
    return NULL;
}

static void start_watching_memory(void)
{
    memory.peak = memory_used();
    atomic_store(&memory.stop, 0);
    if (pthread_create(&memory.thread, NULL, watch_memory, NULL)) die("no", "thread");
}

static void open_device(int gpu)
{
    gpu_index = -1;
    if (gpu < 0) return;
    check(cudaSetDevice(gpu), "cudaSetDevice:");
    check(cudaFree(NULL), "no context:");
    cuda_set_device(gpu);
    on_device = 1;
    memory.gpu = gpu;
    memory.before = memory_used();
    start_watching_memory();
}

static void stop_watching_memory(void)
{
    if (!on_device) return;
    atomic_store(&memory.stop, 1);
    pthread_join(memory.thread, NULL);
}

/* What comes is watched by itself, without the timing of plans. */
static void end_of_warm_up(void)
{
    stop_watching_memory();
    if (!on_device) return;
    memory.first = memory.peak;
    start_watching_memory();
}

static void wait_for_device(void)
{
    if (on_device) check(cudaDeviceSynchronize(), "a step failed:");
}

static int attribute(enum cudaDeviceAttr which)
{
    int value = 0;
    cudaDeviceGetAttribute(&value, which, memory.gpu);
    return value;
}

static void print_device(void)
{
    struct cudaDeviceProp p;
    int driver, runtime;
    if (!on_device) return;
    check(cudaGetDeviceProperties(&p, memory.gpu), "cudaGetDeviceProperties:");
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion:");
    check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion:");
    printf(", \"deferred_bytes\": %zu", amp_deferred_bytes());
    printf(", \"memory_bytes\": %zu, \"memory_from_start_bytes\": %zu, \"device\": {\"name\": "
           "\"%s\", "
           "\"compute_capability\": %d, \"multiprocessors\": %d, \"clock_khz\": %d, "
           "\"memory_clock_khz\": %d, \"memory_bus_bits\": %d, \"memory_bytes\": %zu, "
           "\"driver\": %d, \"runtime\": %d, \"cudnn\": %zu}",
           memory.peak - memory.before,
           (memory.first > memory.peak ? memory.first : memory.peak) - memory.before, p.name,
           10 * p.major + p.minor, p.multiProcessorCount, attribute(cudaDevAttrClockRate),
           attribute(cudaDevAttrMemoryClockRate), attribute(cudaDevAttrGlobalMemoryBusWidth),
           p.totalGlobalMem, driver, runtime, cudnnGetVersion());
}

static void pull(float *host, float *dev, size_t n)
{
    if (on_device) cuda_pull_array(dev, host, n);
}

/* Darknet's own of a function that this program defines in its place. */
#define DARKNETS(function) ((__typeof__(&(function)))dlsym(RTLD_NEXT, #function))
#define REPLACED           __attribute__((visibility("default")))

/* Darknet copies the last layer's output to the host after every pass. */
REPLACED void pull_network_output(network *net)
{
    if (!resident) DARKNETS(pull_network_output)(net);
}

static void forward_fixed_gpu(const layer *l, const network *net)
{
    check(cudaMemcpyAsync(l->delta_gpu, fixed_delta_dev[net->index], count(l) * sizeof(float),
                          cudaMemcpyDeviceToDevice, NULL),
          "fixed gradient:");
    *l->cost = 0;
}

/* Replaced before there is a network: to detach from one, change its layers and attach again would
 * take the memory that the plugin spares. */
#define FIXED_HEAD(function)                                                                       \
    REPLACED void function(const layer l, network net)                                             \
    {                                                                                              \
        if (fixed_delta_dev[net.index])                                                            \
            forward_fixed_gpu(&l, &net);                                                           \
        else                                                                                       \
            DARKNETS(function)(l, net);                                                            \
    }
FIXED_HEAD(forward_yolo_layer_gpu)
FIXED_HEAD(forward_region_layer_gpu)
FIXED_HEAD(forward_softmax_layer_gpu)

/* Region's multiplies by derivatives at outputs that a fixed head does not have. */
REPLACED void backward_region_layer_gpu(const layer l, network net)
{
    if (fixed_delta_dev[net.index])
        axpy_gpu(l.batch * l.inputs, 1, l.delta_gpu, 1, net.delta_gpu, 1);
    else
        DARKNETS(backward_region_layer_gpu)(l, net);
}

#ifndef BENCH_STOCK
/* Heads of the plugin: whoever calls an operation of the CUDA backend gets this program's
 * (the linker's --wrap). A head's delta is its own, so that it is written once, before the pass is
 * recorded; heads are told apart by it, and come in the order of their layers. */
static void hand_out_fixed(struct ampk_context *ctx, float *delta)
{
    static const float *written[1000];
    static int next;
    for (int i = 0; i < next; i++)
        if (written[i] == delta) return;
    while (next < 1000 && !fixed_delta_dev[next])
        next++;
    if (next == 1000) die("fixed heads:", "the network was made anew");
    ampk_cuda_copy_many(ctx, &(struct ampk_span){delta, fixed_delta_dev[next], fixed_count[next]},
                        1);
    written[next++] = delta;
}

#define IN_PLACE_OF(operation)                                                                     \
    extern __typeof__(ampk_cuda_##operation) __real_ampk_cuda_##operation;                         \
    extern __typeof__(ampk_cuda_##operation) __wrap_ampk_cuda_##operation;                         \
    void __wrap_ampk_cuda_##operation

#define FIXED_HEAD_OF_OURS(kind, head)                                                             \
    IN_PLACE_OF(kind##_forward)                                                                    \
    (struct ampk_context * ctx, const struct head *o, const struct ampk_tensor *x,                 \
     const struct ampk_tensor *out, uint32_t *amax)                                                \
    {                                                                                              \
        if (!heads_are_fixed) __real_ampk_cuda_##kind##_forward(ctx, o, x, out, amax);             \
    }
#define FIXED_LOSS_OF_OURS(kind, head)                                                             \
    FIXED_HEAD_OF_OURS(kind, head)                                                                 \
    IN_PLACE_OF(kind##_loss)                                                                       \
    (struct ampk_context * ctx, const struct head *o, const struct ampk_tensor *out,               \
     const float *truth, float *delta, struct ampk_loss_sums *sums, uint32_t *amax)                \
    {                                                                                              \
        if (heads_are_fixed)                                                                       \
            hand_out_fixed(ctx, delta);                                                            \
        else                                                                                       \
            __real_ampk_cuda_##kind##_loss(ctx, o, out, truth, delta, sums, amax);                 \
    }
FIXED_LOSS_OF_OURS(yolo, ampk_yolo_head)
FIXED_LOSS_OF_OURS(region, ampk_region_head)
FIXED_HEAD_OF_OURS(softmax, ampk_softmax)
IN_PLACE_OF(softmax_loss)
(struct ampk_context *ctx, const struct ampk_tensor *out, const float *truth, bool masked,
 float *delta, struct ampk_loss_sums *sums, uint32_t *amax)
{
    if (heads_are_fixed)
        hand_out_fixed(ctx, delta);
    else
        __real_ampk_cuda_softmax_loss(ctx, out, truth, masked, delta, sums, amax);
}
#endif

static void clear_weight_updates_on_device(layer *l)
{
    if (on_device) cuda_push_array(l->weight_updates_gpu, l->weight_updates, (size_t)l->nweights);
}

/* From here on Darknet copies batches of no values. */
static void keep_batch_on_device(network *net)
{
    if (!on_device) return;
    cuda_push_array(net->input_gpu, net->input, (size_t)net->inputs * (size_t)net->batch);
    resident = 1;
    net->inputs = net->truths = 0;
}
#else
static const int on_device = 0;

static void open_device(int gpu)
{
    if (gpu >= 0) die("--gpu:", "this Darknet was built without GPU");
    gpu_index = -1;
}

static void stop_watching_memory(void) {}
static void end_of_warm_up(void) {}
static void wait_for_device(void) {}
static void print_device(void) {}

#define pull(host, dev, n)                ((void)0)
#define cuda_make_array(host, n)          NULL
#define clear_weight_updates_on_device(l) ((void)0)
#define keep_batch_on_device(net)         ((void)0)
#endif

/* ---- heads on the host ---- */

static int host_heads, fixed_passes; /* heads on the host; passes of all of them */

/* A head that Darknet's code runs. */
static void forward_fixed(layer l, network net)
{
    fixed_passes++;
    memcpy(l.delta, fixed_delta[net.index], count(&l) * sizeof(float));
    *l.cost = 0;
}

#ifndef BENCH_STOCK
/* A yolo head that the plugin runs: whoever asks for the CPU backend gets this program's table (the
 * linker's --wrap). Heads are told apart by their deltas, and come in the order of their layers. */
extern const struct ampk_backend __real_ampk_cpu;
struct ampk_backend __wrap_ampk_cpu;
static int is_ours[1000]; /* by layer */

static void forward_fixed_yolo(struct ampk_context *ctx, const struct ampk_yolo_head *o,
                               const struct ampk_tensor *x, const struct ampk_tensor *out,
                               uint32_t *amax)
{
    (void)ctx, (void)o, (void)x, (void)out, (void)amax;
}

static void fixed_yolo_loss(struct ampk_context *ctx, const struct ampk_yolo_head *o,
                            const struct ampk_tensor *out, const float *truth, float *delta,
                            struct ampk_loss_sums *sums, uint32_t *amax)
{
    static const float *delta_of[1000];
    int i = 0;
    (void)ctx, (void)o, (void)out, (void)truth, (void)sums, (void)amax;
    while (i < 1000 && !(is_ours[i] && (!delta_of[i] || delta_of[i] == delta)))
        i++;
    if (i == 1000) die("fixed heads:", "the network was made anew");
    delta_of[i] = delta;
    fixed_passes++;
    memcpy(delta, fixed_delta[i], fixed_count[i] * sizeof(float));
}

static int has_heads_of_darknet(const network *net)
{
    for (int i = 0; i < net->n; i++)
        if (is_head(&net->layers[i]) && net->layers[i].type != YOLO) return 1;
    return 0;
}

static void choose_heads(int fixed)
{
    __wrap_ampk_cpu = __real_ampk_cpu;
    if (!fixed) return;
    __wrap_ampk_cpu.yolo_forward = forward_fixed_yolo;
    __wrap_ampk_cpu.yolo_loss = fixed_yolo_loss;
}
#else
static void choose_heads(int fixed)
{
    (void)fixed;
}
#endif

static void fix_on_host(layer *l, int i)
{
    host_heads++;
#ifndef BENCH_STOCK
    is_ours[i] = l->type == YOLO;
    if (is_ours[i]) return;
#endif
    (void)i;
    l->forward = forward_fixed;
}

/* ---- the network ---- */

static void fix_heads(network *net, const struct arguments *a)
{
    unsigned long long state = 99;
    heads_are_fixed = 1;
    for (int i = 0, head = 0; i < net->n; i++) {
        layer *l = &net->layers[i];
        char name[64];
        if (!is_head(l)) continue;
        snprintf(name, sizeof name, "delta_%d.bin", head++);
        fixed_count[i] = count(l);
        fixed_delta[i] = malloc(count(l) * sizeof(float));
        if (!a->dump || !read_floats(a->dump, name, fixed_delta[i], count(l))) {
            for (size_t k = 0; k < count(l); k++)
                fixed_delta[i][k] = .01f * (2 * noise(&state) - 1);
            if (a->dump) write_floats(a->dump, name, fixed_delta[i], count(l));
        }
        if (on_device)
            fixed_delta_dev[i] = cuda_make_array(fixed_delta[i], count(l));
        else
            fix_on_host(l, i);
    }
}

/* Three objects an image, at random places, the rest of the label is zero; or one class an image.
 */
static void fill_batch(network *net, const char *folder)
{
    unsigned long long state = 7;
    size_t inputs = (size_t)net->inputs * (size_t)net->batch;
    if (!folder || !read_floats(folder, "input.bin", net->input, inputs))
        for (size_t i = 0; i < inputs; i++)
            net->input[i] = noise(&state);
    memset(net->truth, 0, (size_t)net->truths * (size_t)net->batch * sizeof(float));
    for (int b = 0; b < net->batch; b++) {
        float *t = net->truth + b * net->truths;
        if (net->layers[net->n - 1].type == SOFTMAX) {
            t[b % net->truths] = 1;
            continue;
        }
        for (int k = 0; k < 3; k++, t += 5) {
            t[0] = .2f + .6f * noise(&state);
            t[1] = .2f + .6f * noise(&state);
            t[2] = t[3] = .1f + .2f * noise(&state);
        }
    }
}

static void dump(network *net, const char *folder)
{
    char name[64];
    float rate = net->learning_rate, momentum = net->momentum, decay = net->decay;
    net->learning_rate = 0;
    net->momentum = 1;
    net->decay = 0;
    write_floats(folder, "input.bin", net->input, (size_t)net->inputs * (size_t)net->batch);
    train_network_datum(net);
    for (int i = 0, head = 0; i < net->n; i++) {
        layer *l = &net->layers[i];
        if (is_head(l)) {
            snprintf(name, sizeof name, "head_%d.bin", head++);
            pull(net->layers[i - 1].output, net->layers[i - 1].output_gpu, count(l));
            write_floats(folder, name, net->layers[i - 1].output, count(l));
        }
        if (l->type == CONVOLUTIONAL && !l->dontload) { /* not what stands in for a [route] */
            snprintf(name, sizeof name, "layer_%d_dw.bin", i);
            pull(l->weight_updates, l->weight_updates_gpu, (size_t)l->nweights);
            write_floats(folder, name, l->weight_updates, (size_t)l->nweights);
            memset(l->weight_updates, 0, (size_t)l->nweights * sizeof(float));
            clear_weight_updates_on_device(l);
        }
    }
    net->learning_rate = rate;
    net->momentum = momentum;
    net->decay = decay;
}

/* ---- running ---- */

static int parse_flag(struct arguments *a, const char *name, const char *value)
{
    if (!strcmp(name, "--gpu"))
        a->gpu = atoi(value);
    else if (!strcmp(name, "--steps"))
        a->steps = atoi(value);
    else if (!strcmp(name, "--group"))
        a->group = atoi(value);
    else if (!strcmp(name, "--warmup"))
        a->warmup = atoi(value);
    else if (!strcmp(name, "--heads"))
        a->fixed = !strcmp(value, "fixed");
    else if (!strcmp(name, "--dump"))
        a->dump = value;
    else
        return 0;
    return 1;
}

static struct arguments parse(int argc, char **argv)
{
    struct arguments a = {.gpu = -1, .steps = 5, .group = 1, .warmup = 2};
    if (argc < 3)
        die("usage:", "bench_step CFG WEIGHTS|none [--gpu N] [--steps N] [--group N] [--warmup N] "
                      "[--serve] [--heads loss|fixed] [--dump DIR]");
    a.cfg = argv[1];
    a.weights = strcmp(argv[2], "none") ? argv[2] : NULL;
    for (int i = 3; i < argc; i++) {
        if (!strcmp(argv[i], "--serve"))
            a.serve = 1;
        else if (i + 1 < argc && parse_flag(&a, argv[i], argv[i + 1]))
            i++;
        else
            die("unknown argument, or no value:", argv[i]);
    }
    return a;
}

static network *load(const struct arguments *a)
{
    srand(1);
    network *net = load_network(a->cfg, a->weights, 1);
    if (!a->fixed) return net;
#ifdef BENCH_STOCK
    fix_heads(net, a);
#else
    int again = !on_device && has_heads_of_darknet(net); /* their functions are replaced */
    if (again) amp_detach(net);
    fix_heads(net, a);
    if (again) amp_attach(net, a->cfg);
#endif
    return net;
}

/* What the rooflines of scripts/bench_lib.py are made of: multiply-adds of a forward pass, of an
 * image; those of the first layer, which needs no gradient of its input; outputs of layers with
 * weights, of an image; weights. */
static void describe(const network *net, const char *cfg)
{
    double macs = 0, first = 0, outputs = 0, weights = 0;
    for (int i = 0; i < net->n; i++) {
        const layer *l = &net->layers[i];
        double n = l->type == CONVOLUTIONAL ? l->nweights
                   : l->type == CONNECTED   ? (double)l->inputs * l->outputs
                                            : 0;
        macs += l->type == CONVOLUTIONAL ? n * l->out_w * l->out_h : n;
        weights += n;
        if (n > 0) outputs += l->outputs;
        if (i == 0) first = macs;
    }
    printf("\n{\"cfg\": \"%s\", \"batch\": %d, \"macs\": %.0f, \"first_macs\": %.0f, "
           "\"outputs\": %.0f, \"weights\": %.0f",
           cfg, net->batch, macs, first, outputs, weights);
    print_device();
    printf("}\n");
    fflush(stdout);
}

enum { MOST_TIMES = 100000 };

/* Times `steps` steps, or if `limit` is positive, steps for that many seconds. */
static void time_steps(network *net, int steps, int group, double limit)
{
    static double seconds[MOST_TIMES]; /* Darknet prints meanwhile */
    int n = 0;
    double begin = now();
    do {
        double start = now();
        for (int i = 0; i < group; i++)
            train_network_datum(net);
        wait_for_device();
        seconds[n++] = (now() - start) / group;
    } while (n < MOST_TIMES && (limit > 0 ? now() - begin < limit : n * group < steps));
    printf("\n{\"seconds\": [");
    for (int i = 0; i < n; i++)
        printf("%s%.6f", i ? ", " : "", seconds[i]);
    printf("]}\n");
    fflush(stdout);
}

static void warm_up(network *net, int steps)
{
    for (int i = 0; i < steps; i++)
        train_network_datum(net);
    wait_for_device();
}

int main(int argc, char **argv)
{
    struct arguments a = parse(argc, argv);
    char line[100];
    setvbuf(stdout, NULL, _IOLBF, 0); /* Darknet says there what of CUDA failed, and aborts */
    if (a.serve && !fgets(line, sizeof line, stdin)) return 0;
    open_device(a.gpu);
    choose_heads(a.fixed);
    network *net = load(&a);
    net->subdivisions = 1;
    fill_batch(net, a.dump);
    if (a.dump) dump(net, a.dump);
    if (a.fixed) keep_batch_on_device(net);
    warm_up(net, a.warmup);
    end_of_warm_up();
    warm_up(net, a.group);
    if (fixed_passes < host_heads)
        die("fixed heads:",
            "Darknet's code computed the loss of a [yolo]; mixed_precision=1 belongs "
            "into [net], and none into its section");
    stop_watching_memory();
    describe(net, a.cfg);
    if (!a.serve) time_steps(net, a.steps, a.group, 0);
    while (a.serve && fgets(line, sizeof line, stdin)) {
        warm_up(net, a.group);
        time_steps(net, 0, a.group, atof(line));
    }
    return 0;
}
