/* The matrix products of recurrent layers (core/engine/products.c) on every backend and in every
 * type: each gradient against the reference, on random shapes that are mostly no multiples of 16;
 * what FP16 cannot hold; and Darknet's code that does not call. (test_graph.c holds the reference
 * against finite differences.) */
#include "tests/rig/harness.h"
#include "tests/rig/rig.h"

static const struct {
    const char *key;
    double unit; /* of rounding */
    float scale;
} types[] = {
    {"fp32", 0x1p-22, 1}, {"tf32", 0x1p-11, 1}, {"fp16", 0x1p-11, 64}, {"bf16", 0x1p-8, 1}};

static const struct ampk_backend *const backends[] = {&ampk_reference, &ampk_cpu, &ampk_cuda};

static int draw(int least, int most)
{
    return least + (int)(test_random() % (uint64_t)(most - least + 1));
}

/* A net of one or two such layers and a loss. Shapes are drawn, also multiples of 16. A [crnn]
 * wants a convolution in the net for whose workspace Darknet makes room. */
static const char *draw_net(const char *type)
{
    static char text[700];
    bool images = strcmp(type, "crnn") == 0, whole = draw(0, 3) == 0;
    int most = images ? 6 : 40, side = draw(4, 8), steps = draw(1, 4);
    size_t room = sizeof text, n = 0;
    n += (size_t)snprintf(text + n, room - n, "batch=%d\ntime_steps=%d\n",
                          images ? draw(1, 5) : 15 / steps + draw(1, 5), steps);
    if (images)
        n += (size_t)snprintf(text + n, room - n,
                              "channels=3\nwidth=%d\nheight=%d\n[convolutional]\nfilters=%d\n"
                              "size=11\npad=1\nactivation=tanh\n",
                              side, draw(4, 8), whole ? 16 : draw(1, most));
    else
        n += (size_t)snprintf(text + n, room - n, "inputs=%d\n", draw(1, most));
    for (int layers = draw(1, 2); layers--;) {
        int a = whole ? 16 * draw(1, 2) : draw(1, most), b = draw(1, most);
        if (images)
            n += (size_t)snprintf(text + n, room - n,
                                  "[crnn]\nhidden_filters=%d\noutput_filters=%d\n", a, b);
        else
            n += (size_t)snprintf(text + n, room - n, "[%s]\noutput=%d\n", type, a);
    }
    snprintf(text + n, room - n, "[cost]\n");
    return text;
}

static struct rig *make(const char *net, const char *dtype, const struct ampk_backend *backend)
{
    char text[1000];
    snprintf(text, sizeof text, "[net]\nmixed_precision=1\namp_dtype=%s\n%s", dtype, net);
    struct rig *r = rig_create(text, backend, test_random);
    REQUIRE(r);
    return r;
}

static double norm(const float *x, size_t n, double factor, const float *less)
{
    double sum = 0;
    for (size_t k = 0; k < n; k++)
        sum += pow((double)x[k] / factor - (less ? (double)less[k] : 0), 2);
    return sqrt(sum);
}

static double longest_gradient(struct rig *r)
{
    double longest = 0;
    for (int i = 0; i < r->n_params; i++) {
        float *x = rig_gradient(r, i);
        longest = fmax(longest, norm(x, r->params[i].n, 1, NULL));
        free(x);
    }
    return longest;
}

/* How far the gradients are off, as a share of their length: of the worst param. What is short
 * beside the longest one is a difference of large terms, and may be off by a share of these. */
static double apart(struct rig *a, double scale, struct rig *b)
{
    double worst = 0, least = longest_gradient(b) / 16;
    REQUIRE(a->n_params == b->n_params);
    for (int i = 0; i < a->n_params; i++) {
        float *x = rig_gradient(a, i), *y = rig_gradient(b, i);
        double off = norm(x, a->params[i].n, scale, y), length = norm(y, a->params[i].n, 1, NULL);
        length = fmax(length, least);
        if (!(off <= worst * length)) worst = length > 0 ? off / length : INFINITY;
        free(x);
        free(y);
    }
    return worst;
}

/* A state passes a product a step and two a layer, so errors come to a few units. */
static void check_net(const char *net, const struct ampk_backend *backend, int type)
{
    uint64_t state = test_random_state;
    struct rig *exact = make(net, "fp32", &ampk_reference);
    test_random_state = state;
    struct rig *ours = make(net, types[type].key, backend);
    rig_forward(exact);
    rig_backward(exact, 1);
    rig_forward(ours);
    rig_backward(ours, types[type].scale);
    CHECK_INT(amp_graph_fault(ours->graph, true).class, AMP_FAULT_NONE);
    double once = apart(ours, types[type].scale, exact);
    CHECK_NEAR(once, 0, 32 * types[type].unit);
    CHECK(type == 0 || once > types[type].unit / 64); /* operands are rounded */
    CHECK_NEAR(ours->loss, exact->loss, 32 * types[type].unit * exact->loss);
    if (ours->plan->replays) rig_backward(ours, types[type].scale); /* again: the same */
    CHECK_INT(apart(ours, types[type].scale, exact) == once, true);
    rig_free(ours);
    rig_free(exact);
    if (test_failures) fprintf(stderr, "%s on %s\n%s", types[type].key, backend->name, net);
    REQUIRE(!test_failures);
}

static void check_type(const char *layer)
{
    for (int round = 0; round < 12; round++)
        for (size_t b = 0; b < sizeof backends / sizeof *backends; b++)
            check_net(draw_net(layer), backends[b], draw(0, 3));
}

AMP_TEST(rnn)
{
    check_type("rnn");
}

AMP_TEST(gru)
{
    check_type("gru");
}

AMP_TEST(lstm)
{
    check_type("lstm");
}

AMP_TEST(crnn)
{
    check_type("crnn");
}

/* ---- FP16's limits ---- */

static const char small[] = "batch=6\ntime_steps=3\ninputs=5\n[rnn]\noutput=7\n[cost]\n";

static void check_fault(struct rig *r, enum amp_fault_class class, enum amp_watch watch)
{
    struct amp_fault f = amp_graph_fault(r->graph, class == AMP_FAULT_BACKWARD);
    CHECK_INT(f.class, class);
    CHECK_INT(f.layer, 0);
    CHECK_INT(f.tensor, watch);
}

AMP_TEST(an_input_that_fp16_cannot_hold)
{
    struct rig *r = make(small, "fp16", &ampk_cpu);
    r->input[3] = 70000;
    rig_forward(r);
    check_fault(r, AMP_FAULT_FORWARD, AMP_WATCH_Y);
    rig_free(r);
}

AMP_TEST(weights_that_fp16_cannot_hold)
{
    for (int k = 0; k < 3; k++) {
        struct rig *r = make(small, "fp16", &ampk_cpu);
        r->params[2 * k].value[1] = -70000;
        rig_forward(r);
        check_fault(r, AMP_FAULT_FORWARD, AMP_WATCH_WEIGHTS);
        rig_free(r);
    }
}

/* At a lower scale the same forward gives sound gradients. */
AMP_TEST(gradients_that_fp16_cannot_hold)
{
    uint64_t state = test_random_state;
    struct rig *r = make(small, "fp16", &ampk_cpu);
    test_random_state = state;
    struct rig *exact = make(small, "fp32", &ampk_reference);
    rig_forward(exact);
    rig_backward(exact, 1);
    rig_forward(r);
    rig_backward(r, 0x1p24f);
    check_fault(r, AMP_FAULT_BACKWARD, AMP_WATCH_DY);
    rig_backward(r, 0x1p4f);
    CHECK_INT(amp_graph_fault(r->graph, true).class, AMP_FAULT_NONE);
    CHECK_NEAR(apart(r, 0x1p4, exact), 0, 0x1p-6);
    rig_free(r);
    rig_free(exact);
}

AMP_TEST(in_fp32_or_moved_there_nothing_overflows)
{
    static const enum amp_format moved[] = {AMP_FORMAT_FP32, AMP_FORMATS};
    struct rig *r = make(small, "fp16", &ampk_cpu);
    amp_graph_free(r->graph);
    r->graph = NULL;
    amp_plan_free(r->plan);
    r->plan = amp_plan_make(r->net, &r->options, r->ours, moved, true, r->err, sizeof r->err);
    REQUIRE(r->plan && rig_make_graph(r, false) == 0);
    CHECK_INT(r->plan->layers[0].compute, AMPK_COMPUTE_FP32);
    r->input[3] = 70000;
    rig_forward(r);
    rig_backward(r, 1);
    CHECK_INT(amp_graph_fault(r->graph, true).class, AMP_FAULT_NONE);
    rig_free(r);
}

/* ---- Darknet's code that multiplies itself ---- */

AMP_TEST(without_a_call_gradients_stay_as_they_are)
{
    /* As many outputs as inputs: the rig's layer without a stand-in copies. */
    struct rig *r =
        make("batch=6\ntime_steps=3\ninputs=7\n[rnn]\noutput=7\n[cost]\n", "fp16", &ampk_cpu);
    struct recurrent *stand_in = r->recurrent[0];
    rig_forward(r);
    rig_backward(r, 1);
    CHECK(r->graph->nodes[0].product_called);
    r->recurrent[0] = NULL; /* nobody calls, nobody writes gradients */
    rig_forward(r);
    CHECK(!r->graph->nodes[0].product_called);
    rig_backward(r, 1);
    CHECK(!r->graph->nodes[0].product_called);
    for (int i = 0; i < r->n_params; i++) {
        float *gradient = rig_gradient(r, i);
        for (size_t k = 0; k < r->params[i].n; k++)
            CHECK(gradient[k] == 0);
        free(gradient);
    }
    r->recurrent[0] = stand_in;
    rig_free(r);
}

AMP_TEST_MAIN
