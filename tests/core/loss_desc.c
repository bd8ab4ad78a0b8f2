/* What a cfg says about its losses, and the files of classes that it names: as Darknet's own parser
 * has it. */
#include "plugin/core/read/named_files.h"
#include "plugin/core/net/net.h"

#include "tests/rig/harness.h"
#include "tests/rig/files.h"

#include "darknet.h"

#include "tree.h"

int *read_map(char *filename);

/* ---- cfgs ---- */

static char text[4000];

static void add(const char *format, double value)
{
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, format, value);
}

/* The key in every other cfg. */
static void maybe(const char *key, double low, double high)
{
    if (test_random() % 2) return;
    add(key, 0);
    add("=%.4f\n", test_uniform(low, high));
}

static void maybe_flag(const char *key)
{
    if (test_random() % 2) return;
    add(key, 0);
    add("=%.0f\n", (double)(test_random() % 2));
}

static void begin(int outputs)
{
    text[0] = 0;
    add("[net]\nbatch=1\nwidth=8\nheight=8\nchannels=1\n[convolutional]\nfilters=%.0f\n", outputs);
}

/* ---- the two readings ---- */

static char err[1000];
static struct amp_cfg_file *cfg;
static struct amp_net_desc *net;
static network *stock;

static void read_both(void)
{
    scratch_write("a.cfg", text, strlen(text));
    char *path = strdup(scratch("a.cfg"));
    cfg = amp_cfg_read(path, err, sizeof err);
    net = cfg ? amp_net_describe(cfg, 0, 0, true, err, sizeof err) : NULL;
    if (!net) TEST_FAIL("%s\n%s", err, text);
    REQUIRE(net);
    fflush(stderr);
    stock = parse_network_cfg(path);
    free(path);
}

static void forget(void)
{
    if (test_failures) fprintf(stderr, "%s\n", text);
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    free_network(stock);
}

static void check_anchors(const struct amp_loss_desc *l, const layer *s, int anchors)
{
    CHECK_INT(l->n_anchors, anchors);
    for (int i = 0; i < 2 * anchors; i++)
        CHECK_NEAR(l->anchor_sizes[i], s->biases[i], 0);
}

static void add_anchors(int anchors)
{
    int n = test_random() % 4 ? 2 * anchors : 0;
    for (int i = 0; i < n; i++) {
        add(i ? (i % 2 ? "," : ",  ") : "anchors=", 0);
        add("%.3f", test_uniform(.1, 300));
    }
    add("\n", 0);
}

AMP_TEST(yolo)
{
    for (int round = 0; round < 40 && !test_failures; round++) {
        int anchors = 3 + (int)(test_random() % 4), boxes = (int)(test_random() % 3);
        begin((boxes ? boxes : anchors) * 7);
        add("[yolo]\nclasses=2\nnum=%.0f\n", anchors);
        for (int i = 0; i < boxes; i++) {
            add(i ? ", " : "mask=", 0);
            add("%.0f", (double)(test_random() % (uint64_t)anchors));
        }
        add("\n", 0);
        add_anchors(anchors);
        maybe("ignore_thresh", 0, 1);
        maybe("truth_thresh", 0, 1);
        if (test_random() % 2) add("max=%.0f\n", (double)(1 + test_random() % 90));
        read_both();
        const layer *s = &stock->layers[1];
        const struct amp_layer_desc *d = &net->layers[1];
        check_anchors(&d->loss, s, anchors);
        CHECK_INT(d->num, s->n);
        for (int i = 0; i < s->n; i++)
            CHECK_INT(d->loss.mask ? d->loss.mask[i] : i, s->mask[i]);
        CHECK_NEAR(d->loss.ignore_thresh, s->ignore_thresh, 0);
        CHECK_NEAR(d->loss.truth_thresh, s->truth_thresh, 0);
        CHECK_INT(d->max_boxes, s->max_boxes);
        forget();
    }
}

AMP_TEST(region)
{
    for (int round = 0; round < 40 && !test_failures; round++) {
        int anchors = 1 + (int)(test_random() % 5);
        begin(anchors * 7);
        add("[region]\nclasses=2\nnum=%.0f\n", anchors);
        add_anchors(anchors);
        static const char *const flags[] = {"softmax", "background", "bias_match", "rescore"};
        static const char *const numbers[] = {"thresh",         "coord_scale", "object_scale",
                                              "noobject_scale", "class_scale", "mask_scale"};
        for (int i = 0; i < 4; i++)
            maybe_flag(flags[i]);
        for (int i = 0; i < 6; i++)
            maybe(numbers[i], 0, 5);
        read_both();
        const layer *s = &stock->layers[1];
        const struct amp_loss_desc *l = &net->layers[1].loss;
        check_anchors(l, s, anchors);
        CHECK_INT(l->softmax, s->softmax);
        CHECK_INT(l->background, s->background);
        CHECK_INT(l->bias_match, s->bias_match);
        CHECK_INT(l->rescore, s->rescore);
        CHECK_NEAR(l->thresh, s->thresh, 0);
        CHECK_NEAR(l->coord_scale, s->coord_scale, 0);
        CHECK_NEAR(l->object_scale, s->object_scale, 0);
        CHECK_NEAR(l->noobject_scale, s->noobject_scale, 0);
        CHECK_NEAR(l->class_scale, s->class_scale, 0);
        CHECK_INT(l->mask_scale, (int)s->mask_scale);
        forget();
    }
}

AMP_TEST(softmax_and_cost)
{
    static const char *const types[] = {"seg", "sse", "masked", "smooth", "L1", "wgan"};
    for (int round = 0; round < 40 && !test_failures; round++) {
        begin(4);
        add("[softmax]\n", 0);
        if (test_random() % 2) add("groups=%.0f\n", 4);
        maybe("temperature", .1, 3);
        maybe("spatial", 0, 2);
        add("[cost]\n", 0);
        if (test_random() % 2) add("type=", 0), add(types[round % 6], 0), add("\n", 0);
        maybe("scale", 0, 2);
        maybe("noobj", 0, 2);
        maybe("thresh", 0, 2);
        maybe("smooth", 0, 1);
        read_both();
        const layer *s = &stock->layers[1], *c = &stock->layers[2];
        const struct amp_loss_desc *l = &net->layers[1].loss;
        const struct ampk_cost *o = &net->layers[2].loss.cost;
        CHECK_INT(l->groups, s->groups);
        CHECK_NEAR(l->temperature, s->temperature, 0);
        CHECK_INT(l->spatial, s->spatial != 0);
        CHECK_INT(o->type, c->cost_type);
        CHECK_NEAR(o->scale, c->scale, 0);
        CHECK_NEAR(o->noobject_scale, c->noobject_scale, 0);
        CHECK_NEAR(o->threshold, c->thresh, 0);
        CHECK_NEAR(o->smooth, c->smooth, 0);
        forget();
    }
}

/* What holds where a cfg is silent. */
AMP_TEST(heads_without_keys)
{
    static const char *const heads[] = {"[yolo]\n", "[region]\n",
                                        "[connected]\noutput=147\n[detection]\n"};
    for (int k = 0; k < 3; k++) {
        begin(25);
        add(heads[k], 0);
        read_both();
        const layer *s = &stock->layers[stock->n - 1];
        const struct amp_layer_desc *d = &net->layers[net->n - 1];
        CHECK_INT(d->classes, s->classes);
        CHECK_INT(d->num, s->n);
        CHECK_INT(d->outputs, s->outputs);
        if (k) CHECK_INT(d->coords, s->coords);
        if (k < 2) CHECK_INT(d->max_boxes, s->max_boxes);
        if (k < 2) check_anchors(&d->loss, s, 1);
        if (k != 1) CHECK_INT(d->random, s->random);
        if (!k) CHECK_NEAR(d->loss.ignore_thresh, s->ignore_thresh, 0);
        if (!k) CHECK_NEAR(d->loss.truth_thresh, s->truth_thresh, 0);
        forget();
    }
}

AMP_TEST(layers_without_keys)
{
    static const char *const layers[] = {
        "convolutional", "deconvolutional", "connected",  "maxpool",       "avgpool", "upsample",
        "reorg",         "dropout",         "batchnorm",  "local",         "rnn",     "gru",
        "lstm",          "softmax",         "activation", "normalization", "l2norm",  "logistic"};
    for (size_t k = 0; k < sizeof layers / sizeof *layers; k++) {
        begin(4);
        add("size=3\npad=1\n[", 0);
        add(layers[k], 0);
        add("]\n", 0);
        read_both();
        const layer *s = &stock->layers[1];
        const struct amp_layer_desc *d = &net->layers[1];
        if (d->out_w != s->out_w || d->out_h != s->out_h || d->out_c != s->out_c ||
            d->outputs != s->outputs)
            TEST_FAIL("%d x %d x %d, %d; Darknet has %d x %d x %d, %d", d->out_w, d->out_h,
                      d->out_c, d->outputs, s->out_w, s->out_h, s->out_c, s->outputs);
        if (d->type != AMP_BATCHNORM) CHECK_INT(d->batch_normalize, s->batch_normalize);
        if (d->n_weights && s->nweights) CHECK_INT(d->n_weights, s->nweights);
        if (d->type == AMP_MAXPOOL || d->type == AMP_CONVOLUTIONAL ||
            d->type == AMP_DECONVOLUTIONAL)
            CHECK(d->size == s->size && d->stride == s->stride && d->pad == s->pad);
        if (d->type == AMP_UPSAMPLE) CHECK_NEAR(d->scale, s->scale, 0);
        forget();
    }
}

AMP_TEST(what_would_go_wrong_is_refused)
{
    static const char *const layers[][2] = {
        {"[yolo]\nclasses=2\nnum=3\nmask=1,3\n", "mask= in [yolo] names anchor 3, allowed: 0 to 2"},
        {"[softmax]\ngroups=3\n", "groups=3 in [softmax]: must divide its 896 inputs"},
    };
    for (int i = 0; i < 2; i++) {
        begin(14);
        add(layers[i][0], 0);
        cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
        REQUIRE(cfg);
        CHECK(!amp_net_describe(cfg, 0, 0, true, err, sizeof err));
        if (!strstr(err, layers[i][1])) TEST_FAIL("%s", err);
        amp_cfg_free(cfg);
    }
}

/* ---- files of classes ---- */

static void check_ints(const int *a, const int *b, int n)
{
    for (int i = 0; i < n; i++)
        CHECK_INT(a[i], b[i]);
}

AMP_TEST(trees)
{
    for (int round = 0; round < 30; round++) {
        int n = 1 + (int)(test_random() % 60), parent = -1;
        text[0] = 0;
        for (int i = 0; i < n; i++) {
            if (i && test_random() % 4 == 0) parent = (int)(test_random() % (uint64_t)(i + 1)) - 1;
            add("n0123 ", 0);
            add("%.0f\n", parent);
        }
        scratch_write("a.tree", text, strlen(text));
        struct amp_class_tree t;
        char *path = strdup(scratch("a.tree"));
        tree *s = read_tree(path);
        REQUIRE(amp_class_tree_read(scratch("a.cfg"), path, &t, err, sizeof err) == 0);
        CHECK_INT(t.classes, s->n);
        CHECK_INT(t.groups, s->groups);
        check_ints(t.parent, s->parent, n);
        check_ints(t.group, s->group, n);
        check_ints(t.group_offset, s->group_offset, t.groups);
        check_ints(t.group_size, s->group_size, t.groups);
        amp_class_tree_free(&t);
        free(path);
    }
}

AMP_TEST(a_tree_goes_up)
{
    struct amp_class_tree t;
    scratch_write("a.tree", "a -1\nb 1\n", 9);
    CHECK(amp_class_tree_read("x.cfg", scratch("a.tree"), &t, err, sizeof err) < 0);
    CHECK(strstr(err, "a.tree:2: parent 1; allowed: a line before this one, or -1") != NULL);
    CHECK(amp_class_tree_read("x.cfg", "no.tree", &t, err, sizeof err) < 0);
    CHECK_STR(err, "x.cfg: no.tree cannot be read");
}

AMP_TEST(maps)
{
    for (int round = 0; round < 30; round++) {
        int n = 1 + (int)(test_random() % 60), found, *map;
        text[0] = 0;
        for (int i = 0; i < n; i++)
            add(i < n - 1 || round % 2 ? "%.0f\n" : "%.0f", (double)(test_random() % 1000));
        scratch_write("a.map", text, strlen(text));
        char *path = strdup(scratch("a.map"));
        int *expected = read_map(path);
        REQUIRE(amp_class_map_read(scratch("a.cfg"), path, &map, &found, err, sizeof err) == 0);
        CHECK_INT(found, n);
        check_ints(map, expected, n);
        free(map), free(expected), free(path);
    }
}

AMP_TEST_MAIN
