/* The precision plan: what must hold for every net, on stock and random ones, what it decides on
 * chosen ones, and the report. */
#include "planned.h"

#include "tests/rig/files.h"
#include "tests/rig/random_net.h"

AMP_TEST(every_stock_cfg)
{
    static char paths[STOCK_MOST][4096];
    int n = stock_cfgs(paths);
    CHECK_INT(n, 45);
    for (int i = 0; i < n; i++)
        for (int train = 0; train < 2; train++) {
            cfg = amp_cfg_read(paths[i], err, sizeof err);
            plan_cfg(NULL, train);
            check_plan();
            for (int k = 0; k < net->n; k++)
                if (is_matrix(k)) CHECK_INT(plan->layers[k].compute, AMPK_COMPUTE_FP16);
            if (test_failures) TEST_FAIL("%s", paths[i]);
            REQUIRE(!test_failures);
            forget();
        }
}

AMP_TEST(random_nets)
{
    static const char *const keys[] = {"mixed_precision=1", "mixed_precision=1\namp_dtype=bf16",
                                       "mixed_precision=1\namp_dtype=fp32"};
    static char text[RANDOM_NET_SIZE];
    int pools = 0; /* fused */
    for (int round = 0; round < 300; round++) {
        random_net(text, keys[round % 3], NET_EVERYTHING, random_from(1, 25));
        plan_text(text, round % 4 > 0);
        if (round % 2 && random_mish(net)) plan_again(round % 4 > 0);
        check_plan();
        for (int i = 0; i < net->n; i++)
            pools += plan->layers[i].fused && net->layers[i].type == AMP_MAXPOOL;
        if (test_failures) TEST_FAIL("round %d:\n%s", round, text);
        REQUIRE(!test_failures);
        forget();
    }
    CHECK(pools > 0);
}

/* ---- chosen nets ---- */

/* Whether a net trains, or infers, if layer i had mish. */
static bool takes_mish(const char *layers, int i, bool train, const char *expected)
{
    plan_layers("", layers);
    net->layers[i].activation = AMPK_MISH;
    struct amp_plan *made =
        amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, train, err, sizeof err);
    if (!made) CHECK_STR(err, expected);
    amp_plan_free(made);
    forget();
    return made != NULL;
}

#define REFUSED(line, section)                                                                     \
    "a.cfg:" line ": activation=mish in " section                                                  \
    ": its gradient needs the activation's input, which only batch-norm keeps; allowed in "        \
    "training: [convolutional], [deconvolutional] and [connected] with batch_normalize=1, "        \
    "without "                                                                                     \
    "binary, xnor and smooth"

AMP_TEST(mish_is_refused_where_its_input_is_not_kept)
{
    static const struct {
        const char *layers;
        int layer;
        bool trains, infers;
        const char *refused;
    } nets[] = {
        {"[conv]\nbatch_normalize=1\n[conv]\n[cost]\n", 0, true, true, NULL},
        {"[deconv]\nbatch_normalize=1\n[conv]\n[cost]\n", 0, true, true, NULL},
        {"[connected]\nbatch_normalize=1\n[connected]\n[cost]\n", 0, true, true, NULL},
        {"[conv]\nbatch_normalize=1\nfreeze=1\n[conv]\n[cost]\n", 0, true, true, NULL},
        {"[conv]\nbatch_normalize=1\nmixed_precision=0\n[conv]\n[cost]\n", 0, true, true, NULL},
        {"[conv]\nstopbackward=1\n[conv]\n[cost]\n", 0, true, true, NULL},
        {"[conv]\nfreeze=1\n[conv]\n[cost]\n", 0, true, true, NULL},
        {"[conv]\n[conv]\n[cost]\n", 1, false, true, REFUSED("9", "[conv]")},
        {"[conv]\n[conv]\nfreeze=1\n[conv]\n[cost]\n", 1, false, true, REFUSED("9", "[conv]")},
        {"[conv]\n[activation]\n[conv]\n[cost]\n", 1, false, true, REFUSED("9", "[activation]")},
        {"[conv]\n[conv]\n[shortcut]\nfrom=0\n[cost]\n", 2, false, true,
         REFUSED("10", "[shortcut]")},
        {"[conv]\nfilters=3\n[local]\n[conv]\n[cost]\n", 1, false, true, REFUSED("10", "[local]")},
        {"[conv]\nbatch_normalize=1\nbinary=1\n[conv]\n[cost]\n", 0, false, false,
         REFUSED("8", "[conv]")},
        {"[rnn]\nbatch_normalize=1\n[connected]\n[cost]\n", 0, false, false, REFUSED("8", "[rnn]")},
    };
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
        CHECK(takes_mish(nets[i].layers, nets[i].layer, true, nets[i].refused) == nets[i].trains);
        CHECK(takes_mish(nets[i].layers, nets[i].layer, false, nets[i].refused) == nets[i].infers);
        if (test_failures) TEST_FAIL("%s", nets[i].layers);
        REQUIRE(!test_failures);
    }
}

/* Processes that only infer exchange nothing. */
AMP_TEST(batch_norm_is_synced_in_training)
{
    static const char text[] = "[net]\nmixed_precision=1\namp_sync_bn=1\nwidth=8\nheight=8\n"
                               "channels=3\n[conv]\nbatch_normalize=1\nfilters=4\n[cost]\n";
    for (int train = 0; train < 2; train++) {
        plan_text(text, train);
        CHECK_INT(plan->synced_forward, train);
        CHECK_INT(plan->synced_backward, train);
        CHECK_INT(plan->synced_bytes > 0, train);
        forget();
    }
}

AMP_TEST(yolov3_leaves_no_convolution_in_fp32)
{
    plan_stock("yolov3.cfg");
    int convolutions = 0;
    for (int i = 0; i < net->n; i++) {
        if (net->layers[i].type != AMP_CONVOLUTIONAL) continue;
        convolutions++;
        CHECK_INT(plan->layers[i].compute, AMPK_COMPUTE_FP16);
        CHECK_INT(plan->layers[i].in, AMP_FORMAT_FP16);
        bool head = i == 81 || i == 93 || i == 105;
        CHECK_INT(plan->layers[i].out, head ? AMP_FORMAT_BORDER : AMP_FORMAT_FP16);
        CHECK_INT(strstr(plan->layers[i].reason, "writes FP32 for yolo") != NULL, head);
    }
    CHECK_INT(convolutions, 75);
    CHECK_INT(plan->input_format, AMP_FORMAT_FP16);
    CHECK_NEAR(plan->flop_reduced, plan->flop, 0);
    CHECK((double)plan->mixed_bytes < 0.3 * (double)plan->darknet_bytes);
    forget();
}

/* Layers 36, 61, 79 and 91 of yolov3 feed a convolution and, later, a route. */
AMP_TEST(yolov3_deltas_with_two_consumers)
{
    static const int twice[][3] = {{36, 37, 98}, {61, 62, 86}, {79, 80, 83}, {91, 92, 95}};
    plan_stock("yolov3.cfg");
    for (int i = 0; i < 4; i++) {
        const struct amp_plan_layer *near = &plan->layers[twice[i][1]],
                                    *far = &plan->layers[twice[i][2]];
        int k = net->layers[twice[i][2]].n_sources - 1;
        CHECK_INT(far->sources[k], twice[i][0]);
        CHECK(far->source_first[k] && !near->source_first[0]);
        CHECK(near->source_wanted[0]);
    }
    forget();
}

AMP_TEST(the_report_says_that_gru_does_not_learn)
{
    plan_layers("", "[connected]\n[gru]\n[cost]\n");
    CHECK(strstr(plan->layers[1].reason, "no backward on the CPU") != NULL);
    forget();
    plan_text("[net]\nmixed_precision=1\nbatch=16\ninputs=5\n[gru]\n[cost]\n", true);
    CHECK(plan->layers[0].products);
    CHECK(strstr(plan->layers[0].reason, "no backward on the CPU") != NULL);
    forget();
}

AMP_TEST(the_report_says_that_crnn_does_not_learn)
{
    plan_layers("", "[conv]\nfilters=3\nsize=3\npad=1\n[crnn]\n[cost]\n");
    CHECK_SAYS(plan->layers[1].reason, "Darknet's code never changes its weights");
    forget();
}

AMP_TEST(the_report_warns_of_batchnorm_inside_recurrent_layers)
{
    static const char said[] = "backward takes the last time step's statistics for all steps";
    for (int bn = 0; bn < 2; bn++)
        for (int steps = 1; steps < 4; steps += 2)
            for (int batch = 3; batch < 64; batch *= 10) { /* in Darknet's code, and not */
                char text[200];
                snprintf(text, sizeof text,
                         "[net]\nmixed_precision=1\nbatch=%d\ntime_steps=%d\ninputs=5\n"
                         "[lstm]\nbatch_normalize=%d\n[rnn]\nbatch_normalize=%d\n"
                         "mixed_precision=0\n[gru]\nbatch_normalize=%d\n[cost]\n",
                         batch, steps, bn, bn, bn);
                plan_text(text, true);
                CHECK(plan->layers[0].products == (batch > 3));
                for (int i = 0; i < 3; i++)
                    CHECK(!strstr(plan->layers[i].reason, said) == !(bn && steps > 1));
                forget();
            }
}

/* Of a recurrent layer the products alone, and only where a pass has enough vectors for them. */
AMP_TEST(products_of_recurrent_layers)
{
#define NET    "[net]\nmixed_precision=1\ninputs=5\n"
#define LAYERS "[rnn]\noutput=8\n[lstm]\noutput=8\nmixed_precision=0\n[cost]\n"
    plan_text(NET "batch=8\ntime_steps=2\n" LAYERS, true);
    CHECK(plan->layers[0].products && !plan->layers[0].ours);
    CHECK_INT(plan->layers[0].compute, AMPK_COMPUTE_FP16);
    CHECK_SAYS(plan->layers[0].reason, "FP16 operands of its products");
    CHECK_INT(plan->layers[1].compute, AMPK_COMPUTE_FP32);
    CHECK_SAYS(plan->layers[1].reason, "mixed_precision=0");
    CHECK(plan->flop_reduced > 0 && plan->flop_reduced < plan->flop);
    /* 16 vectors; output and delta of each layer, of three inside the first, and of eight inside
     * the second. */
    CHECK_INT(plan->darknet_bytes, 16 * 8 * (8 + 24 + 8 + 64 + 8));
    forget();
    plan_text(NET "batch=3\ntime_steps=5\n[rnn]\noutput=8\nmixed_precision=1\n[cost]\n", true);
    CHECK(!plan->layers[0].products);
    CHECK_SAYS(plan->layers[0].reason, "fewer than 16 vectors");
    CHECK_INT(plan->layers[0].buffer[AMP_BUFFER_Y], -1);
    forget();
#undef NET
#undef LAYERS
}

AMP_TEST(a_layer_can_be_kept_in_fp32)
{
    plan_layers("", "[conv]\nfilters=4\n[conv]\nfilters=4\nmixed_precision=0\n"
                    "[conv]\nfilters=4\n[shortcut]\nfrom=-2\n[conv]\n[cost]\n");
    CHECK_INT(plan->layers[0].in, AMP_FORMAT_FP16);
    CHECK_INT(plan->layers[1].in, AMP_FORMAT_FP32);
    CHECK_INT(plan->layers[1].compute, AMPK_COMPUTE_FP32);
    CHECK_INT(plan->layers[1].out, AMP_FORMAT_FP32);
    CHECK(plan->layers[0].copy[AMP_FORMAT_FP32] >= 0);
    CHECK(plan->layers[1].copy[AMP_FORMAT_FP16] >= 0);
    CHECK_STR(plan->layers[1].reason, "mixed_precision=0 in its section");
    CHECK(plan->flop_reduced < plan->flop && plan->flop_reduced > 0);
    check_plan();
    forget();
}

/* PyTorch's rule. Which of the sources is FP32 makes no difference. */
AMP_TEST(of_several_sources_the_widest_type_wins)
{
    static const char *const last[] = {"[shortcut]\nfrom=-3\n", "[route]\nlayers=-1,-3\n"};
    for (int wide = -1; wide < 3; wide++)
        for (int i = 0; i < 2; i++)
            for (int told = 0; told < 2; told++) {
                char layers[1024] = "";
                for (int k = 0; k < 3; k++)
                    snprintf(layers + strlen(layers), sizeof layers - strlen(layers),
                             "[conv]\nbatch_normalize=1\nfilters=4\n%s",
                             k == wide ? "mixed_precision=0\n" : "");
                snprintf(layers + strlen(layers), sizeof layers - strlen(layers),
                         "%s%s[maxpool]\nsize=2\nstride=2\n[conv]\n[cost]\n", last[i],
                         told ? "mixed_precision=1\n" : "");
                plan_layers("", layers);
                bool fp32 = !told && (wide == 0 || wide == 2); /* layers 0 and 2 are the sources */
                enum amp_format expected = fp32 ? AMP_FORMAT_FP32 : AMP_FORMAT_FP16;
                CHECK_INT(plan->layers[3].in, expected);
                CHECK_INT(plan->layers[4].in, expected);
                CHECK_INT(plan->layers[5].in, AMP_FORMAT_FP16);
                CHECK_SAYS(plan->layers[3].reason,
                           fp32 ? "passes FP32 through" : "passes FP16 through");
                check_plan();
                if (test_failures) TEST_FAIL("%s", layers);
                forget();
            }
}

AMP_TEST(what_only_fp32_layers_feed_passes_fp32_unless_told_otherwise)
{
    const char *layers = "[conv]\nfilters=4\nmixed_precision=0\n[maxpool]\nsize=2\nstride=2\n"
                         "[maxpool]\nsize=2\nstride=2\nmixed_precision=1\n[conv]\n[cost]\n";
    plan_layers("", layers);
    CHECK_INT(plan->layers[1].in, AMP_FORMAT_FP32);
    CHECK_INT(plan->layers[2].in, AMP_FORMAT_FP16);
    check_plan();
    forget();
}

AMP_TEST(asking_for_the_impossible_is_told)
{
    plan_layers("", "[conv]\n[lrn]\nsize=3\nmixed_precision=1\n[conv]\n[cost]\n");
    CHECK(!plan->layers[1].ours);
    CHECK(strstr(plan->layers[1].reason, "mixed_precision=1 is asked for") != NULL);
    forget();
}

AMP_TEST(dtypes)
{
    static const struct {
        const char *key;
        enum amp_format island;
        enum ampk_compute compute;
    } expected[] = {{"amp_dtype=fp16", AMP_FORMAT_FP16, AMPK_COMPUTE_FP16},
                    {"amp_dtype=bf16", AMP_FORMAT_BF16, AMPK_COMPUTE_BF16},
                    {"amp_dtype=tf32", AMP_FORMAT_FP32, AMPK_COMPUTE_TF32},
                    {"amp_dtype=fp32", AMP_FORMAT_FP32, AMPK_COMPUTE_FP32}};
    for (int i = 0; i < 4; i++) {
        plan_layers(expected[i].key, "[conv]\n[conv]\n[cost]\n");
        CHECK_INT(plan->island, expected[i].island);
        CHECK_INT(plan->layers[0].in, expected[i].island);
        CHECK_INT(plan->layers[0].compute, expected[i].compute);
        check_plan();
        forget();
    }
}

AMP_TEST(binary_and_xnor_stay_darknets)
{
    plan_layers("", "[conv]\n[conv]\nbinary=1\n[conv]\nxnor=1\n[conv]\n[cost]\n");
    CHECK(plan->layers[0].ours && !plan->layers[1].ours && !plan->layers[2].ours);
    CHECK_STR(plan->layers[2].reason, "xnor weights: Darknet's own FP32 code");
    CHECK_INT(plan->layers[0].out, AMP_FORMAT_BORDER);
    check_plan();
    forget();
}

AMP_TEST(convolutions_that_smooth_stay_darknets)
{
    plan_layers("", "[conv]\nsmooth=0\n[conv]\nsmooth=.1\n[cost]\nsmooth=.1\n");
    CHECK(plan->layers[0].ours && !plan->layers[1].ours);
    CHECK_STR(plan->layers[1].reason, "smooth: Darknet's own FP32 code");
    check_plan();
    forget();
}

AMP_TEST(stopbackward_freezes_what_is_before_it)
{
    plan_layers("", "[conv]\nbatch_normalize=1\n[dropout]\n[conv]\nstopbackward=1\n[conv]\n"
                    "[route]\nlayers=1,-1\n[conv]\n[cost]\n");
    CHECK_INT(plan->first_backward, 3);
    CHECK(!plan->layers[3].source_wanted[0]);
    CHECK(!plan->layers[4].source_wanted[0]);
    CHECK(plan->layers[4].source_wanted[1] && plan->layers[4].source_first[1]);
    check_plan();
    forget();
}

AMP_TEST(stopbackward_leaves_decay_and_statistics)
{
    plan_layers("amp_dtype=fp16", "[conv]\nbatch_normalize=1\n[conv]\nfreeze=1\n[conv]\n"
                                  "stopbackward=1\n[conv]\n[cost]\n");
    CHECK_STR(
        plan->layers[2].reason,
        "FP16 operands, sums and bias in FP32; stopbackward: up to here decay still shrinks the "
        "weights of 2 layers and statistics move; freeze=1 keeps them");
    check_plan();
    forget();
}

/* Below the lowest layer that learns nothing runs backward, nor where no gradient is of use. */
AMP_TEST(frozen_layers_go_back_where_somebody_learns)
{
    plan_layers("", "[conv]\nfreeze=1\nbatch_normalize=1\n[maxpool]\n[conv]\n[conv]\nfreeze=1\n"
                    "[route]\nlayers=0\n[conv]\nfreeze=1\n[route]\nlayers=-1,-3\n[conv]\n"
                    "[cost]\n");
    static const bool backward[] = {0, 0, 1, 1, 0, 0, 1, 1, 1};
    CHECK_INT(plan->first_backward, 2);
    for (int i = 0; i < plan->n; i++)
        CHECK_INT(plan->layers[i].backward, backward[i]);
    CHECK(!plan->layers[2].source_wanted[0] && !plan->layers[6].source_wanted[0]);
    CHECK(plan->layers[3].frozen && plan->layers[3].source_wanted[0]);
    CHECK(strstr(plan->layers[3].reason, "; frozen, passes gradients on") != NULL);
    check_plan();
    forget();
}

/* The last stopbackward counts: Darknet's loop comes from the end. */
AMP_TEST(two_stopbackwards)
{
    plan_layers("", "[conv]\nstopbackward=1\n[conv]\n[conv]\nstopbackward=1\n[conv]\n[cost]\n");
    CHECK_INT(plan->first_backward, 3);
    forget();
}

AMP_TEST(readers_of_a_dropped_layer_read_the_dropout)
{
    plan_layers("",
                "[conv]\nfilters=2\n[conv]\nfilters=2\n[dropout]\n[dropout]\n[conv]\nfilters=2\n"
                "[route]\nlayers=1,-1,2\n[shortcut]\nfrom=1\n[conv]\n[cost]\n");
    CHECK_INT(plan->layers[2].sources[0], 1);
    CHECK_INT(plan->layers[3].sources[0], 2);
    CHECK_INT(plan->layers[5].sources[0], 3);
    CHECK_INT(plan->layers[5].sources[1], 4);
    CHECK_INT(plan->layers[5].sources[2], 3);
    CHECK_INT(plan->layers[6].sources[1], 3);
    check_plan();
    forget();
}

/* Darknet's crop has no delta: what is behind it has no gradient to take. */
AMP_TEST(a_crop_takes_no_delta)
{
    plan_layers("", "[crop]\ncrop_width=8\ncrop_height=8\n[conv]\n[conv]\n[cost]\n");
    CHECK(!plan->layers[1].source_wanted[0]);
    CHECK(!plan->layers[0].delta_from_nobody);
    check_plan();
    forget();
}

AMP_TEST(the_nets_output_keeps_fp32)
{
    plan_layers("", "[conv]\n[avgpool]\n[cost]\n");
    CHECK(plan->layers[1].border_copy);
    CHECK(!plan->layers[0].border_copy);
    forget();
    plan_layers("", "[conv]\n[maxpool]\nsize=2\n");
    CHECK(plan->layers[1].border_copy);
    forget();
    plan_layers("", "[conv]\n[conv]\n");
    CHECK_INT(plan->layers[1].out, AMP_FORMAT_BORDER);
    CHECK(strstr(plan->layers[1].reason, "the net's output") != NULL);
    forget();
}

AMP_TEST(a_loss_adds_to_what_is_in_its_delta)
{
    plan_layers("", "[conv]\nfilters=2\n[softmax]\n[cost]\n");
    CHECK(plan->layers[1].loss && plan->layers[2].loss);
    CHECK(plan->layers[2].source_wanted[0] && !plan->layers[2].source_first[0]);
    CHECK(plan->layers[1].source_first[0]);
    check_plan();
    forget();
}

/* With a backend that computes losses. */
AMP_TEST(losses_of_the_backend)
{
    own_losses = 1u << AMP_YOLO | 1u << AMP_SOFTMAX | 1u << AMP_COST;
    plan_layers("", "[conv]\nfilters=7\n[yolo]\nclasses=2\n");
    CHECK(plan->layers[1].ours && plan->layers[1].loss);
    CHECK_STR(plan->layers[1].reason, "FP32: loss");
    CHECK_INT(plan->layers[1].in, AMP_FORMAT_BORDER);
    CHECK_INT(plan->layers[1].buffer[AMP_BUFFER_DELTA], -1);
    CHECK_INT(plan->layers[0].out, AMP_FORMAT_BORDER);
    CHECK(strstr(plan->layers[0].reason, "writes FP32 for yolo 1") != NULL);
    forget();
    plan_layers("", "[conv]\nfilters=2\n[softmax]\n[cost]\n");
    CHECK(plan->layers[2].source_wanted[0] && plan->layers[2].source_first[0]);
    CHECK(plan->layers[1].buffer[AMP_BUFFER_DELTA] >= 0);
    forget();
    plan_layers("", "[conv]\nfilters=7\n[yolo]\nclasses=2\nonlyforward=1\n");
    CHECK(!plan->layers[1].ours);
    CHECK_STR(plan->layers[1].reason,
              "loss: stays FP32, its delta carries the loss scale; by Darknet's "
              "own code: onlyforward=1 in its section");
    forget();
    plan_layers("", "[conv]\nfilters=7\n[yolo]\nclasses=2\nmixed_precision=0\n");
    CHECK(!plan->layers[1].ours && plan->layers[1].loss);
    CHECK(strstr(plan->layers[1].reason, "by Darknet's own code: mixed_precision=0") != NULL);
    forget();
    plan_layers("", "[conv]\nfilters=7\ntruth=1\n[yolo]\nclasses=2\n");
    CHECK(!plan->layers[1].ours);
    CHECK(strstr(plan->layers[1].reason,
                 "by Darknet's own code: its truth is the output of a layer "
                 "with truth=1") != NULL);
    forget();
    plan_layers("", "[conv]\nfilters=7\n[region]\nclasses=2\n");
    CHECK(!plan->layers[1].ours);
    CHECK(strstr(plan->layers[1].reason, "own code") == NULL);
    forget();
    own_losses = 0;
    plan_layers("", "[conv]\nfilters=7\n[yolo]\nclasses=2\nmixed_precision=0\n");
    CHECK_STR(plan->layers[1].reason,
              "loss: stays FP32, its delta carries the loss scale; mixed_precision=0 changes "
              "nothing on a CPU: Darknet's code runs it anyway");
    forget();
    plan_layers("", "[lrn]\nmixed_precision=0\nsize=3\n[cost]\n");
    CHECK(strstr(plan->layers[0].reason, "; mixed_precision=0 changes nothing: ") != NULL);
    forget();
}

AMP_TEST(a_demoted_layer_leaves_fp16_and_says_why)
{
    enum amp_format demoted[] = {AMP_FORMATS, AMP_FORMAT_FP32, AMP_FORMATS, AMP_FORMATS};
    static const char text[] = "[net]\nmixed_precision=1\nwidth=8\nheight=8\nchannels=3\n"
                               "[conv]\n[conv]\nbatch_normalize=1\n[conv]\n[cost]\n";
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    plan_cfg(demoted, true);
    CHECK_INT(plan->layers[1].in, AMP_FORMAT_FP32);
    CHECK_INT(plan->layers[1].compute, AMPK_COMPUTE_FP32);
    CHECK_STR(plan->layers[1].reason, "moved to FP32 during training: its values overflowed FP16");
    CHECK_INT(plan->layers[2].in, AMP_FORMAT_FP16);
    forget();
}

AMP_TEST(inference_needs_less)
{
    static char text[RANDOM_NET_SIZE];
    for (int round = 0; round < 20; round++) {
        random_net(text, "mixed_precision=1", NET_EVERYTHING, 15);
        plan_text(text, true);
        size_t training = plan->arena_bytes;
        forget();
        plan_text(text, false);
        CHECK(plan->arena_bytes <= training);
        forget();
    }
}

/* ---- the report ---- */

static char *report_of(bool json)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    REQUIRE(f);
    struct amp_json j = {.out = f, .digits = AMP_JSON_FLOAT};
    if (!json) amp_plan_print(plan, net, f);
    if (json) amp_json_begin(&j, NULL, '{');
    if (json) amp_plan_write_json(plan, net, &j);
    fclose(f);
    return text;
}

/* A net of 16 MiB of moments and averages whose sums are set by hand. */
AMP_TEST(every_number_of_the_report)
{
    static const char *const words[] = {
        "mixed precision plan: fp16\nlayer type            output             math  storage    "
        "reason\n",
        "\n    0 convolutional   16 x 16 x 4        FP16  FP16       ",
        "\n    1 maxpool         8 x 8 x 4          FP32  FP16       ",
        "\n    2 connected       1 x 1 x 4096       FP16  FP32 NCHW  ",
        "\n    3 softmax         4096               FP32  FP32 NCHW  ",
        "\nmixed precision: 75.0 % of 4.000 GFLOP per image in reduced precision; activation "
        "memory for 2 images per pass: FP32 8.0 MiB, mixed 2.0 MiB (0.25x)\n"
        "mixed precision: checkpoint: backward computes 3 layers again, 25.0 % of forward's "
        "arithmetic\n"
        "update: optimizer=adamw, decay_bn=1, clip_grad_norm=2, ema_alpha=0.9; its moments and "
        "averages take "
        "12.0 MiB\n"};
    static const char *const json[] = {
        "{\"precision\": \"fp16\", \"precision_reason\": null, \"batch\": 2, \"layers\": [\n"
        "  {\"index\": 0, \"type\": \"convolutional\", \"output\": [16, 16, 4], \"outputs\": 1024, "
        "\"executor\": \"amp\", \"math\": \"FP16\", \"storage\": \"FP16\", \"flop\": 55296, "
        "\"recomputed\": false, \"reason\": \"",
        "{\"index\": 2, \"type\": \"connected\", \"output\": [1, 1, 4096], \"outputs\": 4096, ",
        "\n], \"flop\": 4000000000, \"flop_reduced\": 3000000000, \"flop_again\": 1000000000, "
        "\"activation_bytes_fp32\": 8388608, \"activation_bytes_mixed\": 2097152, "
        "\"optimizer\": \"adamw\", \"kept_bytes\": "};
    plan_layers("amp_dtype=fp16\noptimizer=adamw\ndecay_bn=1\nclip_grad_norm=2\nema_alpha=.9",
                "[conv]\nfilters=4\nsize=3\npad=1\n[maxpool]\nsize=2\nstride=2\n"
                "[connected]\noutput=4096\n[softmax]\n[cost]\n");
    plan->flop = 4e9, plan->flop_reduced = 3e9, plan->flop_again = 1e9, plan->n_recomputed = 3;
    plan->darknet_bytes = 8 << 20, plan->mixed_bytes = 2 << 20;
    char *text = report_of(false), *object = report_of(true);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK_SAYS(text, words[i]);
    for (size_t i = 0; i < sizeof json / sizeof *json; i++)
        CHECK_SAYS(object, json[i]);
    free(text);
    free(object);
    plan->over_budget = true;
    plan->level = AMP_LEVEL_O3;
    plan->dtype_reason = "it is Friday";
    plan->n_recomputed = 1;
    plan->rules = (struct amp_rules){.decay_bn = -1, .clip_value = .5};
    text = report_of(false), object = report_of(true);
    CHECK_SAYS(text, "plan: fp16 (amp_dtype=auto: it is Friday); amp_level=O3 stands for "
                     "amp_dtype=fp16, loss_scale=1: O2 with a fixed loss scale of 1\n");
    CHECK_SAYS(text, "backward computes 1 layer again, ");
    CHECK_SAYS(text, "; no choice of layers fits in what checkpoint=auto allows, this is the "
                     "least: lower batch, or raise subdivisions\n"
                     "update: optimizer=sgd, clip_grad_value=0.5\n");
    CHECK_SAYS(object, "\"precision_reason\": \"it is Friday\", ");
    free(text);
    free(object);
    plan->rules = (struct amp_rules){.decay_bn = 0};
    text = report_of(false);
    CHECK_SAYS(text, "update: optimizer=sgd, decay_bn=0\n");
    free(text);
    plan->rules = (struct amp_rules){.decay_bn = -1};
    text = report_of(false);
    CHECK(!strstr(text, "update: ")); /* stock Darknet's */
    free(text);
    forget();
}

AMP_TEST_MAIN
