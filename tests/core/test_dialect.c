/* By whose rules a cfg is trained: what decides, what the fork's rules note and refuse, and what a
 * net is by them. */
#include "planned.h"

static char notes[8192];

#define MIXED "[net]\nmixed_precision=1\n"
#define SMALL MIXED "width=64\nheight=32\nchannels=3\n"

/* ---- what decides ---- */

AMP_TEST(what_decides)
{
    static const struct {
        const char *text, *reason;
    } cases[] = {
        /* what only the fork has */
        {MIXED "[route]\nlayers=-1\ngroups=2\ngroup_id=1\n", "line 5: groups=2"},
        {MIXED "[yolo]\niou_loss = ciou\n", "line 4: iou_loss=ciou"},
        {MIXED "[yolo]\nmax_delta=5\n", "line 4: max_delta=5"},
        {MIXED "mosaic=1\n[yolo]\niou_loss=ciou\n", "line 3: mosaic=1"},
        {MIXED "flip=0\n", "line 3: flip=0"},
        {MIXED "[conv]\nactivation=mish\n", "line 4: activation=mish"},
        {MIXED "[conv]\nactivation=norm_chan\n", "line 4: activation=norm_chan"},
        {MIXED "[conv]\nstopbackward=800\n", "line 4: stopbackward=800"},
        {MIXED "[yolo]\nrandom=1.4\n", "line 4: random=1.4"},
        {MIXED "[sam]\nfrom=-1\n", "line 3: [sam]"},
        {MIXED "[rnn]\noutput=4\nhidden=5\n", "line 5: hidden=5"},
        {MIXED "[rnn]\nlogistic=1\n", "line 4: logistic=1"},
        {MIXED "[conv]\nstride=2\nstride_x=1\n", "line 5: stride_x=1"},
        /* what asks for no other network */
        {MIXED "[route]\nlayers=-1\ngroups=1\n", ""},
        {MIXED "flip=1\nmosaic=0\n[yolo]\niou_loss=mse\niou_normalizer=1.0\nmax=200\n", ""},
        {MIXED "[yolo]\nnms_kind=greedynms\nbeta_nms=.6\nshow_details=1\n", ""},
        {MIXED "ema_alpha=.99\nmax_chart_loss=9\n", ""},
        {MIXED "[rnn]\noutput=4\nhidden=4\n", ""},
        {MIXED "[conv]\nstride=2\nstride_x=2\n", ""},
        {MIXED "[conv]\nstopbackward=1\nbatch_normalize=2\nactivation=leakyy\n", ""},
        {MIXED "epochs=9\nnesterov=1\n[foo]\n", ""},
        /* what is asked for */
        {MIXED "amp_dialect=fork\n", "line 3: amp_dialect=fork"},
        {MIXED "amp_dialect=stock\n[yolo]\niou_loss=ciou\n", ""},
        {MIXED "amp_dialect=auto\n[yolo]\niou_loss=ciou\n", "line 5: iou_loss=ciou"},
        {"[net]\namp_dialect=fork\n[yolo]\niou_loss=ciou\n", ""},
        {"[net]\nmixed_precision=0\n[yolo]\niou_loss=ciou\n", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cfg = amp_cfg_parse("a.cfg", cases[i].text, strlen(cases[i].text), err, sizeof err);
        REQUIRE(cfg != NULL);
        bool fork = cfg->dialect == AMP_DIALECT_FORK;
        if (strcmp(cfg->dialect_reason, cases[i].reason) || fork != (*cases[i].reason != '\0'))
            TEST_FAIL("%s: \"%s\", expected \"%s\"", cases[i].text, cfg->dialect_reason,
                      cases[i].reason);
        forget();
    }
}

/* ---- notes and errors ---- */

/* 0 or -1 of the options, then of the description; notes and err hold what was said. */
static int read_text(const char *text)
{
    notes[0] = err[0] = '\0';
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    if (!cfg || amp_options_read(cfg, &options, notes, sizeof notes, err, sizeof err)) return -1;
    net = amp_net_describe(cfg, 0, 0, true, err, sizeof err);
    return net ? 0 : -1;
}

#define FORK     MIXED "amp_dialect=fork\nwidth=64\nheight=32\nchannels=3\n"
#define HEAD     "[conv]\nfilters=14\nsize=1\nactivation=linear\n[yolo]\nmask=0,1\nclasses=2\nnum=2\n"
#define ANCHORED HEAD "anchors=1,2,3,4\n"

/* A cfg of the fork's users need not have a key of the fork's own. */
AMP_TEST(errors_that_only_stocks_rules_have_name_the_other_ones)
{
    static const char words[] = "amp_dialect=fork under [net]";
    static const struct {
        const char *keys;
        bool named;
    } cases[] = {
        {"policy=steps\nsteps=4\nscales=.1,.1\n", true},
        {"policy=steps\nsteps=4,3\nscales=.1,.1\n", true},
        {"batch=64\nsubdivisions=22\n", true},
        {"max_batches=500.5\n", true},
        {"subdivision=2\n", true},
        {"max_batches=many\n", false}, /* an error of the fork's too */
        {"amp_dialect=stock\nsubdivision=2\n", false},
    };
    char text[1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, SMALL "%s" ANCHORED, cases[i].keys);
        CHECK_INT(read_text(text), -1);
        if (!!strstr(err, words) != cases[i].named) TEST_FAIL("%s: %s", cases[i].keys, err);
        forget();
    }
    static const char *const anchors[] = {"1,2,3,4,5,6", "1,2"};
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, SMALL HEAD "anchors=%s\n", anchors[i]);
        CHECK_INT(read_text(text), -1);
        CHECK(strstr(err, words));
        forget();
    }
}

/* Each with the message's line and words; "" for silence. */
AMP_TEST(what_the_fork_ignores_is_noted)
{
    static const struct {
        const char *text, *where, *words[3];
    } cases[] = {
        {FORK ANCHORED "iou_loss=eiou\n", "a.cfg:16: iou_loss=eiou", {"does not know this word"}},
        {FORK ANCHORED "nms_kind=soft\n", "a.cfg:16: nms_kind=soft", {"does not know this word"}},
        {FORK ANCHORED, "", {""}},
        {FORK "batch=64\nsubdivisions=22\n" ANCHORED, "a.cfg:8: ", {"train 44 images"}},
        {FORK "batch=32\nsubdivisions=64\n" ANCHORED, "a.cfg:8: ", {"train 64 images"}},
        {FORK "policy=steps\nsteps=400,300\nscales=.1,.1\n" ANCHORED, "a.cfg:8: ", {"only at 400"}},
        {FORK "policy=steps\nsteps=1600.0,1800.0\nscales=.1,.1\n" ANCHORED,
         "a.cfg:8: ",
         {"1600.0"}},
        {FORK "policy=steps\nsteps=400\nscales=.1,.1\n" ANCHORED, "a.cfg:9: ", {"2 numbers"}},
        {FORK "max_batches=9\npolicy=steps\nsteps=4,9\nscales=.1,.1\n" ANCHORED,
         "a.cfg:9: ",
         {"max_batches=9", "before 9"}},
        {FORK "max_batches=9\nburn_in=9\n" ANCHORED, "a.cfg:8: ", {"burn_in=9", "max_batches=9"}},
        {FORK "batch=1\nbatch=2\n" ANCHORED, "a.cfg:8: ", {"given twice", "line 7 counts"}},
        {FORK "learning_rate=0.01 #0.00261\n" ANCHORED, "a.cfg:7: ", {"reads 0.01"}},
        {FORK "subdivision=8\n" ANCHORED, "a.cfg:7: ", {"did you mean subdivisions?"}},
        {FORK "mosiac=1\n" ANCHORED, "a.cfg:7: ", {"did you mean mosaic?"}},
        {FORK "cudnn=1\nopenmp=1\n" ANCHORED, "a.cfg:7: ", {"cudnn=1", "no effect", "openmp"}},
        {FORK "nesterov=1\nepochs=9\n" ANCHORED,
         "a.cfg:7: ",
         {"nesterov=1", "no effect", "epochs (line 8)"}},
        {FORK "max_chart_loss=9\n" ANCHORED "show_details=0\n",
         "a.cfg:7: ",
         {"max_chart_loss=9", "no effect", "show_details (line 17)"}},
        {FORK "label_smooth_eps=.1\n" ANCHORED, "a.cfg:7: ", {"no effect"}},
        {FORK "max_batches=2000\nema_alpha=.9\n" ANCHORED,
         "a.cfg:8: ",
         {"ema_alpha=.9", "no effect", "max_batches=2000 must be above 2000"}},
        {FORK "max_batches=2002\nema_alpha=.9\n" ANCHORED, "", {""}},
        {FORK HEAD "anchors=1,2,3,4,5,6\n", "a.cfg:15: ", {"6 numbers", "not read the others"}},
        {FORK HEAD "anchors=1,2\n", "a.cfg:15: ", {"2 numbers", "take 0.5"}},
        {FORK ANCHORED "track_history_size=5\n", "a.cfg:16: ", {"track_history_size", "no effect"}},
        {FORK "[conv]\nmax_batches=4\n[conv]\n" ANCHORED, "a.cfg:8: ", {"max_batches=4"}},
        {FORK "[conv]\n[shortcut]\nfrom=-1\nalpha=.5\n[conv]\n" ANCHORED,
         "a.cfg:10: ",
         {"alpha=.5"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (read_text(cases[i].text)) TEST_FAIL("%s: %s", cases[i].text, err);
        bool said = strncmp(notes, cases[i].where, strlen(cases[i].where)) == 0;
        for (int k = 0; k < 3 && cases[i].words[k]; k++)
            said = said && strstr(notes, cases[i].words[k]);
        if (!said || (!*cases[i].where && *notes)) TEST_FAIL("%s: %s", cases[i].text, notes);
        forget();
    }
}

AMP_TEST(what_it_would_lose_is_refused)
{
    static const struct {
        const char *text, *words[3];
    } cases[] = {
        {FORK "[Gaussian_yolo]\n", {"a.cfg:7: [Gaussian_yolo]", "not supported", "uncertainty"}},
        {FORK "[conv]\n[sam]\nfrom=-1\n", {"a.cfg:8: [sam]", "lose attention"}},
        {FORK "[conv]\nantialiasing=1\n", {"a.cfg:8: antialiasing=1", "lose the blur"}},
        {FORK "[conv]\ndilation=2\n", {"a.cfg:8: dilation=2", "dilated"}},
        {FORK "[conv]\nbatch_normalize=2\n", {"a.cfg:8: batch_normalize=2", "several passes"}},
        {FORK "[conv]\nstride_x=2\nstride_y=1\n", {"a.cfg:8: stride_x=2"}},
        {FORK "[conv]\nshare_index=2\n", {"a.cfg:8: share_index=2", "shared"}},
        {FORK "[conv]\n[shortcut]\nfrom=-1\nweights_type=per_channel\n",
         {"a.cfg:10: weights_type"}},
        {FORK "[conv]\n[conv]\n[shortcut]\nfrom=-1,-2\n", {"a.cfg:10: from= in [shortcut]"}},
        {FORK "adversarial_lr=1\n" ANCHORED, {"a.cfg:7: adversarial_lr=1", "adversarial"}},
        {FORK "time_steps=4\n" ANCHORED, {"a.cfg:7: time_steps=4"}},
        {MIXED "contrastive=1\n[conv]\n", {"a.cfg:3: contrastive=1", "(line 3: contrastive=1)"}},
        {FORK "[conv]\nactivation=gelu\n", {"a.cfg:8: activation=gelu", "not supported"}},
        {FORK ANCHORED "max=-1\n", {"a.cfg:16: max=-1", "1 to 1000"}},
        {FORK ANCHORED "max=1001\n", {"a.cfg:16: max=1001", "1 to 1000"}},
        {FORK ANCHORED "scale_x_y=0\n", {"a.cfg:16: scale_x_y=0", "above 0"}},
        {FORK "[conv]\nfilters=10\n[region]\nfocal_loss=1\n", {"a.cfg:10: focal_loss=1"}},
        /* what no Darknet makes sense of */
        {FORK "learning_rate=fast\n" ANCHORED, {"a.cfg:7: learning_rate=fast", "finite number"}},
        {FORK "policy=steps\nsteps=1,x\nscales=1,1\n" ANCHORED, {"a.cfg:8: steps=1,x", "\"x\""}},
        {FORK "policy=steps\nsteps=1,2\nscales=1\n" ANCHORED, {"a.cfg:9: scales=1", "at least 2"}},
        {FORK "subdivisions=0\n" ANCHORED, {"a.cfg:7: subdivisions=0"}},
        {FORK "[conv]\nfilters=255\n[yolo]\nmask=0,1\nnum=2\nclasses=2\n",
         {"a.cfg:9: [yolo]", "filters= to 14"}},
        {FORK HEAD "mask=0\nanchors=1,2\n[conv]\nfilters=7\n[yolo]\nmask=2\nnum=2\nclasses=2\n",
         {"a.cfg:20: mask= in [yolo] names anchor 2", "0 to 1"}},
        {FORK "resize_step=0\n" ANCHORED, {"a.cfg:7: resize_step=0", "at least 1"}},
        {FORK "resize_step=2147483647\n" ANCHORED, {"a.cfg:7: resize_step=2147483647", "1000000"}},
        {FORK ANCHORED "max_delta=0\n", {"a.cfg:16: max_delta=0", "above 0"}},
        {FORK ANCHORED "counters_per_class=9\n",
         {"a.cfg:16: counters_per_class=", "1 numbers", "2"}},
        {FORK "jitter=2\n" ANCHORED "jitter=2\n", {"a.cfg:17: jitter=2", "0 to below 1"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (read_text(cases[i].text) == 0) TEST_FAIL("%s: no error", cases[i].text);
        for (int k = 0; k < 3 && cases[i].words[k]; k++)
            if (!strstr(err, cases[i].words[k])) TEST_FAIL("%s: %s", cases[i].text, err);
        forget();
    }
}

/* By stock's rules the same is an error, as ever. */
AMP_TEST(stock_stays_strict)
{
    static const char *const cases[][2] = {
        {SMALL "batch=64\nsubdivisions=22\n[conv]\n", "a.cfg:7: "},
        {SMALL "policy=steps\nsteps=4.0\nscales=.1\n[conv]\n", "a.cfg:7: "},
        {SMALL "subdivision=8\n[conv]\n", "a.cfg:6: "},
        {SMALL "amp_dialect=stock\nmosaic=1\n[conv]\n", "a.cfg:7: mosaic=1"},
        {SMALL "amp_dialect=stock\n[conv]\n[route]\nlayers=-1\ngroups=2\n", "a.cfg:10: groups=2"},
        {SMALL "amp_dialect=any\n[conv]\n",
         "a.cfg:6: amp_dialect=any: allowed: auto, stock or fork"},
        {"[net]\nbatch=1\r\n[conv]\n", "a.cfg:2: has a carriage return"},
        {MIXED "batch=1\r\n[conv]\n", "a.cfg:3: has a carriage return"},
        {"[net]\nwidth=4\nheight=4\nchannels=3\n[conv]\nactivation=mish\n",
         "a.cfg:6: activation=mish"},
        {"[net]\nwidth=4\nheight=4\nchannels=3\n[conv]\n[route]\nlayers=-1\ngroups=2\n",
         "mixed_precision=1 trains it by AlexeyAB's rules, with amp_dtype=fp32 in FP32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (read_text(cases[i][0]) == 0 || !strstr(err, cases[i][1]))
            TEST_FAIL("%s: %s", cases[i][0], err);
        forget();
    }
}

AMP_TEST(files_from_windows)
{
    CHECK_INT(read_text("# made\r\n[net]\r\nmixed_precision=1\r\nwidth=32 \r\nheight=32\r\n"
                        "channels=3\r\n\r\n[conv]\r\n[route]\r\nlayers=-1\r\ngroups=1\r\n"
                        "[convolutional]\r\nfilters=7\r\n[yolo]\r\nclasses=2\r\nnew_coords=1"),
              0);
    CHECK_STR(err, "");
    CHECK_STR(cfg->sections[0].entries[1].written, "32");
    CHECK_STR(cfg->dialect_reason, "line 16: new_coords=1");
    forget();
    /* In the middle of a line it is a fault by any rules. */
    CHECK_INT(read_text(MIXED "amp_dialect=fork\nwidth=3\r2\n"), -1);
    CHECK(strstr(err, "a.cfg:4: has a carriage return"));
    forget();
}

/* ---- what the net is ---- */

AMP_TEST(parts_of_channels)
{
    CHECK_INT(read_text(SMALL "[conv]\nfilters=12\n[conv]\nfilters=20\n[route]\nlayers=-1,-2\n"
                              "groups=4\ngroup_id=3\n[conv]\nfilters=2\n"),
              0);
    const struct amp_layer_desc *l = &net->layers[2];
    CHECK_INT(l->groups, 4);
    CHECK_INT(l->group_id, 3);
    CHECK_INT(l->out_c, 5 + 3);
    CHECK_INT(l->outputs, 8 * 64 * 32);
    CHECK_INT(net->layers[3].n_weights, 8 * 2);
    forget();
    static const char *const cases[][2] = {
        {"groups=5\n", "a.cfg:10: groups=5 in [route]: must divide the 12 channels of layer 0"},
        {"groups=0\n", "a.cfg:10: groups=0 in [route]: must be at least 1"},
        {"groups=2\ngroup_id=2\n", "a.cfg:11: group_id=2 in [route]: allowed: 0 to 1, with "
                                   "groups=2"},
        {"groups=2\ngroup_id=-1\n", "a.cfg:11: group_id=-1 in [route]: allowed: 0 to 1, with "
                                    "groups=2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 SMALL "[conv]\nfilters=12\n[route]\nlayers=-1\n%s[yolo]\nmax_delta=1\n",
                 cases[i][0]);
        CHECK_INT(read_text(text), -1);
        CHECK_STR(err, cases[i][1]);
        forget();
    }
    CHECK_INT(read_text(SMALL "[conv]\nfilters=4\n[maxpool]\nstride=2\n[route]\nlayers=-1,0\n"
                              "groups=2\n"),
              -1);
    CHECK_STR(err, "a.cfg:12: groups=2 in [route]: source 0 gives 64 x 32; allowed: 32 x 16, as "
                   "the layer before");
    forget();
}

/* A route of a part has an output of its own: nobody writes into it, and it is no alias. */
AMP_TEST(a_part_is_planned_as_a_copy)
{
    plan_text(SMALL "batch=2\n[conv]\nfilters=16\nsize=1\nbatch_normalize=1\nactivation=leaky\n"
                    "[route]\nlayers=-1\ngroups=2\ngroup_id=1\n"
                    "[conv]\nfilters=14\nsize=1\nactivation=linear\n"
                    "[yolo]\nmask=0,1\nnum=2\nclasses=2\nanchors=1,2,3,4\n",
              true);
    CHECK_INT(net->dialect, AMP_DIALECT_FORK);
    CHECK_INT(plan->layers[0].route, -1);
    CHECK_INT(net->layers[1].out_c, 8);
    char text[8192] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    REQUIRE(f != NULL);
    amp_plan_print(plan, net, f);
    fclose(f);
    CHECK(!strncmp(text, "rules: fork (line 14: groups=2)\nmixed precision plan: ", 54));
    forget();
}

AMP_TEST(numbers_of_a_head)
{
    const char *const keys = "iou_loss=ciou\niou_normalizer=.07\nobj_normalizer=.4\n"
                             "cls_normalizer=.5\nmax_delta=2\niou_thresh=.2\n"
                             "iou_thresh_kind=giou\nscale_x_y=1.05\nnew_coords=1\n"
                             "label_smooth_eps=.1\nfocal_loss=1\nobjectness_smooth=1\n"
                             "counters_per_class=10,40\nnms_kind=diounms\nbeta_nms=.7\n"
                             "jitter=.1\nresize=1.5\nrandom=1.2\nmax=150\n";
    char text[2048];
    snprintf(text, sizeof text, FORK ANCHORED "%s", keys);
    CHECK_INT(read_text(text), 0);
    const struct amp_layer_desc *l = &net->layers[1];
    const struct amp_yolo_desc *y = &l->loss.yolo;
    CHECK_INT(y->box_loss, AMP_BOX_CIOU);
    CHECK_INT(y->iou_thresh_kind, AMP_BOX_GIOU);
    CHECK_INT(y->nms_kind, AMP_BOX_NMS_DIOU);
    CHECK(y->iou_normalizer == .07f && y->obj_normalizer == .4f && y->cls_normalizer == .5f);
    CHECK(y->max_delta == 2 && y->iou_thresh == .2f);
    CHECK(y->scale_x_y == 1.05f && y->new_coords && y->label_smooth_eps == .1f);
    CHECK(y->focal_loss && y->objectness_smooth && y->beta_nms == .7f);
    CHECK(y->jitter == .1f && y->resize == 1.5f && y->random == 1.2f);
    REQUIRE(y->class_multipliers != NULL);
    CHECK(y->class_multipliers[0] == 2 && y->class_multipliers[1] == 1); /* 4, but max_delta */
    CHECK(l->truths == 150 && l->max_boxes == 150 && l->random == 1);
    forget();
    /* Without keys, by the fork's rules and by stock's. */
    CHECK_INT(read_text(FORK ANCHORED), 0);
    y = &net->layers[1].loss.yolo;
    CHECK(y->box_loss == AMP_BOX_MSE && y->iou_normalizer == .75f && y->obj_normalizer == 1);
    CHECK(y->max_delta == 0 && y->iou_thresh == 1 && y->scale_x_y == 1 && !y->new_coords);
    CHECK(y->nms_kind == AMP_BOX_NMS_DEFAULT && y->beta_nms == .6f && y->jitter == .2f);
    CHECK(net->layers[1].truths == 200 && !y->class_multipliers);
    forget();
    CHECK_INT(read_text(SMALL ANCHORED), 0);
    y = &net->layers[1].loss.yolo;
    CHECK(y->box_loss == AMP_BOX_MSE && y->iou_normalizer == 1 && net->layers[1].truths == 90);
    forget();
    /* The last head has room for all; a word that the fork does not know is iou. */
    CHECK_INT(read_text(FORK ANCHORED "max=7\niou_loss=eiou\n" ANCHORED "max=50\n"), 0);
    CHECK(net->layers[1].truths == 50 && net->layers[3].truths == 50);
    CHECK_INT(net->layers[1].loss.yolo.box_loss, AMP_BOX_IOU);
    forget();
}

AMP_TEST(defaults_of_layers_and_net)
{
    CHECK_INT(read_text(FORK "adam=1\nbatch=32\nsubdivisions=64\nmosaic=1\n[conv]\nfilters=4\n"
                             "stopbackward=800\n[dropout]\n[conv]\nfilters=8\n[shortcut]\n"
                             "from=-2\nalpha=3\n"),
              0);
    CHECK(net->layers[1].probability == .2f);
    CHECK(net->layers[3].alpha == 1 && net->layers[3].out_c == 8);
    CHECK(net->batch == 1 && net->subdivisions == 64 && net->mosaic && net->flip);
    CHECK(net->layers[0].stop_until == 800 && !net->layers[0].stopbackward);
    CHECK(amp_net_stop(net, 799) && net->layers[0].stopbackward && !amp_net_stop(net, 0));
    CHECK(amp_net_stop(net, 800) && !net->layers[0].stopbackward);
    CHECK(options.rules.eps == 1e-6);
    forget();
    /* As everywhere, but for the default of eps. */
    CHECK_INT(read_text(FORK "adam=1\nB1=.8\nB2=.9\neps=.5\npolicy=sgdr\nmax_batches=300\n"
                             "sgdr_cycle=100\nlearning_rate_min=.0001\n" ANCHORED),
              0);
    CHECK(options.rules.b1 == .8 && options.rules.b2 == .9);
    CHECK(options.rules.eps == .5);
    CHECK_INT(options.schedule.policy, AMP_POLICY_SGDR);
    CHECK(options.schedule.cycle == 100 && options.schedule.mult == 2);
    CHECK_STR(notes, "");
    forget();
    CHECK_INT(read_text(SMALL "adam=1\n[conv]\n[dropout]\n"), 0);
    CHECK(net->layers[1].probability == .5f && options.rules.eps == 1e-7);
    CHECK(net->flip && !net->mosaic && net->drawn_step == 32);
    forget();
    /* stopbackward=1: what is before it rests. */
    CHECK_INT(read_text(FORK "[conv]\n[conv]\nstopbackward=1\n[conv]\n"), 0);
    CHECK(net->layers[0].freeze && !net->layers[1].freeze && !net->layers[2].freeze);
    forget();
    CHECK_INT(read_text(FORK "[conv]\n[maxpool]\nstride=2\n[shortcut]\nfrom=-2\n"), -1);
    CHECK(strstr(err, "a.cfg:11: from=0 in [shortcut]: 64 x 32 cannot be added to 32 x 16"));
    forget();
}

/* A.12: side = round(factor * side / step + 1) * step. */
AMP_TEST(drawn_sizes)
{
    CHECK_INT(read_text(MIXED "amp_dialect=fork\nwidth=416\nheight=320\nchannels=3\n" ANCHORED
                              "random=1\n"),
              0);
    CHECK(net->drawn_most[0] == 608 && net->drawn_most[1] == 480);
    CHECK(net->drawn_least[0] == 320 && net->drawn_least[1] == 256);
    int w = 0, h = 0, n = 0;
    while (amp_net_next_size(net, &w, &h)) {
        CHECK(w % 32 == 0 && h % 32 == 0 && h >= 256 && h <= 480);
        n++;
    }
    CHECK_INT(n, 10);
    CHECK(w == 608 && h == 480);
    forget();
    CHECK_INT(read_text(FORK ANCHORED "random=1e30\n"), 0);
    CHECK(net->drawn_most[0] == AMP_MAX_INTEGER && net->drawn_least[0] == 32);
    forget();
    CHECK_INT(read_text(SMALL ANCHORED "random=1\n"), 0);
    for (n = w = h = 0; amp_net_next_size(net, &w, &h); n++)
        CHECK(w == 320 + 32 * n && h == w);
    CHECK_INT(n, 10);
    forget();
    CHECK_INT(read_text(SMALL ANCHORED), 0);
    w = h = 0;
    CHECK(!amp_net_next_size(net, &w, &h));
    forget();
}

AMP_TEST(what_is_not_trained)
{
    CHECK_INT(read_text(SMALL ANCHORED), 0);
    CHECK_INT(amp_net_check_dialect(cfg, net, err, sizeof err), 0);
    forget();
    CHECK_INT(read_text(FORK ANCHORED), 0);
    CHECK_INT(amp_net_check_dialect(cfg, net, err, sizeof err), 0);
    forget();
    static const char *const refused[] = {"mosaic=1\nletter_box=1", "mixup=2", "mixup=5"};
    static const char *const allowed[] = {"mosaic=1", "mixup=1", "mixup=3", "letter_box=1"};
    char text[1024];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(text, sizeof text, FORK "%s\n" ANCHORED, refused[i]);
        CHECK_INT(read_text(text), 0);
        CHECK_INT(amp_net_check_dialect(cfg, net, err, sizeof err), -1);
        CHECK(!strncmp(err, "a.cfg:7: mosaic=1 in [net]: ", 28) ||
              !strncmp(err, "a.cfg:7: mixup=", 15));
        forget();
    }
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        snprintf(text, sizeof text, FORK "%s\n" ANCHORED, allowed[i]);
        CHECK_INT(read_text(text), 0);
        CHECK_INT(amp_net_check_dialect(cfg, net, err, sizeof err), 0);
        forget();
    }
    /* The loader is that of a net that ends in [yolo]. */
    static const char *const loading[] = {"mosaic=1", "mixup=3", "letter_box=1", "flip=0"};
    for (size_t i = 0; i < sizeof loading / sizeof *loading; i++) {
        snprintf(text, sizeof text,
                 FORK "%s\n[conv]\nfilters=7\nactivation=mish\nbatch_normalize=1\n"
                      "[region]\nclasses=2\nanchors=1,1\n",
                 loading[i]);
        CHECK_INT(read_text(text), 0);
        CHECK_INT(amp_net_check_dialect(cfg, net, err, sizeof err), -1);
        CHECK(!strncmp(err, "a.cfg:7: ", 9) && strstr(err, loading[i]) && strstr(err, "[yolo]"));
        forget();
    }
}

/* ---- what people have published ---- */

enum { MOST_SECTIONS = 256, LONGEST = 1 << 16 };

/* Text of one of the file's cfgs: "c FAMILY 0-3 7 9-12". */
static void write_cfg(char *text, char *const *sections, int n, char *list, const char *keys)
{
    *text = '\0';
    for (char *range = strtok(list, " \n"); range; range = strtok(NULL, " \n")) {
        int first = atoi(range), last = strchr(range, '-') ? atoi(strchr(range, '-') + 1) : first;
        REQUIRE(first >= 0 && last < n);
        for (int i = first; i <= last; i++) {
            strcat(text, sections[i]);
            if (!strncmp(sections[i], "[net", 4)) strcat(text, keys);
        }
    }
}

/* Floats of a weights file, counted from the text alone. */
static long long count_weights(const struct amp_cfg_file *file)
{
    static int channels[512];
    long long sum = 0;
    for (int i = 0; i < file->n_sections - 1; i++) {
        const struct amp_cfg_section *s = amp_cfg_layer(file, i);
        int before = i ? channels[i - 1] : amp_cfg_int(file->sections, "channels", 0);
        channels[i] = before;
        if (!strcmp(s->name, "[convolutional]")) {
            long long k = amp_cfg_int(s, "filters", 1), size = amp_cfg_int(s, "size", 1);
            channels[i] = (int)k;
            sum += k * (before / amp_cfg_int(s, "groups", 1)) * size * size;
            sum += k * (amp_cfg_int(s, "batch_normalize", 0) ? 4 : 1);
        } else if (!strcmp(s->name, "[route]")) {
            channels[i] = 0;
            for (const char *p = amp_cfg_string(s, "layers", ""); p; p = amp_list_next(p))
                channels[i] +=
                    channels[atoi(p) < 0 ? i + atoi(p) : atoi(p)] / amp_cfg_int(s, "groups", 1);
        }
    }
    return sum;
}

static void check_published(const char *text, const char *family, int line)
{
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    if (!cfg || amp_options_read(cfg, &options, NULL, 0, err, sizeof err) ||
        !(net = amp_net_describe(cfg, 0, 0, true, err, sizeof err))) {
        TEST_FAIL("line %d: %s: %s", line, family, err);
        return;
    }
    amp_options_settle_dtype(&options, false, false);
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    if (!plan) TEST_FAIL("line %d: %s: %s", line, family, err);
    size_t weights = 0;
    for (int i = 0; i < net->n; i++)
        weights += amp_layer_parameters(&net->layers[i]) + amp_layer_statistics(&net->layers[i]);
    CHECK_INT(weights, count_weights(cfg));
}

/* None is refused for a reason that the fork ignores. */
AMP_TEST(published_cfgs_are_planned)
{
    static char *sections[MOST_SECTIONS], text[LONGEST];
    char *line = NULL;
    size_t size = 0;
    int n = 0, n_cfgs = 0, number = 0;
    FILE *f = fopen(AMP_PUBLISHED_CFGS, "r");
    REQUIRE(f != NULL);
    while (getline(&line, &size, f) >= 0) {
        number++;
        for (char *bar = line; *line == 's' && (bar = strchr(bar, '|'));)
            *bar = '\n';
        if (*line == 's' && n < MOST_SECTIONS) sections[n++] = strdup(line + 2);
        if (*line != 'c') continue;
        char family[32], again[512], *list = strchr(line + 2, ' ');
        snprintf(family, sizeof family, "%.*s", (int)(list - line - 2), line + 2);
        snprintf(again, sizeof again, "%s", list);
        write_cfg(text, sections, n, list, "mixed_precision=1\namp_dialect=fork\n");
        check_published(text, family, number);
        CHECK(cfg && cfg->dialect == AMP_DIALECT_FORK);
        forget();
        n_cfgs++;
        if (strncmp(family, "yolov4", 6)) continue;
        /* What they say decides by itself. */
        write_cfg(text, sections, n, again, "mixed_precision=1\n");
        check_published(text, family, number);
        CHECK(cfg && cfg->dialect == AMP_DIALECT_FORK);
        forget();
    }
    CHECK_INT(n_cfgs, 47);
    fclose(f);
    free(line);
    while (n > 0)
        free(sections[--n]);
}

AMP_TEST_MAIN
