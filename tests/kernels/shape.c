/* Conformance: upsample, shortcut, reorg, flatten, unfold. */
#include "layers.h"

/* ---- upsample ---- */

static void upsample_case(struct rig *r)
{
    bool accumulate = random_bool(), reverse = random_bool();
    int stride = RANDOM_OF(1, 2, 2, 2, 3), side = random_int(1, 9), other = random_int(1, 9);
    float scale = RANDOM_OF(1, 1, 3) / 2.f;
    enum ampk_dtype dtype = random_dtype();
    int n = random_int(1, 3), c = random_channels();
    struct ampk_tensor small = describe_channels(dtype, n, c, side, other);
    struct ampk_tensor large = describe_channels(dtype, n, c, side * stride, other * stride);
    struct pair x = input_tensor(r, reverse ? large : small);
    struct pair y = output_tensor(r, reverse ? small : large, accumulate);
    struct ampk_tensor size = absolute(r, &x.exact);
    struct ampk_tensor magnitude = magnitude_of_old(r, &y, accumulate);
    ampk_reference.upsample(NULL, &size, stride, scale, reverse, &magnitude, true, NULL);
    struct amax amax = make_amax(r);
    r->backend->upsample(r->context, &x.tested, stride, scale, reverse, &y.tested, accumulate,
                         tested_amax(&amax));
    ampk_reference.upsample(NULL, &x.exact, stride, scale, reverse, &y.exact, accumulate,
                            &amax.exact);
    struct tolerance sum = {(reverse ? stride * stride : 0) + 2, &magnitude, 0, 0};
    check_amax(r, "upsample", &amax, check_output(r, "upsample", &y, sum));
}

AMP_TEST(upsample)
{
    run_cases(upsample_case, 80);
}

/* ---- shortcut ---- */

struct shapes {
    struct ampk_tensor x, add;
};

/* Half of them the same shape; else the channels differ, and one is larger by a factor, perhaps
 * with a remainder, as sides of 7 and 3. */
static struct shapes random_shapes(void)
{
    enum ampk_dtype dtype = random_dtype();
    struct shapes s;
    s.x = random_shape(dtype, AMPK_NHWC);
    s.add = describe_nhwc(dtype, s.x.n, s.x.c, s.x.h, s.x.w);
    if (random_bool()) return s;
    int h = random_int(1, 6), w = random_int(1, 6), factor = random_int(1, 3);
    int more = random_bool() && h > 1 && w > 1;
    s.x = describe_nhwc(dtype, random_int(1, 3), random_channels(), h * factor + more,
                        w * factor + more);
    s.add = describe_nhwc(dtype, s.x.n, random_channels(), h, w);
    if (random_bool()) return (struct shapes){s.add, s.x};
    return s;
}

static float random_factor(void)
{
    return RANDOM_OF(2, 2, 1, -3) / 2.f;
}

static void shortcut_forward_case(struct rig *r)
{
    struct shapes s = random_shapes();
    float alpha = random_factor(), beta = random_factor();
    enum ampk_activation a = random_activation();
    struct pair x = input_tensor(r, s.x), add = input_tensor(r, s.add);
    struct pair out = output_tensor(r, s.x, false);
    struct ampk_tensor size = absolute(r, &x.exact), add_size = absolute(r, &add.exact);
    struct ampk_tensor magnitude = blank(r, &out.exact);
    ampk_reference.shortcut_forward(NULL, &size, &add_size, fabsf(alpha), fabsf(beta), AMPK_LINEAR,
                                    &magnitude, NULL);
    struct amax amax = make_amax(r);
    r->backend->shortcut_forward(r->context, &x.tested, &add.tested, alpha, beta, a, &out.tested,
                                 tested_amax(&amax));
    ampk_reference.shortcut_forward(NULL, &x.exact, &add.exact, alpha, beta, a, &out.exact,
                                    &amax.exact);
    double slack = check_output(r, "shortcut_forward", &out, activated(a, 3, &magnitude));
    check_amax(r, "shortcut_forward", &amax, slack);
}

AMP_TEST(shortcut_forward)
{
    run_cases(shortcut_forward_case, 60);
}

/* A gradient of the shortcut: wanted or not, accumulated or not. */
struct gradient {
    bool wanted, accumulate;
    struct pair pair;
    struct ampk_tensor magnitude;
    struct amax amax;
};

static struct gradient random_gradient(struct rig *r, struct ampk_tensor shape)
{
    struct gradient g = {.wanted = test_random() % 4 != 0, .accumulate = random_bool()};
    g.pair = output_tensor(r, shape, g.accumulate || !g.wanted);
    g.magnitude = magnitude_of_old(r, &g.pair, g.accumulate);
    g.amax = make_amax(r);
    return g;
}

static void check_gradient(struct rig *r, const char *what, struct gradient *g)
{
    struct tolerance products = {6, &g->magnitude, 0, 0};
    check_amax(r, what, &g->amax, check_output(r, what, &g->pair, products));
}

static void shortcut_backward_case(struct rig *r)
{
    struct shapes s = random_shapes();
    float alpha = random_factor(), beta = random_factor();
    enum ampk_activation a = random_activation();
    struct pair out = input_tensor_of(r, s.x, random_output), d = input_tensor(r, s.x);
    struct gradient dx = random_gradient(r, s.x), dadd = random_gradient(r, s.add);
    struct ampk_tensor size = gradient_magnitude(r, a, &out.exact, &d.exact);
    ampk_reference.shortcut_backward(NULL, &out.exact, &size, fabsf(alpha), fabsf(beta),
                                     AMPK_LINEAR, &dx.magnitude, true, &dadd.magnitude, true, NULL,
                                     NULL);
    r->backend->shortcut_backward(r->context, &out.tested, &d.tested, alpha, beta, a,
                                  dx.wanted ? &dx.pair.tested : NULL, dx.accumulate,
                                  dadd.wanted ? &dadd.pair.tested : NULL, dadd.accumulate,
                                  tested_amax(&dx.amax), tested_amax(&dadd.amax));
    ampk_reference.shortcut_backward(NULL, &out.exact, &d.exact, alpha, beta, a,
                                     dx.wanted ? &dx.pair.exact : NULL, dx.accumulate,
                                     dadd.wanted ? &dadd.pair.exact : NULL, dadd.accumulate,
                                     &dx.amax.exact, &dadd.amax.exact);
    check_gradient(r, "shortcut_backward dx", &dx);
    check_gradient(r, "shortcut_backward dadd", &dadd);
}

AMP_TEST(shortcut_backward)
{
    run_cases(shortcut_backward_case, 60);
}

/* ---- permutations ---- */

/* The arguments of reorg or flatten; those that it has not are 0. */
struct permutation {
    int w, h, c, stride; /* reorg */
    int size, layers;    /* flatten */
    int forward;
};

static void permute(const struct ampk_backend *backend, struct ampk_context *context,
                    const struct permutation *p, const struct ampk_tensor *x,
                    const struct ampk_tensor *y, bool accumulate, uint32_t *amax)
{
    if (p->stride)
        backend->reorg(context, x, p->w, p->h, p->c, p->stride, p->forward, y, accumulate, amax);
    else
        backend->flatten(context, x, p->size, p->layers, p->forward, y, accumulate, amax);
}

static void compare_permutation(struct rig *r, const struct permutation *p, struct ampk_tensor from,
                                struct ampk_tensor to)
{
    bool accumulate = random_bool();
    struct pair x = input_tensor(r, from), y = output_tensor(r, to, accumulate);
    struct ampk_tensor size = absolute(r, &x.exact);
    struct ampk_tensor magnitude = magnitude_of_old(r, &y, accumulate);
    permute(&ampk_reference, NULL, p, &size, &magnitude, true, NULL);
    struct amax amax = make_amax(r);
    permute(r->backend, r->context, p, &x.tested, &y.tested, accumulate, tested_amax(&amax));
    permute(&ampk_reference, NULL, p, &x.exact, &y.exact, accumulate, &amax.exact);
    struct tolerance addition = {1, &magnitude, 0, 0};
    double slack = check_output(r, "permutation", &y, accumulate ? addition : exactly);
    check_amax(r, "permutation", &amax, slack);
}

/* Darknet gives reorg_cpu the shape of the layer's input, whichever way it goes. */
static void reorg_case(struct rig *r)
{
    int stride = random_int(1, 3), n = random_int(1, 3);
    int c = stride * stride * random_int(1, 9), h = stride * random_int(1, 4),
        w = stride * random_int(1, 4);
    struct permutation p = {w, h, c, stride, 0, 0, random_bool()};
    enum ampk_dtype dtype = random_dtype();
    struct ampk_tensor in = describe_channels(dtype, n, c, h, w);
    struct ampk_tensor out =
        p.forward ? describe_channels(dtype, n, c / (stride * stride), h * stride, w * stride)
                  : describe_channels(dtype, n, c * stride * stride, h / stride, w / stride);
    if (random_bool())
        compare_permutation(r, &p, in, out);
    else
        compare_permutation(r, &p, out, in);
}

AMP_TEST(reorg)
{
    run_cases(reorg_case, 40);
}

static void flatten_case(struct rig *r)
{
    int n = random_int(1, 3), c = random_channels(), h = random_side(), w = random_side();
    struct permutation p = {0, 0, 0, 0, h * w, c, random_bool()};
    enum ampk_dtype dtype = random_dtype();
    compare_permutation(r, &p, describe_channels(dtype, n, c, h, w),
                        describe_channels(dtype, n, c, h, w));
}

AMP_TEST(flatten)
{
    run_cases(flatten_case, 30);
}

/* ---- unfold ---- */

/* Windows of an image: some lie outside in part, and some pixels are seen by none. */
struct windows {
    int size, stride, pad;
    struct ampk_tensor x, y;
};

static struct windows random_windows(void)
{
    enum ampk_dtype dtype = random_dtype();
    struct windows w = {
        .size = random_int(1, 4), .stride = random_int(1, 3), .pad = random_int(0, 2)};
    int n = random_int(1, 3), c = random_channels(), least = w.size - 2 * w.pad;
    int high = random_int(least > 1 ? least : 1, 8), wide = random_int(least > 1 ? least : 1, 8);
    w.x = describe_nhwc(dtype, n, c, high, wide);
    w.y = describe_nhwc(dtype, n, c * w.size * w.size, (high + 2 * w.pad - w.size) / w.stride + 1,
                        (wide + 2 * w.pad - w.size) / w.stride + 1);
    return w;
}

static void unfold_case(struct rig *r)
{
    struct windows w = random_windows();
    struct pair x = input_tensor(r, w.x), y = output_tensor(r, w.y, false);
    r->backend->unfold(r->context, &x.tested, w.size, w.stride, w.pad, &y.tested);
    ampk_reference.unfold(NULL, &x.exact, w.size, w.stride, w.pad, &y.exact);
    check_output(r, "unfold", &y, exactly);
}

AMP_TEST(unfold)
{
    run_cases(unfold_case, 60);
}

static void fold_case(struct rig *r)
{
    struct windows w = random_windows();
    bool accumulate = random_bool();
    struct pair dy = input_tensor(r, w.y), dx = output_tensor(r, w.x, accumulate);
    struct ampk_tensor size = absolute(r, &dy.exact);
    struct ampk_tensor magnitude = magnitude_of_old(r, &dx, accumulate);
    ampk_reference.fold(NULL, &size, w.size, w.stride, w.pad, &magnitude, true, NULL);
    struct amax amax = make_amax(r);
    r->backend->fold(r->context, &dy.tested, w.size, w.stride, w.pad, &dx.tested, accumulate,
                     tested_amax(&amax));
    ampk_reference.fold(NULL, &dy.exact, w.size, w.stride, w.pad, &dx.exact, accumulate,
                        &amax.exact);
    struct tolerance sum = {w.size * w.size + 1, &magnitude, 0, 0};
    check_amax(r, "fold", &amax, check_output(r, "fold", &dx, sum));
}

AMP_TEST(fold)
{
    run_cases(fold_case, 60);
}

AMP_TEST_MAIN
