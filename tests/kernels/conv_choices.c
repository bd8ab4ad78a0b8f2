/* Ways between which the CUDA backend chooses, and what it does where a library lacks one or memory
 * ends; in the emulation. */
#include "conv_passes.h"

/* ---- libraries with gaps ---- */

/* What cuDNN lacks on some devices is done by other ways. */
AMP_TEST(conv_backward_where_libraries_add_nothing)
{
    tensor_core_host_refuse(false, true);
    run_cases(backward_case, 60);
    tensor_core_host_refuse(false, false);
}

/* What FP16 does not hold is inf in the gradient, not a magnitude that FP32 holds. */
static void overflowing_case(struct rig *r)
{
    struct convs c =
        make_convs(r, (struct ampk_conv_shape){1, 3, 4, 4, 5, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP16,
                                               false, false, false});
    run_backward(r, &c, large);
    CHECK(isinf(stored_gradient(r, &c)[7]));
    struct taking t = {&c,          stored_gradient(r, &c), output_array(r, 15, true), 0, true,
                       make_amax(r)};
    check_takings(r, &t, 1);
    CHECK_INT(t.amax.exact, 0x7f800000);
    destroy_convs(r, &c);
}

AMP_TEST(weight_gradients_that_16_bits_do_not_hold)
{
    tensor_core_host_refuse(true, true);
    run_cases(overflowing_case, 1);
    tensor_core_host_refuse(false, false);
}

AMP_TEST(conv_where_libraries_write_16_bits)
{
    tensor_core_host_refuse(true, true);
    library_rounds = 0x1p-8;
    run_cases(forward_case, 60);
    run_cases(backward_case, 60);
    library_rounds = 0;
    tensor_core_host_refuse(false, false);
}

/* ---- gradients beside each other ---- */

/* The same cases with a setting: how many weight gradients run beside a data gradient. bits: of all
 * results. */
static size_t count_beside(const char *setting, uint64_t first, uint64_t *bits)
{
    set_variable(SIDE_STREAM, setting);
    size_t before = tensor_core_host_beside();
    struct ampk_context *context = open_context(NULL, 1);
    REQUIRE(context != NULL);
    *bits = 0;
    for (int i = 0; i < 90; i++) /* enough that both answers come */
        *bits = 31 * *bits + run_case(backward_case, context, first + i);
    CONFORMANCE_BACKEND.context_destroy(context);
    return tensor_core_host_beside() - before;
}

AMP_TEST(gradients_run_beside_each_other_where_it_pays)
{
    bool forced = set_variable(SIDE_STREAM, NULL);
    uint64_t first = test_random(), bits[3];
    size_t always = count_beside("1", first, &bits[0]), some = count_beside(NULL, first, &bits[1]);
    CHECK_INT(count_beside("0", first, &bits[2]), 0);
    CHECK(some > 0 && some < always);
    CHECK(bits[0] == bits[1] && bits[1] == bits[2]);
    set_variable(SIDE_STREAM, forced ? "1" : NULL);
}

/* Bytes that a context takes with one convolution, SIZE_MAX where it cannot be made. */
static size_t bytes_of_conv(const char *variable, const char *setting,
                            const struct ampk_conv_shape *shape)
{
    char err[300];
    set_variable(variable, setting);
    size_t before = emulation_memory().bytes, bytes = SIZE_MAX;
    struct ampk_context *context = open_context(NULL, 1);
    REQUIRE(context != NULL);
    struct ampk_conv *conv = CONFORMANCE_BACKEND.conv_create(context, shape, err, sizeof err);
    if (conv) bytes = emulation_memory().bytes - before;
    if (conv) CONFORMANCE_BACKEND.conv_destroy(context, conv);
    CONFORMANCE_BACKEND.context_destroy(context);
    return bytes;
}

/* What conv_bytes says, the second convolution of a context takes: it finds the work memory. */
AMP_TEST(a_convolution_takes_the_bytes_that_are_counted)
{
    static const struct ampk_conv_shape shapes[] = {
        {2, 20, 9, 9, 12, 3, 3, 1, 1, 2, AMPK_COMPUTE_FP32, false, false, false},
        {2, 20, 9, 9, 12, 3, 3, 1, 1, 2, AMPK_COMPUTE_FP32, true, false, false},
        {2, 24, 9, 9, 40, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, false, false, false},
        {2, 24, 9, 9, 40, 1, 1, 1, 0, 1, AMPK_COMPUTE_BF16, true, true, false},
        {2, 3, 16, 16, 13, 3, 3, 2, 1, 1, AMPK_COMPUTE_FP16, false, false, false},
        {2, 12, 7, 7, 500, 7, 7, 1, 0, 1, AMPK_COMPUTE_TF32, false, true, false},
        {2, 20, 9, 9, 12, 4, 4, 2, 1, 1, AMPK_COMPUTE_FP16, false, false, true},
        {2, 20, 9, 9, 12, 4, 4, 2, 1, 1, AMPK_COMPUTE_FP32, true, true, true}};
    bool forced = set_variable(EPILOGUE_SUMS, "0"); /* which have an array of their own */
    struct ampk_context *context = open_context(NULL, 1);
    REQUIRE(context != NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct ampk_conv *conv[2];
        size_t before = 0;
        char err[300];
        for (int k = 0; k < 2; k++) {
            before = emulation_memory().bytes;
            conv[k] = CONFORMANCE_BACKEND.conv_create(context, &shapes[i], err, sizeof err);
            REQUIRE(conv[k] != NULL);
        }
        CHECK_INT(emulation_memory().bytes - before, CONFORMANCE_BACKEND.conv_bytes(&shapes[i]));
        for (int k = 0; k < 2; k++)
            CONFORMANCE_BACKEND.conv_destroy(context, conv[k]);
    }
    CONFORMANCE_BACKEND.context_destroy(context);
    set_variable(EPILOGUE_SUMS, forced ? "1" : NULL);
}

/* A way that takes more memory is left where there is just enough for the usual one. */
static void check_short_memory(const char *variable, const struct ampk_conv_shape *s)
{
    bool forced = set_variable(variable, NULL);
    size_t less = bytes_of_conv(variable, "0", s), more = bytes_of_conv(variable, "1", s);
    CHECK(less < more && more < SIZE_MAX);
    emulation_memory_limit(emulation_memory().bytes + less);
    CHECK_INT(bytes_of_conv(variable, "1", s), less);
    emulation_memory_limit(emulation_memory().bytes + less - 1);
    CHECK(bytes_of_conv(variable, "1", s) == SIZE_MAX);
    emulation_memory_limit(SIZE_MAX);
    set_variable(variable, forced ? "1" : NULL);
}

AMP_TEST(gradients_that_have_no_memory_beside_each_other_run_one_after_the_other)
{
    struct ampk_conv_shape s = {4,     100,   64,   64, 500, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16,
                                false, false, false};
    check_short_memory(SIDE_STREAM, &s);
}

/* ---- sums in the epilogue ---- */

/* Dense whole vectors: what the library can sum, where y is FP16. */
static void summed_case(struct rig *r)
{
    struct ampk_conv_shape s = random_conv_shape();
    s.groups = 1, s.c = RANDOM_OF(3, 8, 16), s.k = RANDOM_OF(8, 16, 24, 64);
    s.compute = AMPK_COMPUTE_FP16;
    struct convs c = make_convs(r, s);
    enum ampk_dtype dtype = (enum ampk_dtype)RANDOM_OF(AMPK_FP16, AMPK_FP16, AMPK_FP32);
    struct ampk_tensor y =
        describe(dtype, AMPK_NHWC, s.n, s.k, out_side(s.h, s.kh, &s), out_side(s.w, s.kw, &s));
    struct pair x = input_tensor(r, shape_x(&s));
    compare_forward(r, &c, x, output_tensor(r, y, false), true);
    destroy_convs(r, &c);
}

/* A pass of which the library may leave sums. */
struct summed_pass {
    const char *variable;
    bool gradients;
    void (*body)(struct rig *);
};

/* The same cases with a setting (NULL: unset): how many had the library's sums. */
static size_t count_summed(const struct summed_pass *pass, const char *setting, uint64_t first)
{
    set_variable(pass->variable, setting);
    size_t before = tensor_core_host_summed(pass->gradients);
    struct ampk_context *context = open_context(NULL, 1);
    REQUIRE(context != NULL);
    for (int i = 0; i < 60; i++)
        run_case(pass->body, context, first + i);
    CONFORMANCE_BACKEND.context_destroy(context);
    return tensor_core_host_summed(pass->gradients) - before;
}

static void check_where_it_pays(const struct summed_pass *pass)
{
    bool forced = set_variable(pass->variable, NULL);
    uint64_t first = test_random();
    size_t always = count_summed(pass, "1", first), some = count_summed(pass, NULL, first);
    CHECK_INT(count_summed(pass, "0", first), 0);
    CHECK(some > 0 && some < always);
    set_variable(pass->variable, forced ? "1" : NULL);
}

AMP_TEST(statistics_from_the_library_where_it_pays)
{
    check_where_it_pays(&(struct summed_pass){EPILOGUE_SUMS, false, summed_case});
}

AMP_TEST(sums_of_gradients_from_the_library_where_it_pays)
{
    check_where_it_pays(&(struct summed_pass){GRADIENT_SUMS, true, summed_gradient_case});
}

/* As cuDNN may: every case must hold. */
AMP_TEST(sums_that_a_library_takes_before_it_rounds)
{
    bool forward = set_variable(EPILOGUE_SUMS, "1"), gradients = set_variable(GRADIENT_SUMS, "1");
    bool images_forced = set_variable(IMAGE_FORWARD, "0");
    size_t before = tensor_core_host_summed(false);
    tensor_core_host_sum_unrounded(true);
    before_rounding = 0x1p14;
    run_cases(image_case, 20);
    CHECK(tensor_core_host_summed(false) > before);
    run_cases(summed_case, 20);
    run_cases(summed_gradient_case, 20);
    tensor_core_host_sum_unrounded(false);
    before_rounding = 0;
    set_variable(EPILOGUE_SUMS, forward ? "1" : NULL);
    set_variable(GRADIENT_SUMS, gradients ? "1" : NULL);
    set_variable(IMAGE_FORWARD, images_forced ? "1" : NULL);
}

/* ---- images ---- */

/* The same cases with a setting: how many forward passes no library computed. */
static size_t count_by_kernel(const char *setting, uint64_t first)
{
    enum { CASES = 24 };
    set_variable(IMAGE_FORWARD, setting);
    size_t before = tensor_core_host_forward();
    struct ampk_context *context = open_context(NULL, 1);
    REQUIRE(context != NULL);
    images = 0;
    for (int i = 0; i < CASES; i++)
        run_case(image_case, context, first + i);
    CONFORMANCE_BACKEND.context_destroy(context);
    return CASES - (tensor_core_host_forward() - before);
}

AMP_TEST(images_by_a_kernel_where_it_pays)
{
    bool forced = set_variable(IMAGE_FORWARD, NULL);
    uint64_t first = test_random();
    size_t always = count_by_kernel("1", first);
    CHECK_INT(always, images);
    size_t some = count_by_kernel(NULL, first);
    CHECK_INT(count_by_kernel("0", first), 0);
    CHECK(some > 0 && some < always);
    set_variable(IMAGE_FORWARD, forced ? "1" : NULL);
}

/* So many filters that their sums are more than any other work memory. */
AMP_TEST(a_kernel_takes_the_sums_for_which_there_is_no_memory)
{
    struct ampk_conv_shape s = {1,     8,     1,    1, 600000, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP16,
                                false, false, false};
    check_short_memory(EPILOGUE_SUMS, &s);
}

/* So many channels, likewise. */
AMP_TEST(a_kernel_takes_the_sums_of_gradients_for_which_there_is_no_memory)
{
    static const struct ampk_conv_shape s = {
        1, 600000, 1, 1, 8, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP16, false, false, false};
    char err[300];
    bool forced = set_variable(GRADIENT_SUMS, "1");
    for (int limited = 0; limited < 2; limited++) {
        struct ampk_context *context = open_context(NULL, 1);
        REQUIRE(context != NULL);
        struct ampk_conv *conv = CONFORMANCE_BACKEND.conv_create(context, &s, err, sizeof err);
        REQUIRE(conv != NULL);
        size_t had = emulation_memory().bytes;
        if (limited) emulation_memory_limit(had);
        CHECK(CONFORMANCE_BACKEND.conv_sums_gradients(context, conv, AMPK_LEAKY) == !limited);
        CHECK(limited ? emulation_memory().bytes == had : emulation_memory().bytes > had);
        emulation_memory_limit(SIZE_MAX);
        CONFORMANCE_BACKEND.conv_destroy(context, conv);
        CONFORMANCE_BACKEND.context_destroy(context);
    }
    set_variable(GRADIENT_SUMS, forced ? "1" : NULL);
}

AMP_TEST_MAIN
