/* Reference: batch-norm and the gradient of bias and activation, formula by formula as in
 * Darknet's blas.c and batchnorm_layer.c for the CPU. blas_kernels.cu and cuDNN differ as
 * kernels.h says (enum ampk_bn_rule).
 *
 * The fused operations call the separate ones: that is what they must equal. */
#include "activation.h"
#include "operations.h"
#include "tensor.h"

struct channel_sums {
    double sum, squares;
};

/* Sums of y - shift and of its square over a channel. */
static struct channel_sums sum_channel(const struct ampk_tensor *y, int c, double shift)
{
    struct channel_sums s = {0, 0};
    for (int n = 0; n < y->n; n++)
        for (int h = 0; h < y->h; h++)
            for (int w = 0; w < y->w; w++) {
                double v = ampk_ref_get(y, n, c, h, w) - shift;
                s.sum += v;
                s.squares += v * v;
            }
    return s;
}

/* Raises amax to the largest |v| of c values. */
static void watch(const float *v, int c, uint32_t *amax)
{
    for (int i = 0; i < c; i++)
        ampk_ref_raise(amax, v[i]);
}

/* The factors are the FP32 constants of Darknet. */
static float roll(float rolling, double batch)
{
    return (float)((double).99f * rolling + (double).01f * batch);
}

/* Sums about the rolling mean of before, as kernels.h says; in double the shift would not matter.
 */
void ampk_ref_bn_statistics(struct ampk_context *context, const struct ampk_tensor *y,
                            const struct ampk_bn_statistics *s)
{
    (void)context;
    double count = (double)y->n * y->h * y->w;
    for (int c = 0; c < y->c; c++) {
        double shift = s->rolling_mean[c];
        struct channel_sums of = sum_channel(y, c, shift);
        double spread = of.squares - of.sum * of.sum / count;
        /* rounded sums could make it negative; one value has no variance */
        if (count < 2 || spread < 0) spread = 0;
        double unbiased = count < 2 ? 0 : spread / (count - 1);
        s->mean[c] = (float)(shift + of.sum / count);
        s->variance[c] = (float)(s->rule == AMPK_BN_CUDNN ? spread / count : unbiased);
        s->rolling_mean[c] = roll(s->rolling_mean[c], s->mean[c]);
        s->rolling_variance[c] = roll(s->rolling_variance[c], unbiased);
    }
    watch(s->rolling_mean, y->c, s->amax);
    watch(s->rolling_variance, y->c, s->amax);
}

/* Index, in an NCHW array, of value i of the n*h*w values of channel c. */
static size_t place_in_channel(const struct ampk_tensor *t, int c, size_t i)
{
    size_t area = (size_t)t->h * t->w;
    return (i / area * t->c + c) * area + i % area;
}

/* The divisor of forward, by rule. */
static double deviation(const struct ampk_batchnorm *bn, int c)
{
    double variance = bn->variance[c];
    return bn->rule == AMPK_BN_DARKNET_CPU ? sqrt(variance) + 1e-6 : sqrt(variance + 1e-5);
}

/* Batch-norm's output as dense NCHW; the caller frees. */
static double *find_output(const struct ampk_tensor *y, const struct ampk_batchnorm *bn)
{
    double *a = ampk_ref_load(y);
    size_t area = (size_t)y->h * y->w;
    for (size_t i = 0; i < ampk_ref_count(y); i++) {
        int c = (int)(i / area % y->c);
        a[i] = bn->scale[c] * (a[i] - bn->mean[c]) / deviation(bn, c) + bn->bias[c];
    }
    return a;
}

/* An inf in FP16 counts as 65520 (kernels.h, amax). */
static void watch_stored(const struct ampk_tensor *y, uint32_t *amax)
{
    double *values = ampk_ref_load(y);
    for (size_t i = 0; i < ampk_ref_count(y); i++)
        ampk_ref_raise(amax, y->dtype == AMPK_FP16 && isinf(values[i]) ? 65520 : values[i]);
    free(values);
}

void ampk_ref_bn_act_forward(struct ampk_context *context, const struct ampk_tensor *y,
                             const struct ampk_batchnorm *bn, enum ampk_activation activation,
                             const struct ampk_tensor *add, const struct ampk_tensor *out,
                             uint32_t *y_amax, uint32_t *amax)
{
    (void)context;
    watch_stored(y, y_amax);
    double *a = find_output(y, bn), *b = add ? ampk_ref_load(add) : NULL;
    for (size_t i = 0; i < ampk_ref_count(y); i++)
        a[i] = ampk_ref_activate(a[i], activation) + (b ? b[i] : 0);
    ampk_ref_store(out, a, false, amax);
    free(a);
    free(b);
}

/* d * activation'(at) as dense NCHW; the caller frees. Frees at. */
static double *pass_activation(double *at, enum ampk_activation activation,
                               const struct ampk_tensor *d)
{
    double *g = ampk_ref_load(d);
    for (size_t i = 0; i < ampk_ref_count(d); i++)
        g[i] *= ampk_ref_gradient(at[i], activation);
    free(at);
    return g;
}

/* Sums of one channel's g, the gradient at batch-norm's output. */
struct gradient_sums {
    double g, product; /* g * (y - mean) */
};

static struct gradient_sums sum_gradient(const struct ampk_tensor *t,
                                         const struct ampk_batchnorm *bn, int c, const double *y,
                                         const double *g)
{
    struct gradient_sums s = {0, 0};
    for (size_t i = 0; i < (size_t)t->n * t->h * t->w; i++) {
        size_t j = place_in_channel(t, c, i);
        s.g += g[j];
        s.product += g[j] * (y[j] - bn->mean[c]);
    }
    return s;
}

/* Turns channel c of g from the gradient at batch-norm's output into that at its input y. Backward
 * uses variance + 1e-5 under every rule, as Darknet does; only dscale follows the rule. */
static void pass_channel(const struct ampk_tensor *t, const struct ampk_batchnorm *bn, int c,
                         const double *y, double *g, struct gradient_sums sums, float *dscale,
                         float *dbias)
{
    size_t count = (size_t)t->n * t->h * t->w;
    double spread = bn->variance[c] + 1e-5;
    double to_mean = -sums.g * bn->scale[c] / sqrt(spread);
    double to_variance = -.5 * sums.product * bn->scale[c] * pow(spread, -1.5);
    for (size_t i = 0; i < count; i++) {
        size_t j = place_in_channel(t, c, i);
        g[j] = g[j] * bn->scale[c] / sqrt(spread) + to_variance * 2 * (y[j] - bn->mean[c]) / count +
               to_mean / count;
    }
    dscale[c] = (float)(sums.product / deviation(bn, c));
    dbias[c] = (float)sums.g;
}

/* Of all channels, as the caller's other processes have them too; the caller frees. */
static float *share_sums(const struct ampk_tensor *t, const struct ampk_batchnorm *bn,
                         const double *y, const double *g)
{
    size_t c = (size_t)t->c;
    float *sums = malloc(2 * c * sizeof *sums);
    if (!sums) abort();
    for (size_t i = 0; i < c; i++) {
        struct gradient_sums own = sum_gradient(t, bn, (int)i, y, g);
        sums[i] = (float)own.g;
        sums[c + i] = (float)own.product;
    }
    bn->peers->mean(bn->peers->user, sums, 2 * c);
    return sums;
}

/* The rest of backward, after the activation. */
static void pass_batchnorm(const struct ampk_tensor *y, const struct ampk_batchnorm *bn, double *g,
                           const struct ampk_tensor *dy, float *dscale, float *dbias,
                           uint32_t *dy_amax, uint32_t *db_amax)
{
    double *values = ampk_ref_load(y);
    float *shared = bn->peers ? share_sums(y, bn, values, g) : NULL;
    for (int c = 0; c < y->c; c++) {
        struct gradient_sums own = shared ? (struct gradient_sums){shared[c], shared[y->c + c]}
                                          : sum_gradient(y, bn, c, values, g);
        pass_channel(y, bn, c, values, g, own, dscale, dbias);
    }
    ampk_ref_store(dy, g, false, dy_amax);
    watch(dscale, y->c, db_amax);
    watch(dbias, y->c, db_amax);
    free(values);
    free(shared);
}

void ampk_ref_bn_act_backward(struct ampk_context *context, const struct ampk_tensor *y,
                              const struct ampk_tensor *out, const struct ampk_batchnorm *bn,
                              enum ampk_activation activation, const struct ampk_tensor *d,
                              const struct ampk_tensor *dy, float *dscale, float *dbias,
                              uint32_t *dy_amax, uint32_t *db_amax)
{
    (void)context;
    /* Where backends compute the activation's input again, out is read if it is given, as that
     * input, so that a test can hand over what another backend's rounding led to. */
    double *g = pass_activation(out ? ampk_ref_load(out) : find_output(y, bn), activation, d);
    pass_batchnorm(y, bn, g, dy, dscale, dbias, dy_amax, db_amax);
    free(g);
}

/* Makes a dense tensor of this shape and dtype, all 0; the caller frees its data. */
static struct ampk_tensor make_like(const struct ampk_tensor *shape)
{
    struct ampk_tensor t = *shape;
    t.image_stride = (size_t)t.c * t.h * t.w;
    t.data = ampk_ref_zeros(ampk_ref_count(&t));
    return t;
}

/* The values in between are stored in y's dtype: the maximum is taken of rounded values. */
void ampk_ref_bn_act_pool_forward(struct ampk_context *context, const struct ampk_tensor *y,
                                  const struct ampk_batchnorm *bn, enum ampk_activation activation,
                                  const struct ampk_tensor *out, void *argmax, uint32_t *y_amax,
                                  uint32_t *amax)
{
    struct ampk_tensor activated = make_like(y);
    ampk_ref_bn_act_forward(context, y, bn, activation, NULL, &activated, y_amax, amax);
    ampk_ref_maxpool_forward(context, &activated, 2, 2, 0, out, argmax);
    free(activated.data);
}

void ampk_ref_bn_act_pool_backward(struct ampk_context *context, const struct ampk_tensor *y,
                                   const struct ampk_batchnorm *bn, enum ampk_activation activation,
                                   const struct ampk_tensor *d, const void *argmax,
                                   const struct ampk_tensor *dy, float *dscale, float *dbias,
                                   uint32_t *dy_amax, uint32_t *db_amax)
{
    struct ampk_tensor at_maxima = make_like(y);
    ampk_ref_maxpool_backward(context, d, argmax, 2, 2, 0, &at_maxima, false, NULL);
    ampk_ref_bn_act_backward(context, y, NULL, bn, activation, &at_maxima, dy, dscale, dbias,
                             dy_amax, db_amax);
    free(at_maxima.data);
}

/* dbias sums the gradient before it is rounded. */
void ampk_ref_bias_act_backward(struct ampk_context *context, const struct ampk_tensor *out,
                                enum ampk_activation activation, const struct ampk_tensor *d,
                                const struct ampk_tensor *dy, float *dbias, uint32_t *dy_amax,
                                uint32_t *db_amax)
{
    (void)context;
    double *g = pass_activation(ampk_ref_load(out), activation, d);
    size_t count = (size_t)d->n * d->h * d->w;
    for (int c = 0; c < d->c; c++) {
        double sum = 0;
        for (size_t i = 0; i < count; i++)
            sum += g[place_in_channel(d, c, i)];
        dbias[c] = (float)sum;
    }
    ampk_ref_store(dy, g, false, dy_amax);
    watch(dbias, d->c, db_amax);
    free(g);
}
