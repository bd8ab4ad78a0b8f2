/* Plans of layers that backward computes again, that are frozen, or that must fit a budget. */
#include "planned.h"

#include "tests/rig/files.h"
#include "tests/rig/random_net.h"

/* Which layers are computed again, and what is said of those that are asked to be and are not. */
static void check_recomputed(void)
{
    char none[80];
    for (int i = 0; i < net->n; i++) {
        const struct amp_plan_layer *p = &plan->layers[i];
        bool able = p->ours && !p->loss && p->backward, alone = p->fused && !p[-1].recomputed;
        bool asked = net->layers[i].recompute;
        snprintf(none, sizeof none, "checkpoint=1 has no effect: layer %d has none", i - 1);
        CHECK_INT(p->recomputed, asked && able && !alone);
        CHECK_INT(strstr(p->reason, "; computed again in backward") != NULL, p->recomputed);
        CHECK_INT(strstr(p->reason, "has no effect: it has no backward") != NULL, asked && !able);
        CHECK_INT(strstr(p->reason, none) != NULL, asked && able && alone);
    }
}

/* Asks for some of the layers that may be; the plan is made again. */
static void recompute_some(void)
{
    for (int i = 0; i < net->n; i++)
        net->layers[i].recompute =
            random_below(5) > 1 && plan->layers[i].ours && !plan->layers[i].loss;
    amp_plan_free(plan);
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    REQUIRE(plan);
}

AMP_TEST(random_nets_that_compute_again)
{
    static char text[RANDOM_NET_SIZE];
    int again = 0;
    for (int round = 0; round < 300; round++) {
        random_net(text, "mixed_precision=1", NET_EVERYTHING | NET_FREEZE, random_from(1, 25));
        plan_text(text, true);
        if (round % 2) random_mish(net);
        recompute_some();
        check_plan();
        check_recomputed();
        for (int i = 0; i < net->n; i++)
            again += plan->layers[i].recomputed;
        if (test_failures) TEST_FAIL("round %d:\n%s", round, text);
        REQUIRE(!test_failures);
        forget();
    }
    CHECK(again > 300);
}

AMP_TEST(every_stock_cfg_that_computes_again)
{
    static char paths[STOCK_MOST][4096];
    int n = stock_cfgs(paths), kept = 0, both = 0;
    for (int i = 0; i < n; i++) {
        cfg = amp_cfg_read(paths[i], err, sizeof err);
        plan_cfg(NULL, true);
        recompute_some();
        check_plan();
        check_recomputed();
        for (int k = 1; k < net->n; k++) { /* what a recomputed convolution writes of the next */
            bool fused = plan->layers[k].fused && plan->layers[k - 1].recomputed;
            both += fused && plan->layers[k].recomputed;
            kept += fused && !plan->layers[k].recomputed;
        }
        if (test_failures) TEST_FAIL("%s", paths[i]);
        REQUIRE(!test_failures);
        forget();
    }
    CHECK(kept > 20 && both > 20);
}

/* Layer 0 lies in the route's output, whose own reader needs it in forward only. */
AMP_TEST(what_a_route_passes_on_is_kept_for_layers_that_are_computed_again)
{
    plan_layers("", "[maxpool]\nsize=2\nstride=2\n[maxpool]\nsize=3\nstride=1\ncheckpoint=1\n"
                    "[route]\nlayers=0\n[maxpool]\nsize=2\nstride=2\n[cost]\n");
    CHECK_INT(plan->layers[0].route, 2);
    CHECK(plan->layers[1].recomputed);
    CHECK_INT(plan->buffers[out_buffer(0)].last, 2 * net->n);
    check_plan();
    forget();
}

/* ---- chosen nets ---- */

/* As darknet53.conv.74 begins a yolov3: the part without backward takes hardly any memory. */
AMP_TEST(a_frozen_backbone_takes_a_third_at_most)
{
    plan_stock("yolov3.cfg");
    double plain = (double)plan->mixed_bytes;
    amp_plan_free(plan);
    for (int i = 0; i < 74; i++)
        net->layers[i].freeze = net->layers[i].n_weights > 0;
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    REQUIRE(plan != NULL);
    CHECK_INT(plan->first_backward, 75);
    CHECK((double)plan->mixed_bytes < .3 * plain);
    check_plan();
    forget();
}

/* The convolutions of yolov3's residual blocks: what is kept is the sums. */
AMP_TEST(blocks_that_are_computed_again)
{
    plan_stock("yolov3.cfg");
    double plain = (double)plan->mixed_bytes;
    amp_plan_free(plan);
    for (int i = 0; i < 75; i++)
        net->layers[i].recompute = net->layers[i].type == AMP_CONVOLUTIONAL;
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    REQUIRE(plan);
    CHECK_INT(plan->n_recomputed, 52);
    CHECK(strstr(plan->layers[2].reason, "computed again in backward") != NULL);
    CHECK((double)plan->mixed_bytes < .7 * plain);
    check_plan();
    forget();
}

AMP_TEST(a_budget_is_kept)
{
    static const char *const names[] = {"yolov3.cfg", "yolov3-tiny.cfg", "darknet19.cfg",
                                        "resnet50.cfg"};
    for (int k = 0; k < 4; k++) {
        plan_stock(names[k]);
        double plain = (double)plan->mixed_bytes;
        size_t least = SIZE_MAX;
        for (double share = 1; share > .75; share -= .1) {
            amp_plan_free(plan);
            options.checkpoint_gib = share * plain / (1 << 30);
            plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
            REQUIRE(plan);
            CHECK((double)plan->mixed_bytes <= share * plain && !plan->over_budget);
            CHECK(plan->flop_again <= plan->flop);
            if (plan->mixed_bytes < least) least = plan->mixed_bytes;
            check_plan();
        }
        amp_plan_free(plan);
        options.checkpoint_gib = 1e-6;
        plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
        REQUIRE(plan);
        CHECK(plan->over_budget && plan->mixed_bytes < least); /* whatever it computes again */
        check_plan();
        options.checkpoint_gib = 0;
        forget();
    }
}

/* Where a pool keeps twice as many bytes for the places of its maxima as for the maxima, a budget
 * is kept only if they count. */
AMP_TEST(a_budget_counts_the_places_of_maxima)
{
#define BLOCK(filters, size)                                                                       \
    "[conv]\nbatch_normalize=1\npad=1\nactivation=leaky\nfilters=" #filters "\nsize=" #size "\n"
    const char layers[] =
        BLOCK(16, 3) "[max]\nsize=17\nstride=1\n[max]\nsize=17\nstride=1\n" BLOCK(12, 3)
            BLOCK(12, 1) BLOCK(8, 3) "[conv]\nfilters=4\nsize=1\nactivation=linear\n[cost]\n";
    plan_layers("", layers);
    options.checkpoint_gib = .88 * (double)plan->mixed_bytes / (1 << 30);
    amp_plan_free(plan);
    plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    REQUIRE(plan);
    CHECK(!plan->over_budget && plan->flop_again < .5 * plan->flop);
    check_plan();
    options.checkpoint_gib = 0;
    forget();
#undef BLOCK
}

AMP_TEST_MAIN
