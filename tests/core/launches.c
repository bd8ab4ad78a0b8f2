/* How many kernels of ours a pass starts on a device: each layer's own, counted in the emulation.
 * Every launch costs a GPU a microsecond or more, whatever it does. */
#include "tests/emulation/emulation.h"
#include "tests/rig/harness.h"
#include "tests/rig/rig.h"

enum { MOST_LAYERS = 16 };

static size_t launched[2][MOST_LAYERS]; /* of forward, backward */

static void count(int layer, int backward, int done, void *user)
{
    static size_t before;
    (void)user;
    if (done)
        launched[backward][layer] = emulation_launches() - before;
    else
        before = emulation_launches();
}

/* Runs a pass of the net and counts. */
static void run(const char *cfg)
{
    struct rig *r = rig_create(cfg, &ampk_cuda, test_random);
    REQUIRE(r);
    amp_graph_trace_layers(r->graph, count, NULL);
    rig_forward(r);
    rig_backward(r, 8);
    rig_free(r);
}

static void check_layer(int layer, size_t forward, size_t backward)
{
    CHECK_INT(launched[false][layer], forward);
    CHECK_INT(launched[true][layer], backward);
}

#define NORMALIZED(filters)                                                                        \
    "[convolutional]\nbatch_normalize=1\npad=1\nsize=3\nfilters=" #filters "\nactivation=leaky\n"

static const char plain[] =
    "[net]\nmixed_precision=1\nbatch=2\nchannels=8\nwidth=8\nheight=8\n" /* */
    NORMALIZED(16) NORMALIZED(16) NORMALIZED(16) "[maxpool]\nsize=2\nstride=2\n" NORMALIZED(
        16) "[convolutional]\nsize=1\nfilters=8\nactivation=linear\n[cost]\n";

/* Forward and backward read their tensors twice: for batch-norm's sums first. */
AMP_TEST(layers_with_batch_norm_start_two_each_way)
{
    run(plain);
    for (int i = 0; i < 3; i++)
        check_layer(i, 2, 2);
}

/* A route of one source alone is its source, with one reader or, as in yolov3, with one more before
 * it; in both directions. */
AMP_TEST(routes_of_one_source_start_nothing)
{
    run("[net]\nmixed_precision=1\nbatch=2\nchannels=8\nwidth=8\nheight=8\n" NORMALIZED(16)
            NORMALIZED(16) "[route]\nlayers=0\n" NORMALIZED(
                16) "[route]\nlayers=-1\n"
                    "[convolutional]\nsize=1\nfilters=8\nactivation=linear\n[cost]\n");
    check_layer(2, 0, 0);
    check_layer(4, 0, 0);
}

AMP_TEST_MAIN
