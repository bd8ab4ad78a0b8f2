/* Training of every layer type that Darknet runs itself, and of deconvolutional and
 * local ones, attached. Each
 * small net is trained on the same random numbers by Darknet alone, and with mixed_precision=1 in
 * FP32 at several loss scales, with a step that is skipped, and in FP16, also with a backward that
 * runs again in every pass. */

#include "tests/rig/harness.h"

#include <darknet.h>
#include <limits.h>
#include <stdbool.h>

#include "plugin/attach/session.h"
#include "tests/rig/files.h"

#define STEPS        4
#define SUBDIVISIONS 2
#define PASSES       (STEPS * SUBDIVISIONS)
#define MAX_ARRAYS   100
#define MAX_PARTS    8

/* What may differ from Darknet alone, as a share of how far the same array moved at most.
 *
 * FP32: both sides compute the same sums, of up to 400 products, in another order. Rounding makes
 * such a sum uncertain by 2^-24 of its terms, times the root of their number: 2^-20. It passes four
 * layers forward and backward in each of four steps: 2^-15. The rest is for terms that cancel. */
#define FP32_SHARE 0x1p-10
/* FP16: the same with 2^-11 for every stored value, which is not summed up: some ten are on the way
 * from a weight to its gradient. A gradient lost, doubled or still scaled is off by a half or more.
 */
#define FP16_SHARE 0x1p-3

enum truth {
    NUMBERS,      /* in (-1, 1) */
    FAR_NUMBERS,  /* in (2, 3), either sign: beyond the reach of tanh, and by more than 1 */
    ZERO_OR_FAR,  /* of type=smooth, whose gradient turns its sign where they differ by 1 */
    SOME_SECRET,  /* a quarter of them SECRET_NUM: masked out */
    NOW_AND_THEN, /* numbers; every second pass has none, and no gradient */
    BITS,
    ONE_OF_FOUR, /* of every four */
    BOXES,       /* of [yolo] and [region] */
    CELLS,       /* of [detection] */
    MASKS,       /* of [iseg] */
};

struct subject {
    const char *shape, *layers;
    enum truth truth;
};

/* ---- cfg ---- */

#define STEADY                                                                                     \
    "learning_rate=0.01\nmomentum=0.9\ndecay=0.01\npolicy=constant\nmax_batches=1000\n"            \
    "subdivisions=2\n"
#define IMAGES      STEADY "batch=4\nwidth=6\nheight=8\nchannels=3\n"
#define VECTORS     STEADY "batch=16\ntime_steps=3\ninputs=5\n"
#define IMAGE_STEPS STEADY "batch=4\ntime_steps=3\nwidth=6\nheight=8\nchannels=3\n"

/* Smooth activations: at a kink rounding alone would decide on a gradient. */
#define CONV(filters) "[convolutional]\nfilters=" #filters "\nsize=3\npad=1\nactivation=tanh\n"
#define LINEAR_CONV(filters)                                                                       \
    "[convolutional]\nfilters=" #filters "\nsize=3\npad=1\nactivation=linear\n"
#define CONNECTED(outputs) "[connected]\noutput=" #outputs "\nactivation=tanh\n"
/* Its workspace is the largest: Darknet reserves too little for some layers. */
#define WIDE_CONV "[convolutional]\nfilters=4\nsize=5\npad=1\nactivation=tanh\n"

/* layer_keys go into every layer's section. */
static network *parse(const struct subject *t, const char *net_keys, const char *layer_keys)
{
    char text[4000];
    int n = snprintf(text, sizeof text, "[net]\n%s%s", net_keys, t->shape);
    for (const char *line = t->layers, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        n += snprintf(text + n, sizeof text - (size_t)n, "%.*s\n%s", (int)(end - line), line,
                      *line == '[' ? layer_keys : "");
    }
    scratch_write("a.cfg", text, (size_t)n);
    return parse_network_cfg((char *)scratch("a.cfg"));
}

/* ---- what Darknet lacks on the CPU ---- */

static void *zeros(int n)
{
    return calloc((size_t)n, sizeof(float));
}

static void backward_region(layer l, network net)
{
    int cells = l.w * l.h;
    for (int i = 0; i < l.batch * l.outputs; i++) {
        int entry = i / cells % (l.coords + 1 + l.classes);
        bool squashed = entry < 2 || (entry == l.coords && !l.background);
        float slope = squashed ? (1 - l.output[i]) * l.output[i] : 1;
        net.delta[i] += l.delta[i] * slope;
    }
}

void backward_lstm_layer(layer l, network net); /* in no header */

static void complete(layer *l)
{
    int rows = l->batch * l->steps;
    if (l->type == BATCHNORM) {
        l->x = zeros(l->batch * l->outputs);
        l->x_norm = zeros(l->batch * l->outputs);
        l->mean_delta = zeros(l->out_c);
        l->variance_delta = zeros(l->out_c);
    } else if (l->type == RNN) {
        free(l->state);
        l->state = zeros((rows + l->batch) * l->outputs);
    } else if (l->type == LSTM) {
        l->delta = zeros(rows * l->outputs);
        l->backward = backward_lstm_layer;
    } else if (l->type == REGION) {
        l->backward = backward_region;
    }
}

/* ---- what training changes ---- */

struct array {
    int layer;
    const char *what;
    float *live, *kept;
    size_t n;
};

struct record {
    struct array arrays[MAX_ARRAYS];
    int n;
};

static void add(struct record *r, int layer, const char *what, float *live, int n)
{
    REQUIRE(r->n < MAX_ARRAYS && live && n > 0);
    r->arrays[r->n++] = (struct array){layer, what, live, NULL, (size_t)n};
}

static bool is_ours(const layer *l)
{
    if (l->type == CONVOLUTIONAL) return !l->binary && !l->xnor;
    return l->type == DECONVOLUTIONAL || l->type == LOCAL || l->type == CONNECTED;
}

static int parts_of(layer *l, layer *parts[MAX_PARTS])
{
    layer *nested[] = {l->input_layer, l->self_layer, l->output_layer, l->uz, l->wz, l->ur,
                       l->wr,          l->uh,         l->wh,           l->uf, l->wf, l->ui,
                       l->wi,          l->ug,         l->wg,           l->uo, l->wo};
    int n = 0;
    for (size_t i = 0; i < sizeof nested / sizeof *nested; i++)
        if (nested[i]) parts[n++] = nested[i];
    if (!n) parts[n++] = l;
    return n;
}

static void list_part(struct record *r, int i, const layer *l)
{
    bool local = l->type == LOCAL, matrix = l->type == CONNECTED;
    int places = local ? l->out_w * l->out_h : 1;
    int weights = matrix ? l->inputs * l->outputs : l->c * l->n * l->size * l->size * places;
    int biases = matrix || local ? l->outputs : l->n;
    if (l->weights) {
        add(r, i, "weights", l->weights, weights);
        add(r, i, "momentum of weights", l->weight_updates, weights);
        add(r, i, "biases", l->biases, biases);
        add(r, i, "momentum of biases", l->bias_updates, biases);
    }
    if (l->weights && l->batch_normalize) {
        add(r, i, "scales", l->scales, biases);
        add(r, i, "momentum of scales", l->scale_updates, biases);
    }
    if (l->rolling_mean) {
        add(r, i, "rolling mean", l->rolling_mean, l->out_c);
        add(r, i, "rolling variance", l->rolling_variance, l->out_c);
    }
}

static void list_net(struct record *r, network *net)
{
    r->n = 0;
    for (int i = 0; i < net->n; i++) {
        layer *l = &net->layers[i], *parts[MAX_PARTS];
        int n = parts_of(l, parts);
        for (int k = 0; k < n; k++)
            list_part(r, i, parts[k]);
        if (!is_ours(l) || l->output == net->output)
            add(r, i, "output", l->output, net->batch * l->outputs);
    }
    add(r, net->n, "cost", net->cost, 1);
}

static void keep(struct record *r)
{
    for (struct array *a = r->arrays; a < r->arrays + r->n; a++) {
        a->kept = malloc(a->n * sizeof(float));
        REQUIRE(a->kept);
        memcpy(a->kept, a->live, a->n * sizeof(float));
    }
}

static void forget(struct record *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->arrays[i].kept);
}

/* ---- training ---- */

struct passes {
    float *input[PASSES], *truth[PASSES];
    enum truth kind;
    unsigned seed;
};

/* coords: numbers of a box; those beyond four are of its mask. */
static void draw_boxes(float *t, int coords)
{
    for (int box = 0; box < 2; box++, t += coords + 1) {
        t[0] = (float)test_uniform(.05 + .5 * box, .45 + .5 * box);
        t[1] = (float)test_uniform(.05, .95);
        t[2] = (float)test_uniform(.1, .6);
        t[3] = (float)test_uniform(.1, .6);
        for (int k = 4; k < coords; k++)
            t[k] = (float)test_uniform(0, 1);
        t[coords] = (float)(test_random() % 2);
    }
}

/* Per cell: whether there is an object, its class, its box. */
static void draw_cells(float *t, int cells)
{
    for (int cell = 0; cell < cells; cell++, t += 7) {
        t[0] = (float)(test_random() % 2);
        t[1 + test_random() % 2] = 1;
        for (int k = 3; k < 7; k++)
            t[k] = (float)test_uniform(.1, .9);
    }
}

/* Two objects, each with its class and its pixels. */
static void draw_masks(float *t, int pixels)
{
    for (int object = 0; object < 2; object++, t += pixels + 1) {
        t[0] = (float)object;
        for (int k = 1; k <= pixels; k++)
            t[k] = k % 2 == object && test_random() % 4;
    }
    t[0] = -1;
}

static float draw_number(enum truth kind)
{
    double x = test_uniform(-1, 1);
    if (kind == ZERO_OR_FAR && test_random() % 2) return 0;
    if (kind == ZERO_OR_FAR || kind == FAR_NUMBERS) return (float)(x < 0 ? x - 2 : x + 2);
    if (kind == SOME_SECRET && test_random() % 4 == 0) return SECRET_NUM;
    if (kind == BITS) return x < 0;
    return (float)x;
}

static void draw_truth(enum truth kind, const network *net, float *t)
{
    const layer *last = &net->layers[net->n - 1];
    switch (kind) {
    case BOXES:
        draw_boxes(t, last->type == REGION ? last->coords : 4);
        break;
    case CELLS:
        draw_cells(t, last->side * last->side);
        break;
    case MASKS:
        draw_masks(t, last->w * last->h);
        break;
    case ONE_OF_FOUR:
        for (int i = 0; i < net->truths; i += 4)
            t[i + test_random() % 4] = 1;
        break;
    default:
        for (int i = 0; i < net->truths; i++)
            t[i] = draw_number(kind);
    }
}

static void draw_passes(enum truth kind, const network *net, struct passes *p)
{
    p->kind = kind;
    p->seed = (unsigned)test_random();
    for (int i = 0; i < PASSES; i++) {
        p->input[i] = zeros(net->inputs * net->batch);
        p->truth[i] = zeros(net->truths * net->batch);
        for (int k = 0; k < net->inputs * net->batch; k++)
            p->input[i][k] = (float)test_uniform(-1, 1);
        for (int k = 0; k < net->batch; k++)
            draw_truth(kind, net, p->truth[i] + k * net->truths);
    }
}

static void free_passes(struct passes *p)
{
    for (int i = 0; i < PASSES; i++) {
        free(p->input[i]);
        free(p->truth[i]);
    }
}

static void run_pass(network *net, const struct passes *p, int i)
{
    memcpy(net->input, p->input[i], (size_t)(net->inputs * net->batch) * sizeof(float));
    memcpy(net->truth, p->truth[i], (size_t)(net->truths * net->batch) * sizeof(float));
    srand(p->seed + (unsigned)i); /* for crop */
    float *truth = net->truth;
    if (p->kind == NOW_AND_THEN && i % 2) net->truth = NULL;
    train_network_datum(net);
    net->truth = truth;
}

static void run_step(network *net, const struct passes *p, int step)
{
    for (int i = 0; i < SUBDIVISIONS; i++)
        run_pass(net, p, step * SUBDIVISIONS + i);
}

/* Skipped, because an input is not a number. */
static void run_bad_step(network *net, const struct passes *p)
{
    float first = p->input[0][0];
    p->input[0][0] = NAN;
    run_step(net, p, 0);
    p->input[0][0] = first;
}

enum steps { ONCE, ONE_BAD };

static void begin(network *net, const struct record *start, struct record *result)
{
    list_net(result, net);
    REQUIRE(result->n == start->n);
    for (int i = 0; i < result->n; i++)
        memcpy(result->arrays[i].live, start->arrays[i].kept, start->arrays[i].n * sizeof(float));
}

static void end(network *net, struct record *result)
{
    keep(result);
    free_network(net);
}

/* Trains from the weights in start and frees the net. */
static void train(network *net, const struct passes *p, const struct record *start,
                  enum steps steps, struct record *result)
{
    begin(net, start, result);
    for (int step = 0; step < STEPS; step++) {
        if (steps == ONE_BAD && step == STEPS / 2) run_bad_step(net, p);
        run_step(net, p, step);
    }
    end(net, result);
}

/* The same, each pass at its own loss scale. search: backward begins at the largest one, and runs
 * again until its gradients fit; scales gets what that came to. */
static void train_at(network *net, const struct passes *p, const struct record *start, bool search,
                     double scales[PASSES], struct record *result)
{
    struct amp_scaler *scaler = &amp_session_of(net->layers)->step.scaler;
    begin(net, start, result);
    for (int i = 0; i < PASSES; i++) {
        scaler->searching = search;
        scaler->scale = search ? scaler->max : scales[i];
        run_pass(net, p, i);
        scales[i] = scaler->scale;
    }
    CHECK(search ? scaler->redone >= STEPS : scaler->redone == 0);
    CHECK_INT(scaler->applied, STEPS);
    end(net, result);
}

/* ---- comparing ---- */

static void check_same(const char *run, const struct record *got, const struct record *expected)
{
    for (int i = 0; i < got->n; i++) {
        const struct array *a = &got->arrays[i], *b = &expected->arrays[i];
        size_t k = 0;
        while (k < a->n && !memcmp(&a->kept[k], &b->kept[k], sizeof(float)))
            k++;
        if (k < a->n)
            TEST_FAIL("%s: %s of layer %d: element %zu is %.9g, expected %.9g", run, a->what,
                      a->layer, k, a->kept[k], b->kept[k]);
    }
}

static void check_near(const char *run, const struct record *got, const struct record *expected,
                       const struct record *start, double share)
{
    for (int i = 0; i < got->n; i++) {
        const struct array *a = &got->arrays[i], *b = &expected->arrays[i];
        double off = 0, moved = 0, most = 0;
        for (size_t k = 0; k < a->n; k++) {
            double difference = fabs((double)a->kept[k] - b->kept[k]);
            off = isnan(difference) ? INFINITY : fmax(off, difference);
            moved = fmax(moved, fabs((double)b->kept[k] - start->arrays[i].kept[k]));
            most = fmax(most, fabs(b->kept[k]));
        }
        if (!(off <= share * moved + 0x1p-22 * most))
            TEST_FAIL("%s: %s of layer %d: off by %.3g, it moved by %.3g", run, a->what, a->layer,
                      off, moved);
    }
}

/* A backward that ran again, in every pass, leaves the bits of one that ran once. */
static void check_replay(const struct subject *t, const struct passes *p,
                         const struct record *start)
{
    static const char fp16[] = "mixed_precision=1\namp_dtype=fp16\n";
    struct record again, once;
    double scales[PASSES];
    train_at(parse(t, fp16, ""), p, start, true, scales, &again);
    train_at(parse(t, fp16, ""), p, start, false, scales, &once);
    check_same("repeated backward", &again, &once);
    forget(&again);
    forget(&once);
}

/* The net as every run of it starts, and what it is trained on. */
static network *draw_start(const struct subject *t, struct record *start, struct passes *p)
{
    gpu_index = -1; /* in a GPU build */
    srand((unsigned)test_random());
    network *net = parse(t, "", "");
    for (int i = 0; i < net->n; i++)
        complete(&net->layers[i]);
    list_net(start, net);
    keep(start);
    draw_passes(t->truth, net, p);
    return net;
}

static void check(const struct subject *t)
{
    static const struct {
        const char *name, *keys;
        enum steps steps;
    } scaled[] = {
        {"loss scale 1", "loss_scale=1\n", ONCE},
        {"loss scale 1024", "loss_scale=1024\n", ONCE},
        {"loss scale 2^24", "loss_scale=16777216\n", ONCE},
        {"growing loss scale", "loss_scale_init=1\nloss_scale_window=1\nloss_scale_growth=4\n",
         ONCE},
        {"skipped step", "loss_scale=1024\n", ONE_BAD},
    };
    struct record start, stock, fp32, unscaled, other;
    struct passes p;
    char keys[300];
    network *net = draw_start(t, &start, &p);
    train(net, &p, &start, ONCE, &stock);

    train(parse(t, "mixed_precision=1\namp_dtype=fp32\n", ""), &p, &start, ONCE, &fp32);
    check_near("FP32", &fp32, &stock, &start, FP32_SHARE);
    forget(&fp32);
    /* mixed_precision=0 in its section: Darknet's code also runs a loss that could be ours. */
    train(parse(t, "mixed_precision=1\namp_dtype=fp32\n", "mixed_precision=0\n"), &p, &start, ONCE,
          &unscaled);
    check_near("Darknet's layers in FP32", &unscaled, &stock, &start, FP32_SHARE);
    for (size_t i = 0; i < sizeof scaled / sizeof *scaled; i++) {
        snprintf(keys, sizeof keys, "mixed_precision=1\namp_dtype=fp16\n%s", scaled[i].keys);
        train(parse(t, keys, "mixed_precision=0\n"), &p, &start, scaled[i].steps, &other);
        check_same(scaled[i].name, &other, &unscaled);
        forget(&other);
    }
    /* Those two go by signs, which rounding may turn. */
    if (!strstr(t->layers, "binary=1") && !strstr(t->layers, "xnor=1")) {
        train(parse(t, "mixed_precision=1\namp_dtype=fp16\n", ""), &p, &start, ONCE, &other);
        check_near("FP16", &other, &stock, &start, FP16_SHARE);
        forget(&other);
        check_replay(t, &p, &start);
    }
    forget(&start);
    forget(&stock);
    forget(&unscaled);
    free_passes(&p);
    scratch_empty();
}

#define LAYER_TEST(name, ...)                                                                      \
    AMP_TEST(name)                                                                                 \
    {                                                                                              \
        check(&(struct subject){__VA_ARGS__});                                                     \
    }

/* ---- losses ---- */

#define COST(keys) WIDE_CONV CONV(3) "[cost]\n" keys

LAYER_TEST(cost_sse, IMAGES, COST("type=sse\n"), NUMBERS)
LAYER_TEST(cost_scaled, IMAGES, COST("type=sse\nscale=3\n"), NUMBERS)
LAYER_TEST(cost_masked, IMAGES, COST("type=masked\n"), SOME_SECRET)
LAYER_TEST(cost_without_truth, IMAGES, COST("type=masked\n"), NOW_AND_THEN)
LAYER_TEST(cost_smooth, IMAGES, COST("type=smooth\n"), ZERO_OR_FAR)
LAYER_TEST(cost_l1, IMAGES, COST("type=L1\n"), FAR_NUMBERS)
LAYER_TEST(cost_seg, IMAGES, COST("type=seg\n"), NUMBERS)
LAYER_TEST(cost_wgan, IMAGES, COST("type=wgan\n"), NUMBERS)
LAYER_TEST(softmax, IMAGES, WIDE_CONV "[connected]\noutput=4\nactivation=linear\n[softmax]\n",
           ONE_OF_FOUR)
LAYER_TEST(softmax_groups, IMAGES,
           WIDE_CONV "[connected]\noutput=12\nactivation=linear\n[softmax]\ngroups=3\n",
           ONE_OF_FOUR)
LAYER_TEST(logistic, IMAGES, WIDE_CONV LINEAR_CONV(3) "[logistic]\n", BITS)
LAYER_TEST(iseg, IMAGES, WIDE_CONV LINEAR_CONV(5) "[iseg]\nclasses=2\nids=3\n", MASKS)
/* Nothing depends on which prediction overlaps a box best: no threshold, boxes matched by anchor.
 */
#define YOLO                                                                                       \
    WIDE_CONV LINEAR_CONV(14) "[yolo]\nmask=0,1\nanchors=1,2, 3,2\nclasses=2\nnum=2\n"             \
                              "ignore_thresh=1\ntruth_thresh=1\n"
LAYER_TEST(yolo, IMAGES, YOLO, BOXES)

/* A forward pass alone, as a program makes it that wants the loss of images that it does not train
 * on. Frees the net. */
static float cost_of(network *net, const struct passes *p, const struct record *start)
{
    struct record own;
    list_net(&own, net);
    for (int i = 0; i < own.n; i++)
        memcpy(own.arrays[i].live, start->arrays[i].kept, start->arrays[i].n * sizeof(float));
    memcpy(net->input, p->input[0], (size_t)(net->inputs * net->batch) * sizeof(float));
    memcpy(net->truth, p->truth[0], (size_t)(net->truths * net->batch) * sizeof(float));
    *net->seen += (size_t)net->batch;
    net->train = 1;
    forward_network(net);
    float cost = *net->cost;
    free_network(net);
    return cost;
}

AMP_TEST(cost_of_yolo_after_forward)
{
    const struct subject t = {IMAGES, YOLO, BOXES};
    struct record start;
    struct passes p;
    gpu_index = -1; /* in a GPU build */
    network *net = parse(&t, "", "");
    list_net(&start, net);
    keep(&start);
    draw_passes(t.truth, net, &p);
    float stock = cost_of(net, &p, &start);
    float ours = cost_of(parse(&t, "mixed_precision=1\namp_dtype=fp32\n", ""), &p, &start);
    CHECK(stock > 0 && fabsf(ours - stock) <= FP32_SHARE * stock);
    forget(&start);
    free_passes(&p);
    scratch_empty();
}

#define REGION                                                                                     \
    WIDE_CONV LINEAR_CONV(14) "[region]\nanchors=1,2, 3,2\nclasses=2\ncoords=4\nnum=2\nthresh=1\n" \
                              "bias_match=1\n"
LAYER_TEST(region, IMAGES, REGION, BOXES)
LAYER_TEST(region_softmax_rescored, IMAGES, REGION "softmax=1\nrescore=1\n", BOXES)
LAYER_TEST(region_background, IMAGES, REGION "background=1\n", BOXES)
/* More numbers of a place than four, as segmentation has. */
LAYER_TEST(region_masks, IMAGES,
           WIDE_CONV LINEAR_CONV(18) "[region]\nanchors=1,2, 3,2\nclasses=2\ncoords=6\nnum=2\n"
                                     "thresh=1\nbias_match=1\n",
           BOXES)
LAYER_TEST(detection, IMAGES,
           WIDE_CONV "[connected]\noutput=28\nactivation=linear\n"
                     "[detection]\nclasses=2\ncoords=4\nnum=1\nside=2\nsqrt=1\nrescore=1\n"
                     "object_scale=2\nnoobject_scale=.5\ncoord_scale=5\n",
           CELLS)

/* ---- layers between others ---- */

#define BETWEEN(layer) WIDE_CONV layer CONV(3) "[cost]\n"

LAYER_TEST(crop_first, IMAGES, "[crop]\ncrop_width=5\ncrop_height=4\nflip=1\n" BETWEEN(""), NUMBERS)
LAYER_TEST(crop, IMAGES, BETWEEN("[crop]\ncrop_width=3\ncrop_height=3\nflip=1\n"), NUMBERS)
LAYER_TEST(normalization, IMAGES, BETWEEN("[normalization]\nsize=3\nalpha=.5\nbeta=.75\nkappa=1\n"),
           NUMBERS)
LAYER_TEST(l2norm, IMAGES, BETWEEN("[l2norm]\n"), NUMBERS)
LAYER_TEST(batchnorm, IMAGES, BETWEEN("[batchnorm]\n"), NUMBERS)
LAYER_TEST(softmax_without_loss, IMAGES,
           WIDE_CONV CONNECTED(8) "[softmax]\nnoloss=1\n" CONNECTED(5) "[cost]\n", NUMBERS)
LAYER_TEST(local, IMAGES, BETWEEN("[local]\nfilters=3\nsize=3\npad=1\nactivation=tanh\n"), NUMBERS)
#define DECONV "[deconvolutional]\nfilters=2\nsize=3\nstride=2\npadding=1\nactivation=tanh\n"
LAYER_TEST(deconvolutional, IMAGES, BETWEEN(DECONV), NUMBERS)
LAYER_TEST(deconvolutional_batchnorm, IMAGES, BETWEEN(DECONV "batch_normalize=1\n"), NUMBERS)
/* Darknet leaves 0 in all places but the first. */
static void fill_places(network *net)
{
    for (layer *l = net->layers; l < net->layers + net->n; l++)
        for (int i = 0; l->type == LOCAL && i < l->outputs * l->c * l->size * l->size; i++)
            l->weights[i] = (float)test_uniform(-.3, .3);
}

/* A layer between others, after one with channels that fill a processor's blocks of BF16 or that do
 * not. Of BF16, whose values are 2^-8 apart, only a gradient that is missing or misplaced is told
 * from rounding. */
static void check_every_dtype(const char *layer)
{
    static const struct {
        const char *dtype;
        double share;
    } runs[] = {{"fp32", FP32_SHARE}, {"tf32", FP16_SHARE}, {"fp16", FP16_SHARE}, {"bf16", .5}};
    char layers[1000], keys[100];
    struct record start, stock, other;
    struct passes p;
    snprintf(layers, sizeof layers,
             "[convolutional]\nfilters=%d\nsize=3\npad=1\nactivation=tanh\n%s"
             "[convolutional]\nfilters=3\nsize=3\npad=1\nactivation=tanh\n[cost]\n",
             test_random() % 2 ? 16 : 3, layer);
    struct subject t = {IMAGES, layers, NUMBERS};
    srand((unsigned)test_random());
    network *net = parse(&t, "", "");
    fill_places(net);
    list_net(&start, net);
    keep(&start);
    draw_passes(t.truth, net, &p);
    train(net, &p, &start, ONCE, &stock);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        snprintf(keys, sizeof keys, "mixed_precision=1\namp_dtype=%s\n", runs[i].dtype);
        train(parse(&t, keys, ""), &p, &start, ONCE, &other);
        check_near(runs[i].dtype, &other, &stock, &start, runs[i].share);
        forget(&other);
    }
    check_replay(&t, &p, &start);
    if (test_failures) TEST_FAIL("%s", layers);
    REQUIRE(!test_failures);
    forget(&start);
    forget(&stock);
    free_passes(&p);
    scratch_empty();
}

static int random_filters(void)
{
    return test_random() % 2 ? 16 : 1 + (int)(test_random() % 5);
}

/* Strides, windows and paddings that do not fit each other. */
AMP_TEST(deconvolutional_in_every_dtype)
{
    char layer[200];
    gpu_index = -1; /* in a GPU build */
    for (int i = 0; i < 12; i++) {
        int size = 1 + (int)(test_random() % 5), pad = (int)(test_random() % (unsigned)size);
        snprintf(layer, sizeof layer,
                 "[deconvolutional]\nfilters=%d\nsize=%d\nstride=%d\npadding=%d\nactivation=tanh\n"
                 "batch_normalize=%d\n",
                 random_filters(), size, 1 + (int)(test_random() % 3), pad,
                 (int)(test_random() % 2));
        check_every_dtype(layer);
    }
}

/* Windows that Darknet gets right. It needs the workspace of the second convolution. */
AMP_TEST(local_in_every_dtype)
{
    char layer[300];
    gpu_index = -1; /* in a GPU build */
    for (int i = 0; i < 12; i++) {
        int size = 1 + (int)(test_random() % 4), pad = size == 3 && test_random() % 2;
        snprintf(layer, sizeof layer,
                 "[convolutional]\nfilters=16\nsize=3\npad=1\nactivation=tanh\n"
                 "[convolutional]\nfilters=%d\nsize=3\npad=1\nactivation=tanh\n"
                 "[local]\nfilters=%d\nsize=%d\nstride=%d\npad=%d\nactivation=tanh\n",
                 random_filters(), random_filters(), size, 1 + (int)(test_random() % 3), pad);
        check_every_dtype(layer);
    }
}

LAYER_TEST(binary, IMAGES, BETWEEN(CONV(3) "binary=1\nbatch_normalize=1\n"), NUMBERS)
LAYER_TEST(xnor, IMAGES, BETWEEN(CONV(3) "xnor=1\n"), NUMBERS)

/* ---- recurrent layers ---- */

#define RECURRENT(layer) CONNECTED(6) layer CONNECTED(4) "[cost]\n"

LAYER_TEST(rnn, VECTORS, RECURRENT("[rnn]\noutput=7\nactivation=tanh\n"), NUMBERS)
LAYER_TEST(rnn_shortcut, VECTORS, RECURRENT("[rnn]\noutput=7\nactivation=tanh\nshortcut=1\n"),
           NUMBERS)
LAYER_TEST(rnn_batchnorm, VECTORS,
           RECURRENT("[rnn]\noutput=7\nactivation=tanh\nbatch_normalize=1\n"), NUMBERS)
LAYER_TEST(rnn_stacked, VECTORS,
           "[rnn]\noutput=7\nactivation=tanh\n" RECURRENT("[rnn]\noutput=5\nactivation=logistic\n"),
           NUMBERS)
LAYER_TEST(lstm, VECTORS, RECURRENT("[lstm]\noutput=7\n"), NUMBERS)
LAYER_TEST(lstm_batchnorm, VECTORS, RECURRENT("[lstm]\noutput=7\nbatch_normalize=1\n"), NUMBERS)
LAYER_TEST(gru, VECTORS, RECURRENT("[gru]\noutput=7\n"), NUMBERS)
LAYER_TEST(gru_tanh_batchnorm, VECTORS, RECURRENT("[gru]\noutput=7\ntanh=1\nbatch_normalize=1\n"),
           NUMBERS)
#define CRNN "[crnn]\nhidden_filters=3\noutput_filters=2\nactivation=tanh\n"
LAYER_TEST(crnn, IMAGE_STEPS, BETWEEN(CRNN), NUMBERS)
LAYER_TEST(crnn_shortcut_batchnorm, IMAGE_STEPS, BETWEEN(CRNN "shortcut=1\nbatch_normalize=1\n"),
           NUMBERS)

/* A training that was saved halfway is the one that never stopped. (Only for rnn and crnn: the
 * state of gru and lstm starts from zeros.) */
static void check_resumed(const struct subject *t, const char *keys)
{
    struct record start, whole, halves;
    struct passes p;
    char path[PATH_MAX], said[20000];
    network *net = draw_start(t, &start, &p);
    free_network(net);
    train(parse(t, keys, ""), &p, &start, ONCE, &whole);
    net = parse(t, keys, "");
    begin(net, &start, &halves);
    for (int step = 0; step < STEPS / 2; step++)
        run_step(net, &p, step);
    snprintf(path, sizeof path, "%s", scratch("a.weights"));
    save_weights(net, path);
    free_network(net);
    net = parse(t, keys, "");
    load_weights(net, path);
    struct capture c = capture_begin(2);
    for (int step = STEPS / 2; step < STEPS; step++)
        run_step(net, &p, step);
    capture_end(c, said, sizeof said);
    CHECK(strstr(said, "resumed from ") && !strstr(said, "not exactly"));
    list_net(&halves, net);
    end(net, &halves);
    check_same("resumed", &halves, &whole);
    forget(&start);
    forget(&whole);
    forget(&halves);
    free_passes(&p);
    scratch_empty();
}

AMP_TEST(recurrent_layers_resumed)
{
    static const char *const keys[] = {"mixed_precision=1\namp_dtype=bf16\n",
                                       "mixed_precision=1\namp_dtype=fp16\n"};
    const struct subject rnn = {
        VECTORS, RECURRENT("[rnn]\noutput=7\nactivation=tanh\nbatch_normalize=1\n"), NUMBERS};
    const struct subject crnn = {IMAGE_STEPS, BETWEEN(CRNN "shortcut=1\n"), NUMBERS};
    for (int k = 0; k < 2; k++) {
        check_resumed(&rnn, keys[k]);
        check_resumed(&crnn, keys[k]);
    }
}

AMP_TEST_MAIN
