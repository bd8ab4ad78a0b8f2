/* The reference itself: its gradients by finite differences, its linear operations by the adjoint
 * identity <A x, y> = <x, A' y>, both on numbers where they hold to the last bit or nearly, and a
 * few results worked out by hand. All tensors are FP32. */
#include "kernels/reference/activation.h"
#include "kernels/reference/tensor.h"
#include "tests/rig/harness.h"

static const struct ampk_backend *const reference = &ampk_reference;

/* ---- tensors of the host ---- */

static struct ampk_tensor make(int n, int c, int h, int w)
{
    size_t size = (size_t)c * h * w;
    struct ampk_tensor t = {NULL, AMPK_FP32, AMPK_NHWC, n, c, h, w, size, 0};
    t.data = calloc(n * size, sizeof(float));
    REQUIRE(t.data != NULL);
    return t;
}

/* Small whole numbers: products and sums of a few thousand of them are exact. */
static struct ampk_tensor make_whole(int n, int c, int h, int w)
{
    struct ampk_tensor t = make(n, c, h, w);
    for (size_t i = 0; i < ampk_ref_count(&t); i++)
        ((float *)t.data)[i] = (float)(int)(test_random() % 9) - 4;
    return t;
}

static struct ampk_tensor make_uniform(int n, int c, int h, int w, double low, double high)
{
    struct ampk_tensor t = make(n, c, h, w);
    for (size_t i = 0; i < ampk_ref_count(&t); i++)
        ((float *)t.data)[i] = (float)test_uniform(low, high);
    return t;
}

static double dot(const struct ampk_tensor *a, const struct ampk_tensor *b)
{
    const float *x = a->data, *y = b->data;
    double sum = 0;
    for (size_t i = 0; i < ampk_ref_count(a); i++)
        sum += (double)x[i] * y[i];
    return sum;
}

static void release(struct ampk_tensor *t)
{
    free(t->data);
}

static int one_to(int most)
{
    return 1 + (int)(test_random() % most);
}

static void check_values(const struct ampk_tensor *t, const float *expected)
{
    for (size_t i = 0; i < ampk_ref_count(t); i++)
        CHECK_NEAR(((const float *)t->data)[i], expected[i], 0);
}

/* ---- convolution ---- */

static struct ampk_conv *make_conv(const struct ampk_conv_shape *s)
{
    char err[200];
    struct ampk_conv *conv = reference->conv_create(NULL, s, err, sizeof err);
    REQUIRE(conv != NULL);
    return conv;
}

/* One conv_forward from values in memory (NHWC) to values in memory. out_h, out_w: of the
 * convolution, which a transposed one reads. */
static void check_convolution(struct ampk_conv_shape s, float *x, const float *w, int out_h,
                              int out_w, const float *expected)
{
    struct ampk_conv *conv = make_conv(&s);
    struct ampk_tensor in = {x, AMPK_FP32, AMPK_NHWC, s.n, s.c, s.h, s.w, s.c * s.h * s.w, 0};
    struct ampk_tensor out = make(s.n, s.k, out_h, out_w);
    if (s.transposed) {
        release(&out);
        out = make(s.n, s.c, s.h, s.w);
        in = (struct ampk_tensor){x,     AMPK_FP32, AMPK_NHWC,           s.n, s.k,
                                  out_h, out_w,     s.k * out_h * out_w, 0};
    }
    reference->conv_set_weights(NULL, &(struct ampk_new_weights){conv, w, NULL}, 1);
    reference->conv_forward(NULL, conv, &in, &out, NULL, NULL);
    check_values(&out, expected);
    release(&out);
    reference->conv_destroy(NULL, conv);
}

AMP_TEST(convolutions_by_hand)
{
    float square[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    check_convolution((struct ampk_conv_shape){1, 1, 3, 3, 1, 2, 2, 1, 0, 1, 0, 0, 0, 0}, square,
                      (float[]){1, 2, 3, 4}, 2, 2, (float[]){37, 47, 67, 77});
    /* padded: the corner windows see one number each */
    check_convolution((struct ampk_conv_shape){1, 1, 3, 3, 1, 2, 2, 3, 1, 1, 0, 0, 0, 0}, square,
                      (float[]){1, 2, 3, 4}, 2, 2, (float[]){4, 9, 14, 9});
    /* two channels, two filters over both: pixels (1,2) and (3,4) */
    float pixels[] = {1, 2, 3, 4};
    check_convolution((struct ampk_conv_shape){1, 2, 1, 2, 2, 1, 1, 1, 0, 1, 0, 0, 0, 0}, pixels,
                      (float[]){10, 1, 0, 5}, 1, 2, (float[]){12, 10, 34, 20});
    /* the same in two groups: each filter has its own channel */
    check_convolution((struct ampk_conv_shape){1, 2, 1, 2, 2, 1, 1, 1, 0, 2, 0, 0, 0, 0}, pixels,
                      (float[]){10, 5}, 1, 2, (float[]){10, 10, 30, 20});
    /* connected: weights are [k][c][h][w], the input c = (1,3), (2,4) */
    check_convolution((struct ampk_conv_shape){1, 2, 1, 2, 1, 1, 2, 1, 0, 1, 0, 0, 0, 0}, pixels,
                      (float[]){1, 10, 100, 1000}, 1, 1, (float[]){1 + 30 + 200 + 4000});
    /* transposed: each number stamps the window, by 1, and by 2 without the border */
    check_convolution((struct ampk_conv_shape){1, 1, 2, 3, 1, 2, 2, 1, 0, 1, 0, 0, 0, 1}, pixels,
                      (float[]){1, 10, 100, 1000}, 1, 2, (float[]){1, 12, 20, 100, 1200, 2000});
    check_convolution((struct ampk_conv_shape){1, 1, 2, 2, 1, 2, 2, 2, 1, 1, 0, 0, 0, 1}, pixels,
                      (float[]){1, 10, 100, 1000}, 2, 2, (float[]){1000, 200, 30, 4});
    /* of two channels into two, weights [k][c] */
    check_convolution((struct ampk_conv_shape){1, 2, 1, 2, 2, 1, 1, 1, 0, 1, 0, 0, 0, 1}, pixels,
                      (float[]){10, 1, 0, 5}, 1, 2, (float[]){10, 11, 30, 23});
}

static void check_conv_adjoint(struct ampk_conv_shape s)
{
    struct ampk_conv *conv = make_conv(&s);
    struct ampk_tensor w = make_whole(s.k, s.c / s.groups, s.kh, s.kw),
                       dw = make(s.k, w.c, w.h, w.w);
    int h = (s.h + 2 * s.pad - s.kh) / s.stride + 1, v = (s.w + 2 * s.pad - s.kw) / s.stride + 1;
    struct ampk_tensor one = make_whole(s.n, s.c, s.h, s.w), other = make_whole(s.n, s.k, h, v);
    struct ampk_tensor x = s.transposed ? other : one, dy = s.transposed ? one : other;
    struct ampk_tensor dx = make(x.n, x.c, x.h, x.w), y = make(dy.n, dy.c, dy.h, dy.w);
    reference->conv_set_weights(NULL, &(struct ampk_new_weights){conv, w.data, NULL}, 1);
    reference->conv_forward(NULL, conv, &x, &y, NULL, NULL);
    reference->conv_backward(NULL, conv, &x, &dy, &dx, false, NULL);
    reference->conv_weight_gradients(NULL, &(struct ampk_weight_gradient){conv, dw.data, NULL}, 1,
                                     1, false);
    CHECK_NEAR(dot(&x, &dx), dot(&y, &dy), 0);
    CHECK_NEAR(dot(&w, &dw), dot(&y, &dy), 0);
    struct ampk_tensor *all[] = {&x, &dx, &w, &dw, &y, &dy};
    for (int i = 0; i < 6; i++)
        release(all[i]);
    reference->conv_destroy(NULL, conv);
}

AMP_TEST(convolution_gradients_are_adjoint)
{
    for (int i = 0; i < 60; i++) {
        int groups = one_to(3), kh = one_to(4), kw = one_to(4);
        struct ampk_conv_shape s = {.n = one_to(2),
                                    .c = groups * one_to(4),
                                    .h = kh + one_to(5),
                                    .w = kw + one_to(5),
                                    .k = groups * one_to(4),
                                    .kh = kh,
                                    .kw = kw,
                                    .stride = one_to(3),
                                    .pad = one_to(3) - 1,
                                    .groups = groups};
        check_conv_adjoint(s);
        s.transposed = true;
        check_conv_adjoint(s);
    }
}

/* ---- activation and batch-norm, by central differences ---- */

static const double kinks[AMPK_ACTIVATIONS][4] = {
    [AMPK_RELU] = {0},     [AMPK_RELIE] = {0},       [AMPK_RAMP] = {0},
    [AMPK_PLSE] = {-4, 4}, [AMPK_LEAKY] = {0},       [AMPK_ELU] = {0},
    [AMPK_SELU] = {0},     [AMPK_HARDTAN] = {-1, 1}, [AMPK_LHTAN] = {0, 1},
};

/* The slope is the same within `margin` of x. Zero counts as a kink of all but stair, whose kinks
 * are the whole numbers. */
static bool is_smooth_near(double x, enum ampk_activation a, double margin)
{
    if (a == AMPK_STAIR) return fabs(x - nearbyint(x)) > margin;
    for (int i = 0; i < 4; i++)
        if (fabs(x - kinks[a][i]) <= margin) return false;
    return true;
}

static double slope_at(double x, enum ampk_activation a)
{
    return ampk_ref_gradient(ampk_is_gradient_of_input(a) ? x : ampk_ref_activate(x, a), a);
}

AMP_TEST(slopes_of_activations)
{
    for (int a = 0; a < AMPK_ACTIVATIONS; a++)
        for (int i = 0; i < 2000; i++) {
            double x = test_uniform(-6, 6), h = 1e-5;
            if (!is_smooth_near(x, a, h)) continue;
            double rise = ampk_ref_activate(x + h, a) - ampk_ref_activate(x - h, a);
            CHECK_NEAR(slope_at(x, a), rise / (2 * h), 1e-8);
        }
}

/* At every number of FP16. Central differences miss by h^2 / 6 times the third derivative, which is
 * below 1, and by what the two values lose, each a few units in its last place. */
AMP_TEST(slopes_over_the_range_of_fp16)
{
    const double h = 1e-4;
    for (int a = AMPK_MISH; a <= AMPK_SWISH; a++)
        for (int e = -24; e < 16; e++)
            for (int i = -2047; i < 2048; i++) {
                double x = ldexp(i, e - 10), up = x + h, down = x - h;
                double rise = ampk_ref_activate(up, a) - ampk_ref_activate(down, a);
                double tolerance = h * h / 6 + 4 * 0x1p-53 * (fabs(x) + 1) / h;
                CHECK_NEAR(slope_at(x, a), rise / (up - down), tolerance);
            }
}

/* A layer of batch-norm and activation, and a loss: the sum of weight*out. */
struct layer {
    struct ampk_tensor y, out, weight;
    float scale[3], bias[3], mean[3], variance[3];
    enum ampk_activation activation;
    enum ampk_bn_rule rule;
};

/* Darknet's gradient is that of the biased variance (count in the denominator), though its forward
 * pass divides by count - 1. */
static void find_statistics(struct layer *l)
{
    const struct ampk_tensor *y = &l->y;
    double count = (double)y->n * y->h * y->w;
    double *values = ampk_ref_load(y);
    size_t area = (size_t)y->h * y->w;
    for (int c = 0; c < y->c; c++) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < ampk_ref_count(y); i++)
            if ((int)(i / area % y->c) == c) sum += values[i];
        for (size_t i = 0; i < ampk_ref_count(y); i++)
            if ((int)(i / area % y->c) == c) squares += pow(values[i] - sum / count, 2);
        l->mean[c] = (float)(sum / count);
        l->variance[c] = (float)(squares / count);
    }
    free(values);
}

static struct ampk_batchnorm parameters(struct layer *l)
{
    return (struct ampk_batchnorm){.scale = l->scale,
                                   .bias = l->bias,
                                   .mean = l->mean,
                                   .variance = l->variance,
                                   .rule = l->rule};
}

static double find_loss(struct layer *l)
{
    find_statistics(l);
    struct ampk_batchnorm bn = parameters(l);
    reference->bn_act_forward(NULL, &l->y, &bn, l->activation, NULL, &l->out, NULL, NULL);
    return dot(&l->out, &l->weight);
}

/* d loss / d *p by central differences. */
static double find_slope(struct layer *l, float *p)
{
    float old = *p, h = 0x1p-9f;
    *p = old + h;
    double up = find_loss(l);
    *p = old - h;
    double down = find_loss(l);
    *p = old;
    return (up - down) / (2 * h);
}

/* No activation has a kink where its arguments will be. */
static bool is_smooth(struct layer *l)
{
    enum ampk_activation a = l->activation;
    l->activation = AMPK_LINEAR;
    find_loss(l);
    l->activation = a;
    for (size_t i = 0; i < ampk_ref_count(&l->out); i++)
        if (!is_smooth_near(((float *)l->out.data)[i], a, .02)) return false;
    return true;
}

static struct layer make_layer(enum ampk_activation a, enum ampk_bn_rule rule)
{
    struct layer l = {.y = make(2, 3, 2, 3),
                      .out = make(2, 3, 2, 3),
                      .weight = make_uniform(2, 3, 2, 3, -1, 1),
                      .activation = a,
                      .rule = rule};
    do {
        release(&l.y);
        l.y = make_uniform(2, 3, 2, 3, -2, 2);
        for (int c = 0; c < 3; c++) {
            l.scale[c] = (float)test_uniform(.5, 1.5);
            l.bias[c] = (float)test_uniform(-1, 1);
        }
    } while (!is_smooth(&l));
    return l;
}

static void check_layer(enum ampk_activation a, enum ampk_bn_rule rule)
{
    struct layer l = make_layer(a, rule);
    struct ampk_tensor dy = make(2, 3, 2, 3);
    float dscale[3], dbias[3];
    find_loss(&l);
    struct ampk_batchnorm bn = parameters(&l);
    reference->bn_act_backward(NULL, &l.y, ampk_recomputes_input(a) ? NULL : &l.out, &bn, a,
                               &l.weight, &dy, dscale, dbias, NULL, NULL);
    /* By Darknet's rule for the CPU, 1e-6 is added to the root of the variance in one direction,
     * 1e-5 to the variance in the other: with variances near 1 that is 1e-5. The rest is the
     * differences' own error. */
    for (int c = 0; c < 3; c++) {
        CHECK_NEAR(dscale[c], find_slope(&l, &l.scale[c]), 2e-4);
        CHECK_NEAR(dbias[c], find_slope(&l, &l.bias[c]), 2e-4);
    }
    for (size_t i = 0; i < ampk_ref_count(&l.y); i++)
        CHECK_NEAR(((float *)dy.data)[i], find_slope(&l, (float *)l.y.data + i), 2e-4);
    release(&l.y), release(&l.out), release(&l.weight), release(&dy);
}

AMP_TEST(batchnorm_with_every_activation)
{
    for (int a = 0; a < AMPK_ACTIVATIONS; a++)
        for (int i = 0; i < 6; i++)
            check_layer(a, (enum ampk_bn_rule)(i % 3));
}

/* The scale of a loss passes through: S times the gradient in gives S times it out. */
AMP_TEST(bias_gradient_is_the_sum_of_dy)
{
    struct ampk_tensor out = make_uniform(2, 3, 2, 2, -1, 1), d = make_whole(2, 3, 2, 2);
    struct ampk_tensor dy = make(2, 3, 2, 2);
    float dbias[3];
    reference->bias_act_backward(NULL, &out, AMPK_RELU, &d, &dy, dbias, NULL, NULL);
    for (int c = 0; c < 3; c++) {
        double sum = 0;
        for (int i = 0; i < 8; i++) {
            int at = i * 3 + c; /* NHWC */
            double expected = ((float *)out.data)[at] > 0 ? ((float *)d.data)[at] : 0;
            CHECK_NEAR(((float *)dy.data)[at], expected, 0);
            sum += expected;
        }
        CHECK_NEAR(dbias[c], sum, 0);
    }
    release(&out), release(&d), release(&dy);
}

/* ---- max-pooling ---- */

AMP_TEST(maxpool_by_hand)
{
    float x[] = {1, 5, 2, 8, 3, 4, 7, 6, 9}, y[9], dx[9], dy[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct ampk_tensor in = {x, AMPK_FP32, AMPK_NHWC, 1, 1, 3, 3, 9, 0}, out = in, to = in, d = in;
    out.data = y, to.data = dx, d.data = dy;
    int index[9];
    CHECK_INT(reference->maxpool_index_bytes(&out, 2), sizeof index);
    /* Darknet's 2x2 by 1 with padding 1: windows start at the pixel and hang over right and below
     */
    reference->maxpool_forward(NULL, &in, 2, 1, 1, &out, index);
    check_values(&out, (float[]){8, 5, 4, 8, 9, 9, 7, 9, 9});
    reference->maxpool_backward(NULL, &d, index, 2, 1, 1, &to, false, NULL);
    check_values(&to, (float[]){0, 2, 0, 1 + 4, 0, 3, 7, 0, 5 + 6 + 8 + 9});
    reference->maxpool_backward(NULL, &d, index, 2, 1, 1, &to, true, NULL);
    check_values(&to, (float[]){0, 4, 0, 10, 0, 6, 14, 0, 56});
}

/* Values far enough apart that no difference moves a maximum: the pass is linear there. */
AMP_TEST(maxpool_by_differences)
{
    for (int round = 0; round < 20; round++) {
        int size = one_to(3), stride = one_to(2), pad = one_to(size) - 1, h = 3 + one_to(3);
        int out = (h + pad - size) / stride + 1;
        struct ampk_tensor x = make(1, 2, h, h), y = make(1, 2, out, out), dx = make(1, 2, h, h);
        struct ampk_tensor weight = make_whole(1, 2, out, out);
        float *values = x.data;
        size_t count = ampk_ref_count(&x);
        for (size_t i = 0; i < count; i++)
            values[i] = (float)(i * 37 % count) * 4;
        int *index = calloc(1, reference->maxpool_index_bytes(&y, size));
        reference->maxpool_forward(NULL, &x, size, stride, pad, &y, index);
        reference->maxpool_backward(NULL, &weight, index, size, stride, pad, &dx, false, NULL);
        double before = dot(&y, &weight);
        for (size_t i = 0; i < count; i++) {
            values[i] += 1;
            reference->maxpool_forward(NULL, &x, size, stride, pad, &y, index);
            CHECK_NEAR(((float *)dx.data)[i], dot(&y, &weight) - before, 0);
            values[i] -= 1;
        }
        free(index);
        release(&x), release(&y), release(&dx), release(&weight);
    }
}

/* ---- linear operations without weights: adjoint pairs ---- */

/* y = A x is forward(x, y); dx = A' dy is backward(dy, dx). */
struct pair_of_maps {
    void (*forward)(const struct ampk_tensor *x, const struct ampk_tensor *y);
    void (*backward)(const struct ampk_tensor *dy, const struct ampk_tensor *dx);
};

static int live; /* pairs that said something: a small tensor may be zero */

static void check_adjoint(struct pair_of_maps maps, struct ampk_tensor x, struct ampk_tensor dy)
{
    struct ampk_tensor y = make(dy.n, dy.c, dy.h, dy.w), dx = make(x.n, x.c, x.h, x.w);
    maps.forward(&x, &y);
    maps.backward(&dy, &dx);
    CHECK_NEAR(dot(&y, &dy), dot(&x, &dx), 0);
    live += dot(&y, &dy) != 0;
    release(&x), release(&y), release(&dx), release(&dy);
}

static void enlarge(const struct ampk_tensor *x, const struct ampk_tensor *y)
{
    reference->upsample(NULL, x, y->h / x->h, .5f, false, y, false, NULL);
}

static void reduce(const struct ampk_tensor *x, const struct ampk_tensor *y)
{
    reference->upsample(NULL, x, x->h / y->h, .5f, true, y, false, NULL);
}

static void average(const struct ampk_tensor *x, const struct ampk_tensor *y)
{
    reference->avgpool_forward(NULL, x, y, NULL);
}

static void spread(const struct ampk_tensor *dy, const struct ampk_tensor *dx)
{
    reference->avgpool_backward(NULL, dy, dx, false, NULL);
}

/* Space to depth and back; shapes as in the usual layer, (c,h,w) -> (4c,h/2,w/2). */
static void reorg_in(const struct ampk_tensor *x, const struct ampk_tensor *y)
{
    reference->reorg(NULL, x, x->w, x->h, x->c, 2, 0, y, false, NULL);
}

static void reorg_out(const struct ampk_tensor *dy, const struct ampk_tensor *dx)
{
    reference->reorg(NULL, dy, dx->w, dx->h, dx->c, 2, 1, dx, false, NULL);
}

static void flatten_in(const struct ampk_tensor *x, const struct ampk_tensor *y)
{
    reference->flatten(NULL, x, x->h * x->w, x->c, 1, y, false, NULL);
}

static void flatten_out(const struct ampk_tensor *dy, const struct ampk_tensor *dx)
{
    reference->flatten(NULL, dy, dy->h * dy->w, dy->c, 0, dx, false, NULL);
}

static void scatter(const struct ampk_tensor *x, const struct ampk_tensor *y)
{
    struct ampk_tensor part = ampk_slice(y, 1, x->c);
    reference->convert(NULL, x, &part, false, NULL);
}

static void gather(const struct ampk_tensor *dy, const struct ampk_tensor *dx)
{
    struct ampk_tensor part = ampk_slice(dy, 1, dx->c);
    reference->convert(NULL, &part, dx, false, NULL);
}

AMP_TEST(adjoint_pairs)
{
    for (int i = 0; i < 20; i++) {
        int n = one_to(3), c = one_to(4), h = one_to(3), w = one_to(3), s = one_to(3);
        struct pair_of_maps up = {enlarge, reduce}, down = {reduce, enlarge};
        check_adjoint(up, make_whole(n, c, h, w), make_whole(n, c, s * h, s * w));
        check_adjoint(down, make_whole(n, c, s * h, s * w), make_whole(n, c, h, w));
        struct pair_of_maps pool = {average, spread}, cut = {scatter, gather};
        check_adjoint(pool, make_whole(n, c, 2, 4), make_whole(n, c, 1, 1));
        check_adjoint(cut, make_whole(n, c, h, w), make_whole(n, c + 2, h, w));
        struct pair_of_maps reorg = {reorg_in, reorg_out}, flat = {flatten_in, flatten_out};
        check_adjoint(reorg, make_whole(n, 4 * c, 2 * h, 2 * w), make_whole(n, 16 * c, h, w));
        check_adjoint(flat, make_whole(n, c, h, w), make_whole(n, c, h, w));
    }
    CHECK(live > 20 * 6 / 2);
}

AMP_TEST(permutations_by_hand)
{
    float x[] = {0, 1, 2, 3, 4, 5, 6, 7}, y[8];
    struct ampk_tensor deep = {x, AMPK_FP32, AMPK_NCHW, 1, 4, 1, 2, 8, 0};
    struct ampk_tensor wide = {y, AMPK_FP32, AMPK_NCHW, 1, 1, 2, 4, 8, 0};
    reference->reorg(NULL, &deep, 2, 1, 4, 2, 1, &wide, false, NULL);
    check_values(&wide, (float[]){0, 2, 1, 3, 4, 6, 5, 7});
    reference->flatten(NULL, &deep, 2, 4, 1, &wide, false, NULL);
    check_values(&wide, (float[]){0, 2, 4, 6, 1, 3, 5, 7});
}

/* ---- shortcut ---- */

/* With a linear activation and alpha 1 (Darknet's dx has alpha where forward had not), the
 * gradients of x and add together are the adjoint; where the shapes agree any alpha will do. */
static void check_shortcut(struct ampk_tensor x, struct ampk_tensor add, float alpha, float beta)
{
    struct ampk_tensor out = make(x.n, x.c, x.h, x.w), d = make_whole(x.n, x.c, x.h, x.w);
    struct ampk_tensor dx = make(x.n, x.c, x.h, x.w), dadd = make(add.n, add.c, add.h, add.w);
    reference->shortcut_forward(NULL, &x, &add, alpha, beta, AMPK_LINEAR, &out, NULL);
    reference->shortcut_backward(NULL, &out, &d, alpha, beta, AMPK_LINEAR, &dx, false, &dadd, false,
                                 NULL, NULL);
    CHECK_NEAR(dot(&out, &d), dot(&x, &dx) + dot(&add, &dadd), 0);
    struct ampk_tensor *all[] = {&x, &add, &out, &d, &dx, &dadd};
    for (int i = 0; i < 6; i++)
        release(all[i]);
}

AMP_TEST(shortcut_gradients_are_adjoint)
{
    for (int i = 0; i < 30; i++) {
        int n = one_to(2), c = one_to(4), h = one_to(3), w = one_to(3), s = one_to(3);
        check_shortcut(make_whole(n, c, h, w), make_whole(n, c, h, w), 1.5f, -2);
        check_shortcut(make_whole(n, one_to(4), h, w), make_whole(n, c, s * h, s * w), 1, .5f);
        check_shortcut(make_whole(n, one_to(4), s * h, s * w), make_whole(n, c, h, w), 1, .5f);
    }
}

/* The activation's slope at `out` multiplies d before all else. */
AMP_TEST(shortcut_gradient_of_activation)
{
    struct ampk_tensor out = make_uniform(1, 2, 2, 2, -1, 1), d = make_whole(1, 2, 2, 2);
    struct ampk_tensor dx = make(1, 2, 2, 2), dadd = make(1, 2, 2, 2);
    reference->shortcut_backward(NULL, &out, &d, 2, 4, AMPK_RELU, &dx, false, &dadd, false, NULL,
                                 NULL);
    for (int i = 0; i < 8; i++) {
        float g = ((float *)out.data)[i] > 0 ? ((float *)d.data)[i] : 0;
        CHECK_NEAR(((float *)dx.data)[i], 2 * g, 0);
        CHECK_NEAR(((float *)dadd.data)[i], 4 * g, 0);
    }
    release(&out), release(&d), release(&dx), release(&dadd);
}

AMP_TEST_MAIN
