/* Conformance: batch-norm's backward and a first convolution's weight gradient in one, against the
 * backend's own batch-norm, to the bit, and the reference's weight gradient of the dy that this
 * stores. */
#include "layers.h"

static const char SETTING[] = "AMPK_CUDA_IMAGE_GRADIENT";

enum source { PLAIN, POOLED, SOURCES };

/* A first convolution, the layer behind it and what its backward reads. */
struct first_layer {
    struct ampk_conv_shape shape;
    enum source source;
    struct layer layer;
    struct pair x, y, d;
    struct ampk_layer_gradient gradient; /* of tested tensors */
    struct ampk_conv *tested, *exact, *magnitude;
};

static struct ampk_conv_shape random_image_shape(void)
{
    bool wide = test_random() % 4 == 0;
    return (struct ampk_conv_shape){.n = random_int(1, 3),
                                    .c = RANDOM_OF(1, 2, 3, 3, 3, 4),
                                    .h = wide ? random_int(1, 5) : random_side(),
                                    .w = wide ? random_int(30, 100) : random_side(),
                                    .k = RANDOM_OF(8, 16, 16, 24, 32, 32, 40, 48, 56, 64),
                                    .kh = 3,
                                    .kw = 3,
                                    .stride = 1,
                                    .pad = 1,
                                    .groups = 1,
                                    .compute = RANDOM_OF(AMPK_COMPUTE_FP16, AMPK_COMPUTE_BF16)};
}

static enum ampk_dtype operand_of(const struct first_layer *s)
{
    return s->shape.compute == AMPK_COMPUTE_FP16 ? AMPK_FP16 : AMPK_BF16;
}

static struct ampk_tensor shape_y(const struct first_layer *s)
{
    return describe(operand_of(s), AMPK_NHWC, s->shape.n, s->shape.k, s->shape.h, s->shape.w);
}

static int half(int side)
{
    return side == 1 || random_bool() ? (side + 1) / 2 : side / 2;
}

/* Where the maxima are, and what reads the gradient there. */
static void pool(struct rig *r, struct first_layer *s)
{
    struct ampk_tensor halved = describe(operand_of(s), AMPK_NHWC, s->shape.n, s->shape.k,
                                         half(s->shape.h), half(s->shape.w));
    struct pair out = output_operand(r, halved);
    void *argmax = scratch_bytes(r, r->backend->maxpool_index_bytes(&halved, 2));
    r->backend->bn_act_pool_forward(r->context, &s->y.tested, &s->layer.tested,
                                    s->gradient.activation, &out.tested, argmax, NULL, NULL);
    s->gradient.argmax = argmax;
    s->d = input_operand(r, halved);
}

static void make_convs(struct rig *r, struct first_layer *s)
{
    char err[200] = "";
    s->tested = r->backend->conv_create(r->context, &s->shape, err, sizeof err);
    if (!s->tested) TEST_FAIL("conv_create: %s", err);
    REQUIRE(s->tested != NULL);
    s->exact = ampk_reference.conv_create(NULL, &s->shape, err, sizeof err);
    s->magnitude = ampk_reference.conv_create(NULL, &s->shape, err, sizeof err);
}

static void destroy_convs(struct rig *r, struct first_layer *s)
{
    r->backend->conv_destroy(r->context, s->tested);
    ampk_reference.conv_destroy(NULL, s->exact);
    ampk_reference.conv_destroy(NULL, s->magnitude);
}

static void make_first_layer(struct rig *r, struct first_layer *s, struct ampk_conv_shape shape,
                             enum source source)
{
    *s = (struct first_layer){.shape = shape, .source = source};
    snprintf(r->note, sizeof r->note, "n %d, c %d, h %d, w %d, k %d, compute %d, source %d",
             shape.n, shape.c, shape.h, shape.w, shape.k, shape.compute, source);
    s->layer = make_layer(r, shape.k, positive_value);
    s->x = input_operand(r, describe(operand_of(s), AMPK_NHWC, shape.n, shape.c, shape.h, shape.w));
    s->y = input_operand(r, shape_y(s));
    s->gradient.activation = RANDOM_OF(AMPK_LEAKY, AMPK_LEAKY, AMPK_RELU, AMPK_LINEAR, AMPK_RELIE);
    if (source == POOLED)
        pool(r, s);
    else
        s->d = input_operand(r, shape_y(s));
}

/* The tensors' places, once the layer is where it stays. */
static const struct ampk_layer_gradient *gradient_of(struct first_layer *s)
{
    s->gradient.y = &s->y.tested;
    s->gradient.d = &s->d.tested;
    s->gradient.bn = &s->layer.tested;
    return &s->gradient;
}

static bool is_taken(struct rig *r, struct first_layer *s)
{
    const struct ampk_backend *be = r->backend;
    return be->conv_takes_gradient(r->context, s->tested, &s->x.tested, gradient_of(s));
}

/* What both ways leave of batch-norm. */
struct left {
    struct pair dscale, dbias;
    struct amax dy_amax, db_amax;
};

static struct left make_left(struct rig *r, int k)
{
    struct left l = {output_array(r, k, false), output_array(r, k, false), make_amax(r),
                     make_amax(r)};
    uint32_t zero = 0;
    r->backend->write(r->context, tested_amax(&l.dy_amax), &zero, sizeof zero);
    r->backend->write(r->context, tested_amax(&l.db_amax), &zero, sizeof zero);
    return l;
}

static uint32_t read_word(struct rig *r, const struct amax *a)
{
    uint32_t word;
    r->backend->read(r->context, &word, tested_amax(a), sizeof word);
    return word;
}

static void check_same_left(struct rig *r, const struct left *a, const struct left *b, int k)
{
    size_t bytes = (size_t)k * sizeof(float);
    CHECK(!memcmp(download(r, &a->dscale).data, download(r, &b->dscale).data, bytes));
    CHECK(!memcmp(download(r, &a->dbias).data, download(r, &b->dbias).data, bytes));
    uint32_t one = read_word(r, &a->dy_amax), other = read_word(r, &b->dy_amax);
    CHECK(one == other || (one > 0x7f800000 && other > 0x7f800000));
    one = read_word(r, &a->db_amax), other = read_word(r, &b->db_amax);
    CHECK(one == other || (one > 0x7f800000 && other > 0x7f800000));
}

static struct left run_at_once(struct rig *r, struct first_layer *s)
{
    struct left to = make_left(r, s->shape.k);
    r->backend->conv_bn_backward(r->context, s->tested, &s->x.tested, gradient_of(s),
                                 to.dscale.tested.data, to.dbias.tested.data,
                                 tested_amax(&to.dy_amax), tested_amax(&to.db_amax));
    return to;
}

/* The operation that the gradient is of. */
static struct left run_batchnorm(struct rig *r, struct first_layer *s, const struct pair *dy)
{
    struct left to = make_left(r, s->shape.k);
    const struct ampk_backend *be = r->backend;
    const struct ampk_layer_gradient *g = gradient_of(s);
    float *dscale = to.dscale.tested.data, *dbias = to.dbias.tested.data;
    uint32_t *dy_amax = tested_amax(&to.dy_amax), *db_amax = tested_amax(&to.db_amax);
    if (s->source == POOLED)
        be->bn_act_pool_backward(r->context, g->y, g->bn, g->activation, g->d, g->argmax,
                                 &dy->tested, dscale, dbias, dy_amax, db_amax);
    else
        be->bn_act_backward(r->context, g->y, NULL, g->bn, g->activation, g->d, &dy->tested, dscale,
                            dbias, dy_amax, db_amax);
    return to;
}

static size_t weight_count(const struct ampk_conv_shape *s)
{
    return (size_t)s->k * s->c * s->kh * s->kw;
}

/* The word that watches the gradient, padding and all; as if nothing had been there before. */
static uint32_t watched(struct rig *r, const struct first_layer *s)
{
    struct amax amax = make_amax(r);
    uint32_t word = 0;
    r->backend->write(r->context, tested_amax(&amax), &word, sizeof word);
    const struct ampk_weight_gradient item = {s->tested, NULL, tested_amax(&amax)};
    r->backend->conv_weight_gradients(r->context, &item, 1, 1, false);
    return read_word(r, &amax);
}

/* On a device Tensor Cores cut sums where they do not round. */
static double products(const struct first_layer *s)
{
#ifdef CUDA_EMULATED
    const int times = 1;
#else
    const int times = 4;
#endif
    return times * roundings((double)s->shape.n * s->shape.h * s->shape.w);
}

/* Of dy as the backend stores it. FP32 sums of exact products, in some order. */
static void compare_weight_gradient(struct rig *r, struct first_layer *s, const struct pair *dy)
{
    struct ampk_tensor stored = download(r, dy);
    struct ampk_tensor x_size = absolute(r, &s->x.exact), dy_size = absolute(r, &stored);
    ampk_reference.conv_backward(NULL, s->exact, &s->x.exact, &stored, NULL, false, NULL);
    ampk_reference.conv_backward(NULL, s->magnitude, &x_size, &dy_size, NULL, false, NULL);
    struct pair dw = output_array(r, weight_count(&s->shape), false);
    struct ampk_tensor magnitude = blank(r, &dw.exact);
    const struct ampk_weight_gradient tested = {s->tested, dw.tested.data, NULL};
    const struct ampk_weight_gradient exact = {s->exact, dw.exact.data, NULL};
    const struct ampk_weight_gradient sizes = {s->magnitude, magnitude.data, NULL};
    r->backend->conv_weight_gradients(r->context, &tested, 1, 1, false);
    ampk_reference.conv_weight_gradients(NULL, &exact, 1, 1, false);
    ampk_reference.conv_weight_gradients(NULL, &sizes, 1, 1, false);
    check_output(r, "dw", &dw, (struct tolerance){products(s), &magnitude, 0, 0});
    const float *values = download(r, &dw).data;
    float largest = 0;
    for (size_t i = 0; i < weight_count(&s->shape); i++)
        largest = fmaxf(largest, fabsf(values[i]));
    CHECK(float_of(watched(r, s)) == largest);
}

/* BF16 is for Ampere, as the emulated device is. */
static bool has_type(bool taken)
{
#ifdef CUDA_EMULATED
    CHECK(taken);
#endif
    return taken;
}

static int compared;

static void compare_gradient(struct rig *r, struct ampk_conv_shape shape)
{
    struct first_layer s;
    make_first_layer(r, &s, shape, (enum source)random_int(0, SOURCES - 1));
    make_convs(r, &s);
    if (has_type(is_taken(r, &s))) {
        struct pair dy = output_operand(r, shape_y(&s));
        struct left at_once = run_at_once(r, &s), apart = run_batchnorm(r, &s, &dy);
        check_same_left(r, &at_once, &apart, s.shape.k);
        /* An inf times the padding's zeros is NaN here and left out there: overflow_case's. */
        bool fits = s.shape.compute != AMPK_COMPUTE_FP16 ||
                    read_word(r, &apart.dy_amax) < AMPK_FP16_OVERFLOW_BITS;
        if (fits) compare_weight_gradient(r, &s, &dy);
        compared += fits;
    }
    destroy_convs(r, &s);
}

static void gradient_case(struct rig *r)
{
    compare_gradient(r, random_image_shape());
}

AMP_TEST(conv_bn_backward)
{
    compared = 0;
    run_cases(gradient_case, 60);
    CHECK(compared > 30);
}

/* Images of a tile each, so many that a warp takes several, one after the other in the same shared
 * memory. */
static void several_tiles_case(struct rig *r)
{
    struct ampk_conv_shape shape = random_image_shape();
    shape.n = random_int(8193, 8400), shape.h = 1, shape.w = random_int(1, 2);
    shape.k = RANDOM_OF(8, 16);
    compare_gradient(r, shape);
}

AMP_TEST(conv_bn_backward_of_several_tiles_a_warp)
{
    run_cases(several_tiles_case, 2);
}

/* ---- numbers that FP16 does not hold ---- */

static double large(void)
{
    return test_random() % 200 == 0 ? 6e4 * random_int(-1, 1) : random_value();
}

/* dy is inf here and there: so are its word, to the bit, and the gradient of those filters. */
static void overflow_case(struct rig *r)
{
    struct first_layer s;
    struct ampk_conv_shape shape = random_image_shape();
    shape.compute = AMPK_COMPUTE_FP16;
    make_first_layer(r, &s, shape, PLAIN);
    make_convs(r, &s);
    REQUIRE(is_taken(r, &s));
    s.d = input_tensor_of(r, shape_y(&s), large);
    while ((uintptr_t)s.d.tested.data % 16)
        s.d = input_tensor_of(r, shape_y(&s), large);
    struct pair dy = output_operand(r, shape_y(&s));
    struct left at_once = run_at_once(r, &s), apart = run_batchnorm(r, &s, &dy);
    check_same_left(r, &at_once, &apart, s.shape.k);
    struct pair dw = output_array(r, weight_count(&s.shape), false);
    const struct ampk_weight_gradient item = {s.tested, dw.tested.data, NULL};
    r->backend->conv_weight_gradients(r->context, &item, 1, 1, false);
    const float *values = download(r, &dw).data;
    struct ampk_tensor stored = download(r, &dy);
    size_t of_filter = weight_count(&s.shape) / (size_t)s.shape.k;
    bool any = false;
    for (int k = 0; k < s.shape.k; k++) {
        bool finite = true, found = true;
        for (int n = 0; n < stored.n; n++)
            for (int h = 0; h < stored.h; h++)
                for (int w = 0; w < stored.w; w++)
                    finite = finite && isfinite(ampk_ref_get(&stored, n, k, h, w));
        for (size_t i = 0; i < of_filter; i++)
            found = found && isfinite(values[k * of_filter + i]);
        CHECK_INT(found, finite);
        any = any || !finite;
    }
    CHECK(ampk_amax_is_finite(watched(r, &s)) == !any);
    destroy_convs(r, &s);
}

AMP_TEST(what_16_bits_do_not_hold_shows)
{
    run_cases(overflow_case, 20);
}

/* ---- where it is taken ---- */

static const struct ampk_conv_shape usual_shape = {
    2, 3, 6, 8, 16, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16, false, false, false};

#ifdef CUDA_EMULATED /* elsewhere a library may round to 16 bits */
/* conv_backward goes on as ever, and either gradient counts until the next. */
static void by_turns_case(struct rig *r)
{
    struct first_layer s;
    make_first_layer(r, &s, usual_shape, (enum source)random_int(0, SOURCES - 1));
    make_convs(r, &s);
    REQUIRE(is_taken(r, &s));
    struct pair dy = output_operand(r, shape_y(&s));
    run_batchnorm(r, &s, &dy);
    for (int i = 0; i < 4; i++) {
        if (random_bool())
            run_at_once(r, &s);
        else
            r->backend->conv_backward(r->context, s.tested, &s.x.tested, &dy.tested, NULL, false,
                                      NULL);
        compare_weight_gradient(r, &s, &dy);
    }
    destroy_convs(r, &s);
}

AMP_TEST(either_way_may_follow_the_other)
{
    run_cases(by_turns_case, 20);
}
#endif

/* A layer of the usual shape, changed; whether it is taken. */
static bool is_taken_if(struct rig *r, void (*change)(struct first_layer *))
{
    struct first_layer s;
    make_first_layer(r, &s, usual_shape, PLAIN);
    gradient_of(&s);
    change(&s);
    make_convs(r, &s);
    const struct ampk_backend *be = r->backend;
    s.gradient.y = &s.y.tested, s.gradient.d = &s.d.tested;
    bool taken = be->conv_takes_gradient(r->context, s.tested, &s.x.tested, &s.gradient);
    destroy_convs(r, &s);
    return taken;
}

static void nothing(struct first_layer *s)
{
    (void)s;
}

static void five_channels(struct first_layer *s)
{
    s->shape.c = s->x.tested.c = 5;
    s->x.tested.image_stride = 5 * 48;
}

static void many_filters(struct first_layer *s)
{
    s->shape.k = s->y.tested.c = s->d.tested.c = 72;
    s->y.tested.image_stride = s->d.tested.image_stride = 72 * 48;
}

static void odd_filters(struct first_layer *s)
{
    s->shape.k = s->y.tested.c = s->d.tested.c = 12;
    s->y.tested.image_stride = s->d.tested.image_stride = 12 * 48;
}

static void small_window(struct first_layer *s)
{
    s->shape.kh = s->shape.kw = 1, s->shape.pad = 0;
}

static void two_strides(struct first_layer *s)
{
    s->shape.stride = 2;
}

static void in_fp32(struct first_layer *s)
{
    s->shape.compute = AMPK_COMPUTE_FP32;
}

static void image_in_fp32(struct first_layer *s)
{
    s->x.tested.dtype = AMPK_FP32;
}

static void y_in_fp32(struct first_layer *s)
{
    s->y.tested.dtype = AMPK_FP32;
}

static void planes(struct first_layer *s)
{
    s->x.tested.layout = AMPK_NCHW;
}

static void gap_in_x(struct first_layer *s)
{
    s->x.tested.image_stride += 8;
}

static void slice_of_d(struct first_layer *s)
{
    s->d.tested.pitch = 24;
}

static void odd_y(struct first_layer *s)
{
    s->y.tested.data = (char *)s->y.tested.data + 2;
}

static void odd_d(struct first_layer *s)
{
    s->d.tested.data = (char *)s->d.tested.data + 8;
}

static void curve(struct first_layer *s)
{
    s->gradient.activation = AMPK_LOGISTIC;
}

static void forward_only(struct first_layer *s)
{
    s->shape.forward_only = true;
}

static void refusal_case(struct rig *r)
{
    static void (*const changes[])(struct first_layer *) = {
        five_channels, many_filters,  odd_filters, small_window, two_strides,
        in_fp32,       image_in_fp32, y_in_fp32,   planes,       gap_in_x,
        slice_of_d,    odd_y,         odd_d,       curve,        forward_only};
    CHECK(is_taken_if(r, nothing));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        if (is_taken_if(r, changes[i])) TEST_FAIL("change %zu is taken", i);
    setenv(SETTING, "0", 1);
    CHECK(!is_taken_if(r, nothing));
    unsetenv(SETTING);
}

AMP_TEST(what_the_kernel_cannot_read_is_refused)
{
    run_cases(refusal_case, 1);
}

#ifdef CUDA_EMULATED
#include "kernels/cuda/runtime/context.h"
#include "tests/emulation/emulation.h"

/* Turing has FP16's products alone. */
static void older_device_case(struct rig *r)
{
    struct first_layer s;
    struct ampk_conv_shape shape = usual_shape;
    int compiled = r->context->compiled;
    r->context->compiled = 75;
    for (int i = 0; i < 2; i++) {
        shape.compute = i ? AMPK_COMPUTE_BF16 : AMPK_COMPUTE_FP16;
        make_first_layer(r, &s, shape, PLAIN);
        make_convs(r, &s);
        CHECK_INT(is_taken(r, &s), !i);
        destroy_convs(r, &s);
    }
    r->context->compiled = compiled;
}

AMP_TEST(an_older_device_takes_fp16_alone)
{
    run_cases(older_device_case, 1);
}

/* One that covers all that a block may have of tiles, and more blocks than lines that add them. */
static void many_tiles_case(struct rig *r)
{
    struct first_layer s;
    struct ampk_conv_shape shape = usual_shape;
    shape.n = 3, shape.h = 64, shape.w = 70, shape.k = RANDOM_OF(16, 32, 64);
    make_first_layer(r, &s, shape, (enum source)random_int(0, SOURCES - 1));
    make_convs(r, &s);
    REQUIRE(is_taken(r, &s));
    struct pair dy = output_operand(r, shape_y(&s));
    run_at_once(r, &s);
    run_batchnorm(r, &s, &dy);
    compare_weight_gradient(r, &s, &dy);
    destroy_convs(r, &s);
}

AMP_TEST(conv_bn_backward_of_many_tiles)
{
    run_cases(many_tiles_case, 2);
}

/* How many of so many shapes are taken. */
static size_t count_taken(bool allowed, uint64_t first)
{
    size_t taken = 0;
    if (!allowed) setenv(SETTING, "0", 1);
    struct ampk_context *context = open_context(NULL, 1);
    REQUIRE(context != NULL);
    test_random_state = first;
    for (int i = 0; i < 40; i++) {
        struct rig r = {.backend = &CONFORMANCE_BACKEND, .context = context};
        struct first_layer s;
        make_first_layer(&r, &s, random_image_shape(), (enum source)random_int(0, SOURCES - 1));
        make_convs(&r, &s);
        taken += is_taken(&r, &s);
        destroy_convs(&r, &s);
        end_case(&r);
    }
    CONFORMANCE_BACKEND.context_destroy(context);
    unsetenv(SETTING);
    return taken;
}

AMP_TEST(it_is_taken_unless_it_is_forbidden)
{
    uint64_t first = test_random();
    CHECK(count_taken(true, first) > 0);
    CHECK_INT(count_taken(false, first), 0);
}

/* Without memory for it everything goes as before. */
static void short_memory_case(struct rig *r)
{
    struct first_layer s;
    struct ampk_conv_shape shape = usual_shape;
    shape.n = 4, shape.h = 2048, shape.w = 33, shape.k = 64; /* more than any work memory */
    s = (struct first_layer){.shape = shape};
    make_convs(r, &s);
    struct ampk_tensor x = describe(AMPK_FP16, AMPK_NHWC, 4, 3, 2048, 33);
    struct ampk_tensor y = describe(AMPK_FP16, AMPK_NHWC, 4, 64, 2048, 33);
    const struct ampk_layer_gradient g = {&y, NULL, AMPK_LEAKY, &y, NULL};
    size_t had = emulation_memory().bytes;
    const struct ampk_backend *be = r->backend;
    for (int more = 0; more < 2; more++) { /* for the gradient alone */
        emulation_memory_limit(had + (more ? 64 * 9 * 8 * sizeof(float) : 0));
        CHECK(!be->conv_takes_gradient(r->context, s.tested, &x, &g));
        CHECK_INT(emulation_memory().bytes, had);
    }
    emulation_memory_limit(SIZE_MAX);
    CHECK(be->conv_takes_gradient(r->context, s.tested, &x, &g));
    CHECK(emulation_memory().bytes > had);
    destroy_convs(r, &s);
}

AMP_TEST(without_memory_it_is_not_taken)
{
    run_cases(short_memory_case, 1);
}
#endif

AMP_TEST_MAIN
