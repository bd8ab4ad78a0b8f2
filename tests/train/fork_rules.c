/* Rules of AlexeyAB's Darknet that only an attached network has, beside the same network by
 * stock's: what saved files are called, and batch-norm's divisor. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "plugin/attach/run/names.h"

#define FP32 MIXED "amp_dtype=fp32\n"
#define FORK FP32 "amp_dialect=fork\n"

AMP_TEST(names_of_files)
{
    static const struct {
        const char *keys, *asked;
        size_t iteration;
        const char *name, *numbered; /* NULL: none is written */
    } cases[] = {
        {FORK, "b/a.backup", 100, "b/a_last.weights", NULL},
        {FORK, "b/a.backup", 1000, "b/a_last.weights", "b/a_1000.weights"},
        {FORK, "b/a.backup", 1100, "b/a_last.weights", NULL},
        {FORK, "b/a.backup", 3000, "b/a_last.weights", "b/a_3000.weights"},
        {FORK, "b/a.backup", 0, "b/a_last.weights", NULL},
        {FORK "max_batches=20000\n", "a.backup", 1000, "a_last.weights", NULL},
        {FORK "max_batches=20000\n", "a.backup", 10000, "a_last.weights", "a_10000.weights"},
        {FORK, "a_100.weights", 100, NULL, NULL},
        {FORK, "a_final.weights", 1000, "a_final.weights", NULL},
        {FORK, "mine.weights", 1000, "mine.weights", NULL},
        {FP32, "b/a.backup", 1000, "b/a.backup", NULL},
        {FP32, "a_100.weights", 100, "a_100.weights", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[PATH_MAX] = "";
        network *net = parse(cases[i].keys, DETECTOR);
        const struct amp_session *s = amp_session_of(net->layers);
        *net->seen = cases[i].iteration * (size_t)(net->batch * net->subdivisions);
        CHECK_INT(amp_names_choose(s, cases[i].asked, name), cases[i].name != NULL);
        if (cases[i].name) CHECK_STR(name, cases[i].name);
        CHECK_INT(amp_names_numbered(s, cases[i].asked, name), cases[i].numbered != NULL);
        if (cases[i].numbered) CHECK_STR(name, cases[i].numbered);
        free_network(net);
    }
}

/* A variance of the size of what is added to it tells the rules apart: the output of one channel
 * whose weight is 1 is x / sqrt(variance + 1e-5), or x / (sqrt(variance) + 1e-6) by stock's. */
AMP_TEST(batch_norms_divisor)
{
    static const char layers[] = "[convolutional]\nsize=1\nfilters=1\nactivation=linear\n"
                                 "batch_normalize=1\n[convolutional]\nsize=1\nfilters=7\n"
                                 "activation=linear\n[yolo]\nmask=0\nclasses=2\nnum=1\n"
                                 "anchors=3,3\n";
    const float variance = 1e-5f;
    float image[3 * 16 * 16];
    fill(image, 3 * 16 * 16, 77); /* as predict does */
    for (int fork = 0; fork < 2; fork++) {
        network *net = parse(fork ? FORK : FP32, layers);
        layer *normalized = &net->layers[0], *last = &net->layers[1];
        for (int k = 0; k < normalized->nweights; k++)
            normalized->weights[k] = k == 0;
        normalized->rolling_mean[0] = 0;
        normalized->rolling_variance[0] = variance;
        for (int k = 0; k < last->nweights; k++)
            last->weights[k] = 1e-4f;
        predict(net);
        double divisor = fork ? sqrt((double)variance + 1e-5) : sqrt((double)variance) + 1e-6;
        for (int k = 0; k < 16 * 16; k++)
            CHECK_NEAR((double)last->output[k] / (double)image[k], 1e-4 / divisor,
                       1e-5 * 1e-4 / divisor);
        free_network(net);
    }
}

AMP_TEST_MAIN
