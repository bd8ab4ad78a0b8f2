/* A cfg, its description and its plan that end for want of memory leave nothing behind. */
#include "plugin/core/engine/layers.h"
#include "plugin/core/plan/plan.h"

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

static char err[1024];

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
    if (cfg && !amp_options_read(cfg, &options, NULL, 0, err, sizeof err)) {
        amp_options_settle_dtype(&options, false, false);
        net = amp_net_describe(cfg, 0, 0, true, err, sizeof err);
    }
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
