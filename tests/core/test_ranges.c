/* What a profiler of NVIDIA's is told of passes and layers, in the emulation, by a stand-in for its
 * library. */
#include "nvtx_stand_in.h"
#include "tests/emulation/emulation.h"
#include "tests/rig/harness.h"
#include "tests/rig/rig.h"

/* The middle layer is one that Darknet runs: it splits what is recorded in two. */
static const char cfg[] =
    "[net]\nmixed_precision=1\nbatch=2\nsubdivisions=1\nwidth=8\nheight=8\nchannels=3\n"
    "[convolutional]\nfilters=8\nsize=3\npad=1\nactivation=leaky\n[l2norm]\n"
    "[convolutional]\nfilters=4\nsize=1\nactivation=linear\n[cost]\n";

static const char forward[] = "forward{forward 0 convolutional{}forward 1 l2norm{}"
                              "forward 2 convolutional{}forward 3 cost{}}";
static const char backward[] = "backward{backward 3 cost{}backward 2 convolutional{}"
                               "backward 1 l2norm{}backward 0 convolutional{}}";
/* What is played has the ranges of Darknet's layers alone. */
static const char forward_played[] = "forward{forward 1 l2norm{}forward 3 cost{}}";
static const char backward_played[] = "backward{backward 3 cost{}backward 1 l2norm{}}";

static void expect(const char *what)
{
    const char *told = nvtx_stand_in_take();
    if (strcmp(told, what)) TEST_FAIL("told: %s\nnot: %s", told, what);
}

static void update(struct rig *r)
{
    struct amp_update u = {.learning_rate = .01f, .momentum = .9f, .batch = 2};
    for (int i = 0; i < r->net->n; i++)
        amp_graph_set_due(r->graph, i);
    amp_graph_update(r->graph, &u);
}

static struct rig *make(void)
{
    struct rig *r = rig_create(cfg, &ampk_cuda, test_random);
    REQUIRE(r);
    return r;
}

AMP_TEST(every_pass_and_layer_is_a_range)
{
    emulation_allow_recordings(false);
    struct rig *r = make();
    for (int k = 0; k < 3; k++) {
        rig_forward(r);
        expect(forward);
        rig_backward(r, 8);
        expect(backward);
        update(r);
        expect("update{}");
    }
    amp_graph_begin(r->graph, r->input, NULL, false);
    for (int i = 0; i < r->net->n; i++)
        amp_graph_forward(r->graph, i);
    expect("inference{forward 0 convolutional{}forward 1 l2norm{}forward 2 convolutional{}"
           "forward 3 cost{}}");
    rig_free(r);
}

AMP_TEST(what_is_played_is_one_range_with_its_pass)
{
    emulation_allow_recordings(true);
    struct rig *r = make();
    for (int k = 0; k < 4; k++) { /* at first with plans, then recorded, then played */
        rig_forward(r);
        expect(k < 2 ? forward : forward_played);
        rig_backward(r, 8);
        expect(k < 2 ? backward : backward_played);
    }
    rig_free(r);
}

AMP_TEST(a_pass_that_is_not_finished_ends_before_the_next)
{
    emulation_allow_recordings(false);
    struct rig *r = make();
    amp_graph_begin(r->graph, r->input, NULL, true);
    amp_graph_forward(r->graph, 0);
    expect("forward{forward 0 convolutional{}");
    rig_forward(r);
    const char *told = nvtx_stand_in_take();
    CHECK(told[0] == '}' && !strcmp(told + 1, forward));
    amp_graph_begin(r->graph, r->input, NULL, true);
    rig_free(r);
    expect("forward{}");
}

AMP_TEST_MAIN
