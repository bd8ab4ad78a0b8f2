/* What a cfg describes: shapes, sources, weights and operations against published numbers. What it
 * cannot: ../input/verdicts/net.txt. */
#include "plugin/core/net/net.h"

#include "tests/rig/harness.h"
#include "tests/rig/files.h"

static char err[1024];

static struct amp_cfg_file *cfg;

static void forget(struct amp_net_desc *net)
{
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    cfg = NULL;
}

static struct amp_net_desc *describe(const char *text, bool strict)
{
    err[0] = 0;
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(cfg);
    return amp_net_describe(cfg, 0, 0, strict, err, sizeof err);
}

/* layers below a [net] of 32 x 24 x 8, 4 images in 2 subdivisions. */
static struct amp_net_desc *describe_layers(const char *layers)
{
    char text[4096];
    snprintf(text, sizeof text,
             "[net]\nbatch=4\nsubdivisions=2\nwidth=32\nheight=24\nchannels=8\n%s\n", layers);
    return describe(text, true);
}

/* Asks for as large a workspace as the layer after it needs. */
#define WIDE "[conv]\nfilters=8\nsize=5\npad=1\n"

/* The last layer's output. */
static void check_shape(const char *layers, int w, int h, int c, int outputs)
{
    struct amp_net_desc *net = describe_layers(layers);
    if (!net) TEST_FAIL("%s: %s", layers, err);
    if (!net) return;
    const struct amp_layer_desc *l = &net->layers[net->n - 1];
    if (l->out_w != w || l->out_h != h || l->out_c != c || l->outputs != outputs)
        TEST_FAIL("%s: %d x %d x %d, %d outputs; expected %d x %d x %d, %d", layers, l->out_w,
                  l->out_h, l->out_c, l->outputs, w, h, c, outputs);
    forget(net);
}

static struct amp_net_desc *describe_file(const char *path, int w, int h)
{
    err[0] = 0;
    cfg = amp_cfg_read(path, err, sizeof err);
    struct amp_net_desc *net = cfg ? amp_net_describe(cfg, w, h, true, err, sizeof err) : NULL;
    if (!net) TEST_FAIL("%s", err);
    REQUIRE(net);
    return net;
}

static struct amp_net_desc *describe_stock(const char *name, int w, int h)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", AMP_STOCK_CFG, name);
    return describe_file(path, w, h);
}

/* ---- whole nets against published numbers ---- */

AMP_TEST(yolov3_shapes)
{
    static const struct {
        int layer, w, h, c;
        enum amp_layer_type type;
    } expected[] = {
        {0, 416, 416, 32, AMP_CONVOLUTIONAL},  {1, 208, 208, 64, AMP_CONVOLUTIONAL},
        {4, 208, 208, 64, AMP_SHORTCUT},       {36, 52, 52, 256, AMP_SHORTCUT},
        {61, 26, 26, 512, AMP_SHORTCUT},       {74, 13, 13, 1024, AMP_SHORTCUT},
        {81, 13, 13, 255, AMP_CONVOLUTIONAL},  {82, 13, 13, 255, AMP_YOLO},
        {83, 13, 13, 512, AMP_ROUTE},          {85, 26, 26, 256, AMP_UPSAMPLE},
        {86, 26, 26, 768, AMP_ROUTE},          {93, 26, 26, 255, AMP_CONVOLUTIONAL},
        {94, 26, 26, 255, AMP_YOLO},           {95, 26, 26, 256, AMP_ROUTE},
        {97, 52, 52, 128, AMP_UPSAMPLE},       {98, 52, 52, 384, AMP_ROUTE},
        {105, 52, 52, 255, AMP_CONVOLUTIONAL}, {106, 52, 52, 255, AMP_YOLO},
    };
    struct amp_net_desc *net = describe_stock("yolov3.cfg", 416, 416);
    CHECK_INT(net->n, 107);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const struct amp_layer_desc *l = &net->layers[expected[i].layer];
        if (l->out_w != expected[i].w || l->out_h != expected[i].h || l->out_c != expected[i].c ||
            l->type != expected[i].type)
            TEST_FAIL("layer %d: %s %d x %d x %d", expected[i].layer, l->type_name, l->out_w,
                      l->out_h, l->out_c);
    }
    CHECK_INT(net->layers[86].n_sources, 2);
    CHECK_INT(net->layers[86].sources[0], 85);
    CHECK_INT(net->layers[86].sources[1], 61);
    CHECK_INT(net->layers[4].sources[0], 3);
    CHECK_INT(net->layers[4].sources[1], 1);
    forget(net);
}

/* Floats that save_weights writes for the first n layers. */
static size_t saved_floats(const struct amp_net_desc *net, int n)
{
    size_t floats = 0;
    for (int i = 0; i < n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        if (!l->n_weights) continue;
        floats += l->n_weights + (size_t)l->filters * (l->batch_normalize ? 4 : 1);
    }
    return floats;
}

/* pjreddie.com's files, a header of 20 bytes and floats: yolov3.weights has 248007048 bytes,
 * yolov3-tiny.weights 35434956, darknet53.conv.74 (the first 75 layers) 162482580. */
AMP_TEST(published_weights_files_have_as_many_floats)
{
    struct amp_net_desc *net = describe_stock("yolov3.cfg", 0, 0);
    CHECK_INT(saved_floats(net, net->n), (248007048 - 20) / 4);
    CHECK_INT(saved_floats(net, 75), (162482580 - 20) / 4);
    forget(net);
    net = describe_stock("yolov3-tiny.cfg", 0, 0);
    CHECK_INT(saved_floats(net, net->n), (35434956 - 20) / 4);
    forget(net);
}

/* "BFLOPs" as Darknet prints them: 65.86 for yolov3 and 5.56 for yolov3-tiny at 416 (pjreddie.com's
 * table), 18.57 for darknet53 and 9.74 for resnet50 at 256. */
AMP_TEST(published_operation_counts)
{
    static const struct {
        const char *name;
        int size;
        double giga;
    } expected[] = {{"yolov3.cfg", 416, 65.86},
                    {"yolov3-tiny.cfg", 416, 5.56},
                    {"darknet53.cfg", 0, 18.57},
                    {"resnet50.cfg", 0, 9.74}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        struct amp_net_desc *net =
            describe_stock(expected[i].name, expected[i].size, expected[i].size);
        double flop = 0;
        for (int k = 0; k < net->n; k++)
            flop += net->layers[k].forward_flop;
        CHECK_NEAR(flop / 1e9, expected[i].giga, 0.0101);
        forget(net);
    }
}

AMP_TEST(batch_is_that_of_one_pass)
{
    struct amp_net_desc *net = describe("[net]\nbatch=64\nsubdivisions=16\ntime_steps=3\n"
                                        "inputs=10\n[connected]\noutput=2\n",
                                        true);
    REQUIRE(net);
    CHECK_INT(net->batch, 12);
    CHECK_INT(net->subdivisions, 16);
    CHECK_INT(net->inputs, 10);
    forget(net);
}

AMP_TEST(a_resized_net_is_described_anew)
{
    struct amp_net_desc *net = describe_stock("yolov3-tiny.cfg", 320, 352);
    CHECK_INT(net->w, 320);
    CHECK_INT(net->h, 352);
    CHECK_INT(net->layers[16].out_w, 10);
    CHECK_INT(net->layers[16].out_h, 11);
    forget(net);
}

/* ---- layer by layer ---- */

AMP_TEST(convolutional_shapes)
{
    check_shape("[convolutional]\nfilters=5\nsize=3\n", 30, 22, 5, 30 * 22 * 5);
    check_shape("[conv]\nfilters=5\nsize=3\npad=1\n", 32, 24, 5, 32 * 24 * 5);
    check_shape("[convolutional]\nfilters=5\nsize=3\npadding=2\n", 34, 26, 5, 34 * 26 * 5);
    check_shape("[convolutional]\nfilters=5\nsize=3\npad=1\npadding=7\n", 32, 24, 5, 32 * 24 * 5);
    check_shape("[convolutional]\nfilters=5\nsize=3\npad=1\nstride=2\n", 16, 12, 5, 960);
    check_shape("[convolutional]\nfilters=4\nsize=1\nstride=3\ngroups=4\n", 11, 8, 4, 352);
    check_shape("[convolutional]\n", 32, 24, 1, 32 * 24);
}

AMP_TEST(pooling_and_resampling_shapes)
{
    check_shape("[maxpool]\nsize=2\nstride=2\n", 16, 12, 8, 1536);
    check_shape("[maxpool]\nsize=3\nstride=2\n", 16, 12, 8, 1536);
    check_shape("[max]\nsize=2\nstride=1\n", 32, 24, 8, 6144);
    check_shape("[maxpool]\nsize=5\nstride=3\npadding=0\n", 10, 7, 8, 560);
    check_shape("[avgpool]\n", 1, 1, 8, 8);
    check_shape("[upsample]\n", 64, 48, 8, 64 * 48 * 8);
    check_shape("[upsample]\nstride=3\n", 96, 72, 8, 96 * 72 * 8);
    check_shape("[upsample]\nstride=-2\n", 16, 12, 8, 1536);
    check_shape("[reorg]\nstride=2\n", 16, 12, 32, 6144);
    check_shape("[reorg]\nstride=2\nreverse=1\n", 64, 48, 2, 6144);
    check_shape("[reorg]\nstride=2\nflatten=1\n", 16, 12, 32, 6144);
    check_shape("[reorg]\nstride=1\nextra=7\n", 0, 0, 0, 6151);
    check_shape("[crop]\ncrop_width=20\ncrop_height=10\n", 20, 10, 8, 1600);
}

AMP_TEST(route_and_shortcut_shapes)
{
    check_shape("[conv]\nfilters=2\n[conv]\nfilters=3\n[route]\nlayers=-1,0\n", 32, 24, 5, 3840);
    check_shape("[conv]\nfilters=2\n[conv]\nfilters=3\n[route]\nlayers=0,0,1\n", 32, 24, 7, 5376);
    check_shape("[conv]\nfilters=2\n[maxpool]\nstride=2\n[route]\nlayers=-1,-2\n", 0, 0, 0, 1920);
    check_shape(
        "[conv]\nfilters=2\n[conv]\nfilters=3\nsize=3\nstride=2\npad=1\n[shortcut]\nfrom=0\n", 16,
        12, 3, 576);
    check_shape("[conv]\nfilters=2\n[maxpool]\nstride=2\n[shortcut]\nfrom=-2\n", 16, 12, 2, 384);
}

AMP_TEST(flat_layers)
{
    check_shape("[connected]\noutput=10\n", 1, 1, 10, 10);
    check_shape("[connected]\noutput=10\n[softmax]\n", 0, 0, 0, 10);
    check_shape("[connected]\noutput=10\n[cost]\n", 0, 0, 0, 10);
    check_shape("[rnn]\noutput=6\n", 0, 0, 0, 6);
    check_shape("[gru]\noutput=6\n", 0, 0, 0, 6);
    check_shape("[lstm]\noutput=6\n", 0, 0, 0, 6);
    check_shape("[connected]\noutput=10\n[dropout]\n", 1, 1, 10, 10);
    check_shape("[connected]\noutput=10\n[activation]\nactivation=relu\n", 1, 1, 10, 10);
    check_shape("[lrn]\n", 32, 24, 8, 6144);
    check_shape("[batchnorm]\n", 32, 24, 8, 6144);
    check_shape("[l2norm]\n", 32, 24, 8, 6144);
    check_shape("[logistic]\n", 32, 24, 8, 6144);
    check_shape(WIDE "[crnn]\noutput_filters=3\nhidden_filters=2\n", 24, 32, 3, 2304);
    check_shape(WIDE "[local]\nfilters=3\nsize=3\n", 30, 22, 3, 1980);
    check_shape(WIDE "[local]\nfilters=3\nsize=3\npad=1\n", 32, 24, 3, 2304);
    check_shape(WIDE "[local]\nfilters=3\nsize=5\npad=2\n", 32, 24, 3, 2304);
    check_shape("[deconvolutional]\nfilters=3\nsize=4\nstride=2\npadding=1\n", 64, 48, 3, 9216);
}

AMP_TEST(head_shapes)
{
    check_shape("[conv]\nfilters=14\n[yolo]\nmask=0,1\nclasses=2\nnum=6\n", 32, 24, 14, 10752);
    check_shape("[conv]\nfilters=14\n[region]\nnum=2\nclasses=2\n", 32, 24, 14, 10752);
    check_shape("[conv]\nfilters=5\n[iseg]\nclasses=2\nids=3\n", 32, 24, 5, 3840);
    check_shape("[connected]\noutput=48\n[detection]\nside=2\nnum=2\ncoords=4\nclasses=2\n", 0, 0,
                0, 48);
}

AMP_TEST(weights_are_counted_with_nested_layers)
{
    struct amp_net_desc *net = describe_layers("[convolutional]\nfilters=6\nsize=3\ngroups=2\n"
                                               "[connected]\noutput=10\n[lstm]\noutput=7\n"
                                               "[gru]\noutput=5\n[rnn]\noutput=3\n");
    REQUIRE(net);
    CHECK_INT(net->layers[0].n_weights, 4 * 6 * 9);
    CHECK_INT(net->layers[1].n_weights, 30 * 22 * 6 * 10);
    CHECK_INT(net->layers[2].n_weights, 4 * (10 * 7 + 7 * 7));
    CHECK_INT(net->layers[3].n_weights, 3 * (7 * 5 + 5 * 5));
    CHECK_INT(net->layers[4].n_weights, 5 * 3 + 2 * 3 * 3);
    forget(net);
}

AMP_TEST(loss_layers_are_told_from_others)
{
    struct amp_net_desc *net = describe_layers("[connected]\noutput=10\n[softmax]\nnoloss=1\n"
                                               "[softmax]\n[logistic]\n[l2norm]\n[cost]\n");
    REQUIRE(net);
    static const bool loss[] = {false, false, true, true, false, true};
    for (int i = 0; i < 6; i++)
        CHECK_INT(amp_layer_is_loss(&net->layers[i]), loss[i]);
    forget(net);
}

AMP_TEST(every_activation_is_known)
{
    static const char *const names[] = {"logistic", "relu",    "relie", "linear", "ramp",
                                        "tanh",     "plse",    "leaky", "elu",    "loggy",
                                        "stair",    "hardtan", "lhtan", "selu"};
    for (int i = 0; i < AMPK_STOCK_ACTIVATIONS; i++) {
        char layers[100];
        snprintf(layers, sizeof layers, "[activation]\nactivation=%s\n", names[i]);
        struct amp_net_desc *net = describe_layers(layers);
        REQUIRE(net);
        CHECK_INT(net->layers[0].activation, i);
        CHECK_STR(amp_activation_name(net->layers[0].activation), names[i]);
        forget(net);
    }
}

AMP_TEST(defaults_are_darknets)
{
    struct amp_net_desc *net = describe_layers("[convolutional]\n[activation]\n[shortcut]\nfrom=0\n"
                                               "[local]\n[connected]\n[dropout]\n");
    REQUIRE(net);
    CHECK_INT(net->layers[0].activation, AMPK_LOGISTIC);
    CHECK_INT(net->layers[1].activation, AMPK_LINEAR);
    CHECK_INT(net->layers[2].activation, AMPK_LINEAR);
    CHECK_NEAR(net->layers[2].alpha, 1, 0);
    CHECK_INT(net->layers[3].activation, AMPK_LOGISTIC);
    CHECK_INT(net->layers[4].activation, AMPK_LOGISTIC);
    CHECK_NEAR(net->layers[5].probability, 0.5, 0);
    CHECK_NEAR(net->layers[0].learning_rate_scale, 1, 0);
    CHECK_INT(net->layers[0].override, -1);
    forget(net);
}

/* ---- errors ---- */

AMP_TEST(not_strict_follows_darknet)
{
    struct amp_net_desc *net =
        describe("[net]\nwidth=8\nheight=8\nchannels=3\n[conv]\nactivation=mish\n"
                 "[route]\nlayers=-1\ngroups=2\n",
                 false);
    REQUIRE(net);
    CHECK_INT(net->layers[0].activation, AMPK_RELU);
    CHECK_INT(net->layers[1].outputs, 64);
    forget(net);
}

/* Weights without biases, and twice as many multiplications as each of them makes for one image. */
AMP_TEST(work_of_each_kind)
{
    static const struct {
        const char *layer;
        size_t weights, places; /* where each weight is used */
    } cases[] = {
        {"[conv]\nfilters=6\nsize=3\nstride=2\npad=1\n", 6 * 8 * 9, 16 * 12},
        {"[conv]\nfilters=6\nsize=3\npad=1\ngroups=2\n", 6 * 4 * 9, 32 * 24},
        {"[deconvolutional]\nfilters=5\nsize=2\nstride=2\n", 5 * 8 * 4, 32 * 24},
        {"[local]\nfilters=2\nsize=3\npad=1\n", 32 * 24 * 2 * 8 * 9, 1},
        {"[connected]\noutput=7\n", 32 * 24 * 8 * 7, 1},
        {"[rnn]\noutput=7\n", 32 * 24 * 8 * 7 + 2 * 7 * 7, 1},
        {"[gru]\noutput=7\n", 3 * (32 * 24 * 8 * 7 + 7 * 7), 1},
        {"[lstm]\noutput=7\n", 4 * (32 * 24 * 8 * 7 + 7 * 7), 1},
        {"[crnn]\nhidden_filters=3\noutput_filters=5\n", 9 * (8 * 3 + 3 * 3 + 3 * 5), 32 * 24},
        {"[maxpool]\nsize=2\nstride=2\n", 0, 1},
        {"[upsample]\nstride=2\n", 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300];
        snprintf(text, sizeof text, WIDE "%s", cases[i].layer); /* of 8 channels, too */
        struct amp_net_desc *net = describe_layers(text);
        if (!net) TEST_FAIL("%s: %s", text, err);
        if (!net) continue;
        const struct amp_layer_desc *l = &net->layers[net->n - 1];
        if (l->n_weights != cases[i].weights ||
            l->forward_flop != 2. * (double)cases[i].weights * (double)cases[i].places)
            TEST_FAIL("%s: %zu weights, %g FLOP", cases[i].layer, l->n_weights, l->forward_flop);
        forget(net);
    }
}

AMP_TEST(every_stock_cfg_is_described)
{
    static char paths[STOCK_MOST][4096];
    int n = stock_cfgs(paths);
    CHECK_INT(n, 45);
    for (int i = 0; i < n; i++) {
        struct amp_net_desc *net = describe_file(paths[i], 0, 0);
        CHECK(net->n > 0 && net->layers[net->n - 1].outputs > 0);
        forget(net);
    }
}

AMP_TEST_MAIN
