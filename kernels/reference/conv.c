/* Reference: convolution by its definition. One loop nest (for_each_product) serves the forward
 * pass and both gradients: all three sum the same products and differ only in which factor is the
 * result. Operands are rounded to the compute type; sums are double. */
#include "activation.h"
#include "operations.h"
#include "tensor.h"

#include "kernels/conv_shape.h"

struct ampk_conv {
    struct ampk_conv_shape shape;
    int out_h, out_w;
    struct ampk_ref_format operand;
    double *weights; /* rounded to the compute type, [k][c/groups][kh][kw] */
    float *gradient; /* FP32, in the same order */
};

struct ampk_conv *ampk_ref_conv_create(struct ampk_context *context,
                                       const struct ampk_conv_shape *s, char *err, size_t err_size)
{
    (void)context;
    const char *fault = ampk_conv_shape_fault(s);
    if (fault) {
        snprintf(err, err_size,
                 "convolution of %dx%dx%dx%d by %d filters of %dx%d, stride %d, pad %d, groups %d: "
                 "%s",
                 s->n, s->c, s->h, s->w, s->k, s->kh, s->kw, s->stride, s->pad, s->groups, fault);
        return NULL;
    }
    struct ampk_conv *conv = calloc(1, sizeof *conv);
    if (!conv) {
        snprintf(err, err_size, "convolution: " AMPK_NO_MEMORY);
        return NULL;
    }
    conv->shape = *s;
    conv->out_h = ampk_conv_out(s, s->h, s->kh);
    conv->out_w = ampk_conv_out(s, s->w, s->kw);
    conv->operand = ampk_ref_compute_format(s->compute);
    conv->weights = ampk_ref_zeros(ampk_conv_weight_count(s));
    conv->gradient = calloc(ampk_conv_weight_count(s), sizeof *conv->gradient);
    if (conv->gradient) return conv;
    snprintf(err, err_size, "convolution: " AMPK_NO_MEMORY);
    ampk_ref_conv_destroy(context, conv);
    return NULL;
}

void ampk_ref_conv_destroy(struct ampk_context *context, struct ampk_conv *conv)
{
    (void)context;
    if (!conv) return;
    free(conv->weights);
    free(conv->gradient);
    free(conv);
}

/* amax is that of the masters, before they are rounded. */
void ampk_ref_conv_set_weights(struct ampk_context *context, const struct ampk_new_weights *list,
                               int count)
{
    (void)context;
    for (const struct ampk_new_weights *w = list; w < list + count; w++)
        for (size_t i = 0; i < ampk_conv_weight_count(&w->conv->shape); i++) {
            ampk_ref_raise(w->amax, w->weights[i]);
            w->conv->weights[i] = ampk_ref_round(w->weights[i], w->conv->operand);
        }
}

/* The arrays of a pass in NCHW order. The pass decides which one is written. */
struct operands {
    double *x, *weights, *y;
};

enum pass { FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT };

static void add_product(enum pass pass, double *x, double *weight, double *y)
{
    if (pass == FORWARD)
        *y += *x * *weight;
    else if (pass == DATA_GRADIENT)
        *x += *y * *weight;
    else
        *weight += *x * *y;
}

/* All products that belong to output (n, k, row, column). Outside of the image x is 0: those
 * products are skipped. */
static void add_products_of_output(const struct ampk_conv *conv, enum pass pass, struct operands a,
                                   int n, int k, int row, int column)
{
    const struct ampk_conv_shape *s = &conv->shape;
    int channels = s->c / s->groups, first = k / (s->k / s->groups) * channels;
    double *y = &a.y[(((size_t)n * s->k + k) * conv->out_h + row) * conv->out_w + column];
    for (int c = 0; c < channels; c++)
        for (int i = 0; i < s->kh; i++)
            for (int j = 0; j < s->kw; j++) {
                int h = row * s->stride - s->pad + i, w = column * s->stride - s->pad + j;
                if (h < 0 || h >= s->h || w < 0 || w >= s->w) continue;
                double *x = &a.x[(((size_t)n * s->c + first + c) * s->h + h) * s->w + w];
                double *weight = &a.weights[(((size_t)k * channels + c) * s->kh + i) * s->kw + j];
                add_product(pass, x, weight, y);
            }
}

static void for_each_product(const struct ampk_conv *conv, enum pass pass, struct operands a)
{
    for (int n = 0; n < conv->shape.n; n++)
        for (int k = 0; k < conv->shape.k; k++)
            for (int row = 0; row < conv->out_h; row++)
                for (int column = 0; column < conv->out_w; column++)
                    add_products_of_output(conv, pass, a, n, k, row, column);
}

/* The tensor with the values that the multiplier reads. */
static double *load_operand(const struct ampk_conv *conv, const struct ampk_tensor *t)
{
    double *a = ampk_ref_load(t);
    for (size_t i = 0; i < ampk_ref_count(t); i++)
        a[i] = ampk_ref_round(a[i], conv->operand);
    return a;
}

/* The sums of a pass from one tensor to the other, dense NCHW; the caller frees. from: as
 * load_operand leaves it. */
static double *convolve(const struct ampk_conv *conv, enum pass pass, double *from,
                        const struct ampk_tensor *to)
{
    struct operands a = {.weights = conv->weights};
    double *sums = ampk_ref_zeros(ampk_ref_count(to));
    a.x = pass == FORWARD ? from : sums;
    a.y = pass == FORWARD ? sums : from;
    for_each_product(conv, pass, a);
    return sums;
}

static double *find_output(const struct ampk_conv *conv, const struct ampk_tensor *x,
                           const struct ampk_tensor *y)
{
    double *from = load_operand(conv, x);
    double *result = convolve(conv, conv->shape.transposed ? DATA_GRADIENT : FORWARD, from, y);
    free(from);
    return result;
}

void ampk_ref_conv_forward(struct ampk_context *context, struct ampk_conv *conv,
                           const struct ampk_tensor *x, const struct ampk_tensor *y,
                           const struct ampk_bn_statistics *statistics, uint32_t *amax)
{
    double *result = find_output(conv, x, y);
    ampk_ref_store(y, result, false, amax);
    free(result);
    if (statistics) ampk_ref_bn_statistics(context, y, statistics);
}

void ampk_ref_conv_bias_forward(struct ampk_context *context, struct ampk_conv *conv,
                                const struct ampk_tensor *x, const float *bias,
                                enum ampk_activation activation, const struct ampk_tensor *y,
                                uint32_t *amax)
{
    (void)context;
    double *result = find_output(conv, x, y);
    size_t area = (size_t)y->h * y->w;
    for (size_t i = 0; i < ampk_ref_count(y); i++)
        result[i] = ampk_ref_activate(result[i] + bias[i / area % y->c], activation);
    ampk_ref_store(y, result, false, amax);
    free(result);
}

/* The data gradient, dense NCHW; the caller frees. */
static double *find_data_gradient(const struct ampk_conv *conv, double *dy,
                                  const struct ampk_tensor *dx)
{
    return convolve(conv, conv->shape.transposed ? FORWARD : DATA_GRADIENT, dy, dx);
}

/* Rounded to FP32 once, when it is kept. */
static void find_weight_gradient(struct ampk_conv *conv, const struct ampk_tensor *x, double *dy)
{
    size_t count = ampk_conv_weight_count(&conv->shape);
    double *of_x = load_operand(conv, x);
    bool swapped = conv->shape.transposed;
    struct operands a = {swapped ? dy : of_x, ampk_ref_zeros(count), swapped ? of_x : dy};
    for_each_product(conv, WEIGHT_GRADIENT, a);
    for (size_t i = 0; i < count; i++)
        conv->gradient[i] = (float)a.weights[i];
    free(of_x);
    free(a.weights);
}

void ampk_ref_conv_backward(struct ampk_context *context, struct ampk_conv *conv,
                            const struct ampk_tensor *x, const struct ampk_tensor *dy,
                            const struct ampk_tensor *dx, bool accumulate, uint32_t *dx_amax)
{
    (void)context;
    double *rounded = load_operand(conv, dy);
    if (dx) {
        double *result = find_data_gradient(conv, rounded, dx);
        ampk_ref_store(dx, result, accumulate, dx_amax);
        free(result);
    }
    if (x) find_weight_gradient(conv, x, rounded);
    free(rounded);
}

/* Always: tests compare the fused way with the others. */
bool ampk_ref_conv_takes_gradient(struct ampk_context *context, struct ampk_conv *conv,
                                  const struct ampk_tensor *x, const struct ampk_layer_gradient *g)
{
    (void)context, (void)x, (void)g;
    return !conv->shape.transposed;
}

/* Makes a dy in y's type with the separate operation, because the contract rounds dy to that type.
 */
void ampk_ref_conv_bn_backward(struct ampk_context *context, struct ampk_conv *conv,
                               const struct ampk_tensor *x, const struct ampk_layer_gradient *g,
                               float *dscale, float *dbias, uint32_t *dy_amax, uint32_t *db_amax)
{
    struct ampk_tensor dy = *g->y;
    dy.data = malloc((size_t)dy.n * dy.image_stride * ampk_dtype_bytes(dy.dtype));
    if (!dy.data) abort();
    if (g->argmax)
        ampk_ref_bn_act_pool_backward(context, g->y, g->bn, g->activation, g->d, g->argmax, &dy,
                                      dscale, dbias, dy_amax, db_amax);
    else
        ampk_ref_bn_act_backward(context, g->y, NULL, g->bn, g->activation, g->d, &dy, dscale,
                                 dbias, dy_amax, db_amax);
    ampk_ref_conv_backward(context, conv, x, &dy, NULL, false, NULL);
    free(dy.data);
}

void ampk_ref_conv_weight_gradients(struct ampk_context *context,
                                    const struct ampk_weight_gradient *list, int count,
                                    float factor, bool accumulate)
{
    (void)context;
    for (const struct ampk_weight_gradient *g = list; g < list + count; g++)
        for (size_t i = 0; i < ampk_conv_weight_count(&g->conv->shape); i++) {
            double value = g->conv->gradient[i];
            ampk_ref_raise(g->amax, value);
            if (g->dst) g->dst[i] = (float)(factor * value + (accumulate ? g->dst[i] : 0));
        }
}
