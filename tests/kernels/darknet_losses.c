/* The reference's losses are what stock Darknet's layers leave in l.output, l.delta, l.cost and the
 * lines that they print. Darknet's CPU code is FP32 built with -ffast-math: results agree to
 * rounding, and cases in which rounding decides are drawn again. */
#include "kernels/reference/operations.h"
#include "heads.h"

#include "darknet.h"

#include "cost_layer.h"
#include "logistic_layer.h"
#include "region_layer.h"
#include "softmax_layer.h"
#include "yolo_layer.h"

#include "tests/rig/files.h"

/* What the layer's forward printed is appended to text. */
static void forward_printed(layer l, network net, char *text, size_t size)
{
    struct capture printed = capture_begin(1);
    l.forward(l, net);
    capture_end(printed, text, size);
}

static const struct ampk_backend *const reference = &ampk_reference;

static void check_arrays(const char *what, const float *tested, const float *expected, size_t n,
                         double tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs(tested[i] - expected[i]) <= tolerance * (1 + fabs(expected[i]))))
            TEST_FAIL("%s %zu: %.9g, Darknet %.9g", what, i, tested[i], expected[i]);
}

/* Numbers of a line agree with %f of a/b, b may be 0. */
static void check_share(const char *what, double printed, double a, double b)
{
    if (b == 0)
        CHECK(isnan(printed));
    else if (!(fabs(printed - a / b) <= 1e-5 + 1e-4 * fabs(a / b)))
        TEST_FAIL("%s: Darknet printed %f, the sums give %f", what, printed, a / b);
}

static void check_cost(double cost, double expected)
{
    CHECK_NEAR(cost, expected, 1e-3 * fabs(expected) + 1e-6);
}

/* ---- yolo ---- */

static layer make_stock_yolo(struct head_case *c)
{
    const struct ampk_yolo_head *o = &c->yolo;
    int *mask = malloc((size_t)c->boxes * sizeof *mask);
    memcpy(mask, c->mask, (size_t)c->boxes * sizeof *mask);
    layer l = make_yolo_layer(c->n, c->w, c->h, c->boxes, o->anchors, mask, c->classes);
    memcpy(l.biases, c->anchor_sizes, 2 * (size_t)o->anchors * sizeof(float));
    l.ignore_thresh = o->ignore_thresh;
    l.truth_thresh = o->truth_thresh;
    l.max_boxes = o->truths_used < o->truths ? o->truths_used : o->truths;
    l.truths = 5 * o->truths;
    if (o->map) l.map = c->map;
    return l;
}

static void check_yolo_line(const char *line, const struct ampk_loss_sums *s, int cells)
{
    double v[6];
    int index, count;
    CHECK_INT(sscanf(line,
                     "Region %d Avg IOU: %lf, Class: %lf, Obj: %lf, No Obj: %lf, .5R: %lf, .75R: "
                     "%lf,  count: %d\n",
                     &index, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &count),
              8);
    CHECK_INT(count, (int)s->count);
    check_share("IOU", v[0], s->iou, s->count);
    check_share("Class", v[1], s->category, s->category_count);
    check_share("Obj", v[2], s->object, s->count);
    check_share("No Obj", v[3], s->any_object, cells);
    check_share(".5R", v[4], s->recall, s->count);
    check_share(".75R", v[5], s->recall75, s->count);
}

static int check_yolo(struct head_case *c)
{
    struct ampk_tensor x = head_tensor(c, c->x), out = x;
    float *delta = malloc(head_count(c) * sizeof *delta);
    struct ampk_loss_sums sums;
    out.data = malloc(head_count(c) * sizeof(float));
    ampk_ref_closest_decision = INFINITY;
    reference->yolo_forward(NULL, &c->yolo, &x, &out, NULL);
    reference->yolo_loss(NULL, &c->yolo, &out, c->truth, delta, &sums, NULL);
    int clear = ampk_ref_closest_decision > 1e-5;
    if (clear) {
        char line[1000] = "";
        layer l = make_stock_yolo(c);
        network net = {.input = c->x, .truth = c->truth, .train = 1, .index = 82};
        net.w = c->yolo.net_w, net.h = c->yolo.net_h;
        forward_printed(l, net, line, sizeof line);
        check_arrays("output", out.data, l.output, head_count(c), 1e-6);
        check_arrays("delta", delta, l.delta, head_count(c), 2e-5);
        check_cost(sums.cost, *l.cost);
        check_yolo_line(line, &sums, c->n * c->boxes * c->h * c->w);
        free(l.mask); /* which Darknet leaves */
        l.map = NULL;
        free_layer(l);
    }
    free(out.data);
    free(delta);
    return clear;
}

AMP_TEST(yolo)
{
    int checked = 0;
    for (int round = 0; round < 300 && !test_failures; round++) {
        struct head_case c = {0};
        random_yolo(&c);
        checked += check_yolo(&c);
        head_free(&c);
    }
    CHECK(checked > 150);
}

/* ---- region ---- */

/* Not freed: the arrays are the case's. */
static tree *stock_tree(struct head_case *c)
{
    static tree t;
    t = (tree){.n = c->classes,
               .parent = c->parent,
               .group = c->group,
               .groups = c->region.tree.groups,
               .group_size = c->size,
               .group_offset = c->offset};
    return &t;
}

static layer make_stock_region(struct head_case *c)
{
    const struct ampk_region_head *o = &c->region;
    layer l = make_region_layer(c->n, c->w, c->h, c->boxes, c->classes, c->coords);
    memcpy(l.biases, c->anchor_sizes, 2 * (size_t)c->boxes * sizeof(float));
    l.softmax = o->softmax, l.background = o->background;
    l.bias_match = o->bias_match, l.rescore = o->rescore;
    l.thresh = o->thresh, l.coord_scale = o->coord_scale, l.object_scale = o->object_scale;
    l.noobject_scale = o->noobject_scale, l.class_scale = o->class_scale;
    l.mask_scale = (float)o->mask_scale;
    l.temperature = 1;
    if (o->map) l.map = c->map;
    if (o->tree.classes) l.softmax_tree = stock_tree(c);
    return l;
}

static void check_region_line(const char *line, const struct ampk_loss_sums *s, int cells)
{
    double v[5];
    int count;
    CHECK_INT(sscanf(line,
                     "Region Avg IOU: %lf, Class: %lf, Obj: %lf, No Obj: %lf, Avg Recall: %lf,  "
                     "count: %d\n",
                     &v[0], &v[1], &v[2], &v[3], &v[4], &count),
              6);
    CHECK_INT(count, (int)s->count);
    check_share("IOU", v[0], s->iou, s->count);
    check_share("Class", v[1], s->category, s->category_count);
    check_share("Obj", v[2], s->object, s->count);
    check_share("No Obj", v[3], s->any_object, cells);
    check_share("Avg Recall", v[4], s->recall, s->count);
}

/* Darknet's CPU code leaves masks as they come, its GPU code makes them logistic first. */
static float *input_of_stock(struct head_case *c, const float *out)
{
    size_t area = (size_t)c->h * c->w, per_box = (size_t)(c->coords + 1 + c->classes) * area;
    float *x = malloc(head_count(c) * sizeof *x);
    for (size_t i = 0; i < head_count(c); i++) {
        int entry = (int)(i % per_box / area);
        x[i] = entry >= 4 && entry < c->coords ? out[i] : c->x[i];
    }
    return x;
}

/* Through the logistics, as backward_region_layer_gpu does. */
static void stock_backward(struct head_case *c, layer l)
{
    size_t area = (size_t)c->h * c->w, per_box = (size_t)(c->coords + 1 + c->classes) * area;
    for (size_t i = 0; i < head_count(c); i++) {
        int entry = (int)(i % per_box / area);
        if (entry == 2 || entry == 3 || entry > c->coords) continue;
        if (entry == c->coords && l.background) continue;
        l.delta[i] *= (1 - l.output[i]) * l.output[i];
    }
}

static void compare_region(struct head_case *c, const float *out, const float *delta,
                           const struct ampk_loss_sums *sums)
{
    char line[1000] = "";
    size_t seen = c->region.warm_up ? 12799 : 12800;
    layer l = make_stock_region(c);
    network net = {.input = input_of_stock(c, out), .truth = c->truth, .train = 1, .seen = &seen};
    forward_printed(l, net, line, sizeof line);
    check_arrays("output", out, l.output, head_count(c), 1e-6);
    stock_backward(c, l);
    check_arrays("delta", delta, l.delta, head_count(c), 5e-5);
    check_cost(sums->cost, *l.cost);
    check_region_line(line, sums, c->n * c->boxes * c->h * c->w);
    free(net.input);
    l.map = NULL, l.softmax_tree = NULL;
    free_layer(l);
}

static int check_region(struct head_case *c)
{
    struct ampk_tensor x = head_tensor(c, c->x), out = x;
    float *delta = malloc(head_count(c) * sizeof *delta);
    struct ampk_loss_sums sums;
    out.data = malloc(head_count(c) * sizeof(float));
    ampk_ref_closest_decision = INFINITY;
    reference->region_forward(NULL, &c->region, &x, &out, NULL);
    reference->region_loss(NULL, &c->region, &out, c->truth, delta, &sums, NULL);
    int clear = ampk_ref_closest_decision > 1e-5;
    if (clear) compare_region(c, out.data, delta, &sums);
    free(out.data);
    free(delta);
    return clear;
}

static void check_regions(int tree)
{
    int checked = 0;
    for (int round = 0; round < 300 && !test_failures; round++) {
        struct head_case c = {0};
        do {
            head_free(&c);
            random_region(&c, tree);
        } while (tree &&
                 c.boxes * c.h * c.w > 1); /* the CPU's softmax is right for one cell only */
        checked += check_region(&c);
        head_free(&c);
    }
    CHECK(checked > 150);
}

AMP_TEST(region)
{
    check_regions(0);
}

AMP_TEST(region_with_a_tree)
{
    check_regions(1);
}

/* ---- softmax, logistic, cost ---- */

struct flat_case {
    int n, inputs;
    float *x, *truth, *out, *delta;
};

static struct flat_case random_flat(int inputs)
{
    struct flat_case c = {.n = head_int(1, 3), .inputs = inputs};
    size_t count = (size_t)c.n * inputs;
    float **arrays[] = {&c.x, &c.truth, &c.out, &c.delta};
    for (int k = 0; k < 4; k++)
        *arrays[k] = calloc(count, sizeof(float));
    for (size_t i = 0; i < count; i++) {
        c.x[i] = (float)test_uniform(-3, 3);
        c.truth[i] = head_chance(2) ? 0 : (float)test_uniform(0, 1);
    }
    return c;
}

static void free_flat(struct flat_case *c)
{
    free(c->x), free(c->truth), free(c->out), free(c->delta);
}

static struct ampk_tensor flat_tensor(const struct flat_case *c, float *data)
{
    return (struct ampk_tensor){data, AMPK_FP32, AMPK_NCHW, c->n, c->inputs, 1, 1, c->inputs, 0};
}

static void compare_flat(const struct flat_case *c, layer l, const struct ampk_loss_sums *sums)
{
    char line[100] = "";
    size_t count = (size_t)c->n * c->inputs;
    network net = {.input = c->x, .truth = c->truth, .train = 1};
    forward_printed(l, net, line, sizeof line);
    check_arrays("output", c->out, l.output, count, 1e-5);
    check_arrays("delta", c->delta, l.delta, count, 1e-5);
    check_cost(sums->cost, *l.cost);
    free_layer(l);
}

AMP_TEST(softmax)
{
    for (int round = 0; round < 50; round++) {
        int groups = head_int(1, 3);
        struct flat_case c = random_flat(groups * head_int(1, 50));
        struct ampk_softmax o = {.groups = groups, .temperature = (float)test_uniform(.5, 2)};
        struct ampk_loss_sums sums;
        struct ampk_tensor x = flat_tensor(&c, c.x), out = flat_tensor(&c, c.out);
        reference->softmax_forward(NULL, &o, &x, &out, NULL);
        reference->softmax_loss(NULL, &out, c.truth, false, c.delta, &sums, NULL);
        layer l = make_softmax_layer(c.n, c.inputs, groups);
        l.temperature = o.temperature;
        compare_flat(&c, l, &sums);
        free_flat(&c);
    }
}

AMP_TEST(softmax_over_a_tree)
{
    for (int round = 0; round < 50; round++) {
        struct head_case tree = {.classes = head_int(1, MOST_CLASSES)};
        struct flat_case c = random_flat(tree.classes);
        struct ampk_softmax o = {.groups = 1, .temperature = (float)test_uniform(.5, 2)};
        random_tree(&tree, &tree.region.tree);
        o.tree = tree.region.tree;
        struct ampk_loss_sums sums;
        struct ampk_tensor x = flat_tensor(&c, c.x), out = flat_tensor(&c, c.out);
        reference->softmax_forward(NULL, &o, &x, &out, NULL);
        reference->softmax_loss(NULL, &out, c.truth, true, c.delta, &sums, NULL);
        layer l = make_softmax_layer(c.n, c.inputs, 1);
        l.temperature = o.temperature;
        l.softmax_tree = stock_tree(&tree);
        char line[100] = "";
        network net = {.input = c.x, .truth = c.truth, .train = 1};
        forward_printed(l, net, line, sizeof line);
        check_arrays("output", c.out, l.output, (size_t)c.n * c.inputs, 1e-5);
        check_arrays("delta", c.delta, l.delta, (size_t)c.n * c.inputs, 1e-5);
        check_cost(sums.cost, *l.cost);
        l.softmax_tree = NULL;
        free_layer(l);
        free_flat(&c);
    }
}

AMP_TEST(logistic)
{
    for (int round = 0; round < 50; round++) {
        struct flat_case c = random_flat(head_int(1, 100));
        struct ampk_loss_sums sums;
        struct ampk_tensor x = flat_tensor(&c, c.x), out = flat_tensor(&c, c.out);
        reference->activation_forward(NULL, &x, AMPK_LOGISTIC, &out, NULL);
        reference->logistic_loss(NULL, &out, c.truth, c.delta, &sums, NULL);
        compare_flat(&c, make_logistic_layer(c.n, c.inputs), &sums);
        free_flat(&c);
    }
}

/* What the CPU code has right. */
AMP_TEST(cost)
{
    static const int types[] = {AMPK_COST_SSE, AMPK_COST_MASKED, AMPK_COST_L1, AMPK_COST_SEG,
                                AMPK_COST_SMOOTH};
    CHECK_INT(AMPK_COST_WGAN, WGAN);
    CHECK_INT(AMPK_COST_SEG, SEG);
    for (int round = 0; round < 100; round++) {
        struct flat_case c = random_flat(head_int(1, 100));
        struct ampk_cost o = {.type = types[round % 5], .scale = 1, .noobject_scale = 1};
        struct ampk_loss_sums sums;
        for (int i = 0; i < c.n * c.inputs; i++) {
            if (o.type == AMPK_COST_MASKED && head_chance(3)) c.truth[i] = AMPK_TRUTH_UNKNOWN;
            if (o.type == AMPK_COST_SMOOTH) c.truth[i] = c.x[i] + (float)test_uniform(-.9, .9);
        }
        struct ampk_tensor x = flat_tensor(&c, c.x), out = flat_tensor(&c, c.out);
        reference->cost_loss(NULL, &o, &x, c.truth, &out, c.delta, &sums, NULL, NULL);
        compare_flat(&c, make_cost_layer(c.n, c.inputs, (COST_TYPE)o.type, 1), &sums);
        free_flat(&c);
    }
}

AMP_TEST_MAIN
