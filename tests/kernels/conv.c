/* Conformance: convolution and inner product, forward and both gradients. */
#include "conv_passes.h"

/* ---- forward ---- */

#ifndef CONFORMANCE_CUDA
/* Of images together, each result is what the image gives alone. The CPU backend takes these with
 * AVX2 in two turns of slices that share points, the second one shorter. */
static void turns_case(struct rig *r)
{
    struct ampk_conv_shape s = {7, 768, 16, 16, 64, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, true, 0, 0};
    struct ampk_conv_shape one = s;
    one.n = 1;
    char err[200] = "";
    struct ampk_conv *all = r->backend->conv_create(r->context, &s, err, sizeof err);
    struct ampk_conv *alone = r->backend->conv_create(r->context, &one, err, sizeof err);
    REQUIRE(all && alone);
    const float *w = input_array(r, weight_count(&s)).tested.data;
    const struct ampk_new_weights weights[] = {{all, w, NULL}, {alone, w, NULL}};
    r->backend->conv_set_weights(r->context, weights, 2);
    struct ampk_tensor out = describe(AMPK_FP16, AMPK_NHWC, s.n, s.k, s.h, s.w);
    struct pair x = input_tensor(r, describe(AMPK_FP16, AMPK_NHWC, s.n, s.c, s.h, s.w));
    struct pair together = output_tensor(r, out, false), apart = output_tensor(r, out, false);
    r->backend->conv_forward(r->context, all, &x.tested, &together.tested, NULL, NULL);
    for (int i = 0; i < s.n; i++) {
        struct ampk_tensor from = x.tested, to = apart.tested;
        from.n = to.n = 1;
        from.data = (uint16_t *)from.data + i * from.image_stride;
        to.data = (uint16_t *)to.data + i * to.image_stride;
        r->backend->conv_forward(r->context, alone, &from, &to, NULL, NULL);
    }
    struct ampk_tensor a = download(r, &together), b = download(r, &apart);
    CHECK(!memcmp(a.data, b.data, (size_t)s.n * s.k * s.h * s.w * sizeof(uint16_t)));
    r->backend->conv_destroy(r->context, all);
    r->backend->conv_destroy(r->context, alone);
}
#endif

AMP_TEST(conv_forward)
{
    run_cases(forward_case, 60);
#ifndef CONFORMANCE_CUDA
    run_cases(turns_case, 1);
#endif
}

/* Convolutions of several types, more than one launch takes. */
static void many_weights_case(struct rig *r)
{
    static struct convs c[MOST_CONVS];
    for (int i = 0; i < MOST_CONVS; i++) {
        struct ampk_conv_shape s = usual_shapes[i % 3];
        s.compute = (enum ampk_compute)random_int(AMPK_COMPUTE_FP32, AMPK_COMPUTE_BF16);
        c[i] = make_convs(r, s);
    }
    set_random_weights(r, c, MOST_CONVS);
    int first = random_int(0, 3); /* of a quarter that is looked at, of all shapes */
    for (int i = 0; i < MOST_CONVS; i++) {
        if (i % 4 == first) check_forward(r, &c[i]);
        destroy_convs(r, &c[i]);
    }
}

AMP_TEST(weights_of_many_convolutions)
{
    run_cases(many_weights_case, 1);
}

/* ---- forward, of images ---- */

AMP_TEST(conv_forward_of_images)
{
    run_cases(image_case, 20);
}

/* Forward passes that the library computed; 0 where nobody counts them. */
static size_t library_forwards(void)
{
#ifdef CUDA_EMULATED
    return tensor_core_host_forward();
#else
    return 0;
#endif
}

static void check_large_images(struct rig *r, int n, int c, int h, int w)
{
    struct ampk_conv_shape s = {n,     c,     h,    w, 8, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16,
                                false, false, false};
    r->aligned = true;
    size_t before = library_forwards();
    struct convs convs = make_convs(r, s);
    struct pair x = input_tensor(r, describe(AMPK_FP16, AMPK_NHWC, n, c, h, w));
    struct pair y = output_tensor(r, describe(AMPK_FP16, AMPK_NHWC, n, s.k, h, w), false);
    compare_forward(r, &convs, x, y, true);
    destroy_convs(r, &convs);
    CHECK_INT(library_forwards(), before);
}

/* Several tiles a block: sums that go through groups of blocks. */
static void large_image_case(struct rig *r)
{
    check_large_images(r, 2, 3, 260, 508);
}

/* Some tiles more, a pixel each, than there are blocks of four. */
static void many_images_case(struct rig *r)
{
    check_large_images(r, 4100, 1, 1, 1);
}

AMP_TEST(conv_forward_of_large_images)
{
    run_cases(large_image_case, 1);
    run_cases(many_images_case, 1);
}

static void check_bias_forward(struct rig *r, struct ampk_conv_shape drawn, enum ampk_layout layout)
{
    drawn.biased = random_bool();
    struct convs c = make_convs(r, drawn);
    struct ampk_tensor shape = shape_y(&c.shape);
    struct pair x = input_tensor(r, shape_x(&c.shape)), bias = input_array(r, (size_t)shape.c);
    shape.layout = layout;
    struct pair y = output_tensor(r, shape, false);
    struct ampk_tensor size = absolute(r, &x.exact), magnitude = blank(r, &y.exact);
    struct ampk_tensor bias_size = absolute(r, &bias.exact);
    ampk_reference.conv_bias_forward(NULL, c.magnitude, &size, bias_size.data, AMPK_LINEAR,
                                     &magnitude, NULL);
    enum ampk_activation a = random_activation();
    struct amax amax = make_amax(r);
    r->backend->conv_bias_forward(r->context, c.tested, &x.tested, bias.tested.data, a, &y.tested,
                                  tested_amax(&amax));
    ampk_reference.conv_bias_forward(NULL, c.exact, &x.exact, bias.exact.data, a, &y.exact,
                                     &amax.exact);
    double terms = roundings(products_of_output(&c.shape)) + 2;
    struct tolerance sum = sum_of(&c.shape, terms, &magnitude);
    struct tolerance out = activated(a, sum.terms + sum.relative * 0x1p24, &magnitude);
    out.absolute += 2 * sum.absolute;
    double slack = check_output(r, "conv_bias_forward", &y, out);
    check_amax(r, "conv_bias_forward", &amax, slack);
    destroy_convs(r, &c);
}

static void bias_forward_case(struct rig *r)
{
    struct ampk_conv_shape drawn = choose_shape(true);
    check_bias_forward(r, drawn, random_int(AMPK_NHWC, AMPK_NCHW));
}

/* A head's planes, of more filters than a block of work has room for; no slices divide a prime. */
static void wide_head_case(struct rig *r)
{
    struct ampk_conv_shape s = {1, 4, 2, 3, 431, 1, 1, 1, 0, 1, 0, 0, 0, 0};
    s.compute = random_int(AMPK_COMPUTE_FP32, AMPK_COMPUTE_BF16);
    check_bias_forward(r, s, AMPK_NCHW);
}

AMP_TEST(conv_bias_forward)
{
    run_cases(bias_forward_case, 60);
    run_cases(wide_head_case, 3);
}

/* ---- weight gradients ---- */

/* A list of one convolution, again and again: more than one launch takes. */
static void long_list_case(struct rig *r)
{
    static struct taking all[MOST_TAKINGS];
    struct ampk_conv_shape s = choose_shape(false);
    while (weight_count(&s) > 300)
        s = choose_shape(false);
    struct convs c = make_convs(r, s);
    run_backward(r, &c, random_value);
    size_t n = weight_count(&s);
    const float *stored = stored_gradient(r, &c);
    struct pair dst = output_array(r, n * MOST_TAKINGS, true);
    for (int i = 0; i < MOST_TAKINGS; i++)
        all[i] = (struct taking){&c, stored, dst, i * n, test_random() % 8 == 0, make_amax(r)};
    check_takings(r, all, MOST_TAKINGS);
    destroy_convs(r, &c);
}

AMP_TEST(weight_gradients_of_a_long_list)
{
    run_cases(long_list_case, 3);
}

/* Convolutions of several types in one list. */
static void mixed_list_case(struct rig *r)
{
    enum { CONVS = 12 };
    static struct convs c[CONVS];
    struct taking all[CONVS];
    for (int i = 0; i < CONVS; i++) {
        c[i] = make_convs(r, choose_shape(false));
        run_backward(r, &c[i], random_value);
    }
    for (int i = 0; i < CONVS; i++)
        all[i] = (struct taking){&c[i],
                                 stored_gradient(r, &c[i]),
                                 output_array(r, weight_count(&c[i].shape), true),
                                 0,
                                 random_bool(),
                                 make_amax(r)};
    check_takings(r, all, CONVS);
    for (int i = 0; i < CONVS; i++)
        destroy_convs(r, &c[i]);
}

AMP_TEST(weight_gradients_of_several_types)
{
    run_cases(mixed_list_case, 6);
}

/* By what watches alone; the bits of what is not finite may differ. */
static void check_watched(struct rig *r, const struct convs *c, const float *stored)
{
    struct amax amax = make_amax(r);
    const struct ampk_weight_gradient item = {c->tested, NULL, tested_amax(&amax)};
    r->backend->conv_weight_gradients(r->context, &item, 1, 1, false);
    uint32_t bits, expected = raised(0, stored, weight_count(&c->shape));
    r->backend->read(r->context, &bits, item.amax, sizeof bits);
    if (ampk_amax_is_finite(bits) != ampk_amax_is_finite(expected))
        TEST_FAIL("amax of dw is 0x%08x, where its largest is 0x%08x", bits, expected);
}

/* What is not finite is seen, and nothing else is taken for it. */
static void not_finite_case(struct rig *r)
{
    struct convs c = make_convs(r, choose_shape(false));
    run_backward(r, &c, spoilt_now_and_then);
    check_watched(r, &c, stored_gradient(r, &c));
    destroy_convs(r, &c);
}

AMP_TEST(weight_gradients_that_are_not_finite)
{
    run_cases(not_finite_case, 60);
}

/* n values of 1, but for one: the product of two such is inf. */
static struct pair ones_but_one(struct rig *r, int n, int where)
{
    struct pair p = input_tensor_of(r, describe(AMPK_FP32, AMPK_NHWC, 1, n, 1, 1), always_one);
    float *x = own(r, n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = i == where ? 1e30f : 1;
    p.tested.data = input_bytes(r, x, n * sizeof *x);
    return p;
}

/* One element alone, often the last, where a group has its own numbers of channels. */
static void one_overflow_case(struct rig *r)
{
    int groups = RANDOM_OF(1, 3), channels = random_int(1, 20), filters = random_int(1, 20);
    enum ampk_compute compute = RANDOM_OF(AMPK_COMPUTE_FP32, AMPK_COMPUTE_BF16);
    struct convs c =
        make_convs(r, (struct ampk_conv_shape){1, groups * channels, 1, 1, groups * filters, 1, 1,
                                               1, 0, groups, compute, false, false, false});
    bool last = random_bool();
    int filter = last ? groups * filters - 1 : random_int(0, groups * filters - 1);
    int channel = last ? channels - 1 : random_int(0, channels - 1);
    struct pair x = ones_but_one(r, c.shape.c, filter / filters * channels + channel);
    struct pair dy = ones_but_one(r, c.shape.k, filter);
    r->backend->conv_backward(r->context, c.tested, &x.tested, &dy.tested, NULL, false, NULL);
    const float *stored = stored_gradient(r, &c);
    for (int i = 0; i < groups * filters * channels; i++)
        CHECK(isinf(stored[i]) == (i == filter * channels + channel));
    check_watched(r, &c, stored);
    destroy_convs(r, &c);
}

AMP_TEST(one_weight_gradient_that_is_not_finite)
{
    run_cases(one_overflow_case, 60);
}

/* ---- backward ---- */

#ifndef CONFORMANCE_CUDA
/* A data gradient that the CPU backend takes with AVX2 in two turns. */
static void turns_backward_case(struct rig *r)
{
    compare_backward(r, (struct ampk_conv_shape){9, 64, 9, 9, 512, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16,
                                                 false, false, false});
}
#endif

AMP_TEST(conv_backward)
{
    run_cases(backward_case, 60);
#ifndef CONFORMANCE_CUDA
    run_cases(turns_backward_case, 1);
#endif
}

/* So many weights, images and rows that the CPU backend cuts the rows and yet gives several cuts to
 * one task of the weight gradient. Large for the reference, hence once. */
static void large_backward_case(struct rig *r)
{
    compare_backward(r, (struct ampk_conv_shape){16, 64, 8, 1, 950, 3, 3, 1, 1, 1,
                                                 AMPK_COMPUTE_FP16, false, false, false});
}

AMP_TEST(conv_backward_of_many_weights)
{
    struct ampk_context *context = open_context(NULL, 2);
    REQUIRE(context != NULL);
    run_case(large_backward_case, context, test_random());
    CONFORMANCE_BACKEND.context_destroy(context);
}

/* What the CPU backend's own weight gradients do with large layers alone: several units in a task,
 * several chunks of rows, rows longer than a chunk, slices of 1x1 convolutions. */
static void long_gradients_case(struct rig *r)
{
    static const int sizes[][7] = {{17, 16, 9, 40, 7, 3, 1},
                                   {1, 16, 12, 120, 8, 5, 1},
                                   {1, 512, 6, 40, 512, 1, 1},
                                   {1, 32, 48, 60, 20, 3, 2},
                                   {2, 48, 41, 22, 17, 1, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int *s = sizes[i];
        compare_backward(r, (struct ampk_conv_shape){s[0], s[1], s[2], s[3], s[4], s[5], s[5], s[6],
                                                     s[5] / 2, 1, AMPK_COMPUTE_FP16, false, false,
                                                     false});
    }
}

AMP_TEST(conv_backward_of_long_gradients)
{
    run_cases(long_gradients_case, 1);
}

/* ---- operands: rounded to the compute type, to nearest even ---- */

/* The next number with `bits` fraction bits above v = (1 + i/2^bits) * 2^e, v itself, and what lies
 * between; expected results by construction. */
enum { OPERANDS = 240 };

static void make_operands(int bits, float *value, float *expected)
{
    for (int i = 0; i < OPERANDS; i += 3) {
        int e = random_int(-10, 10), fraction = random_int(0, (1 << bits) - 1);
        double step = ldexp(1, e - bits), low = ldexp(1, e) + fraction * step;
        float middle = (float)(low + step / 2), sign = random_bool() ? 1 : -1;
        value[i] = nextafterf(middle, 0), expected[i] = (float)low;
        value[i + 1] = middle, expected[i + 1] = (float)(fraction % 2 ? low + step : low);
        value[i + 2] = nextafterf(middle, INFINITY), expected[i + 2] = (float)(low + step);
        for (int j = i; j < i + 3; j++)
            value[j] *= sign, expected[j] *= sign;
    }
}

/* Tensor Cores may cut FP32 operands to TF32, or round ties away from zero; others are rounded by
 * our kernels. */
static bool is_other_rounding(float got, float value, int bits)
{
#if defined(CONFORMANCE_CUDA) && !defined(CUDA_EMULATED)
    int e;
    double scaled = ldexp(frexp(value, &e), bits + 1);
    return got == (float)ldexp(trunc(scaled), e - bits - 1) ||
           got == (float)ldexp(round(scaled), e - bits - 1);
#else
    (void)got, (void)value, (void)bits;
    return false;
#endif
}

/* bits: fraction bits of operands that may be rounded in other ways, 0: to nearest even only. */
static void check_values(const char *what, const float *got, const float *value,
                         const float *expected, int bits)
{
    for (int i = 0; i < OPERANDS; i++)
        if (got[i] != expected[i] && !(bits && is_other_rounding(got[i], value[i], bits)))
            TEST_FAIL("%s: operand read as %.9g, expected %.9g", what, got[i], expected[i]);
}

/* x of 1x1x1xN by one weight of 1, then x = 1 by N weights. */
static void operand_case(struct rig *r, enum ampk_compute compute, int bits)
{
    char err[200] = "";
    float value[OPERANDS], expected[OPERANDS], one = 1;
    int other = compute == AMPK_COMPUTE_TF32 ? bits : 0;
    make_operands(bits, value, expected);
    struct ampk_conv_shape row = {1, 1, 1, OPERANDS, 1,     1,     1,
                                  1, 0, 1, compute,  false, false, false};
    struct ampk_conv_shape column = {1, 1, 1, 1,       OPERANDS, 1,     1,
                                     1, 0, 1, compute, false,    false, false};
    struct ampk_tensor wide = describe(AMPK_FP32, AMPK_NHWC, 1, 1, 1, OPERANDS);
    struct ampk_tensor deep = describe(AMPK_FP32, AMPK_NHWC, 1, OPERANDS, 1, 1);
    struct pair x = output_tensor(r, wide, false), y = output_tensor(r, wide, false);
    struct pair dx = output_tensor(r, wide, false);
    struct pair ones = input_tensor_of(r, wide, always_one), z = output_tensor(r, deep, false);
    r->backend->write(r->context, x.tested.data, value, sizeof value);

    struct ampk_conv *conv = r->backend->conv_create(r->context, &row, err, sizeof err);
    REQUIRE(conv != NULL);
    struct ampk_new_weights weights = {conv, input_bytes(r, &one, sizeof one), NULL};
    r->backend->conv_set_weights(r->context, &weights, 1);
    r->backend->conv_forward(r->context, conv, &x.tested, &y.tested, NULL, NULL);
    check_values("x", download(r, &y).data, value, expected, other);
    r->backend->conv_backward(r->context, conv, &ones.tested, &x.tested, &dx.tested, false, NULL);
    check_values("dy", download(r, &dx).data, value, expected, other);
    r->backend->conv_destroy(r->context, conv);

    conv = r->backend->conv_create(r->context, &column, err, sizeof err);
    REQUIRE(conv != NULL);
    struct ampk_tensor pixel = describe(AMPK_FP32, AMPK_NHWC, 1, 1, 1, 1);
    pixel.data = ones.tested.data;
    weights = (struct ampk_new_weights){conv, x.tested.data, NULL};
    r->backend->conv_set_weights(r->context, &weights, 1);
    r->backend->conv_forward(r->context, conv, &pixel, &z.tested, NULL, NULL);
    check_values("weights", download(r, &z).data, value, expected, 0);
    r->backend->conv_destroy(r->context, conv);
}

static void operands_case(struct rig *r)
{
    switch (random_int(0, 2)) {
    case 0:
        operand_case(r, AMPK_COMPUTE_FP16, 10);
        break;
    case 1:
        operand_case(r, AMPK_COMPUTE_BF16, 7);
        break;
    default:
        operand_case(r, AMPK_COMPUTE_TF32, 10);
    }
}

AMP_TEST(operands_are_rounded_to_the_compute_type)
{
    run_cases(operands_case, 12);
}

/* ---- faults ---- */

static void refusal_case(struct rig *r)
{
    static const struct {
        struct ampk_conv_shape shape;
        const char *why;
    } impossible[] = {{{1, 4, 3, 3, 4, 5, 5, 1, 0, 1, AMPK_COMPUTE_FP32, false, false, false},
                       "a window larger than the padded input"},
                      {{1, 4, 3, 3, 4, 1, 1, 1, 0, 3, AMPK_COMPUTE_FP32, false, false, false},
                       "groups that do not divide the channels"},
                      {{1, 6, 3, 3, 4, 1, 1, 1, 0, 3, AMPK_COMPUTE_FP32, false, false, false},
                       "groups that do not divide the channels"},
                      {{1, 4, 3, 3, 4, 1, 1, 0, 0, 1, AMPK_COMPUTE_FP32, false, false, false},
                       "an impossible window"},
                      {{1, 4, 3, 3, 4, 1, 1, 1, -1, 1, AMPK_COMPUTE_FP32, false, false, false},
                       "an impossible window"},
                      {{1, 4, 0, 3, 4, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP32, false, false, false},
                       "an empty tensor"}};
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        const struct ampk_conv_shape *s = &impossible[i].shape;
        char err[300] = "";
        CHECK(r->backend->conv_create(r->context, s, err, sizeof err) == NULL);
        CHECK_SAYS(err, impossible[i].why);
        err[0] = 0;
        CHECK(ampk_reference.conv_create(NULL, s, err, sizeof err) == NULL);
        CHECK_SAYS(err, impossible[i].why);
    }
}

AMP_TEST(impossible_shapes_are_refused_with_a_reason)
{
    run_cases(refusal_case, 1);
}

AMP_TEST_MAIN
