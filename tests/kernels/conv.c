/* Conformance: convolution and inner product, forward and both gradients. */
#include "layers.h"
#ifdef CUDA_EMULATED
#include "tests/emulation/emulation.h"
#include "tests/emulation/tensor_core_host.h"
#endif

/* ---- shapes ---- */

/* n c h w, k kh kw stride pad groups */
static const struct ampk_conv_shape usual_shapes[] = {
    {1, 3, 9, 9, 8, 3, 3, 1, 1, 1, 0, 0, 0, 0},      /* first layer */
    {2, 3, 16, 16, 16, 3, 3, 2, 1, 1, 0, 0, 0, 0},   /* and downsampling */
    {1, 16, 13, 13, 255, 1, 1, 1, 0, 1, 0, 0, 0, 0}, /* detection head */
    {2, 32, 8, 8, 16, 1, 1, 1, 0, 1, 0, 0, 0, 0},
    {2, 16, 8, 8, 32, 3, 3, 1, 1, 1, 0, 0, 0, 0},
    {2, 8, 7, 7, 8, 1, 1, 2, 0, 1, 0, 0, 0, 0},
    {2, 8, 6, 6, 16, 3, 3, 1, 1, 2, 0, 0, 0, 0},   /* groups */
    {2, 17, 5, 5, 17, 3, 3, 2, 1, 17, 0, 0, 0, 0}, /* depthwise */
    {1, 6, 6, 7, 9, 3, 3, 1, 1, 3, 0, 0, 0, 0},
    {2, 5, 6, 6, 7, 2, 2, 1, 0, 1, 0, 0, 0, 0}, /* even windows */
    {2, 5, 6, 6, 7, 2, 2, 2, 1, 1, 0, 0, 0, 0},
    {1, 4, 8, 8, 6, 4, 4, 2, 1, 1, 0, 0, 0, 0},
    {1, 3, 12, 12, 8, 7, 7, 2, 3, 1, 0, 0, 0, 0},
    {2, 4, 7, 7, 5, 5, 5, 1, 2, 1, 0, 0, 0, 0},
    {2, 4, 5, 5, 5, 3, 3, 1, 2, 1, 0, 0, 0, 0},  /* padded by more than half a window */
    {3, 7, 4, 5, 11, 4, 5, 1, 0, 1, 0, 0, 0, 0}, /* connected */
    {2, 100, 1, 1, 10, 1, 1, 1, 0, 1, 0, 0, 0, 0},
    {1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0},
    {1, 1, 5, 3, 1, 3, 3, 3, 1, 1, 0, 0, 0, 0},
    {1, 8, 9, 9, 128, 3, 3, 1, 1, 1, 0, 0, 0,
     0}, /* many filters, many channels: work that is cut */
    {1, 128, 9, 5, 8, 3, 3, 1, 1, 1, 0, 0, 0, 0},
    {1, 8, 3, 3, 512, 1, 1, 1, 0, 1, 0, 0, 0, 0},
    {1, 512, 3, 3, 8, 1, 1, 1, 0, 1, 0, 0, 0, 0},
    {1, 1100, 2, 1, 5, 1, 1, 1, 0, 1, 0, 0, 0, 0},
    {1, 450, 3, 2, 3, 3, 3, 1, 1, 1, 0, 0, 0, 0}, /* a filter of several tiles */
    {2, 70, 7, 7, 2, 7, 7, 1, 0, 1, 0, 0, 0, 0},
    {64, 3, 5, 5, 4, 3, 3, 1, 1, 1, 0, 0, 0, 0}, /* many images */
    {67, 2, 4, 4, 3, 3, 3, 2, 1, 1, 0, 0, 0, 0},
    {1, 3, 40, 6, 4, 3, 3, 1, 1, 1, 0, 0, 0, 0}, /* many rows */
    {1, 2, 41, 7, 3, 5, 5, 2, 2, 1, 0, 0, 0, 0},
    {2, 4, 33, 5, 4, 3, 3, 3, 0, 1, 0, 0, 0, 0},
    {1, 45, 1, 3, 20, 1, 1, 1, 0, 5, 0, 0, 0, 0}, /* a group for each place of a [local] */
    {1, 96, 1, 6, 128, 1, 1, 1, 0, 2, 0, 0, 0, 0},
    {2, 12, 1, 5, 9, 1, 2, 2, 0, 3, 0, 0, 0, 0},
};

static struct ampk_conv_shape random_conv_shape(void)
{
    int groups = RANDOM_OF(1, 1, 1, 2, 3), size = random_int(1, 5);
    struct ampk_conv_shape s = {.n = random_int(1, 3),
                                .c = groups * RANDOM_OF(1, 3, 4, 8, 9, 16),
                                .k = groups * RANDOM_OF(1, 2, 5, 8, 16, 17),
                                .kh = size,
                                .kw = size,
                                .stride = random_int(1, 3),
                                .pad = random_int(0, 2),
                                .groups = groups};
    s.h = random_int(size, RANDOM_OF(10, 10, 24)), s.w = random_int(size, 10);
    return s;
}

static struct ampk_conv_shape choose_shape(bool may_be_forward_only)
{
    struct ampk_conv_shape s = random_conv_shape();
    size_t usual = sizeof usual_shapes / sizeof *usual_shapes;
    if (random_bool()) s = usual_shapes[test_random() % usual];
    s.compute = random_int(AMPK_COMPUTE_FP32, AMPK_COMPUTE_BF16);
    if (s.compute == AMPK_COMPUTE_BF16 && random_bool()) { /* what some CPUs multiply in BF16 */
        s.c = s.groups * RANDOM_OF(16, 32, 48, 64);
        s.k = s.groups * RANDOM_OF(1, 16, 17, 24, 32, 64, 80, 255); /* padded to 16 */
    }
    if (s.compute == AMPK_COMPUTE_BF16 && test_random() % 8 == 0) /* slices and tiles */
        s = (struct ampk_conv_shape){1, 128, 3, random_int(3, 4), 256, 3, 3,
                                     1, 1,   1, s.compute,        0,   0, 0};
    else if (s.compute == AMPK_COMPUTE_BF16 && test_random() % 8 == 0) /* of a padded head */
        s = (struct ampk_conv_shape){1, 512, 3, 3, 255, 1, 1, 1, 0, 1, s.compute, 0, 0, 0};
    s.forward_only = may_be_forward_only && random_bool();
    s.transposed = test_random() % 3 == 0;
    return s;
}

static int out_side(int side, int window, const struct ampk_conv_shape *s)
{
    return (side + 2 * s->pad - window) / s->stride + 1;
}

/* The tensor with c channels, or that with k, NHWC. */
static struct ampk_tensor shape_of(const struct ampk_conv_shape *s, bool c)
{
    if (c) return describe_nhwc(random_dtype(), s->n, s->c, s->h, s->w);
    return describe_nhwc(random_dtype(), s->n, s->k, out_side(s->h, s->kh, s),
                         out_side(s->w, s->kw, s));
}

/* Input and output of forward. */
static struct ampk_tensor shape_x(const struct ampk_conv_shape *s)
{
    return shape_of(s, !s->transposed);
}

static struct ampk_tensor shape_y(const struct ampk_conv_shape *s)
{
    return shape_of(s, s->transposed);
}

/* ---- the convolution under test, the reference's, and the reference's of absolute weights ---- */

struct convs {
    struct ampk_conv_shape shape;
    struct ampk_conv *tested, *exact, *magnitude;
};

enum { MOST_CONVS = 70 }; /* more than one launch takes */

static size_t weight_count(const struct ampk_conv_shape *s)
{
    return (size_t)s->k * (s->c / s->groups) * s->kh * s->kw;
}

/* Each gets its own, all in one call. */
static void set_random_weights(struct rig *r, const struct convs *c, int count)
{
    struct ampk_new_weights tested[MOST_CONVS], exact[2 * MOST_CONVS];
    struct amax amax[MOST_CONVS];
    for (int i = 0; i < count; i++) {
        const struct ampk_conv_shape *s = &c[i].shape;
        struct pair w = input_array(r, weight_count(s));
        amax[i] = make_amax(r);
        tested[i] = (struct ampk_new_weights){c[i].tested, w.tested.data, tested_amax(&amax[i])};
        exact[2 * i] = (struct ampk_new_weights){c[i].exact, w.exact.data, &amax[i].exact};
        exact[2 * i + 1] =
            (struct ampk_new_weights){c[i].magnitude, absolute(r, &w.exact).data, NULL};
    }
    r->backend->conv_set_weights(r->context, tested, count);
    ampk_reference.conv_set_weights(NULL, exact, 2 * count);
    for (int i = 0; i < count; i++)
        check_amax(r, "conv_set_weights", &amax[i], 0);
}

static struct convs make_convs(struct rig *r, struct ampk_conv_shape shape)
{
    char err[200] = "";
    struct convs c = {.shape = shape};
    const struct ampk_conv_shape *s = &c.shape;
    snprintf(
        r->note, sizeof r->note,
        "n %d, c %d, h %d, w %d, k %d, window %dx%d, stride %d, pad %d, groups %d, compute %d%s",
        s->n, s->c, s->h, s->w, s->k, s->kh, s->kw, s->stride, s->pad, s->groups, s->compute,
        s->transposed ? ", transposed" : "");
    c.tested = r->backend->conv_create(r->context, &c.shape, err, sizeof err);
    if (!c.tested) TEST_FAIL("conv_create: %s", err);
    REQUIRE(c.tested != NULL);
    c.exact = ampk_reference.conv_create(NULL, &c.shape, err, sizeof err);
    c.magnitude = ampk_reference.conv_create(NULL, &c.shape, err, sizeof err);
    if (random_bool()) set_random_weights(r, &c, 1); /* the second ones must win */
    set_random_weights(r, &c, 1);
    return c;
}

static void destroy_convs(struct rig *r, struct convs *c)
{
    r->backend->conv_destroy(r->context, c->tested);
    ampk_reference.conv_destroy(NULL, c->exact);
    ampk_reference.conv_destroy(NULL, c->magnitude);
}

/* What results may be off by, relative to themselves, where the libraries below the backend can
 * write 16 bits only and a kernel stores what they wrote. */
UNUSED static double library_rounds;

/* The same, and how many more roundings there may be, of the convolution under test. On a device
 * cuDNN writes 16-bit results of 16-bit operands; Tensor Cores cut sums where they do not round,
 * and may cut FP32 operands to TF32's 10 bits (2^-9 of a product, two operands). */
struct device_error {
    double rounds, times, terms;
};

static struct device_error device_error(const struct ampk_conv_shape *s)
{
#if defined(CONFORMANCE_CUDA) && !defined(CUDA_EMULATED)
    bool narrow = s->compute == AMPK_COMPUTE_FP16 || s->compute == AMPK_COMPUTE_BF16;
    bool cut = s->compute == AMPK_COMPUTE_TF32;
    return (struct device_error){narrow ? 0x1p-8 : 0, narrow || cut ? 4 : 1, cut ? 0x1p15 : 0};
#else
    (void)s;
    return (struct device_error){library_rounds, 1, 0};
#endif
}

static struct tolerance sum_of(const struct ampk_conv_shape *s, double terms,
                               const struct ampk_tensor *magnitude)
{
    struct device_error e = device_error(s);
    return (struct tolerance){e.times * terms + e.terms, magnitude, e.rounds, e.rounds * 0x1p-14};
}

/* At most, for each element of y, or of dx. */
static double products_of_output(const struct ampk_conv_shape *s)
{
    return (double)(s->transposed ? s->k : s->c) / s->groups * s->kh * s->kw;
}

static double products_of_gradient(const struct ampk_conv_shape *s)
{
    return (double)(s->transposed ? s->c : s->k) / s->groups * s->kh * s->kw;
}

/* ---- forward ---- */

static void run_normalization(struct rig *r, const struct pair *y, const struct ampk_batchnorm *bn,
                              const struct pair *out, void *argmax)
{
    if (argmax)
        r->backend->bn_act_pool_forward(r->context, &y->tested, bn, AMPK_LEAKY, &out->tested,
                                        argmax, NULL, NULL);
    else
        r->backend->bn_act_forward(r->context, &y->tested, bn, AMPK_LEAKY, NULL, &out->tested, NULL,
                                   NULL);
}

/* How often the library took the sums. */
static size_t summed_forwards;

/* Hands the sums to batch-norm, with and without a pool. Its result has the bits that it has with
 * the statistics that it leaves. */
static void take_sums(struct rig *r, const struct pair *y, const float *sums,
                      const struct ampk_bn_statistics *statistics)
{
    struct ampk_tensor shape = y->tested;
    bool pool = random_bool();
    if (pool) shape.h = (shape.h + 1) / 2, shape.w = (shape.w + 1) / 2;
    shape = describe(shape.dtype, AMPK_NHWC, shape.n, shape.c, shape.h, shape.w);
    struct pair out = output_tensor(r, shape, false), again = output_tensor(r, shape, false);
    struct ampk_batchnorm bn = make_layer(r, shape.c, positive_value).tested;
    void *argmax = NULL;
    if (pool) argmax = scratch_bytes(r, r->backend->maxpool_index_bytes(&shape, 2));
    bn.mean = statistics->mean, bn.variance = statistics->variance, bn.rule = statistics->rule;
    bn.sums = sums, bn.statistics = statistics;
#ifdef CUDA_EMULATED
    size_t launches = emulation_launches();
#endif
    run_normalization(r, y, &bn, &out, argmax);
#ifdef CUDA_EMULATED
    CHECK_INT(emulation_launches(), launches + 1);
#endif
    bn.sums = NULL;
    run_normalization(r, y, &bn, &again, argmax);
    struct ampk_tensor a = download(r, &out), b = download(r, &again);
    for (int n = 0; n < shape.n; n++)
        for (size_t j = 0; j < shape.image_stride; j++) {
            double x = ampk_ref_get_flat(&a, n, j), z = ampk_ref_get_flat(&b, n, j);
            CHECK(x == z || (isnan(x) && isnan(z)));
        }
}

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
    const float *sums = r->backend->conv_forward(r->context, c->tested, &x.tested, &y.tested,
                                                 with_statistics ? &tested : NULL,
                                                 watched ? tested_amax(&amax) : NULL);
    ampk_reference.conv_forward(NULL, c->exact, &x.exact, &y.exact, NULL, &amax.exact);
    struct tolerance sum = sum_of(s, roundings(products_of_output(s)), &magnitude);
    double slack = check_output(r, "conv_forward", &y, sum);
    if (watched) check_stored_amax(r, "conv_forward", &amax, slack, y.tested.dtype);
    CHECK(!sums || with_statistics);
    if (!with_statistics) return;
    if (sums) take_sums(r, &y, sums, &tested);
    summed_forwards += sums != NULL;
    struct ampk_tensor stored = download(r, &y); /* whatever rounding gave it */
    check_statistics(r, &statistics, &stored,
                     s->compute == AMPK_COMPUTE_FP16 ? SUMS_ABOUT_0_PERHAPS : SUMS_ABOUT_SHIFT);
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

AMP_TEST(conv_forward)
{
    run_cases(forward_case, 60);
}

#ifdef CONFORMANCE_CUDA /* the CPU backend takes the statistics itself */
/* Tensors as layers have them, of which a library can take the sums. */
static void summed_forward_case(struct rig *r)
{
    struct ampk_conv_shape s = random_conv_shape();
    s.groups = 1, s.c = RANDOM_OF(8, 16, 24), s.k = RANDOM_OF(8, 16, 24, 64);
    s.compute = AMPK_COMPUTE_FP16;
    struct convs c = make_convs(r, s);
    struct ampk_tensor x = shape_x(&s), y = shape_y(&s);
    x = describe(AMPK_FP16, AMPK_NHWC, x.n, x.c, x.h, x.w);
    y = describe(AMPK_FP16, AMPK_NHWC, y.n, y.c, y.h, y.w);
    compare_forward(r, &c, input_operand(r, x), output_operand(r, y), true);
    destroy_convs(r, &c);
}

AMP_TEST(conv_forward_with_sums)
{
    summed_forwards = 0;
    run_cases(summed_forward_case, 60);
#ifdef CUDA_EMULATED
    CHECK(summed_forwards > 0);
#endif
}
#endif

/* Convolutions of several types, more than one launch takes. */
static void many_weights_case(struct rig *r)
{
    static struct convs c[MOST_CONVS];
    for (int i = 0; i < MOST_CONVS; i++) {
        struct ampk_conv_shape s = usual_shapes[i % 3];
        s.compute = (enum ampk_compute)random_int(AMPK_COMPUTE_FP32, AMPK_COMPUTE_BF16);
        c[i] = make_convs(r, s);
    }
    set_random_weights(r, c, MOST_CONVS);
    int first = random_int(0, 3); /* of a quarter that is looked at, of all shapes */
    for (int i = 0; i < MOST_CONVS; i++) {
        if (i % 4 == first) check_forward(r, &c[i]);
        destroy_convs(r, &c[i]);
    }
}

AMP_TEST(weights_of_many_convolutions)
{
    run_cases(many_weights_case, 1);
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

static double spoilt_now_and_then(void);

/* What a kernel of the CUDA backend may compute, and how many of the cases were so. */
static size_t images;

/* Whether y's sums may be a library's, which may take them before it rounds: where y overflows
 * FP16, they are rightly finite, and those of y as it is stored are not. */
static bool may_sum_unrounded(void)
{
    const char *setting = getenv("AMPK_CUDA_EPILOGUE_SUMS");
    return before_rounding > 0 && !(setting && !strcmp(setting, "0"));
}

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
                                    values[test_random() % (may_sum_unrounded() ? 5 : 6)]);
    struct pair y = output_tensor(r, describe(dtype, AMPK_NHWC, s.n, s.k, s.h, s.w), false);
    images += is_operand(&x.tested) && is_operand(&y.tested) && s.k != 40;
    compare_forward(r, &c, x, y, true);
    destroy_convs(r, &c);
}

AMP_TEST(conv_forward_of_images)
{
    run_cases(image_case, 20);
}

/* A variable of the environment; NULL: unset. Returns whether it was set
 * (conformance_cuda_conv_forced). */
UNUSED static bool set_variable(const char *name, const char *setting)
{
    bool was = getenv(name) != NULL;
    if (setting)
        setenv(name, setting, 1);
    else
        unsetenv(name);
    return was;
}

UNUSED static const char SIDE_STREAM[] = "AMPK_CUDA_SIDE_STREAM",
                         EPILOGUE_SUMS[] = "AMPK_CUDA_EPILOGUE_SUMS",
                         GRADIENT_SUMS[] = "AMPK_CUDA_GRADIENT_SUMS",
                         IMAGE_FORWARD[] = "AMPK_CUDA_IMAGE_FORWARD";

/* Forward passes that the library computed; 0 where nobody counts them. */
static size_t library_forwards(void)
{
#ifdef CUDA_EMULATED
    return tensor_core_host_forward();
#else
    return 0;
#endif
}

static void check_large_images(struct rig *r, int n, int c, int h, int w)
{
    struct ampk_conv_shape s = {n,     c,     h,    w, 8, 3, 3, 1, 1, 1, AMPK_COMPUTE_FP16,
                                false, false, false};
    r->aligned = true;
    size_t before = library_forwards();
    struct convs convs = make_convs(r, s);
    struct pair x = input_tensor(r, describe(AMPK_FP16, AMPK_NHWC, n, c, h, w));
    struct pair y = output_tensor(r, describe(AMPK_FP16, AMPK_NHWC, n, s.k, h, w), false);
    compare_forward(r, &convs, x, y, true);
    destroy_convs(r, &convs);
    CHECK_INT(library_forwards(), before);
}

/* Several tiles a block: sums that go through groups of blocks. */
static void large_image_case(struct rig *r)
{
    check_large_images(r, 2, 3, 260, 508);
}

/* Some tiles more, a pixel each, than there are blocks of four. */
static void many_images_case(struct rig *r)
{
    check_large_images(r, 4100, 1, 1, 1);
}

AMP_TEST(conv_forward_of_large_images)
{
    bool forced = set_variable(IMAGE_FORWARD, "1");
    run_cases(large_image_case, 1);
    run_cases(many_images_case, 1);
    set_variable(IMAGE_FORWARD, forced ? "1" : NULL);
}

static void check_bias_forward(struct rig *r, struct ampk_conv_shape drawn, enum ampk_layout layout)
{
    drawn.biased = random_bool();
    struct convs c = make_convs(r, drawn);
    struct ampk_tensor shape = shape_y(&c.shape);
    struct pair x = input_tensor(r, shape_x(&c.shape)), bias = input_array(r, (size_t)shape.c);
    shape.layout = layout;
    struct pair y = output_tensor(r, shape, false);
    struct ampk_tensor size = absolute(r, &x.exact), magnitude = blank(r, &y.exact);
    struct ampk_tensor bias_size = absolute(r, &bias.exact);
    ampk_reference.conv_bias_forward(NULL, c.magnitude, &size, bias_size.data, AMPK_LINEAR,
                                     &magnitude, NULL);
    enum ampk_activation a = random_activation();
    struct amax amax = make_amax(r);
    r->backend->conv_bias_forward(r->context, c.tested, &x.tested, bias.tested.data, a, &y.tested,
                                  tested_amax(&amax));
    ampk_reference.conv_bias_forward(NULL, c.exact, &x.exact, bias.exact.data, a, &y.exact,
                                     &amax.exact);
    double terms = roundings(products_of_output(&c.shape)) + 2;
    struct tolerance sum = sum_of(&c.shape, terms, &magnitude);
    struct tolerance out = activated(a, sum.terms + sum.relative * 0x1p24, &magnitude);
    out.absolute += 2 * sum.absolute;
    double slack = check_output(r, "conv_bias_forward", &y, out);
    check_amax(r, "conv_bias_forward", &amax, slack);
    destroy_convs(r, &c);
}

static void bias_forward_case(struct rig *r)
{
    struct ampk_conv_shape drawn = choose_shape(true);
    check_bias_forward(r, drawn, random_int(AMPK_NHWC, AMPK_NCHW));
}

/* A head's planes, of more filters than a block of work has room for; no slices divide a prime. */
static void wide_head_case(struct rig *r)
{
    struct ampk_conv_shape s = {1, 4, 2, 3, 431, 1, 1, 1, 0, 1, 0, 0, 0, 0};
    s.compute = random_int(AMPK_COMPUTE_FP32, AMPK_COMPUTE_BF16);
    check_bias_forward(r, s, AMPK_NCHW);
}

AMP_TEST(conv_bias_forward)
{
    run_cases(bias_forward_case, 60);
    run_cases(wide_head_case, 3);
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

/* A list of one convolution, again and again: more than one launch takes. */
static void long_list_case(struct rig *r)
{
    static struct taking all[MOST_TAKINGS];
    struct ampk_conv_shape s = choose_shape(false);
    while (weight_count(&s) > 300)
        s = choose_shape(false);
    struct convs c = make_convs(r, s);
    run_backward(r, &c, random_value);
    size_t n = weight_count(&s);
    const float *stored = stored_gradient(r, &c);
    struct pair dst = output_array(r, n * MOST_TAKINGS, true);
    for (int i = 0; i < MOST_TAKINGS; i++)
        all[i] = (struct taking){&c, stored, dst, i * n, test_random() % 8 == 0, make_amax(r)};
    check_takings(r, all, MOST_TAKINGS);
    destroy_convs(r, &c);
}

AMP_TEST(weight_gradients_of_a_long_list)
{
    run_cases(long_list_case, 3);
}

/* Convolutions of several types in one list. */
static void mixed_list_case(struct rig *r)
{
    enum { CONVS = 12 };
    static struct convs c[CONVS];
    struct taking all[CONVS];
    for (int i = 0; i < CONVS; i++) {
        c[i] = make_convs(r, choose_shape(false));
        run_backward(r, &c[i], random_value);
    }
    for (int i = 0; i < CONVS; i++)
        all[i] = (struct taking){&c[i],
                                 stored_gradient(r, &c[i]),
                                 output_array(r, weight_count(&c[i].shape), true),
                                 0,
                                 random_bool(),
                                 make_amax(r)};
    check_takings(r, all, CONVS);
    for (int i = 0; i < CONVS; i++)
        destroy_convs(r, &c[i]);
}

AMP_TEST(weight_gradients_of_several_types)
{
    run_cases(mixed_list_case, 6);
}

static double always_one(void)
{
    return 1;
}

static double large(void)
{
    return 300;
}

static double spoilt_now_and_then(void)
{
    if (test_random() % 100) return random_value();
    return random_bool() ? INFINITY : NAN;
}

/* By what watches alone; the bits of what is not finite may differ. */
static void check_watched(struct rig *r, const struct convs *c, const float *stored)
{
    struct amax amax = make_amax(r);
    const struct ampk_weight_gradient item = {c->tested, NULL, tested_amax(&amax)};
    r->backend->conv_weight_gradients(r->context, &item, 1, 1, false);
    uint32_t bits, expected = raised(0, stored, weight_count(&c->shape));
    r->backend->read(r->context, &bits, item.amax, sizeof bits);
    if (ampk_amax_is_finite(bits) != ampk_amax_is_finite(expected))
        TEST_FAIL("amax of dw is 0x%08x, where its largest is 0x%08x", bits, expected);
}

/* What is not finite is seen, and nothing else is taken for it. */
static void not_finite_case(struct rig *r)
{
    struct convs c = make_convs(r, choose_shape(false));
    run_backward(r, &c, spoilt_now_and_then);
    check_watched(r, &c, stored_gradient(r, &c));
    destroy_convs(r, &c);
}

AMP_TEST(weight_gradients_that_are_not_finite)
{
    run_cases(not_finite_case, 60);
}

/* n values of 1, but for one: the product of two such is inf. */
static struct pair ones_but_one(struct rig *r, int n, int where)
{
    struct pair p = input_tensor_of(r, describe(AMPK_FP32, AMPK_NHWC, 1, n, 1, 1), always_one);
    float *x = own(r, n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = i == where ? 1e30f : 1;
    p.tested.data = input_bytes(r, x, n * sizeof *x);
    return p;
}

/* One element alone, often the last, where a group has its own numbers of channels. */
static void one_overflow_case(struct rig *r)
{
    int groups = RANDOM_OF(1, 3), channels = random_int(1, 20), filters = random_int(1, 20);
    enum ampk_compute compute = RANDOM_OF(AMPK_COMPUTE_FP32, AMPK_COMPUTE_BF16);
    struct convs c =
        make_convs(r, (struct ampk_conv_shape){1, groups * channels, 1, 1, groups * filters, 1, 1,
                                               1, 0, groups, compute, false, false, false});
    bool last = random_bool();
    int filter = last ? groups * filters - 1 : random_int(0, groups * filters - 1);
    int channel = last ? channels - 1 : random_int(0, channels - 1);
    struct pair x = ones_but_one(r, c.shape.c, filter / filters * channels + channel);
    struct pair dy = ones_but_one(r, c.shape.k, filter);
    r->backend->conv_backward(r->context, c.tested, &x.tested, &dy.tested, NULL, false, NULL);
    const float *stored = stored_gradient(r, &c);
    for (int i = 0; i < groups * filters * channels; i++)
        CHECK(isinf(stored[i]) == (i == filter * channels + channel));
    check_watched(r, &c, stored);
    destroy_convs(r, &c);
}

AMP_TEST(one_weight_gradient_that_is_not_finite)
{
    run_cases(one_overflow_case, 60);
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

AMP_TEST(conv_backward)
{
    run_cases(backward_case, 60);
}

/* So many weights, images and rows that the CPU backend cuts the rows and yet gives several cuts to
 * one task of the weight gradient. Large for the reference, hence once. */
static void large_backward_case(struct rig *r)
{
    compare_backward(r, (struct ampk_conv_shape){16, 64, 8, 1, 950, 3, 3, 1, 1, 1,
                                                 AMPK_COMPUTE_FP16, false, false, false});
}

AMP_TEST(conv_backward_of_many_weights)
{
    struct ampk_context *context = open_context(NULL, 2);
    REQUIRE(context != NULL);
    run_case(large_backward_case, context, test_random());
    CONFORMANCE_BACKEND.context_destroy(context);
}

/* ---- the data gradient with batch-norm's backward sums ---- */

#ifdef CONFORMANCE_CUDA /* the CPU backend computes none */

/* A layer with batch-norm before the convolution, and what is read and written. */
struct summing {
    struct ampk_conv_shape shape;
    enum ampk_activation activation;
    struct layer layer;
    struct pair y, x, dy, g, sums;
};

/* What a convolution adds up for g, and the activation's part of it. Where roundings decide about
 * the sign of what goes into the activation, either slope is right. */
static struct ampk_tensor magnitude_of_g(struct rig *r, const struct summing *s,
                                         const struct ampk_tensor *d)
{
    struct ampk_tensor at = blank(r, d), size = absolute(r, &s->y.exact), most = blank(r, d);
    struct ampk_batchnorm sizes = magnitude_layer(r, &s->layer);
    ampk_reference.bn_act_forward(NULL, &s->y.exact, &s->layer.exact, AMPK_LINEAR, NULL, &at, NULL,
                                  NULL);
    ampk_reference.bn_act_forward(NULL, &size, &sizes, AMPK_LINEAR, NULL, &most, NULL, NULL);
    struct ampk_tensor m = gradient_magnitude(r, s->activation, &at, d);
    for (int n = 0; n < d->n; n++)
        for (size_t j = 0; j < (size_t)d->c * d->h * d->w; j++)
            if (fabs(ampk_ref_get_flat(&at, n, j)) < 0x1p-20 * ampk_ref_get_flat(&most, n, j))
                ampk_ref_set_flat(&m, n, j, 0x1p24 * ampk_ref_get_flat(d, n, j), false, NULL);
    return m;
}

/* g and its sums, and the weight gradient beside them. */
static struct ampk_tensor compare_g(struct rig *r, const struct convs *c, struct summing *s)
{
    struct ampk_tensor x_size = absolute(r, &s->x.exact), dy_size = absolute(r, &s->dy.exact);
    struct ampk_tensor d = blank(r, &s->g.exact);
    ampk_reference.conv_backward(NULL, c->magnitude, &x_size, &dy_size, &d, false, NULL);
    struct ampk_tensor m = magnitude_of_g(r, s, &d), of_sums = blank(r, &s->sums.exact);
    struct ampk_batchnorm bn = s->layer.tested;
    struct pair out = output_operand(r, s->y.tested); /* not compared: only what it lists is read */
    bn.listed = scratch_bytes(r, (size_t)s->shape.c * AMPK_BN_LISTED * sizeof(float));
    r->backend->bn_act_forward(r->context, &s->y.tested, &bn, s->activation, NULL, &out.tested,
                               NULL, NULL);
    struct ampk_gradient_sums tested = {&s->y.tested, &bn, s->activation, s->sums.tested.data};
    struct ampk_gradient_sums exact = {&s->y.exact, &s->layer.exact, s->activation,
                                       s->sums.exact.data};
    r->backend->conv_backward_summed(r->context, c->tested, &s->x.tested, &s->dy.tested,
                                     &s->g.tested, &tested);
    ampk_reference.conv_backward_summed(NULL, c->exact, &s->x.exact, &s->dy.exact, &s->g.exact,
                                        &exact);
    double products = roundings((double)s->shape.k * s->shape.kh * s->shape.kw) + 4;
    check_output(r, "g", &s->g, sum_of(&s->shape, products, &m));
    for (int i = 0; i < s->shape.c; i++) {
        struct channel_sums of =
            sum_channel(&m, &s->y.exact, fabs((double)s->layer.exact.mean[i]), i);
        ((float *)of_sums.data)[i] = (float)of.g;
        ((float *)of_sums.data)[s->shape.c + i] = (float)of.gy;
    }
    /* Of g as it is stored, perhaps: rounded by 2^-11. */
    double count = roundings((double)s->shape.n * s->shape.h * s->shape.w);
    struct tolerance sum = sum_of(&s->shape, products + count + 0x1p13, &of_sums);
    check_output(r, "sums of g", &s->sums, sum);
    compare_weight_gradient(r, c, (double)s->shape.n * s->dy.exact.h * s->dy.exact.w);
    return download(r, &s->g);
}

/* From g and its sums as they are stored. */
static void compare_rest(struct rig *r, struct summing *s, struct ampk_tensor stored)
{
    int channels = s->shape.c;
    struct pair dscale = output_array(r, channels, false), dbias = output_array(r, channels, false);
    bool in_place = random_bool();
    struct pair dy = in_place ? s->g : output_tensor(r, shape_x(&s->shape), false);
    struct ampk_tensor bound = absolute(r, &stored), to_scale = blank(r, &dscale.exact);
    struct ampk_tensor to_bias = blank(r, &dbias.exact), sums = download(r, &s->sums);
    for (int c = 0; c < channels; c++)
        bound_channel(&bound, &s->y.exact, &s->layer.exact, c, to_scale.data, to_bias.data);
    struct amax amax = make_amax(r), db_amax = make_amax(r);
#ifdef CUDA_EMULATED
    size_t launches = emulation_launches();
#endif
    r->backend->bn_backward_summed(r->context, &s->y.tested, &s->layer.tested, &s->g.tested,
                                   s->sums.tested.data, &dy.tested, dscale.tested.data,
                                   dbias.tested.data, tested_amax(&amax), tested_amax(&db_amax));
#ifdef CUDA_EMULATED
    CHECK_INT(emulation_launches(), launches + 1);
#endif
    ampk_reference.bn_backward_summed(NULL, &s->y.exact, &s->layer.exact, &stored, sums.data,
                                      &dy.exact, dscale.exact.data, dbias.exact.data, &amax.exact,
                                      &db_amax.exact);
    double slack = check_output(r, "dy of g", &dy, (struct tolerance){16, &bound, 0, 0});
    check_amax(r, "dy of g", &amax, slack);
    slack = check_output(r, "dscale of sums", &dscale, (struct tolerance){16, &to_scale, 0, 0});
    slack = fmax(slack,
                 check_output(r, "dbias of sums", &dbias, (struct tolerance){16, &to_bias, 0, 0}));
    check_amax(r, "dscale, dbias of sums", &db_amax, slack);
}

/* How many of the cases the backend summed. */
static size_t summed_gradients;

static void summed_gradient_case(struct rig *r)
{
    struct summing s = {.shape = random_conv_shape(),
                        .activation = RANDOM_OF(AMPK_LEAKY, AMPK_RELU, AMPK_LINEAR, AMPK_RELIE)};
    s.shape.groups = 1, s.shape.c = RANDOM_OF(8, 16, 24, 64), s.shape.k = RANDOM_OF(5, 8, 16, 24);
    s.shape.compute = AMPK_COMPUTE_FP16;
    struct convs c = make_convs(r, s.shape);
    if (r->backend->conv_sums_gradients(r->context, c.tested, s.activation)) {
        struct ampk_tensor at =
            describe(AMPK_FP16, AMPK_NHWC, s.shape.n, s.shape.c, s.shape.h, s.shape.w);
        s.layer = make_layer(r, s.shape.c, positive_value);
        s.y = input_operand(r, at), s.x = input_operand(r, at), s.g = output_operand(r, at);
        s.dy = input_tensor(r, shape_y(&s.shape));
        s.sums = output_operand(r, describe_array((size_t)s.shape.c * 2));
        compare_rest(r, &s, compare_g(r, &c, &s));
        summed_gradients++;
    }
    destroy_convs(r, &c);
}

/* On a GPU none may pay, and with guessed plans it is not known whether one does. */
AMP_TEST(conv_backward_summed)
{
    summed_gradients = 0;
    run_cases(summed_gradient_case, 60);
#ifdef CUDA_EMULATED
    CHECK(summed_gradients > 0);
#endif
    if (!summed_gradients)
        printf("no convolution sums gradients here (%s=1 lets all that can): not tested\n",
               GRADIENT_SUMS);
}
#endif

/* ---- libraries with gaps ---- */

#ifdef CUDA_EMULATED

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
#endif

/* ---- operands: rounded to the compute type, to nearest even ---- */

/* The next number with `bits` fraction bits above v = (1 + i/2^bits) * 2^e, v itself, and what lies
 * between; expected results by construction. */
enum { OPERANDS = 240 };

static void make_operands(int bits, float *value, float *expected)
{
    for (int i = 0; i < OPERANDS; i += 3) {
        int e = random_int(-10, 10), fraction = random_int(0, (1 << bits) - 1);
        double step = ldexp(1, e - bits), low = ldexp(1, e) + fraction * step;
        float middle = (float)(low + step / 2), sign = random_bool() ? 1 : -1;
        value[i] = nextafterf(middle, 0), expected[i] = (float)low;
        value[i + 1] = middle, expected[i + 1] = (float)(fraction % 2 ? low + step : low);
        value[i + 2] = nextafterf(middle, INFINITY), expected[i + 2] = (float)(low + step);
        for (int j = i; j < i + 3; j++)
            value[j] *= sign, expected[j] *= sign;
    }
}

/* Tensor Cores may cut where they round FP32 operands to TF32; others are rounded by our kernels.
 */
static bool is_cut(float got, float value, int bits)
{
#if defined(CONFORMANCE_CUDA) && !defined(CUDA_EMULATED)
    int e;
    double scaled = ldexp(frexp(value, &e), bits + 1);
    return got == (float)ldexp(trunc(scaled), e - bits - 1);
#else
    (void)got, (void)value, (void)bits;
    return false;
#endif
}

/* bits: fraction bits of operands that may be cut, 0: none may be. */
static void check_values(const char *what, const float *got, const float *value,
                         const float *expected, int bits)
{
    for (int i = 0; i < OPERANDS; i++)
        if (got[i] != expected[i] && !(bits && is_cut(got[i], value[i], bits)))
            TEST_FAIL("%s: operand read as %.9g, expected %.9g", what, got[i], expected[i]);
}

/* x of 1x1x1xN by one weight of 1, then x = 1 by N weights. */
static void operand_case(struct rig *r, enum ampk_compute compute, int bits)
{
    char err[200] = "";
    float value[OPERANDS], expected[OPERANDS], one = 1;
    int may_cut = compute == AMPK_COMPUTE_TF32 ? bits : 0;
    make_operands(bits, value, expected);
    struct ampk_conv_shape row = {1, 1, 1, OPERANDS, 1,     1,     1,
                                  1, 0, 1, compute,  false, false, false};
    struct ampk_conv_shape column = {1, 1, 1, 1,       OPERANDS, 1,     1,
                                     1, 0, 1, compute, false,    false, false};
    struct ampk_tensor wide = describe(AMPK_FP32, AMPK_NHWC, 1, 1, 1, OPERANDS);
    struct ampk_tensor deep = describe(AMPK_FP32, AMPK_NHWC, 1, OPERANDS, 1, 1);
    struct pair x = output_tensor(r, wide, false), y = output_tensor(r, wide, false);
    struct pair dx = output_tensor(r, wide, false);
    struct pair ones = input_tensor_of(r, wide, always_one), z = output_tensor(r, deep, false);
    r->backend->write(r->context, x.tested.data, value, sizeof value);

    struct ampk_conv *conv = r->backend->conv_create(r->context, &row, err, sizeof err);
    REQUIRE(conv != NULL);
    struct ampk_new_weights weights = {conv, input_bytes(r, &one, sizeof one), NULL};
    r->backend->conv_set_weights(r->context, &weights, 1);
    r->backend->conv_forward(r->context, conv, &x.tested, &y.tested, NULL, NULL);
    check_values("x", download(r, &y).data, value, expected, may_cut);
    r->backend->conv_backward(r->context, conv, &ones.tested, &x.tested, &dx.tested, false, NULL);
    check_values("dy", download(r, &dx).data, value, expected, may_cut);
    r->backend->conv_destroy(r->context, conv);

    conv = r->backend->conv_create(r->context, &column, err, sizeof err);
    REQUIRE(conv != NULL);
    struct ampk_tensor pixel = describe(AMPK_FP32, AMPK_NHWC, 1, 1, 1, 1);
    pixel.data = ones.tested.data;
    weights = (struct ampk_new_weights){conv, x.tested.data, NULL};
    r->backend->conv_set_weights(r->context, &weights, 1);
    r->backend->conv_forward(r->context, conv, &pixel, &z.tested, NULL, NULL);
    check_values("weights", download(r, &z).data, value, expected, 0);
    r->backend->conv_destroy(r->context, conv);
}

static void operands_case(struct rig *r)
{
    switch (random_int(0, 2)) {
    case 0:
        operand_case(r, AMPK_COMPUTE_FP16, 10);
        break;
    case 1:
        operand_case(r, AMPK_COMPUTE_BF16, 7);
        break;
    default:
        operand_case(r, AMPK_COMPUTE_TF32, 10);
    }
}

AMP_TEST(operands_are_rounded_to_the_compute_type)
{
    run_cases(operands_case, 12);
}

/* ---- faults ---- */

static void refusal_case(struct rig *r)
{
    static const struct {
        struct ampk_conv_shape shape;
        const char *why;
    } impossible[] = {{{1, 4, 3, 3, 4, 5, 5, 1, 0, 1, AMPK_COMPUTE_FP32, false, false, false},
                       "a window larger than the padded input"},
                      {{1, 4, 3, 3, 4, 1, 1, 1, 0, 3, AMPK_COMPUTE_FP32, false, false, false},
                       "groups that do not divide the channels"},
                      {{1, 6, 3, 3, 4, 1, 1, 1, 0, 3, AMPK_COMPUTE_FP32, false, false, false},
                       "groups that do not divide the channels"},
                      {{1, 4, 3, 3, 4, 1, 1, 0, 0, 1, AMPK_COMPUTE_FP32, false, false, false},
                       "an impossible window"},
                      {{1, 4, 3, 3, 4, 1, 1, 1, -1, 1, AMPK_COMPUTE_FP32, false, false, false},
                       "an impossible window"},
                      {{1, 4, 0, 3, 4, 1, 1, 1, 0, 1, AMPK_COMPUTE_FP32, false, false, false},
                       "an empty tensor"}};
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        const struct ampk_conv_shape *s = &impossible[i].shape;
        char err[300] = "";
        CHECK(r->backend->conv_create(r->context, s, err, sizeof err) == NULL);
        CHECK_SAYS(err, impossible[i].why);
        err[0] = 0;
        CHECK(ampk_reference.conv_create(NULL, s, err, sizeof err) == NULL);
        CHECK_SAYS(err, impossible[i].why);
    }
}

AMP_TEST(impossible_shapes_are_refused_with_a_reason)
{
    run_cases(refusal_case, 1);
}

AMP_TEST_MAIN
