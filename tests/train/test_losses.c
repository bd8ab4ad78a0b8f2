/* Losses on the device within a graph: heads of the emulated CUDA backend, all else by the
 * reference, against stock Darknet's own layers on the same input. */
#include "kernels/reference/operations.h"
#include "plugin/core/engine/step.h"
#include "tests/rig/harness.h"
#include "tests/rig/rig.h"

#include "darknet.h"

#include "region_layer.h"
#include "yolo_layer.h"

#include <ctype.h>

#include "tests/rig/files.h"

/* What the layer's forward printed is appended to text. */
static void forward_printed(layer l, network net, char *text, size_t size)
{
    struct capture printed = capture_begin(1);
    l.forward(l, net);
    capture_end(printed, text, size);
}

/* The emulated device's memory is the host's, so the reference can work in it. */
static const struct ampk_backend *backend(void)
{
    static struct ampk_backend b;
    b = ampk_reference;
    b.context_create = ampk_cuda.context_create;
    b.context_destroy = ampk_cuda.context_destroy;
    b.alloc = ampk_cuda.alloc;
    b.free = ampk_cuda.free;
    b.read = ampk_cuda.read;
    b.write = ampk_cuda.write;
    b.fill_zero = ampk_cuda.fill_zero;
    b.yolo_forward = ampk_cuda.yolo_forward;
    b.yolo_loss = ampk_cuda.yolo_loss;
    b.region_forward = ampk_cuda.region_forward;
    b.region_loss = ampk_cuda.region_loss;
    b.softmax_forward = ampk_cuda.softmax_forward;
    b.softmax_loss = ampk_cuda.softmax_loss;
    b.logistic_loss = ampk_cuda.logistic_loss;
    b.cost_loss = ampk_cuda.cost_loss;
    b.loss_backward = ampk_cuda.loss_backward;
    return &b;
}

static struct rig *make(const char *text)
{
    struct rig *r = rig_create_with_losses(text, backend(), test_random);
    REQUIRE(r);
    return r;
}

static size_t outputs_of(const struct rig *r, int i)
{
    return (size_t)r->net->batch * (size_t)r->net->layers[i].outputs;
}

/* ---- lines ---- */

/* Equal but for the last digits of numbers. */
static void check_line(const char *said, const char *expected)
{
    const char *a = said, *b = expected;
    while (*a && *b) {
        if (isdigit(*a) || *a == '-' || !strncmp(a, "nan", 3)) {
            char *after_a, *after_b;
            double x = strtod(a, &after_a), y = strtod(b, &after_b);
            bool same = isnan(x) ? isnan(y) : fabs(x - y) <= 2e-5 * (1 + fabs(y));
            if (same && after_a > a && after_b > b) {
                a = after_a, b = after_b;
                continue;
            }
        }
        if (*a++ != *b++) break;
    }
    if (*a || *b) TEST_FAIL("said:    %sDarknet: %s", said, expected);
}

/* ---- Darknet's layer on the same input ---- */

static layer stock_yolo(const struct rig *r, int i)
{
    const struct amp_layer_desc *d = &r->net->layers[i];
    int *mask = malloc((size_t)d->num * sizeof *mask);
    memcpy(mask, (int[]){1, 2}, (size_t)d->num * sizeof *mask); /* as the cfg has it */
    layer l = make_yolo_layer(r->net->batch, d->w, d->h, d->num, 3, mask, 3);
    memcpy(l.biases, (float[]){4, 6, 10, 8, 20, 30}, 6 * sizeof(float));
    l.ignore_thresh = .3f, l.truth_thresh = .6f, l.max_boxes = 90;
    return l;
}

static layer stock_region(const struct rig *r, int i)
{
    const struct amp_layer_desc *d = &r->net->layers[i];
    layer l = make_region_layer(r->net->batch, d->w, d->h, 2, 3, 4);
    memcpy(l.biases, (float[]){1, 2, 3.5f, 2.5f}, 4 * sizeof(float));
    l.softmax = 1, l.bias_match = 1, l.rescore = 1;
    l.thresh = .4f, l.coord_scale = 1, l.object_scale = 5, l.noobject_scale = 1;
    l.class_scale = 1.5f, l.mask_scale = 1;
    return l;
}

/* backward_region_layer_gpu, which its CPU half lacks. */
static void through_logistics(const struct rig *r, int i, layer l)
{
    size_t area = (size_t)l.w * (size_t)l.h, per_box = 8 * area;
    for (size_t k = 0; k < outputs_of(r, i); k++) {
        size_t entry = k % per_box / area;
        if (entry < 2 || entry == 4) l.delta[k] *= (1 - l.output[k]) * l.output[k];
    }
}

static const char heads[] = "[net]\nmixed_precision=1\nbatch=2\nwidth=24\nheight=16\nchannels=3\n"
                            "[convolutional]\nfilters=8\nsize=3\nstride=4\npad=1\n"
                            "activation=leaky\n"
                            "[convolutional]\nfilters=16\nsize=1\nactivation=linear\n"
                            "[yolo]\nmask=1,2\nnum=3\nclasses=3\nanchors=4,6, 10,8, 20,30\n"
                            "ignore_thresh=.3\ntruth_thresh=.6\n"
                            "[route]\nlayers=0\n"
                            "[convolutional]\nfilters=16\nsize=1\nactivation=linear\n"
                            "[region]\nanchors=1,2, 3.5,2.5\nnum=2\nclasses=3\nsoftmax=1\n"
                            "bias_match=1\nrescore=1\nthresh=.4\nobject_scale=5\n"
                            "class_scale=1.5\n";
enum { YOLO_AT = 2, REGION_AT = 5, TRUTHS = 2 * 450 };

static void random_labels(float *labels)
{
    memset(labels, 0, TRUTHS * sizeof *labels);
    for (int image = 0; image < 2; image++)
        for (int t = 0; t < 5; t++) { /* region's image 1 begins at 150 */
            float *truth = labels + image * 450 + t * 5;
            for (int k = 0; k < 4; k++)
                truth[k] = (float)test_uniform(.02, .98);
            truth[4] = (float)(test_random() % 3);
        }
}

/* Whether rounding decides nothing here. */
static bool is_clear(struct rig *r)
{
    struct ampk_loss_sums sums;
    float *delta =
        malloc(outputs_of(r, YOLO_AT) * sizeof *delta + outputs_of(r, REGION_AT) * sizeof *delta);
    const struct amp_node *yolo = &r->graph->nodes[YOLO_AT], *region = &r->graph->nodes[REGION_AT];
    ampk_ref_closest_decision = INFINITY;
    ampk_reference.yolo_loss(NULL, yolo->options, &yolo->out, r->labels, delta, &sums, NULL);
    ampk_reference.region_loss(NULL, region->options, &region->out, r->labels, delta, &sums, NULL);
    free(delta);
    return ampk_ref_closest_decision > 1e-4;
}

static void check_head(struct rig *r, int i, layer l, char *lines, size_t size)
{
    const struct amp_node *node = &r->graph->nodes[i];
    size_t seen = r->graph->seen, n = outputs_of(r, i);
    float *labels = malloc(TRUTHS * sizeof *labels);
    memcpy(labels, r->labels, TRUTHS * sizeof *labels);
    network net = {.input = r->bindings[i - 1].output, .truth = labels, .train = 1, .seen = &seen};
    net.w = r->net->w, net.h = r->net->h, net.index = i;
    forward_printed(l, net, lines, size);
    if (i == REGION_AT) through_logistics(r, i, l);
    for (size_t k = 0; k < n; k++) {
        CHECK_NEAR(node->bind.output[k], l.output[k], 1e-6 * (1 + fabs(l.output[k])));
        CHECK_NEAR(node->loss[k], l.delta[k], 3e-5 * (1 + fabs(l.delta[k])));
    }
    const struct ampk_loss_sums *sums = amp_graph_loss(r->graph, i);
    REQUIRE(sums);
    CHECK_NEAR(sums->cost, *l.cost, 1e-4 * fabs(*l.cost));
    free(l.mask); /* which Darknet leaves */
    free_layer(l);
    free(labels);
}

/* What reaches the layer before a head: its delta, times the scale, to the bit. */
static void check_passed_back(const struct rig *r, int i, float scale)
{
    const struct amp_node *head = &r->graph->nodes[i], *source = &r->graph->nodes[i - 1];
    const float *delta = source->delta.data;
    CHECK_INT(source->plan->out, AMP_FORMAT_BORDER);
    for (size_t k = 0; k < outputs_of(r, i); k++)
        CHECK(delta[k] == scale * head->loss[k]);
}

AMP_TEST(heads_in_a_net_do_what_darknets_do)
{
    int checked = 0;
    for (int round = 0; round < 12 && !test_failures; round++) {
        struct rig *r = make(heads);
        float labels[TRUTHS];
        char lines[2000] = "", *said = NULL;
        size_t said_size;
        random_labels(labels);
        r->labels = labels;
        r->graph->seen = round % 2 ? 12800 : 12799;
        CHECK_STR(r->plan->layers[YOLO_AT].reason, "FP32: loss");
        rig_forward(r);
        if (is_clear(r)) {
            checked++;
            CHECK_INT(amp_graph_fault(r->graph, false).class, AMP_FAULT_NONE);
            check_head(r, YOLO_AT, stock_yolo(r, YOLO_AT), lines, sizeof lines);
            check_head(r, REGION_AT, stock_region(r, REGION_AT), lines, sizeof lines);
            FILE *memory = open_memstream(&said, &said_size);
            amp_loss_lines_print(r->graph, memory);
            fclose(memory);
            check_line(said, lines);
            free(said);
            for (float scale = 256; scale > 60; scale /= 2) { /* a replay scales the same losses */
                amp_graph_begin_backward(r->graph, scale);
                for (int i = r->net->n - 1; i >= 0; i--) {
                    amp_graph_backward(r->graph, i);
                    if (i == YOLO_AT || i == REGION_AT) check_passed_back(r, i, scale);
                }
            }
        }
        rig_free(r);
    }
    CHECK(checked > 4);
}

AMP_TEST(heads_only_activate_at_inference)
{
    struct rig *r = make(heads);
    float labels[TRUTHS];
    random_labels(labels);
    r->labels = labels;
    rig_forward(r);
    size_t bytes = outputs_of(r, YOLO_AT) * sizeof(float);
    float *output = malloc(bytes);
    memcpy(output, r->bindings[YOLO_AT].output, bytes);
    memset(r->bindings[YOLO_AT].output, 0, bytes);
    amp_plan_free(r->plan);
    r->plan = amp_plan_make(r->net, &r->options, r->ours, NULL, false, r->err, sizeof r->err);
    REQUIRE(r->plan && rig_make_graph(r, false) == 0);
    for (int i = 0; i < r->n_rolling; i++)
        REQUIRE(false); /* there is no batch-norm: training and inference agree */
    amp_graph_begin(r->graph, r->input, NULL, false);
    for (int i = 0; i < r->net->n; i++)
        amp_graph_forward(r->graph, i);
    CHECK(!memcmp(output, r->bindings[YOLO_AT].output, bytes));
    CHECK(!amp_graph_loss(r->graph, YOLO_AT));
    free(output);
    rig_free(r);
}

/* ---- contributions ---- */

/* A softmax has its own loss and what a cost layer adds to its delta; its source is stored in
 * another format. */
AMP_TEST(a_loss_adds_to_what_is_in_its_delta)
{
    struct rig *r = make("[net]\nmixed_precision=1\namp_dtype=fp32\nbatch=3\nwidth=6\nheight=8\n"
                         "channels=2\n[convolutional]\nfilters=7\nsize=3\nactivation=leaky\n"
                         "[avgpool]\n[softmax]\n[cost]\nscale=.5\n");
    float labels[21], scale = 8;
    for (int i = 0; i < 21; i++)
        labels[i] = i % 7 == i / 7;
    r->labels = labels;
    rig_forward(r);
    rig_backward(r, scale);
    CHECK_INT(amp_graph_fault(r->graph, true).class, AMP_FAULT_NONE);
    const float *p = r->bindings[2].output;
    double *delta = rig_load(&r->graph->nodes[1].delta), entropy = 0, squares = 0;
    for (int i = 0; i < 21; i++) {
        CHECK_NEAR(delta[i], scale * 1.5 * (labels[i] - p[i]), 1e-5);
        entropy -= labels[i] != 0 ? log(p[i]) : 0;
        squares += pow(labels[i] - p[i], 2);
    }
    CHECK_NEAR(amp_graph_loss(r->graph, 2)->cost, entropy, 1e-5);
    CHECK_NEAR(amp_graph_loss(r->graph, 3)->cost, squares, 1e-5);
    free(delta);
    rig_free(r);
}

AMP_TEST(logistic_losses)
{
    struct rig *r = make("[net]\nmixed_precision=1\nbatch=2\nwidth=6\nheight=8\nchannels=2\n"
                         "[connected]\noutput=9\nactivation=linear\n[logistic]\n");
    float labels[18];
    for (int i = 0; i < 18; i++)
        labels[i] = (float)(i % 2);
    r->labels = labels;
    rig_forward(r);
    rig_backward(r, 2);
    const float *delta = r->graph->nodes[0].delta.data;
    for (int i = 0; i < 18; i++) {
        double p = 1 / (1 + exp(-(double)r->bindings[0].output[i]));
        CHECK_NEAR(r->bindings[1].output[i], p, 1e-6);
        CHECK_NEAR(delta[i], 2 * (labels[i] - p), 1e-5);
    }
    rig_free(r);
}

/* ---- the step ---- */

struct taken {
    struct rig *r;
    int times;
    double cost;
};

static bool take_losses(void *user, double *cost)
{
    struct taken *t = user;
    t->times++;
    *cost = t->cost = amp_graph_loss(t->r->graph, 2)->cost;
    return true;
}

static void run_pass(struct amp_step *s, struct rig *r, int subdivision)
{
    struct amp_batch batch = {r->input, r->input, r->labels, r->labels, 7};
    amp_step_begin(s, &batch, subdivision);
    for (int i = 0; i < r->net->n; i++)
        amp_graph_forward(r->graph, i);
    for (int i = r->net->n - 1; i >= 0; i--)
        amp_step_backward(s, i, 0);
}

/* Also of a pass after one that was given up, whose costs are those of its own images. */
AMP_TEST(a_step_hands_over_the_costs_of_every_pass)
{
    struct rig *r = make("[net]\nmixed_precision=1\nbatch=4\nsubdivisions=2\nwidth=6\nheight=8\n"
                         "channels=2\n[convolutional]\nfilters=7\nsize=3\nactivation=leaky\n"
                         "[avgpool]\n[softmax]\n");
    float labels[14] = {1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0};
    struct taken taken = {.r = r};
    struct amp_log log;
    r->labels = labels;
    amp_log_start(&log, r->net);
    char *text;
    size_t size;
    log.out = open_memstream(&text, &size);
    struct amp_step s = {.graph = r->graph,
                         .log = &log,
                         .subdivisions = 2,
                         .take_losses = take_losses,
                         .user = &taken};
    amp_scaler_init(&s.scaler, &r->options, 1000);
    run_pass(&s, r, 0);
    CHECK_INT(taken.times, 1);
    double first = taken.cost;
    CHECK(first > 0);
    CHECK_NEAR(s.loss_sum, first, 0);
    float pixel = r->input[0];
    r->input[0] = NAN;
    run_pass(&s, r, 1);
    CHECK(s.poisoned && isnan(s.loss_sum));
    CHECK_INT(taken.times, 2);
    r->input[0] = pixel;
    run_pass(&s, r, 1);
    CHECK_NEAR(taken.cost, first, 0);
    fclose(log.out);
    free(text);
    rig_free(r);
}

AMP_TEST_MAIN
