/* Conformance: batch-norm, activation and 2 x 2 maxpool in one, against the reference and against
 * the operations that they stand for. */
#include "layers.h"

/* Few different values, so that windows have ties; now and then what is not finite. */
static double value_with_ties(void)
{
    switch (test_random() % 64) {
    case 0:
        return NAN;
    case 1:
        return INFINITY;
    case 2:
        return -INFINITY;
    }
    return random_int(-2, 2);
}

/* Too large for FP16, once normalized. */
static double large_value(void)
{
    return test_random() % 16 == 0 ? 6e4 * random_int(-1, 1) : random_value();
}

static enum ampk_activation random_slopes(void)
{
    return (enum ampk_activation)RANDOM_OF(AMPK_LEAKY, AMPK_LINEAR, AMPK_RELU, AMPK_RELIE);
}

/* A layer, its input, and what the operations leave. In half of the cases all is as networks mostly
 * have it: NHWC without gaps, channels by 8. */
struct operands {
    struct layer layer;
    enum ampk_activation activation;
    struct ampk_tensor shape, halved;
    struct pair y, out;
    void *argmax;
};

static int half(int side)
{
    return side == 1 || random_bool() ? (side + 1) / 2 : side / 2;
}

/* A case is of one so large that a thread of the CUDA backend does several cells (ops/rows.h). */
static bool large;

static struct operands make_operands(struct rig *r, double (*value)(void), double (*variance)(void))
{
    struct operands s = {.activation = random_slopes(),
                         .shape = random_shape(random_dtype(), AMPK_NHWC)};
    bool usual = large || random_bool();
    if (large)
        s.shape = describe(AMPK_FP32, AMPK_NHWC, 2, 1024, 34, random_int(35, 36));
    else if (usual)
        s.shape = describe(s.shape.dtype, AMPK_NHWC, s.shape.n, RANDOM_OF(8, 16, 24, 72, 128, 264),
                           s.shape.h, s.shape.w);
    int h = half(s.shape.h), w = half(s.shape.w);
    s.halved = usual ? describe(s.shape.dtype, AMPK_NHWC, s.shape.n, s.shape.c, h, w)
                     : describe_nhwc(s.shape.dtype, s.shape.n, s.shape.c, h, w);
    s.layer = make_layer(r, s.shape.c, variance);
    s.y = input_tensor_of(r, s.shape, value);
    s.out = output_tensor(r, s.halved, false);
    s.argmax = scratch_bytes(r, r->backend->maxpool_index_bytes(&s.halved, 2));
    return s;
}

/* What the backend's bn_act_forward makes of y. */
static struct pair activate(struct rig *r, const struct operands *s, enum ampk_dtype dtype,
                            uint32_t *amax)
{
    struct pair p = output_tensor(
        r, describe(dtype, AMPK_NHWC, s->shape.n, s->shape.c, s->shape.h, s->shape.w), false);
    r->backend->bn_act_forward(r->context, &s->y.tested, &s->layer.tested, s->activation, NULL,
                               &p.tested, NULL, amax);
    p.exact = download(r, &p);
    return p;
}

static uint32_t read_word(struct rig *r, const struct amax *a)
{
    uint32_t word;
    r->backend->read(r->context, &word, tested_amax(a), sizeof word);
    return word;
}

static void check_same_elements(struct rig *r, const struct pair *a, const struct pair *b)
{
    struct ampk_tensor one = download(r, a), other = download(r, b);
    size_t size = ampk_dtype_bytes(one.dtype), image = (size_t)one.c * one.h * one.w * size;
    for (int n = 0; n < one.n; n++)
        CHECK(!memcmp((char *)one.data + n * one.image_stride * size,
                      (char *)other.data + n * other.image_stride * size, image));
}

/* The very bits of bn_act_forward and maxpool_forward: maxima, where they are, magnitudes. */
static void same_bits_case(struct rig *r)
{
    double (*values[])(void) = {random_value, value_with_ties, large_value};
    struct operands s = make_operands(r, values[test_random() % 3], positive_value_or_zero);
    struct amax amax = make_amax(r), wanted_amax = make_amax(r);
    r->backend->bn_act_pool_forward(r->context, &s.y.tested, &s.layer.tested, s.activation,
                                    &s.out.tested, s.argmax, NULL, tested_amax(&amax));

    struct pair activated = activate(r, &s, s.shape.dtype, tested_amax(&wanted_amax));
    struct pair wanted = output_tensor(r, s.halved, false);
    size_t bytes = r->backend->maxpool_index_bytes(&s.halved, 2);
    void *argmax = scratch_bytes(r, bytes);
    r->backend->maxpool_forward(r->context, &activated.tested, 2, 2, 0, &wanted.tested, argmax);

    check_same_elements(r, &s.out, &wanted);
    void *places = own(r, bytes), *wanted_places = own(r, bytes);
    r->backend->read(r->context, places, s.argmax, bytes);
    r->backend->read(r->context, wanted_places, argmax, bytes);
    CHECK(!memcmp(places, wanted_places, bytes));
    uint32_t word = read_word(r, &amax), wanted_word = read_word(r, &wanted_amax);
    word = word > wanted_amax.exact ? word : wanted_amax.exact; /* what they held before */
    wanted_word = wanted_word > amax.exact ? wanted_word : amax.exact;
    CHECK(word == wanted_word || (!ampk_amax_is_finite(word) && !ampk_amax_is_finite(wanted_word)));
}

AMP_TEST(bn_act_pool_forward_is_its_parts)
{
    run_cases(same_bits_case, 80);
}

static struct ampk_tensor in_fp32(struct rig *r, const struct ampk_tensor *t)
{
    struct ampk_tensor copy = blank(r, t);
    double *values = ampk_ref_load(t);
    ampk_ref_store(&copy, values, false, NULL);
    free(values);
    return copy;
}

static void forward_case(struct rig *r)
{
    struct operands s = make_operands(r, random_value, positive_value_or_zero);
    struct amax amax = make_amax(r), y_amax = make_amax(r);
    r->backend->bn_act_pool_forward(r->context, &s.y.tested, &s.layer.tested, s.activation,
                                    &s.out.tested, s.argmax, tested_amax(&y_amax),
                                    tested_amax(&amax));
    /* Not rounded before they are compared: the maximum is the same. */
    struct ampk_tensor y = in_fp32(r, &s.y.exact);
    void *argmax = own(r, ampk_reference.maxpool_index_bytes(&s.halved, 2));
    ampk_reference.bn_act_pool_forward(NULL, &y, &s.layer.exact, s.activation, &s.out.exact, argmax,
                                       &y_amax.exact, &amax.exact);
    check_amax(r, "bn_act_pool_forward y", &y_amax, 0);
    struct ampk_tensor size = absolute(r, &s.y.exact), magnitude = blank(r, &s.out.exact);
    struct ampk_tensor largest = describe_array(1);
    largest.data = own(r, sizeof(float));
    struct ampk_batchnorm sizes = magnitude_layer(r, &s.layer);
    ampk_reference.bn_act_pool_forward(NULL, &size, &sizes, AMPK_LINEAR, &magnitude, argmax, NULL,
                                       largest.data);
    check_output(r, "bn_act_pool_forward", &s.out, activated(s.activation, 8, &magnitude));
    struct tolerance t = activated(s.activation, 8, &largest);
    check_amax(r, "bn_act_pool_forward", &amax, slack_at(&t, *(float *)largest.data, 0, 0));
}

AMP_TEST(bn_act_pool_forward)
{
    run_cases(forward_case, 60);
}

/* The gradient at the activated values, where the backend's maxima are. */
static struct ampk_tensor spread(struct rig *r, const struct operands *s, const struct pair *d)
{
    struct pair activated = activate(r, s, s->shape.dtype, NULL);
    struct ampk_tensor maxima = blank(r, &s->halved), at = blank(r, &s->shape);
    void *argmax = own(r, ampk_reference.maxpool_index_bytes(&s->halved, 2));
    ampk_reference.maxpool_forward(NULL, &activated.exact, 2, 2, 0, &maxima, argmax);
    ampk_reference.maxpool_backward(NULL, &d->exact, argmax, 2, 2, 0, &at, false, NULL);
    return at;
}

static void backward_case(struct rig *r)
{
    struct operands s = make_operands(r, random_value, positive_value_or_zero);
    r->backend->bn_act_pool_forward(r->context, &s.y.tested, &s.layer.tested, s.activation,
                                    &s.out.tested, s.argmax, NULL, NULL);
    struct pair d = input_tensor(r, s.halved), dy = output_tensor(r, s.shape, false);
    struct pair dscale = output_array(r, s.shape.c, false);
    struct pair dbias = output_array(r, s.shape.c, false);
    struct amax amax = make_amax(r), db_amax = make_amax(r);
    r->backend->bn_act_pool_backward(r->context, &s.y.tested, &s.layer.tested, s.activation,
                                     &d.tested, s.argmax, &dy.tested, dscale.tested.data,
                                     dbias.tested.data, tested_amax(&amax), tested_amax(&db_amax));

    struct ampk_tensor at = spread(r, &s, &d);
    struct pair signs = activate(r, &s, AMPK_FP32, NULL);
    ampk_reference.bn_act_backward(NULL, &s.y.exact, &signs.exact, &s.layer.exact, s.activation,
                                   &at, &dy.exact, dscale.exact.data, dbias.exact.data, &amax.exact,
                                   &db_amax.exact);
    struct ampk_tensor bound = gradient_magnitude(r, s.activation, &signs.exact, &at);
    struct ampk_tensor to_scale = blank(r, &dscale.exact), to_bias = blank(r, &dbias.exact);
    for (int c = 0; c < s.shape.c; c++)
        bound_channel(&bound, &s.y.exact, &s.layer.exact, c, to_scale.data, to_bias.data);
    double terms = roundings((double)s.shape.n * s.shape.h * s.shape.w) + 12;
    double slack =
        check_output(r, "bn_act_pool_backward dy", &dy, (struct tolerance){terms, &bound, 0, 0});
    check_amax(r, "bn_act_pool_backward", &amax, slack);
    slack = check_output(r, "dscale", &dscale, (struct tolerance){terms, &to_scale, 0, 0});
    slack =
        fmax(slack, check_output(r, "dbias", &dbias, (struct tolerance){terms, &to_bias, 0, 0}));
    check_amax(r, "bn_act_pool_backward dscale, dbias", &db_amax, slack);
}

/* The reference's own gradient of both: what its watch words say is what it has stored. */
static void reference_case(struct rig *r)
{
    struct operands s = make_operands(r, random_value, positive_value_or_zero);
    struct pair d = input_tensor(r, s.halved);
    struct ampk_tensor dy = blank(r, &s.shape), out = blank(r, &s.halved), two;
    void *argmax = own(r, ampk_reference.maxpool_index_bytes(&s.halved, 2));
    two = describe_array(2 * (size_t)s.shape.c);
    give_data(r, &two);
    float *dscale = two.data;
    uint32_t stored = 0, told = 0, gradients = 0, parameters = 0;
    ampk_reference.bn_act_pool_forward(NULL, &s.y.exact, &s.layer.exact, s.activation, &out, argmax,
                                       NULL, NULL);
    ampk_reference.bn_act_pool_backward(NULL, &s.y.exact, &s.layer.exact, s.activation, &d.exact,
                                        argmax, &dy, dscale, dscale + s.shape.c, &told,
                                        &parameters);
    ampk_reference.amax(NULL, dy.data, ampk_ref_count(&dy), &stored);
    ampk_reference.amax(NULL, dscale, 2 * (size_t)s.shape.c, &gradients);
    CHECK(told == stored && parameters == gradients);
}

AMP_TEST(the_references_watch_words)
{
    run_cases(reference_case, 5);
}

AMP_TEST(bn_act_pool_backward)
{
    run_cases(backward_case, 80);
}

#ifdef CONFORMANCE_CUDA
AMP_TEST(tensors_of_several_cells_a_thread)
{
    large = true;
    run_cases(forward_case, 1);
    run_cases(backward_case, 1);
    large = false;
}
#endif

AMP_TEST_MAIN
