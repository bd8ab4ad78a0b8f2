/* What a training takes is predicted, and what fits is found: nothing larger does. The kept arrays
 * are counted as they are made. (The program's own memory: tests/train/memory.py.) */
#include "plugin/core/plan/need.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/core/engine/layers.h"
#include "tests/rig/harness.h"

#include "tests/rig/files.h"
#include "tests/rig/rig.h"

#define LAYERS                                                                                     \
    "[convolutional]\nbatch_normalize=1\nfilters=16\nsize=3\npad=1\nactivation=leaky\n"            \
    "[maxpool]\nsize=2\nstride=2\n"                                                                \
    "[convolutional]\nfilters=20\nsize=3\npad=1\nactivation=leaky\n"                               \
    "[connected]\noutput=9\nactivation=linear\n[cost]\n"

static char err[1000];

/* ---- moments and averages ---- */

static size_t kept_bytes(const struct rig *r)
{
    size_t floats = 0;
    for (int i = 0; i < r->n_params; i++) {
        const struct amp_kept_param *k = &r->kept->params[i];
        floats += r->params[i].n * (size_t)((k->m != NULL) + (k->v != NULL) + (k->average != NULL));
    }
    for (int i = 0; i < r->n_rolling; i++)
        if (r->kept->averages[i]) floats += r->rolling[i].n;
    return floats * sizeof(float);
}

AMP_TEST(kept_arrays_are_counted)
{
    static const char *const keys[] = {"ema_alpha=.9\n", "optimizer=adamw\n",
                                       "optimizer=lamb\nema_alpha=.9\n", "clip_grad_norm=1\n"};
    for (int k = 0; k < 4; k++) {
        char text[1000];
        snprintf(text, sizeof text,
                 "[net]\nmixed_precision=1\nbatch=2\nwidth=8\nheight=8\nchannels=3\n%s" LAYERS,
                 keys[k]);
        struct rig *r = rig_create(text, &ampk_cpu, test_random);
        REQUIRE(r && r->kept);
        CHECK_INT(amp_plan_kept_bytes(r->plan, r->net), kept_bytes(r));
        rig_free(r);
    }
}

/* ---- what fits ---- */

struct asked {
    struct amp_cfg_file *cfg;
    struct amp_options options;
    struct amp_fitter fitter;
};

static const char *keys = ""; /* more of [net] */

static void ask(struct asked *a, int batch, size_t device_bytes)
{
    static char text[1000];
    snprintf(text, sizeof text,
             "[net]\nmixed_precision=1\nbatch=%d\nwidth=200\nheight=200\nchannels=3\n%s" LAYERS,
             batch, keys);
    a->cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(a->cfg && !amp_options_read(a->cfg, &a->options, NULL, 0, err, sizeof err));
    amp_options_settle_dtype(&a->options, false, false);
    a->fitter = (struct amp_fitter){
        a->cfg, &a->options, &ampk_cpu, amp_layers_ours(&ampk_cpu), device_bytes, 1};
}

static size_t takes(const struct asked *a, int batch, int subdivisions)
{
    struct amp_fit fit;
    REQUIRE(!amp_fit_predict(&a->fitter, batch, subdivisions, &fit, err, sizeof err));
    CHECK(fit.batch == batch && fit.subdivisions == subdivisions);
    CHECK_INT(fit.images, batch / subdivisions);
    return fit.bytes;
}

/* For any number of bytes: it divides the batch, fits, and with fewer subdivisions does not. */
AMP_TEST(the_fewest_subdivisions)
{
    static const int batches[] = {1, 7, 12, 64};
    int none = 0, some = 0;
    for (int k = 0; k < 40; k++) {
        struct asked a;
        struct amp_fit fit;
        int batch = batches[k % 4];
        ask(&a, batch, k % 3 ? 0 : (size_t)1 << 30);
        size_t least = takes(&a, batch, batch), most = takes(&a, batch, 1);
        CHECK(batch == 1 || least < most);
        size_t bytes = least - least / 20 + test_random() % (most - least + least / 10);
        int status = amp_fit_subdivisions(&a.fitter, batch, bytes, &fit, err, sizeof err);
        CHECK_INT(status, bytes < least);
        CHECK_INT(batch % fit.subdivisions, 0);
        CHECK_INT(fit.bytes, takes(&a, batch, fit.subdivisions));
        CHECK_INT(fit.bytes <= bytes, !status);
        for (int n = 1; n < fit.subdivisions; n++)
            if (batch % n == 0) CHECK(takes(&a, batch, n) > bytes);
        none += status;
        some += !status && fit.subdivisions > 1;
        amp_cfg_free(a.cfg);
    }
    CHECK(none > 0 && some > 0);
}

/* Two more numbers for each parameter, in arrays of Darknet's. */
AMP_TEST(darknets_adam_has_moments)
{
    const size_t parameters = 16 * (3 * 9 + 2) + 20 * (16 * 9 + 1) + 9 * (100 * 100 * 20 + 1);
    struct asked a;
    ask(&a, 4, 0);
    size_t without = takes(&a, 4, 1);
    amp_cfg_free(a.cfg);
    keys = "adam=1\n";
    ask(&a, 4, 0);
    CHECK_INT(takes(&a, 4, 1) - without, 2 * parameters * sizeof(float));
    amp_cfg_free(a.cfg);
    keys = "";
}

AMP_TEST(the_largest_batch)
{
    for (int k = 0; k < 20; k++) {
        struct asked a;
        struct amp_fit fit;
        ask(&a, 12, 0);
        size_t bytes = takes(&a, 1, 1) - 1000 + test_random() % takes(&a, 200, 1);
        int status = amp_fit_batch(&a.fitter, bytes, &fit, err, sizeof err);
        CHECK_INT(status, bytes < takes(&a, 1, 1));
        if (!status) CHECK(fit.bytes <= bytes && takes(&a, 2 * fit.batch, 1) > bytes);
        amp_cfg_free(a.cfg);
    }
}

static size_t detector_takes(int width, int height, int random)
{
    char text[1000];
    struct amp_options options;
    struct amp_fit fit;
    snprintf(text, sizeof text,
             "[net]\nmixed_precision=1\nbatch=2\nwidth=%d\nheight=%d\nchannels=3\n[convolutional]\n"
             "filters=21\nsize=1\nactivation=linear\n[yolo]\nmask=0,1,2\n"
             "anchors=1,1,2,2,3,3\nclasses=2\nnum=3\nrandom=%d\n",
             width, height, random);
    struct amp_cfg_file *cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(cfg && !amp_options_read(cfg, &options, NULL, 0, err, sizeof err));
    amp_options_settle_dtype(&options, false, false);
    const struct amp_fitter f = {cfg, &options, &ampk_cpu, amp_layers_ours(&ampk_cpu), 0, 1};
    REQUIRE(!amp_fit_predict(&f, 2, 1, &fit, err, sizeof err));
    amp_cfg_free(cfg);
    return fit.bytes;
}

AMP_TEST(random_sizes_count_at_their_largest)
{
    CHECK_INT(detector_takes(320, 320, 1), detector_takes(608, 608, 0));
    CHECK_INT(detector_takes(640, 320, 1), detector_takes(608, 608, 0));
    CHECK_INT(detector_takes(320, 640, 1), detector_takes(608, 608, 0));
    CHECK_INT(detector_takes(608, 608, 1), detector_takes(608, 608, 0));
    CHECK_INT(detector_takes(640, 640, 1), detector_takes(640, 640, 0));
    CHECK(detector_takes(320, 320, 0) < detector_takes(320, 320, 1));
}

/* ---- several processes ---- */

static size_t each_takes(const struct asked *a, int processes, int batch, int subdivisions)
{
    struct asked several = *a;
    several.fitter.options = &several.options;
    several.fitter.processes = processes;
    return takes(&several, batch, subdivisions);
}

/* The same passes in one process: what is exchanged comes on top, the others' images do not. */
AMP_TEST(exchanges_are_counted)
{
    const size_t parameters = 16 * (3 * 9 + 2) + 20 * (16 * 9 + 1) + 9 * (100 * 100 * 20 + 1);
    static const struct {
        const char *keys;
        bool device;
        size_t bytes; /* for each parameter */
    } cases[] = {{"", true, 4},
                 {"amp_wire=bf16\n", true, 6},
                 {"amp_bucket_mb=0\n", true, 0},
                 {"amp_bucket_mb=0\namp_wire=bf16\n", true, 2},
                 {"amp_sync_bn=1\n", true, 0},
                 {"amp_reduce=ordered\n", true, 0},
                 {"amp_wire=bf16\n", false, 4},
                 {"amp_reduce=ordered\n", false, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct asked a;
        keys = cases[k].keys;
        ask(&a, 4, cases[k].device ? (size_t)1 << 30 : 0);
        size_t images = cases[k].device ? 0 : (size_t)2 * 4 * 200 * 200 * 3 * sizeof(float);
        CHECK_INT(each_takes(&a, 2, 4, 2) + images / 2,
                  each_takes(&a, 1, 4, 2) + cases[k].bytes * parameters);
        amp_cfg_free(a.cfg);
        keys = "";
    }
}

/* Each has a pass, and with amp_sync_bn=1 as many as the others. */
AMP_TEST(what_fits_in_each)
{
    struct asked a;
    struct amp_fit fit;
    ask(&a, 12, 0);
    a.fitter.processes = 5;
    CHECK_INT(amp_fit_subdivisions(&a.fitter, 12, SIZE_MAX, &fit, err, sizeof err), 0);
    CHECK(fit.subdivisions == 6 && fit.images == 2);
    CHECK_INT(amp_fit_batch(&a.fitter, each_takes(&a, 5, 25, 5), &fit, err, sizeof err), 0);
    CHECK(fit.subdivisions == 5 && fit.batch % 5 == 0 && fit.images <= 5);
    /* From the cfg's share of 12, halved and doubled. */
    for (int n = 1; n <= 5; n++) {
        int images = (12 + n - 1) / n;
        size_t room = each_takes(&a, n, n, n) + test_random() % each_takes(&a, n, 60 * n, n);
        while (each_takes(&a, n, n * images, n) > room)
            images /= 2;
        while (each_takes(&a, n, 2 * n * images, n) <= room)
            images *= 2;
        a.fitter.processes = n;
        CHECK_INT(amp_fit_batch(&a.fitter, room, &fit, err, sizeof err), 0);
        CHECK_INT(fit.batch, n * images);
        CHECK_INT(fit.images, images);
    }
    a.options.sync_bn = true;
    a.fitter.processes = 3;
    size_t four = each_takes(&a, 3, 12, 4), six = each_takes(&a, 3, 12, 6);
    size_t bytes = four > six ? four : six;
    CHECK(bytes < each_takes(&a, 3, 12, 3));
    CHECK_INT(amp_fit_subdivisions(&a.fitter, 12, bytes, &fit, err, sizeof err), 0);
    CHECK_INT(fit.subdivisions, 6); /* 4 passes would fit */
    amp_cfg_free(a.cfg);
}

/* ---- subdivisions=auto ---- */

static struct amp_net_desc *describe(const char *keys, struct amp_cfg_file **cfg)
{
    static char text[1000];
    snprintf(text, sizeof text, "[net]\nbatch=6\nwidth=8\nheight=8\nchannels=3\n%s" LAYERS, keys);
    *cfg = amp_cfg_parse("a.cfg", text, strlen(text), err, sizeof err);
    REQUIRE(*cfg);
    return amp_net_describe(*cfg, 0, 0, true, err, sizeof err);
}

/* Darknet loads a step's images at once, however many passes they are for, and the next step's
 * beside them; each of several processes those of its passes. */
AMP_TEST(images_are_those_of_two_steps)
{
    static const char *const passes[] = {"mixed_precision=1\n",
                                         "mixed_precision=1\nsubdivisions=3\n"};
    for (int k = 0; k < 2; k++) {
        struct amp_cfg_file *cfg;
        struct amp_options options;
        struct amp_net_desc *net = describe(passes[k], &cfg);
        REQUIRE(net && !amp_options_read(cfg, &options, NULL, 0, err, sizeof err));
        amp_options_settle_dtype(&options, false, false);
        struct amp_plan *plan =
            amp_plan_make(net, &options, amp_layers_ours(&ampk_cpu), NULL, true, err, sizeof err);
        REQUIRE(plan);
        for (int n = 1; n <= net->subdivisions; n++) {
            const struct amp_fitter f = {.options = &options, .backend = &ampk_cpu, .processes = n};
            struct amp_need need = amp_need_of(&f, net, plan);
            int most = (net->subdivisions + n - 1) / n; /* passes of a process */
            CHECK_INT(need.images, 2 * most * net->batch * 8 * 8 * 3 * sizeof(float));
        }
        amp_plan_free(plan);
        amp_net_desc_free(net);
        amp_cfg_free(cfg);
    }
}

AMP_TEST(auto_picks_what_fits)
{
    struct amp_cfg_file *cfg;
    struct amp_options options;
    struct amp_net_desc *net = describe("mixed_precision=1\nsubdivisions=auto\n", &cfg);
    REQUIRE(net && !amp_options_read(cfg, &options, NULL, 0, err, sizeof err));
    amp_options_settle_dtype(&options, false, false);
    CHECK(net->auto_subdivisions && net->subdivisions == 6 && net->batch == 1);
    CHECK_INT(
        amp_need_settle(net, cfg, &options, &ampk_cpu, amp_layers_ours(&ampk_cpu), err, sizeof err),
        0);
    CHECK(net->subdivisions == 1 && net->batch == 6); /* a small net */
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
}

static size_t room;

static size_t free_room(struct ampk_context *context)
{
    (void)context;
    return room;
}

/* It is told in GiB, and tried all the same where it is too little. */
AMP_TEST(what_auto_chose_is_told)
{
    static const char *const said[] = {" GiB of 3.00 that are free\n",
                                       " of 0.25 that are free, which is too little; trying all "
                                       "the same\n"};
    struct ampk_backend backend = ampk_cpu;
    backend.free_bytes = free_room;
    for (int little = 0; little < 2; little++) {
        char text[1000] = "";
        struct amp_cfg_file *cfg;
        struct amp_options options;
        struct amp_net_desc *net = describe("mixed_precision=1\nsubdivisions=auto\n", &cfg);
        REQUIRE(net && !amp_options_read(cfg, &options, NULL, 0, err, sizeof err));
        amp_options_settle_dtype(&options, false, false);
        room = little ? (size_t)1 << 28 : (size_t)3 << 30;
        struct capture c = capture_begin(2);
        CHECK_INT(amp_need_settle(net, cfg, &options, &backend, amp_layers_ours(&backend), err,
                                  sizeof err),
                  0);
        capture_end(c, text, sizeof text);
        CHECK_SAYS(text, "darknet-amp: subdivisions=auto: ");
        CHECK_SAYS(text, said[little]);
        amp_net_desc_free(net);
        amp_cfg_free(cfg);
    }
}

AMP_TEST(auto_needs_mixed_precision)
{
    struct amp_cfg_file *cfg;
    amp_net_desc_free(describe("mixed_precision=1\nsubdivisions=2\nsubdivisions=auto\n", &cfg));
    amp_cfg_free(cfg);
    CHECK(!describe("subdivisions=auto\n", &cfg));
    CHECK_STR(err,
              "a.cfg:6: subdivisions=auto in [net]: allowed: a divisor of batch, at least 1, or "
              "with mixed_precision=1 auto");
    amp_cfg_free(cfg);
    CHECK(!describe("mixed_precision=1\nsubdivisions=automatic\n", &cfg));
    CHECK_STR(err,
              "a.cfg:7: subdivisions=automatic in [net]: allowed: a divisor of batch, at least "
              "1, or with mixed_precision=1 auto");
    amp_cfg_free(cfg);
}

AMP_TEST_MAIN
