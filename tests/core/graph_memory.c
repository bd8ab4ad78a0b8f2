/* Memory that ends anywhere while a graph is made: the reason names what it was for, a layer where
 * it is one's, the sizes and what to change; nothing is left behind. */
#include "plugin/core/plan/need.h"
#include "tests/emulation/emulation.h"
#include "tests/rig/harness.h"
#include "tests/rig/rig.h"

#include <limits.h>

static const char detector[] =
    "[net]\nmixed_precision=1\nbatch=8\nsubdivisions=2\nwidth=40\nheight=40\n"
    "channels=3\n"
    "[convolutional]\nbatch_normalize=1\nfilters=8\nsize=3\npad=1\n"
    "activation=leaky\n"
    "[maxpool]\nsize=2\nstride=2\n"
    "[dropout]\nprobability=.5\n"
    "[convolutional]\nfilters=18\nsize=1\nactivation=linear\n"
    "[yolo]\nmask=0,1,2\nclasses=1\nnum=3\nanchors=1,2,3,4,5,6\n";

static struct ampk_backend limited;
static int left; /* allocations that succeed */

static void *limited_alloc(struct ampk_context *context, size_t bytes)
{
    return left-- > 0 ? ampk_cuda.alloc(context, bytes) : NULL;
}

static struct rig *make(const char *text)
{
    limited = ampk_cuda;
    limited.alloc = limited_alloc;
    left = INT_MAX;
    struct rig *r = rig_create_with_losses(text, &limited, test_random);
    REQUIRE(r);
    amp_graph_free(r->graph);
    r->graph = NULL;
    return r;
}

/* One without work memory. */
static void renew_context(struct rig *r)
{
    r->backend->context_destroy(r->context);
    r->context = r->backend->context_create(0, r->err, sizeof r->err);
    REQUIRE(r->context);
}

/* The reason is said as it should be; returns whether it names `what`. */
static bool says(const struct rig *r, const char *what)
{
    bool sizes = strstr(r->err, "no memory for ") == r->err &&
                 strstr(r->err, "4 images of 40x40 in a pass") &&
                 strstr(r->err, "layer 0 (convolutional), 40x40x8") &&
                 strstr(r->err, "MiB are free");
    bool advice = strstr(r->err, "set batch=8, subdivisions=") || strstr(r->err, "lower width");
    if (!sizes || !advice) TEST_FAIL("it said: %s", r->err);
    return strstr(r->err, what) != NULL;
}

/* What has memory by `alloc`. */
AMP_TEST(every_allocation)
{
    static const char *const wanted[] = {"no memory for activations",
                                         "MiB of gradients",
                                         "rolling statistics",
                                         "layer 0 (convolutional), batch-norm's statistics",
                                         "layer 4 (yolo), what its loss reads",
                                         "layer 4 (yolo), its loss"};
    enum { WANTED = sizeof wanted / sizeof *wanted };
    bool said[WANTED] = {false};
    struct rig *r = make(detector);
    struct emulation_memory before = emulation_memory();
    int n = 0;
    for (; left = n, rig_make_graph(r, true); n++) {
        for (int k = 0; k < WANTED; k++)
            said[k] |= says(r, wanted[k]);
        CHECK_INT(emulation_memory().bytes, before.bytes);
        REQUIRE(n < 1000);
    }
    for (int k = 0; k < WANTED; k++)
        if (!said[k]) TEST_FAIL("none of %d failures said %s", n, wanted[k]);
    rig_free(r);
}

static bool says_gradients(const char *error, double *mib)
{
    static const char before[] = "no memory for ", after[] = " MiB of gradients";
    char *end;
    if (strncmp(error, before, strlen(before))) return false;
    *mib = strtod(error + strlen(before), &end);
    return !strncmp(end, after, strlen(after));
}

/* What is said of the gradients, whichever of their arrays finds no memory. A local layer has many
 * biases, and biases no convolution keeps. */
static double refused_mib(const char *keys, bool accumulate)
{
    char text[1000];
    double mib = NAN, first = NAN;
    snprintf(text, sizeof text,
             "[net]\nmixed_precision=1\nbatch=1\nwidth=40\nheight=40\nchannels=3\n%s"
             "[convolutional]\nbatch_normalize=1\nfilters=512\nsize=11\nactivation=leaky\n"
             "[convolutional]\nfilters=3\nsize=1\nactivation=leaky\n"
             "[local]\nfilters=512\nsize=1\nactivation=linear\n[cost]\n",
             keys);
    struct rig *r = make(text);
    for (int n = 0; left = n, rig_make_graph(r, accumulate); n++) {
        if (!says_gradients(r->err, &mib)) continue;
        if (isnan(first)) first = mib;
        CHECK(mib == first);
    }
    rig_free(r);
    return first;
}

/* Of all parameters; of a step of one pass whose update reads convolutions' gradients where they
 * are, the others. */
AMP_TEST(the_gradients_that_found_no_memory_are_counted)
{
    const double weights = 512 * 3 * 11 * 11 + 3 * 512 + 512 * 3 * 30 * 30, others = 512 * 900,
                 mib = 1 << 18; /* floats */
    CHECK_NEAR(refused_mib("", true), (weights + others) / mib, .06);
    CHECK_NEAR(refused_mib("", false), others / mib, .06);
    CHECK_NEAR(refused_mib("clip_grad_norm=1\n", false), others / mib, .06);
    CHECK_NEAR(refused_mib("optimizer=lars\n", false), (weights + others) / mib, .06);
}

/* And what the backend takes itself: a device with more and more memory. */
AMP_TEST(a_device_that_is_too_small)
{
    struct rig *r = make(detector);
    size_t before = emulation_memory().bytes;
    size_t step = r->plan->arena_bytes / 97;
    bool convolution = false;
    for (size_t room = step, enough = 0; !enough; room += step) {
        renew_context(r);
        left = INT_MAX;
        emulation_memory_limit(emulation_memory().bytes + room);
        enough = rig_make_graph(r, true) == 0;
        if (!enough) convolution |= says(r, "weights and work of its convolution");
        emulation_memory_limit(SIZE_MAX);
        REQUIRE(room < 100 * r->plan->arena_bytes);
    }
    CHECK(convolution);
    CHECK(emulation_memory().bytes > before);
    rig_free(r);
}

/* Where the output of a layer without batch-norm is the largest that work memory has to hold. */
AMP_TEST(a_pass_takes_no_more)
{
    struct rig *r = make("[net]\nmixed_precision=1\nbatch=2\nwidth=160\nheight=160\nchannels=3\n"
                         "[convolutional]\nfilters=64\nsize=1\nactivation=leaky\n"
                         "[convolutional]\nfilters=8\nsize=1\nstride=8\nactivation=linear\n");
    renew_context(r);
    REQUIRE(rig_make_graph(r, true) == 0);
    size_t made = emulation_memory().bytes;
    rig_forward(r);
    rig_backward(r, 1);
    CHECK_INT(emulation_memory().bytes, made);
    rig_free(r);
}

/* ---- what a loss reads ---- */

static char *block;      /* the last that was allocated */
static size_t room;      /* its bytes */
static size_t described; /* of them, how many were written so far */

static void *noted_alloc(struct ampk_context *context, size_t bytes)
{
    room = bytes;
    described = 0;
    return block = ampk_cuda.alloc(context, bytes);
}

/* One array after the other, each where vectors of 16 bytes may be read. */
static void checked_write(struct ampk_context *context, void *to, const void *from, size_t bytes)
{
    char *at = to;
    if (block && at >= block && at < block + room) {
        CHECK_INT((at - block) % 16, 0);
        CHECK(at >= block + described && at + bytes <= block + room);
        described = (size_t)(at - block) + bytes;
    }
    ampk_cuda.write(context, to, from, bytes);
}

AMP_TEST(a_losss_arrays_are_aligned_and_apart)
{
    struct rig *r = make(detector);
    limited.alloc = noted_alloc;
    limited.write = checked_write;
    REQUIRE(rig_make_graph(r, true) == 0);
    size_t anchors = 6 * sizeof(float), mask = 3 * sizeof(int);
    /* The anchors' 24 bytes take 32, the mask's 12 take 16. */
    block = r->graph->nodes[4].constants;
    REQUIRE(block);
    CHECK(!memcmp(block, r->net->layers[4].loss.anchor_sizes, anchors));
    CHECK(!memcmp(block + 32, r->net->layers[4].loss.mask, mask));
    rig_free(r);
}

/* ---- what is predicted before anything is made (need.h) ---- */

/* What a graph takes beside Darknet's own arrays and work memory, as need.h counts it. */
static size_t predicted(const struct rig *r, int processes)
{
    const struct amp_fitter f = {
        .options = &r->options, .backend = r->backend, .device_bytes = 1, .processes = processes};
    struct amp_need need = amp_need_of(&f, r->net, r->plan);
    size_t bytes = r->plan->arena_bytes + need.gradients + need.exchanges;
    for (int i = 0; i < r->net->n; i++)
        if (r->plan->layers[i].loss)
            bytes += (size_t)r->net->batch * (size_t)r->net->layers[i].outputs * sizeof(float);
    return bytes;
}

/* Watch words, statistics and the rounding of each array come on top. */
static void check_predicted(struct rig *r, int k, int processes)
{
    size_t before = emulation_memory().bytes;
    REQUIRE(rig_make_graph(r, r->net->subdivisions > 1) == 0);
    if (processes > 1) /* as ahead.c does before their first pass */
        REQUIRE(amp_graph_cut(r->graph, (size_t)(r->options.bucket_mb * (1 << 20)),
                              r->options.wire == AMP_WIRE_BF16) == 0);
    double took = (double)(emulation_memory().bytes - before), said;
    said = (double)predicted(r, processes);
    if (!(said > .9 * took && said < 1.1 * took))
        TEST_FAIL("case %d, %d processes: %.0f bytes predicted, %.0f taken", k, processes, said,
                  took);
    amp_graph_free(r->graph);
    r->graph = NULL;
}

AMP_TEST(as_predicted)
{
    static const char layers[] =
        "[convolutional]\nbatch_normalize=1\nfilters=32\nsize=3\npad=1\nactivation=leaky\n%1$s"
        "[maxpool]\nsize=2\nstride=2\n"
        "[convolutional]\nbatch_normalize=1\nfilters=256\nsize=3\npad=1\nactivation=leaky\n"
        "[convolutional]\nbatch_normalize=1\nfilters=256\nsize=3\npad=1\nactivation=leaky\n%1$s"
        "[convolutional]\nbatch_normalize=1\nfilters=256\nsize=3\npad=1\nactivation=leaky\n"
        "[convolutional]\nbatch_normalize=1\nfilters=256\nsize=3\npad=1\nactivation=leaky\n%1$s"
        "[shortcut]\nfrom=-1\nactivation=linear\n"
        "[convolutional]\nfilters=256\nsize=3\nstride=2\npad=1\nactivation=leaky\n"
        "[connected]\noutput=50\nactivation=linear\n[cost]\n";
    static const char *const keys[] = {"", "amp_dtype=fp32\n", "clip_grad_norm=1\n"};
    size_t kept[12];
    for (int k = 0; k < 24; k++) {
        char text[2000], sections[1000];
        bool again = k >= 12; /* the convolutions' tensors are computed again in backward */
        snprintf(sections, sizeof sections, layers, again ? "checkpoint=1\n" : "");
        snprintf(text, sizeof text,
                 "[net]\nmixed_precision=1\n%sbatch=%d\nsubdivisions=%d\nwidth=32\nheight=32\n"
                 "channels=3\n%s",
                 keys[k % 3], 8 << k % 12 / 6, 1 << k / 3 % 2, sections);
        struct rig *r = make(text);
        if (!again)
            kept[k] = r->plan->arena_bytes;
        else if (r->plan->arena_bytes > .9 * kept[k - 12])
            TEST_FAIL("case %d: computing again needs %zu bytes, keeping %zu", k,
                      r->plan->arena_bytes, kept[k - 12]);
        renew_context(r);
        check_predicted(r, k, 1);
        for (int way = 0; way < 3 && r->net->subdivisions > 1; way++) {
            r->options.wire = way == 1 ? AMP_WIRE_BF16 : AMP_WIRE_FP32;
            r->options.bucket_mb = way == 2 ? 0 : 25;
            renew_context(r);
            check_predicted(r, k, 2);
        }
        rig_free(r);
    }
}

AMP_TEST_MAIN
