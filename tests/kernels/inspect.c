/* Conformance: what the log wants to know of tensors and gradients. */
#include "conformance.h"

static double sometimes_zero(void)
{
    return test_random() % 3 ? random_value() : 0;
}

static double sometimes_not_finite(void)
{
    if (test_random() % 500) return sometimes_zero();
    return RANDOM_OF(0, 1) ? INFINITY : NAN;
}

/* Many pieces, or few elements. */
static struct ampk_tensor any_tensor(void)
{
    enum ampk_dtype dtype = random_dtype();
    if (test_random() % 6 == 0)
        return describe_channels(dtype, random_int(1, 2), RANDOM_OF(63, 64, 65), 33, 17);
    int n = random_int(1, 3), c = random_channels(), h = random_side(), w = random_side();
    return random_bool() ? describe(dtype, AMPK_NCHW, n, c, h, w)
                         : describe_channels(dtype, n, c, h, w);
}

/* What is counted is added to what is there. */
static void inspect_case(struct rig *r)
{
    uint32_t exact = 5, tested = 5;
    struct pair x =
        input_tensor_of(r, any_tensor(), random_bool() ? sometimes_zero : sometimes_not_finite);
    struct amax amax = make_amax(r);
    uint32_t *zeros = r->backend->alloc(r->context, sizeof *zeros);
    r->backend->write(r->context, zeros, &tested, sizeof tested);
    r->backend->inspect(r->context, &x.tested, tested_amax(&amax), zeros);
    r->backend->read(r->context, &tested, zeros, sizeof tested);
    ampk_reference.inspect(NULL, &x.exact, &amax.exact, &exact);
    check_amax(r, "inspect", &amax, 0);
    CHECK_INT(tested, exact);
    r->backend->free(r->context, zeros);
}

AMP_TEST(inspect)
{
    run_cases(inspect_case, 60);
}

static void sum_squares_case(struct rig *r)
{
    size_t n = (size_t)RANDOM_OF(0, 1, 7, 15, 16, 17, 1000, 16383, 16385, 65537, 200000);
    struct pair x = input_array(r, n ? n : 1), sum = output_array(r, 1, false);
    r->backend->sum_squares(r->context, x.tested.data, n, sum.tested.data);
    ampk_reference.sum_squares(NULL, x.exact.data, n, sum.exact.data);
    struct tolerance additions = {2000, &sum.exact, 0, 0};
    check_output(r, "sum_squares", &sum, additions);
}

AMP_TEST(sum_squares)
{
    run_cases(sum_squares_case, 40);
}

AMP_TEST_MAIN
