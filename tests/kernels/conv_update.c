/* Conformance of what takes one pass over the weights of many convolutions, beside the operations
 * that do it one after the other. Updated and packed: to the bit; the packed weights of two
 * convolutions that began alike are compared by what they make of the same input. Gradients watched
 * and squared: the square beside a sum in double precision. */
#include "conformance.h"

#ifdef CUDA_EMULATED
#include "tests/emulation/tensor_core_host.h"
#endif

enum { MOST_CONVS = 132 }; /* more than conv_operands.c of the CUDA backend describes at once */

enum source { OWN, SUM, NOTHING, SOURCES };

/* One of a list: a convolution that is updated in one pass, and one step by step. */
struct updated {
    struct ampk_conv_shape shape;
    enum source source;
    struct ampk_conv *fused, *composed;
    struct ampk_param param; /* without arrays */
    size_t first;            /* of all arrays */
    struct amax amax;
};

/* Of all convolutions of a list, one after the other, now and then with a gap. */
struct arrays {
    struct pair w, update, m, v, average;
};

struct list {
    int count;
    struct updated all[MOST_CONVS];
    size_t n;
    struct arrays fused, composed;
    struct pair sums, gradients; /* gradients: of those that are composed */
};

static size_t weight_count(const struct ampk_conv_shape *s)
{
    return (size_t)s->k * (s->c / s->groups) * s->kh * s->kw;
}

/* ---- cases ---- */

static struct ampk_conv_shape random_conv_shape(void)
{
    int groups = RANDOM_OF(1, 1, 1, 2, 3);
    int size = RANDOM_OF(1, 1, 2, 3, 3, 4, 5, 7);
    struct ampk_conv_shape s = {.n = random_int(1, 2),
                                .c = groups * RANDOM_OF(1, 2, 3, 4, 7, 8, 9, 12, 16, 24),
                                .k = groups * RANDOM_OF(1, 2, 3, 5, 8, 11, 16),
                                .kh = size,
                                .kw = size,
                                .stride = 1,
                                .groups = groups,
                                .compute = random_int(AMPK_COMPUTE_FP32, AMPK_COMPUTE_BF16)};
    s.h = random_int(size, size + 2), s.w = random_int(size, size + 2);
    return s;
}

/* Filters of several tiles. */
static struct ampk_conv_shape large_conv_shape(void)
{
    static const struct ampk_conv_shape shapes[] = {
        {1, 450, 3, 3, 3, 3, 3, 1, 0, 1, 0, 0, 0, 0},
        {1, 96, 7, 7, 2, 7, 7, 1, 0, 1, 0, 0, 0, 0},
        {1, 1100, 1, 1, 5, 1, 1, 1, 0, 1, 0, 0, 0, 0},
        {1, 512, 1, 1, 24, 1, 1, 1, 0, 1, 0, 0, 0, 0},
        {1, 24, 5, 7, 9, 5, 7, 1, 0, 1, 0, 0, 0, 0},
        {1, 2051, 2, 1, 2, 1, 1, 1, 0, 1, 0, 0, 0, 0},
    };
    struct ampk_conv_shape s = shapes[test_random() % (sizeof shapes / sizeof *shapes)];
    s.compute = random_int(AMPK_COMPUTE_FP32, AMPK_COMPUTE_BF16);
    return s;
}

static struct ampk_param random_param(const struct ampk_conv_shape *s, enum source source)
{
    return (struct ampk_param){.n = weight_count(s),
                               .unscale = source == NOTHING ? 0 : ldexpf(1, random_int(-16, 0)),
                               .rate = (float)test_uniform(0, .1),
                               .decay = random_bool() ? 0 : (float)test_uniform(0, .1),
                               .clip = (float)RANDOM_OF(0, 0, 1) * .5f};
}

static struct ampk_conv *make_conv(struct rig *r, const struct ampk_conv_shape *s)
{
    char err[200] = "";
    struct ampk_conv *conv = r->backend->conv_create(r->context, s, err, sizeof err);
    if (!conv) TEST_FAIL("conv_create: %s", err);
    REQUIRE(conv);
    return conv;
}

static double square_value(void)
{
    double v = random_value();
    return v * v;
}

static void choose(struct rig *r, struct list *l, int count, struct ampk_conv_shape (*shape)(void))
{
    l->count = count;
    l->n = 0;
    for (int i = 0; i < count; i++) {
        struct updated *u = &l->all[i];
        *u = (struct updated){.shape = shape(), .source = random_int(0, SOURCES - 1)};
        u->shape.forward_only = u->source != OWN && random_bool();
        u->param = random_param(&u->shape, u->source);
        u->first = l->n;
        u->fused = make_conv(r, &u->shape);
        u->composed = make_conv(r, &u->shape);
        u->amax = make_amax(r);
        l->n += weight_count(&u->shape);
        l->n += random_bool() ? (4 - l->n % 4) % 4 : (size_t)random_int(0, 3);
    }
}

/* Twice the same numbers, each at an address of its own. */
static void make_twice(struct rig *r, size_t n, double (*value)(void), struct pair *a,
                       struct pair *b)
{
    struct ampk_tensor host = describe_array(n);
    give_data(r, &host);
    fill(&host, value);
    *a = make_pair(r, host, false);
    *b = make_pair(r, host, false);
}

static float *at(const struct pair *p, const struct updated *u)
{
    return (float *)p->tested.data + u->first;
}

static double zero(void)
{
    return 0;
}

static double infinite(void)
{
    return INFINITY;
}

/* Where the update must take no gradient, the one that is kept would show. */
static void run_backward(struct rig *r, struct updated *u)
{
    const struct ampk_conv_shape *s = &u->shape;
    if (s->forward_only) return;
    struct pair x = input_tensor(r, describe(random_dtype(), AMPK_NHWC, s->n, s->c, s->h, s->w));
    struct pair dy = input_tensor_of(
        r, describe(random_dtype(), AMPK_NHWC, s->n, s->k, s->h - s->kh + 1, s->w - s->kw + 1),
        u->source == NOTHING ? infinite : random_value);
    for (int i = 0; i < 2; i++)
        r->backend->conv_backward(r->context, i ? u->composed : u->fused, &x.tested, &dy.tested,
                                  NULL, false, NULL);
}

static void make_list(struct rig *r, struct list *l, int count,
                      struct ampk_conv_shape (*shape)(void))
{
    choose(r, l, count, shape);
    make_twice(r, l->n, random_value, &l->fused.w, &l->composed.w);
    make_twice(r, l->n, random_value, &l->fused.update, &l->composed.update);
    make_twice(r, l->n, random_value, &l->fused.m, &l->composed.m);
    make_twice(r, l->n, square_value, &l->fused.v, &l->composed.v);
    make_twice(r, l->n, random_value, &l->fused.average, &l->composed.average);
    l->sums = input_array(r, l->n);
    l->gradients = output_tensor_of(r, describe_array(l->n), zero);
    for (int i = 0; i < count; i++) {
        struct updated *u = &l->all[i];
        const struct ampk_new_weights weights[] = {{u->fused, at(&l->fused.w, u), NULL},
                                                   {u->composed, at(&l->composed.w, u), NULL}};
        r->backend->conv_set_weights(r->context, weights, 2);
        run_backward(r, u);
    }
}

static void end_list(struct rig *r, struct list *l)
{
    for (int i = 0; i < l->count; i++) {
        r->backend->conv_destroy(r->context, l->all[i].fused);
        r->backend->conv_destroy(r->context, l->all[i].composed);
    }
}

/* ---- both ways ---- */

static struct ampk_param param_of(const struct arrays *a, const struct updated *u)
{
    struct ampk_param p = u->param;
    p.value = at(&a->w, u);
    p.update = at(&a->update, u);
    p.m = at(&a->m, u);
    p.v = at(&a->v, u);
    p.average = at(&a->average, u);
    return p;
}

static void update_at_once(struct rig *r, const struct list *l, const struct ampk_rule *rule)
{
    static struct ampk_weight_update updates[MOST_CONVS];
    for (int i = 0; i < l->count; i++) {
        const struct updated *u = &l->all[i];
        updates[i] =
            (struct ampk_weight_update){u->fused, param_of(&l->fused, u), tested_amax(&u->amax)};
        if (u->source == SUM) updates[i].param.grad = at(&l->sums, u);
    }
    r->backend->conv_update(r->context, rule, updates, l->count);
}

static void update_step_by_step(struct rig *r, const struct list *l, const struct ampk_rule *rule)
{
    static struct ampk_param params[MOST_CONVS];
    for (int i = 0; i < l->count; i++) {
        const struct updated *u = &l->all[i];
        const struct ampk_weight_gradient own = {u->composed, at(&l->gradients, u), NULL};
        if (u->source == OWN) r->backend->conv_weight_gradients(r->context, &own, 1, 1, false);
        params[i] = param_of(&l->composed, u);
        params[i].grad = at(u->source == SUM ? &l->sums : &l->gradients, u);
    }
    r->backend->update(r->context, rule, params, l->count);
    for (int i = 0; i < l->count; i++) {
        const struct updated *u = &l->all[i];
        r->backend->conv_set_weights(
            r->context, &(struct ampk_new_weights){u->composed, at(&l->composed.w, u), NULL}, 1);
    }
}

/* ---- comparison ---- */

static void check_same(struct rig *r, const char *what, const struct pair *a, const struct pair *b)
{
    const float *x = download(r, a).data, *y = download(r, b).data;
    size_t n = (size_t)a->tested.c, i = 0;
    while (i < n && !memcmp(&x[i], &y[i], sizeof *x))
        i++;
    if (i < n)
        TEST_FAIL("%s %zu of %zu is %.9g, expected %.9g", what, i, n, (double)x[i], (double)y[i]);
    digest_bytes(r, x, n * sizeof *x);
}

static void check_packed(struct rig *r, const struct updated *u)
{
    const struct ampk_conv_shape *s = &u->shape;
    struct pair x = input_tensor(r, describe(AMPK_FP32, AMPK_NHWC, s->n, s->c, s->h, s->w));
    struct ampk_tensor shape =
        describe(AMPK_FP32, AMPK_NHWC, s->n, s->k, s->h - s->kh + 1, s->w - s->kw + 1);
    struct pair a = output_tensor(r, shape, false), b = output_tensor(r, shape, false);
    r->backend->conv_forward(r->context, u->fused, &x.tested, &a.tested, NULL, NULL);
    r->backend->conv_forward(r->context, u->composed, &x.tested, &b.tested, NULL, NULL);
    if (memcmp(download(r, &a).data, download(r, &b).data, span_of(&shape) * sizeof(float)))
        TEST_FAIL("packed weights differ: c %d, k %d, window %dx%d, groups %d, compute %d, "
                  "source %d",
                  s->c, s->k, s->kh, s->kw, s->groups, s->compute, u->source);
}

static void check_list(struct rig *r, struct list *l)
{
    const float *w = download(r, &l->composed.w).data;
    check_same(r, "weight", &l->fused.w, &l->composed.w);
    check_same(r, "momentum", &l->fused.update, &l->composed.update);
    check_same(r, "m", &l->fused.m, &l->composed.m);
    check_same(r, "v", &l->fused.v, &l->composed.v);
    check_same(r, "average", &l->fused.average, &l->composed.average);
    for (int i = 0; i < l->count; i++) {
        struct updated *u = &l->all[i];
        for (size_t k = 0; k < weight_count(&u->shape); k++)
            ampk_ref_raise(&u->amax.exact, w[u->first + k]);
        check_amax(r, "amax of new weights", &u->amax, 0);
    }
}

/* Two updates; of the same gradients, as their convolutions keep them. */
static void compare(struct rig *r, int count, struct ampk_conv_shape (*shape)(void))
{
    static struct list l;
    struct ampk_rule rule = {.optimizer = random_int(AMPK_SGD, AMPK_ADAMW),
                             .momentum = (float)test_uniform(0, 1),
                             .b1 = .9f,
                             .b2 = .999f,
                             .eps = 1e-7f,
                             .t = RANDOM_OF(1, 2, 10, 1000),
                             .limit = RANDOM_OF(0, 0, 1) * .01f,
                             .average_rest = (float)test_uniform(0, 1)};
    snprintf(r->note, sizeof r->note, "%d convolutions, optimizer %d", count, rule.optimizer);
    make_list(r, &l, count, shape);
    for (int step = 0; step < 2; step++, rule.t++) {
        update_at_once(r, &l, &rule);
        update_step_by_step(r, &l, &rule);
        check_list(r, &l);
    }
    for (int i = 0; i < count; i++)
        check_packed(r, &l.all[i]);
    end_list(r, &l);
}

static void usual_case(struct rig *r)
{
    compare(r, random_int(1, 5), random_conv_shape);
}

static void large_case(struct rig *r)
{
    compare(r, 1, large_conv_shape);
}

AMP_TEST(updates_at_once_are_those_step_by_step)
{
    run_cases(usual_case, 12);
    run_cases(large_case, 4);
}

static struct ampk_conv_shape small_conv_shape(void)
{
    struct ampk_conv_shape s = random_conv_shape();
    while (weight_count(&s) > 200)
        s = random_conv_shape();
    return s;
}

static void long_list_case(struct rig *r)
{
    compare(r, MOST_CONVS, small_conv_shape);
}

AMP_TEST(updates_of_a_long_list)
{
    run_cases(long_list_case, 1);
}

#ifdef CUDA_EMULATED
AMP_TEST(updates_where_libraries_write_16_bits)
{
    tensor_core_host_refuse(true, true);
    run_cases(usual_case, 12);
    run_cases(large_case, 4);
    tensor_core_host_refuse(false, false);
}
#endif

/* ---- squares ---- */

enum ways { WATCHED, STORED, READ, WAYS }; /* READ: the sums, which stay as they are */

/* More gradients than conv_operands.c describes at once; of so many convolutions, in turn. */
enum { MOST_SQUARED = 260, DIFFERENT = 12 };

struct squared {
    struct ampk_conv_shape shape;
    struct ampk_conv *conv;
    struct pair gradient; /* as it is kept */
    struct pair to;       /* where it is stored, or the sum */
    struct amax amax;
};

static struct squared make_squared(struct rig *r, struct ampk_conv_shape shape)
{
    size_t n = weight_count(&shape);
    struct updated u = {.shape = shape, .source = OWN};
    struct squared s = {.shape = shape, .conv = make_conv(r, &shape)};
    u.fused = u.composed = s.conv;
    run_backward(r, &u);
    s.gradient = output_array(r, n, false);
    const struct ampk_weight_gradient kept = {s.conv, s.gradient.tested.data, NULL};
    r->backend->conv_weight_gradients(r->context, &kept, 1, 1, false);
    return s;
}

static struct squared with_results(struct rig *r, enum ways way, struct squared s)
{
    size_t n = weight_count(&s.shape);
    s.to = way == READ ? input_array(r, n) : output_array(r, n, false);
    s.amax = make_amax(r);
    return s;
}

/* Of `sum` with factor * g, both on the host; sum NULL: of g. */
static double square_of(const float *sum, const float *g, size_t n, double factor)
{
    double square = 0;
    for (size_t k = 0; k < n; k++) {
        double v = sum ? (double)sum[k] + factor * (double)g[k] : factor * (double)g[k];
        square += v * v;
    }
    return square;
}

/* The gradient was stored, or nothing was; and watched. */
static void check_taken(struct rig *r, enum ways way, struct squared *s)
{
    const float *g = download(r, &s->gradient).data;
    size_t n = weight_count(&s->shape);
    for (size_t k = 0; k < n; k++)
        ampk_ref_raise(&s->amax.exact, g[k]);
    check_amax(r, "amax of squared gradients", &s->amax, 0);
    if (way == STORED) check_same(r, "stored gradient", &s->to, &s->gradient);
}

static void square_so(struct rig *r, enum ways way, bool accumulate, int count, size_t n_others,
                      struct ampk_conv_shape (*shape)(void))
{
    static struct squared all[MOST_SQUARED];
    static struct ampk_weight_gradient list[MOST_SQUARED], sums[MOST_SQUARED];
    double factor = way == READ ? ldexp(1, random_int(-8, 0)) : 1;
    struct pair others = input_operand(r, describe_array(n_others + 4));
    struct pair others_sum = input_operand(r, describe_array(n_others + 4));
    struct pair result = output_array(r, 1, false);
    bool adds = way == READ && accumulate;
    snprintf(r->note, sizeof r->note, "%d convolutions and %zu others, way %d, accumulate %d",
             count, n_others, way, accumulate);
    double exact = square_of(adds ? download(r, &others_sum).data : NULL, download(r, &others).data,
                             n_others, factor);
    for (int i = 0; i < count; i++) {
        struct squared *s = &all[i];
        *s = with_results(r, way, i < DIFFERENT ? make_squared(r, shape()) : all[i % DIFFERENT]);
        list[i] = (struct ampk_weight_gradient){s->conv, way == STORED ? s->to.tested.data : NULL,
                                                tested_amax(&s->amax)};
        sums[i] = (struct ampk_weight_gradient){s->conv, s->to.tested.data, NULL};
        exact += square_of(adds ? download(r, &s->to).data : NULL, download(r, &s->gradient).data,
                           weight_count(&s->shape), factor);
    }
    r->backend->conv_gradient_squares(
        r->context, list, count,
        &(struct ampk_gradient_squares){.others = others.tested.data,
                                        .n = n_others,
                                        .sums = way == READ ? sums : NULL,
                                        .others_sum = way == READ ? others_sum.tested.data : NULL,
                                        .factor = (float)factor,
                                        .accumulate = accumulate,
                                        .square = result.tested.data});
    ampk_ref_store(&result.exact, &exact, false, NULL);
    check_output(r, "square", &result, (struct tolerance){200, &result.exact, 0, 0});
    for (int i = 0; i < count; i++) {
        check_taken(r, way, &all[i]);
        if (i + DIFFERENT >= count) /* each once */
            r->backend->conv_destroy(r->context, all[i].conv);
    }
}

static void square(struct rig *r, int count, size_t n_others, struct ampk_conv_shape (*shape)(void))
{
    square_so(r, (enum ways)random_int(0, WAYS - 1), random_bool(), count, n_others, shape);
}

static void few_squares_case(struct rig *r)
{
    square(r, random_int(0, 5), (size_t)RANDOM_OF(0, 4, 12, 2048, 9000), random_conv_shape);
}

static void large_squares_case(struct rig *r)
{
    square(r, 1, 8, large_conv_shape);
}

/* More parts than a block has threads, in the sum of them. */
static void many_others_case(struct rig *r)
{
    square(r, 1, (size_t)2048 * 2100, small_conv_shape);
}

static void many_squares_case(struct rig *r)
{
    square(r, MOST_SQUARED, 100, small_conv_shape);
}

static void many_sums_case(struct rig *r)
{
    square_so(r, READ, true, MOST_SQUARED, 100, small_conv_shape);
}

AMP_TEST(gradients_that_are_watched_are_squared)
{
    run_cases(few_squares_case, 24);
    run_cases(large_squares_case, 4);
    run_cases(many_others_case, 1);
    run_cases(many_squares_case, 1);
    run_cases(many_sums_case, 1);
}

#ifdef CUDA_EMULATED
AMP_TEST(squares_where_libraries_write_16_bits)
{
    tensor_core_host_refuse(true, true);
    run_cases(few_squares_case, 12);
    tensor_core_host_refuse(false, false);
}
#endif

AMP_TEST_MAIN
