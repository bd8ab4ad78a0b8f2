/* Conformance: flat FP32 arrays. */
#include "conformance.h"

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

/* A list of arrays that are updated together: for the backend, and for the reference. */
enum { MOST_PARAMS = 4 };

struct params {
    int count;
    size_t n[MOST_PARAMS];
    struct pair w[MOST_PARAMS], v[MOST_PARAMS], m[MOST_PARAMS], g[MOST_PARAMS];
    struct pair average[MOST_PARAMS], trust[MOST_PARAMS];
    struct ampk_param tested[MOST_PARAMS], exact[MOST_PARAMS];
};

static struct ampk_param random_param(struct params *p, int i)
{
    return (struct ampk_param){.n = p->n[i],
                               .unscale = ldexpf(1, random_int(-24, 0)),
                               .rate = (float)test_uniform(0, .1),
                               .decay = random_bool() ? 0 : (float)test_uniform(0, .1),
                               .clip = random_clip()};
}

static void random_sizes(struct params *p)
{
    p->count = random_int(1, MOST_PARAMS);
    for (int i = 0; i < p->count; i++)
        p->n[i] = i ? (size_t)RANDOM_OF(1, 3, 4, 64, 513, 4096, 4097) : random_size();
}

static void check_list(struct rig *r, const char *what, const struct pair *outputs, int count)
{
    for (int i = 0; i < count; i++)
        check_output(r, what, &outputs[i], exactly);
}

/* Gradients of about 1, so half of them are limited. */
static float random_limit(void)
{
    return RANDOM_OF(0, 0, 1) * 1e-4f;
}

static void give_average(struct rig *r, struct params *p, int i)
{
    if (random_bool()) return;
    p->average[i] = output_array(r, p->n[i], true);
    p->tested[i].average = p->average[i].tested.data;
    p->exact[i].average = p->average[i].exact.data;
}

/* What an average is made of: itself as it was, and the new weights, of this magnitude. */
static struct ampk_tensor average_magnitude(struct rig *r, const struct params *p, int i,
                                            const struct ampk_tensor *weights)
{
    struct ampk_tensor size = blank(r, &p->w[i].exact);
    for (size_t k = 0; k < p->n[i] && p->exact[i].average; k++)
        ((float *)size.data)[k] = ((float *)weights->data)[k] + fabsf(p->exact[i].average[k]);
    return size;
}

static void check_averages(struct rig *r, const struct params *p, const struct ampk_tensor *size,
                           double terms)
{
    for (int i = 0; i < p->count; i++)
        if (p->exact[i].average)
            check_output(r, "average", &p->average[i], (struct tolerance){terms, &size[i], 0, 0});
}

/* Weights and momentum bit for bit; the reference rounds an average once. */
static void sgd_case(struct rig *r)
{
    struct ampk_rule rule = {.optimizer = AMPK_SGD,
                             .momentum = (float)test_uniform(0, 1),
                             .limit = random_limit(),
                             .average_rest = (float)test_uniform(0, 1)};
    struct params p;
    struct ampk_tensor size[MOST_PARAMS];
    random_sizes(&p);
    for (int i = 0; i < p.count; i++) {
        p.g[i] = input_array(r, p.n[i]);
        p.w[i] = output_array(r, p.n[i], true);
        p.v[i] = output_array(r, p.n[i], true);
        p.tested[i] = p.exact[i] = random_param(&p, i);
        p.tested[i].value = p.w[i].tested.data, p.exact[i].value = p.w[i].exact.data;
        p.tested[i].update = p.v[i].tested.data, p.exact[i].update = p.v[i].exact.data;
        p.tested[i].grad = p.g[i].tested.data, p.exact[i].grad = p.g[i].exact.data;
        give_average(r, &p, i);
        size[i] = blank(r, &p.w[i].exact);
    }
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < p.count; i++)
            for (size_t k = 0; k < p.n[i] && p.exact[i].average; k++)
                ((float *)size[i].data)[k] += fabsf(p.exact[i].average[k]);
        r->backend->update(r->context, &rule, p.tested, p.count);
        ampk_reference.update(NULL, &rule, p.exact, p.count);
        for (int i = 0; i < p.count; i++)
            for (size_t k = 0; k < p.n[i]; k++)
                ((float *)size[i].data)[k] += fabsf(p.exact[i].value[k]);
    }
    check_list(r, "SGD value", p.w, p.count);
    check_list(r, "SGD update", p.v, p.count);
    check_averages(r, &p, size, 4);
}

AMP_TEST(update_by_sgd)
{
    run_cases(sgd_case, 40);
}

/* Bounds of what is added up to make m, v and w; exact arrays as before the step. A relative error
 * of m or v is one of the step. */
static void adam_magnitudes(const struct ampk_rule *a, const struct ampk_param *p, float *to_w,
                            float *to_m, float *to_v)
{
    double unbias1 = 1 - pow(a->b1, a->t), unbias2 = 1 - pow(a->b2, a->t);
    double rate = (double)p->rate * (p->trust ? *p->trust : 1);
    const float *w = p->value, *m = p->m, *v = p->v, *g = p->grad;
    for (size_t i = 0; i < p->n; i++) {
        double gradient = (double)p->unscale * g[i], decay = (double)p->decay * w[i];
        if (a->limit > 0) gradient = fmax(fmin(gradient, a->limit), -(double)a->limit);
        bool decoupled = a->optimizer == AMPK_ADAMW;
        double d = fabs(gradient) + (decoupled ? 0 : fabs(decay));
        double exact_d = gradient - (decoupled ? 0 : decay);
        double second = (double)a->b2 * v[i] + (1 - (double)a->b2) * exact_d * exact_d;
        to_m[i] = (float)(a->b1 * fabs(m[i]) + (1 - a->b1) * d);
        to_v[i] = (float)(a->b2 * v[i] + (1 - a->b2) * d * d);
        double step = rate * to_m[i] / unbias1 / (sqrt(second / unbias2) + a->eps);
        to_w[i] = (float)(fabs(w[i]) + step * (1 + (second > 0 ? to_v[i] / second : 0)) +
                          rate * fabs(decay));
    }
}

static double square_value(void)
{
    double v = random_value();
    return v * v;
}

/* Second moments: not negative. */
static struct pair output_squares(struct rig *r, size_t n)
{
    struct pair squares = input_tensor_of(r, describe_array(n), square_value);
    struct pair v = output_array(r, n, true);
    r->backend->copy_many(r->context, &(struct ampk_span){v.tested.data, squares.tested.data, n},
                          1);
    ampk_reference.copy_many(NULL, &(struct ampk_span){v.exact.data, squares.exact.data, n}, 1);
    return v;
}

/* The same number, whatever a backend makes of it later. */
static void give_trust(struct rig *r, struct params *p, int i)
{
    float trust = (float)test_uniform(.1, 2);
    p->trust[i] = output_array(r, 1, true);
    r->backend->write(r->context, p->trust[i].tested.data, &trust, sizeof trust);
    *(float *)p->trust[i].exact.data = trust;
    p->tested[i].trust = p->trust[i].tested.data;
    p->exact[i].trust = p->trust[i].exact.data;
}

static void make_adam(struct rig *r, struct params *p, bool trusted)
{
    random_sizes(p);
    for (int i = 0; i < p->count; i++) {
        p->g[i] = input_array(r, p->n[i]);
        p->w[i] = output_array(r, p->n[i], true);
        p->m[i] = output_array(r, p->n[i], true);
        p->v[i] = output_squares(r, p->n[i]);
        p->tested[i] = p->exact[i] = random_param(p, i);
        p->tested[i].value = p->w[i].tested.data, p->exact[i].value = p->w[i].exact.data;
        p->tested[i].m = p->m[i].tested.data, p->exact[i].m = p->m[i].exact.data;
        p->tested[i].v = p->v[i].tested.data, p->exact[i].v = p->v[i].exact.data;
        p->tested[i].grad = p->g[i].tested.data, p->exact[i].grad = p->g[i].exact.data;
        if (trusted) give_trust(r, p, i);
        give_average(r, p, i);
    }
}

static struct ampk_rule random_adam(bool decoupled)
{
    return (struct ampk_rule){.optimizer = decoupled ? AMPK_ADAMW : AMPK_ADAM,
                              .b1 = .9f,
                              .b2 = .999f,
                              .eps = .0000001f,
                              .limit = random_limit(),
                              .average_rest = (float)test_uniform(0, 1),
                              .t = RANDOM_OF(1, 2, 10, 1000)};
}

static void adam_case(struct rig *r)
{
    bool decoupled = random_bool();
    struct ampk_rule a = random_adam(decoupled);
    struct params p;
    struct ampk_tensor to_w[MOST_PARAMS], to_m[MOST_PARAMS], to_v[MOST_PARAMS], size[MOST_PARAMS];
    make_adam(r, &p, decoupled && random_bool());
    for (int i = 0; i < p.count; i++) {
        to_w[i] = blank(r, &p.w[i].exact);
        to_m[i] = blank(r, &p.m[i].exact);
        to_v[i] = blank(r, &p.v[i].exact);
        adam_magnitudes(&a, &p.exact[i], to_w[i].data, to_m[i].data, to_v[i].data);
        size[i] = average_magnitude(r, &p, i, &to_w[i]);
    }
    r->backend->update(r->context, &a, p.tested, p.count);
    ampk_reference.update(NULL, &a, p.exact, p.count);
    for (int i = 0; i < p.count; i++) {
        check_output(r, "Adam m", &p.m[i], (struct tolerance){4, &to_m[i], 0, 0});
        check_output(r, "Adam v", &p.v[i], (struct tolerance){6, &to_v[i], 0, 0});
        check_output(r, "Adam w", &p.w[i], (struct tolerance){12, &to_w[i], 0, 0});
    }
    check_averages(r, &p, size, 16);
}

AMP_TEST(update_by_adam_and_adamw)
{
    run_cases(adam_case, 40);
}

/* Bounds as above. */
static void lars_magnitudes(const struct ampk_param *p, float *to_w)
{
    for (size_t i = 0; i < p->n; i++)
        to_w[i] = fabsf(p->value[i]) * (1 + p->rate * *p->trust * p->decay) + fabsf(p->update[i]) +
                  p->rate * *p->trust * fabsf(p->unscale * p->grad[i]);
}

static void lars_case(struct rig *r)
{
    struct ampk_rule rule = {.optimizer = AMPK_LARS,
                             .momentum = (float)test_uniform(0, 1),
                             .limit = random_limit(),
                             .average_rest = (float)test_uniform(0, 1)};
    struct params p;
    struct ampk_tensor to_w[MOST_PARAMS], size[MOST_PARAMS];
    make_adam(r, &p, true);
    for (int i = 0; i < p.count; i++) {
        p.tested[i].update = p.m[i].tested.data, p.exact[i].update = p.m[i].exact.data;
        to_w[i] = blank(r, &p.w[i].exact);
        lars_magnitudes(&p.exact[i], to_w[i].data);
        size[i] = average_magnitude(r, &p, i, &to_w[i]);
    }
    r->backend->update(r->context, &rule, p.tested, p.count);
    ampk_reference.update(NULL, &rule, p.exact, p.count);
    for (int i = 0; i < p.count; i++) {
        check_output(r, "LARS w", &p.w[i], (struct tolerance){6, &to_w[i], 0, 0});
        check_output(r, "LARS update", &p.m[i], (struct tolerance){6, &to_w[i], 0, 0});
    }
    check_averages(r, &p, size, 10);
}

AMP_TEST(update_by_lars)
{
    run_cases(lars_case, 40);
}

/* A ratio of norms: relative 1e-5, whatever the sizes. Zero weights and zero gradients give 1. */
static void trust_case(struct rig *r)
{
    bool lars = random_bool();
    struct ampk_rule rule = random_adam(true);
    struct params p;
    make_adam(r, &p, true);
    if (lars) rule.optimizer = AMPK_LARS;
    for (int i = 0; i < p.count; i++) {
        bool zero = lars && random_int(0, 4) == 0;
        p.tested[i].update = p.m[i].tested.data, p.exact[i].update = p.m[i].exact.data;
        if (random_int(0, 4) == 0) {
            r->backend->fill_zero(r->context, p.tested[i].value, p.n[i] * sizeof(float));
            memset(p.exact[i].value, 0, p.n[i] * sizeof(float));
        }
        if (!zero) continue;
        p.tested[i].unscale = p.exact[i].unscale = 0;
        p.tested[i].decay = p.exact[i].decay = 0;
    }
    r->backend->trust_ratios(r->context, &rule, p.tested, p.count);
    ampk_reference.trust_ratios(NULL, &rule, p.exact, p.count);
    for (int i = 0; i < p.count; i++) {
        double exact = *(const float *)p.trust[i].exact.data;
        float tested;
        r->backend->read(r->context, &tested, p.trust[i].tested.data, sizeof tested);
        CHECK_NEAR(tested, exact, 1e-5 * exact);
    }
}

AMP_TEST(trust_ratios)
{
    run_cases(trust_case, 40);
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
    struct ampk_param param = {
        .value = tw, .update = tv, .grad = tg, .n = 20, .unscale = 1, .rate = .1f, .clip = .5f};
    const struct ampk_rule rule = {.optimizer = AMPK_SGD, .momentum = .9f};
    r->backend->update(r->context, &rule, &param, 1);
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

/* More arrays than one launch takes, empty ones among them. */
enum { MANY = 300 };

static void many_arrays(struct rig *r, size_t *n, struct pair *x, struct pair *y)
{
    size_t all = 0;
    for (int i = 0; i < MANY; i++)
        all += n[i] = (size_t)RANDOM_OF(0, 1, 2, 4, 7, 16, 33);
    *x = input_array(r, all);
    *y = output_array(r, all, true);
}

static void sgd_many_case(struct rig *r)
{
    static struct ampk_param tested[MANY], exact[MANY];
    size_t n[MANY], at = 0;
    struct pair g, w;
    many_arrays(r, n, &g, &w);
    struct pair v = output_array(r, g.tested.c, true);
    for (int i = 0; i < MANY; at += n[i++]) {
        struct ampk_param p = {.n = n[i],
                               .unscale = .25f,
                               .rate = (float)test_uniform(0, .1),
                               .decay = (float)test_uniform(0, .1),
                               .clip = random_clip()};
        tested[i] = exact[i] = p;
        tested[i].value = (float *)w.tested.data + at, exact[i].value = (float *)w.exact.data + at;
        tested[i].update = (float *)v.tested.data + at,
        exact[i].update = (float *)v.exact.data + at;
        tested[i].grad = (float *)g.tested.data + at, exact[i].grad = (float *)g.exact.data + at;
    }
    const struct ampk_rule rule = {.optimizer = AMPK_SGD, .momentum = .9f};
    r->backend->update(r->context, &rule, tested, MANY);
    ampk_reference.update(NULL, &rule, exact, MANY);
    check_output(r, "update of many", &w, exactly);
    check_output(r, "update of many", &v, exactly);
}

static void copy_many_case(struct rig *r)
{
    static struct ampk_span tested[MANY], exact[MANY];
    size_t n[MANY], at = 0;
    struct pair x, y;
    many_arrays(r, n, &x, &y);
    for (int i = 0; i < MANY; at += n[i++]) {
        tested[i] =
            (struct ampk_span){(float *)y.tested.data + at, (float *)x.tested.data + at, n[i]};
        exact[i] = (struct ampk_span){(float *)y.exact.data + at, (float *)x.exact.data + at, n[i]};
    }
    int count = random_int(0, MANY);
    r->backend->copy_many(r->context, tested, count);
    ampk_reference.copy_many(NULL, exact, count);
    check_output(r, "copy_many", &y, exactly);
}

/* The reference rounds once. */
static void average_many_case(struct rig *r)
{
    static struct ampk_span tested[MANY], exact[MANY];
    size_t n[MANY], at = 0;
    struct pair x, y;
    many_arrays(r, n, &x, &y);
    struct ampk_tensor size = absolute(r, &y.exact);
    for (int i = 0; i < MANY; at += n[i++]) {
        tested[i] =
            (struct ampk_span){(float *)y.tested.data + at, (float *)x.tested.data + at, n[i]};
        exact[i] = (struct ampk_span){(float *)y.exact.data + at, (float *)x.exact.data + at, n[i]};
    }
    for (size_t k = 0; k < at; k++)
        ((float *)size.data)[k] += fabsf(((const float *)x.exact.data)[k]);
    int count = random_int(0, MANY);
    float rest = (float)test_uniform(0, 1);
    r->backend->average_many(r->context, tested, count, rest);
    ampk_reference.average_many(NULL, exact, count, rest);
    check_output(r, "average_many", &y, (struct tolerance){3, &size, 0, 0});
}

AMP_TEST(lists_of_many_arrays)
{
    run_cases(sgd_many_case, 4);
    run_cases(copy_many_case, 8);
    run_cases(average_many_case, 8);
}

AMP_TEST_MAIN
