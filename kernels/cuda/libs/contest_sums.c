/* Decides whether batch-norm's sums come sooner from the epilogue of a convolution, or of a data
 * gradient, than from a kernel that reads the stored result; and whether they are right.
 *
 * An engine's sums are right if they match the result stored beside them, and that result is right
 * if it matches the plain engine's, of forward value by value. With R the root of the mean of a
 * channel's squares, the mean may be off by slack * R. */
#include "plans.h"

#include "kernels/cuda/conv/conv_kernels.h"
#include "kernels/cuda/runtime/backend.h"
#include "kernels/cuda/runtime/context.h"

#include <stdio.h>
#include <math.h>
#include <stdlib.h>

/* One pass of a convolution, its sums and what becomes of them. */
struct summing {
    struct ampk_context *ctx;
    const struct ampk_tc_plan *apart, *summed;
    struct ampk_tc_bench bench;
    struct ampk_tensor result;
    float *device, *host; /* vectors, one float per channel of the result */
    /* Of forward only, on the device: the plain engine's result, and ampk_conv_compare's words. */
    void *plain;
    uint32_t *words;
    /* For a data gradient only: */
    enum ampk_activation activation;
    struct ampk_tensor y;
    struct ampk_batchnorm bn;
};

static bool begin(struct summing *s, int on_device, int on_host)
{
    const struct ampk_tc_problem *p = &s->summed->problem;
    bool data = p->pass == AMPK_TC_DATA;
    size_t c = (size_t)ampk_tc_summed_channels(p), bytes = (size_t)on_device * c * sizeof(float);
    bool ready = ampk_tc_bench_begin(&s->bench, p);
    int h = data ? p->h : ampk_tc_out(p, p->h, p->kh),
        w = data ? p->w : ampk_tc_out(p, p->w, p->kw);
    s->result = (struct ampk_tensor){s->bench.result, p->result, AMPK_NHWC, p->n, (int)c, h, w,
                                     c * h * w,       0};
    s->device = ampk_rt_alloc(bytes);
    s->host = malloc((size_t)on_host * c * sizeof *s->host);
    if (s->device) ampk_rt_zero(s->device, bytes, s->bench.stream);
    return ready && s->device && s->host &&
           s->bench.workspace_bytes >= s->apart->engine.workspace &&
           s->bench.workspace_bytes >= s->summed->engine.workspace;
}

static void end(void *bench)
{
    struct summing *s = bench;
    ampk_tc_bench_end(&s->bench);
    ampk_rt_free(s->device);
    ampk_rt_free(s->plain);
    ampk_rt_free(s->words);
    free(s->host);
}

static bool decide(struct summing *s, const struct ampk_tc_ways *ways, const char *what)
{
    struct ampk_tc *tc = s->ctx->tensor_core;
    s->bench = (struct ampk_tc_bench){.tc = tc, .stream = s->ctx->stream, .what = s->summed->key};
    return ampk_tc_decide(tc, ways, s, s->apart, s->summed, what);
}

static const float *read_vectors(struct summing *s, const float *from, int count, float *to)
{
    return ampk_tc_bench_read(&s->bench, from, (size_t)count * s->result.c, to);
}

static bool run_summed(struct summing *s)
{
    bool done = true;
    for (int i = 0; i < 2 && done; i++) /* twice: shows an engine that adds to older sums */
        done = ampk_tc_bench_run(&s->bench, &s->summed->engine);
    return done;
}

static double count_of(const struct summing *s)
{
    return (double)s->result.n * s->result.h * s->result.w;
}

/* How far the results of two engines may be apart:
 *     2^-10           of a value: each rounds it to FP16 once
 *     2^-22 products  of the largest sum, in R, in a value: each product rounds or cuts it, twice
 *     2^-20 sqrt(n)   of R, in the mean: roundings of our sum, 8 of the root of their number, twice
 */
static double slack_of_results(const struct summing *s, double largest)
{
    const struct ampk_tc_problem *p = &s->summed->problem;
    double channels = p->pass == AMPK_TC_DATA ? p->k : p->c;
    double products = channels / p->groups * p->kh * p->kw;
    return 0x1p-10 + 0x1p-22 * largest * products + 0x1p-20 * sqrt(count_of(s));
}

/* For sums of the same result, before or after it was rounded to FP16. These roundings have no
 * common direction, and 8 / sqrt(n) of 2^-10 is more than is left of them in a mean. 2^-23 sqrt(n)
 * is for the sums' own roundings: an engine that adds n/64 values in a row has no more. */
static double slack_of_sums(const struct summing *s)
{
    double root = sqrt(count_of(s));
    return 0x1p-7 / root + 0x1p-23 * root;
}

/* ---- forward ---- */

static bool begin_statistics(void *bench)
{
    struct summing *s = bench;
    bool ready = begin(s, AMPK_TC_STATISTICS, 6);
    s->plain = ampk_rt_alloc(s->bench.result_bytes);
    s->words = ampk_rt_alloc(2 * sizeof *s->words);
    return ready && s->plain && s->words;
}

/* Times a convolution and its statistics as conv.c computes them. Those of the epilogue's sums are
 * made by the next kernel on its way. */
static float time_statistics(void *bench, bool in_epilogue)
{
    struct summing *s = bench;
    struct ampk_bn_statistics to = ampk_tc_statistics_at(s->device, (size_t)s->result.c);
    ampk_tc_bench_start(&s->bench);
    bool done = ampk_tc_bench_run(&s->bench, in_epilogue ? &s->summed->engine : &s->apart->engine);
    if (!in_epilogue) ampk_cuda_bn_statistics(s->ctx, &s->result, &to);
    float ms = ampk_tc_bench_stop(&s->bench);
    return done ? ms : 0;
}

/* Mean and variance of the result. */
static const float *read_statistics(struct summing *s, float *to)
{
    return ampk_tc_read_spread(s->ctx, &s->bench, &s->result, s->device, to);
}

/* The same from the epilogue's sums. */
static const float *read_summed_statistics(struct summing *s, float *to)
{
    float *squares = to + s->result.c;
    double n = count_of(s);
    read_vectors(s, s->bench.sums.sums, AMPK_TC_SUMS, to);
    for (int c = 0; c < s->result.c; c++) {
        double mean = to[c] / n;
        to[c] = (float)mean;
        squares[c] = (float)(squares[c] / n - mean * mean);
    }
    return to;
}

/* Where only one engine has sums, nobody has compared its values. */
static bool results_agree(struct summing *s)
{
    float found[2] = {NAN, NAN}; /* difference, value */
    ampk_rt_zero(s->words, sizeof found, s->bench.stream);
    ampk_conv_compare(s->bench.stream, s->plain, s->bench.result, s->result.dtype,
                      s->bench.result_bytes, s->words);
    ampk_rt_copy_out(found, s->words, sizeof found, s->bench.stream);
    ampk_tc_bench_wait(&s->bench);
    return found[0] <= ampk_tc_slack(&s->summed->problem) * found[1];
}

/* The 2 below: no sum of y is larger than 2 R. */
static enum ampk_tc_verdict check_statistics(void *bench)
{
    struct summing *s = bench;
    size_t each = 2 * (size_t)s->result.c;
    void *result = s->bench.result;
    s->bench.result = s->result.data = s->plain;
    bool done = ampk_tc_bench_run(&s->bench, &s->apart->engine);
    const float *expected = read_statistics(s, s->host);
    s->bench.result = s->result.data = result;
    if (!done || !run_summed(s)) return AMPK_TC_CANNOT_RUN;
    const float *stored = read_statistics(s, s->host + each);
    const float *summed = read_summed_statistics(s, s->host + 2 * each);
    int k = s->result.c;
    return results_agree(s) &&
                   ampk_tc_statistics_agree(k, expected, stored, slack_of_results(s, 2)) &&
                   ampk_tc_statistics_agree(k, stored, summed, slack_of_sums(s))
               ? AMPK_TC_IS_RIGHT
               : AMPK_TC_IS_WRONG;
}

bool ampk_tc_pays_sums(struct ampk_context *ctx, const struct ampk_tc_plan *apart,
                       const struct ampk_tc_plan *summed)
{
    struct summing s = {.ctx = ctx, .apart = apart, .summed = summed};
    static const struct ampk_tc_ways ways = {"kernel",         "epilogue",      begin_statistics,
                                             check_statistics, time_statistics, end};
    return decide(&s, &ways, "sums in the epilogue");
}

/* ---- data gradients ---- */

/* Numbers of vectors on the device, before statistics of g: parameters (scale, bias, mean,
 * variance), and what batch-norm's backward leaves. */
enum { PARAMETERS = 4, LEFT = 2 };

/* The variance among the parameters below. */
static const float VARIANCE = 1;

/* Chooses parameters for y in [0, 1]. The activation turns at a point between .5 and .75 that lies
 * halfway from one FP16 number to the next, so that no rounding decides on which side y is. Every
 * other channel has a negative scale: its input falls as y rises. */
static void choose_parameters(float *to, int channels)
{
    float *scale = to, *bias = scale + channels, *mean = bias + channels,
          *variance = mean + channels;
    for (int c = 0; c < channels; c++) {
        float turn = .5f + (float)(2 * (c % 512) + 1) * 0x1p-12f;
        scale[c] = c % 2 ? -.75f : 1.5f;
        mean[c] = .125f * (float)(1 + c % 4);
        variance[c] = VARIANCE;
        bias[c] = (mean[c] - turn) * (scale[c] / sqrtf(VARIANCE + 1e-5f));
    }
}

static bool begin_gradients(void *bench)
{
    struct summing *s = bench;
    if (!begin(s, PARAMETERS + LEFT + AMPK_TC_STATISTICS, LEFT + LEFT + AMPK_TC_SUMS + LEFT))
        return false;
    int channels = s->result.c;
    float *parameters = s->device;
    choose_parameters(s->host, channels);
    ampk_rt_copy_in(parameters, s->host, (size_t)PARAMETERS * channels * sizeof *parameters,
                    s->bench.stream);
    s->bn = (struct ampk_batchnorm){.scale = parameters,
                                    .bias = parameters + channels,
                                    .mean = parameters + 2 * channels,
                                    .variance = parameters + 3 * channels,
                                    .rule = AMPK_BN_CUDNN,
                                    .listed = s->bench.vectors +
                                              (size_t)(AMPK_TC_SUMS + AMPK_TC_UNREAD) * channels};
    s->y = s->result;
    s->y.data = s->bench.y;
    /* For what it lists; the result makes room for its own. */
    ampk_cuda_bn_act_forward(s->ctx, &s->y, &s->bn, s->activation, NULL, &s->result, NULL, NULL);
    return true;
}

static float *left_at(const struct summing *s)
{
    return s->device + (size_t)PARAMETERS * s->result.c;
}

/* Runs batch-norm's backward in place. With LINEAR, it sums g as stored. */
static void pass_back(struct summing *s, enum ampk_activation activation)
{
    float *left = left_at(s);
    ampk_cuda_bn_act_backward(s->ctx, &s->y, NULL, &s->bn, activation, &s->result, &s->result, left,
                              left + s->result.c, NULL, NULL);
}

static void pass_back_summed(struct summing *s)
{
    float *left = left_at(s);
    ampk_cuda_bn_backward_summed(s->ctx, &s->y, &s->bn, &s->result, s->bench.sums.sums, &s->result,
                                 left, left + s->result.c, NULL, NULL);
}

/* Times a data gradient and batch-norm's backward as layers compute them. */
static float time_gradients(void *bench, bool in_epilogue)
{
    struct summing *s = bench;
    ampk_tc_bench_start(&s->bench);
    bool done = ampk_tc_bench_run(&s->bench, in_epilogue ? &s->summed->engine : &s->apart->engine);
    if (in_epilogue)
        pass_back_summed(s);
    else
        pass_back(s, s->activation);
    float ms = ampk_tc_bench_stop(&s->bench);
    return done ? ms : 0;
}

/* Reads the sums of g and of g * (y - mean) that a kernel takes. The kernel's dscale has the
 * factor 1 / sqrt(variance + 1e-5), which is taken out again. */
static const float *read_sums(struct summing *s, enum ampk_activation activation, float *to)
{
    size_t c = (size_t)s->result.c;
    pass_back(s, activation);
    read_vectors(s, left_at(s) + c, 1, to);
    read_vectors(s, left_at(s), 1, to + c);
    for (size_t i = c; i < 2 * c; i++) /* dscale */
        to[i] *= sqrtf(VARIANCE + 1e-5f);
    return to;
}

/* Reads mean and variance of the result. */
static const float *read_spread(struct summing *s, float *to)
{
    float *vectors = left_at(s) + (size_t)LEFT * s->result.c;
    return ampk_tc_read_spread(s->ctx, &s->bench, &s->result, vectors, to);
}

/* Whether both sums agree in every channel. y is at most 1 from the mean, so one bound serves both
 * sums. */
static bool sums_agree(const struct summing *s, const float *a, const float *b, const float *spread,
                       double slack)
{
    int channels = s->result.c;
    for (int i = 0; i < 2 * channels; i++) {
        double mean = spread[i % channels], variance = spread[channels + i % channels];
        double bound = slack * sqrt(variance + mean * mean) * count_of(s);
        if (!(fabs((double)a[i] - b[i]) <= bound)) return false;
    }
    return true;
}

/* At least a quarter of g is as large as the plain gradient: the R of g is at least half of that
 * of the plain gradient, and no sum is larger than 4 of it. An engine that takes a slope of 0 in
 * place of leaky's loses a tenth of what is negative. That exceeds the slack where the negative
 * part has a mean as large as its spread, which the bench's operands give most channels. */
static enum ampk_tc_verdict check_gradients(void *bench)
{
    struct summing *s = bench;
    size_t each = 2 * (size_t)s->result.c;
    if (!ampk_tc_bench_run(&s->bench, &s->apart->engine)) return AMPK_TC_CANNOT_RUN;
    const float *expected = read_sums(s, s->activation, s->host);
    if (!run_summed(s)) return AMPK_TC_CANNOT_RUN;
    const float *summed = read_vectors(s, s->bench.sums.sums, AMPK_TC_SUMS, s->host + each);
    const float *spread = read_spread(s, s->host + 2 * each);
    const float *stored = read_sums(s, AMPK_LINEAR, s->host + 3 * each);
    return sums_agree(s, expected, stored, spread, slack_of_results(s, 4)) &&
                   sums_agree(s, stored, summed, spread, slack_of_sums(s))
               ? AMPK_TC_IS_RIGHT
               : AMPK_TC_IS_WRONG;
}

bool ampk_tc_pays_gradient_sums(struct ampk_context *ctx, const struct ampk_tc_plan *apart,
                                const struct ampk_tc_plan *summed, enum ampk_activation activation)
{
    char what[48];
    struct summing s = {.ctx = ctx, .apart = apart, .summed = summed, .activation = activation};
    static const struct ampk_tc_ways ways = {"kernel",        "epilogue",     begin_gradients,
                                             check_gradients, time_gradients, end};
    snprintf(what, sizeof what, "sums of slope %g in the epilogue", (double)summed->problem.slope);
    return decide(&s, &ways, what);
}
