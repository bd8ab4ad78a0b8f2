/* The gradient behind a layer whose output is dropped, beside finite differences of the loss with
 * the same mask. Darknet drops in the memory of the layer before, whose activation's gradient is
 * then taken at what was dropped; ours has a tensor of its own (docs/attaching.md). */
#include "tests/rig/harness.h"
#include "tests/rig/files.h"

#include <darknet.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { INPUTS = 5, HIDDEN = 12, OUTPUTS = 3, WEIGHTS = INPUTS * HIDDEN };

static network *parse(const char *keys, const char *activation)
{
    char text[1000];
    int n = snprintf(text, sizeof text,
                     "[net]\n%sbatch=1\nsubdivisions=1\ninputs=%d\nmomentum=0\ndecay=0\n"
                     "policy=constant\nlearning_rate=0\nmax_batches=1000\n"
                     "[connected]\noutput=%d\nactivation=%s\n[dropout]\nprobability=.5\n"
                     "[connected]\noutput=%d\nactivation=linear\n[cost]\n",
                     keys, INPUTS, HIDDEN, activation, OUTPUTS);
    scratch_write("a.cfg", text, (size_t)n);
    return parse_network_cfg((char *)scratch("a.cfg"));
}

/* The loss of one image; with a rate of 0 nothing learns. */
static double loss_of(network *net)
{
    srand(9); /* the same mask every time */
    return (double)train_network_datum(net) / 2;
}

/* The largest error of a weight's gradient before the dropout, as a share of the largest gradient.
 * The weights move by their negative gradients at a rate of 1. */
static double worst_gradient(const char *keys, const char *activation)
{
    network *net = parse(keys, activation);
    float *w = net->layers[0].weights, before[WEIGHTS];
    double exact[WEIGHTS], worst = 0, most = 0;
    for (int i = 0; i < INPUTS; i++)
        net->input[i] = 1 + .3f * (float)sin(i);
    for (int i = 0; i < OUTPUTS; i++)
        net->truth[i] = 2 + (float)i;
    for (int k = 0; k < WEIGHTS; k++)
        w[k] = before[k] = .2f * (float)sin(k + 1);
    for (int k = 0; k < OUTPUTS * HIDDEN; k++)
        net->layers[2].weights[k] = (float)cos(k);
    for (int k = 0; k < WEIGHTS; k++) {
        const float h = 1.f / 128;
        w[k] = before[k] + h;
        double above = loss_of(net);
        w[k] = before[k] - h;
        exact[k] = (above - loss_of(net)) / (2 * (double)h);
        w[k] = before[k];
        most = fmax(most, fabs(exact[k]));
    }
    net->learning_rate = 1;
    loss_of(net);
    for (int k = 0; k < WEIGHTS; k++)
        worst = fmax(worst, fabs((double)before[k] - (double)w[k] - exact[k]) / most);
    free_network(net);
    return worst;
}

AMP_TEST(the_gradient_is_that_of_the_loss_and_stocks_is_not)
{
    static const struct {
        const char *activation;
        bool differs; /* its gradient follows from the output, and not by the sign alone */
    } cases[] = {{"logistic", true}, {"tanh", true},  {"elu", true},
                 {"selu", true},     {"loggy", true}, {"plse", true},
                 {"leaky", false},   {"relu", false}, {"linear", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double ours = worst_gradient("mixed_precision=1\namp_dtype=fp32\n", cases[i].activation);
        double stocks = worst_gradient("", cases[i].activation);
        if (!(ours < 1e-3) || (stocks > .05) != cases[i].differs ||
            (stocks > 1e-3) != (stocks > .05))
            TEST_FAIL("%s: gradients are off by %.3g of the largest, stock Darknet's by %.3g",
                      cases[i].activation, ours, stocks);
    }
}

AMP_TEST_MAIN
