/* Times training steps (forward, backward, update) on one preloaded batch, and dumps what a step
 * computes.
 *
 *   bench_step CFG WEIGHTS|none [--steps N] [--warmup N] [--heads loss|fixed] [--dump DIR]
 *
 * Compiled twice: with the plugin, and (BENCH_STOCK) against a stock Darknet. Prints one JSON line
 * with the seconds of every step. --heads fixed: the loss layers do nothing but hand out a fixed
 * gradient, so that another framework can do the same. --dump: writes input.bin (NCHW), delta_H.bin
 * (the fixed gradient of head number H; read instead where it exists), and after one step
 * head_H.bin (what head H reads) and layer_I_dw.bin (weight gradient, OIHW, Darknet's sign). All
 * files are raw float32.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "darknet.h"
#ifndef BENCH_STOCK
#include "amp.h"
#endif

struct arguments {
    char *cfg, *weights;
    int steps, warmup, fixed;
    const char *dump;
};

static float *fixed_delta[1000]; /* by layer */

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
    return l->type == YOLO || l->type == REGION;
}

static size_t count(const layer *l)
{
    return (size_t)l->batch * (size_t)l->outputs;
}

static void forward_fixed(layer l, network net)
{
    memcpy(l.delta, fixed_delta[net.index], count(&l) * sizeof(float));
    *l.cost = 0;
}

static void fix_heads(network *net, const struct arguments *a)
{
    unsigned long long state = 99;
    for (int i = 0, head = 0; i < net->n; i++) {
        layer *l = &net->layers[i];
        char name[64];
        if (!is_head(l)) continue;
        snprintf(name, sizeof name, "delta_%d.bin", head++);
        fixed_delta[i] = malloc(count(l) * sizeof(float));
        if (!a->dump || !read_floats(a->dump, name, fixed_delta[i], count(l))) {
            for (size_t k = 0; k < count(l); k++)
                fixed_delta[i][k] = .01f * (2 * noise(&state) - 1);
            if (a->dump) write_floats(a->dump, name, fixed_delta[i], count(l));
        }
        l->forward = forward_fixed;
    }
}

/* One object an image, at random places; the rest of the label is zero. */
static void fill_batch(network *net)
{
    unsigned long long state = 7;
    for (int i = 0; i < net->inputs * net->batch; i++)
        net->input[i] = noise(&state);
    memset(net->truth, 0, (size_t)net->truths * (size_t)net->batch * sizeof(float));
    for (int b = 0; b < net->batch; b++) {
        float *t = net->truth + b * net->truths;
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
            write_floats(folder, name, net->layers[i - 1].output, count(l));
        }
        if (l->type == CONVOLUTIONAL) {
            snprintf(name, sizeof name, "layer_%d_dw.bin", i);
            write_floats(folder, name, l->weight_updates, (size_t)l->nweights);
            memset(l->weight_updates, 0, (size_t)l->nweights * sizeof(float));
        }
    }
    net->learning_rate = rate;
    net->momentum = momentum;
    net->decay = decay;
}

static struct arguments parse(int argc, char **argv)
{
    struct arguments a = {.steps = 5, .warmup = 2};
    if (argc < 3)
        die("usage:", "bench_step CFG WEIGHTS|none [--steps N] [--warmup N] [--heads loss|fixed] "
                      "[--dump DIR]");
    a.cfg = argv[1];
    a.weights = strcmp(argv[2], "none") ? argv[2] : NULL;
    for (int i = 3; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--steps"))
            a.steps = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--warmup"))
            a.warmup = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--heads"))
            a.fixed = !strcmp(argv[i + 1], "fixed");
        else if (!strcmp(argv[i], "--dump"))
            a.dump = argv[i + 1];
        else
            die("unknown argument", argv[i]);
    }
    return a;
}

static network *load(const struct arguments *a)
{
    srand(1);
    network *net = load_network(a->cfg, a->weights, 1);
    if (!a->fixed) return net;
#ifndef BENCH_STOCK
    amp_detach(net);
#endif
    fix_heads(net, a);
#ifndef BENCH_STOCK
    amp_attach(net, a->cfg);
#endif
    return net;
}

int main(int argc, char **argv)
{
    struct arguments a = parse(argc, argv);
    gpu_index = -1;
    network *net = load(&a);
    net->subdivisions = 1;
    fill_batch(net);
    if (a.dump) dump(net, a.dump);
    for (int i = 0; i < a.warmup; i++)
        train_network_datum(net);
    double *seconds = malloc((size_t)a.steps * sizeof *seconds);
    for (int i = 0; i < a.steps; i++) {
        double start = now();
        train_network_datum(net);
        seconds[i] = now() - start;
    }
    fflush(stdout);
    printf("\n{\"cfg\": \"%s\", \"batch\": %d, \"seconds\": [", a.cfg, net->batch);
    for (int i = 0; i < a.steps; i++)
        printf("%s%.6f", i ? ", " : "", seconds[i]);
    printf("]}\n");
    return 0;
}
