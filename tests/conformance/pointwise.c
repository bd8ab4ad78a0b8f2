/* Conformance: dropout, clipping and activation. */
#include "tests/conformance/activation_error.h"

/* ---- dropout ---- */

/* y may be x itself when nothing is accumulated. */
static void dropout_case(struct rig *r)
{
    bool accumulate = random_bool(), in_place = !accumulate && random_bool();
    struct ampk_tensor shape = random_shape(random_dtype(), random_int(AMPK_NHWC, AMPK_NCHW));
    if (random_bool()) shape = describe_nhwc(shape.dtype, shape.n, shape.c * shape.h, 1, 1);
    size_t count = ampk_ref_count(&shape);
    uint8_t *keep = own(r, count);
    for (size_t i = 0; i < count; i++)
        keep[i] = test_random() % 3 == 0 ? 0 : random_int(1, 255);
    const uint8_t *tested_keep = input_bytes(r, keep, count);
    float scale = (float)test_uniform(1, 4);
    struct pair y = output_tensor(r, shape, accumulate || in_place);
    struct pair x = in_place ? y : input_tensor(r, shape);
    struct ampk_tensor size = absolute(r, &x.exact);
    struct ampk_tensor magnitude = magnitude_of_old(r, &y, accumulate);
    ampk_reference.dropout(NULL, &size, keep, scale, &magnitude, true, NULL);
    struct amax amax = make_amax(r);
    r->backend->dropout(r->context, &x.tested, tested_keep, scale, &y.tested, accumulate,
                        tested_amax(&amax));
    ampk_reference.dropout(NULL, &x.exact, keep, scale, &y.exact, accumulate, &amax.exact);
    struct tolerance product = {2, &magnitude, 0, 0};
    check_amax(r, "dropout", &amax, check_output(r, "dropout", &y, product));
}

AMP_TEST(dropout)
{
    run_cases(dropout_case, 50);
}

/* ---- clipping ---- */

#ifdef CONFORMANCE_CUDA

static double any_value(void)
{
    static const double special[] = {INFINITY, -INFINITY, NAN};
    return test_random() % 8 ? random_value() : special[test_random() % 3];
}

/* A power of two within the range of values, or beyond that of FP16. */
static void clip_case(struct rig *r)
{
    struct ampk_tensor shape = random_shape(random_dtype(), AMPK_NHWC);
    struct pair x = output_tensor_of(r, shape, any_value);
    float limit = ldexpf(1, RANDOM_OF(-3, -1, 0, 1, 15, 16, 24));
    r->backend->clip(r->context, &x.tested, limit);
    ampk_reference.clip(NULL, &x.exact, limit);
    check_output(r, "clip", &x, exactly);
}

AMP_TEST(clip)
{
    run_cases(clip_case, 40);
}

#endif

/* ---- activation ---- */

/* Far into saturation, and at kinks. */
static double wide_value(void)
{
    return test_random() % 8 == 0 ? random_int(-5, 5) : 16 * random_value();
}

static void activation_forward_case(struct rig *r)
{
    struct ampk_tensor shape = random_shape(random_dtype(), AMPK_NHWC);
    enum ampk_activation a = random_activation();
    struct pair x = input_tensor_of(r, shape, wide_value), y = output_tensor(r, shape, false);
    struct ampk_tensor magnitude = absolute(r, &x.exact);
    struct amax amax = make_amax(r);
    r->backend->activation_forward(r->context, &x.tested, a, &y.tested, tested_amax(&amax));
    ampk_reference.activation_forward(NULL, &x.exact, a, &y.exact, &amax.exact);
    double slack = check_output(r, "activation_forward", &y, activated(a, 3, &magnitude));
    check_amax(r, "activation_forward", &amax, slack);
}

AMP_TEST(activation_forward)
{
    run_cases(activation_forward_case, 60);
}

static void activation_backward_case(struct rig *r)
{
    bool accumulate = random_bool();
    struct ampk_tensor shape = random_shape(random_dtype(), AMPK_NHWC);
    enum ampk_activation a = random_activation();
    struct pair out = input_tensor_of(r, shape, random_output), d = input_tensor(r, shape);
    struct pair dx = output_tensor(r, shape, accumulate);
    struct ampk_tensor size = gradient_magnitude(r, a, &out.exact, &d.exact);
    struct ampk_tensor magnitude = magnitude_of_old(r, &dx, accumulate);
    ampk_reference.convert(NULL, &size, &magnitude, true, NULL);
    struct amax amax = make_amax(r);
    r->backend->activation_backward(r->context, &out.tested, a, &d.tested, &dx.tested, accumulate,
                                    tested_amax(&amax));
    ampk_reference.activation_backward(NULL, &out.exact, a, &d.exact, &dx.exact, accumulate,
                                       &amax.exact);
    struct tolerance products = {6, &magnitude, 0, 0};
    double slack = check_output(r, "activation_backward", &dx, products);
    check_amax(r, "activation_backward", &amax, slack);
}

AMP_TEST(activation_backward)
{
    run_cases(activation_backward_case, 60);
}

static double always_nan(void)
{
    return NAN;
}

/* NaN must come out of every activation, or a fault would hide. */
static void nan_case(struct rig *r)
{
    struct ampk_tensor shape = describe_nhwc(random_dtype(), 1, 17, 1, 1);
    for (int a = 0; a < AMPK_ACTIVATIONS; a++) {
        struct pair x = input_tensor_of(r, shape, always_nan), y = output_tensor(r, shape, true);
        r->backend->activation_forward(r->context, &x.tested, a, &y.tested, NULL);
        struct ampk_tensor got = download(r, &y);
        for (int c = 0; c < 17; c++)
            if (!isnan(ampk_ref_get(&got, 0, c, 0, 0))) TEST_FAIL("activation %d hides NaN", a);
    }
}

AMP_TEST(nan_passes_activations)
{
    run_cases(nan_case, 3);
}

AMP_TEST_MAIN
