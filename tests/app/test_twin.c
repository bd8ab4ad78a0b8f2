/* The second network of -map: it holds what a weights file would, and the first is only read. */
#include "tests/rig/harness.h"
#include "tests/rig/files.h"

#include <darknet.h>

#include "plugin/app/evaluation.h"
#include "plugin/attach/session.h"

/* Every kind of layer with weights of its own, but recurrent ones. */
static const char *const layers =
    "[convolutional]\nbatch_normalize=1\nfilters=4\nsize=3\npad=1\nactivation=leaky\n"
    "[convolutional]\nfilters=4\nsize=3\npad=1\nactivation=leaky\n"
    "[batchnorm]\n"
    "[local]\nfilters=2\nsize=3\npad=1\nstride=1\nactivation=leaky\n"
    "[deconvolutional]\nfilters=3\nsize=2\nstride=2\nactivation=leaky\n"
    "[connected]\noutput=6\nbatch_normalize=1\nactivation=leaky\n"
    "[connected]\noutput=5\nactivation=linear\n";

static char err[9000];

static const char *cfg_of(const char *keys, const char *what)
{
    char text[4096];
    int n = snprintf(text, sizeof text,
                     "[net]\n%sbatch=4\nsubdivisions=2\nwidth=8\nheight=12\nchannels=3\n"
                     "learning_rate=.01\nmax_batches=10\n%s",
                     keys, what);
    REQUIRE(n < (int)sizeof text);
    scratch_write("a.cfg", text, (size_t)n);
    return scratch("a.cfg");
}

static void disturb(float *x, int n)
{
    for (int i = 0; x && i < n; i++)
        x[i] += (float)test_uniform(-1, 1);
}

/* So that nothing has the value it begins with. */
static void disturb_network(network *net)
{
    for (int i = 0; i < net->n; i++) {
        layer *l = &net->layers[i];
        int channels = l->type == CONNECTED ? l->outputs : l->type == BATCHNORM ? l->c : l->n;
        disturb(l->biases, l->type == LOCAL ? l->outputs : channels);
        disturb(l->scales, l->batch_normalize || l->type == BATCHNORM ? channels : 0);
        disturb(l->rolling_mean, l->batch_normalize || l->type == BATCHNORM ? channels : 0);
        disturb(l->rolling_variance, l->batch_normalize || l->type == BATCHNORM ? channels : 0);
    }
}

static long saved(network *net, char *bytes)
{
    save_weights(net, (char *)scratch("w"));
    return scratch_read("w", bytes, 1 << 16);
}

static void check_copy(const char *keys)
{
    static char of_twin[1 << 16], before[1 << 16], after[1 << 16];
    network *twin, *net;
    const char *cfg = cfg_of(keys, layers);
    gpu_index = -1;
    CHECK_INT(amp_twin_create(cfg, &twin, err, sizeof err), 0);
    REQUIRE(twin);
    CHECK_INT(twin->batch, 1);
    net = parse_network_cfg((char *)cfg);
    disturb_network(net);
    long n = saved(net, before);
    CHECK(n > 1000 && saved(twin, of_twin) == n && memcmp(before, of_twin, (size_t)n));
    amp_twin_take_weights(twin, net);
    CHECK_INT(saved(twin, of_twin), n);
    CHECK(!memcmp(before, of_twin, (size_t)n));
    CHECK_INT(saved(net, after), n);
    CHECK(!memcmp(before, after, (size_t)n));
    CHECK_INT(net->batch, 2);
    free_network(twin);
    free_network(net);
}

AMP_TEST(holds_what_a_weights_file_would)
{
    check_copy("");
}

AMP_TEST(also_in_mixed_precision)
{
    check_copy("mixed_precision=1\nseed=3\n");
}

static void predict(network *net)
{
    static float image[3 * 8 * 12];
    for (size_t i = 0; i < sizeof image / sizeof *image; i++)
        image[i] = (float)test_uniform(0, 1);
    network_predict(net, image);
}

/* amp_dtype=auto may have chosen another one than that in which a resumed run goes on. */
AMP_TEST(computes_in_the_dtype_of_the_training)
{
    network *twin;
    const char *cfg = cfg_of("mixed_precision=1\n", "[convolutional]\nfilters=4\n[cost]\n");
    gpu_index = -1;
    network *net = parse_network_cfg((char *)cfg);
    CHECK_INT(amp_twin_create(cfg, &twin, err, sizeof err), 0);
    REQUIRE(twin);
    struct amp_session *trained = amp_session_of(net->layers),
                       *other = amp_session_of(twin->layers);
    predict(twin);
    CHECK(other->plan->island == trained->plan->island);
    trained->options.dtype = AMP_DTYPE_FP32;
    amp_twin_take_weights(twin, net);
    predict(twin);
    CHECK_INT(other->plan->island, AMP_FORMAT_FP32);
    CHECK_INT(other->options.dtype, AMP_DTYPE_FP32);
    free_network(twin);
    free_network(net);
}

AMP_TEST(refuses_recurrent_layers)
{
    network *twin;
    const char *cfg = cfg_of("", "[connected]\noutput=4\n[gru]\noutput=4\n[connected]\noutput=4\n");
    gpu_index = -1;
    CHECK_INT(amp_twin_create(cfg, &twin, err, sizeof err), -1);
    CHECK(strstr(err, "layer 1 (gru)"));
    if (twin) free_network(twin);
}

AMP_TEST_MAIN
