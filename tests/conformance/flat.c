/* Conformance: flat FP32 arrays. */
#include "tests/conformance/rig.h"

/* Around multiples of vector widths and of the pieces that threads take. */
static size_t random_size(void)
{
    return RANDOM_OF(1, 7, 8, 15, 16, 17, 31, 33, 100, 1000, 16383, 16385, 65535, 65536, 65537);
}

static double any_float(void)
{
    return ldexp(test_uniform(-1, 1), random_int(-60, 60));
}

static double rarely_not_finite(void)
{
    if (test_random() % 2000) return any_float();
    return RANDOM_OF(0, 1) ? INFINITY : NAN;
}

static void amax_case(struct rig *r)
{
    size_t n = random_size();
    struct pair x =
        input_tensor_of(r, describe_array(n), random_bool() ? any_float : rarely_not_finite);
    struct amax amax = make_amax(r);
    r->backend->amax(r->context, x.tested.data, n, tested_amax(&amax));
    ampk_reference.amax(NULL, x.exact.data, n, &amax.exact);
    check_amax(r, "amax", &amax, 0);
}

AMP_TEST(amax)
{
    run_cases(amax_case, 40);
}

/* One element of each kind in every lane and in the tail. */
static void amax_place_case(struct rig *r)
{
    enum { N = 37 };
    float x[N], special[] = {INFINITY, -INFINITY, NAN, -NAN, -7, 0x1p-149f, 3e38f};
    for (size_t s = 0; s < sizeof special / sizeof *special; s++)
        for (int at = 0; at < N; at++) {
            memset(x, 0, sizeof x);
            x[at] = special[s];
            uint32_t *word = r->backend->alloc(r->context, sizeof *word), bits;
            float *data = r->backend->alloc(r->context, sizeof x);
            r->backend->write(r->context, data, x, sizeof x);
            r->backend->fill_zero(r->context, word, sizeof *word);
            r->backend->amax(r->context, data, N, word);
            r->backend->read(r->context, &bits, word, sizeof bits);
            CHECK_INT(bits, ampk_ref_float_bits(special[s]) & 0x7fffffff);
            CHECK_INT(ampk_amax_is_finite(bits), isfinite(special[s]));
            r->backend->free(r->context, word);
            r->backend->free(r->context, data);
        }
}

AMP_TEST(amax_sees_every_place)
{
    run_cases(amax_place_case, 1);
}

static void scale_case(struct rig *r)
{
    size_t n = random_size();
    float factor = random_bool() ? ldexpf(1, random_int(-24, 24)) : (float)test_uniform(-2, 2);
    struct pair x = output_array(r, n, true);
    r->backend->scale(r->context, x.tested.data, n, factor);
    ampk_reference.scale(NULL, x.exact.data, n, factor);
    check_output(r, "scale", &x, exactly);
}

AMP_TEST(scale)
{
    run_cases(scale_case, 30);
}

/* Unscaling by a power of two is exact, so only the addition rounds. */
static void accumulate_case(struct rig *r)
{
    size_t n = random_size();
    bool power_of_two = random_bool();
    float factor = power_of_two ? ldexpf(1, random_int(-24, 24)) : (float)test_uniform(-2, 2);
    struct pair g = input_array(r, n), sum = output_array(r, n, true);
    struct ampk_tensor size = absolute(r, &g.exact), magnitude = absolute(r, &sum.exact);
    ampk_reference.accumulate(NULL, size.data, n, fabsf(factor), magnitude.data);
    r->backend->accumulate(r->context, g.tested.data, n, factor, sum.tested.data);
    ampk_reference.accumulate(NULL, g.exact.data, n, factor, sum.exact.data);
    struct tolerance product_and_sum = {2, &magnitude, 0, 0};
    check_output(r, "accumulate", &sum, power_of_two ? exactly : product_and_sum);
}

AMP_TEST(accumulate)
{
    run_cases(accumulate_case, 30);
}

/* ---- update rules ---- */

static float random_clip(void)
{
    return RANDOM_OF(0, 0, 1) * .5f;
}

/* Bit for bit. */
static void sgd_case(struct rig *r)
{
    size_t n = random_size();
    float rate = (float)test_uniform(0, .1), momentum = (float)test_uniform(0, 1);
    float decay = random_bool() ? 0 : (float)test_uniform(0, .1), clip = random_clip();
    struct pair g = input_array(r, n), w = output_array(r, n, true), v = output_array(r, n, true);
    for (int step = 0; step < 2; step++) {
        r->backend->update_sgd(r->context, w.tested.data, v.tested.data, g.tested.data, n, rate,
                               momentum, decay, clip);
        ampk_reference.update_sgd(NULL, w.exact.data, v.exact.data, g.exact.data, n, rate, momentum,
                                  decay, clip);
    }
    check_output(r, "update_sgd w", &w, exactly);
    check_output(r, "update_sgd v", &v, exactly);
}

AMP_TEST(update_sgd)
{
    run_cases(sgd_case, 40);
}

struct adam {
    float rate, b1, b2, eps, decay, clip;
    int t;
};

/* Bounds of what is added up to make m, v and w; exact arrays as before the step. A relative error
 * of m or v is one of the step. */
static void adam_magnitudes(const struct adam *a, size_t n, const float *w, const float *m,
                            const float *v, const float *g, float *to_w, float *to_m, float *to_v)
{
    double unbias1 = 1 - pow(a->b1, a->t), unbias2 = 1 - pow(a->b2, a->t);
    for (size_t i = 0; i < n; i++) {
        double d = fabs(g[i]) + a->decay * fabs(w[i]), exact_d = g[i] - (double)a->decay * w[i];
        double second = (double)a->b2 * v[i] + (1 - (double)a->b2) * exact_d * exact_d;
        to_m[i] = (float)(a->b1 * fabs(m[i]) + (1 - a->b1) * d);
        to_v[i] = (float)(a->b2 * v[i] + (1 - a->b2) * d * d);
        double step = a->rate * to_m[i] / unbias1 / (sqrt(second / unbias2) + a->eps);
        to_w[i] = (float)(fabs(w[i]) + step * (1 + (second > 0 ? to_v[i] / second : 0)));
    }
}

static double square_value(void)
{
    double v = random_value();
    return v * v;
}

static void adam_case(struct rig *r)
{
    size_t n = random_size();
    struct adam a = {.rate = .001f, .b1 = .9f, .b2 = .999f, .eps = .0000001f};
    a.decay = random_bool() ? 0 : (float)test_uniform(0, .1);
    a.clip = random_clip();
    a.t = RANDOM_OF(1, 2, 10, 1000);
    struct pair g = input_array(r, n), w = output_array(r, n, true), m = output_array(r, n, true);
    struct pair squares = input_tensor_of(r, describe_array(n), square_value);
    struct pair v = output_array(r, n, true);
    r->backend->convert(r->context, &squares.tested, &v.tested, false, NULL);
    ampk_reference.convert(NULL, &squares.exact, &v.exact, false, NULL);
    struct ampk_tensor to_w = blank(r, &w.exact), to_m = to_w, to_v = to_w;
    to_m = blank(r, &m.exact), to_v = blank(r, &v.exact);
    adam_magnitudes(&a, n, w.exact.data, m.exact.data, v.exact.data, g.exact.data, to_w.data,
                    to_m.data, to_v.data);
    r->backend->update_adam(r->context, w.tested.data, m.tested.data, v.tested.data, g.tested.data,
                            n, a.rate, a.b1, a.b2, a.eps, a.decay, a.t, a.clip);
    ampk_reference.update_adam(NULL, w.exact.data, m.exact.data, v.exact.data, g.exact.data, n,
                               a.rate, a.b1, a.b2, a.eps, a.decay, a.t, a.clip);
    check_output(r, "update_adam m", &m, (struct tolerance){4, &to_m, 0, 0});
    check_output(r, "update_adam v", &v, (struct tolerance){6, &to_v, 0, 0});
    check_output(r, "update_adam w", &w, (struct tolerance){12, &to_w, 0, 0});
}

AMP_TEST(update_adam)
{
    run_cases(adam_case, 40);
}

/* NaN in a weight is not clamped away. */
static void nan_weight_case(struct rig *r)
{
    float g[20], w[20], nan = NAN;
    for (int i = 0; i < 20; i++)
        g[i] = 0, w[i] = 1;
    w[3] = nan;
    size_t bytes = sizeof g;
    float *tg = r->backend->alloc(r->context, bytes), *tw = r->backend->alloc(r->context, bytes);
    float *tv = r->backend->alloc(r->context, bytes);
    r->backend->write(r->context, tg, g, bytes);
    r->backend->write(r->context, tw, w, bytes);
    r->backend->fill_zero(r->context, tv, bytes);
    r->backend->update_sgd(r->context, tw, tv, tg, 20, .1f, .9f, 0, .5f);
    r->backend->read(r->context, w, tw, bytes);
    for (int i = 0; i < 20; i++)
        CHECK(i == 3 ? isnan(w[i]) : w[i] == .5f);
    r->backend->free(r->context, tg);
    r->backend->free(r->context, tw);
    r->backend->free(r->context, tv);
}

AMP_TEST(clip_keeps_nan)
{
    run_cases(nan_weight_case, 1);
}

AMP_TEST_MAIN
