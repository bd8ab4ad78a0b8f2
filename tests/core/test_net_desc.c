/* What a cfg describes: shapes, sources, weights and operations against published numbers, and the
 * errors with file, line and culprit. */
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

static void check_fails(const char *layers, const char *message)
{
    struct amp_net_desc *net = describe_layers(layers);
    if (net) TEST_FAIL("accepted: %s", layers);
    CHECK_STR(err, message);
    forget(net);
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

AMP_TEST(a_pass_has_an_image)
{
    static const char *const keys[] = {"batch=0\ntime_steps=2", "time_steps=0\nbatch=2"};
    static const char *const messages[] = {"a.cfg:2: batch=0 in [net]: must be at least 1",
                                           "a.cfg:2: time_steps=0 in [net]: must be at least 1"};
    for (int i = 0; i < 2; i++) {
        char text[200];
        snprintf(text, sizeof text, "[net]\n%s\ninputs=10\n[connected]\noutput=2\n", keys[i]);
        struct amp_net_desc *net = describe(text, true);
        CHECK(!net);
        CHECK_STR(err, messages[i]);
        forget(net);
    }
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

AMP_TEST(what_this_darknet_would_replace_is_an_error)
{
    check_fails("[convolutional]\nactivation=mish\n",
                "a.cfg:8: activation=mish: this Darknet does not know it and would train ReLU "
                "instead; allowed: logistic, relu, relie, linear, ramp, tanh, plse, leaky, elu, "
                "loggy, stair, hardtan, lhtan, selu");
    check_fails("[convolutional]\nactivation=leeky\n",
                "a.cfg:8: activation=leeky: this Darknet does not know it and would train ReLU "
                "instead; allowed: logistic, relu, relie, linear, ramp, tanh, plse, leaky, elu, "
                "loggy, stair, hardtan, lhtan, selu; did you mean leaky?");
    check_fails("[convolutional]\nactivation = leaky # x\n",
                "a.cfg:8: activation=leaky # x: this Darknet does not know it and would train ReLU "
                "instead; allowed: logistic, relu, relie, linear, ramp, tanh, plse, leaky, elu, "
                "loggy, stair, hardtan, lhtan, selu (a remark is not allowed after a value: put it "
                "on a line of its own)");
    check_fails("[max]\nsize=25\nstride=1\npadding=0\n",
                "a.cfg:7: [max]: its input of 32 x 24 x 8 is too small, the output would be 8 x 0 "
                "x 8");
    check_fails("[conv]\n[scale_channels]\nfrom=-1\n",
                "a.cfg:8: [scale_channels]: this Darknet has no such layer; it would leave it "
                "empty");
    check_fails("[conv]\n[upsampel]\n",
                "a.cfg:8: [upsampel]: this Darknet has no such layer; it would leave it empty; "
                "did you mean [upsample]?");
    check_fails("[conv]\n[route]\nlayers=-1\ngroups=2\n",
                "a.cfg:10: groups=2 in [route]: this Darknet ignores it and would train another "
                "network; remove the key, or use a cfg made for this Darknet; mixed_precision=1 "
                "trains it by AlexeyAB's rules, with amp_dtype=fp32 in FP32");
}

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

AMP_TEST(impossible_layers_are_errors)
{
    check_fails("[convolutional]\nfilters=0\n",
                "a.cfg:8: filters=0 in [convolutional]: must be at least 1");
    check_fails("[convolutional]\nfilters=4\nstride=-1\n",
                "a.cfg:9: stride=-1 in [convolutional]: must be at least 1");
    check_fails("[convolutional]\nfilters=4\ngroups=3\n",
                "a.cfg:9: groups=3 in [convolutional]: must divide its 8 input channels and 4 "
                "filters");
    check_fails("[convolutional]\nfilters=4\nsize=25\n",
                "a.cfg:7: [convolutional]: its input of 32 x 24 is smaller than the 25 x 25 "
                "filter");
    check_fails("[connected]\noutput=4\n[softmax]\n[convolutional]\n",
                "a.cfg:10: [convolutional]: the layer before it must give an image (width x height "
                "x channels)");
    check_fails("[maxpool]\nsize=5\nstride=5\npadding=0\n[upsample]\nstride=5\n"
                "[route]\nlayers=-1,0\n[convolutional]\n",
                "a.cfg:13: [route] joins layer 1, 30 x 20, and layer 0, 6 x 4: no image for the "
                "[convolutional] after it (line 15); they must have the same size");
    check_fails("[maxpool]\nsize=5\nstride=5\npadding=0\n[upsample]\nstride=5\n"
                "[route]\nlayers=-1,0\n[yolo]\nmask=0\nnum=1\nclasses=1\n",
                "a.cfg:13: [route] joins layer 1, 30 x 20, and layer 0, 6 x 4: no image for the "
                "[yolo] after it (line 15); they must have the same size");
    check_fails("[conv]\nsize=3\nstride=2\npad=1\n[conv]\nsize=3\nstride=2\npad=1\n"
                "[conv]\nsize=3\nstride=2\npad=1\n[conv]\nsize=3\nstride=2\npad=1\n"
                "[upsample]\n[route]\nlayers=-1,-3\n[avgpool]\n",
                "a.cfg:24: [route] joins layer 4, 4 x 4, and layer 2, 4 x 3: no image for the "
                "[avgpool] after it (line 26); they must have the same size; sizes that fit are "
                "multiples of 16: width=32, height=16, or width=32, height=32");
    check_fails("[conv]\nfilters=25\n[reorg]\nstride=5\n",
                "a.cfg:10: stride=5 in [reorg]: must divide the 32 x 24 input");
    check_fails("[reorg]\nstride=4\nreverse=1\n",
                "a.cfg:8: stride=4 in [reorg]: its square must divide the 8 channels");
    check_fails("[conv]\nfilters=6\n[reorg]\nstride=2\n",
                "a.cfg:10: stride=2 in [reorg]: its square must divide the 6 channels");
    check_fails("[dropout]\n", "a.cfg:7: [dropout] cannot be the first layer");
    check_fails("[conv]\n[dropout]\nprobability=1\n",
                "a.cfg:9: probability=1 in [dropout]: must be at least 0 and below 1");
    check_fails("[upsample]\nstride=0\n", "a.cfg:8: stride=0 in [upsample]: must be at least 1");
    check_fails("[upsample]\nstride=-5\n",
                "a.cfg:8: stride=-5 in [upsample]: must divide the 32 x 24 input; this Darknet "
                "would add up cells of different rows");
    check_fails("[convolutional]\nfilters=100000000\n",
                "a.cfg:8: filters=100000000 in [convolutional]: allowed is up to 1000000");
    check_fails("[conv]\nfilters=4\n[normalization]\nsize=10\n",
                "a.cfg:10: size=10 in [normalization]: allowed: 1 to 9, with 4 channels");
    check_fails("[reorg]\nextra=-1\n", "a.cfg:8: extra=-1 in [reorg]: allowed is 0 to 2147477503");
    check_fails("[conv]\nfilters=15\n[yolo]\nnum=0\n",
                "a.cfg:9: [yolo]: num=0, classes=20, coords=4; allowed: num 1 to 1000, the others "
                "not below 0");
    check_fails("[conv]\nfreeze=1\n[connected]\noutput=4\nfreeze=1\n",
                "a.cfg:7: [conv]: with freeze=1 here no layer is left that would learn; allowed: "
                "freeze=1 in all layers but one, at most");
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

AMP_TEST(counts_are_at_least_1)
{
    static const char *const keys[][2] = {
        {"conv", "filters"},     {"conv", "size"},           {"conv", "stride"},
        {"deconv", "filters"},   {"deconv", "size"},         {"deconv", "stride"},
        {"local", "filters"},    {"local", "size"},          {"local", "stride"},
        {"connected", "output"}, {"rnn", "output"},          {"gru", "output"},
        {"lstm", "output"},      {"crnn", "output_filters"}, {"crnn", "hidden_filters"},
        {"maxpool", "size"},     {"maxpool", "stride"},      {"reorg", "stride"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (int value = -1; value <= 0; value++) {
            char text[200], begin[100];
            snprintf(text, sizeof text, WIDE "[%s]\n%s=%d\n", keys[i][0], keys[i][1], value);
            snprintf(begin, sizeof begin, "a.cfg:12: %s=%d in [%s]: ", keys[i][1], value,
                     keys[i][0]);
            struct amp_net_desc *net = describe_layers(text);
            if (net || strncmp(err, begin, strlen(begin)))
                TEST_FAIL("%s=%d in [%s]: %s", keys[i][1], value, keys[i][0],
                          net ? "accepted" : err);
            forget(net);
        }
}

/* Behind a convolution that learns. */
static void check_allowed(const char *layer, const char *key, bool allowed)
{
    char text[300], begin[40];
    snprintf(text, sizeof text, "[conv]\nfilters=8\n%s%s=1\n[conv]\nfilters=4\n", layer, key);
    struct amp_net_desc *net = describe_layers(text);
    snprintf(begin, sizeof begin, "%s=1 in [", key);
    if (allowed != (net != NULL) || (!allowed && !strstr(err, begin)))
        TEST_FAIL("%s%s=1: %s", layer, key, net ? "accepted" : err);
    forget(net);
}

AMP_TEST(layers_that_may_rest_or_be_computed_again)
{
    static const struct {
        const char *layer;
        bool freeze, checkpoint;
    } cases[] = {{"[conv]\nfilters=4\n", true, true},
                 {"[conv]\nfilters=4\nbinary=1\n", false, false},
                 {"[conv]\nfilters=4\nxnor=1\n", false, false},
                 {"[deconvolutional]\nfilters=4\nsize=2\nstride=2\n", true, true},
                 {"[local]\nfilters=2\nsize=1\n", true, true},
                 {"[maxpool]\nsize=2\nstride=2\n", false, true},
                 {"[avgpool]\n", false, true},
                 {"[route]\nlayers=-1\n", false, true},
                 {"[shortcut]\nfrom=-1\n", false, true},
                 {"[upsample]\nstride=2\n", false, true},
                 {"[reorg]\nstride=2\n", false, true},
                 {"[dropout]\n", false, true},
                 {"[activation]\nactivation=relu\n", false, true},
                 {"[batchnorm]\n", false, false},
                 {"[crnn]\nhidden_filters=3\noutput_filters=5\n", false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_allowed(cases[i].layer, "freeze", cases[i].freeze);
        check_allowed(cases[i].layer, "checkpoint", cases[i].checkpoint);
    }
}

/* One layer's matrix or kernels; of a layer with several, each in turn is the one too large. */
static void check_weights_bound(const char *layer, const char *keys)
{
    char layers[200], message[200];
    snprintf(layers, sizeof layers, "[%s]\n%s", layer, keys);
    snprintf(message, sizeof message, "a.cfg:7: [%s]: more than 2^31 weights", layer);
    check_fails(layers, message);
}

AMP_TEST(too_many_weights_are_errors)
{
    check_weights_bound("convolutional", "filters=1000000\nsize=20\nstride=20\n");
    check_weights_bound("deconvolutional", "filters=100000\nsize=60\n");
    check_weights_bound("local", "filters=10000\nsize=15\n");
    check_weights_bound("connected", "output=400000\n");
    check_weights_bound("rnn", "output=400000\n");
    check_weights_bound("rnn", "output=50000\n");
    check_weights_bound("gru", "output=50000\n");
    check_weights_bound("lstm", "output=50000\n");
    check_weights_bound("crnn", "hidden_filters=16000\noutput_filters=1\n");
    check_weights_bound("crnn", "hidden_filters=1000\noutput_filters=300000\n");
}

AMP_TEST(impossible_sources_are_errors)
{
    check_fails("[conv]\n[route]\n", "a.cfg:8: [route]: the key layers= is missing");
    check_fails("[conv]\n[route]\nlayers=-1,-3\n",
                "a.cfg:9: layers=-1,-3 in [route]: entry 2 is layer -2, allowed are the layers "
                "before it, 0 to 0");
    check_fails("[conv]\n[route]\nlayers=1\n",
                "a.cfg:9: layers=1 in [route]: entry 1 is layer 1, allowed are the layers before "
                "it, 0 to 0");
    check_fails("[conv]\n[route]\nlayers = -1, 1\n",
                "a.cfg:9: layers=-1, 1 in [route]: entry 2 is layer 1, allowed are the layers "
                "before it, 0 to 0");
    check_fails("[conv]\n[conv]\n[shortcut]\nfrom=0,1\n",
                "a.cfg:10: from= in [shortcut]: this Darknet adds exactly one layer, 2 are given");
    check_fails("[conv]\n[crop]\ncrop_width=16\ncrop_height=24\n[shortcut]\nfrom=0\n",
                "a.cfg:12: from=0 in [shortcut]: 32 x 24 x 1 cannot be added to 16 x 24 x 1; width "
                "and height must have the same ratio");
}

AMP_TEST(a_head_that_does_not_fit_says_what_would)
{
    check_fails("[conv]\nfilters=15\n[yolo]\nmask=0,1\nclasses=2\nnum=6\n",
                "a.cfg:9: [yolo] needs 14 values for each of 768 cells (classes=2, boxes per cell "
                "2), the layer before it gives 11520 in all; set its filters= to 14");
}

AMP_TEST(the_net_section_is_checked)
{
    CHECK(!describe("[convolutional]\nfilters=1\n[net]\nwidth=1\n", true));
    CHECK_STR(err, "a.cfg:1: the first section is [convolutional], it must be [net] or [network]");
    forget(NULL);
    CHECK(!describe("[net]\nwidth=8\nheight=8\n[conv]\nfilters=1\n", true));
    CHECK_STR(err, "a.cfg:1: [net]: give width=, height= and channels=, or inputs=");
    forget(NULL);
    CHECK(!describe("[net]\nwidth=8\nheight=8\nchannels=3\n", true));
    CHECK_STR(err, "a.cfg:1: there is no layer after [net]");
    forget(NULL);
    CHECK(!describe("[net]\nbatch=2\nsubdivisions=4\ninputs=3\n[connected]\noutput=2\n", true));
    CHECK_STR(err, "a.cfg:3: batch=2 with subdivisions=4 leaves no image for a pass; allowed: a "
                   "divisor of batch, at least 1, or with mixed_precision=1 auto");
    forget(NULL);
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
