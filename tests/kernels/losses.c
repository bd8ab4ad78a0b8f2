/* Losses: random heads and truths; softmax, logistic and cost layers. Cases in which the rounding
 * of an overlap decides are drawn again. A backend without an operation leaves it to Darknet's
 * code, and its test does nothing. */
#include "kernels/reference/operations.h"
#include "head_sides.h"

/* ---- yolo ---- */

/* The case's forward and loss on both sides. False where a decision was too close. */
static bool run_yolo(struct rig *r, struct head_case *c)
{
    size_t count = head_count(c), truths = (size_t)c->n * c->room * (c->coords + 1);
    float *activated_x = own(r, count * sizeof(float)), *delta = own(r, count * sizeof(float));
    struct ampk_tensor shape = head_tensor(c, c->x), out = head_tensor(c, activated_x);
    struct ampk_loss_sums exact;
    ampk_ref_closest_decision = INFINITY;
    ampk_reference.yolo_forward(NULL, &c->yolo, &shape, &out, NULL);
    ampk_reference.yolo_loss(NULL, &c->yolo, &out, c->truth, delta, &exact, NULL);
    if (ampk_ref_closest_decision < 1e-4) return false;

    struct ampk_yolo_head o = yolo_on_backend(r, &c->yolo);
    struct pair x = given_tensor(r, shape), y = output_tensor(r, shape, false);
    struct amax amax = make_amax(r), delta_amax = make_amax(r);
    r->backend->yolo_forward(r->context, &o, &x.tested, &y.tested, tested_amax(&amax));
    ampk_reference.yolo_forward(NULL, &c->yolo, &x.exact, &y.exact, &amax.exact);
    double slack = check_output(r, "output", &y, activated);
    check_amax(r, "output", &amax, slack);

    struct pair p = given_tensor(r, out), d = output_array(r, count, false);
    struct pair truth = given_array(r, c->truth, truths);
    struct sums sums = make_sums(r);
    r->backend->yolo_loss(r->context, &o, &p.tested, truth.tested.data, d.tested.data,
                          sums.values.tested.data, tested_amax(&delta_amax));
    ampk_reference.yolo_loss(NULL, &c->yolo, &p.exact, c->truth, d.exact.data,
                             sums.values.exact.data, &delta_amax.exact);
    slack = check_output(r, "delta", &d, (struct tolerance){.relative = 1e-5, .absolute = 1e-5});
    check_amax(r, "delta", &delta_amax, slack);
    check_sums(r, &sums, c->n * c->boxes * c->h * c->w);
    snprintf(r->note, sizeof r->note, "yolo %dx%dx%d, %d boxes of %d classes, %d truths", c->n,
             c->h, c->w, c->boxes, c->classes, c->room);
    return true;
}

/* Heads skip a truth whose centre is outside of the grid, and a class that does not exist. Darknet
 * has no such rule, so heads.h draws none. */
static void spoil_some_truths(struct head_case *c)
{
    static const float outside[] = {1, 1.25, -2};
    const float placeless = 1000; /* and above: of a tree */
    size_t numbers = (size_t)c->coords + 1;
    for (size_t t = 0; t < (size_t)c->n * c->room; t++) {
        float *truth = c->truth + t * numbers;
        if (truth[0] == 0 || truth[0] > placeless) continue;
        if (head_chance(4)) truth[head_int(0, 1)] = outside[head_int(0, 2)];
        if (head_chance(8)) truth[c->coords] = MOST_CLASSES;
    }
}

static void yolo_case(struct rig *r)
{
    struct head_case c;
    bool done;
    do {
        random_yolo(&c);
        spoil_some_truths(&c);
        done = run_yolo(r, &c);
        head_free(&c);
    } while (!done && !test_failures);
}

AMP_TEST(yolo)
{
    run_cases(yolo_case, 200);
}

/* ---- region ---- */

static struct ampk_tree tree_on_backend(struct rig *r, const struct ampk_tree *t)
{
    struct ampk_tree copy = *t;
    if (t->classes == 0) return copy;
    copy.parent = on_backend(r, t->parent, t->classes * sizeof(int));
    copy.group = on_backend(r, t->group, t->classes * sizeof(int));
    copy.group_offset = on_backend(r, t->group_offset, t->groups * sizeof(int));
    copy.group_size = on_backend(r, t->group_size, t->groups * sizeof(int));
    return copy;
}

static struct ampk_region_head region_on_backend(struct rig *r, const struct ampk_region_head *o)
{
    struct ampk_region_head copy = *o;
    copy.anchor_sizes = on_backend(r, o->anchor_sizes, 2 * o->boxes * sizeof(float));
    copy.map = on_backend(r, o->map, o->map_size * sizeof(int));
    copy.tree = tree_on_backend(r, &o->tree);
    return copy;
}

static bool run_region(struct rig *r, struct head_case *c)
{
    size_t count = head_count(c), truths = (size_t)c->n * c->room * (c->coords + 1);
    float *activated_x = own(r, count * sizeof(float)), *delta = own(r, count * sizeof(float));
    struct ampk_tensor shape = head_tensor(c, c->x), out = head_tensor(c, activated_x);
    struct ampk_loss_sums exact;
    ampk_ref_closest_decision = INFINITY;
    ampk_reference.region_forward(NULL, &c->region, &shape, &out, NULL);
    ampk_reference.region_loss(NULL, &c->region, &out, c->truth, delta, &exact, NULL);
    if (ampk_ref_closest_decision < 1e-4) return false;

    struct ampk_region_head o = region_on_backend(r, &c->region);
    struct pair x = given_tensor(r, shape), y = output_tensor(r, shape, false);
    struct amax amax = make_amax(r), delta_amax = make_amax(r);
    r->backend->region_forward(r->context, &o, &x.tested, &y.tested, tested_amax(&amax));
    ampk_reference.region_forward(NULL, &c->region, &x.exact, &y.exact, &amax.exact);
    double slack = check_output(r, "output", &y, activated);
    check_amax(r, "output", &amax, slack);

    struct pair p = given_tensor(r, out), d = output_array(r, count, false);
    struct pair truth = given_array(r, c->truth, truths);
    struct sums sums = make_sums(r);
    r->backend->region_loss(r->context, &o, &p.tested, truth.tested.data, d.tested.data,
                            sums.values.tested.data, tested_amax(&delta_amax));
    ampk_reference.region_loss(NULL, &c->region, &p.exact, c->truth, d.exact.data,
                               sums.values.exact.data, &delta_amax.exact);
    slack = check_output(r, "delta", &d, (struct tolerance){.relative = 1e-5, .absolute = 2e-5});
    check_amax(r, "delta", &delta_amax, slack);
    check_sums(r, &sums, c->n * c->boxes * c->h * c->w);
    snprintf(r->note, sizeof r->note, "region %dx%dx%d, %d boxes, %d coords, %d classes, %d groups",
             c->n, c->h, c->w, c->boxes, c->coords, c->classes, c->region.tree.groups);
    return true;
}

static void region_case(struct rig *r)
{
    struct head_case c;
    bool done;
    do {
        random_region(&c, head_chance(2));
        spoil_some_truths(&c);
        done = run_region(r, &c);
        head_free(&c);
    } while (!done && !test_failures);
}

AMP_TEST(region)
{
    if (CONFORMANCE_BACKEND.region_loss) run_cases(region_case, 200);
}

/* Two cells in a row that show a class without a place alike: the first one learns it. */
static void equally_likely_case(struct rig *r)
{
    static const int parent[] = {-1, -1}, group[] = {0, 0}, offset[] = {0}, size[] = {2};
    static const float anchor[] = {1, 1};
    float truth[] = {999999, 999999, .1f, .1f, 1}, values[14];
    const struct ampk_region_head o = {.boxes = 1,
                                       .classes = 2,
                                       .coords = 4,
                                       .anchor_sizes = anchor,
                                       .tree = {2, 1, parent, group, offset, size},
                                       .softmax = true,
                                       .thresh = .5f,
                                       .coord_scale = 1,
                                       .object_scale = 1,
                                       .noobject_scale = 1,
                                       .class_scale = 1,
                                       .mask_scale = 1,
                                       .truths = 1};
    struct ampk_region_head tested = region_on_backend(r, &o);
    struct ampk_tensor out = describe(AMPK_FP32, AMPK_NCHW, 1, 7, 1, 2);
    for (int i = 0; i < 14; i++)
        values[i] = .5f;
    out.data = values;
    struct pair p = given_tensor(r, out), t = given_array(r, truth, 5);
    struct pair d = output_array(r, 14, false);
    struct sums sums = make_sums(r);
    r->backend->region_loss(r->context, &tested, &p.tested, t.tested.data, d.tested.data,
                            sums.values.tested.data, NULL);
    ampk_reference.region_loss(NULL, &o, &p.exact, truth, d.exact.data, sums.values.exact.data,
                               NULL);
    check_output(r, "delta", &d, (struct tolerance){.relative = 1e-5, .absolute = 1e-5});
    check_sums(r, &sums, 2);
}

AMP_TEST(of_equally_likely_boxes_the_first_learns)
{
    if (CONFORMANCE_BACKEND.region_loss) run_cases(equally_likely_case, 1);
}

/* ---- more truths than Darknet has room for ---- */

/* The case's truths, and the first of every image again in what room there is left. */
static void fill_with_truths(struct head_case *c)
{
    size_t numbers = (size_t)c->coords + 1, old = c->room * numbers;
    float *more = calloc((size_t)c->n * AMPK_MOST_TRUTHS * numbers, sizeof *more), *to = more;
    REQUIRE(more);
    for (int n = 0; n < c->n; n++) {
        const float *from = c->truth + n * old;
        bool ended = false;
        for (int t = 0; t < AMPK_MOST_TRUTHS; t++, to += numbers) {
            ended = ended || t >= c->room || from[t * numbers] == 0;
            memcpy(to, from + (ended ? 0 : t * numbers), numbers * sizeof *to);
        }
    }
    free(c->truth);
    c->truth = more;
    c->room = c->yolo.truths = c->yolo.truths_used = c->region.truths = AMPK_MOST_TRUTHS;
}

static void most_truths_case(struct rig *r)
{
    struct head_case c;
    bool done, yolo = !CONFORMANCE_BACKEND.region_loss || random_bool();
    do {
        memset(&c, 0, sizeof c);
        if (yolo)
            random_yolo(&c);
        else
            random_region(&c, head_chance(2));
        fill_with_truths(&c);
        done = yolo ? run_yolo(r, &c) : run_region(r, &c);
        head_free(&c);
    } while (!done && !test_failures);
}

AMP_TEST(most_truths)
{
    run_cases(most_truths_case, 8);
}

/* ---- softmax, logistic, cost ---- */

static double random_truth(void)
{
    return random_bool() ? 0 : random_bool() ? 1 : test_uniform(0, 1);
}

static double random_masked_truth(void)
{
    return test_random() % 4 ? random_truth() : AMPK_TRUTH_UNKNOWN;
}

static double probability(void)
{
    return test_uniform(.001, .999);
}

static void softmax_case(struct rig *r)
{
    struct head_case c = {.classes = random_int(1, MOST_CLASSES)};
    int kind = random_int(0, 2), groups = kind == 0 ? random_int(1, 3) : 1;
    bool image = kind == 1;
    struct ampk_softmax o = {
        .groups = groups, .spatial = image, .temperature = (float)test_uniform(.5, 2)};
    if (kind == 2) random_tree(&c, &o.tree);
    struct ampk_tensor shape =
        describe(AMPK_FP32, AMPK_NCHW, random_int(1, 3),
                 kind == 2 ? c.classes : groups * RANDOM_OF(1, 2, 10, 33, 129, 1000),
                 image ? random_side() : 1, image ? random_side() : 1);
    struct ampk_softmax tested = o;
    tested.tree = tree_on_backend(r, &o.tree);
    struct pair x = input_tensor(r, shape), y = output_tensor(r, shape, false);
    struct amax amax = make_amax(r);
    r->backend->softmax_forward(r->context, &tested, &x.tested, &y.tested, tested_amax(&amax));
    ampk_reference.softmax_forward(NULL, &o, &x.exact, &y.exact, &amax.exact);
    double slack =
        check_output(r, "softmax", &y, (struct tolerance){.relative = 4e-6, .absolute = 1e-12});
    check_amax(r, "softmax", &amax, slack);
    snprintf(r->note, sizeof r->note, "softmax kind %d, %dx%dx%dx%d", kind, shape.n, shape.c,
             shape.h, shape.w);
}

AMP_TEST(softmax)
{
    if (CONFORMANCE_BACKEND.softmax_forward) run_cases(softmax_case, 100);
}

/* As many images as time steps make of a batch: more than a grid of blocks is high. */
static void softmax_of_many_case(struct rig *r)
{
    struct ampk_softmax o = {.groups = 1, .temperature = 1};
    struct ampk_tensor shape = describe(AMPK_FP32, AMPK_NCHW, 65537, 2, 1, 1);
    struct pair x = input_tensor(r, shape), y = output_tensor(r, shape, false);
    r->backend->softmax_forward(r->context, &o, &x.tested, &y.tested, NULL);
    ampk_reference.softmax_forward(NULL, &o, &x.exact, &y.exact, NULL);
    check_output(r, "softmax", &y, (struct tolerance){.relative = 4e-6, .absolute = 1e-12});
}

AMP_TEST(softmax_of_many)
{
    if (!CONFORMANCE_BACKEND.softmax_forward) return;
    struct ampk_context *context = open_context(NULL, 1);
    REQUIRE(context != NULL);
    run_case(softmax_of_many_case, context, test_random());
    CONFORMANCE_BACKEND.context_destroy(context);
}

static void entropy_case(struct rig *r)
{
    bool logistic = random_bool(), masked = !logistic && random_bool();
    struct ampk_tensor shape =
        describe(AMPK_FP32, AMPK_NCHW, random_int(1, 3), RANDOM_OF(1, 10, 300, 3000), 1, 1);
    size_t n = (size_t)shape.n * shape.c;
    struct pair p = input_tensor_of(r, shape, probability), d = output_array(r, n, false);
    struct pair t = input_tensor_of(r, shape, masked ? random_masked_truth : random_truth);
    struct sums sums = make_sums(r);
    struct amax amax = make_amax(r);
    if (logistic) {
        r->backend->logistic_loss(r->context, &p.tested, t.tested.data, d.tested.data,
                                  sums.values.tested.data, tested_amax(&amax));
        ampk_reference.logistic_loss(NULL, &p.exact, t.exact.data, d.exact.data,
                                     sums.values.exact.data, &amax.exact);
    } else {
        r->backend->softmax_loss(r->context, &p.tested, t.tested.data, masked, d.tested.data,
                                 sums.values.tested.data, tested_amax(&amax));
        ampk_reference.softmax_loss(NULL, &p.exact, t.exact.data, masked, d.exact.data,
                                    sums.values.exact.data, &amax.exact);
    }
    double slack = check_output(r, "delta", &d, (struct tolerance){.absolute = 1e-6});
    check_amax(r, "delta", &amax, slack);
    check_sums(r, &sums, (double)n);
}

AMP_TEST(entropy)
{
    if (CONFORMANCE_BACKEND.softmax_loss) run_cases(entropy_case, 100);
}

static void cost_case(struct rig *r)
{
    struct ampk_cost o = {.type = (enum ampk_cost_type)random_int(AMPK_COST_SSE, AMPK_COST_WGAN),
                          .scale = (float)test_uniform(.5, 2),
                          .noobject_scale = (float)test_uniform(.1, 1),
                          .smooth = test_random() % 4 ? 0 : .1f};
    struct ampk_tensor shape =
        describe(AMPK_FP32, AMPK_NCHW, random_int(1, 3), RANDOM_OF(1, 10, 300, 3000), 1, 1);
    size_t n = (size_t)shape.n * shape.c;
    if (random_bool()) o.threshold = .1f * shape.c;
    bool masked = o.type == AMPK_COST_MASKED;
    struct pair x = input_tensor(r, shape), y = output_tensor(r, shape, false);
    struct pair t = input_tensor_of(r, shape, masked ? random_masked_truth : random_truth);
    struct pair d = output_array(r, n, false);
    struct sums sums = make_sums(r);
    struct amax amax = make_amax(r), delta_amax = make_amax(r);
    r->backend->cost_loss(r->context, &o, &x.tested, t.tested.data, &y.tested, d.tested.data,
                          sums.values.tested.data, tested_amax(&amax), tested_amax(&delta_amax));
    ampk_reference.cost_loss(NULL, &o, &x.exact, t.exact.data, &y.exact, d.exact.data,
                             sums.values.exact.data, &amax.exact, &delta_amax.exact);
    struct tolerance tolerance = {.relative = 1e-5, .absolute = 1e-5};
    double slack = check_output(r, "error", &y, tolerance);
    check_amax(r, "error", &amax, slack);
    slack = check_output(r, "delta", &d, tolerance);
    check_amax(r, "delta", &delta_amax, slack);
    check_sums(r, &sums, 16 * (double)n);
    snprintf(r->note, sizeof r->note, "cost type %d", o.type);
}

AMP_TEST(cost)
{
    if (CONFORMANCE_BACKEND.cost_loss) run_cases(cost_case, 100);
}

static void backward_case(struct rig *r)
{
    size_t n = (size_t)RANDOM_OF(1, 31, 257, 5000);
    bool accumulate = random_bool();
    float scale = ldexpf(1, random_int(-3, 16));
    struct pair d = input_array(r, n), dx = output_array(r, n, accumulate);
    struct ampk_tensor old = magnitude_of_old(r, &dx, accumulate);
    struct amax amax = make_amax(r);
    r->backend->loss_backward(r->context, d.tested.data, n, scale, dx.tested.data, accumulate,
                              tested_amax(&amax));
    ampk_reference.loss_backward(NULL, d.exact.data, n, scale, dx.exact.data, accumulate,
                                 &amax.exact);
    double slack = check_output(r, "dx", &dx, (struct tolerance){.terms = 1, .magnitude = &old});
    check_amax(r, "dx", &amax, slack);
}

AMP_TEST(backward)
{
    run_cases(backward_case, 100);
}

AMP_TEST_MAIN
