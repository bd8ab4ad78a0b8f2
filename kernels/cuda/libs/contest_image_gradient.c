/* Decides whether a first convolution's weight gradient comes sooner from a kernel that makes
 * batch-norm's dy on the way (image_gradient.cu) than from the library, a kernel that stores dy
 * and one that pads the image; and whether it is right.
 *
 * Both ways multiply the same 16 bits. With R = sqrt(n) * rms(dy) * rms(x), n pixels, no part of
 * such a sum is larger than 8 R where signs are random, as they are here. */
#include "plans.h"

#include "kernels/cuda/runtime/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/conv/conv_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Vectors on the device: scale, bias, mean, variance, dscale and dbias, statistics of dy. */
enum { PARAMETERS = 4, LEFT = 2 };

/* Mean of the image; all its values are within .5 of it. */
static const float MEAN_OF_X = .25f;

/* Extra numbers for y. The numbers depend on their count, so y and d get different ones. */
enum { APART = 1009 };

struct first_layer {
    struct ampk_context *ctx;
    const struct ampk_tc_plan *plan;
    const struct ampk_conv_shape *shape;
    struct ampk_tc_bench bench; /* operands: the padded image and dy, which takes d's place */
    struct ampk_tensor x, y, d, dy;
    void *argmax, *memory_of_d; /* for a maxpool only */
    struct ampk_batchnorm bn;
    struct ampk_layer_gradient gradient;
    float *vectors, *packed, *dw; /* packed: the kernel's; dw: of one way, unpacked */
    float *host;
};

static size_t weight_count(const struct first_layer *f)
{
    return (size_t)f->shape->k * f->shape->c * f->shape->kh * f->shape->kw;
}

static double pixels_of(const struct first_layer *f)
{
    return (double)f->y.n * f->y.h * f->y.w;
}

static size_t count_of(const struct ampk_tensor *t)
{
    return (size_t)t->n * t->c * t->h * t->w;
}

static void *make_numbers(struct first_layer *f, const struct ampk_tensor *t, size_t more,
                          float mean)
{
    size_t n = count_of(t) + more;
    void *memory = ampk_rt_alloc(n * ampk_dtype_bytes(t->dtype));
    if (memory) ampk_conv_fill(f->bench.stream, memory, t->dtype, n, mean);
    return memory;
}

/* About half of what goes into the activation is negative. */
static void choose_parameters(float *to, int k)
{
    for (int c = 0; c < k; c++) {
        to[c] = c % 2 ? -.75f : 1.5f;
        to[k + c] = .125f * (float)(c % 4);
        to[2 * k + c] = AMPK_TC_MEAN_OF_Y;
        to[3 * k + c] = 1 / 12.f;
    }
}

static void take_parameters(struct first_layer *f)
{
    int k = f->shape->k;
    float *at = f->vectors;
    choose_parameters(f->host, k);
    ampk_rt_copy_in(at, f->host, (size_t)PARAMETERS * k * sizeof *at, f->bench.stream);
    f->bn = (struct ampk_batchnorm){.scale = at,
                                    .bias = at + k,
                                    .mean = at + 2 * k,
                                    .variance = at + 3 * k,
                                    .rule = AMPK_BN_CUDNN};
}

/* Makes the positions of the maxima of y, and other numbers for the gradient there. */
static bool make_pooled(struct first_layer *f)
{
    f->d.data = f->memory_of_d = make_numbers(f, &f->d, 0, 0);
    f->argmax = ampk_rt_alloc(ampk_cuda_maxpool_index_bytes(&f->d, 2));
    if (!f->d.data || !f->argmax) return false;
    ampk_cuda_bn_act_pool_forward(f->ctx, &f->y, &f->bn, f->gradient.activation, &f->d, f->argmax,
                                  NULL, NULL);
    ampk_conv_fill(f->bench.stream, f->d.data, f->d.dtype, count_of(&f->d), 0);
    return true;
}

static bool make_layer(struct first_layer *f)
{
    size_t k = (size_t)f->shape->k, weights = weight_count(f);
    size_t padded = weights / f->shape->c * f->plan->problem.c;
    f->x.data = make_numbers(f, &f->x, 0, MEAN_OF_X);
    f->y.data = make_numbers(f, &f->y, APART, AMPK_TC_MEAN_OF_Y);
    f->dy.data = f->bench.second;
    f->vectors = ampk_rt_alloc((PARAMETERS + LEFT + AMPK_TC_STATISTICS) * k * sizeof(float));
    f->packed = ampk_rt_alloc(padded * sizeof(float));
    f->dw = ampk_rt_alloc(weights * sizeof(float));
    f->host = malloc((PARAMETERS * k + 2 * weights) * sizeof(float));
    if (!f->x.data || !f->y.data || !f->vectors || !f->packed || !f->dw || !f->host) return false;
    take_parameters(f);
    if (!f->gradient.argmax) {
        f->d.data = f->dy.data;
        return true;
    }
    if (!make_pooled(f)) return false;
    f->gradient.argmax = f->argmax;
    return true;
}

static bool begin(void *bench)
{
    struct first_layer *f = bench;
    return ampk_tc_bench_begin(&f->bench, &f->plan->problem) &&
           f->bench.workspace_bytes >= f->plan->engine.workspace && make_layer(f) &&
           ampk_cuda_work_reserve(f->ctx, ampk_image_gradient_work(&f->x, f->shape->k));
}

static void end(void *bench)
{
    struct first_layer *f = bench;
    ampk_tc_bench_end(&f->bench);
    void *memory[] = {f->x.data,  f->y.data, f->memory_of_d, f->argmax,
                      f->vectors, f->packed, f->dw};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        ampk_rt_free(memory[i]);
    free(f->host);
}

static struct ampk_conv_weights layout_of(const struct first_layer *f)
{
    const struct ampk_conv_shape *s = f->shape;
    return (struct ampk_conv_weights){s->k, s->c, s->kh * s->kw, s->k, f->plan->problem.c};
}

/* Runs one way as layers compute it. */
static bool run(struct first_layer *f, bool in_registers)
{
    const struct ampk_layer_gradient *g = &f->gradient;
    float *dscale = f->vectors + (size_t)PARAMETERS * f->shape->k, *dbias = dscale + f->shape->k;
    if (in_registers) {
        struct ampk_conv_weights layout = layout_of(f);
        ampk_image_gradient(f->ctx, &layout, &f->x, g, f->packed, dscale, dbias, NULL, NULL);
        return true;
    }
    if (g->argmax)
        ampk_cuda_bn_act_pool_backward(f->ctx, g->y, g->bn, g->activation, g->d, g->argmax, &f->dy,
                                       dscale, dbias, NULL, NULL);
    else
        ampk_cuda_bn_act_backward(f->ctx, g->y, NULL, g->bn, g->activation, g->d, &f->dy, dscale,
                                  dbias, NULL, NULL);
    ampk_conv_pack(f->ctx, &f->x, f->shape->compute, f->plan->problem.c, f->bench.first);
    return ampk_tc_bench_run(&f->bench, &f->plan->engine);
}

static float time_engine(void *bench, bool in_registers)
{
    struct first_layer *f = bench;
    ampk_tc_bench_start(&f->bench);
    bool done = run(f, in_registers);
    float ms = ampk_tc_bench_stop(&f->bench);
    return done ? ms : 0;
}

static const float *read_gradient(struct first_layer *f, const void *packed, enum ampk_dtype dtype,
                                  float *to)
{
    const struct ampk_conv_gradient g = {layout_of(f), dtype, packed, f->dw, NULL};
    ampk_conv_take_gradients(f->ctx, &g, 1, 1, false);
    return ampk_tc_bench_read(&f->bench, f->dw, weight_count(f), to);
}

/* Mean and variance of dy. */
static const float *read_spread(struct first_layer *f, float *to)
{
    float *vectors = f->vectors + (size_t)(PARAMETERS + LEFT) * f->shape->k;
    return ampk_tc_read_spread(f->ctx, &f->bench, &f->dy, vectors, to);
}

/* How far the two gradients may be apart, in R:
 *     2^-8, 2^-5   the library's rounding to FP16 or BF16, of 8 R
 *     2^-24 each   of the products that it adds up in a row: for 16 of them a rounding of 8 R, or a
 *                  cut, which is twice as much; n / 64 in a row, or where n is small all; ours has
 *                  fewer
 *     2^-14        whatever n is */
static double slack_of(const struct first_layer *f)
{
    enum ampk_dtype dtype = f->plan->problem.result;
    double stored = dtype == AMPK_FP16 ? 0x1p-8 : dtype == AMPK_BF16 ? 0x1p-5 : 0;
    double n = pixels_of(f), in_a_row = fmax(n / 64, fmin(n, 0x1p16));
    return stored + 0x1p-24 * in_a_row + 0x1p-14;
}

/* Whether all weights' gradients agree. The test is written so that NaN fails it. */
static bool agree(const struct first_layer *f, const float *a, const float *b, const float *spread)
{
    int k = f->shape->k;
    size_t weights = weight_count(f), of_filter = weights / (size_t)k;
    double mean = MEAN_OF_X, of_x = slack_of(f) * sqrt(pixels_of(f) * (1 / 12. + mean * mean));
    for (size_t i = 0; i < weights; i++) {
        const float *of_dy = spread + i / of_filter;
        double bound = of_x * sqrt(of_dy[k] + (double)of_dy[0] * of_dy[0]);
        if (!(fabs((double)a[i] - b[i]) <= bound)) return false;
    }
    return true;
}

/* Runs the kernel first, because the library's way may overwrite d with dy. */
static enum ampk_tc_verdict check(void *bench)
{
    struct first_layer *f = bench;
    float *of_kernel = f->host + (size_t)PARAMETERS * f->shape->k;
    float *of_library = of_kernel + weight_count(f);
    run(f, true);
    read_gradient(f, f->packed, AMPK_FP32, of_kernel);
    if (!run(f, false)) return AMPK_TC_CANNOT_RUN;
    read_gradient(f, f->bench.result, f->plan->problem.result, of_library);
    return agree(f, of_library, of_kernel, read_spread(f, f->host)) ? AMPK_TC_IS_RIGHT
                                                                    : AMPK_TC_IS_WRONG;
}

static struct ampk_tensor describe(enum ampk_dtype dtype, int n, int c, int h, int w)
{
    return (struct ampk_tensor){NULL, dtype, AMPK_NHWC, n, c, h, w, (size_t)c * h * w, 0};
}

bool ampk_tc_pays_image_gradient(struct ampk_context *ctx, const struct ampk_tc_plan *weights,
                                 const struct ampk_conv_shape *shape,
                                 const struct ampk_layer_gradient *like)
{
    char what[48];
    struct ampk_tc *tc = ctx->tensor_core;
    enum ampk_dtype operand = ampk_tc_operand(shape->compute);
    struct first_layer f = {.ctx = ctx, .plan = weights, .shape = shape, .gradient = *like};
    f.bench = (struct ampk_tc_bench){.tc = tc, .stream = ctx->stream, .what = weights->key};
    f.x = describe(operand, shape->n, shape->c, shape->h, shape->w);
    f.y = f.dy = describe(operand, shape->n, shape->k, shape->h, shape->w);
    f.d = describe(operand, shape->n, shape->k, like->d->h, like->d->w);
    f.gradient.y = &f.y;
    f.gradient.d = &f.d;
    f.gradient.bn = &f.bn;
    f.gradient.sums = NULL;
    static const struct ampk_tc_ways ways = {"library", "kernel", begin, check, time_engine, end};
    snprintf(what, sizeof what, "%sdy in registers, %d channels", like->argmax ? "maxpool's " : "",
             shape->c);
    return ampk_tc_decide(tc, &ways, &f, weights, weights, what);
}
