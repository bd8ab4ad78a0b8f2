/* What the tests of convolutions share: shapes, and a convolution three times: the one under test,
 * the reference's, and the reference's of absolute weights, which bounds what rounding may do. */
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

/* What the CPU backend computes in tiles of 4 x 4: one band of them, several and a short last one,
 * more images than a task takes, and images of few tiles, which suit a training alone. Channels are
 * multiplied all at once or in parts. */
static void tiled_shape(struct ampk_conv_shape *s)
{
    static const int sides[][3] = {{2, 13, 16}, {1, 20, 27}, {2, 36, 33}, {5, 16, 16},
                                   {3, 9, 15},  {4, 8, 7},   {9, 6, 5}};
    const int *side = sides[test_random() % (sizeof sides / sizeof *sides)];
    *s = (struct ampk_conv_shape){side[0],
                                  RANDOM_OF(32, 64, 96, 128),
                                  side[1],
                                  side[2],
                                  RANDOM_OF(32, 32, 64, 96),
                                  3,
                                  3,
                                  1,
                                  1,
                                  1,
                                  s->compute,
                                  0,
                                  0,
                                  0};
}

/* Weight gradients that the CPU backend computes itself: of BF16, where it pairs bands of rows, and
 * of FP32. Strides, an odd last unit, slices, panels that are not filled. */
static void own_gradient_shape(struct ampk_conv_shape *s)
{
    bool point = random_bool();
    int stride = random_int(1, point ? 2 : 3), least = point ? 6 : 11;
    *s = (struct ampk_conv_shape){random_int(1, 3),
                                  RANDOM_OF(16, 48, 80),
                                  stride * random_int(least, least + 4),
                                  stride * random_int(least + 2, least + 6),
                                  point ? 255 : RANDOM_OF(7, 16, 40),
                                  point ? 1 : 3,
                                  point ? 1 : 3,
                                  stride,
                                  point ? RANDOM_OF(0, 0, 1) : random_int(0, 2),
                                  1,
                                  RANDOM_OF(AMPK_COMPUTE_BF16, s->compute),
                                  0,
                                  0,
                                  0};
    if (test_random() % 4 == 0) *(random_bool() ? &s->c : &s->k) = 128, s->n = 1; /* slices */
}

/* 1x1 convolutions that the CPU backend multiplies itself, or their weight gradient: blocks of all
 * numbers of pixels, a last panel without a second, several slices and bands, filters that are
 * padded. */
static void product_shape(struct ampk_conv_shape *s)
{
    int wide = RANDOM_OF(0, 0, 1, 2);
    *s = (struct ampk_conv_shape){random_int(1, 3),
                                  wide == 1 ? 512 : RANDOM_OF(16, 32, 48, 80),
                                  random_int(1, RANDOM_OF(4, 12, 24)),
                                  random_int(1, 14),
                                  wide == 2 ? 512 : RANDOM_OF(16, 32, 48, 80, 255),
                                  1,
                                  1,
                                  1,
                                  0,
                                  1,
                                  RANDOM_OF(AMPK_COMPUTE_BF16, s->compute),
                                  0,
                                  0,
                                  0};
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
    if (test_random() % 12 == 0) tiled_shape(&s);
    if (test_random() % 12 == 0) own_gradient_shape(&s);
    if (test_random() % 12 == 0) product_shape(&s);
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

/* Raises what watches the weights on the CPU, where a pass reads them first. */
static void run_forward(struct rig *r, const struct convs *c)
{
    struct pair x = input_tensor_of(r, shape_x(&c->shape), random_value);
    struct pair y = output_tensor(r, shape_y(&c->shape), false);
    r->backend->conv_forward(r->context, c->tested, &x.tested, &y.tested, NULL, NULL);
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
    for (int i = 0; i < count; i++) {
        if (r->backend->conv_keep_gradient) run_forward(r, &c[i]); /* the CPU's */
        check_amax(r, "conv_set_weights", &amax[i], 0);
    }
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

/* Whether the CPU backend may compute it by Winograd's F(4 x 4, 3 x 3). There every result comes
 * from all that its tile reads, so an error may be as large as a neighbour's; and it adds products
 * of transformed values, which are several times as large as those of the sum. Errors are a tenth
 * of what an FP32 sum is allowed, which is left as it is but for a factor of two. */
enum { TILES_MAGNIFY = 2 };

static bool may_be_tiled(const struct ampk_conv_shape *s)
{
#ifdef CONFORMANCE_CUDA
    const bool tiles = false;
#else
    const bool tiles = true;
#endif
    return tiles && s->kh == 3 && s->kw == 3 && s->stride == 1 && s->pad == 1 && s->groups == 1 &&
           s->c % 32 == 0 && s->k % 32 == 0;
}

/* Each element becomes the largest of its image. */
static void spread(const struct ampk_tensor *t)
{
    size_t size = (size_t)t->c * t->h * t->w;
    for (int n = 0; n < t->n; n++) {
        float *v = (float *)t->data + n * t->image_stride, most = 0;
        for (size_t i = 0; i < size; i++)
            most = fmaxf(most, v[i]);
        for (size_t i = 0; i < size; i++)
            v[i] = most;
    }
}

static struct tolerance sum_of(const struct ampk_conv_shape *s, double terms,
                               const struct ampk_tensor *magnitude)
{
    struct device_error e = device_error(s);
    if (may_be_tiled(s)) {
        spread(magnitude);
        e.times *= TILES_MAGNIFY;
    }
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

/* ---- values ---- */

UNUSED static double always_one(void)
{
    return 1;
}

UNUSED static double large(void)
{
    return 300;
}

UNUSED static double spoilt_now_and_then(void)
{
    if (test_random() % 100) return random_value();
    return random_bool() ? INFINITY : NAN;
}
