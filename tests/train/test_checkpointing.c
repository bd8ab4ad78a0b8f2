/* Layers that backward computes again (checkpoint=1): every byte that training leaves is that of a
 * run which keeps everything, whatever happens in between. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

/* Inference, a skipped step, and scales that are searched, so that passes are redone. */
static network *train(const char *keys, const char *layers)
{
    network *net = parse(keys, layers);
    steps(net, 2);
    predict(net);
    pass(net);
    load_images(net, 99);
    network_predict(net, net->input);
    pass(net);
    bad_step(net);
    steps(net, 2);
    return net;
}

static void check_bytes(const char *keys, const char *layers)
{
    network *net = train(keys, with_checkpoints(layers)), *kept = train(keys, layers);
    CHECK(amp_session_of(net->layers)->plan->n_recomputed > 4);
    CHECK_INT(amp_session_of(net->layers)->step.scaler.skipped, 1);
    CHECK_SAME(net, kept);
    free_network(net);
    free_network(kept);
}

AMP_TEST(every_byte_is_the_same)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        check_bytes(MIXED, layers);
        check_bytes(MIXED "amp_dtype=bf16\n", layers);
        check_bytes(MIXED "amp_dtype=fp32\n", layers);
    }
}

AMP_TEST(passes_are_redone)
{
    network *net = parse(MIXED, with_checkpoints(DETECTOR));
    steps(net, 1);
    CHECK(amp_session_of(net->layers)->step.scaler.redone > 0);
    free_network(net);
}

/* A size that changes in the middle of a step, and a budget in place of chosen layers. */
AMP_TEST(a_budget_and_other_sizes)
{
    const char *layers;
    int again = 0;
    ON_BOTH_NETS(layers)
    {
        network *net = parse(MIXED "checkpoint=auto:0.00003\n", layers),
                *kept = parse(MIXED, layers);
        for (int i = 0; i < 3; i++) {
            pass(net);
            pass(kept);
            again += amp_session_of(net->layers)->plan->n_recomputed;
            resize_network(net, 16 + 8 * i, 16 + 8 * i);
            resize_network(kept, 16 + 8 * i, 16 + 8 * i);
        }
        pass(net);
        pass(kept);
        CHECK_SAME(net, kept);
        free_network(net);
        free_network(kept);
    }
    CHECK(again > 0);
}

AMP_TEST_MAIN
