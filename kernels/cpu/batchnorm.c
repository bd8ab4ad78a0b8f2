/* Operations with one parameter or one sum per channel: batch-norm with activation, bias with
 * activation, and the last step of conv.c, which stores the FP32 result of a convolution.
 *
 * All are loops over pixels (tiles.c), with vectors along the channels. Sums over a piece are FP32;
 * sums over pieces are double, because there are many. */
#include "tiles.h"

#include <string.h>

enum { COLUMNS_AT_ONCE = 256 }; /* channels whose sums are added in double */

/* ---- kernels ---- */

/* A kernel is a function of one column: as many channels as a vector has lanes, or `left` of them,
 * over all pixels of a tile. It returns `largest`, raised by what it stores. */
#define COLUMN(name)                                                                               \
    AMPK_INLINE ampk_vec_amax name(const struct ampk_job *job, const struct ampk_tile *tile,       \
                                   size_t i, size_t left, ampk_vec_amax largest,                   \
                                   enum ampk_dtype t, enum ampk_activation a)

/* Defines name_tile(job, tile), which calls name(...) for all columns with the tile's dtype and the
 * job's activation as constants. */
#define KERNEL(name)                                                                               \
    AMPK_INLINE ampk_vec_amax name##_columns(const struct ampk_job *job,                           \
                                             const struct ampk_tile *tile, enum ampk_dtype t,      \
                                             enum ampk_activation a)                               \
    {                                                                                              \
        const struct ampk_job j = *job; /* copies: no store can change them */                     \
        const struct ampk_tile k = *tile;                                                          \
        size_t i = 0;                                                                              \
        ampk_vec_amax largest = ampk_vec_amax_zero();                                              \
        for (; i + AMPK_LANES <= k.channels; i += AMPK_LANES)                                      \
            largest = name(&j, &k, i, AMPK_LANES, largest, t, a);                                  \
        if (i < k.channels) largest = name(&j, &k, i, k.channels - i, largest, t, a);              \
        return largest;                                                                            \
    }                                                                                              \
    static uint32_t name##_tile(const struct ampk_job *job, const struct ampk_tile *tile)          \
    {                                                                                              \
        ampk_vec_amax largest = ampk_vec_amax_zero();                                              \
        AMPK_WITH_DTYPE(                                                                           \
            tile->dtype, T,                                                                        \
            AMPK_WITH_ACTIVATION(job->activation, A, largest = name##_columns(job, tile, T, A)));  \
        return ampk_vec_amax_get(largest);                                                         \
    }

AMPK_INLINE ampk_vec parameter(const struct ampk_job *job, const struct ampk_tile *tile, int which,
                               size_t i, size_t left)
{
    return ampk_vec_load(job->parameter[which], tile->first_channel + i, AMPK_FP32, left);
}

/* A kernel sums its tile alone and then adds that to the sums of the piece: short sums round less
 * than one sum over the whole piece. */
AMPK_INLINE void raise_sum(const struct ampk_tile *tile, int which, size_t i, size_t left,
                           ampk_vec sum)
{
    float *sums = tile->sums[which];
    sum = ampk_vec_load(sums, i, AMPK_FP32, left) + sum;
    ampk_vec_store(sums, i, AMPK_FP32, left, sum);
}

/* sum(in - shift) and sum((in - shift)^2); parameter: shift. */
COLUMN(sums)
{
    (void)a;
    ampk_vec shift = parameter(job, tile, 0, i, left);
    ampk_vec sum = ampk_vec_set(0);
    ampk_vec squares = ampk_vec_set(0);
    for (size_t p = 0; p < tile->pixels; p++) {
        ampk_vec v = ampk_vec_load(tile->in[0], p * tile->in_step[0] + i, t, left);
        v -= shift;
        sum += v;
        squares = ampk_vec_fma(v, v, squares);
    }
    raise_sum(tile, 0, i, left, sum);
    raise_sum(tile, 1, i, left, squares);
    return largest;
}
KERNEL(sums)

/* out = source, and the sums of what was stored; parameter: shift. */
COLUMN(store_sums)
{
    (void)a;
    ampk_vec shift = parameter(job, tile, 0, i, left);
    ampk_vec sum = ampk_vec_set(0);
    ampk_vec squares = ampk_vec_set(0);
    for (size_t p = 0; p < tile->pixels; p++) {
        ampk_vec v = ampk_vec_load(tile->source, p * tile->source_stride + i, AMPK_FP32, left);
        ampk_vec_store_amax(tile->out, p * tile->out_step + i, t, left, v, &largest);
        v = ampk_vec_round(v, t) - shift;
        sum += v;
        squares = ampk_vec_fma(v, v, squares);
    }
    raise_sum(tile, 0, i, left, sum);
    raise_sum(tile, 1, i, left, squares);
    return largest;
}
KERNEL(store_sums)

/* out = activation(source + bias); parameter: bias. */
COLUMN(store_bias)
{
    ampk_vec bias = parameter(job, tile, 0, i, left);
    for (size_t p = 0; p < tile->pixels; p++) {
        ampk_vec v = ampk_vec_load(tile->source, p * tile->source_stride + i, AMPK_FP32, left);
        v = ampk_vec_activate(v + bias, a);
        ampk_vec_store_amax(tile->out, p * tile->out_step + i, t, left, v, &largest);
    }
    return largest;
}
KERNEL(store_bias)

AMPK_INLINE struct ampk_normalizer normalizer(const struct ampk_job *job,
                                              const struct ampk_tile *tile, size_t i, size_t left)
{
    return ampk_normalizer_at(job->parameter, tile->first_channel + i, left);
}

/* out = activation(normalized in[0]), plus in[1] if there is a residual. */
AMPK_INLINE ampk_vec_amax normalize_column(const struct ampk_job *job, const struct ampk_tile *tile,
                                           size_t i, size_t left, ampk_vec_amax largest,
                                           enum ampk_dtype t, enum ampk_activation a, bool residual)
{
    const struct ampk_normalizer n = normalizer(job, tile, i, left);
    for (size_t p = 0; p < tile->pixels; p++) {
        ampk_vec v = ampk_vec_load(tile->in[0], p * tile->in_step[0] + i, t, left);
        v = ampk_vec_activate(ampk_normalized(&n, v), a);
        if (residual) v += ampk_vec_load(tile->in[1], p * tile->in_step[1] + i, t, left);
        ampk_vec_store_amax(tile->out, p * tile->out_step + i, t, left, v, &largest);
    }
    return largest;
}

COLUMN(normalize)
{
    return normalize_column(job, tile, i, left, largest, t, a, false);
}
KERNEL(normalize)

COLUMN(normalize_add)
{
    return normalize_column(job, tile, i, left, largest, t, a, true);
}
KERNEL(normalize_add)

/* g = in[2] * activation'. The activation's input is computed again from y if that tells the
 * gradient; otherwise its output is read. */
AMPK_INLINE ampk_vec before_activation(const struct ampk_tile *tile,
                                       const struct ampk_normalizer *n, ampk_vec y, size_t p,
                                       size_t i, size_t left, enum ampk_dtype t,
                                       enum ampk_activation a)
{
    ampk_vec d = ampk_vec_load(tile->in[2], p * tile->in_step[2] + i, t, left);
    ampk_vec at = ampk_recomputes_input(a)
                      ? ampk_normalized(n, y)
                      : ampk_vec_load(tile->in[1], p * tile->in_step[1] + i, t, left);
    return ampk_vec_activation_backward(d, at, a);
}

/* y = in[0], out = in[1] or nothing, d = in[2]; g as before_activation: sum(g) and
 * sum(g * (y - mean)). */
COLUMN(gradient_sums)
{
    const struct ampk_normalizer n = normalizer(job, tile, i, left);
    ampk_vec sum = ampk_vec_set(0);
    ampk_vec product = ampk_vec_set(0);
    for (size_t p = 0; p < tile->pixels; p++) {
        ampk_vec y = ampk_vec_load(tile->in[0], p * tile->in_step[0] + i, t, left);
        ampk_vec g = before_activation(tile, &n, y, p, i, left, t, a);
        sum += g;
        product = ampk_vec_fma(g, y - n.mean, product);
    }
    raise_sum(tile, 0, i, left, sum);
    raise_sum(tile, 1, i, left, product);
    return largest;
}
KERNEL(gradient_sums)

/* The gradient at y, with g and y as above. */
COLUMN(gradient)
{
    const struct ampk_normalizer n = normalizer(job, tile, i, left);
    const struct ampk_gradient_factors f =
        ampk_gradient_factors_at(job->parameter, tile->first_channel + i, left);
    for (size_t p = 0; p < tile->pixels; p++) {
        ampk_vec y = ampk_vec_load(tile->in[0], p * tile->in_step[0] + i, t, left);
        ampk_vec g = before_activation(tile, &n, y, p, i, left, t, a);
        g = ampk_gradient_at(&f, n.mean, y, g);
        ampk_vec_store_amax(tile->out, p * tile->out_step + i, t, left, g, &largest);
    }
    return largest;
}
KERNEL(gradient)

/* out = g = in[1] * activation'(in[0]), and sum(g). */
COLUMN(bias_gradient)
{
    (void)job;
    ampk_vec sum = ampk_vec_set(0);
    for (size_t p = 0; p < tile->pixels; p++) {
        ampk_vec out = ampk_vec_load(tile->in[0], p * tile->in_step[0] + i, t, left);
        ampk_vec g = ampk_vec_load(tile->in[1], p * tile->in_step[1] + i, t, left);
        g = ampk_vec_activation_backward(g, out, a);
        sum += g;
        ampk_vec_store_amax(tile->out, p * tile->out_step + i, t, left, g, &largest);
    }
    raise_sum(tile, 0, i, left, sum);
    return largest;
}
KERNEL(bias_gradient)

/* ---- operations ---- */

/* Adds the pieces in order, in double, a block of channels at a time. */
void AMPK_CPU(add_partial)(const float *partial, size_t count, size_t n, float *sum)
{
    for (size_t i = 0; i < n; i += COLUMNS_AT_ONCE) {
        double total[COLUMNS_AT_ONCE] = {0};
        size_t width = ampk_less(n - i, COLUMNS_AT_ONCE);
        for (size_t j = 0; j < count; j++)
            for (size_t k = 0; k < width; k++)
                total[k] += partial[j * n + i + k];
        for (size_t k = 0; k < width; k++)
            sum[i + k] = (float)total[k];
    }
}

uint32_t AMPK_CPU(rows_store_sums)(const float *source, const struct ampk_region *y,
                                   const float *shift, float *sums, float *squares)
{
    struct ampk_job job = {.kernel = store_sums_tile,
                           .source = source,
                           .out = y->tensor,
                           .parameter = {shift},
                           .activation = AMPK_LINEAR,
                           .sums = {sums, squares}};
    return AMPK_CPU(run_region)(&job, y);
}

uint32_t AMPK_CPU(rows_store_bias)(const float *source, const struct ampk_region *y,
                                   const float *bias, enum ampk_activation activation)
{
    struct ampk_job job = {.kernel = store_bias_tile,
                           .source = source,
                           .out = y->tensor,
                           .parameter = {bias},
                           .activation = activation};
    return AMPK_CPU(run_region)(&job, y);
}

/* Work memory for `sums` partial sums per channel, and `extra` arrays of c floats before them. */
static float *job_memory(struct ampk_context *ctx, const struct ampk_tensor *shape, int sums,
                         int extra)
{
    size_t arrays = ampk_bn_pieces(shape) * shape->n * sums + extra;
    return ampk_memory(ctx, arrays * shape->c * sizeof(float));
}

/* Runs a job with sums; out: sums*c floats. */
static uint32_t run_sums(struct ampk_context *ctx, const struct ampk_job *job,
                         const struct ampk_tensor *shape, int sums, float *partial, float *out)
{
    uint32_t largest = AMPK_CPU(run_job)(job, shape, ctx->threads, sums, partial);
    AMPK_CPU(add_partial)(partial, ampk_bn_pieces(shape) * shape->n, (size_t)sums * shape->c, out);
    return largest;
}

/* The subtraction in `spread` is double, because it cancels. */
void AMPK_CPU(rows_finish_statistics)(float *partial, size_t count, size_t values, size_t c,
                                      const struct ampk_bn_statistics *s)
{
    float *sums = partial;
    AMPK_CPU(add_partial)(partial, count, 2 * c, sums);
    double n = (double)values;
    for (size_t i = 0; i < c; i++) {
        double sum = sums[i], spread = sums[c + i] - sum * sum / n;
        if (values < 2 || spread < 0) spread = 0;
        float unbiased = values < 2 ? 0 : (float)(spread / (n - 1));
        s->mean[i] = (float)(s->rolling_mean[i] + sum / n);
        s->variance[i] = s->rule == AMPK_BN_CUDNN ? (float)(spread / n) : unbiased;
        s->rolling_mean[i] = .99f * s->rolling_mean[i] + .01f * s->mean[i];
        s->rolling_variance[i] = .99f * s->rolling_variance[i] + .01f * unbiased;
    }
    ampk_watch_channels(s->rolling_mean, c, s->amax);
    ampk_watch_channels(s->rolling_variance, c, s->amax);
}

void AMPK_CPU(bn_statistics)(struct ampk_context *ctx, const struct ampk_tensor *y,
                             const struct ampk_bn_statistics *s)
{
    struct ampk_job job = {
        .kernel = sums_tile, .in = {y}, .parameter = {s->rolling_mean}, .activation = AMPK_LINEAR};
    size_t pieces = ampk_bn_pieces(y) * y->n, values = (size_t)y->n * y->h * y->w;
    float *partial = job_memory(ctx, y, 2, 0);
    AMPK_CPU(run_job)(&job, y, ctx->threads, 2, partial);
    AMPK_CPU(rows_finish_statistics)(partial, pieces, values, (size_t)y->c, s);
}

void AMPK_CPU(bn_act_forward)(struct ampk_context *ctx, const struct ampk_tensor *y,
                              const struct ampk_batchnorm *bn, enum ampk_activation activation,
                              const struct ampk_tensor *add, const struct ampk_tensor *out,
                              uint32_t *y_amax, uint32_t *amax)
{
    struct ampk_job job = {.kernel = add ? normalize_add_tile : normalize_tile,
                           .in = {y, add},
                           .out = out,
                           .activation = activation};
    ampk_set_normalizer(job.parameter, bn, (size_t)y->c, job_memory(ctx, y, 0, 1));
    ampk_amax_raise(amax, AMPK_CPU(run_job)(&job, y, ctx->threads, 0, NULL));
    if (y_amax) AMPK_CPU(watch_stored)(ctx, y, y_amax);
}

/* Two passes: dy depends on the sums over all pixels. */
void AMPK_CPU(bn_act_backward)(struct ampk_context *ctx, const struct ampk_tensor *y,
                               const struct ampk_tensor *out, const struct ampk_batchnorm *bn,
                               enum ampk_activation activation, const struct ampk_tensor *d,
                               const struct ampk_tensor *dy, float *dscale, float *dbias,
                               uint32_t *dy_amax, uint32_t *db_amax)
{
    if (ampk_recomputes_input(activation)) out = NULL;
    struct ampk_job job = {
        .kernel = gradient_sums_tile, .in = {y, out, d}, .activation = activation};
    size_t c = (size_t)y->c;
    float *sums = job_memory(ctx, y, 2, AMPK_BN_ARRAYS);
    float *factor = sums + 2 * c, *of_g = factor + c, *partial = of_g + 3 * c;
    ampk_set_normalizer(job.parameter, bn, c, factor);
    run_sums(ctx, &job, y, 2, partial, sums);
    double count = (double)y->n * y->h * y->w;
    ampk_set_gradient(job.parameter, bn, c, count, sums, of_g, dscale, dbias, db_amax);
    job.kernel = gradient_tile;
    job.out = dy;
    ampk_amax_raise(dy_amax, AMPK_CPU(run_job)(&job, y, ctx->threads, 0, NULL));
}

void AMPK_CPU(bias_act_backward)(struct ampk_context *ctx, const struct ampk_tensor *out,
                                 enum ampk_activation activation, const struct ampk_tensor *d,
                                 const struct ampk_tensor *dy, float *dbias, uint32_t *dy_amax,
                                 uint32_t *db_amax)
{
    struct ampk_job job = {
        .kernel = bias_gradient_tile, .in = {out, d}, .out = dy, .activation = activation};
    float *partial = job_memory(ctx, out, 1, 0);
    ampk_amax_raise(dy_amax, run_sums(ctx, &job, out, 1, partial, dbias));
    ampk_watch_channels(dbias, (size_t)out->c, db_amax);
}
