/* The gradient noise scale against a net whose gradients are known: one linear layer and squared
 * errors. A few images are drawn with replacement. Over all batches that can be drawn, the means of
 * the two estimates must be the squared length of the mean gradient and the trace of the images'
 * covariance, to the digits of FP32. */
#include "tests/rig/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/rig/attached.h"

enum { IMAGES = 3, INPUTS = 4, OUTPUTS = 2, GRADIENT = OUTPUTS * (INPUTS + 1), MOST_PASSES = 4 };

static const char *write_linear(const char *keys, int passes)
{
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "[net]\nmixed_precision=1\namp_dtype=fp32\nbatch=%d\nsubdivisions=%d\n"
                     "inputs=%d\nlearning_rate=0\npolicy=constant\nmax_batches=100000\n"
                     "amp_log=%s\n%s[connected]\noutput=%d\nactivation=linear\n[cost]\ntype=sse\n",
                     passes, passes, INPUTS, scratch("log"), keys, OUTPUTS);
    scratch_write("a.cfg", text, (size_t)n);
    return scratch("a.cfg");
}

struct population {
    float x[IMAGES][INPUTS], truth[IMAGES][OUTPUTS];
    double square, trace; /* |G|^2, tr(S) */
};

/* In double, by the formula of the layer. */
static void know(struct population *p, const layer *l)
{
    double g[IMAGES][GRADIENT], mean[GRADIENT] = {0};
    p->square = p->trace = 0;
    for (int i = 0; i < IMAGES; i++)
        for (int o = 0; o < OUTPUTS; o++) {
            double y = (double)l->biases[o];
            for (int k = 0; k < INPUTS; k++)
                y += (double)l->weights[o * INPUTS + k] * (double)p->x[i][k];
            double delta = (double)p->truth[i][o] - y;
            for (int k = 0; k <= INPUTS; k++)
                g[i][o * (INPUTS + 1) + k] = delta * (k < INPUTS ? (double)p->x[i][k] : 1);
        }
    for (int i = 0; i < IMAGES; i++)
        for (int k = 0; k < GRADIENT; k++)
            mean[k] += g[i][k] / IMAGES;
    for (int k = 0; k < GRADIENT; k++)
        p->square += mean[k] * mean[k];
    for (int i = 0; i < IMAGES; i++)
        for (int k = 0; k < GRADIENT; k++)
            p->trace += (g[i][k] - mean[k]) * (g[i][k] - mean[k]) / IMAGES;
}

static void draw(struct population *p)
{
    for (int i = 0; i < IMAGES; i++) {
        for (int k = 0; k < INPUTS; k++)
            p->x[i][k] = (float)test_uniform(-1, 1);
        for (int o = 0; o < OUTPUTS; o++)
            p->truth[i][o] = (float)test_uniform(2, 3);
    }
}

/* A step whose passes are these images: the digits of `which` to the base IMAGES. */
static void run(network *net, const struct population *p, int which, int passes)
{
    for (int k = 0; k < passes; k++, which /= IMAGES) {
        memcpy(net->input, p->x[which % IMAGES], sizeof p->x[0]);
        memcpy(net->truth, p->truth[which % IMAGES], sizeof p->truth[0]);
        train_network_datum(net);
    }
}

AMP_TEST(the_estimates_are_unbiased)
{
    for (int passes = 2; passes <= MOST_PASSES; passes++) {
        struct population p;
        network *net = parse_network_cfg((char *)write_linear("amp_log_noise=1\n", passes));
        struct amp_session *s = amp_session_of(net->layers);
        double square = 0, trace = 0;
        int batches = (int)lround(pow(IMAGES, passes));
        draw(&p);
        know(&p, &net->layers[0]);
        for (int which = 0; which < batches; which++) {
            s->log.noise = (struct amp_noise){0};
            run(net, &p, which, passes);
            square += s->log.noise.square / batches;
            trace += s->log.noise.trace / batches;
        }
        /* One step has a weight of 1 in 100. */
        CHECK_NEAR(100 * square, p.square, 1e-4 * (p.square + p.trace));
        CHECK_NEAR(100 * trace, p.trace, 1e-4 * (p.square + p.trace));
        free_network(net);
    }
    scratch_empty();
}

/* The number in the log is the ratio of both averages. With the same draw again and again those
 * are of that draw alone, and a step of equal images has no noise. */
AMP_TEST(the_log_has_the_ratio)
{
    struct population p;
    char text[1 << 16];
    network *net = parse_network_cfg((char *)write_linear("amp_log_noise=1\n", 2));
    const struct amp_noise *noise = &amp_session_of(net->layers)->log.noise;
    draw(&p);
    run(net, &p, 0, 2);
    CHECK_NEAR(noise->trace, 0, 1e-4 * noise->square);
    for (int i = 0; i < 40; i++)
        run(net, &p, (int)(test_random() % 9), 2);
    double scale = amp_noise_scale(noise);
    scratch_read("log", text, sizeof text);
    char *last = strstr(text, "{\"iteration\": 41,");
    char *told = last ? strstr(last, "\"gradient_noise_scale\": ") : NULL;
    REQUIRE(told);
    told += strlen("\"gradient_noise_scale\": ");
    if (isnan(scale))
        CHECK(!strncmp(told, "null", 4));
    else
        CHECK_NEAR(atof(told), scale, 1e-6 * scale);
    free_network(net);
    scratch_empty();
}

/* Nothing is computed for it, and the log does not have the number. */
AMP_TEST(without_the_key_there_is_nothing)
{
    struct population p;
    char text[1 << 14];
    network *net = parse_network_cfg((char *)write_linear("", 2));
    draw(&p);
    run(net, &p, 1, 2);
    CHECK(isnan(amp_session_of(net->layers)->step.pass_norm));
    scratch_read("log", text, sizeof text);
    CHECK(strstr(text, "\"grad_norm\": ") && !strstr(text, "noise"));
    free_network(net);
    scratch_empty();
}

/* Neither an overflow nor a step that was skipped counts. */
AMP_TEST(what_is_not_finite_adds_nothing)
{
    struct amp_noise n = {0};
    CHECK(isnan(amp_noise_scale(&n)));
    amp_noise_add(&n, INFINITY, 1, 2, 4);
    amp_noise_add(&n, 1, 1, NAN, 4);
    amp_noise_add(&n, NAN, 1, 2, 4);
    amp_noise_add(&n, 3, 4, 3, 4); /* one pass */
    CHECK(n.square == 0 && n.trace == 0);
    /* |pass|^2 = 9, |step|^2 = 4: |G|^2 = (4 * 4 - 9) / 3, tr(S) = 5 / (1 - 1 / 4) */
    amp_noise_add(&n, 3, 1, 8, 4);
    CHECK_NEAR(amp_noise_scale(&n), (20. / 3) / (7. / 3), 1e-12);
}

AMP_TEST_MAIN
