/* Yolo heads with rules (struct ampk_yolo_rules): random heads, truths and rules on a backend and
 * on the reference. Cases in which rounding decides are drawn again.
 *
 * The gradient of an overlap divides small differences of edges by small areas, so how much FP32
 * may err depends on the boxes. Each case measures it: the reference runs again with places, sizes
 * and every single edge moved by about what FP32 rounds off edges between 0 and 1, and what that
 * changes is allowed four times. */
#include "head_sides.h"

#include <float.h>

enum { NUDGES = 4 };

struct rules_case {
    struct head_case head;
    struct ampk_yolo_rules rules;
    float multipliers[MOST_CLASSES];
};

/* ---- random rules ---- */

static void random_rules(struct rules_case *c)
{
    for (int i = 0; i < MOST_CLASSES; i++)
        c->multipliers[i] = (float)test_uniform(.3, 4);
    c->rules = (struct ampk_yolo_rules){
        .box_loss = (enum ampk_box_loss)head_int(AMPK_BOX_MSE, AMPK_BOX_CIOU),
        .iou_thresh_kind = (enum ampk_box_loss)head_int(AMPK_BOX_MSE, AMPK_BOX_CIOU),
        .iou_thresh = head_chance(2) ? 1 : (float)test_uniform(.05, .6),
        .iou_normalizer = (float)test_uniform(.05, 2),
        .obj_normalizer = (float)test_uniform(.3, 4),
        .cls_normalizer = (float)test_uniform(.3, 2),
        .max_delta = head_chance(2) ? FLT_MAX : (float)test_uniform(.05, 5),
        .label_smooth_eps = head_chance(2) ? 0 : (float)test_uniform(.01, .3),
        .focal_loss = head_chance(4),
        .objectness_smooth = head_chance(2),
        .class_multipliers = head_chance(3) ? c->multipliers : NULL};
    struct ampk_yolo_head *o = &c->head.yolo;
    o->rules = &c->rules;
    o->new_coords = head_chance(3);
    o->scale_x_y = head_chance(4) ? 0 : (float)test_uniform(1, 2);
}

static size_t entry_at(const struct head_case *c, int image, int box, int entry, int cell)
{
    size_t area = (size_t)c->h * c->w;
    return (((size_t)image * c->boxes + box) * (5 + c->classes) + entry) * area + cell;
}

static float logit(double p)
{
    return (float)log(p / (1 - p));
}

/* A box predicts a truth nearly; boxes at random seldom overlap one by much. */
static void plant(struct head_case *c, int image, int box, const float *truth)
{
    double x = truth[0] * c->w, y = truth[1] * c->h;
    if (!(x > 0 && x < c->w && y > 0 && y < c->h)) return;
    int cell = (int)y * c->w + (int)x, anchor = c->mask[box];
    double w = truth[2] * c->yolo.net_w / c->anchor_sizes[2 * anchor] * test_uniform(.8, 1.2);
    double h = truth[3] * c->yolo.net_h / c->anchor_sizes[2 * anchor + 1] * test_uniform(.8, 1.2);
    c->x[entry_at(c, image, box, 0, cell)] = logit(fmin(fmax(x - (int)x, .01), .99));
    c->x[entry_at(c, image, box, 1, cell)] = logit(fmin(fmax(y - (int)y, .01), .99));
    c->x[entry_at(c, image, box, 2, cell)] = (float)log(w);
    c->x[entry_at(c, image, box, 3, cell)] = (float)log(h);
}

static void plant_some(struct head_case *c)
{
    for (int image = 0; image < c->n; image++)
        for (int t = 0; t < c->room; t++) {
            const float *truth = c->truth + ((size_t)image * c->room + t) * 5;
            if (truth[0] == 0) break;
            if (head_chance(2)) plant(c, image, head_int(0, c->boxes - 1), truth);
        }
}

/* What the convolution before gives with new_coords; a side is exactly 0 now and then. */
static void give_new_coords(struct head_case *c)
{
    size_t area = (size_t)c->h * c->w;
    for (size_t i = 0; i < head_count(c); i++) {
        size_t entry = i / area % (5 + c->classes);
        bool side = entry == 2 || entry == 3;
        c->x[i] = side ? (float)sqrt(exp(c->x[i]) / 4) : (float)(1 / (1 + exp(-c->x[i])));
        if (side && head_chance(40)) c->x[i] = 0;
    }
}

static void spoil(struct head_case *c)
{
    for (size_t t = 0; t < (size_t)c->n * c->room; t++) {
        float *truth = c->truth + 5 * t;
        if (truth[0] == 0) continue;
        if (head_chance(8)) truth[head_int(0, 1)] = head_chance(2) ? 1.25f : -2;
        if (head_chance(8)) truth[4] = (float)(head_chance(2) ? -1 : c->classes);
    }
    if (!head_chance(8)) return;
    int cell = head_int(0, c->h * c->w - 1);
    c->x[entry_at(c, head_int(0, c->n - 1), head_int(0, c->boxes - 1), 4, cell)] = NAN;
}

static void random_case(struct rules_case *c)
{
    random_yolo(&c->head);
    random_rules(c);
    plant_some(&c->head);
    spoil(&c->head);
    if (c->head.yolo.new_coords) give_new_coords(&c->head);
}

/* ---- how much rounding may change ---- */

enum { SUMS = sizeof(struct ampk_loss_sums) / sizeof(float) };

/* The largest change of each delta and sum that was seen. */
struct spread {
    struct ampk_tensor delta;
    float sums[SUMS];
};

static float nudged(float v, double by)
{
    return (float)(v + test_uniform(-1, 1) * by);
}

static double moved_edge(double edge)
{
    return edge + test_uniform(-1, 1) * 0x1p-23;
}

/* Moves places and sides by up to 2^-22 of the image, a few roundings of an edge near 1. */
static void nudge(const struct head_case *c, float *out, float *truth)
{
    size_t area = (size_t)c->h * c->w;
    double by = 0x1p-22;
    for (size_t i = 0; i < head_count(c); i++) {
        size_t entry = i / area % (5 + c->classes), box = i / area / (5 + c->classes) % c->boxes;
        if (entry < 2) out[i] = nudged(out[i], by * (entry == 0 ? c->w : c->h));
        if (entry != 2 && entry != 3) continue;
        double anchor = (double)c->anchor_sizes[2 * c->mask[box] + entry - 2] /
                        (entry == 2 ? c->yolo.net_w : c->yolo.net_h);
        double slope = c->yolo.new_coords ? 8 * out[i] * anchor : exp(out[i]) * anchor;
        if (slope > 0) out[i] = nudged(out[i], by / slope);
    }
    for (size_t t = 0; t < (size_t)c->n * c->room; t++)
        for (int k = 0; k < 4 && truth[5 * t] != 0; k++)
            truth[5 * t + k] = nudged(truth[5 * t + k], by);
}

static void raise_spread(float *most, float a, float b)
{
    float change = fabsf(a - b);
    if (change > *most) *most = change;
}

static struct spread measure(struct rig *r, const struct rules_case *c,
                             const struct ampk_tensor *out, const float *delta,
                             const struct ampk_loss_sums *sums)
{
    const struct head_case *h = &c->head;
    size_t count = head_count(h), truths = (size_t)h->n * h->room * 5;
    float *moved = own(r, count * sizeof(float)), *other = own(r, count * sizeof(float));
    float *truth = own(r, truths * sizeof(float));
    struct ampk_tensor moved_out = *out;
    struct spread s = {.delta = describe_array(count)};
    s.delta.data = own(r, count * sizeof(float));
    moved_out.data = moved;
    for (int round = 0; round < NUDGES; round++) {
        struct ampk_loss_sums other_sums;
        memcpy(moved, out->data, count * sizeof(float));
        memcpy(truth, h->truth, truths * sizeof(float));
        nudge(h, moved, truth);
        ampk_ref_move_edge = moved_edge;
        ampk_reference.yolo_loss(NULL, &h->yolo, &moved_out, truth, other, &other_sums, NULL);
        ampk_ref_move_edge = NULL;
        for (size_t i = 0; i < count; i++)
            raise_spread((float *)s.delta.data + i, other[i], delta[i]);
        for (int k = 0; k < SUMS; k++)
            raise_spread(&s.sums[k], ((float *)&other_sums)[k], ((const float *)sums)[k]);
    }
    return s;
}

/* ---- the comparison ---- */

static struct ampk_yolo_head rules_on_backend(struct rig *r, const struct rules_case *c,
                                              struct ampk_yolo_rules *rules)
{
    struct ampk_yolo_head o = yolo_on_backend(r, &c->head.yolo);
    *rules = c->rules;
    rules->class_multipliers =
        on_backend(r, rules->class_multipliers, c->head.classes * sizeof(float));
    o.rules = rules;
    return o;
}

static double compare_forward(struct rig *r, const struct rules_case *c,
                              const struct ampk_yolo_head *o)
{
    struct ampk_tensor shape = head_tensor(&c->head, c->head.x);
    struct pair x = given_tensor(r, shape), y = output_tensor(r, shape, false);
    struct amax amax = make_amax(r);
    r->backend->yolo_forward(r->context, o, &x.tested, &y.tested, tested_amax(&amax));
    ampk_reference.yolo_forward(NULL, &c->head.yolo, &x.exact, &y.exact, &amax.exact);
    /* Scaling subtracts up to a half. */
    double slack =
        check_output(r, "output", &y, (struct tolerance){.relative = 2e-6, .absolute = 2e-7});
    check_amax(r, "output", &amax, slack);
    return slack;
}

static void compare_loss(struct rig *r, const struct rules_case *c, const struct ampk_yolo_head *o,
                         const struct ampk_tensor *out, const struct spread *spread)
{
    const struct head_case *h = &c->head;
    size_t count = head_count(h);
    struct pair p = given_tensor(r, *out), d = output_array(r, count, false);
    struct pair truth = given_array(r, h->truth, (size_t)h->n * h->room * 5);
    struct amax amax = make_amax(r);
    struct sums sums = make_sums(r);
    r->backend->yolo_loss(r->context, o, &p.tested, truth.tested.data, d.tested.data,
                          sums.values.tested.data, tested_amax(&amax));
    ampk_reference.yolo_loss(NULL, &h->yolo, &p.exact, h->truth, d.exact.data,
                             sums.values.exact.data, &amax.exact);
    struct tolerance of_delta = {4 * 0x1p24, &spread->delta, .relative = 1e-5, .absolute = 1e-5};
    double slack = check_output(r, "delta", &d, of_delta);
    check_amax(r, "delta", &amax, slack);
    struct ampk_tensor sums_spread = describe_array(SUMS);
    sums_spread.data = (void *)spread->sums;
    struct tolerance of_sums = {4 * 0x1p24, &sums_spread, .relative = 3e-5,
                                .absolute = 3e-6 * h->n * h->boxes * h->h * h->w};
    check_output(r, "sums", &sums.values, of_sums);
}

/* False where a decision was too close. */
static bool run_rules(struct rig *r, struct rules_case *c)
{
    struct head_case *h = &c->head;
    size_t count = head_count(h);
    float *activated_x = own(r, count * sizeof(float)), *delta = own(r, count * sizeof(float));
    struct ampk_tensor shape = head_tensor(h, h->x), out = head_tensor(h, activated_x);
    struct ampk_loss_sums exact;
    struct ampk_yolo_rules rules;
    ampk_ref_closest_decision = INFINITY;
    ampk_reference.yolo_forward(NULL, &h->yolo, &shape, &out, NULL);
    ampk_reference.yolo_loss(NULL, &h->yolo, &out, h->truth, delta, &exact, NULL);
    if (ampk_ref_closest_decision < 2e-4) return false;
    struct spread spread = measure(r, c, &out, delta, &exact);
    struct ampk_yolo_head o = rules_on_backend(r, c, &rules);
    compare_forward(r, c, &o);
    compare_loss(r, c, &o, &out, &spread);
    snprintf(r->note, sizeof r->note,
             "%dx%dx%d, %d boxes of %d classes, %d truths, loss %d, thresh %g of %d, smooth %d, "
             "focal %d, eps %g, new %d, truth_thresh %g",
             h->n, h->h, h->w, h->boxes, h->classes, h->room, rules.box_loss,
             (double)rules.iou_thresh, rules.iou_thresh_kind, rules.objectness_smooth,
             rules.focal_loss, (double)rules.label_smooth_eps, o.new_coords,
             (double)o.truth_thresh);
    return true;
}

static int drawn, kept;

static void rules_case(struct rig *r)
{
    struct rules_case c;
    bool done;
    do {
        random_case(&c);
        done = run_rules(r, &c);
        head_free(&c.head);
        drawn++;
    } while (!done && !test_failures);
    kept++;
}

AMP_TEST(yolo_by_rules)
{
    run_cases(rules_case, 200);
    printf("%d of %d cases kept\n", kept, drawn);
    CHECK(4 * kept > drawn);
}

AMP_TEST_MAIN
