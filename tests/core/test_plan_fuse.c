/* What a plan lets one layer do for another: sums, pools and slices of routes that are written by
 * the convolution before, sums that a data gradient takes along. */
#include "planned.h"

static bool is_fused(const char *layers, int i)
{
    plan_layers("", layers);
    check_plan();
    bool fused = plan->layers[i].fused;
    forget();
    return fused;
}

#define NORMALIZED(keys) "[conv]\nfilters=4\nbatch_normalize=1\n" keys
#define LEAKY            NORMALIZED("activation=leaky\n")
#define PLAIN            "[conv]\nfilters=4\nactivation=leaky\n"
#define ADD(keys)        "[shortcut]\nfrom=-2\nactivation=linear\n" keys
#define END              "[conv]\n[cost]\n"

AMP_TEST(sums_that_are_fused_and_that_are_not)
{
    CHECK(is_fused(LEAKY LEAKY ADD("") END, 2));
    CHECK(is_fused(PLAIN LEAKY ADD("") END, 2));
    CHECK(is_fused(LEAKY NORMALIZED("activation=relu\n") ADD("") END, 2));
    CHECK(is_fused(LEAKY NORMALIZED("activation=linear\n") ADD("") END, 2));
    /* The gradient needs an output of its own. */
    CHECK(!is_fused(LEAKY NORMALIZED("activation=elu\n") ADD("") END, 2));
    CHECK(!is_fused(LEAKY PLAIN ADD("") END, 2));
    /* More than a sum. */
    CHECK(!is_fused(LEAKY LEAKY "[shortcut]\nfrom=-2\nactivation=leaky\n" END, 2));
    CHECK(!is_fused(LEAKY LEAKY ADD("alpha=.5\n") END, 2));
    CHECK(!is_fused(LEAKY LEAKY ADD("beta=2\n") END, 2));
    /* Another reader, other shapes, other formats. */
    CHECK(!is_fused(LEAKY LEAKY ADD("") "[route]\nlayers=1,2\n" END, 2));
    CHECK(!is_fused(LEAKY NORMALIZED("activation=leaky\nstride=2\n") ADD("") END, 2));
    CHECK(is_fused(LEAKY NORMALIZED("activation=leaky\nmixed_precision=0\n") ADD("") END, 2));
    CHECK(!is_fused(LEAKY NORMALIZED("activation=leaky\nmixed_precision=0\n")
                        ADD("mixed_precision=1\n") END,
                    2));
    CHECK(!is_fused(NORMALIZED("activation=leaky\nmixed_precision=0\n") LEAKY ADD("") END, 2));
    CHECK(!is_fused(LEAKY LEAKY "[dropout]\n[shortcut]\nfrom=-3\nactivation=linear\n" END, 3));
}

/* Whether layer i is fused where all layers with batch-norm have mish. */
static bool is_fused_to_mish(const char *layers, int i)
{
    plan_layers("", layers);
    for (int k = 0; k < net->n; k++)
        if (net->layers[k].batch_normalize) net->layers[k].activation = AMPK_MISH;
    plan_again(true);
    check_plan();
    bool fused = plan->layers[i].fused;
    forget();
    return fused;
}

AMP_TEST(mish_goes_on_with_a_sum_but_not_with_a_pool)
{
    CHECK(is_fused_to_mish(LEAKY LEAKY ADD("") END, 2));
    CHECK(is_fused_to_mish(PLAIN LEAKY ADD("") END, 2));
    CHECK(!is_fused_to_mish(LEAKY PLAIN ADD("") END, 2));
    CHECK(!is_fused_to_mish(LEAKY "[maxpool]\nsize=2\nstride=2\n" END, 1));
}

/* Layer 0 has its delta in FP32, the sum in FP16. */
AMP_TEST(a_sum_has_no_delta_in_common_with_a_term_of_another_format)
{
    plan_layers("", NORMALIZED("activation=leaky\nmixed_precision=0\n")
                        LEAKY ADD("mixed_precision=1\n") END);
    const struct amp_plan_layer *p = plan->layers;
    CHECK(p[2].fused && p[0].out == AMP_FORMAT_FP32 && p[2].out == AMP_FORMAT_FP16);
    CHECK(p[0].delta_owner == 0 && p[1].delta_owner == 1 && p[2].delta_owner == 1);
    forget();
    plan_layers("", LEAKY LEAKY ADD("") END);
    p = plan->layers;
    CHECK(p[0].delta_owner == 0 && p[1].delta_owner == 0 && p[2].delta_owner == 0);
    forget();
}

/* A byte counts the places of a window up to 15 x 15, and has one more for none. */
AMP_TEST(indices_of_large_pools_are_wider)
{
    plan_layers("", PLAIN "[maxpool]\nsize=15\nstride=2\n[maxpool]\nsize=16\nstride=2\n" END);
    for (int i = 1; i <= 2; i++) {
        int index = plan->layers[i].buffer[AMP_BUFFER_INDEX];
        CHECK_INT(net->layers[i].size, 14 + i);
        REQUIRE(index >= 0);
        CHECK_INT((long long)plan->buffers[index].bytes,
                  (i == 1 ? 1 : 4) * net->batch * net->layers[i].outputs);
    }
    forget();
}

#define POOL(keys) "[maxpool]\n" keys
#define HALVE      POOL("size=2\nstride=2\n")

AMP_TEST(pools_that_are_fused_and_that_are_not)
{
    CHECK(is_fused(LEAKY HALVE END, 1));
    CHECK(is_fused(LEAKY POOL("size=2\nstride=2\npadding=0\n") END, 1));
    CHECK(is_fused(NORMALIZED("activation=relu\nstride=3\n") HALVE END, 1)); /* an odd side */
    CHECK(is_fused(NORMALIZED("activation=linear\n") HALVE "[route]\nlayers=-1\n" END, 1));
    CHECK(is_fused(LEAKY HALVE "stopbackward=1\n" END, 1));
    CHECK(is_fused(NORMALIZED("activation=relie\nmixed_precision=0\n") HALVE END, 1));
    CHECK(is_fused(LEAKY LEAKY ADD("") LEAKY HALVE END, 4));
    /* The gradient needs an output of its own. */
    CHECK(!is_fused(NORMALIZED("activation=elu\n") HALVE END, 1));
    CHECK(!is_fused(PLAIN HALVE END, 1));
    /* Other windows. */
    CHECK(!is_fused(LEAKY POOL("size=2\nstride=1\n") END, 1));
    CHECK(!is_fused(LEAKY POOL("size=3\nstride=2\n") END, 1));
    CHECK(!is_fused(LEAKY POOL("size=3\nstride=3\n") END, 1));
    CHECK(!is_fused(LEAKY POOL("size=2\nstride=2\npadding=2\n") END, 1));
    /* Another reader, another format, another source. */
    CHECK(!is_fused(LEAKY HALVE "[route]\nlayers=0\n" END, 1));
    CHECK(!is_fused(LEAKY HALVE "[conv]\nfilters=4\nstride=2\n[shortcut]\nfrom=0\n" END, 1));
    CHECK(!is_fused(
        NORMALIZED("activation=leaky\nmixed_precision=0\n") HALVE "mixed_precision=1\n" END, 1));
    CHECK(!is_fused(LEAKY HALVE "mixed_precision=0\n" END, 1));
    CHECK(!is_fused(LEAKY LEAKY ADD("") HALVE END, 3));
    CHECK(!is_fused(LEAKY "[dropout]\n" HALVE END, 2));
    CHECK(!is_fused(NORMALIZED("activation=leaky\nbinary=1\n") HALVE END, 1));
}

/* A convolution that leaves FP16 takes its pool along, if not to BF16. */
AMP_TEST(a_pool_after_a_demoted_layer)
{
    static const char text[] =
        "[net]\nmixed_precision=1\nwidth=8\nheight=8\nchannels=3\n" LEAKY HALVE LEAKY HALVE
        "[conv]\n[cost]\n";
    enum amp_format demoted[] = {AMP_FORMAT_FP32, AMP_FORMATS, AMP_FORMAT_BF16,
                                 AMP_FORMATS,     AMP_FORMATS, AMP_FORMATS};
    cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    plan_cfg(demoted, true);
    CHECK(plan->layers[1].fused && plan->layers[1].out == AMP_FORMAT_FP32);
    CHECK(!plan->layers[3].fused && plan->layers[3].out == AMP_FORMAT_FP16);
    forget();
}

/* Of yolov3-tiny's six all but the one that layer 8's route reads past and the one that does not
 * halve: neither an output nor a delta of the convolutions before them. */
AMP_TEST(yolov3_tiny_pools)
{
    static const int fused[] = {1, 3, 5, 7};
    plan_stock("yolov3-tiny.cfg");
    int count = 0;
    for (int i = 0; i < net->n; i++)
        count += plan->layers[i].fused;
    CHECK_INT(count, 4);
    for (int k = 0; k < 4; k++) {
        CHECK(plan->layers[fused[k]].fused);
        CHECK_INT(plan->layers[fused[k] - 1].buffer[AMP_BUFFER_OUT], -1);
        CHECK_INT(plan->layers[fused[k] - 1].buffer[AMP_BUFFER_DELTA], -1);
        CHECK_INT(plan->layers[fused[k] - 1].delta_owner, -1);
    }
    forget();
}

/* The residual blocks of yolov3 at 52 x 52, layers 13 to 36: one delta, and half of the outputs. */
AMP_TEST(yolov3_residual_blocks)
{
    plan_stock("yolov3.cfg");
    int fused = 0, owner = 12;
    for (int i = 0; i < net->n; i++) {
        CHECK_INT(plan->layers[i].fused, net->layers[i].type == AMP_SHORTCUT);
        fused += plan->layers[i].fused;
    }
    CHECK_INT(fused, 23);
    for (int j = 15; j <= 36; j += 3) {
        CHECK_INT(plan->layers[j].delta_owner, owner);
        CHECK_INT(plan->layers[j - 1].buffer[AMP_BUFFER_OUT], -1);
    }
    CHECK_INT(plan->layers[13].delta_owner, 13);
    forget();
}

/* Of yolov3, whose blocks yolov4 has with mish. The arena has no byte more than with leaky. */
AMP_TEST(mish_takes_the_memory_of_leaky)
{
    static const enum ampk_activation both[] = {AMPK_MISH, AMPK_SWISH};
    for (int i = 0; i < 4; i++) {
        bool train = i < 2;
        int count = 0;
        plan_stock("yolov3.cfg");
        plan_again(train);
        size_t leaky = plan->arena_bytes, leaky_in_all = plan->mixed_bytes;
        for (int k = 0; k < net->n; k++) {
            if (!net->layers[k].batch_normalize) continue;
            CHECK_INT(net->layers[k].activation, AMPK_LEAKY);
            net->layers[k].activation = both[i % 2];
            count++;
        }
        plan_again(train);
        CHECK_INT(count, 72);
        CHECK_INT((long long)plan->arena_bytes, (long long)leaky);
        CHECK_INT((long long)plan->mixed_bytes, (long long)leaky_in_all);
        forget();
    }
}

/* The route that layer i writes into, or -1. */
static int route_of(const char *layers, int i, bool train)
{
    static char text[4096];
    snprintf(text, sizeof text, "[net]\nmixed_precision=1\nwidth=16\nheight=16\nchannels=3\n%s",
             layers);
    plan_text(text, train);
    check_plan();
    int route = plan->layers[i].route; /* check_slice has looked at it */
    forget();
    return route;
}

#define UP            "[upsample]\nstride=2\n"
#define ROUTE(layers) "[route]\nlayers=" layers "\n"

AMP_TEST(sources_that_are_slices_of_a_route_and_that_are_not)
{
    for (int train = 0; train < 2; train++) {
        CHECK_INT(route_of(LEAKY HALVE UP ROUTE("-1,0") END, 2, train), 3);
        CHECK_INT(route_of(LEAKY HALVE UP ROUTE("0,-1") END, 2, train), 3);
        CHECK_INT(route_of(LEAKY HALVE UP ROUTE("-1") END, 2, train), 3);
        CHECK_INT(route_of(LEAKY "[maxpool]\nsize=5\nstride=1\n" ROUTE("-1,0") END, 1, train), 2);
        CHECK_INT(route_of(LEAKY HALVE LEAKY "[route]\nlayers=0\n[reorg]\nstride=2\n" ROUTE("-1,2")
                               END,
                           4, train),
                  5);
        CHECK_INT(route_of(LEAKY LEAKY ROUTE("-1,0") END, 1, train), 2);
        CHECK_INT(route_of(LEAKY NORMALIZED("activation=elu\n") ROUTE("-1,0") END, 1, train), 2);
        /* From afar: the route's output is there as early. */
        CHECK_INT(route_of(LEAKY LEAKY ROUTE("0") LEAKY ROUTE("-1,1") END, 1, train), 4);
        /* Read by others before. */
        CHECK_INT(route_of(LEAKY LEAKY LEAKY ROUTE("1") END, 1, train), 3);
        CHECK_INT(route_of(LEAKY LEAKY PLAIN "[lrn]\n" ROUTE("1") LEAKY LEAKY END, 1, train), 4);
        CHECK_INT(route_of(LEAKY LEAKY LEAKY ROUTE("1") LEAKY ROUTE("-1,1") END, 1, train), -1);
        CHECK_INT(route_of(LEAKY LEAKY LEAKY ROUTE("1") ROUTE("1") END, 1, train), 4);
        /* Read twice, by another, as FP32; of another format, made by a library, a sum, a route. */
        CHECK_INT(route_of(LEAKY HALVE UP ROUTE("-1,-1") END, 2, train), -1);
        CHECK_INT(route_of(LEAKY HALVE UP LEAKY ROUTE("-1,-2") END, 2, train), -1);
        CHECK_INT(route_of(LEAKY HALVE UP "[lrn]\n" ROUTE("-2,0") END, 2, train), -1);
        CHECK_INT(
            route_of(NORMALIZED("mixed_precision=0\n") HALVE UP LEAKY ROUTE("-1,2") END, 2, train),
            -1);
        CHECK_INT(route_of(LEAKY PLAIN ROUTE("-1,0") END, 1, train), -1);
        CHECK_INT(route_of(LEAKY LEAKY ADD("") ROUTE("-1,0") END, 1, train), -1);
        CHECK_INT(route_of(LEAKY LEAKY ADD("") ROUTE("-1,0") END, 2, train), -1);
        CHECK_INT(route_of(LEAKY HALVE UP ROUTE("-1,0") ROUTE("-1,0") END, 3, train), -1);
        CHECK_INT(route_of(LEAKY HALVE UP "[dropout]\n" ROUTE("-1,0") END, 2, train), -1);
        CHECK_INT(route_of(LEAKY HALVE ROUTE("-1") END, 1, train), -1); /* fused */
        /* Images of other sizes are laid end to end. */
        CHECK_INT(route_of(LEAKY HALVE ROUTE("-1,0") "[connected]\n[cost]\n", 1, train), -1);
    }
}

static int loss_behind(const char *keys, const char *layers, int i)
{
    plan_layers(keys, layers);
    int loss = amp_plan_loss_behind(plan, net, i);
    forget();
    return loss;
}

AMP_TEST(losses_whose_delta_a_convolution_reads_itself)
{
    CHECK_INT(loss_behind("", LEAKY END, 1), -1); /* Darknet's own loss */
    own_losses = 1u << AMP_YOLO | 1u << AMP_COST;
    CHECK_INT(loss_behind("", LEAKY END, 1), 2);
    CHECK_INT(loss_behind("amp_dtype=fp32", LEAKY END, 1), 2);
    CHECK_INT(loss_behind("", LEAKY PLAIN END, 1), -1);        /* another layer behind it */
    CHECK_INT(loss_behind("", PLAIN LEAKY "[cost]\n", 1), -1); /* batch-norm */
    CHECK_INT(loss_behind("", LEAKY PLAIN "[dropout]\n[cost]\n", 1), -1);
    CHECK_INT(loss_behind("", LEAKY "[conv]\nmixed_precision=0\n[cost]\n", 1), 2);
    plan_stock("yolov3.cfg");
    int count = 0;
    for (int i = 0; i < net->n; i++) {
        int loss = amp_plan_loss_behind(plan, net, i);
        if (loss >= 0) CHECK_INT(loss, i + 1);
        count += loss >= 0;
    }
    CHECK_INT(count, 3);
    forget();
    own_losses = 0;
}

AMP_TEST(yolov3_spp_pyramid)
{
    plan_stock("yolov3-spp.cfg");
    static const int slices[][3] = {{78, 83, 1024}, {80, 83, 512}, {82, 83, 0}, {92, 93, 0}};
    for (int i = 0; i < 4; i++) {
        CHECK_INT(plan->layers[slices[i][0]].route, slices[i][1]);
        CHECK_INT(plan->layers[slices[i][0]].first_channel, slices[i][2]);
    }
    CHECK_INT(plan->layers[77].route, -1);
    forget();
}

AMP_TEST_MAIN
