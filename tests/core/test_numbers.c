/* What amp_log tells of a step: of every layer what a pass that is inspected sees of it, and the
 * norm of the gradient, against the tensors themselves. */
#include "tests/rig/harness.h"
#include "tests/rig/rig.h"

#include "plugin/core/engine/log.h"

#include <math.h>

/* Strides, a head, a shortcut, and an unread layer before a stop: deltas that nobody gives. */
static const char net[] = "[net]\nmixed_precision=1\nbatch=4\nsubdivisions=2\nwidth=16\nheight=12\n"
                          "channels=3\n"
                          "[convolutional]\nbatch_normalize=1\nfilters=8\nsize=3\nstride=1\npad=1\n"
                          "activation=leaky\n"
                          "[maxpool]\nsize=2\nstride=2\n"
                          "[convolutional]\nbatch_normalize=1\nfilters=8\nsize=3\nstride=1\npad=1\n"
                          "activation=relu\n"
                          "[shortcut]\nfrom=-2\nactivation=linear\n"
                          "[convolutional]\nfilters=14\nsize=1\nstride=1\nactivation=linear\n"
                          "[yolo]\nmask=0,1\nanchors=3,3, 5,4\nclasses=2\nnum=2\n";

static struct rig *make(void)
{
    struct rig *r = rig_create(net, &ampk_cpu, test_random);
    REQUIRE(r);
    return r;
}

struct seen {
    double max, zero;
};

static struct seen look(const struct ampk_tensor *t)
{
    size_t n = rig_count(t), zeros = 0;
    double *x = rig_load(t), max = 0;
    for (size_t i = 0; i < n; i++) {
        max = fmax(max, fabs(x[i]));
        zeros += x[i] == 0;
    }
    free(x);
    return (struct seen){max, (double)zeros / (double)n};
}

/* Backward layer by layer, looking at each delta when all its readers have run. */
static void backward_with_a_look(struct rig *r, float scale, struct seen *deltas)
{
    amp_graph_begin_backward(r->graph, scale);
    for (int i = r->net->n - 1; i >= 0; i--) {
        if (r->graph->nodes[i].delta.data) deltas[i] = look(&r->graph->nodes[i].delta);
        amp_graph_backward(r->graph, i);
    }
}

AMP_TEST(every_layer_as_stored)
{
    struct rig *r = make();
    int n = r->net->n, with_delta = 0, with_zeros = 0;
    struct seen outs[8], deltas[8];
    struct amp_layer_numbers numbers[8];
    amp_graph_inspect(r->graph, true);
    rig_forward(r);
    for (int i = 0; i < n; i++)
        if (r->graph->nodes[i].out.data) outs[i] = look(&r->graph->nodes[i].out);
    backward_with_a_look(r, 1e-6f, deltas); /* small enough for FP16 to lose some */
    amp_numbers_read(r->graph, true, numbers);
    for (int i = 0; i < n; i++) {
        if (r->graph->nodes[i].out.data)
            CHECK_NEAR(numbers[i].out_max, outs[i].max, 0);
        else
            CHECK(isnan(numbers[i].out_max) && r->plan->layers[i + 1].fused);
        CHECK_INT(isnan(numbers[i].delta_max), !amp_graph_has_delta(r->graph, i));
        if (isnan(numbers[i].delta_max)) continue;
        with_delta++;
        with_zeros += deltas[i].zero > 0 && deltas[i].zero < 1;
        CHECK_NEAR(numbers[i].delta_max, deltas[i].max, 0);
        CHECK_NEAR(numbers[i].delta_zero, deltas[i].zero, 0);
    }
    CHECK_INT(with_delta, 5);
    CHECK(with_zeros > 0);
    CHECK(r->plan->layers[1].fused && isnan(numbers[0].out_max) && isnan(numbers[0].delta_max));
    CHECK_STR(numbers[0].format, "fp16");
    CHECK_STR(numbers[1].type, "maxpool");
    CHECK_STR(numbers[4].format, "fp32");
    rig_free(r);
}

/* A replay's deltas replace those of the pass before it; they are not added up. */
AMP_TEST(a_replay_counts_once)
{
    struct rig *r = make();
    struct amp_layer_numbers once[8], again[8];
    int with_zeros = 0;
    amp_graph_inspect(r->graph, true);
    rig_forward(r);
    rig_backward(r, 1e-6f); /* small enough for FP16 to lose some */
    amp_numbers_read(r->graph, true, once);
    rig_backward(r, 64);
    rig_backward(r, 1e-6f);
    amp_numbers_read(r->graph, true, again);
    for (int i = 0; i < r->net->n; i++) {
        if (isnan(once[i].delta_max)) continue;
        CHECK_NEAR(once[i].delta_max, again[i].delta_max, 0);
        CHECK_NEAR(once[i].delta_zero, again[i].delta_zero, 0);
        with_zeros += once[i].delta_zero > 0;
    }
    CHECK(with_zeros > 0);
    rig_free(r);
}

/* Inspecting changes no gradient. */
AMP_TEST(gradients_stay_as_they_are)
{
    struct rig *r = make();
    float *without[16];
    REQUIRE(r->n_params <= 16);
    rig_forward(r);
    rig_backward(r, 128);
    for (int i = 0; i < r->n_params; i++)
        without[i] = rig_gradient(r, i);
    amp_graph_inspect(r->graph, true);
    rig_forward(r);
    rig_backward(r, 128);
    for (int i = 0; i < r->n_params; i++) {
        float *with = rig_gradient(r, i);
        CHECK(!memcmp(without[i], with, r->params[i].n * sizeof *with));
        free(with);
        free(without[i]);
    }
    rig_free(r);
}

/* Of the only pass, and of the sum of two that are the same. */
AMP_TEST(gradient_norm)
{
    for (int passes = 1; passes <= 2; passes++) {
        struct rig *r = make();
        double square = 0;
        REQUIRE(!rig_make_graph(r, passes > 1));
        rig_forward(r);
        amp_graph_begin_step(r->graph);
        for (int pass = 0; pass < passes; pass++) {
            rig_backward(r, 4);
            amp_graph_accept_pass(r->graph, 4);
        }
        for (int i = 0; i < r->n_params; i++) {
            float *gradient = rig_gradient(r, i);
            for (size_t k = 0; k < r->params[i].n; k++)
                square += pow(passes * (double)gradient[k] / 4, 2);
            free(gradient);
        }
        REQUIRE(square > 0);
        CHECK_NEAR(amp_graph_grad_norm(r->graph), sqrt(square), 1e-5 * sqrt(square));
        rig_free(r);
    }
}

AMP_TEST_MAIN
