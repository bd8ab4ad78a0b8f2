/* The activations of recurrent layers, which the backend computes in Darknet's place: each one
 * against Darknet's own function, by itself, and behind a product that adds the bias and activates
 * in one go. FP32, so that nothing but the order of a sum is rounded. */
#include "tests/rig/harness.h"

#include <darknet.h>

#include "plugin/attach/products.h"
#include "plugin/attach/session.h"
#include "tests/rig/files.h"

#include "activations.h" /* Darknet's */

enum { BATCH = 8, TIME_STEPS = 3, INPUTS = 6, OUTPUTS = 5 };

static network *parse(ACTIVATION a, const char *more)
{
    char text[500];
    int n = snprintf(text, sizeof text,
                     "[net]\nmixed_precision=1\namp_dtype=fp32\nbatch=%d\ntime_steps=%d\n"
                     "inputs=%d\n[rnn]\noutput=%d\nactivation=%s\n%s"
                     "[cost]\n",
                     BATCH, TIME_STEPS, INPUTS, OUTPUTS, get_activation_string(a), more);
    gpu_index = -1; /* in a GPU build */
    scratch_write("a.cfg", text, (size_t)n);
    return parse_network_cfg((char *)scratch("a.cfg"));
}

static void draw(float *x, int n, double most)
{
    for (int i = 0; i < n; i++)
        x[i] = (float)test_uniform(-most, most);
}

static void run_forward(network *net)
{
    draw(net->input, net->inputs * BATCH * TIME_STEPS, 2);
    draw(net->truth, net->truths * BATCH * TIME_STEPS, 1);
    net->train = 1;
    *net->seen += BATCH * TIME_STEPS;
    forward_network(net);
}

/* Both sides in float, from exp and its like in float or double: a few units of 2^-24. */
static void check_near(const char *what, ACTIVATION a, float x, float got, float expected)
{
    if (!(fabs((double)got - expected) <= 0x1p-20 * (1 + fabs((double)expected))))
        TEST_FAIL("%s of %s at %.9g: %.9g, Darknet's: %.9g", what, get_activation_string(a), x, got,
                  expected);
}

/* On both sides of every kink, and at it. */
static int list_arguments(float *x, int most)
{
    static const float kinks[] = {-4, -1, 0, 1, 2, 4};
    int n = 0;
    for (size_t i = 0; i < sizeof kinks / sizeof *kinks; i++) {
        x[n++] = kinks[i];
        x[n++] = nextafterf(kinks[i], -9);
        x[n++] = nextafterf(kinks[i], 9);
    }
    draw(x + n, most - n, 6);
    return most;
}

static void check_alone(ACTIVATION a)
{
    float x[200], y[200], ours[200], theirs[200];
    network *net = parse(a, "");
    int n = list_arguments(x, 200);
    run_forward(net); /* which makes the graph */
    struct amp_graph *graph = amp_session_of(net->layers)->graph;
    REQUIRE(graph);
    amp_products_run(graph, 0, net->layers, false);
    memcpy(y, x, sizeof y);
    activate_array(y, n, a); /* ours: a recurrent layer runs */
    draw(ours, n, 2);
    memcpy(theirs, ours, sizeof theirs);
    gradient_array(x, n, a, ours);
    amp_products_end();
    for (int i = 0; i < n; i++) {
        check_near("activation", a, x[i], y[i], activate(x[i], a));
        check_near("gradient", a, x[i], ours[i], theirs[i] * gradient(x[i], a));
    }
    free_network(net);
}

/* The activation of what inner layer l makes of x at step `step`, in double but for Darknet's
 * function, against its output. */
static void check_product(const char *what, const layer *l, int step, const float *x)
{
    for (int b = 0; b < BATCH; b++)
        for (int o = 0; o < l->outputs; o++) {
            double sum = l->biases[o];
            for (int i = 0; i < l->inputs; i++)
                sum += (double)l->weights[o * l->inputs + i] * x[b * l->inputs + i];
            check_near(what, l->activation, (float)sum,
                       l->output[(step * BATCH + b) * l->outputs + o],
                       activate((float)sum, l->activation));
        }
}

static void check_fused(ACTIVATION a)
{
    network *net = parse(a, "");
    layer *l = net->layers, *parts[] = {l->input_layer, l->self_layer, l->output_layer};
    float state[BATCH * OUTPUTS] = {0};
    for (int k = 0; k < 3; k++) {
        draw(parts[k]->weights, parts[k]->inputs * parts[k]->outputs, 1);
        draw(parts[k]->biases, parts[k]->outputs, 2);
    }
    run_forward(net);
    for (int step = 0; step < TIME_STEPS; step++) {
        check_product("input", parts[0], step, net->input + step * BATCH * INPUTS);
        check_product("self", parts[1], step, state);
        for (int i = 0; i < BATCH * OUTPUTS; i++)
            state[i] = parts[0]->output[step * BATCH * OUTPUTS + i] +
                       parts[1]->output[step * BATCH * OUTPUTS + i];
        check_product("output", parts[2], step, state);
    }
    free_network(net);
}

AMP_TEST(each_by_itself)
{
    for (int a = 0; a < AMPK_STOCK_ACTIVATIONS; a++)
        check_alone((ACTIVATION)a);
}

AMP_TEST(each_behind_a_product)
{
    for (int a = 0; a < AMPK_STOCK_ACTIVATIONS; a++)
        check_fused((ACTIVATION)a);
}

/* Behind batch-norm, which Darknet computes: its activation is what it was given. */
AMP_TEST(each_behind_batchnorm)
{
    for (int a = 0; a < AMPK_STOCK_ACTIVATIONS; a++) {
        network *net = parse((ACTIVATION)a, "batch_normalize=1\n");
        const layer *in = net->layers->input_layer;
        draw(in->biases, OUTPUTS, 2);
        draw(in->scales, OUTPUTS, 2);
        run_forward(net);
        for (int i = 0; i < TIME_STEPS * BATCH * OUTPUTS; i++) {
            float x = in->x_norm[i] * in->scales[i % OUTPUTS] + in->biases[i % OUTPUTS];
            check_near("batch-norm", (ACTIVATION)a, x, in->output[i], activate(x, (ACTIVATION)a));
        }
        free_network(net);
    }
}

AMP_TEST_MAIN
