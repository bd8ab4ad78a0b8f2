/* What `amp check` makes of two passes: comparisons by hand, and which layer is named for what. */
#include "tests/harness.h"

#include "plugin/check/precision.h"

#include <math.h>

enum { N = 200000, LAYERS = 3 }; /* more than the sample */

static const char cfg[] = "[net]\nwidth=8\nheight=8\nchannels=3\n"
                          "[convolutional]\nfilters=4\nsize=3\npad=1\n"
                          "[convolutional]\nfilters=4\nsize=3\npad=1\n"
                          "[convolutional]\nfilters=4\nsize=3\npad=1\n";

static struct amp_cfg_file *file;
static struct amp_net_desc *net;
static struct amp_precision p;
static float fp32[N], mixed[N];

static void begin(double scale)
{
    char err[500];
    file = amp_cfg_parse("a.cfg", cfg, sizeof cfg - 1, err, sizeof err);
    REQUIRE(file);
    net = amp_net_describe(file, 0, 0, true, err, sizeof err);
    REQUIRE(net && !amp_precision_init(&p, net));
    p.scale = scale;
    for (int i = 0; i < N; ++i)
        fp32[i] = (float)test_uniform(-1, 1);
}

static void end(void)
{
    amp_precision_free(&p);
    amp_net_desc_free(net);
    amp_cfg_free(file);
}

static void see(enum amp_seen_what what, int layer)
{
    amp_precision_see_fp32(&(struct amp_seen){layer, what, "fp32", fp32, N}, &p);
    amp_precision_see_mixed(&(struct amp_seen){layer, what, "fp16", mixed, N}, &p);
}

/* Mixed is FP32 times `factor` and off by a part `noise` of a value's size. */
static void see_noisy(enum amp_seen_what what, int layer, double factor, double noise)
{
    for (int i = 0; i < N; ++i)
        mixed[i] = (float)(factor * ((double)fp32[i] + noise * test_uniform(-1, 1)));
    see(what, layer);
}

static void see_all_well(double scale)
{
    for (int i = 0; i < LAYERS; ++i) {
        see_noisy(AMP_SEEN_OUT, i, 1, .001);
        see_noisy(AMP_SEEN_DELTA, i, scale, .001);
        see_noisy(AMP_SEEN_GRADIENT, i, scale, .001);
    }
}

/* Both uniform in +-1: the error is the noise. */
AMP_TEST(errors_are_relative_and_unscaled)
{
    begin(1024);
    see_noisy(AMP_SEEN_DELTA, 0, 1024, .1);
    const struct amp_compared *t = &p.tensors[AMP_SEEN_DELTA][0];
    CHECK(t->seen);
    CHECK_NEAR(t->error, .1, .002);
    CHECK_NEAR(t->cosine, 1 / sqrt(1.01), .001);
    CHECK(t->largest > 1024 && t->largest < 1127);
    CHECK_NEAR(t->zero, 0, 1e-4);
    CHECK(t->n_sample <= AMP_PRECISION_SAMPLE && t->n_sample > AMP_PRECISION_SAMPLE / 2);
    see_noisy(AMP_SEEN_DELTA, 0, 0, 0);
    CHECK_NEAR(t->error, 1, 1e-9);
    CHECK(isnan(t->cosine));
    CHECK_NEAR(t->lost, 1, 1e-4);
    CHECK_NEAR(t->zero, 1, 0);
    end();
}

AMP_TEST(nothing_to_advise)
{
    begin(64);
    see_all_well(64);
    amp_precision_judge(&p);
    CHECK_INT(p.n_advice, 0);
    end();
}

static void check_only(int layer, const char *why)
{
    amp_precision_judge(&p);
    CHECK_INT(p.n_advice, 1);
    CHECK_INT(p.advice[0].layer, layer);
    CHECK(strstr(p.advice[0].why, why));
}

AMP_TEST(little_headroom)
{
    begin(1);
    see_all_well(1);
    for (int i = 0; i < N; ++i)
        fp32[i] *= 20000;
    see_noisy(AMP_SEEN_OUT, 1, 1, .001);
    check_only(1, "close to what FP16 holds");
    end();
}

/* Layer 1 is wrong; layer 2 only hands on what it was given. */
AMP_TEST(an_error_is_named_where_it_arises)
{
    begin(1);
    see_all_well(1);
    see_noisy(AMP_SEEN_OUT, 1, 1, .2);
    see_noisy(AMP_SEEN_OUT, 2, 1, .25);
    check_only(1, "differs from FP32 by 20");
    end();
}

AMP_TEST(gradients_lost)
{
    begin(1);
    see_all_well(1);
    for (int i = 0; i < N; ++i)
        mixed[i] = i % 3 ? 0 : fp32[i];
    see(AMP_SEEN_DELTA, 0);
    check_only(0, "67 % of its gradients");
    end();
}

/* A weight gradient that is as wrong as the delta it is made of is not the layer's own fault. */
AMP_TEST(a_gradient_of_its_own)
{
    begin(1);
    see_all_well(1);
    see_noisy(AMP_SEEN_DELTA, 1, 1, 1);
    see_noisy(AMP_SEEN_GRADIENT, 1, 1, 1);
    see_noisy(AMP_SEEN_GRADIENT, 2, 1, 1);
    check_only(2, "cosine");
    end();
}

/* In the order in which they were found, before what the comparison shows, and once. */
AMP_TEST(those_that_left_fp16_come_first)
{
    begin(1);
    see_all_well(1);
    amp_precision_left(&p, 2, "output", 1e6);
    amp_precision_left(&p, 1, "input's copy", 1e6);
    amp_precision_left(&p, 2, "output", 1e6);
    see_noisy(AMP_SEEN_OUT, 0, 1, .2);
    see_noisy(AMP_SEEN_OUT, 2, 1, 5);
    amp_precision_judge(&p);
    CHECK_INT(p.n_advice, 3);
    CHECK_INT(p.advice[0].layer, 2);
    CHECK_INT(p.advice[1].layer, 1);
    CHECK_INT(p.advice[2].layer, 0);
    CHECK_STR(p.advice[0].why, "its output does not fit FP16 (largest 1e+06, FP16 holds 65504)");
    end();
}

AMP_TEST_MAIN
