/* Conformance: max-pooling and global average pooling. */
#include "conformance.h"

/* Few different values, so that windows have ties; now and then what is not finite. */
static double value_with_ties(void)
{
    switch (test_random() % 32) {
    case 0:
        return NAN;
    case 1:
        return INFINITY;
    case 2:
        return -INFINITY;
    }
    return random_int(-3, 3);
}

struct pooling {
    int size, stride, pad;
};

/* Padding up to where windows lie outside the image altogether. */
static struct pooling random_pooling(void)
{
    struct pooling p = {RANDOM_OF(1, 2, 2, 2, 3, 3, 5, 13, 15, 16, 17), random_int(1, 3), 0};
    p.pad = test_random() % 8 == 0 ? random_int(0, 2 * p.size + 1) : random_int(0, p.size);
    return p;
}

/* Number of windows along a side; 0 if the padded side is too short. */
static int count_windows(struct pooling p, int side)
{
    return side + p.pad < p.size ? 0 : (side + p.pad - p.size) / p.stride + 1;
}

/* One pass forward, then one back by the index that it left. */
static void maxpool_pass(struct rig *r, struct pooling p, struct ampk_tensor in,
                         double (*value)(void))
{
    bool accumulate = random_bool();
    struct ampk_tensor out =
        describe_channels(in.dtype, in.n, in.c, count_windows(p, in.h), count_windows(p, in.w));
    struct pair x = input_tensor_of(r, in, value), y = output_tensor(r, out, false);
    void *index = scratch_bytes(r, r->backend->maxpool_index_bytes(&out, p.size));
    void *exact_index = own(r, ampk_reference.maxpool_index_bytes(&out, p.size));
    r->backend->maxpool_forward(r->context, &x.tested, p.size, p.stride, p.pad, &y.tested, index);
    ampk_reference.maxpool_forward(NULL, &x.exact, p.size, p.stride, p.pad, &y.exact, exact_index);
    check_output(r, "maxpool_forward", &y, exactly);

    struct pair dy = input_tensor(r, describe_channels(in.dtype, out.n, out.c, out.h, out.w));
    struct pair dx = output_tensor(r, describe_nhwc(in.dtype, in.n, in.c, in.h, in.w), accumulate);
    struct ampk_tensor size = absolute(r, &dy.exact);
    struct ampk_tensor magnitude = magnitude_of_old(r, &dx, accumulate);
    ampk_reference.maxpool_backward(NULL, &size, exact_index, p.size, p.stride, p.pad, &magnitude,
                                    true, NULL);
    struct amax amax = make_amax(r);
    r->backend->maxpool_backward(r->context, &dy.tested, index, p.size, p.stride, p.pad, &dx.tested,
                                 accumulate, tested_amax(&amax));
    ampk_reference.maxpool_backward(NULL, &dy.exact, exact_index, p.size, p.stride, p.pad,
                                    &dx.exact, accumulate, &amax.exact);
    int overlap = (p.size + p.stride - 1) / p.stride;
    struct tolerance sum = {overlap * overlap + 1, &magnitude, 0, 0};
    check_amax(r, "maxpool_backward", &amax, check_output(r, "maxpool_backward", &dx, sum));
}

static void maxpool_case(struct rig *r)
{
    struct pooling p = random_pooling();
    struct ampk_tensor in = describe_nhwc(random_dtype(), random_int(1, 2), random_channels(),
                                          random_side(), random_side());
    while (count_windows(p, in.h) < 1)
        in.h++;
    while (count_windows(p, in.w) < 1)
        in.w++;
    in.image_stride = (size_t)in.c * in.h * in.w;
    maxpool_pass(r, p, in, random_bool() ? random_value : value_with_ties);
}

AMP_TEST(maxpool)
{
    run_cases(maxpool_case, 80);
}

/* What detectors use: 2x2 by 2, and 2x2 by 1 with Darknet's padding of 1. */
static void usual_maxpool_case(struct rig *r)
{
    struct pooling p = {2, random_int(1, 2), 1};
    maxpool_pass(r, p, describe_nhwc(random_dtype(), 2, RANDOM_OF(16, 40), 13, RANDOM_OF(13, 26)),
                 random_value);
}

AMP_TEST(usual_maxpool)
{
    run_cases(usual_maxpool_case, 10);
}

static void avgpool_case(struct rig *r)
{
    bool accumulate = random_bool();
    struct ampk_tensor in = random_shape(random_dtype(), AMPK_NHWC);
    struct ampk_tensor out = describe_nhwc(in.dtype, in.n, in.c, 1, 1);
    double area = (double)in.h * in.w;
    struct pair x = input_tensor(r, in), y = output_tensor(r, out, false);
    struct ampk_tensor size = absolute(r, &x.exact), magnitude = blank(r, &y.exact);
    ampk_reference.avgpool_forward(NULL, &size, &magnitude, NULL);
    struct amax amax = make_amax(r);
    r->backend->avgpool_forward(r->context, &x.tested, &y.tested, tested_amax(&amax));
    ampk_reference.avgpool_forward(NULL, &x.exact, &y.exact, &amax.exact);
    struct tolerance sum = {area + 1, &magnitude, 0, 0};
    check_amax(r, "avgpool_forward", &amax, check_output(r, "avgpool_forward", &y, sum));

    struct pair dy = input_tensor(r, out), dx = output_tensor(r, in, accumulate);
    size = absolute(r, &dy.exact), magnitude = magnitude_of_old(r, &dx, accumulate);
    ampk_reference.avgpool_backward(NULL, &size, &magnitude, true, NULL);
    amax = make_amax(r);
    r->backend->avgpool_backward(r->context, &dy.tested, &dx.tested, accumulate,
                                 tested_amax(&amax));
    ampk_reference.avgpool_backward(NULL, &dy.exact, &dx.exact, accumulate, &amax.exact);
    struct tolerance share = {3, &magnitude, 0, 0};
    check_amax(r, "avgpool_backward", &amax, check_output(r, "avgpool_backward", &dx, share));
}

AMP_TEST(avgpool)
{
    run_cases(avgpool_case, 40);
}

AMP_TEST_MAIN
