#include "poison.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct poison poison;

static struct ampk_backend poisoned;
static const struct ampk_backend *real;
static const struct ampk_conv *spoilt;

static bool strikes(const uint32_t *word)
{
    if (word && poison.watched && word >= poison.words && word < poison.words + poison.n_words)
        poison.watched[word - poison.words] = true;
    if (!word || word != poison.word || poison.struck >= poison.most) return false;
    if (poison.scale && !(*poison.scale > poison.above)) return false;
    poison.struck++;
    return true;
}

static float value(void)
{
    static const float values[] = {INFINITY, NAN, 1e5f, 0};
    return values[poison.kind];
}

static void raise_word(uint32_t *word, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    bits &= 0x7fffffff;
    if (bits > *word) *word = bits;
}

#define VANISHED 1e-9f /* which FP16 stores as 0 */

/* Where c elements of the image in the middle start: pixel i, or in NCHW as many of its planes'. */
static size_t pixel_of_middle(const struct ampk_tensor *t, size_t i)
{
    return (size_t)t->n / 2 * t->image_stride + i * (size_t)ampk_pitch(t);
}

/* All of the image in the middle. */
static void vanish(const struct ampk_tensor *t, uint32_t *word)
{
    size_t bytes = ampk_dtype_bytes(t->dtype), pixels = (size_t)t->h * (size_t)t->w;
    for (size_t i = 0; i < pixels; i++)
        memset((char *)t->data + pixel_of_middle(t, i) * bytes, 0, (size_t)t->c * bytes);
    *word = 0;
    raise_word(word, VANISHED);
}

/* The element in the middle of what was just stored; the image there where it vanishes. */
static void hit(const struct ampk_tensor *t, uint32_t *word)
{
    if (poison.kind == POISON_UNDERFLOW) {
        vanish(t, word);
        return;
    }
    float v = value();
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    size_t i = pixel_of_middle(t, (size_t)t->h * (size_t)t->w / 2) + (size_t)t->c / 2;
    uint16_t half = poison.kind == POISON_NAN ? 0x7e00 : 0x7c00;
    if (t->dtype == AMPK_FP32) ((float *)t->data)[i] = v;
    if (t->dtype == AMPK_FP16) ((uint16_t *)t->data)[i] = half;
    if (t->dtype == AMPK_BF16) ((uint16_t *)t->data)[i] = (uint16_t)(bits >> 16);
    raise_word(word, v);
}

static void strike(const struct ampk_tensor *t, uint32_t *word)
{
    if (strikes(word)) hit(t, word);
}

/* The same of an array of n. */
static void strike_array(float *x, int n, uint32_t *word)
{
    if (!strikes(word)) return;
    x[n / 2] = value();
    raise_word(word, x[n / 2]);
}

static void convert(struct ampk_context *c, const struct ampk_tensor *src,
                    const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    real->convert(c, src, dst, accumulate, amax);
    strike(dst, amax);
}

/* The master weight itself is spoilt: what a diverged update leaves. */
static void conv_set_weights(struct ampk_context *c, const struct ampk_new_weights *list, int count)
{
    for (int i = 0; i < count; i++)
        if (strikes(list[i].amax)) *(float *)(uintptr_t)list[i].weights = value();
    real->conv_set_weights(c, list, count);
}

static void conv_forward(struct ampk_context *c, struct ampk_conv *conv,
                         const struct ampk_tensor *x, const struct ampk_tensor *y,
                         const struct ampk_bn_statistics *statistics, uint32_t *amax)
{
    bool struck = strikes(amax);
    real->conv_forward(c, conv, x, y, struck ? NULL : statistics, amax);
    if (struck) hit(y, amax);
    if (!statistics) return;
    if (struck) real->bn_statistics(c, y, statistics);
    strike_array(statistics->rolling_mean, y->c, statistics->amax);
}

static void conv_bias_forward(struct ampk_context *c, struct ampk_conv *conv,
                              const struct ampk_tensor *x, const float *bias,
                              enum ampk_activation activation, const struct ampk_tensor *y,
                              uint32_t *amax)
{
    real->conv_bias_forward(c, conv, x, bias, activation, y, amax);
    strike(y, amax);
}

static void conv_backward(struct ampk_context *c, struct ampk_conv *conv,
                          const struct ampk_tensor *x, const struct ampk_tensor *dy,
                          const struct ampk_tensor *dx, bool accumulate, uint32_t *dx_amax)
{
    real->conv_backward(c, conv, x, dy, dx, accumulate, dx_amax);
    if (dx) strike(dx, dx_amax);
    if (spoilt == conv) spoilt = NULL;
}

/* A convolution's own gradient is out of reach: it counts as spoilt from when it is watched to its
 * next backward, and so is what takes it. */
static void spoil_gradients(const struct ampk_weight_gradient *list, int count, float factor)
{
    for (const struct ampk_weight_gradient *g = list; g < list + count; g++) {
        if (strikes(g->amax)) {
            spoilt = g->conv;
            raise_word(g->amax, value());
        }
        if (g->conv == spoilt && g->dst) *g->dst += factor * value();
    }
}

static void conv_weight_gradients(struct ampk_context *c, const struct ampk_weight_gradient *list,
                                  int count, float factor, bool accumulate)
{
    real->conv_weight_gradients(c, list, count, factor, accumulate);
    spoil_gradients(list, count, factor);
}

static void conv_gradient_squares(struct ampk_context *c, const struct ampk_weight_gradient *list,
                                  int count, const struct ampk_gradient_squares *squares)
{
    real->conv_gradient_squares(c, list, count, squares);
    spoil_gradients(list, count, 1);
}

static void bn_act_forward(struct ampk_context *c, const struct ampk_tensor *y,
                           const struct ampk_batchnorm *bn, enum ampk_activation activation,
                           const struct ampk_tensor *add, const struct ampk_tensor *out,
                           uint32_t *y_amax, uint32_t *amax)
{
    strike(y, y_amax);
    real->bn_act_forward(c, y, bn, activation, add, out, y_amax, amax);
    strike(out, amax);
}

static void bn_act_backward(struct ampk_context *c, const struct ampk_tensor *y,
                            const struct ampk_tensor *out, const struct ampk_batchnorm *bn,
                            enum ampk_activation activation, const struct ampk_tensor *d,
                            const struct ampk_tensor *dy, float *dscale, float *dbias,
                            uint32_t *dy_amax, uint32_t *db_amax)
{
    real->bn_act_backward(c, y, out, bn, activation, d, dy, dscale, dbias, dy_amax, db_amax);
    strike(dy, dy_amax);
    strike_array(dbias, y->c, db_amax);
}

static void bn_act_pool_forward(struct ampk_context *c, const struct ampk_tensor *y,
                                const struct ampk_batchnorm *bn, enum ampk_activation activation,
                                const struct ampk_tensor *out, void *argmax, uint32_t *y_amax,
                                uint32_t *amax)
{
    strike(y, y_amax);
    real->bn_act_pool_forward(c, y, bn, activation, out, argmax, y_amax, amax);
    strike(out, amax);
}

static void bn_act_pool_backward(struct ampk_context *c, const struct ampk_tensor *y,
                                 const struct ampk_batchnorm *bn, enum ampk_activation activation,
                                 const struct ampk_tensor *d, const void *argmax,
                                 const struct ampk_tensor *dy, float *dscale, float *dbias,
                                 uint32_t *dy_amax, uint32_t *db_amax)
{
    real->bn_act_pool_backward(c, y, bn, activation, d, argmax, dy, dscale, dbias, dy_amax,
                               db_amax);
    strike(dy, dy_amax);
    strike_array(dbias, y->c, db_amax);
}

/* In two, so that there is a dy to be struck. */
static void conv_bn_backward(struct ampk_context *c, struct ampk_conv *conv,
                             const struct ampk_tensor *x, const struct ampk_layer_gradient *g,
                             float *dscale, float *dbias, uint32_t *dy_amax, uint32_t *db_amax)
{
    struct ampk_tensor dy = *g->y;
    dy.data = malloc((size_t)dy.n * dy.image_stride * ampk_dtype_bytes(dy.dtype));
    if (!dy.data) abort();
    if (g->argmax)
        bn_act_pool_backward(c, g->y, g->bn, g->activation, g->d, g->argmax, &dy, dscale, dbias,
                             dy_amax, db_amax);
    else
        bn_act_backward(c, g->y, NULL, g->bn, g->activation, g->d, &dy, dscale, dbias, dy_amax,
                        db_amax);
    real->conv_backward(c, conv, x, &dy, NULL, false, NULL);
    free(dy.data);
}

static void bias_act_backward(struct ampk_context *c, const struct ampk_tensor *out,
                              enum ampk_activation activation, const struct ampk_tensor *d,
                              const struct ampk_tensor *dy, float *dbias, uint32_t *dy_amax,
                              uint32_t *db_amax)
{
    real->bias_act_backward(c, out, activation, d, dy, dbias, dy_amax, db_amax);
    strike(dy, dy_amax);
    strike_array(dbias, d->c, db_amax);
}

static void maxpool_backward(struct ampk_context *c, const struct ampk_tensor *dy,
                             const void *argmax, int size, int stride, int pad,
                             const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    real->maxpool_backward(c, dy, argmax, size, stride, pad, dx, accumulate, amax);
    strike(dx, amax);
}

static void upsample(struct ampk_context *c, const struct ampk_tensor *x, int stride, float scale,
                     bool reverse, const struct ampk_tensor *y, bool accumulate, uint32_t *amax)
{
    real->upsample(c, x, stride, scale, reverse, y, accumulate, amax);
    strike(y, amax);
}

static void shortcut_forward(struct ampk_context *c, const struct ampk_tensor *x,
                             const struct ampk_tensor *add, float alpha, float beta,
                             enum ampk_activation activation, const struct ampk_tensor *out,
                             uint32_t *amax)
{
    real->shortcut_forward(c, x, add, alpha, beta, activation, out, amax);
    strike(out, amax);
}

static void shortcut_backward(struct ampk_context *c, const struct ampk_tensor *out,
                              const struct ampk_tensor *d, float alpha, float beta,
                              enum ampk_activation activation, const struct ampk_tensor *dx,
                              bool dx_accumulate, const struct ampk_tensor *dadd,
                              bool dadd_accumulate, uint32_t *dx_amax, uint32_t *dadd_amax)
{
    real->shortcut_backward(c, out, d, alpha, beta, activation, dx, dx_accumulate, dadd,
                            dadd_accumulate, dx_amax, dadd_amax);
    if (dx) strike(dx, dx_amax);
    if (dadd) strike(dadd, dadd_amax);
}

static void reorg(struct ampk_context *c, const struct ampk_tensor *src, int w, int h, int channels,
                  int stride, int forward, const struct ampk_tensor *dst, bool accumulate,
                  uint32_t *amax)
{
    real->reorg(c, src, w, h, channels, stride, forward, dst, accumulate, amax);
    strike(dst, amax);
}

static void flatten(struct ampk_context *c, const struct ampk_tensor *src, int size, int layers,
                    int forward, const struct ampk_tensor *dst, bool accumulate, uint32_t *amax)
{
    real->flatten(c, src, size, layers, forward, dst, accumulate, amax);
    strike(dst, amax);
}

static void fold(struct ampk_context *c, const struct ampk_tensor *dy, int size, int stride,
                 int pad, const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    real->fold(c, dy, size, stride, pad, dx, accumulate, amax);
    strike(dx, amax);
}

static void avgpool_forward(struct ampk_context *c, const struct ampk_tensor *x,
                            const struct ampk_tensor *y, uint32_t *amax)
{
    real->avgpool_forward(c, x, y, amax);
    strike(y, amax);
}

static void avgpool_backward(struct ampk_context *c, const struct ampk_tensor *dy,
                             const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    real->avgpool_backward(c, dy, dx, accumulate, amax);
    strike(dx, amax);
}

static void dropout(struct ampk_context *c, const struct ampk_tensor *x, const uint8_t *keep,
                    float scale, const struct ampk_tensor *y, bool accumulate, uint32_t *amax)
{
    real->dropout(c, x, keep, scale, y, accumulate, amax);
    strike(y, amax);
}

static void activation_forward(struct ampk_context *c, const struct ampk_tensor *x,
                               enum ampk_activation activation, const struct ampk_tensor *y,
                               uint32_t *amax)
{
    real->activation_forward(c, x, activation, y, amax);
    strike(y, amax);
}

static void activation_backward(struct ampk_context *c, const struct ampk_tensor *out,
                                enum ampk_activation activation, const struct ampk_tensor *d,
                                const struct ampk_tensor *dx, bool accumulate, uint32_t *amax)
{
    real->activation_backward(c, out, activation, d, dx, accumulate, amax);
    strike(dx, amax);
}

/* Arrays that another operation or Darknet wrote: they are spoilt just before they are looked at.
 */
static void flat_amax(struct ampk_context *c, const float *x, size_t n, uint32_t *amax)
{
    bool here = strikes(amax);
    if (here && poison.kind == POISON_UNDERFLOW) memset((float *)(uintptr_t)x, 0, n * sizeof *x);
    if (here) ((float *)(uintptr_t)x)[n / 2] = value();
    real->amax(c, x, n, amax);
}

/* ---- losses: FP32 NCHW ---- */

static void strike_floats(float *x, size_t n, uint32_t *word)
{
    struct ampk_tensor t = {x, AMPK_FP32, AMPK_NCHW, 1, (int)n, 1, 1, n, 0};
    strike(&t, word);
}

static size_t count_of(const struct ampk_tensor *t)
{
    return (size_t)t->n * (size_t)(t->c * t->h * t->w);
}

static void yolo_forward(struct ampk_context *c, const struct ampk_yolo_head *o,
                         const struct ampk_tensor *x, const struct ampk_tensor *out, uint32_t *amax)
{
    real->yolo_forward(c, o, x, out, amax);
    strike(out, amax);
}

static void yolo_loss(struct ampk_context *c, const struct ampk_yolo_head *o,
                      const struct ampk_tensor *out, const float *truth, float *delta,
                      struct ampk_loss_sums *sums, uint32_t *amax)
{
    real->yolo_loss(c, o, out, truth, delta, sums, amax);
    strike_floats(delta, count_of(out), amax);
}

static void region_forward(struct ampk_context *c, const struct ampk_region_head *o,
                           const struct ampk_tensor *x, const struct ampk_tensor *out,
                           uint32_t *amax)
{
    real->region_forward(c, o, x, out, amax);
    strike(out, amax);
}

static void region_loss(struct ampk_context *c, const struct ampk_region_head *o,
                        const struct ampk_tensor *out, const float *truth, float *delta,
                        struct ampk_loss_sums *sums, uint32_t *amax)
{
    real->region_loss(c, o, out, truth, delta, sums, amax);
    strike_floats(delta, count_of(out), amax);
}

static void softmax_forward(struct ampk_context *c, const struct ampk_softmax *o,
                            const struct ampk_tensor *x, const struct ampk_tensor *out,
                            uint32_t *amax)
{
    real->softmax_forward(c, o, x, out, amax);
    strike(out, amax);
}

static void softmax_loss(struct ampk_context *c, const struct ampk_tensor *out, const float *truth,
                         bool masked, float *delta, struct ampk_loss_sums *sums, uint32_t *amax)
{
    real->softmax_loss(c, out, truth, masked, delta, sums, amax);
    strike_floats(delta, count_of(out), amax);
}

static void logistic_loss(struct ampk_context *c, const struct ampk_tensor *out, const float *truth,
                          float *delta, struct ampk_loss_sums *sums, uint32_t *amax)
{
    real->logistic_loss(c, out, truth, delta, sums, amax);
    strike_floats(delta, count_of(out), amax);
}

static void cost_loss(struct ampk_context *c, const struct ampk_cost *o,
                      const struct ampk_tensor *x, const float *truth,
                      const struct ampk_tensor *out, float *delta, struct ampk_loss_sums *sums,
                      uint32_t *amax, uint32_t *delta_amax)
{
    real->cost_loss(c, o, x, truth, out, delta, sums, amax, delta_amax);
    strike(out, amax);
    strike_floats(delta, count_of(out), delta_amax);
}

static void loss_backward(struct ampk_context *c, const float *delta, size_t n, float scale,
                          float *dx, bool accumulate, uint32_t *amax)
{
    real->loss_backward(c, delta, n, scale, dx, accumulate, amax);
    strike_floats(dx, n, amax);
}

/* Only what the backend has: Darknet's code computes the other losses. */
static void poison_losses(void)
{
#define POISON(operation)                                                                          \
    if (real->operation) poisoned.operation = operation;
    POISON(yolo_forward)
    POISON(yolo_loss)
    POISON(region_forward)
    POISON(region_loss)
    POISON(softmax_forward)
    POISON(softmax_loss)
    POISON(logistic_loss)
    POISON(cost_loss)
    POISON(loss_backward)
#undef POISON
}

const struct ampk_backend *poison_backend(const struct ampk_backend *backend)
{
    real = backend;
    poisoned = *backend;
    poisoned.convert = convert;
    poisoned.conv_set_weights = conv_set_weights;
    poisoned.conv_forward = conv_forward;
    poisoned.conv_bias_forward = conv_bias_forward;
    poisoned.conv_backward = conv_backward;
    poisoned.conv_weight_gradients = conv_weight_gradients;
    if (real->conv_gradient_squares) poisoned.conv_gradient_squares = conv_gradient_squares;
    if (real->conv_bn_backward) poisoned.conv_bn_backward = conv_bn_backward;
    spoilt = NULL;
    poisoned.bn_act_forward = bn_act_forward;
    poisoned.bn_act_backward = bn_act_backward;
    poisoned.bn_act_pool_forward = bn_act_pool_forward;
    poisoned.bn_act_pool_backward = bn_act_pool_backward;
    poisoned.bias_act_backward = bias_act_backward;
    poisoned.maxpool_backward = maxpool_backward;
    poisoned.upsample = upsample;
    poisoned.shortcut_forward = shortcut_forward;
    poisoned.shortcut_backward = shortcut_backward;
    poisoned.reorg = reorg;
    poisoned.flatten = flatten;
    poisoned.fold = fold;
    poisoned.avgpool_forward = avgpool_forward;
    poisoned.avgpool_backward = avgpool_backward;
    poisoned.dropout = dropout;
    poisoned.activation_forward = activation_forward;
    poisoned.activation_backward = activation_backward;
    poisoned.amax = flat_amax;
    poison_losses();
    return &poisoned;
}
