/* Conformance: batch-norm and the gradient of bias and activation. */
#include "layers.h"

/* In half of the cases all tensors are what networks mostly have, one dtype in NHWC without gaps
 * and channels by 8, in the others any mixture, sometimes of more channels than are worked on at
 * once. */
struct kind {
    bool usual;
    struct ampk_tensor shape;
};

/* A case is of one so large that a thread of the CUDA backend does several rows (ops/rows.h). */
static bool large;

static struct ampk_tensor random_large_shape(void)
{
    enum ampk_dtype dtype = random_dtype();
    return describe(dtype, AMPK_NHWC, 2, dtype == AMPK_FP32 ? 1024 : 2048, random_int(23, 24),
                    random_int(24, 25));
}

static struct kind random_kind(void)
{
    if (large) return (struct kind){true, random_large_shape()};
    struct kind k = {random_bool(), random_shape(random_dtype(), AMPK_NHWC)};
    if (k.usual)
        k.shape = describe(k.shape.dtype, AMPK_NHWC, k.shape.n, RANDOM_OF(8, 16, 24, 72, 128),
                           k.shape.h, k.shape.w);
    else if (test_random() % 8 == 0)
        k.shape = describe_nhwc(k.shape.dtype, 1, 300, random_int(1, 3), random_int(1, 3));
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

/* The same for the output and for the gradient there, which may be slices. */
static struct ampk_tensor output_of_any_layout(struct kind k)
{
    struct ampk_tensor t = another_of_any_layout(k);
    if (t.layout == AMPK_NCHW || (k.usual && random_bool())) return t;
    return describe_channels(t.dtype, t.n, t.c, t.h, t.w);
}

static void statistics_case(struct rig *r)
{
    struct pair y = input_tensor(r, random_kind().shape);
    struct statistics s = make_statistics(r, y.exact.c);
    struct ampk_bn_statistics tested = tested_statistics(&s);
    r->backend->bn_statistics(r->context, &y.tested, &tested);
    check_statistics(r, &s, &y.exact);
}

AMP_TEST(bn_statistics)
{
    run_cases(statistics_case, 60);
}

/* One value has no variance, two have one. */
static void few_values_case(struct rig *r)
{
    int n = random_int(1, 2);
    struct pair y = input_tensor(r, describe_nhwc(random_dtype(), n, random_channels(), 1, 1));
    struct statistics s = make_statistics(r, y.exact.c);
    struct ampk_bn_statistics tested = tested_statistics(&s);
    r->backend->bn_statistics(r->context, &y.tested, &tested);
    check_statistics(r, &s, &y.exact);
    struct ampk_tensor variance = download(r, &s.variance);
    for (int c = 0; n == 1 && c < variance.c; c++)
        CHECK(((float *)variance.data)[c] == 0);
}

AMP_TEST(statistics_of_few_values)
{
    run_cases(few_values_case, 20);
}

static double lost_value(void)
{
    return random_bool() ? NAN : INFINITY;
}

/* What is not finite arrives in the rolling statistics and in their word. */
static void lost_case(struct rig *r)
{
    int c = random_channels(), lost = random_int(0, c - 1);
    struct ampk_tensor shape = describe_nhwc(random_dtype(), random_int(1, 3), c, 4, 5);
    give_data(r, &shape);
    fill(&shape, random_value);
    int n = random_int(0, shape.n - 1);
    ampk_ref_set_flat(&shape, n, lost * 20 + random_int(0, 19), lost_value(), false, NULL);
    struct pair y = make_pair(r, shape, true);
    struct statistics s = make_statistics(r, c);
    struct ampk_bn_statistics tested = tested_statistics(&s);
    r->backend->bn_statistics(r->context, &y.tested, &tested);
    uint32_t word;
    r->backend->read(r->context, &word, tested.amax, sizeof word);
    CHECK(!ampk_amax_is_finite(word));
    struct ampk_tensor mean = download(r, &s.rolling_mean);
    for (int i = 0; i < c; i++)
        CHECK(!isfinite(((float *)mean.data)[i]) == (i == lost));
}

AMP_TEST(lost_statistics_are_seen)
{
    run_cases(lost_case, 20);
}

static double far_from_zero(void)
{
    return 1000 + test_uniform(-1, 1);
}

static double near_there(void)
{
    return 1000.25;
}

/* With the rolling mean near the mean the variance keeps its digits: values of 1000 +- 1. */
static void cancellation_case(struct rig *r)
{
    struct ampk_tensor shape = describe_nhwc(AMPK_FP32, 2, 20, 16, 16);
    struct pair y = input_tensor_of(r, shape, far_from_zero);
    struct statistics s = make_statistics(r, 20);
    s.rolling_mean = output_tensor_of(r, describe_array(20), near_there);
    struct ampk_bn_statistics tested = tested_statistics(&s);
    r->backend->bn_statistics(r->context, &y.tested, &tested);
    double below = tested.rule == AMPK_BN_CUDNN ? 512 : 511;
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

/* All pixels of a channel are equal. Rounded sums would then come to less than 0 as often as to
 * more; the root of a variance below 0 is NaN. */
static void constant_case(struct rig *r)
{
    struct ampk_tensor shape = describe_nhwc(AMPK_FP32, 3, 40, 7, 9);
    float *data = own(r, (size_t)3 * 7 * 9 * 40 * sizeof *data);
    for (int c = 0; c < 40; c++) {
        float value = (float)test_uniform(-100, 100);
        for (int pixel = 0; pixel < 3 * 7 * 9; pixel++)
            data[pixel * 40 + c] = value;
    }
    shape.data = data;
    struct pair y = make_pair(r, shape, true);
    struct statistics s = make_statistics(r, 40);
    struct ampk_bn_statistics tested = tested_statistics(&s);
    r->backend->bn_statistics(r->context, &y.tested, &tested);
    struct ampk_tensor variance = download(r, &s.variance);
    for (int c = 0; c < 40; c++)
        CHECK(((float *)variance.data)[c] >= 0);
}

AMP_TEST(the_variance_of_equal_values_is_not_negative)
{
    run_cases(constant_case, 5);
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
                                  &magnitude, NULL, NULL);
    struct amax amax = make_amax(r), y_amax = make_amax(r);
    r->backend->bn_act_forward(r->context, &y.tested, &l.tested, a, residual ? &add.tested : NULL,
                               &out.tested, tested_amax(&y_amax), tested_amax(&amax));
    ampk_reference.bn_act_forward(NULL, &y.exact, &l.exact, a, residual ? &add.exact : NULL,
                                  &out.exact, &y_amax.exact, &amax.exact);
    check_amax(r, "bn_act_forward y", &y_amax, 0);
    double slack = check_output(r, "bn_act_forward", &out, activated(a, 8, &magnitude));
    check_amax(r, "bn_act_forward", &amax, slack);
}

AMP_TEST(bn_act_forward)
{
    run_cases(bn_forward_case, 80);
}

/* One value of y that is not finite; what FP16 refused was at least 65520. */
static void refused_case(struct rig *r)
{
    struct ampk_tensor shape = random_kind().shape;
    give_data(r, &shape);
    fill(&shape, random_value);
    bool nan = random_bool();
    size_t i = test_random() % ((size_t)shape.c * shape.h * shape.w);
    ampk_ref_set_flat(&shape, random_int(0, shape.n - 1), i, nan ? NAN : INFINITY, false, NULL);
    struct pair y = make_pair(r, shape, true);
    struct layer l = make_layer(r, shape.c, positive_value);
    struct pair out =
        output_tensor(r, describe(AMPK_FP32, AMPK_NHWC, shape.n, shape.c, shape.h, shape.w), false);
    struct amax y_amax = make_amax(r);
    r->backend->bn_act_forward(r->context, &y.tested, &l.tested, AMPK_LEAKY, NULL, &out.tested,
                               tested_amax(&y_amax), NULL);
    uint32_t word;
    r->backend->read(r->context, &word, tested_amax(&y_amax), sizeof word);
    if (shape.dtype == AMPK_FP16 && !nan)
        CHECK(float_of(word) == fmaxf(65520, float_of(y_amax.exact)));
    else
        CHECK(!ampk_amax_is_finite(word));
}

AMP_TEST(what_is_not_finite_in_y_is_seen)
{
    run_cases(refused_case, 30);
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
        b.d = input_tensor(r, output_of_any_layout(k));
        b.dy = output_tensor(r, shape, false);
    }
    b.g = gradient_magnitude(r, b.activation, &b.out.exact, &b.d.exact);
    return b;
}

/* What the backend's forward pass makes of y; the reference is given the same. Where the backend
 * computes the activation's input again, no more than it itself may be lost here: of two slopes not
 * the sign, of mish and swish nothing of the input, which is what the reference takes. */
static struct pair forward_output(struct rig *r, struct kind k, const struct pair *y,
                                  const struct layer *l, enum ampk_activation activation)
{
    struct ampk_tensor shape = output_of_any_layout(k);
    if (ampk_recomputes_input(activation)) shape.dtype = AMPK_FP32;
    if (ampk_is_gradient_of_input(activation)) activation = AMPK_LINEAR;
    struct pair out = output_tensor(r, shape, false);
    r->backend->bn_act_forward(r->context, &y->tested, &l->tested, activation, NULL, &out.tested,
                               NULL, NULL);
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
    bool without_out = ampk_recomputes_input(a) && random_bool();
    r->backend->bn_act_backward(r->context, &y.tested, without_out ? NULL : &b.out.tested,
                                &l.tested, b.activation, &b.d.tested, &b.dy.tested,
                                dscale.tested.data, b.dbias.tested.data, tested_amax(&b.amax),
                                tested_amax(&b.db_amax));
    ampk_reference.bn_act_backward(NULL, &y.exact, &b.out.exact, &l.exact, b.activation, &b.d.exact,
                                   &b.dy.exact, dscale.exact.data, b.dbias.exact.data,
                                   &b.amax.exact, &b.db_amax.exact);
    double terms = roundings(b.count) + 6 + gradient_terms(a);
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
    struct pair out = input_tensor_of(r, output_of_any_layout(k), random_output);
    struct backward b = make_backward(r, k, random_activation(), out);
    struct ampk_tensor to_bias = blank(r, &b.dbias.exact);
    double terms = gradient_terms(b.activation);
    for (int c = 0; c < k.shape.c; c++)
        ((float *)to_bias.data)[c] = (float)sum_channel(&b.g, &b.g, 0, c).g;
    r->backend->bias_act_backward(r->context, &b.out.tested, b.activation, &b.d.tested,
                                  &b.dy.tested, b.dbias.tested.data, tested_amax(&b.amax),
                                  tested_amax(&b.db_amax));
    ampk_reference.bias_act_backward(NULL, &b.out.exact, b.activation, &b.d.exact, &b.dy.exact,
                                     b.dbias.exact.data, &b.amax.exact, &b.db_amax.exact);
    double slack =
        check_output(r, "bias_act_backward dy", &b.dy, (struct tolerance){terms, &b.g, 0, 0});
    check_amax(r, "bias_act_backward", &b.amax, slack);
    slack = check_output(r, "dbias", &b.dbias,
                         (struct tolerance){roundings(b.count) + terms, &to_bias, 0, 0});
    check_amax(r, "bias_act_backward dbias", &b.db_amax, slack);
}

AMP_TEST(bias_act_backward)
{
    run_cases(bias_backward_case, 60);
}

#ifdef CONFORMANCE_CUDA
AMP_TEST(tensors_of_several_rows_a_thread)
{
    static void (*const cases[])(struct rig *) = {statistics_case, bn_forward_case,
                                                  bn_backward_case, bias_backward_case};
    large = true;
    for (int i = 0; i < 4; i++)
        run_cases(cases[i], 1);
    large = false;
}
#endif

AMP_TEST_MAIN
