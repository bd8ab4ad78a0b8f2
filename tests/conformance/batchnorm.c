/* Conformance: batch-norm and the gradient of bias and activation. */
#include "tests/conformance/batchnorm_rig.h"

/* In half of the cases all tensors are what networks mostly have, one dtype in NHWC without gaps
 * and channels by 8, in the others any mixture. */
struct kind {
    bool usual;
    struct ampk_tensor shape;
};

static struct kind random_kind(void)
{
    struct kind k = {random_bool(), random_shape(random_dtype(), AMPK_NHWC)};
    if (k.usual)
        k.shape = describe(k.shape.dtype, AMPK_NHWC, k.shape.n, RANDOM_OF(8, 16, 24, 72, 128),
                           k.shape.h, k.shape.w);
    return k;
}

/* Another NHWC tensor of the case. */
static struct ampk_tensor another(struct kind k)
{
    if (k.usual) return k.shape;
    return describe_nhwc(random_dtype(), k.shape.n, k.shape.c, k.shape.h, k.shape.w);
}

/* A tensor of the case for which any layout is allowed. */
static struct ampk_tensor another_of_any_layout(struct kind k)
{
    if (k.usual) return k.shape;
    return describe_slice(random_dtype(), random_int(AMPK_NHWC, AMPK_NCHW), k.shape.n, k.shape.c,
                          k.shape.h, k.shape.w);
}

/* The same for the output, which may be a slice. */
static struct ampk_tensor output_of_any_layout(struct kind k)
{
    struct ampk_tensor t = another_of_any_layout(k);
    if (t.layout == AMPK_NCHW) return t;
    return describe_channels(t.dtype, t.n, t.c, t.h, t.w);
}

static void sums_case(struct rig *r)
{
    struct pair y = input_tensor(r, random_kind().shape);
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

/* What finalize writes, both sides. */
struct statistics {
    struct pair mean, variance, rolling_mean, rolling_variance;
};

static struct statistics make_statistics(struct rig *r, int c)
{
    return (struct statistics){output_array(r, c, false), output_array(r, c, false),
                               output_array(r, c, true), output_array(r, c, true)};
}

/* Bounds of all that is added up for each of them. */
static struct ampk_tensor magnitude_of_mean(struct rig *r, const struct pair *mean,
                                            const float *sums, const float *shift, double count)
{
    struct ampk_tensor t = blank(r, &mean->exact);
    for (int i = 0; i < t.c; i++)
        ((float *)t.data)[i] = (float)(fabs(shift[i]) + fabs(sums[i]) / count);
    return t;
}

static struct ampk_tensor magnitude_of_variance(struct rig *r, const struct pair *variance,
                                                const float *sums, double count)
{
    struct ampk_tensor t = blank(r, &variance->exact);
    double below = count > 1 ? count - 1 : 1;
    for (int i = 0; i < t.c; i++)
        ((float *)t.data)[i] = (float)((fabs(sums[t.c + i]) + sums[i] * sums[i] / count) / below);
    return t;
}

static struct ampk_tensor magnitude_of_rolling(struct rig *r, const struct pair *rolling,
                                               const struct ampk_tensor *batch)
{
    struct ampk_tensor t = absolute(r, &rolling->exact);
    for (int i = 0; i < t.c; i++)
        ((float *)t.data)[i] += ((float *)batch->data)[i];
    return t;
}

static void finalize_case(struct rig *r)
{
    int c = random_channels();
    size_t count = RANDOM_OF(1, 2, 7, 100, 100000);
    enum ampk_bn_rule rule = random_rule();
    struct pair sums = input_array(r, 2 * c), given_shift = input_array(r, c);
    struct statistics s = make_statistics(r, c);
    const struct pair *shift = random_bool() ? &given_shift : &s.rolling_mean;
    const float *sum = sums.exact.data, *by = shift->exact.data;
    struct ampk_tensor mean = magnitude_of_mean(r, &s.mean, sum, by, count);
    struct ampk_tensor variance = magnitude_of_variance(r, &s.variance, sum, count);
    struct ampk_tensor rolling_mean = magnitude_of_rolling(r, &s.rolling_mean, &mean);
    struct ampk_tensor rolling_variance = magnitude_of_rolling(r, &s.rolling_variance, &variance);
    struct amax amax = make_amax(r);
    r->backend->bn_finalize(r->context, c, sums.tested.data, shift->tested.data, count, rule,
                            s.mean.tested.data, s.variance.tested.data, s.rolling_mean.tested.data,
                            s.rolling_variance.tested.data, tested_amax(&amax));
    ampk_reference.bn_finalize(NULL, c, sum, by, count, rule, s.mean.exact.data,
                               s.variance.exact.data, s.rolling_mean.exact.data,
                               s.rolling_variance.exact.data, &amax.exact);
    check_output(r, "mean", &s.mean, (struct tolerance){3, &mean, 0, 0});
    check_output(r, "variance", &s.variance, (struct tolerance){5, &variance, 0, 0});
    double slack = check_output(r, "rolling mean", &s.rolling_mean,
                                (struct tolerance){4, &rolling_mean, 0, 0});
    slack = fmax(slack, check_output(r, "rolling variance", &s.rolling_variance,
                                     (struct tolerance){6, &rolling_variance, 0, 0}));
    check_amax(r, "bn_finalize", &amax, slack);
}

AMP_TEST(bn_finalize)
{
    run_cases(finalize_case, 40);
}

/* What is not finite arrives in the rolling statistics and in their word. */
static void lost_case(struct rig *r)
{
    float sums[2 * 5] = {0}, shift[5] = {0};
    sums[random_int(0, 9)] = random_bool() ? NAN : INFINITY;
    struct statistics s = make_statistics(r, 5);
    struct amax amax = make_amax(r);
    r->backend->bn_finalize(r->context, 5, input_bytes(r, sums, sizeof sums),
                            input_bytes(r, shift, sizeof shift), 100, random_rule(),
                            s.mean.tested.data, s.variance.tested.data, s.rolling_mean.tested.data,
                            s.rolling_variance.tested.data, tested_amax(&amax));
    uint32_t word;
    r->backend->read(r->context, &word, tested_amax(&amax), sizeof word);
    CHECK(!ampk_amax_is_finite(word));
}

AMP_TEST(lost_statistics_are_seen)
{
    run_cases(lost_case, 20);
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
    struct pair sums = output_array(r, 40, false);
    struct statistics s = make_statistics(r, 20);
    enum ampk_bn_rule rule = random_rule();
    double below = rule == AMPK_BN_CUDNN ? 512 : 511;
    float shift[20];
    for (int c = 0; c < 20; c++)
        shift[c] = 1000.25f;
    const float *by = input_bytes(r, shift, sizeof shift);
    r->backend->bn_sums(r->context, &y.tested, by, sums.tested.data);
    r->backend->bn_finalize(r->context, 20, sums.tested.data, by, 512, rule, s.mean.tested.data,
                            s.variance.tested.data, s.rolling_mean.tested.data,
                            s.rolling_variance.tested.data, NULL);
    double *values = ampk_ref_load(&y.exact);
    for (int c = 0; c < 20; c++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < 512; i++)
            sum += values[(i / 256 * 20 + c) * 256 + i % 256];
        for (int i = 0; i < 512; i++)
            squares += pow(values[(i / 256 * 20 + c) * 256 + i % 256] - sum / 512, 2);
        ((float *)s.mean.exact.data)[c] = (float)(sum / 512);
        ((float *)s.variance.exact.data)[c] = (float)(squares / below);
    }
    free(values);
    check_output(r, "mean", &s.mean, (struct tolerance){0, NULL, 1e-7, 0});
    check_output(r, "variance", &s.variance, (struct tolerance){0, NULL, 1e-5, 0});
}

AMP_TEST(variance_is_free_of_cancellation)
{
    run_cases(cancellation_case, 3);
}

/* ---- batch-norm with activation ---- */

static void bn_forward_case(struct rig *r)
{
    struct kind k = random_kind();
    struct layer l = make_layer(r, k.shape.c, positive_value_or_zero);
    struct pair y = input_tensor(r, k.shape);
    struct pair out = output_tensor(r, output_of_any_layout(k), false);
    enum ampk_activation a = random_activation();
    bool residual = random_bool();
    struct pair add = input_tensor(r, another_of_any_layout(k));
    struct ampk_tensor size = absolute(r, &y.exact), magnitude = blank(r, &out.exact);
    struct ampk_tensor add_size = absolute(r, &add.exact);
    struct ampk_batchnorm sizes = magnitude_layer(r, &l);
    ampk_reference.bn_act_forward(NULL, &size, &sizes, AMPK_LINEAR, residual ? &add_size : NULL,
                                  &magnitude, NULL);
    struct amax amax = make_amax(r);
    r->backend->bn_act_forward(r->context, &y.tested, &l.tested, a, residual ? &add.tested : NULL,
                               &out.tested, tested_amax(&amax));
    ampk_reference.bn_act_forward(NULL, &y.exact, &l.exact, a, residual ? &add.exact : NULL,
                                  &out.exact, &amax.exact);
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
    struct amax amax, db_amax;
    double count;
};

static struct backward make_backward(struct rig *r, struct kind k, enum ampk_activation activation,
                                     struct pair out)
{
    struct ampk_tensor shape = k.shape;
    struct backward b = {.activation = activation, .out = out};
    b.dbias = output_array(r, shape.c, false);
    b.amax = make_amax(r);
    b.db_amax = make_amax(r);
    b.count = (double)shape.n * shape.h * shape.w;
    if (random_bool()) { /* in place */
        b.dy = output_tensor(r, shape, true);
        b.d = b.dy;
        b.d.exact = b.dy.exact;
    } else {
        b.d = input_tensor(r, another_of_any_layout(k));
        b.dy = output_tensor(r, shape, false);
    }
    b.g = gradient_magnitude(r, b.activation, &b.out.exact, &b.d.exact);
    return b;
}

/* What the backend's forward pass makes of y; the reference is given the same. Of two slopes the
 * backend finds the sign from y, so that here it must not be lost in a zero. */
static struct pair forward_output(struct rig *r, struct kind k, const struct pair *y,
                                  const struct layer *l, enum ampk_activation activation)
{
    struct ampk_tensor shape = output_of_any_layout(k);
    if (ampk_is_two_slopes(activation)) shape.dtype = AMPK_FP32;
    struct pair out = output_tensor(r, shape, false);
    r->backend->bn_act_forward(r->context, &y->tested, &l->tested, activation, NULL, &out.tested,
                               NULL);
    out.exact = download(r, &out);
    return out;
}

static void bn_backward_case(struct rig *r)
{
    struct kind k = random_kind();
    struct ampk_tensor shape = k.shape;
    enum ampk_activation a = random_activation();
    /* A variance of zero makes outputs that are too large for the other activations' gradients. */
    struct layer l = make_layer(r, shape.c, is_simple(a) ? positive_value_or_zero : positive_value);
    struct pair y = input_tensor(r, another(k));
    struct backward b = make_backward(r, k, a, forward_output(r, k, &y, &l, a));
    struct pair dscale = output_array(r, shape.c, false);
    struct ampk_tensor to_scale = blank(r, &dscale.exact), to_bias = blank(r, &b.dbias.exact);
    for (int c = 0; c < shape.c; c++)
        bound_channel(&b.g, &y.exact, &l.exact, c, to_scale.data, to_bias.data);
    bool without_out = ampk_is_two_slopes(a) && random_bool();
    r->backend->bn_act_backward(r->context, &y.tested, without_out ? NULL : &b.out.tested,
                                &l.tested, b.activation, &b.d.tested, &b.dy.tested,
                                dscale.tested.data, b.dbias.tested.data, tested_amax(&b.amax),
                                tested_amax(&b.db_amax));
    ampk_reference.bn_act_backward(NULL, &y.exact, &b.out.exact, &l.exact, b.activation, &b.d.exact,
                                   &b.dy.exact, dscale.exact.data, b.dbias.exact.data,
                                   &b.amax.exact, &b.db_amax.exact);
    double terms = roundings(b.count) + 12;
    double slack =
        check_output(r, "bn_act_backward dy", &b.dy, (struct tolerance){terms, &b.g, 0, 0});
    check_amax(r, "bn_act_backward", &b.amax, slack);
    slack = check_output(r, "dscale", &dscale, (struct tolerance){terms, &to_scale, 0, 0});
    slack =
        fmax(slack, check_output(r, "dbias", &b.dbias, (struct tolerance){terms, &to_bias, 0, 0}));
    check_amax(r, "bn_act_backward dscale, dbias", &b.db_amax, slack);
}

AMP_TEST(bn_act_backward)
{
    run_cases(bn_backward_case, 80);
}

static void bias_backward_case(struct rig *r)
{
    struct kind k = random_kind();
    struct pair out = input_tensor_of(r, another_of_any_layout(k), random_output);
    struct backward b = make_backward(r, k, random_activation(), out);
    struct ampk_tensor to_bias = blank(r, &b.dbias.exact);
    for (int c = 0; c < k.shape.c; c++)
        ((float *)to_bias.data)[c] = (float)sum_channel(&b.g, &b.g, 0, c).g;
    r->backend->bias_act_backward(r->context, &b.out.tested, b.activation, &b.d.tested,
                                  &b.dy.tested, b.dbias.tested.data, tested_amax(&b.amax),
                                  tested_amax(&b.db_amax));
    ampk_reference.bias_act_backward(NULL, &b.out.exact, b.activation, &b.d.exact, &b.dy.exact,
                                     b.dbias.exact.data, &b.amax.exact, &b.db_amax.exact);
    double slack =
        check_output(r, "bias_act_backward dy", &b.dy, (struct tolerance){6, &b.g, 0, 0});
    check_amax(r, "bias_act_backward", &b.amax, slack);
    slack = check_output(r, "dbias", &b.dbias,
                         (struct tolerance){roundings(b.count) + 6, &to_bias, 0, 0});
    check_amax(r, "bias_act_backward dbias", &b.db_amax, slack);
}

AMP_TEST(bias_act_backward)
{
    run_cases(bias_backward_case, 60);
}

AMP_TEST_MAIN
