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
}

/* ---- images ---- */

/* The same cases with a setting: how many forward passes no library computed. */
static size_t count_by_kernel(uint64_t first)
{
    enum { CASES = 24 };
    size_t before = tensor_core_host_forward();
    struct ampk_context *context = open_context(NULL, 1);
    REQUIRE(context != NULL);
    images = 0;
    for (int i = 0; i < CASES; i++)
        run_case(image_case, context, first + i);
    CONFORMANCE_BACKEND.context_destroy(context);
    return CASES - (tensor_core_host_forward() - before);
}

AMP_TEST(images_by_a_kernel)
{
    uint64_t first = test_random();
    size_t usual = count_by_kernel(first);
    CHECK(usual > 0);
    CHECK_INT(usual, images);
    setenv("AMPK_CUDA_IMAGE_FORWARD", "0", 1);
    CHECK_INT(count_by_kernel(first), 0);
    unsetenv("AMPK_CUDA_IMAGE_FORWARD");
}

AMP_TEST_MAIN
