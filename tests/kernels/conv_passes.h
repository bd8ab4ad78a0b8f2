/* Forward and backward passes of convolutions beside the reference: the cases that conv.c runs once
 * for every backend, and conv_choices.c by each way of the CUDA backend. */
#include "convs.h"

/* ---- forward ---- */

static void compare_forward(struct rig *r, const struct convs *c, struct pair x, struct pair y,
                            bool with_statistics)
{
    bool watched = random_bool();
    const struct ampk_conv_shape *s = &c->shape;
    struct statistics statistics = make_statistics(r, y.tested.c);
    struct ampk_bn_statistics tested = tested_statistics(&statistics);
    struct ampk_tensor size = absolute(r, &x.exact), magnitude = blank(r, &y.exact);
    ampk_reference.conv_forward(NULL, c->magnitude, &size, &magnitude, NULL, NULL);
    struct amax amax = make_amax(r);
    r->backend->conv_forward(r->context, c->tested, &x.tested, &y.tested,
                             with_statistics ? &tested : NULL, watched ? tested_amax(&amax) : NULL);
    ampk_reference.conv_forward(NULL, c->exact, &x.exact, &y.exact, NULL, &amax.exact);
    struct tolerance sum = sum_of(s, roundings(products_of_output(s)), &magnitude);
    double slack = check_output(r, "conv_forward", &y, sum);
    if (watched) check_stored_amax(r, "conv_forward", &amax, slack, y.tested.dtype);
    if (!with_statistics) return;
    struct ampk_tensor stored = download(r, &y); /* whatever rounding gave it */
    check_statistics(r, &statistics, &stored);
}

static void check_forward(struct rig *r, const struct convs *c)
{
    struct pair x = input_tensor(r, shape_x(&c->shape));
    compare_forward(r, c, x, output_tensor(r, shape_y(&c->shape), false), random_bool());
}

static void forward_case(struct rig *r)
{
    struct convs c = make_convs(r, choose_shape(true));
    check_forward(r, &c);
    destroy_convs(r, &c);
}

/* ---- forward, of images ---- */

static double test_pixel(void)
{
    return test_uniform(0, 1);
}

static double huge(void)
{
    return test_uniform(-6e4, 6e4);
}

/* What a kernel of the CUDA backend may compute, and how many of the cases were so. */
static size_t images;

static bool is_operand(const struct ampk_tensor *t)
{
    return (uintptr_t)t->data % 16 == 0;
}

static void image_case(struct rig *r)
{
    static double (*const values[])(void) = {random_value, random_value,        random_value,
                                             test_pixel,   spoilt_now_and_then, huge};
    struct ampk_conv_shape s = {.n = random_int(1, 3),
                                .c = RANDOM_OF(1, 2, 3, 3, 3, 3, 4),
                                .k = RANDOM_OF(8, 16, 24, 32, 32, 40, 48, 64),
                                .kh = 3,
                                .kw = 3,
                                .stride = 1,
                                .pad = 1,
                                .groups = 1,
                                .compute = RANDOM_OF(AMPK_COMPUTE_FP16, AMPK_COMPUTE_BF16)};
    s.h = RANDOM_OF(1, 2, 3, 7, 15, 16, 17, 18, 34);
    s.w = RANDOM_OF(1, 2, 4, 5, 8, 12, 15, 16, 31, 32, 33, 36, 64, 68);
    enum ampk_dtype dtype = s.compute == AMPK_COMPUTE_FP16 ? AMPK_FP16 : AMPK_BF16;
    struct convs c = make_convs(r, s);
    struct pair x = input_tensor_of(r, describe(dtype, AMPK_NHWC, s.n, s.c, s.h, s.w),
                                    values[test_random() % 6]);
    struct pair y = output_tensor(r, describe(dtype, AMPK_NHWC, s.n, s.k, s.h, s.w), false);
    images += is_operand(&x.tested) && is_operand(&y.tested) && s.k != 40;
    compare_forward(r, &c, x, y, true);
    destroy_convs(r, &c);
}

/* ---- weight gradients, of convolutions whose backward has run ---- */

/* Beside the reference. terms: of each sum. */
static void compare_weight_gradient(struct rig *r, const struct convs *c, double terms)
{
    const struct ampk_conv_shape *s = &c->shape;
    struct pair dw = output_array(r, weight_count(s), false);
    struct ampk_tensor magnitude = blank(r, &dw.exact);
    struct amax amax = make_amax(r);
    const struct ampk_weight_gradient tested = {c->tested, dw.tested.data, tested_amax(&amax)};
    const struct ampk_weight_gradient exact = {c->exact, dw.exact.data, &amax.exact};
    const struct ampk_weight_gradient sizes = {c->magnitude, magnitude.data, NULL};
    r->backend->conv_weight_gradients(r->context, &tested, 1, 1, false);
    ampk_reference.conv_weight_gradients(NULL, &exact, 1, 1, false);
    ampk_reference.conv_weight_gradients(NULL, &sizes, 1, 1, false);
    struct tolerance sum = sum_of(s, roundings(terms), &magnitude);
    check_amax(r, "dw", &amax, check_output(r, "dw", &dw, sum));
}

/* As it is stored: the host's own copy. */
static const float *stored_gradient(struct rig *r, const struct convs *c)
{
    struct pair dw = output_array(r, weight_count(&c->shape), false);
    const struct ampk_weight_gradient item = {c->tested, dw.tested.data, NULL};
    r->backend->conv_weight_gradients(r->context, &item, 1, 1, false);
    return download(r, &dw).data;
}

/* Bits of amax that has seen x too. */
static uint32_t raised(uint32_t word, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ampk_ref_raise(&word, x[i]);
    return word;
}

/* Item i of a list and what must come of it, to the bit. */
struct taking {
    const struct convs *conv;
    const float *stored;
    struct pair dst;
    size_t first; /* of dst */
    bool watched_only;
    struct amax amax;
};

enum { MOST_TAKINGS = 300 }; /* more than conv_operands.c of the CUDA backend describes at once */

static void check_takings(struct rig *r, struct taking *all, int count)
{
    static const float factors[] = {1, .5f, 0x1p-10f, 4};
    static struct ampk_weight_gradient list[MOST_TAKINGS];
    float factor = factors[test_random() % 4];
    bool accumulate = random_bool();
    for (int i = 0; i < count; i++) {
        struct taking *t = &all[i];
        size_t n = weight_count(&t->conv->shape);
        float *expected = (float *)t->dst.exact.data + t->first;
        float *dst = (float *)t->dst.tested.data + t->first;
        list[i] = (struct ampk_weight_gradient){t->conv->tested, t->watched_only ? NULL : dst,
                                                tested_amax(&t->amax)};
        t->amax.exact = raised(t->amax.exact, t->stored, n);
        for (size_t k = 0; k < n && !t->watched_only; k++)
            expected[k] =
                accumulate ? fmaf(factor, t->stored[k], expected[k]) : factor * t->stored[k];
    }
    r->backend->conv_weight_gradients(r->context, list, count, factor, accumulate);
    for (int i = 0; i < count; i++) {
        check_amax(r, "amax of taken dw", &all[i].amax, 0);
        if (i == 0 || all[i].dst.tested.data != all[i - 1].dst.tested.data)
            check_output(r, "taken dw", &all[i].dst, exactly);
    }
}

/* Added or stored, scaled or not, and watched alone: again and again. */
static void check_ways_to_take(struct rig *r, const struct convs *c)
{
    const float *stored = stored_gradient(r, c);
    for (int i = 0; i < 3; i++) {
        struct taking t = {.conv = c,
                           .stored = stored,
                           .dst = output_array(r, weight_count(&c->shape), true),
                           .watched_only = i == 0,
                           .amax = make_amax(r)};
        check_takings(r, &t, 1);
    }
}

static void run_backward(struct rig *r, const struct convs *c, double (*value)(void))
{
    struct pair x = input_tensor_of(r, shape_x(&c->shape), value);
    struct pair dy = input_tensor_of(r, shape_y(&c->shape), value);
    r->backend->conv_backward(r->context, c->tested, &x.tested, &dy.tested, NULL, false, NULL);
}

/* ---- backward ---- */

/* In one call, or the weight gradient first: the data gradient alone leaves it as it is. dx NULL:
 * not wanted. */
static void run_both(struct rig *r, const struct convs *c, const struct pair *x,
                     const struct pair *dy, const struct pair *dx, bool accumulate,
                     struct amax *amax)
{
    const struct ampk_backend *be = r->backend;
    bool apart = dx && random_bool();
    be->conv_backward(r->context, c->tested, &x->tested, &dy->tested,
                      dx && !apart ? &dx->tested : NULL, accumulate, tested_amax(amax));
    if (apart)
        be->conv_backward(r->context, c->tested, NULL, &dy->tested, &dx->tested, accumulate,
                          tested_amax(amax));
}

static void compare_backward(struct rig *r, struct ampk_conv_shape shape)
{
    struct convs c = make_convs(r, shape);
    const struct ampk_conv_shape *s = &c.shape;
    bool accumulate = random_bool(), want_dx = test_random() % 4 != 0;
    struct pair x = input_tensor(r, shape_x(s)), dy = input_tensor(r, shape_y(s));
    struct pair dx = output_tensor(r, shape_x(s), accumulate || !want_dx);
    struct ampk_tensor size = absolute(r, &x.exact), dy_size = absolute(r, &dy.exact);
    struct ampk_tensor to_dx = magnitude_of_old(r, &dx, accumulate);
    ampk_reference.conv_backward(NULL, c.magnitude, &size, &dy_size, &to_dx, true, NULL);
    struct amax dx_amax = make_amax(r);
    if (random_bool()) run_backward(r, &c, large); /* the second one must win */
    run_both(r, &c, &x, &dy, want_dx ? &dx : NULL, accumulate, &dx_amax);
    ampk_reference.conv_backward(NULL, c.exact, &x.exact, &dy.exact, want_dx ? &dx.exact : NULL,
                                 accumulate, &dx_amax.exact);
    struct tolerance data = sum_of(s, roundings(products_of_gradient(s)) + 1, &to_dx);
    if (accumulate) data.absolute += 128 * device_error(s).rounds; /* of the part that was added */
    double slack = check_output(r, "conv_backward dx", &dx, data);
    check_stored_amax(r, "conv_backward dx", &dx_amax, slack, dx.tested.dtype);
    compare_weight_gradient(r, &c,
                            (double)s->n * out_side(s->h, s->kh, s) * out_side(s->w, s->kw, s));
    check_ways_to_take(r, &c);
    destroy_convs(r, &c);
}

static void backward_case(struct rig *r)
{
    compare_backward(r, choose_shape(false));
}
