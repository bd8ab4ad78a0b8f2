/* The reference computes what stock Darknet's own CPU functions compute. Those are FP32 built with
 * -ffast-math, so results agree to rounding; what only moves numbers, and the update rule, agrees
 * to the bit. */
#include "kernels/reference/activation.h"
#include "kernels/reference/tensor.h"
#include "tests/rig/harness.h"

#include "darknet.h"

#include "activations.h"
#include "batchnorm_layer.h"
#include "blas.h"
#include "gemm.h"
#include "im2col.h"
#include "col2im.h"
#include "maxpool_layer.h"
#include "deconvolutional_layer.h"

static const struct ampk_backend *const reference = &ampk_reference;

/* ---- arrays in Darknet's order: FP32 NCHW ---- */

static struct ampk_tensor make(int n, int c, int h, int w)
{
    size_t size = (size_t)c * h * w;
    struct ampk_tensor t = {NULL, AMPK_FP32, AMPK_NCHW, n, c, h, w, size, 0};
    t.data = calloc(n * size, sizeof(float));
    REQUIRE(t.data != NULL);
    float *values = t.data;
    for (size_t i = 0; i < n * size; i++)
        values[i] = (float)test_uniform(-3, 3);
    return t;
}

static struct ampk_tensor copy(const struct ampk_tensor *t)
{
    struct ampk_tensor c = make(t->n, t->c, t->h, t->w);
    memcpy(c.data, t->data, ampk_ref_count(t) * sizeof(float));
    return c;
}

static void check_same(const struct ampk_tensor *a, const struct ampk_tensor *b, double tolerance)
{
    for (size_t i = 0; i < ampk_ref_count(a); i++)
        CHECK_NEAR(((float *)a->data)[i], ((float *)b->data)[i], tolerance);
}

static void release(struct ampk_tensor *t)
{
    free(t->data);
}

static int one_to(int most)
{
    return 1 + (int)(test_random() % most);
}

/* ---- activations ---- */

AMP_TEST(activations_and_gradients)
{
    static char *const names[AMPK_STOCK_ACTIVATIONS] = {
        "logistic", "relu", "relie", "linear", "ramp",    "tanh",  "plse",
        "leaky",    "elu",  "loggy", "stair",  "hardtan", "lhtan", "selu"};
    for (int a = 0; a < AMPK_STOCK_ACTIVATIONS; a++)
        CHECK_INT(get_activation(names[a]), a);
    for (int a = 0; a < AMPK_STOCK_ACTIVATIONS; a++)
        for (int i = 0; i < 1000; i++) {
            float x = i < 20 ? (float)(i - 10) : (float)test_uniform(-9, 9), y = x, d = 1;
            activate_array(&y, 1, (ACTIVATION)a);
            CHECK_NEAR(y, ampk_ref_activate(x, (enum ampk_activation)a), 1e-6 * (1 + fabs(y)));
            gradient_array(&y, 1, (ACTIVATION)a, &d);
            double slope = ampk_ref_gradient(y, (enum ampk_activation)a);
            CHECK_NEAR(d, slope, 1e-6 * (1 + y * y));
        }
}

/* ---- shapes ---- */

AMP_TEST(reorg_and_flatten)
{
    for (int round = 0; round < 20; round++) {
        int s = one_to(3), n = one_to(3), c = s * s * one_to(4), h = s * one_to(3),
            w = s * one_to(3);
        for (int forward = 0; forward < 2; forward++) {
            struct ampk_tensor x = make(n, c, h, w), y = copy(&x), expected = copy(&x);
            reorg_cpu(x.data, w, h, c, n, s, forward, expected.data);
            reference->reorg(NULL, &x, w, h, c, s, forward, &y, false, NULL);
            check_same(&y, &expected, 0);
            memcpy(expected.data, x.data, ampk_ref_count(&x) * sizeof(float));
            flatten(expected.data, w * h, c, n, forward);
            reference->flatten(NULL, &x, w * h, c, forward, &y, false, NULL);
            check_same(&y, &expected, 0);
            release(&x), release(&y), release(&expected);
        }
    }
}

AMP_TEST(upsample)
{
    for (int round = 0; round < 20; round++) {
        int s = one_to(3), n = one_to(3), c = one_to(4), h = one_to(4), w = one_to(4);
        struct ampk_tensor small = make(n, c, h, w), large = make(n, c, h * s, w * s);
        struct ampk_tensor sum = copy(&small), y = copy(&large);
        upsample_cpu(small.data, w, h, c, n, s, 1, .75f, large.data);
        reference->upsample(NULL, &small, s, .75f, false, &y, false, NULL);
        check_same(&y, &large, 1e-6);
        reference->upsample(NULL, &large, s, .75f, true, &sum, true, NULL);
        upsample_cpu(small.data, w, h, c, n, s, 0, .75f, large.data); /* adds */
        check_same(&sum, &small, 1e-5);
        release(&small), release(&large), release(&sum), release(&y);
    }
}

AMP_TEST(unfold_and_fold)
{
    for (int round = 0; round < 40; round++) {
        int size = one_to(4), stride = one_to(3), pad = one_to(3) - 1, c = one_to(4);
        int h = size + one_to(5), w = size + one_to(5);
        struct ampk_tensor x = make(1, c, h, w), sum = copy(&x);
        struct ampk_tensor y = make(1, c * size * size, (h + 2 * pad - size) / stride + 1,
                                    (w + 2 * pad - size) / stride + 1);
        struct ampk_tensor expected = copy(&y);
        im2col_cpu(x.data, c, h, w, size, stride, pad, expected.data);
        reference->unfold(NULL, &x, size, stride, pad, &y);
        check_same(&y, &expected, 0);
        col2im_cpu(y.data, c, h, w, size, stride, pad, x.data); /* adds */
        reference->fold(NULL, &y, size, stride, pad, &sum, true, NULL);
        check_same(&sum, &x, 1e-4);
        release(&x), release(&sum), release(&y), release(&expected);
    }
}

/* A shortcut layer, forward and backward, as in shortcut_layer.c. */
static void check_shortcut(struct ampk_tensor x, struct ampk_tensor add, float alpha, float beta,
                           int a)
{
    int outputs = (int)ampk_ref_count(&x);
    struct ampk_tensor out = copy(&x), expected = copy(&x), d = copy(&x);
    struct ampk_tensor dx = make(x.n, x.c, x.h, x.w), to_x = copy(&dx);
    struct ampk_tensor dadd = make(add.n, add.c, add.h, add.w), to_add = copy(&dadd);
    shortcut_cpu(x.n, add.w, add.h, add.c, add.data, x.w, x.h, x.c, alpha, beta, expected.data);
    activate_array(expected.data, outputs, (ACTIVATION)a);
    reference->shortcut_forward(NULL, &x, &add, alpha, beta, (enum ampk_activation)a, &out, NULL);
    check_same(&out, &expected, 1e-5);
    reference->shortcut_backward(NULL, &expected, &d, alpha, beta, (enum ampk_activation)a, &dx,
                                 true, &dadd, true, NULL, NULL);
    gradient_array(expected.data, outputs, (ACTIVATION)a, d.data);
    axpy_cpu(outputs, alpha, d.data, 1, to_x.data, 1);
    shortcut_cpu(x.n, x.w, x.h, x.c, d.data, add.w, add.h, add.c, 1, beta, to_add.data);
    check_same(&dx, &to_x, 1e-5);
    check_same(&dadd, &to_add, 1e-5);
    struct ampk_tensor *all[] = {&x, &add, &out, &expected, &d, &dx, &to_x, &dadd, &to_add};
    for (int i = 0; i < 9; i++)
        release(all[i]);
}

AMP_TEST(shortcut)
{
    for (int round = 0; round < 40; round++) {
        int s = one_to(3), n = one_to(2), h = one_to(4), w = one_to(4);
        int more = round % 2 && h > 1 && w > 1; /* sides that the stride does not divide */
        struct ampk_tensor small = make(n, one_to(4), h, w);
        struct ampk_tensor large = make(n, one_to(4), s * h + more, s * w + more);
        int a = (int)(test_random() % AMPK_STOCK_ACTIVATIONS);
        if (round % 4 < 2)
            check_shortcut(small, large, .5f, 1.5f, a);
        else
            check_shortcut(large, small, .5f, 1.5f, a);
    }
}

AMP_TEST(maxpool)
{
    for (int round = 0; round < 30; round++) {
        int n = one_to(2), c = one_to(3), h = 2 + one_to(6), w = 2 + one_to(6);
        int size = one_to(3), stride = one_to(2), pad = one_to(size) - 1;
        layer l = make_maxpool_layer(n, h, w, c, size, stride, pad);
        struct ampk_tensor x = make(n, c, h, w), dx = copy(&x), to_x = copy(&x);
        struct ampk_tensor y = make(n, c, l.out_h, l.out_w), dy = copy(&y), expected = y;
        int *index = calloc(1, reference->maxpool_index_bytes(&y, size));
        network net = {0};
        net.input = x.data, net.delta = to_x.data;
        l.forward(l, net);
        expected.data = l.output;
        reference->maxpool_forward(NULL, &x, size, stride, pad, &y, index);
        check_same(&y, &expected, 0);
        memcpy(l.delta, dy.data, ampk_ref_count(&dy) * sizeof(float));
        l.backward(l, net);
        reference->maxpool_backward(NULL, &dy, index, size, stride, pad, &dx, true, NULL);
        check_same(&dx, &to_x, 1e-5);
        free(index);
        free_layer(l);
        release(&x), release(&dx), release(&to_x), release(&y), release(&dy);
    }
}

/* ---- convolution: im2col and gemm, as convolutional_layer.c for one image and group ---- */

AMP_TEST(convolution)
{
    for (int round = 0; round < 20; round++) {
        int c = one_to(4), k = one_to(5), size = one_to(3), h = size + one_to(5),
            w = size + one_to(5);
        struct ampk_conv_shape s = {.n = 1,
                                    .c = c,
                                    .h = h,
                                    .w = w,
                                    .k = k,
                                    .kh = size,
                                    .kw = size,
                                    .stride = one_to(2),
                                    .pad = one_to(2) - 1,
                                    .groups = 1};
        int out_h = (h + 2 * s.pad - size) / s.stride + 1,
            out_w = (w + 2 * s.pad - size) / s.stride + 1;
        int area = out_h * out_w, taps = c * size * size;
        struct ampk_tensor x = make(1, c, h, w), weights = make(k, c, size, size);
        struct ampk_tensor y = make(1, k, out_h, out_w), expected = copy(&y), dy = copy(&y);
        struct ampk_tensor dx = copy(&x), to_x = copy(&x), dw = copy(&weights),
                           to_w = copy(&weights);
        float *columns = calloc((size_t)taps * area, sizeof *columns);
        char err[200];
        struct ampk_conv *conv = reference->conv_create(NULL, &s, err, sizeof err);
        reference->conv_set_weights(NULL, &(struct ampk_new_weights){conv, weights.data, NULL}, 1);

        im2col_cpu(x.data, c, h, w, size, s.stride, s.pad, columns);
        memset(expected.data, 0, (size_t)k * area * sizeof(float));
        gemm(0, 0, k, area, taps, 1, weights.data, taps, columns, area, 1, expected.data, area);
        reference->conv_forward(NULL, conv, &x, &y, NULL, NULL);
        check_same(&y, &expected, 1e-4);

        memset(to_w.data, 0, (size_t)k * taps * sizeof(float));
        gemm(0, 1, k, taps, area, 1, dy.data, area, columns, area, 1, to_w.data, taps);
        gemm(1, 0, taps, area, k, 1, weights.data, taps, dy.data, area, 0, columns, area);
        col2im_cpu(columns, c, h, w, size, s.stride, s.pad, to_x.data); /* adds */
        reference->conv_backward(NULL, conv, &x, &dy, &dx, true, NULL);
        reference->conv_weight_gradients(NULL, &(struct ampk_weight_gradient){conv, dw.data, NULL},
                                         1, 1, false);
        check_same(&dw, &to_w, 1e-4);
        check_same(&dx, &to_x, 1e-4);
        struct ampk_tensor *all[] = {&x, &weights, &y, &expected, &dy, &dx, &to_x, &dw, &to_w};
        for (int i = 0; i < 9; i++)
            release(all[i]);
        free(columns);
        reference->conv_destroy(NULL, conv);
    }
}

/* ---- transposed convolution: a layer of Darknet's ---- */

/* Weights as Darknet has them, its padding, and the sides that it computes. */
AMP_TEST(transposed_convolution)
{
    for (int round = 0; round < 40; round++) {
        int n = one_to(3), c = one_to(4), k = one_to(5), h = one_to(5), w = one_to(5);
        int size = one_to(4), stride = one_to(3), pad = one_to(size) - 1;
        if ((h - 1) * stride + size <= 2 * pad || (w - 1) * stride + size <= 2 * pad) continue;
        layer l = make_deconvolutional_layer(n, h, w, c, k, size, stride, pad, LINEAR, 0, 0);
        struct ampk_conv_shape s = {.n = n,
                                    .c = k,
                                    .h = l.out_h,
                                    .w = l.out_w,
                                    .k = c,
                                    .kh = size,
                                    .kw = size,
                                    .stride = stride,
                                    .pad = pad,
                                    .groups = 1,
                                    .transposed = true};
        struct ampk_tensor x = make(n, c, h, w), dx = copy(&x), to_x = copy(&x);
        struct ampk_tensor y = make(n, k, l.out_h, l.out_w), dy = copy(&y), expected = y;
        struct ampk_tensor bias = make(1, k, 1, 1), dw = make(c, k, size, size), to_w = dw;
        char err[200];
        struct ampk_conv *conv = reference->conv_create(NULL, &s, err, sizeof err);
        network net = {0};
        net.input = x.data, net.delta = to_x.data;
        net.workspace = calloc(1, l.workspace_size);
        memcpy(l.biases, bias.data, (size_t)k * sizeof(float));
        reference->conv_set_weights(NULL, &(struct ampk_new_weights){conv, l.weights, NULL}, 1);

        l.forward(l, net);
        reference->conv_bias_forward(NULL, conv, &x, bias.data, AMPK_LINEAR, &y, NULL);
        expected.data = l.output;
        check_same(&y, &expected, 1e-4);

        memcpy(l.delta, dy.data, ampk_ref_count(&dy) * sizeof(float));
        l.backward(l, net); /* adds */
        reference->conv_backward(NULL, conv, &x, &dy, &dx, true, NULL);
        reference->conv_weight_gradients(NULL, &(struct ampk_weight_gradient){conv, dw.data, NULL},
                                         1, 1, false);
        to_w.data = l.weight_updates;
        check_same(&dx, &to_x, 1e-4);
        check_same(&dw, &to_w, 1e-4);
        free(net.workspace);
        free_layer(l);
        struct ampk_tensor *all[] = {&x, &dx, &to_x, &y, &dy, &bias, &dw};
        for (int i = 0; i < 7; i++)
            release(all[i]);
        reference->conv_destroy(NULL, conv);
    }
}

/* ---- batch-norm: a layer of Darknet's, forward and backward ---- */

static void copy_array(float *to, const float *from, int n)
{
    memcpy(to, from, n * sizeof *to);
}

/* y by statistics, normalisation, and back; every array beside Darknet's. */
static void check_batchnorm(layer l, const struct ampk_tensor *y, const struct ampk_tensor *d)
{
    int c = l.c;
    struct ampk_tensor out = copy(y), dy = copy(y), expected = *y;
    float mean[8], variance[8], dscale[8], dbias[8];
    float rolling_mean[8], rolling_variance[8], scale_before[8] = {0},
                                                *bias_updates = l.bias_updates;
    copy_array(rolling_mean, l.rolling_mean, c);
    copy_array(rolling_variance, l.rolling_variance, c);
    network net = {0};
    net.train = 1, net.input = y->data, net.delta = dy.data;
    l.forward(l, net);

    reference->bn_statistics(NULL, y,
                             &(struct ampk_bn_statistics){mean, variance, rolling_mean,
                                                          rolling_variance, AMPK_BN_DARKNET_CPU,
                                                          NULL});
    for (int i = 0; i < c; i++) {
        CHECK_NEAR(mean[i], l.mean[i], 1e-5);
        CHECK_NEAR(variance[i], l.variance[i], 1e-4);
        CHECK_NEAR(rolling_mean[i], l.rolling_mean[i], 1e-5);
        CHECK_NEAR(rolling_variance[i], l.rolling_variance[i], 1e-5);
    }
    struct ampk_batchnorm bn = {.scale = l.scales,
                                .bias = l.biases,
                                .mean = l.mean,
                                .variance = l.variance,
                                .rule = AMPK_BN_DARKNET_CPU};
    reference->bn_act_forward(NULL, y, &bn, AMPK_LINEAR, NULL, &out, NULL, NULL);
    expected.data = l.output;
    check_same(&out, &expected, 1e-4);

    copy_array(l.delta, d->data, (int)ampk_ref_count(d));
    copy_array(l.scale_updates, scale_before, c);
    copy_array(bias_updates, scale_before, c);
    l.backward(l, net);
    reference->bn_act_backward(NULL, y, &out, &bn, AMPK_LINEAR, d, &out, dscale, dbias, NULL, NULL);
    expected.data = l.delta;
    check_same(&out, &expected, 1e-4);
    for (int i = 0; i < c; i++) {
        CHECK_NEAR(dscale[i], l.scale_updates[i], 1e-3);
        CHECK_NEAR(dbias[i], bias_updates[i], 1e-3);
    }
    release(&out), release(&dy);
}

/* What make_batchnorm_layer forgets to allocate for the CPU. */
static void allocate_the_rest(layer *l)
{
    l->x = calloc((size_t)l->batch * l->outputs, sizeof(float));
    l->x_norm = calloc((size_t)l->batch * l->outputs, sizeof(float));
    l->mean_delta = calloc(l->c, sizeof(float));
    l->variance_delta = calloc(l->c, sizeof(float));
}

AMP_TEST(batchnorm)
{
    for (int round = 0; round < 20; round++) {
        int n = one_to(3), c = one_to(8), h = 1 + one_to(5), w = 1 + one_to(5);
        layer l = make_batchnorm_layer(n, w, h, c);
        allocate_the_rest(&l);
        struct ampk_tensor y = make(n, c, h, w), d = make(n, c, h, w);
        for (int i = 0; i < c; i++) {
            l.scales[i] = (float)test_uniform(-2, 2);
            l.biases[i] = (float)test_uniform(-1, 1);
        }
        check_batchnorm(l, &y, &d);
        free_layer(l);
        release(&y), release(&d);
    }
}

/* ---- update ---- */

/* The three lines of update_convolutional_layer for weights, bit for bit. */
AMP_TEST(sgd_update_is_darknets_to_the_bit)
{
    enum { N = 1001 };
    float rate = .001f / 64, momentum = .9f, decay = .0005f;
    int batch = 64;
    struct ampk_tensor w = make(1, N, 1, 1), v = make(1, N, 1, 1), g = make(1, N, 1, 1);
    struct ampk_tensor weights = copy(&w), updates = copy(&v);
    for (int step = 0; step < 3; step++) {
        struct ampk_param param = {.value = w.data,
                                   .update = v.data,
                                   .grad = g.data,
                                   .n = N,
                                   .unscale = 1,
                                   .rate = rate,
                                   .decay = decay * batch};
        const struct ampk_rule rule = {.optimizer = AMPK_SGD, .momentum = momentum};
        reference->update(NULL, &rule, &param, 1);
        axpy_cpu(N, 1, g.data, 1, updates.data, 1); /* what backward passes have added */
        axpy_cpu(N, -decay * batch, weights.data, 1, updates.data, 1);
        axpy_cpu(N, rate, updates.data, 1, weights.data, 1);
        scal_cpu(N, momentum, updates.data, 1);
    }
    check_same(&w, &weights, 0);
    check_same(&v, &updates, 0);
    release(&w), release(&v), release(&g), release(&weights), release(&updates);
}

AMP_TEST_MAIN
