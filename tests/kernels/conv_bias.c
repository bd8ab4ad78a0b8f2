/* conv_bias_backward: the same bits as bias_act_backward and conv_backward, which other tests hold
 * to the reference, but for the order of the bias's sums. */
#include "kernels/cuda/runtime/context.h"

#include "conformance.h"

static struct ampk_conv_shape random_conv_shape(void)
{
    int size = RANDOM_OF(1, 1, 3), groups = RANDOM_OF(1, 1, 1, 1, 2);
    struct ampk_conv_shape s = {.n = random_int(1, 3),
                                .c = groups * RANDOM_OF(3, 8, 16, 20),
                                .k = groups * RANDOM_OF(1, 2, 5, 8, 9, 21, 24, 32, 33, 64, 75),
                                .kh = size,
                                .kw = size,
                                .stride = RANDOM_OF(1, 1, 2),
                                .pad = size / 2,
                                .groups = groups,
                                .compute = RANDOM_OF(AMPK_COMPUTE_FP16, AMPK_COMPUTE_FP16,
                                                     AMPK_COMPUTE_BF16, AMPK_COMPUTE_FP32)};
    s.h = random_int(size, RANDOM_OF(5, 13, 26)), s.w = random_int(size, RANDOM_OF(5, 13, 26));
    s.transposed = random_int(0, 3) == 0;
    return s;
}

static struct ampk_conv *make_conv(struct rig *r, const struct ampk_conv_shape *s)
{
    char err[200] = "";
    snprintf(r->note, sizeof r->note,
             "n %d, c %d, h %d, w %d, k %d, window %d, stride %d, groups %d, "
             "compute %d%s",
             s->n, s->c, s->h, s->w, s->k, s->kh, s->stride, s->groups, s->compute,
             s->transposed ? ", transposed" : "");
    struct ampk_conv *conv = r->backend->conv_create(r->context, s, err, sizeof err);
    if (!conv) TEST_FAIL("conv_create: %s", err);
    REQUIRE(conv != NULL);
    struct pair w = input_array(r, (size_t)s->k * (s->c / s->groups) * s->kh * s->kw);
    struct ampk_new_weights weights = {conv, w.tested.data, NULL};
    r->backend->conv_set_weights(r->context, &weights, 1);
    return conv;
}

/* factor * d, in FP32. */
static struct ampk_tensor scaled(struct rig *r, const struct pair *d, float factor)
{
    struct ampk_tensor t = d->exact;
    t.dtype = AMPK_FP32;
    t.image_stride = (size_t)t.c * t.h * t.w;
    t.pitch = 0;
    give_data(r, &t);
    double *values = ampk_ref_load(&d->exact);
    for (size_t i = 0; i < ampk_ref_count(&t); i++)
        values[i] *= (double)factor; /* a power of two */
    ampk_ref_store(&t, values, false, NULL);
    free(values);
    return make_pair(r, t, true).tested;
}

/* What is not written there is NaN. */
static void poison_work_memory(struct rig *r)
{
    static unsigned char poison[1 << 18];
    memset(poison, 0xff, sizeof poison);
    r->backend->write(r->context, ampk_cuda_work(r->context, sizeof poison), poison, sizeof poison);
}

static double one_half(void)
{
    return .5;
}

/* From 0 on, so that two of them can be compared. */
static struct amax amax_of_zero(struct rig *r)
{
    struct amax a = make_amax(r);
    r->backend->fill_zero(r->context, a.word.tested.data, sizeof(uint32_t));
    return a;
}

/* What the operations write. */
struct results {
    struct pair dy, dbias, dw;
    struct amax dy_amax, db_amax, dx_amax;
};

static struct results make_results(struct rig *r, const struct ampk_conv_shape *s,
                                   const struct ampk_tensor *dy)
{
    size_t weights = (size_t)s->k * (s->c / s->groups) * s->kh * s->kw;
    return (struct results){
        .dy = output_tensor(r, *dy, false),
        .dbias = output_array(r, (size_t)dy->c, false),
        .dw = output_array(r, weights, false),
        .dy_amax = amax_of_zero(r),
        .db_amax = amax_of_zero(r),
        .dx_amax = amax_of_zero(r),
    };
}

static void take_dw(struct rig *r, struct ampk_conv *conv, struct results *to)
{
    struct ampk_weight_gradient list = {conv, to->dw.tested.data, NULL};
    r->backend->conv_weight_gradients(r->context, &list, 1, 1, false);
}

/* A copy of the tensor as it is on the device. */
static struct ampk_tensor host_copy(struct rig *r, const struct ampk_tensor *t)
{
    struct ampk_tensor host = *t;
    size_t bytes = span_of(t) * ampk_dtype_bytes(t->dtype);
    host.data = own(r, bytes);
    r->backend->read(r->context, host.data, t->data, bytes);
    return host;
}

/* What is to be there at the end is what is there now. */
static void expect_this(struct rig *r, struct pair *p, const struct ampk_tensor *now)
{
    struct ampk_tensor host = host_copy(r, now);
    double *values = ampk_ref_load(&host);
    ampk_ref_store(&p->exact, values, false, NULL);
    free(values);
}

static void begin_again(struct rig *r, const struct ampk_tensor *t)
{
    struct ampk_tensor host = host_copy(r, t);
    fill(&host, one_half);
    r->backend->write(r->context, t->data, host.data, span_of(t) * ampk_dtype_bytes(t->dtype));
}

static void check_same_amax(struct rig *r, const char *what, const struct amax *a,
                            const struct amax *b)
{
    uint32_t bits[2];
    r->backend->read(r->context, &bits[0], a->word.tested.data, sizeof *bits);
    r->backend->read(r->context, &bits[1], b->word.tested.data, sizeof *bits);
    double got = float_of(bits[0]), expected = float_of(bits[1]);
    if (bits[0] != bits[1]) TEST_FAIL("%s: amax is %.9g, expected %.9g", what, got, expected);
}

static void check_bias_backward(struct rig *r, struct ampk_conv_shape s, bool of_loss)
{
    struct ampk_conv *conv = make_conv(r, &s);
    const enum ampk_dtype operand = s.compute == AMPK_COMPUTE_FP16   ? AMPK_FP16
                                    : s.compute == AMPK_COMPUTE_BF16 ? AMPK_BF16
                                                                     : AMPK_FP32;
    int oh = (s.h + 2 * s.pad - s.kh) / s.stride + 1, ow = (s.w + 2 * s.pad - s.kw) / s.stride + 1;
    struct ampk_tensor with_c = describe_nhwc(operand, s.n, s.c, s.h, s.w);
    struct ampk_tensor with_k = describe_nhwc(operand, s.n, s.k, oh, ow);
    struct ampk_tensor x_shape = s.transposed ? with_k : with_c;
    struct ampk_tensor dy_shape = s.transposed ? with_c : with_k;
    enum ampk_activation activation = of_loss ? AMPK_LINEAR : AMPK_LEAKY;
    struct ampk_tensor d_shape =
        describe_nhwc(random_dtype(), s.n, dy_shape.c, dy_shape.h, dy_shape.w);
    if (of_loss) d_shape = describe(AMPK_FP32, AMPK_NCHW, s.n, d_shape.c, d_shape.h, d_shape.w);
    const float factor = ldexpf(1, RANDOM_OF(0, 0, -3, 4, 10));
    bool accumulate = random_bool();
    struct pair x = input_tensor(r, x_shape);
    struct pair d = input_tensor(r, d_shape), out = input_tensor(r, d_shape);
    /* One for both: with its address the library's way may change. */
    struct pair dx = output_tensor_of(r, x_shape, one_half);
    struct results tested = make_results(r, &s, &dy_shape);
    struct results expected = make_results(r, &s, &dy_shape);

    struct ampk_tensor d_scaled = scaled(r, &d, factor);
    r->backend->bias_act_backward(r->context, &out.tested, activation, &d_scaled,
                                  &expected.dy.tested, expected.dbias.tested.data,
                                  tested_amax(&expected.dy_amax), tested_amax(&expected.db_amax));
    r->backend->conv_backward(r->context, conv, &x.tested, &expected.dy.tested, &dx.tested,
                              accumulate, tested_amax(&expected.dx_amax));
    take_dw(r, conv, &expected);
    expect_this(r, &dx, &dx.tested);
    expect_this(r, &tested.dw, &expected.dw.tested);
    expect_this(r, &tested.dbias, &expected.dbias.tested);
    begin_again(r, &dx.tested);

    struct ampk_bias_gradient bias = {&out.tested,
                                      &d.tested,
                                      activation,
                                      factor,
                                      tested.dbias.tested.data,
                                      tested_amax(&tested.dy_amax),
                                      tested_amax(&tested.db_amax)};
    poison_work_memory(r);
    r->backend->conv_bias_backward(r->context, conv, &x.tested, &bias, &tested.dy.tested,
                                   &dx.tested, accumulate, tested_amax(&tested.dx_amax));
    take_dw(r, conv, &tested);

    check_output(r, "dx", &dx, exactly);
    check_output(r, "dw", &tested.dw, exactly);
    check_same_amax(r, "dy", &tested.dy_amax, &expected.dy_amax);
    check_same_amax(r, "dx", &tested.dx_amax, &expected.dx_amax);
    /* Sums of as many values of at most 8 * factor, in two orders. */
    double count = (double)s.n * dy_shape.h * dy_shape.w;
    double apart = 2 * roundings(count) * 0x1p-24 * count * 8 * (double)factor;
    check_output(r, "dbias", &tested.dbias, (struct tolerance){0, NULL, 0, apart});
    r->backend->conv_destroy(r->context, conv);
}

static void bias_backward_case(struct rig *r)
{
    struct ampk_conv_shape s = random_conv_shape();
    check_bias_backward(r, s, random_int(0, 3) > 0);
}

AMP_TEST(conv_bias_backward)
{
    run_cases(bias_backward_case, 60);
}

/* More tiles than blocks. */
static void large_case(struct rig *r)
{
    check_bias_backward(r,
                        (struct ampk_conv_shape){2, 8, 76, 76, 255, 1, 1, 1, 0, 1,
                                                 AMPK_COMPUTE_FP16, false, false, false},
                        true);
}

AMP_TEST(conv_bias_backward_of_a_large_head)
{
    run_cases(large_case, 1);
}

AMP_TEST_MAIN
