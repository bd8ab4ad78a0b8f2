/* What `amp check` makes of two passes: comparisons by hand, and which layer is named for what. */
#include "tests/rig/harness.h"

#include "plugin/app/precision.h"

#include <math.h>

enum { N = 200000, LAYERS = 3 }; /* more than the sample */

static const char layers[] = "[convolutional]\nfilters=4\nsize=3\npad=1\n"
                             "[convolutional]\nfilters=4\nsize=3\npad=1\nmixed_precision=1\n"
                             "[convolutional]\nfilters=4\nsize=3\npad=1\n";

static struct amp_cfg_file *file;
static struct amp_net_desc *net;
static struct amp_precision p;
static float fp32[N], mixed[N];

static void begin_with(const char *net_keys, double scale)
{
    char err[500], cfg[1000];
    struct amp_options options;
    snprintf(cfg, sizeof cfg, "[net]\nwidth=8\nheight=12\nchannels=3\nmixed_precision=1\n%s%s",
             net_keys, layers);
    file = amp_cfg_parse("a.cfg", cfg, strlen(cfg), err, sizeof err);
    REQUIRE(file);
    REQUIRE(!amp_options_read(file, &options, NULL, 0, err, sizeof err));
    amp_options_settle_dtype(&options, false, false);
    net = amp_net_describe(file, 0, 0, true, err, sizeof err);
    REQUIRE(net && !amp_precision_init(&p, net, file, &options));
    p.scale = scale;
    for (int i = 0; i < N; i++)
        fp32[i] = (float)test_uniform(-1, 1);
}

static void begin(double scale)
{
    begin_with("", scale);
}

static void end(void)
{
    amp_precision_free(&p);
    amp_net_desc_free(net);
    amp_cfg_free(file);
}

static void see_as(enum amp_seen_what what, int layer, const char *format)
{
    amp_precision_see_fp32(&(struct amp_seen){layer, what, "fp32", fp32, N}, &p);
    amp_precision_see_mixed(&(struct amp_seen){layer, what, format, mixed, N}, &p);
}

static void see(enum amp_seen_what what, int layer)
{
    see_as(what, layer, what == AMP_SEEN_GRADIENT ? "fp32" : "fp16");
}

/* Mixed is FP32 times `factor` and off by a part `noise` of a value's size. */
static void see_noisy(enum amp_seen_what what, int layer, double factor, double noise)
{
    for (int i = 0; i < N; i++)
        mixed[i] = (float)(factor * ((double)fp32[i] + noise * test_uniform(-1, 1)));
    see(what, layer);
}

static void see_all_well(double scale)
{
    for (int i = 0; i < LAYERS; i++) {
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
    amp_precision_end_batch(&p);
    const struct amp_compared *t = &p.tensors[AMP_SEEN_DELTA][0];
    CHECK(t->seen);
    CHECK_NEAR(t->error, .1, .002);
    CHECK_NEAR(t->cosine, 1 / sqrt(1.01), .001);
    CHECK(t->largest > 1024 && t->largest < 1127);
    CHECK_NEAR(t->zero, 0, 1e-4);
    CHECK(t->n_sample <= AMP_PRECISION_SAMPLE && t->n_sample > AMP_PRECISION_SAMPLE / 2);
    CHECK_NEAR(t->lost_norm, 0, 1e-3);
    end();
    begin(1024);
    t = &p.tensors[AMP_SEEN_DELTA][0];
    see_noisy(AMP_SEEN_DELTA, 0, 0, 0);
    amp_precision_end_batch(&p);
    CHECK_NEAR(t->error, 1, 1e-9);
    CHECK(isnan(t->cosine));
    CHECK_NEAR(t->lost, 1, 1e-4);
    CHECK_NEAR(t->lost_norm, 1, 1e-9);
    CHECK_NEAR(t->zero, 1, 0);
    end();
}

/* Two batches, the second exact, twice as large, and half of its sample 0. A pass
 * that is seen again counts once. */
AMP_TEST(batches_are_taken_together)
{
    begin(1);
    const struct amp_compared *t = &p.tensors[AMP_SEEN_OUT][1];
    see_noisy(AMP_SEEN_OUT, 1, 0, 0);
    see_noisy(AMP_SEEN_OUT, 1, 1, .1);
    amp_precision_end_batch(&p);
    double largest = t->largest;
    CHECK_NEAR(t->error, .1, .002);
    for (int i = 0; i < N; i++)
        mixed[i] = fp32[i] *= 2;
    mixed[7] = fp32[7] = 100;
    for (int i = 0; i < N; i += 8)
        mixed[i] = fp32[i] = 0;
    see(AMP_SEEN_OUT, 1);
    amp_precision_end_batch(&p);
    CHECK_INT(p.batches, 2);
    CHECK(largest < 1.2 && t->largest == 100);
    CHECK_NEAR(t->zero, 1. / 16, 1e-4);
    CHECK_NEAR(t->error, .1 / sqrt(1 + 4. / 2), .004);
    end();
}

/* The first batch is lost, the second is not. */
AMP_TEST(what_is_lost_counts_over_all_batches)
{
    begin(1);
    const struct amp_compared *t = &p.tensors[AMP_SEEN_DELTA][1];
    for (int batch = 0; batch < 2; batch++) {
        see_noisy(AMP_SEEN_DELTA, 1, batch, 0);
        amp_precision_end_batch(&p);
        CHECK_NEAR(t->lost, batch ? .5 : 1, 1e-4);
        CHECK_NEAR(t->lost_norm, batch ? sqrt(.5) : 1, 1e-6);
        CHECK_NEAR(t->zero, batch ? .5 : 1, 1e-4);
        CHECK_NEAR(t->error, batch ? sqrt(.5) : 1, 1e-6);
    }
    CHECK_NEAR(t->cosine, sqrt(.5), 1e-6);
    end();
}

AMP_TEST(nothing_to_advise)
{
    begin(64);
    see_all_well(64);
    amp_precision_end_batch(&p);
    amp_precision_judge(&p);
    CHECK_INT(p.n_advice, 0);
    end();
}

static void judge(void)
{
    amp_precision_end_batch(&p);
    amp_precision_judge(&p);
}

static void check_only(int layer, const char *why)
{
    judge();
    CHECK_INT(p.n_advice, 1);
    REQUIRE(p.n_advice > 0);
    CHECK_INT(p.advice[0].layer, layer);
    CHECK(strstr(p.advice[0].why, why));
}

AMP_TEST(little_headroom)
{
    begin(1);
    see_all_well(1);
    for (int i = 0; i < N; i++)
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
    see_noisy(AMP_SEEN_OUT, 1, 1, .205);
    see_noisy(AMP_SEEN_OUT, 2, 1, .25);
    check_only(1, "differs from FP32 by 20.");
    end();
}

AMP_TEST(gradients_lost)
{
    begin(1);
    see_all_well(1);
    for (int i = 0; i < N; i++)
        mixed[i] = i % 3 ? 0 : fp32[i];
    see(AMP_SEEN_DELTA, 0);
    check_only(0, "delta is too small for FP16 to 67");
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

/* As in the last layers of a deep net of random weights: what it reads is 6 % off. */
AMP_TEST(a_gradient_of_what_was_read)
{
    begin(1);
    see_all_well(1);
    see_noisy(AMP_SEEN_OUT, 0, 1, .04);
    see_noisy(AMP_SEEN_OUT, 1, 1, .06);
    see_noisy(AMP_SEEN_OUT, 2, 1, .07);
    see_noisy(AMP_SEEN_GRADIENT, 2, 1, .55);
    judge();
    CHECK(p.tensors[AMP_SEEN_GRADIENT][2].cosine < .9);
    CHECK_INT(p.n_advice, 0);
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
    judge();
    CHECK_INT(p.n_advice, 3);
    CHECK_INT(p.advice[0].layer, 2);
    CHECK_INT(p.advice[1].layer, 1);
    CHECK_INT(p.advice[2].layer, 0);
    CHECK_STR(p.advice[0].why, "FP16 cannot hold its output (largest 1e+06, at most 65504)");
    end();
}

static void lose_two_of_three(enum amp_seen_what what, int layer, double rest)
{
    for (int i = 0; i < N; i++) {
        fp32[i] = (float)(test_uniform(.5, 1) * (i % 3 ? rest : 1));
        mixed[i] = i % 3 ? 0 : fp32[i];
    }
    see(what, layer);
}

/* What underflows is many values that together weigh a thousandth. */
AMP_TEST(what_weighs_nothing_may_be_lost)
{
    begin(1);
    see_all_well(1);
    lose_two_of_three(AMP_SEEN_DELTA, 0, 1e-3);
    lose_two_of_three(AMP_SEEN_GRADIENT, 1, 1e-3);
    judge();
    CHECK_INT(p.n_advice, 0);
    CHECK_NEAR(p.tensors[AMP_SEEN_DELTA][0].lost, 2. / 3, .01);
    end();
}

/* What is 0 in FP32 too is not lost. */
AMP_TEST(zeros_are_not_lost)
{
    begin(1);
    see_all_well(1);
    for (int i = 0; i < N; i++)
        mixed[i] = fp32[i] = i % 3 ? 0 : 1;
    see(AMP_SEEN_DELTA, 0);
    amp_precision_end_batch(&p);
    CHECK_NEAR(p.tensors[AMP_SEEN_DELTA][0].lost, 0, 0);
    CHECK_NEAR(p.tensors[AMP_SEEN_DELTA][0].zero, 2. / 3, 1e-4);
    end();
}

/* A head's delta is FP32; that its FP16 form underflows shows in the gradient of its weights. */
AMP_TEST(weight_gradients_lost)
{
    begin(1);
    see_all_well(1);
    lose_two_of_three(AMP_SEEN_GRADIENT, 2, 1);
    check_only(2, "weight gradient is too small for FP16 to 67");
    end();
}

/* Layer 1's delta lost values, layer 0's is made of it. */
AMP_TEST(losses_are_named_where_they_arise)
{
    begin(1);
    see_all_well(1);
    lose_two_of_three(AMP_SEEN_DELTA, 0, 1);
    lose_two_of_three(AMP_SEEN_GRADIENT, 0, 1);
    lose_two_of_three(AMP_SEEN_DELTA, 1, 1);
    check_only(1, "its delta");
    end();
}

/* A line that says mixed_precision=1 is replaced. */
AMP_TEST(lines)
{
    begin(1);
    amp_precision_left(&p, 0, "output", 1e6);
    amp_precision_left(&p, 1, "output", 1e6);
    CHECK_INT(p.advice[0].line, 6);
    CHECK(!p.advice[0].replace);
    CHECK_INT(p.advice[1].line, 14);
    CHECK(p.advice[1].replace);
    CHECK_STR(p.advice[1].key, "mixed_precision");
    CHECK_STR(p.advice[1].value, "0");
    end();
}

static void check_scale_line(const char *key, const char *value)
{
    CHECK_INT(p.n_advice, 1);
    CHECK_INT(p.advice[0].layer, -1);
    CHECK_INT(p.advice[0].line, 6);
    CHECK(p.advice[0].replace);
    CHECK_STR(p.advice[0].key, key);
    CHECK_STR(p.advice[0].value, value);
}

static void overflow(double scale)
{
    p.scale = scale;
    amp_precision_overflow(&p, 1, "delta", 1e5);
}

/* Before a layer is named the scale must be free to fall, and must have fallen. */
AMP_TEST(an_overflow_is_the_scales_fault_first)
{
    begin_with("loss_scale=4096\n", 4096);
    overflow(4096);
    check_scale_line("loss_scale", "dynamic");
    CHECK(strstr(p.advice[0].why, "fixed loss scale 4096"));
    end();
    begin_with("loss_scale_min=256\n", 256);
    overflow(256);
    check_scale_line("loss_scale_min", "1");
    end();
    begin_with("loss_scale=1\n", 1);
    overflow(1);
    CHECK_INT(p.n_advice, 1);
    CHECK_INT(p.advice[0].layer, 1);
    CHECK(strstr(p.advice[0].why, "even at loss scale 1 "));
    end();
}

/* FP32 shows which other deltas are too large. */
AMP_TEST(all_that_overflow_are_named_at_once)
{
    begin(1);
    see_all_well(1);
    fp32[3] = 1e6f;
    see(AMP_SEEN_DELTA, 0);
    see_as(AMP_SEEN_DELTA, 2, "fp32");
    fp32[3] = 1;
    see(AMP_SEEN_DELTA, 0); /* of another batch: the largest of all counts */
    overflow(1);
    CHECK_INT(p.n_advice, 2);
    CHECK_INT(p.advice[0].layer, 1);
    CHECK_INT(p.advice[1].layer, 0);
    CHECK(strstr(p.advice[1].why, "largest 1e+06"));
    end();
}

/* The same the other way. A scale that was searched and is below the ceiling cannot rise. */
AMP_TEST(a_loss_is_the_scales_fault_first)
{
    begin_with("loss_scale=1\n", 1);
    see_all_well(1);
    lose_two_of_three(AMP_SEEN_DELTA, 1, 1);
    judge();
    check_scale_line("loss_scale", "dynamic");
    CHECK_SAYS(p.advice[0].why, "at the only loss scale allowed, 1, layer 1's delta is too small");
    end();
    begin_with("loss_scale_max=2\n", 2);
    see_all_well(2);
    lose_two_of_three(AMP_SEEN_DELTA, 1, 1);
    judge();
    check_scale_line("loss_scale_max", "16777216");
    CHECK_SAYS(p.advice[0].why,
               "at the largest loss scale allowed, 2, layer 1's delta is too small");
    end();
    begin(AMP_LOSS_SCALE_MAX); /* there is no larger one */
    see_all_well(AMP_LOSS_SCALE_MAX);
    lose_two_of_three(AMP_SEEN_DELTA, 1, 1);
    judge();
    CHECK(p.n_advice > 0);
    for (int i = 0; i < p.n_advice; i++)
        CHECK_STR(p.advice[i].key, "mixed_precision");
    end();
}

/* BF16 has FP32's range: no headroom to speak of, and no scale. */
AMP_TEST(bf16)
{
    begin_with("amp_dtype=bf16\n", 1);
    for (int i = 0; i < N; i++)
        fp32[i] *= 1e6f;
    for (int i = 0; i < N; i++)
        mixed[i] = fp32[i];
    see_as(AMP_SEEN_OUT, 0, "bf16");
    lose_two_of_three(AMP_SEEN_GRADIENT, 0, 1);
    for (int i = 0; i < N; i++)
        mixed[i] = fp32[i] * (i % 2 ? .8f : 1.2f);
    see_as(AMP_SEEN_OUT, 2, "bf16");
    judge();
    CHECK_INT(p.n_advice, 1);
    CHECK_INT(p.advice[0].layer, 2);
    CHECK(!strstr(p.advice[0].why, "FP16"));
    end();
}

AMP_TEST(weights_that_fp16_rounds_to_nothing)
{
    begin(1);
    amp_precision_weights(&p, 1, fp32, N);
    for (int i = 0; i < N; i++)
        mixed[i] = 1e-4f * fp32[i];
    amp_precision_weights(&p, 1, mixed, N);
    CHECK_INT(p.n_advice, 0);
    for (int i = 0; i < N; i++)
        mixed[i] = 1e-9f * fp32[i];
    amp_precision_weights(&p, 2, mixed, N);
    amp_precision_weights(&p, 2, mixed, N);
    CHECK_INT(p.n_advice, 1);
    CHECK_INT(p.advice[0].layer, 2);
    CHECK(strstr(p.advice[0].why, "changes them by 100 % and makes 100 % of them 0"));
    /* Every fourth becomes 0, the others the smallest number that FP16 has. */
    for (int i = 0; i < N; i++)
        mixed[i] = i % 4 ? 0x1.8p-25f : 1e-9f;
    amp_precision_weights(&p, 1, mixed, N);
    CHECK_INT(p.n_advice, 2);
    CHECK(strstr(p.advice[1].why, "changes them by 33 % and makes 25 % of them 0"));
    end();
}

/* What a layer in FP32 is given, its reader made. */
AMP_TEST(readers_are_named_for_a_delta_in_fp32)
{
    begin(1);
    see_all_well(1);
    lose_two_of_three(AMP_SEEN_DELTA, 0, 1);
    see_as(AMP_SEEN_DELTA, 0, "fp32");
    check_only(1, "its backward pass makes the delta of layer 0: too much of it is lost");
    end();
    begin(1); /* the reader is in FP32 too */
    see_all_well(1);
    memcpy(mixed, fp32, sizeof mixed);
    see_as(AMP_SEEN_OUT, 1, "fp32");
    see_as(AMP_SEEN_DELTA, 1, "fp32");
    lose_two_of_three(AMP_SEEN_DELTA, 0, 1);
    see_as(AMP_SEEN_DELTA, 0, "fp32");
    check_only(2, "the delta of layer 0 comes through it: too much of it is lost");
    end();
    begin(1);
    see_all_well(1);
    p.advised[1] = true;
    overflow(1);
    CHECK_INT(p.n_advice, 1);
    CHECK_INT(p.advice[0].layer, 2);
    overflow(1); /* nobody is left to name */
    CHECK_INT(p.n_advice, 1);
    CHECK_INT(p.left, 1);
    CHECK(strstr(p.left_why, "its delta even at loss scale 1"));
    end();
}

AMP_TEST(what_the_cfg_keeps_in_fp32_is_not_advised)
{
    begin_with("[convolutional]\nfilters=4\nmixed_precision=0\n", 1);
    for (int i = 0; i < N; i++)
        fp32[i] *= 1e-9f;
    amp_precision_weights(&p, 0, fp32, N);
    amp_precision_left(&p, 0, "output", 1e6);
    CHECK_INT(p.n_advice, 0);
    amp_precision_left(&p, 1, "output", 1e6);
    CHECK_INT(p.n_advice, 1);
    end();
}

static void see_wrong_gradients_of_layer_0(void)
{
    see_all_well(1);
    see_noisy(AMP_SEEN_DELTA, 0, 1, 1);
    see_noisy(AMP_SEEN_GRADIENT, 0, 1, 1);
}

/* Nothing is lost to 0, and yet the gradients are not FP32's. */
AMP_TEST(a_wrong_gradient_is_never_fine)
{
    begin_with("loss_scale=1\n", 1);
    see_wrong_gradients_of_layer_0();
    judge();
    check_scale_line("loss_scale", "dynamic");
    end();
    begin(1);
    see_wrong_gradients_of_layer_0();
    check_only(0, "delta has a cosine");
    end();
    begin(1);
    see_wrong_gradients_of_layer_0();
    p.advised[0] = p.advised[1] = p.advised[2] = true;
    judge();
    CHECK_INT(p.n_advice, 0);
    CHECK_INT(p.left, 0);
    end();
}

/* More than half of the norm, though not half of the elements, and no matter what came forward. */
AMP_TEST(a_lost_norm_is_never_fine)
{
    begin(1);
    see_all_well(1);
    p.advised[0] = true;
    see_noisy(AMP_SEEN_OUT, 0, 1, .2);
    for (int i = 0; i < N; i++) {
        fp32[i] *= i % 3 ? 1e-3f : 1;
        mixed[i] = i % 3 ? fp32[i] : 0;
    }
    see(AMP_SEEN_GRADIENT, 1);
    check_only(1, "has lost 100 % of its norm");
    end();
}

static void print_with(const struct amp_check_summary *s, bool json, char *text, size_t size)
{
    memset(text, 0, size);
    FILE *f = fmemopen(text, size - 1, "w");
    REQUIRE(f);
    (json ? amp_precision_print_json : amp_precision_print)(&p, s, f);
    fclose(f);
}

static void print(bool json, char *text, size_t size)
{
    print_with(
        &(struct amp_check_summary){
            .data = "a.data", .cfg = "a.cfg", .fp32_bytes = 2, .mixed_bytes = 1},
        json, text, size);
}

AMP_TEST(half_of_the_layers_are_not_most)
{
    static char text[20000];
    begin(1);
    see_all_well(1);
    judge();
    amp_precision_left(&p, 0, "output", 1e6);
    for (int half = 1; half >= 0; half--) {
        p.advised[0] = true;
        p.advised[1] = !half;
        net->n = 2;
        print(false, text, sizeof text);
        net->n = LAYERS;
        CHECK_INT(strstr(text, "few layers in FP16") == NULL, half);
    }
    end();
}

AMP_TEST(fine_advised_and_unsolved)
{
    static char text[20000];
    begin(1);
    see_all_well(1);
    judge();
    print(false, text, sizeof text);
    CHECK(strstr(text, "Every layer can train") && !strstr(text, "run this again"));
    print(true, text, sizeof text);
    CHECK(strstr(text, "\"status\": \"fine\""));
    amp_precision_left(&p, 0, "output", 1e6);
    print(false, text, sizeof text);
    CHECK(strstr(text, "1 line to write") && strstr(text, "Then run this again"));
    CHECK(!strstr(text, "amp_dtype=bf16") && !strstr(text, "Every layer can train"));
    end();
    begin(1);
    see_wrong_gradients_of_layer_0();
    p.advised[0] = p.advised[1] = p.advised[2] = true;
    judge();
    print(false, text, sizeof text);
    CHECK(strstr(text, "helps layer 0") && strstr(text, "amp_dtype=bf16"));
    CHECK(!strstr(text, "Every layer can train"));
    print(true, text, sizeof text);
    CHECK(strstr(text, "\"status\": \"advice\"") && strstr(text, "\"not_solved\": {\"layer\": 0"));
    end();
}

/* Every number under its own name. */
AMP_TEST(numbers_of_a_tensor_in_json)
{
    static char text[20000];
    begin(1);
    see_all_well(1);
    judge();
    struct amp_compared *t = &p.tensors[AMP_SEEN_DELTA][1];
    t->largest = 1024, t->error = .25, t->cosine = .5, t->zero = .125, t->lost = .0625;
    t->lost_norm = .03125;
    print(true, text, sizeof text);
    CHECK(strstr(text, "\"delta\": {\"largest\": 1024, \"relative_error\": 0.25, \"cosine\": 0.5, "
                       "\"zero\": 0.125, \"lost\": 0.0625, \"lost_norm\": 0.03125, "
                       "\"headroom\": "));
    end();
}

AMP_TEST(every_number_of_the_report)
{
    static char text[20000];
    static const char *const words[] = {
        "\namp check: a.data, a.cfg, a.weights\n",
        "  images      12 of the training list in 2 batches, as training loads them\n",
        "  precision   fp16\n  loss scale  2^10, found by 3 repeated backward passes\n",
        "  memory      activations of a pass: FP32 3.0 MiB, mixed 1.5 MiB (0.50x), at the cfg's "
        "size: random=1 trains at others too\n",
        "\n    1 convolutional  fp16    8.19e+03        8  2.5e-01  1.02e+03  1.2e-01   62.5   "
        "37.5  "
        "3.1e-02  0.75000   50.0\n"};
    static const char *const json[] = {
        "{\"status\": \"fine\", \"data\": \"a.data\", \"cfg\": \"a.cfg\", \"weights\": "
        "\"a.weights\",\n \"precision\": \"fp16\", \"batches\": 2, \"images\": 12, "
        "\"images_per_iteration\": 64, \"loss_scale\": 1024, \"redone\": 3,\n "
        "\"activation_bytes\": {\"fp32\": 3145728, \"mixed\": 1572864},\n",
        "{\"layer\": 1, \"type\": \"convolutional\", \"format\": \"fp16\", \"output\": "
        "{\"largest\": 8188, \"relative_error\": 0.25, ",
        "\"headroom\": 8}, \"delta\": {\"largest\": 1024, ",
        "\"weight_gradient\": {\"largest\": 512, \"relative_error\": 0.03125, "};
    const struct amp_check_summary s = {.data = "a.data",
                                        .cfg = "a.cfg",
                                        .weights = "a.weights",
                                        .images = 12,
                                        .images_per_iteration = 64,
                                        .redone = 3,
                                        .fp32_bytes = 3 << 20,
                                        .mixed_bytes = 3 << 19,
                                        .random_size = true};
    begin_with("amp_dtype=fp16\n", 1024);
    see_all_well(1024);
    judge();
    p.batches = 2;
    struct amp_compared *out = &p.tensors[AMP_SEEN_OUT][1], *d = &p.tensors[AMP_SEEN_DELTA][1],
                        *g = &p.tensors[AMP_SEEN_GRADIENT][1];
    out->largest = 8188, out->error = .25;
    d->largest = 1024, d->error = .125, d->zero = .625, d->lost = .375;
    g->largest = 512, g->error = .03125, g->cosine = .75, g->lost = .5;
    print_with(&s, false, text, sizeof text);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK_SAYS(text, words[i]);
    print_with(&s, true, text, sizeof text);
    for (size_t i = 0; i < sizeof json / sizeof *json; i++)
        CHECK_SAYS(text, json[i]);
    end();
}

/* A pass that overflowed was seen, and measured nothing. */
AMP_TEST(what_was_not_measured)
{
    static char text[20000];
    begin(1);
    see_all_well(1);
    overflow(1);
    print(false, text, sizeof text);
    CHECK(strstr(text, "images      -") && strstr(text, "loss scale  -\n"));
    CHECK(!strstr(text, "0.00000") && !strstr(text, "0.0e+00"));
    print(true, text, sizeof text);
    CHECK(strstr(text, "\"status\": \"advice\""));
    CHECK(strstr(text, "\"images\": null") && strstr(text, "\"loss_scale\": null"));
    CHECK(strstr(text, "\"delta\": null") && !strstr(text, "cosine"));
    end();
}

AMP_TEST(most_layers_leave)
{
    static char text[20000];
    begin(1);
    see_all_well(1);
    amp_precision_left(&p, 0, "output", 1e6);
    judge();
    print(false, text, sizeof text);
    CHECK(!strstr(text, "amp_dtype=bf16"));
    amp_precision_left(&p, 1, "output", 1e6);
    print(false, text, sizeof text);
    CHECK(strstr(text, "leave few layers in FP16. amp_dtype=bf16"));
    end();
}

AMP_TEST_MAIN
