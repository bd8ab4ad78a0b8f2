/* Times the CPU backend's convolutional layers (convolution, batch-norm, leaky; forward, backward,
 * new weights) for the shapes of two nets. Not a test.
 *
 *     bench_kernels small|tiny THREADS REPEATS
 *
 * One line per layer: smallest CPU and wall time in ms of each operation, then GFLOP/s of the
 * convolution (forward, data gradient and weight gradient) and of the whole layer by CPU time of
 * one thread. CPU time is what to compare on a busy machine, with one thread. kernels_torch.py
 * prints the same sums for PyTorch.
 */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct layer {
    int c, size, k, kernel;
};

static const struct layer small_net[] = {
    {3, 160, 16, 3},   {16, 80, 32, 3},  {32, 40, 64, 3}, {64, 20, 128, 3},
    {128, 10, 256, 3}, {256, 5, 256, 3}, {256, 5, 75, 1}, {0}};
static const struct layer tiny_net[] = {{3, 416, 16, 3},    {16, 208, 32, 3},
                                        {32, 104, 64, 3},   {64, 52, 128, 3},
                                        {128, 26, 256, 3},  {256, 13, 512, 3},
                                        {512, 13, 1024, 3}, {1024, 13, 256, 1},
                                        {256, 13, 512, 3},  {512, 13, 255, 1},
                                        {256, 13, 128, 1},  {384, 26, 256, 3},
                                        {256, 26, 255, 1},  {0}};

static const struct ampk_backend *const backend = &ampk_cpu;

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* Everything that one layer needs. */
struct bench {
    struct ampk_context *ctx;
    struct ampk_conv *conv;
    struct ampk_tensor x, y, out, d, dy, dx;
    struct ampk_batchnorm bn;
    struct ampk_bn_statistics statistics;
    float *weights, *dw, *mean, *variance, *rolling_mean, *rolling_variance;
    float *scale, *bias, *dscale, *dbias;
    uint32_t amax;
    bool first;
};

static struct ampk_tensor random_tensor(struct ampk_context *ctx, int n, int c, int size)
{
    struct ampk_tensor t = {.dtype = AMPK_FP16, .n = n, .c = c, .h = size, .w = size};
    t.image_stride = (size_t)c * size * size;
    t.data = backend->alloc(ctx, t.image_stride * n * sizeof(uint16_t));
    for (size_t i = 0; i < t.image_stride * n; i++) /* +-[2^-4, 2) */
        ((uint16_t *)t.data)[i] = (uint16_t)(0x2c00 + rand() % 0x1400) | (rand() & 1) << 15;
    return t;
}

static float *random_floats(struct ampk_context *ctx, size_t n)
{
    float *p = backend->alloc(ctx, n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = rand() * 2.f / RAND_MAX - 1;
    return p;
}

enum operation { SET_WEIGHTS, CONV_FORWARD, BN_FORWARD, BN_BACKWARD, CONV_BACKWARD, OPERATIONS };

static void operate(struct bench *b, enum operation op)
{
    switch (op) {
    case SET_WEIGHTS:
        backend->conv_set_weights(b->ctx, &(struct ampk_new_weights){b->conv, b->weights, &b->amax},
                                  1);
        break;
    case CONV_FORWARD:
        backend->conv_forward(b->ctx, b->conv, &b->x, &b->y, &b->statistics, &b->amax);
        break;
    case BN_FORWARD:
        backend->bn_act_forward(b->ctx, &b->y, &b->bn, AMPK_LEAKY, NULL, &b->out, NULL, &b->amax);
        break;
    case BN_BACKWARD:
        backend->bn_act_backward(b->ctx, &b->y, &b->out, &b->bn, AMPK_LEAKY, &b->d, &b->dy,
                                 b->dscale, b->dbias, &b->amax, &b->amax);
        break;
    default:
        backend->conv_backward(b->ctx, b->conv, &b->x, &b->dy, b->first ? NULL : &b->dx, false,
                               &b->amax);
        backend->conv_weight_gradients(
            b->ctx, &(struct ampk_weight_gradient){b->conv, b->dw, &b->amax}, 1, 1, false);
    }
}

static void create(struct bench *b, struct ampk_context *ctx, const struct layer *l, int n)
{
    char err[200];
    struct ampk_conv_shape shape = {.n = n,
                                    .c = l->c,
                                    .h = l->size,
                                    .w = l->size,
                                    .k = l->k,
                                    .kh = l->kernel,
                                    .kw = l->kernel,
                                    .stride = 1,
                                    .pad = l->kernel / 2,
                                    .groups = 1,
                                    .compute = AMPK_COMPUTE_FP16};
    size_t weights = (size_t)l->k * l->c * l->kernel * l->kernel, k = (size_t)l->k;
    *b = (struct bench){.ctx = ctx, .first = l->c == 3};
    b->conv = backend->conv_create(ctx, &shape, err, sizeof err);
    if (!b->conv) {
        fprintf(stderr, "%s\n", err);
        exit(1);
    }
    b->x = random_tensor(ctx, n, l->c, l->size);
    b->dx = random_tensor(ctx, n, l->c, l->size);
    b->y = random_tensor(ctx, n, l->k, l->size);
    b->out = random_tensor(ctx, n, l->k, l->size);
    b->d = random_tensor(ctx, n, l->k, l->size);
    b->dy = random_tensor(ctx, n, l->k, l->size);
    b->weights = random_floats(ctx, weights);
    b->dw = random_floats(ctx, weights);
    b->mean = random_floats(ctx, k);
    b->variance = random_floats(ctx, k);
    b->rolling_mean = random_floats(ctx, k);
    b->rolling_variance = random_floats(ctx, k);
    b->scale = random_floats(ctx, k);
    b->bias = random_floats(ctx, k);
    b->dscale = random_floats(ctx, k);
    b->dbias = random_floats(ctx, k);
    b->bn = (struct ampk_batchnorm){b->scale, b->bias, b->mean, b->variance, AMPK_BN_DARKNET_CPU};
    b->statistics = (struct ampk_bn_statistics){
        b->mean, b->variance, b->rolling_mean, b->rolling_variance, b->bn.rule, &b->amax};
}

static void destroy(struct bench *b)
{
    void *all[] = {b->x.data, b->dx.data,  b->y.data,       b->out.data,
                   b->d.data, b->dy.data,  b->weights,      b->dw,
                   b->mean,   b->variance, b->rolling_mean, b->rolling_variance,
                   b->scale,  b->bias,     b->dscale,       b->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        backend->free(b->ctx, all[i]);
    backend->conv_destroy(b->ctx, b->conv);
}

/* Prints a layer's line; adds its smallest times to *cpu and *wall. */
static void run(const struct layer *l, int n, struct ampk_context *ctx, int repeats, double *cpu,
                double *wall)
{
    struct bench b;
    create(&b, ctx, l, n);
    double best_cpu[OPERATIONS], best_wall[OPERATIONS], total = 0;
    for (int r = 0; r <= repeats; r++) /* the first is warming up */
        for (int op = 0; op < OPERATIONS; op++) {
            double c = seconds(CLOCK_PROCESS_CPUTIME_ID), w = seconds(CLOCK_MONOTONIC);
            operate(&b, op);
            c = seconds(CLOCK_PROCESS_CPUTIME_ID) - c;
            w = seconds(CLOCK_MONOTONIC) - w;
            if (r <= 1 || c < best_cpu[op]) best_cpu[op] = c;
            if (r <= 1 || w < best_wall[op]) best_wall[op] = w;
        }
    destroy(&b);
    double flops = 2. * n * l->size * l->size * l->k * l->c * l->kernel * l->kernel;
    double all = b.first ? 2 * flops : 3 * flops;
    printf("%4d ->%4d %3dx%-3d %dx%d:", l->c, l->k, l->size, l->size, l->kernel, l->kernel);
    for (int op = 0; op < OPERATIONS; op++) {
        printf(" %7.2f/%-7.2f", best_cpu[op] * 1e3, best_wall[op] * 1e3);
        total += best_cpu[op];
        *wall += best_wall[op];
    }
    printf("| %5.1f %5.1f\n", all / (best_cpu[CONV_FORWARD] + best_cpu[CONV_BACKWARD]) * 1e-9,
           all / total * 1e-9);
    *cpu += total;
}

int main(int argc, char **argv)
{
    char err[200];
    if (argc != 4 || (strcmp(argv[1], "small") && strcmp(argv[1], "tiny"))) {
        fprintf(stderr, "usage: %s small|tiny THREADS REPEATS\n", argv[0]);
        return 1;
    }
    bool is_small = !strcmp(argv[1], "small");
    struct ampk_context *ctx = backend->context_create(atoi(argv[2]), err, sizeof err);
    if (!ctx) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    printf("layer                  weights         conv            bn              bn backward     "
           "conv backward  | GFLOP/s conv, all\n");
    double cpu = 0, wall = 0;
    for (const struct layer *l = is_small ? small_net : tiny_net; l->c; l++)
        run(l, is_small ? 16 : 4, ctx, atoi(argv[3]), &cpu, &wall);
    printf("sum: cpu %.2f ms, wall %.2f ms\n", cpu * 1e3, wall * 1e3);
    backend->context_destroy(ctx);
    return 0;
}
