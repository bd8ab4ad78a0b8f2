/* What is advised when activations do not fit: it fits then, and nothing larger does. And a cfg,
 * its description and its plan that end for want of memory leave nothing behind. */
#include "plugin/core/layers.h"
#include "plugin/core/plan.h"

#include "tests/rig/harness.h"

/* ---- the allocator: fails once, after `calls_left` more; -1: never ---- */

static int calls_left = -1, live;

static bool fails(void)
{
    return calls_left >= 0 && calls_left-- == 0;
}

static void *counted(void *p)
{
    live += p != NULL;
    return p;
}

void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
char *__real_strdup(const char *);
void __real_free(void *);

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *old, size_t size)
{
    if (fails()) return NULL;
    live -= old != NULL;
    return counted(__real_realloc(old, size));
}

char *__wrap_strdup(const char *s)
{
    return fails() ? NULL : counted(__real_strdup(s));
}

void __wrap_free(void *p)
{
    live -= p != NULL;
    __real_free(p);
}

/* ---- advice ---- */

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

/* Every layer whose description or plan has memory of its own. */
static bool plan_all(void)
{
    static const char cfg_text[] =
        "[net]\nmixed_precision=1\nbatch=2\nwidth=16\nheight=8\nchannels=3\n"
        "[conv]\nbatch_normalize=1\nfilters=14\n[conv]\nfilters=14\n[shortcut]\nfrom=-2\n"
        "activation=linear\n[route]\nlayers=-1,-2\n[conv]\nfilters=14\n[yolo]\nmask=0,1\n"
        "anchors=1,2, 3,4\nclasses=2\nnum=2\n";
    struct amp_options options;
    struct amp_net_desc *net = NULL;
    struct amp_plan *plan = NULL;
    struct amp_cfg_file *cfg =
        amp_cfg_parse("a.cfg", cfg_text, sizeof cfg_text - 1, err, sizeof err);
    if (cfg && !amp_options_read(cfg, &options, NULL, 0, err, sizeof err))
        net = amp_net_describe(cfg, 0, 0, true, err, sizeof err);
    if (net)
        plan = amp_plan_make(net, &options, amp_layers_ours(NULL), NULL, true, err, sizeof err);
    bool made = plan != NULL;
    amp_plan_free(plan);
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    return made;
}

AMP_TEST(without_memory_nothing_is_left_behind)
{
    int before = live, n = 0;
    for (bool made = false; !made; n++) {
        *err = 0;
        calls_left = n;
        made = plan_all();
        bool failed = calls_left < 0;
        calls_left = -1;
        if (live != before) TEST_FAIL("call %d fails: %d allocations are left", n, live - before);
        if (!made && !strstr(err, "memory")) TEST_FAIL("call %d fails: %s", n, err);
        CHECK(failed || made);
        live = before;
    }
    CHECK(n > 30);
}

AMP_TEST_MAIN
