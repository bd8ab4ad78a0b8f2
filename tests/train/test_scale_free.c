/* What a run's state must not depend on: the loss scale, the number of threads; and in FP32, on
 * the plugin. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include <omp.h>

static network *train(const char *keys, const char *layers, int n)
{
    network *net = parse(keys, layers);
    struct amp_session *s = amp_session_of(net->layers);
    steps(net, n);
    if (s) CHECK_INT(s->step.scaler.applied, n);
    return net;
}

/* ---- the loss scale ---- */

static void check_fp32_layers(const char *layers, const char *adam)
{
    char keys[200];
    network *first = NULL;
    for (int exponent = 0; exponent <= 20; exponent += 10) {
        snprintf(keys, sizeof keys, MIXED "loss_scale=%d\n%s", 1 << exponent, adam);
        network *net = train(keys, everywhere(layers, "mixed_precision=0"), 5);
        struct amp_session *s = amp_session_of(net->layers);
        CHECK_NEAR(s->step.scaler.scale, ldexp(1, exponent), 0);
        for (int i = 0; i < net->n; i++)
            CHECK(s->plan->layers[i].in == AMP_FORMAT_FP32 ||
                  s->plan->layers[i].in == AMP_FORMAT_BORDER);
        if (first) CHECK_SAME(net, first);
        if (first) free_network(net);
        first = first ? first : net;
    }
    free_network(first);
}

AMP_TEST(any_scale_is_exact_where_all_layers_are_fp32)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        check_fp32_layers(layers, "");
        check_fp32_layers(layers, "adam=1\n");
    }
}

/* A power of two scales exactly but for gradients that FP16 has no normal numbers for: below
 * 2^-14 / 16 they keep steps of 2^-24 / 16 = 4e-9, where sums are of the order of 0.01 to 10. */
#define SCALE_TOLERANCE 1e-5

static void check_scales(const char *layers, bool adam)
{
    const char *more = adam ? "adam=1\n" : "";
    char keys[2][100];
    snprintf(keys[0], sizeof keys[0], MIXED "loss_scale=16\n%s", more);
    snprintf(keys[1], sizeof keys[1], MIXED "loss_scale=256\n%s", more);
    network *one = train(keys[0], layers, 6), *two = train(keys[1], layers, 6);
    check_distance(one, two, "weights", SCALE_TOLERANCE);
    check_distance(one, two, "running statistics", SCALE_TOLERANCE);
    check_distance(one, two, adam ? "Adam's m" : "momentum", SCALE_TOLERANCE);
    check_distance(one, two, adam ? "Adam's v" : "momentum", SCALE_TOLERANCE);
    network *untrained = parse(keys[0], layers);
    CHECK(distance(one, untrained, "weights") > 0.01);
    CHECK(distance(one, untrained, adam ? "Adam's m" : "momentum") > 0.001);
    free_network(untrained);
    free_network(one);
    free_network(two);
}

AMP_TEST(scales_of_fp16_runs_are_in_no_stored_state)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        check_scales(layers, false);
        check_scales(layers, true);
    }
}

/* ---- threads ---- */

static network *train_with(int threads, const char *keys, const char *layers)
{
    omp_set_num_threads(threads);
    network *net = train(keys, layers, 4);
    predict(net);
    CHECK_INT(omp_get_max_threads(), threads); /* as many as before for Darknet's own code */
    return net;
}

AMP_TEST(threads_change_nothing)
{
    static const char *const keys[] = {MIXED, MIXED "amp_dtype=bf16\n", MIXED "amp_dtype=fp32\n"};
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        for (int k = 0; k < 3; k++) {
            network *one = train_with(1, keys[k], layers), *two = train_with(2, keys[k], layers);
            network *many = train_with(5, keys[k], layers);
            CHECK_SAME(one, two);
            CHECK_SAME(one, many);
            CHECK(!memcmp(one->output, two->output, (size_t)one->outputs * sizeof(float)));
            free_network(one);
            free_network(two);
            free_network(many);
        }
    }
    omp_set_num_threads(2);
}

/* ---- plain Darknet ---- */

/* Whose code for the CPU has no Adam. */
AMP_TEST(fp32_is_what_darknet_computes)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = train(MIXED "amp_dtype=fp32\n", layers, 1), *plain = train("", layers, 1);
        check_near_plain(net, plain, ONE_STEP_TOLERANCE);
        steps(net, 9);
        steps(plain, 9);
        check_near_plain(net, plain, STEPS_TOLERANCE);
        free_network(net);
        free_network(plain);
    }
}

AMP_TEST_MAIN
