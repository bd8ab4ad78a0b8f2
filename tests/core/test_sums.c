/* Gradients on their way from a pass to the update: what the sums of a step hold after each pass,
 * to the bit, with convolutions that learn and that do not, and layers that Darknet runs. */
#include "tests/rig/harness.h"
#include "tests/rig/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char cfg[] =
    "[net]\nmixed_precision=1\nbatch=6\nsubdivisions=3\nwidth=8\nheight=12\nchannels=3\n"
    "[convolutional]\nfilters=5\nsize=3\npad=1\nactivation=leaky\nstopbackward=1\n"
    "[convolutional]\nbatch_normalize=1\nfilters=12\nsize=3\npad=1\nactivation=leaky\n"
    "[convolutional]\nfilters=6\nsize=3\npad=1\ngroups=3\nactivation=leaky\n"
    "[convolutional]\nfilters=3\nsize=1\nsmooth=1\nactivation=linear\n"
    "[convolutional]\nfilters=7\nsize=1\nactivation=leaky\n"
    "[connected]\noutput=9\nactivation=linear\n[cost]\n";

enum { PARAMS = 13 };

static bool never(struct ampk_context *context)
{
    (void)context;
    return false;
}

/* Weight gradients of a pass come one by one, or where starting operations costs at its end. */
static struct rig *make(bool at_end)
{
    static struct ampk_backend backend;
    backend = ampk_cpu;
    if (at_end) backend.record_begin = never;
    struct rig *r = rig_create(cfg, &backend, test_random);
    REQUIRE(r && r->n_params == PARAMS && r->plan->first_backward == 1);
    REQUIRE(!r->plan->layers[3].ours && r->plan->layers[5].ours);
    return r;
}

/* What the sums must be, in FP32 as the graph adds. */
struct expected {
    float *sum[PARAMS];
};

static struct expected nothing(const struct rig *r)
{
    struct expected e;
    for (int i = 0; i < PARAMS; i++)
        e.sum[i] = calloc(r->params[i].n, sizeof(float));
    return e;
}

static void drop(struct expected *e)
{
    for (int i = 0; i < PARAMS; i++)
        free(e->sum[i]);
}

static void run_pass(struct rig *r, int number, float scale)
{
    for (int i = 0; i < r->net->batch * r->net->inputs; i++)
        r->input[i] = (float)sin(i + 100 * number);
    rig_forward(r);
    rig_backward(r, scale);
}

static void add_pass(struct rig *r, struct expected *e, float scale)
{
    for (int i = 0; i < PARAMS; i++) {
        float *gradient = rig_gradient(r, i);
        for (size_t k = 0; k < r->params[i].n; k++)
            e->sum[i][k] += gradient[k] * (1 / scale);
        free(gradient);
    }
}

static void check_sums(const struct rig *r, const struct expected *e)
{
    for (int i = 0; i < PARAMS; i++) {
        const struct amp_param *p = &r->graph->params[i];
        double largest = 0;
        for (size_t k = 0; k < p->n; k++) {
            CHECK_NEAR(p->sum[k], e->sum[i][k], 0);
            largest = fmax(largest, fabs((double)e->sum[i][k]));
        }
        CHECK((largest > 0) == (p->layer > 0)); /* layer 0 learns nothing */
    }
}

/* As the step before might have left them. */
static void fill_with_nan(struct rig *r)
{
    for (int i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < r->params[i].n && r->params[i].layer; k++)
            r->graph->params[i].sum[k] = NAN;
}

static void store_and_add(bool at_end)
{
    struct rig *r = make(at_end);
    for (int step = 0; step < 2; step++) {
        struct expected e = nothing(r);
        fill_with_nan(r);
        amp_graph_begin_step(r->graph);
        for (int pass = 0; pass < 3; pass++) {
            run_pass(r, pass, 1 << pass);
            add_pass(r, &e, 1 << pass);
            amp_graph_accept_pass(r->graph, 1 << pass);
            check_sums(r, &e);
        }
        drop(&e);
    }
    rig_free(r);
}

AMP_TEST(the_first_pass_is_stored_and_others_are_added)
{
    store_and_add(false);
    store_and_add(true);
}

/* A backward pass that was not accepted, before the first and between others. */
static void run_again(bool at_end)
{
    struct rig *r = make(at_end);
    struct expected e = nothing(r);
    fill_with_nan(r);
    amp_graph_begin_step(r->graph);
    for (int pass = 0; pass < 2; pass++) {
        run_pass(r, pass, 64);
        rig_backward(r, 8);
        add_pass(r, &e, 8);
        amp_graph_accept_pass(r->graph, 8);
        check_sums(r, &e);
    }
    drop(&e);
    rig_free(r);
}

AMP_TEST(what_is_run_again_counts_once)
{
    run_again(false);
    run_again(true);
}

/* Another graph goes on with a step, begun or not. */
static void take_over(bool at_end)
{
    for (int before = 0; before < 2; before++) {
        struct rig *r = make(at_end);
        struct expected e = nothing(r);
        fill_with_nan(r);
        amp_graph_begin_step(r->graph);
        for (int pass = 0; pass < 2; pass++) {
            if (pass == before) {
                struct amp_graph *from = r->graph;
                r->graph = NULL;
                REQUIRE(!rig_make_graph(r, true));
                amp_graph_take_step(r->graph, from);
                amp_graph_free(from);
            }
            run_pass(r, pass, 16);
            add_pass(r, &e, 16);
            amp_graph_accept_pass(r->graph, 16);
        }
        check_sums(r, &e);
        drop(&e);
        rig_free(r);
    }
}

AMP_TEST(a_step_is_taken_over)
{
    take_over(false);
    take_over(true);
}

/* Where a step has one pass its gradients lie ready when backward ends. */
static void run_one_pass(bool at_end)
{
    struct rig *r = make(at_end);
    REQUIRE(!rig_make_graph(r, false));
    struct expected e = nothing(r);
    run_pass(r, 0, 32);
    amp_graph_accept_pass(r->graph, 32);
    CHECK_NEAR(r->graph->unscale, 1 / 32., 0);
    for (int i = 0; i < PARAMS; i++) {
        const struct amp_param *p = &r->graph->params[i];
        const struct amp_node *node = &r->graph->nodes[p->layer];
        if (p->kind != AMP_PARAM_WEIGHTS || !node->conv || !p->layer) continue;
        struct ampk_weight_gradient own = {node->conv, e.sum[i], NULL};
        r->backend->conv_weight_gradients(r->context, &own, 1, 1, false);
        CHECK(!memcmp(p->grad, e.sum[i], p->n * sizeof(float)));
    }
    drop(&e);
    rig_free(r);
}

AMP_TEST(one_pass_has_no_sums)
{
    run_one_pass(false);
    run_one_pass(true);
}

/* A pass that none of the update's numbers came from. */
static void clear(bool at_end)
{
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        struct rig *r = make(at_end);
        REQUIRE(!rig_make_graph(r, accumulate));
        run_pass(r, 0, 1);
        amp_graph_begin_step(r->graph);
        amp_graph_accept_pass(r->graph, 1);
        CHECK(amp_graph_grad_norm(r->graph) > 0);
        amp_graph_clear_gradients(r->graph);
        CHECK_NEAR(amp_graph_grad_norm(r->graph), 0, 0);
        rig_free(r);
    }
}

/* What is 16 bytes wide can take them, also after a param of 5 or 9. */
AMP_TEST(every_gradient_begins_where_vectors_can)
{
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        struct rig *r = make(true);
        REQUIRE(rig_make_graph(r, accumulate) == 0);
        for (int i = 0; i < PARAMS; i++) {
            const struct amp_param *p = &r->graph->params[i];
            CHECK(p->sum || p->grad);
            CHECK((uintptr_t)p->sum % 16 == 0 && (uintptr_t)p->grad % 16 == 0);
        }
        rig_free(r);
    }
}

AMP_TEST(cleared_gradients_are_zero)
{
    clear(false);
    clear(true);
}

AMP_TEST_MAIN
