/* What is advised when activations do not fit: it fits then, and nothing larger does. */
#include "plugin/core/layers.h"
#include "plugin/core/plan.h"

#include "tests/rig/harness.h"

static char err[1024], text[1024];

struct planned {
    struct amp_cfg_file *cfg;
    struct amp_net_desc *net;
    struct amp_plan *plan;
    size_t bytes; /* activations, gradients and the loss */
};

static struct planned make_plan(int batch, int subdivisions)
{
    struct planned p = {0};
    struct amp_options options;
    char cfg[1000];
    int n = snprintf(cfg, sizeof cfg,
                     "[net]\nmixed_precision=1\nbatch=%d\nsubdivisions=%d\nwidth=64\nheight=48\n"
                     "channels=3\n[convolutional]\nbatch_normalize=1\nfilters=40\nsize=3\npad=1\n"
                     "activation=leaky\n[maxpool]\nsize=2\nstride=2\n[convolutional]\nfilters=16\n"
                     "size=3\npad=1\nactivation=linear\n[cost]\n",
                     batch, subdivisions);
    p.cfg = amp_cfg_parse("a.cfg", cfg, (size_t)n, err, sizeof err);
    REQUIRE(p.cfg && !amp_options_read(p.cfg, &options, NULL, 0, err, sizeof err));
    amp_options_settle_dtype(&options, false, false);
    p.net = amp_net_describe(p.cfg, 0, 0, true, err, sizeof err);
    REQUIRE(p.net != NULL);
    p.plan = amp_plan_make(p.net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    REQUIRE(p.plan != NULL);
    p.bytes = p.plan->arena_bytes;
    for (int i = 0; i < p.net->n; i++)
        p.bytes += p.net->layers[i].n_weights * 2 * sizeof(float);
    p.bytes += (size_t)p.net->batch * (size_t)p.net->layers[p.net->n - 1].outputs * sizeof(float);
    return p;
}

static void drop(struct planned *p)
{
    amp_plan_free(p->plan);
    amp_net_desc_free(p->net);
    amp_cfg_free(p->cfg);
}

static const char *advice(size_t left)
{
    struct planned p = make_plan(64, 2);
    amp_no_memory(p.net, p.plan, "tea", left, text, sizeof text);
    drop(&p);
    return text;
}

AMP_TEST(the_layer_and_sizes_are_named)
{
    CHECK(strstr(advice(1 << 20), "no memory for tea (32 images of 64x48 in a pass") != NULL);
    CHECK(strstr(text, "layer 0 (convolutional), 64x48x40") != NULL);
    CHECK(strstr(text, "1.0 MiB are free") != NULL);
}

AMP_TEST(what_is_advised_fits_and_the_next_larger_does_not)
{
    static const int divisors[] = {2, 4, 8, 16, 32, 64};
    for (int k = 1; k < 6; k++) {
        struct planned fits = make_plan(64, divisors[k]), larger = make_plan(64, divisors[k - 1]);
        char expected[100];
        snprintf(expected, sizeof expected, "set batch=64, subdivisions=%d", divisors[k]);
        size_t between = (fits.bytes + larger.bytes) / 2;
        if (!strstr(advice(between), expected)) TEST_FAIL("%s, not %s", text, expected);
        drop(&fits);
        drop(&larger);
    }
}

AMP_TEST(where_nothing_helps_it_says_so)
{
    CHECK(strstr(advice(1000), "too little for one image") != NULL);
    CHECK(strstr(advice((size_t)1 << 40), "just too little; set batch=64, subdivisions=4") != NULL);
    CHECK(strstr(advice(0), "lower batch or raise subdivisions") != NULL);
    CHECK(strstr(text, "are free") == NULL);
}

AMP_TEST_MAIN
