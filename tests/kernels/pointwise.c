/* Conformance: dropout, clipping and activation. */
#include "kernels/philox.h"
#include "layers.h"

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

/* Of any block of numbers, those around 2^32 too; where probability times 2^32 is no whole number;
 * where hardly anything is kept. To the byte, and nothing around it. */
static void dropout_draw_case(struct rig *r)
{
    struct ampk_draw draw;
    for (int i = 0; i < 2; i++)
        draw.key[i] = (uint32_t)(test_random() >> 32);
    for (int i = 0; i < 4; i++)
        draw.counter[i] = (uint32_t)(test_random() >> 32);
    if (random_bool()) draw.counter[0] = 0u - (uint32_t)random_int(0, 40);
    const float probabilities[] = {0,   1 - 0x1p-24f, .5f,
                                   .3f, 0x1.8p-33f,   (float)test_uniform(0, 1)};
    float probability = probabilities[random_int(0, 5)];
    size_t n = RANDOM_OF(1, 3, 4, 5, 15, 16, 17, 31, 63, 64, 65, 1000, 4095, 4097, 70001);
    uint8_t *keep = own(r, n), *expected = own(r, n);
    memset(keep, GUARD, n);
    int block = add_block(r, keep, n, random_bool() ? 0 : (size_t)random_int(1, 15), false);
    r->backend->dropout_draw(r->context, &draw, probability, block_data(r, block), n);
    ampk_reference.dropout_draw(NULL, &draw, probability, expected, n);
    r->backend->read(r->context, keep, block_data(r, block), n);
    for (size_t i = 0; i < n; i++)
        if (keep[i] != expected[i]) {
            TEST_FAIL("dropout_draw: element %zu of %zu is %d, expected %d", i, n, keep[i],
                      expected[i]);
            return;
        }
    digest_bytes(r, keep, n);
}

AMP_TEST(dropout_draw)
{
    run_cases(dropout_draw_case, 60);
}

/* Known answers of the generator (tests/core/stream.c): number 0 to 3 of key and counter 0. */
static void known_numbers_case(struct rig *r)
{
    static const uint32_t numbers[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const struct ampk_draw draw = {{0, 0}, {0, 0, 0, 0}};
    uint8_t keep[4], *tested = scratch_bytes(r, sizeof keep);
    for (int i = 0; i < 4; i++)
        for (int above = 0; above < 2; above++) {
            float probability = (float)((numbers[i] >> 8) + (uint32_t)above) * 0x1p-24f;
            r->backend->dropout_draw(r->context, &draw, probability, tested, sizeof keep);
            r->backend->read(r->context, keep, tested, sizeof keep);
            for (int k = 0; k < 4; k++)
                CHECK_INT(keep[k], !(numbers[k] * 0x1p-32 < (double)probability));
            CHECK_INT(keep[i], !above);
        }
}

AMP_TEST(dropout_draws_known_numbers)
{
    run_cases(known_numbers_case, 1);
}

/* u equal to the probability is kept: of a number whose last 8 bits are 0, which FP32 holds. */
static void equal_case(struct rig *r)
{
    enum { N = 64 };
    struct ampk_draw draw = {{(uint32_t)test_random(), 0}, {0, 0, 0, 0}};
    uint32_t numbers[4] = {1};
    while (numbers[0] % 256 || numbers[0] > 0xfffffe00u) {
        draw.counter[0]++;
        ampk_draw_four(&draw, 0, numbers);
    }
    uint8_t keep[N], *tested = scratch_bytes(r, N);
    float probability = (float)numbers[0] * 0x1p-32f;
    r->backend->dropout_draw(r->context, &draw, probability, tested, N);
    r->backend->read(r->context, keep, tested, N);
    CHECK_INT(keep[0], 1);
    r->backend->dropout_draw(r->context, &draw, probability + 0x1p-24f, tested, N);
    r->backend->read(r->context, keep, tested, N);
    CHECK_INT(keep[0], 0);
}

AMP_TEST(dropout_draw_keeps_what_equals_the_probability)
{
    run_cases(equal_case, 4);
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
    struct tolerance products = {gradient_terms(a), &magnitude, 0, 0};
    double slack = check_output(r, "activation_backward", &dx, products);
    check_amax(r, "activation_backward", &amax, slack);
}

AMP_TEST(activation_backward)
{
    run_cases(activation_backward_case, 60);
}

/* All finite numbers of FP16, in any dtype. */
static double next_half(void)
{
    static uint16_t next;
    while ((next & 0x7c00) == 0x7c00)
        next++;
    double magnitude = (next & 0x7c00) ? ldexp(0x400 | (next & 0x3ff), (next >> 10 & 31) - 25)
                                       : ldexp(next & 0x3ff, -24);
    return next++ & 0x8000 ? -magnitude : magnitude;
}

static double always_one(void)
{
    return 1;
}

/* Mish and swish where they are x, where they go to 0, and between. */
static void every_half_case(struct rig *r)
{
    struct ampk_tensor shape = describe(random_dtype(), AMPK_NHWC, 1, 62, 32, 32);
    enum ampk_activation a = random_bool() ? AMPK_MISH : AMPK_SWISH;
    struct pair x = input_tensor_of(r, shape, next_half), d = input_tensor_of(r, shape, always_one);
    struct pair y = output_tensor(r, shape, false), dx = output_tensor(r, shape, false);
    r->backend->activation_forward(r->context, &x.tested, a, &y.tested, NULL);
    ampk_reference.activation_forward(NULL, &x.exact, a, &y.exact, NULL);
    check_output(r, "activation_forward", &y, activated(a, 0, NULL));
    struct ampk_tensor size = gradient_magnitude(r, a, &x.exact, &d.exact);
    r->backend->activation_backward(r->context, &x.tested, a, &d.tested, &dx.tested, false, NULL);
    ampk_reference.activation_backward(NULL, &x.exact, a, &d.exact, &dx.exact, false, NULL);
    struct tolerance gradient = {gradient_terms(a), &size, 0, MISH_LEAST};
    check_output(r, "activation_backward", &dx, gradient);
}

AMP_TEST(mish_and_swish_of_every_half)
{
    run_cases(every_half_case, 8);
}

/* Far beyond FP16: x itself above, nothing below, a slope of 1 and of 0. */
static void far_case(struct rig *r)
{
    static const float far[] = {88, 1e5f, 3e38f, INFINITY};
    struct ampk_tensor shape = describe_nhwc(AMPK_FP32, 1, 17, 1, 1);
    for (int k = 0; k < 16; k++) {
        enum ampk_activation a = k & 1 ? AMPK_MISH : AMPK_SWISH;
        float x = k & 2 ? -far[k / 4] : far[k / 4];
        give_data(r, &shape);
        for (int c = 0; c < 17; c++)
            ((float *)shape.data)[c] = x;
        struct pair at = make_pair(r, shape, true), d = input_tensor_of(r, shape, always_one);
        struct pair y = output_tensor(r, shape, false), dx = output_tensor(r, shape, false);
        r->backend->activation_forward(r->context, &at.tested, a, &y.tested, NULL);
        r->backend->activation_backward(r->context, &at.tested, a, &d.tested, &dx.tested, false,
                                        NULL);
        struct ampk_tensor value = download(r, &y), slope = download(r, &dx);
        for (int c = 0; c < 17; c++) {
            float got = ((float *)value.data)[c];
            CHECK(x > 0 ? got == x : fabsf(got) < (float)MISH_LEAST);
            CHECK_NEAR(((float *)slope.data)[c], x > 0, 0x1p-22);
        }
    }
}

AMP_TEST(mish_and_swish_far_out)
{
    run_cases(far_case, 1);
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
        if (!ampk_is_gradient_of_input(a)) continue;
        struct pair d = input_tensor(r, shape), dx = output_tensor(r, shape, true);
        r->backend->activation_backward(r->context, &x.tested, a, &d.tested, &dx.tested, false,
                                        NULL);
        got = download(r, &dx);
        for (int c = 0; c < 17; c++)
            if (!isnan(ampk_ref_get(&got, 0, c, 0, 0))) TEST_FAIL("gradient %d hides NaN", a);
    }
}

AMP_TEST(nan_passes_activations)
{
    run_cases(nan_case, 3);
}

AMP_TEST_MAIN
