/* Conformance: batch-norm and the gradient of bias and activation. */
#include "tests/conformance/activation_error.h"

static double positive_value(void)
{
    return test_random() % 16 == 0 ? 0 : test_uniform(.01, 4);
}

static void sums_case(struct rig *r)
{
    struct pair y = input_tensor(r, random_shape(random_dtype(), AMPK_NHWC));
    struct pair shift = input_array(r, y.exact.c), sums = output_array(r, 2 * y.exact.c, false);
    struct ampk_tensor magnitude = sums_magnitude(r, &y.exact, shift.exact.data);
    r->backend->bn_sums(r->context, &y.tested, shift.tested.data, sums.tested.data);
    ampk_reference.bn_sums(NULL, &y.exact, shift.exact.data, sums.exact.data);
    double count = (double)y.exact.n * y.exact.h * y.exact.w;
    check_output(r, "bn_sums", &sums, (struct tolerance){roundings(count) + 2, &magnitude, 0, 0});
}

AMP_TEST(bn_sums)
{
    run_cases(sums_case, 40);
}

static void statistics_case(struct rig *r)
{
    int c = random_channels();
    size_t count = RANDOM_OF(1, 2, 7, 100, 100000);
    struct pair sums = input_array(r, 2 * c), shift = input_array(r, c);
    struct pair mean = output_array(r, c, false), variance = output_array(r, c, false);
    r->backend->bn_statistics(r->context, c, sums.tested.data, shift.tested.data, count,
                              mean.tested.data, variance.tested.data);
    ampk_reference.bn_statistics(NULL, c, sums.exact.data, shift.exact.data, count, mean.exact.data,
                                 variance.exact.data);
    const float *sum = sums.exact.data, *by = shift.exact.data;
    struct ampk_tensor to_mean = blank(r, &mean.exact), to_variance = blank(r, &variance.exact);
    for (int i = 0; i < c; i++) {
        double s = sum[i], squares = fabs(sum[c + i]), below = count > 1 ? count - 1. : 1;
        ((float *)to_mean.data)[i] = (float)(fabs(by[i]) + fabs(s) / count);
        ((float *)to_variance.data)[i] = (float)((squares + s * s / count) / below);
    }
    check_output(r, "bn_statistics mean", &mean, (struct tolerance){3, &to_mean, 0, 0});
    check_output(r, "bn_statistics variance", &variance, (struct tolerance){5, &to_variance, 0, 0});
}

AMP_TEST(bn_statistics)
{
    run_cases(statistics_case, 20);
}

static double far_from_zero(void)
{
    return 1000 + test_uniform(-1, 1);
}

/* With shift near the mean the variance keeps its digits: values of 1000 +- 1. */
static void cancellation_case(struct rig *r)
{
    struct ampk_tensor shape = describe_nhwc(AMPK_FP32, 2, 20, 16, 16);
    struct pair y = input_tensor_of(r, shape, far_from_zero);
    struct pair sums = output_array(r, 40, false), mean = output_array(r, 20, false);
    struct pair variance = output_array(r, 20, false);
    float shift[20];
    for (int c = 0; c < 20; c++)
        shift[c] = 1000.25f;
    const float *by = input_bytes(r, shift, sizeof shift);
    r->backend->bn_sums(r->context, &y.tested, by, sums.tested.data);
    r->backend->bn_statistics(r->context, 20, sums.tested.data, by, 512, mean.tested.data,
                              variance.tested.data);
    double *values = ampk_ref_load(&y.exact);
    for (int c = 0; c < 20; c++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < 512; i++)
            sum += values[(i / 256 * 20 + c) * 256 + i % 256];
        for (int i = 0; i < 512; i++)
            squares += pow(values[(i / 256 * 20 + c) * 256 + i % 256] - sum / 512, 2);
        ((float *)mean.exact.data)[c] = (float)(sum / 512);
        ((float *)variance.exact.data)[c] = (float)(squares / 511);
    }
    free(values);
    check_output(r, "mean", &mean, (struct tolerance){0, NULL, 1e-7, 0});
    check_output(r, "variance", &variance, (struct tolerance){0, NULL, 1e-5, 0});
}

AMP_TEST(variance_is_free_of_cancellation)
{
    run_cases(cancellation_case, 3);
}

static void roll_case(struct rig *r)
{
    int c = random_channels();
    struct pair mean = input_array(r, c);
    struct pair variance = input_tensor_of(r, describe_array(c), positive_value);
    struct pair to_mean = output_array(r, c, true), to_variance = output_array(r, c, true);
    struct ampk_tensor mean_size = absolute(r, &to_mean.exact), size = absolute(r, &mean.exact);
    struct ampk_tensor variance_size = absolute(r, &to_variance.exact);
    ampk_reference.bn_roll(NULL, c, size.data, variance.exact.data, mean_size.data,
                           variance_size.data);
    r->backend->bn_roll(r->context, c, mean.tested.data, variance.tested.data, to_mean.tested.data,
                        to_variance.tested.data);
    ampk_reference.bn_roll(NULL, c, mean.exact.data, variance.exact.data, to_mean.exact.data,
                           to_variance.exact.data);
    check_output(r, "bn_roll mean", &to_mean, (struct tolerance){3, &mean_size, 0, 0});
    check_output(r, "bn_roll variance", &to_variance, (struct tolerance){3, &variance_size, 0, 0});
}

AMP_TEST(bn_roll)
{
    run_cases(roll_case, 10);
}

/* ---- batch-norm with activation ---- */

/* The parameters of a layer, both sides. */
struct layer {
    struct pair scale, bias, mean, variance;
    struct ampk_batchnorm tested, exact;
};

static struct layer make_layer(struct rig *r, int c)
{
    struct layer l = {input_array(r, c),
                      input_array(r, c),
                      input_array(r, c),
                      input_tensor_of(r, describe_array(c), positive_value),
                      {0},
                      {0}};
    l.tested = (struct ampk_batchnorm){l.scale.tested.data, l.bias.tested.data, l.mean.tested.data,
                                       l.variance.tested.data};
    l.exact = (struct ampk_batchnorm){l.scale.exact.data, l.bias.exact.data, l.mean.exact.data,
                                      l.variance.exact.data};
    return l;
}

/* The layer that adds up what `l` adds and subtracts, if it is given |y|. */
static struct ampk_batchnorm magnitude_layer(struct rig *r, const struct layer *l)
{
    struct ampk_tensor scale = absolute(r, &l->scale.exact), bias = absolute(r, &l->bias.exact);
    struct ampk_tensor mean = absolute(r, &l->mean.exact);
    float *minus = mean.data;
    for (int c = 0; c < mean.c; c++)
        minus[c] = -minus[c];
    return (struct ampk_batchnorm){scale.data, bias.data, minus, l->exact.variance};
}

static void bn_forward_case(struct rig *r)
{
    struct ampk_tensor shape = random_shape(random_dtype(), AMPK_NHWC);
    struct ampk_tensor to = describe_slice(random_dtype(), random_int(AMPK_NHWC, AMPK_NCHW),
                                           shape.n, shape.c, shape.h, shape.w);
    struct layer l = make_layer(r, shape.c);
    struct pair y = input_tensor(r, shape), out = output_tensor(r, to, false);
    enum ampk_activation a = random_activation();
    struct ampk_tensor size = absolute(r, &y.exact), magnitude = blank(r, &out.exact);
    struct ampk_batchnorm sizes = magnitude_layer(r, &l);
    ampk_reference.bn_act_forward(NULL, &size, &sizes, AMPK_LINEAR, &magnitude, NULL);
    struct amax amax = make_amax(r);
    r->backend->bn_act_forward(r->context, &y.tested, &l.tested, a, &out.tested,
                               tested_amax(&amax));
    ampk_reference.bn_act_forward(NULL, &y.exact, &l.exact, a, &out.exact, &amax.exact);
    double slack = check_output(r, "bn_act_forward", &out, activated(a, 8, &magnitude));
    check_amax(r, "bn_act_forward", &amax, slack);
}

AMP_TEST(bn_act_forward)
{
    run_cases(bn_forward_case, 80);
}

/* What a backward pass reads and writes. */
struct backward {
    struct pair out, d, dy, dbias;
    enum ampk_activation activation;
    struct ampk_tensor g; /* bound of |d * activation'(out)| */
    struct amax amax;
    double count;
};

static struct backward make_backward(struct rig *r, struct ampk_tensor shape)
{
    struct backward b = {.activation = random_activation()};
    struct ampk_tensor other = describe_slice(random_dtype(), random_int(AMPK_NHWC, AMPK_NCHW),
                                              shape.n, shape.c, shape.h, shape.w);
    b.out = input_tensor_of(r, other, random_output);
    b.dbias = output_array(r, shape.c, false);
    b.amax = make_amax(r);
    b.count = (double)shape.n * shape.h * shape.w;
    if (random_bool()) { /* in place */
        b.dy = output_tensor(r, shape, true);
        b.d = b.dy;
        b.d.exact = b.dy.exact;
    } else {
        struct ampk_tensor any = describe_slice(random_dtype(), random_int(AMPK_NHWC, AMPK_NCHW),
                                                shape.n, shape.c, shape.h, shape.w);
        b.d = input_tensor(r, any);
        b.dy = output_tensor(r, shape, false);
    }
    b.g = gradient_magnitude(r, b.activation, &b.out.exact, &b.d.exact);
    return b;
}

/* Sums over a channel of g and of g*(|y|+|mean|). */
struct channel_sums {
    double g, gy;
};

static struct channel_sums sum_channel(const struct ampk_tensor *g, const struct ampk_tensor *y,
                                       double mean, int c)
{
    struct channel_sums s = {0, 0};
    for (int n = 0; n < y->n; n++)
        for (int h = 0; h < y->h; h++)
            for (int w = 0; w < y->w; w++) {
                double size = ampk_ref_get(g, n, c, h, w);
                s.g += size;
                s.gy += size * (fabs(ampk_ref_get(y, n, c, h, w)) + mean);
            }
    return s;
}

/* Bounds of all that is added up for dy, dscale and dbias; g is turned into that for dy. */
static void bound_channel(struct backward *b, const struct ampk_tensor *y,
                          const struct ampk_batchnorm *bn, int c, float *to_scale, float *to_bias)
{
    double mean = fabs(bn->mean[c]), scale = fabs(bn->scale[c]);
    double inverse = 1 / sqrt(bn->variance[c] + 1e-5);
    struct channel_sums s = sum_channel(&b->g, y, mean, c);
    to_bias[c] = (float)s.g;
    to_scale[c] = (float)(s.gy / (sqrt(bn->variance[c]) + 1e-6));
    for (int n = 0; n < y->n; n++)
        for (int h = 0; h < y->h; h++)
            for (int w = 0; w < y->w; w++) {
                double distance = fabs(ampk_ref_get(y, n, c, h, w)) + mean;
                double g = ampk_ref_get(&b->g, n, c, h, w) * scale * inverse;
                g += scale * s.gy * pow(inverse, 3) * distance / b->count;
                g += scale * s.g * inverse / b->count;
                ampk_ref_set(&b->g, n, c, h, w, g, false, NULL);
            }
}

static void bn_backward_case(struct rig *r)
{
    struct ampk_tensor shape = random_shape(random_dtype(), AMPK_NHWC);
    struct layer l = make_layer(r, shape.c);
    struct pair y =
        input_tensor(r, describe_nhwc(random_dtype(), shape.n, shape.c, shape.h, shape.w));
    struct backward b = make_backward(r, shape);
    struct pair dscale = output_array(r, shape.c, false);
    struct ampk_tensor to_scale = blank(r, &dscale.exact), to_bias = blank(r, &b.dbias.exact);
    for (int c = 0; c < shape.c; c++)
        bound_channel(&b, &y.exact, &l.exact, c, to_scale.data, to_bias.data);
    r->backend->bn_act_backward(r->context, &y.tested, &b.out.tested, &l.tested, b.activation,
                                &b.d.tested, &b.dy.tested, dscale.tested.data, b.dbias.tested.data,
                                tested_amax(&b.amax));
    ampk_reference.bn_act_backward(NULL, &y.exact, &b.out.exact, &l.exact, b.activation, &b.d.exact,
                                   &b.dy.exact, dscale.exact.data, b.dbias.exact.data,
                                   &b.amax.exact);
    double terms = roundings(b.count) + 12;
    double slack =
        check_output(r, "bn_act_backward dy", &b.dy, (struct tolerance){terms, &b.g, 0, 0});
    check_amax(r, "bn_act_backward", &b.amax, slack);
    check_output(r, "dscale", &dscale, (struct tolerance){terms, &to_scale, 0, 0});
    check_output(r, "dbias", &b.dbias, (struct tolerance){terms, &to_bias, 0, 0});
}

AMP_TEST(bn_act_backward)
{
    run_cases(bn_backward_case, 80);
}

static void bias_backward_case(struct rig *r)
{
    struct ampk_tensor shape = random_shape(random_dtype(), AMPK_NHWC);
    struct backward b = make_backward(r, shape);
    struct ampk_tensor to_bias = blank(r, &b.dbias.exact);
    for (int c = 0; c < shape.c; c++)
        ((float *)to_bias.data)[c] = (float)sum_channel(&b.g, &b.g, 0, c).g;
    r->backend->bias_act_backward(r->context, &b.out.tested, b.activation, &b.d.tested,
                                  &b.dy.tested, b.dbias.tested.data, tested_amax(&b.amax));
    ampk_reference.bias_act_backward(NULL, &b.out.exact, b.activation, &b.d.exact, &b.dy.exact,
                                     b.dbias.exact.data, &b.amax.exact);
    double slack =
        check_output(r, "bias_act_backward dy", &b.dy, (struct tolerance){6, &b.g, 0, 0});
    check_amax(r, "bias_act_backward", &b.amax, slack);
    check_output(r, "dbias", &b.dbias, (struct tolerance){roundings(b.count) + 6, &to_bias, 0, 0});
}

AMP_TEST(bias_act_backward)
{
    run_cases(bias_backward_case, 60);
}

AMP_TEST_MAIN
