/* Nothing is ever stale: whatever changes between two passes (batch, size, weights, another
 * network), the next pass sees it, and inference in between leaves no trace in training. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "plugin/include/amp_observe.h"

AMP_TEST(inference_between_passes_changes_nothing)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = parse(MIXED, layers), *other = parse(MIXED, layers);
        for (int i = 0; i < 8; i++) { /* in the middle of steps as well */
            predict(net);
            pass(net);
            pass(other);
        }
        CHECK_SAME(net, other);
        network *plain = parse("", layers);
        CHECK(distance(net, plain, "running statistics") > 0.01);
        free_network(plain);
        free_network(net);
        free_network(other);
    }
}

AMP_TEST(inference_at_the_batch_of_training_changes_nothing)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = parse(MIXED, layers), *other = parse(MIXED, layers);
        for (int i = 0; i < 8; i++) {
            load_images(net, 99);
            network_predict(net, net->input);
            pass(net);
            pass(other);
        }
        CHECK_SAME(net, other);
        free_network(net);
        free_network(other);
    }
}

/* What inference gives is what a network gives that never did anything else. */
static void check_output(const network *net, const char *layers)
{
    network *fresh = parse_settled(MIXED, layers);
    copy_kept(net, fresh);
    check_same_output((network *)net, fresh);
    free_network(fresh);
}

AMP_TEST(inference_sees_the_weights_of_the_last_step)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = parse_settled(MIXED, layers);
        for (int i = 0; i < 5; i++) {
            check_output(net, layers);
            pass(net);
        }
        check_output(net, layers);
        free_network(net);
    }
}

static void scale_weights(network *net, float factor)
{
    struct kept list[256];
    int n = list_kept(net, list);
    for (int i = 0; i < n; i++)
        for (size_t k = 0; !strcmp(list[i].what, "weights") && k < list[i].n; k++)
            list[i].x[k] *= factor;
}

/* Written by hand: into one network that trained and into one that was made for it. */
static void check_weights_by_hand(const char *layers, bool after_skip)
{
    network *net = parse_settled(MIXED "loss_scale=256\n", layers);
    network *fresh = parse_settled(MIXED "loss_scale=256\n", layers);
    steps(net, 2);
    if (after_skip) bad_step(net);
    scale_weights(net, .9f);
    copy_kept(net, fresh);
    load_images(net, 99);
    load_images(fresh, 99);
    network_predict(net, net->input);
    network_predict(fresh, fresh->input);
    CHECK(!memcmp(net->output, fresh->output, (size_t)net->outputs * sizeof(float)));
    steps(net, 2);
    steps(fresh, 2);
    CHECK_SAME(net, fresh);
    if (after_skip) bad_step(net);
    if (after_skip) bad_step(fresh);
    scale_weights(net, 1.1f); /* no inference in between */
    scale_weights(fresh, 1.1f);
    steps(net, 1);
    network *later = parse(MIXED "loss_scale=256\n", layers);
    copy_kept(fresh, later);
    steps(later, 1);
    CHECK_SAME(net, later);
    free_network(net);
    free_network(fresh);
    free_network(later);
}

AMP_TEST(weights_written_by_hand)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        check_weights_by_hand(layers, false);
        check_weights_by_hand(layers, true);
    }
}

/* Weights and running statistics are the file's, momentum stays, as with Darknet. */
AMP_TEST(weights_loaded_between_steps)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        static const char keys[] = MIXED "loss_scale=256\namp_sidecar=none\n";
        network *net = parse_settled(keys, layers), *twin = parse(keys, layers),
                *file = parse(keys, layers);
        steps(file, 3);
        save_weights(file, (char *)scratch("a.weights"));
        for (int skip = 0; skip < 2; skip++) {
            steps(net, 2);
            if (skip) bad_step(net);
            network *expected = plain_copy(net, "", layers);
            load_weights(expected, (char *)scratch("a.weights"));
            load_weights(net, (char *)scratch("a.weights"));
            CHECK_SAME(net, expected);
            copy_kept(expected, twin);
            check_output(net, layers);
            steps(net, 2);
            steps(twin, 2);
            CHECK_SAME(net, twin);
            free_network(expected);
        }
        free_network(net);
        free_network(twin);
        free_network(file);
    }
}

AMP_TEST(weights_loaded_in_the_middle_of_a_step)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        static const char keys[] = MIXED "amp_sidecar=none\n";
        network *net = parse_settled(keys, layers), *twin = parse_settled(keys, layers);
        network *file = parse_settled(keys, layers);
        steps(file, 3);
        save_weights(file, (char *)scratch("a.weights"));
        pass(net);
        pass(twin);
        load_weights(net, (char *)scratch("a.weights"));
        load_weights(twin, (char *)scratch("a.weights"));
        CHECK_INT(*net->seen, 24);
        *net->seen = *twin->seen = 4; /* the step goes on */
        predict(twin);                /* which reads the weights anew */
        pass(net);
        pass(twin);
        CHECK_SAME(net, twin);
        free_network(net);
        free_network(twin);
        free_network(file);
    }
}

AMP_TEST(two_networks_in_turn_are_each_alone)
{
    network *net[2], *alone[2];
    for (int i = 0; i < 2; i++) {
        net[i] = parse(MIXED, both_nets[i]);
        alone[i] = parse(MIXED, both_nets[i]);
    }
    network *third = parse("", DETECTOR), *third_alone = parse("", DETECTOR); /* not attached */
    for (int k = 0; k < 8; k++) {
        pass(net[0]);
        pass(third);
        pass(net[1]);
    }
    for (int i = 0; i < 2; i++) {
        steps(alone[i], 4);
        CHECK_SAME(net[i], alone[i]);
        free_network(net[i]);
        free_network(alone[i]);
    }
    steps(third_alone, 4);
    CHECK_SAME(third, third_alone);
    free_network(third);
    free_network(third_alone);
}

/* ---- sizes ---- */

/* 16 -> 24 -> 16, every time more than once where `again`; never twice at once otherwise. */
static network *train_resized(const char *layers, bool again)
{
    network *net = parse_settled(MIXED, layers);
    static const int sizes[] = {16, 24, 16, 32};
    for (int i = 0; i < 4; i++) {
        resize_network(net, sizes[i], sizes[i]);
        if (again) resize_network(net, sizes[i], sizes[i]);
        steps(net, 1);
        if (again) resize_network(net, sizes[i], sizes[i]);
        steps(net, 1);
    }
    return net;
}

AMP_TEST(resizing_to_the_same_size_changes_nothing)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = train_resized(layers, false), *again = train_resized(layers, true);
        CHECK_SAME(net, again);
        free_network(net);
        free_network(again);
    }
}

/* A step that is resized in its middle keeps what its first pass found. */
AMP_TEST(resizing_in_the_middle_of_a_step)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = parse_settled(MIXED, layers), *other = parse_settled(MIXED, layers);
        steps(net, 1);
        steps(other, 1);
        pass(net);
        resize_network(net, 24, 24);
        predict(net);
        resize_network(net, 16, 16);
        pass(net);
        steps(other, 1);
        CHECK_SAME(net, other);
        free_network(net);
        free_network(other);
    }
}

AMP_TEST(a_resized_network_is_a_network_of_that_size)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = parse_settled(MIXED, layers),
                *big = parse_settled(MIXED "width=24\nheight=24\n", layers);
        steps(net, 2);
        resize_network(net, 24, 24);
        copy_kept(net, big);
        check_same_output(net, big);
        steps(net, 2);
        /* the scale that the smaller size found */
        amp_session_of(big->layers)->step.scaler = amp_session_of(net->layers)->step.scaler;
        steps(big, 2);
        CHECK_SAME(net, big);
        free_network(net);
        free_network(big);
    }
}

/* ---- a program that tells of its writes; the promise holds for the whole process, so these come
 * last ---- */

/* Output after inference, which a test compares with itself. */
static void predict_into(network *net, float *output)
{
    load_images(net, 99);
    network_predict(net, net->input);
    memcpy(output, net->output, (size_t)net->outputs * sizeof *output);
}

AMP_TEST(weights_are_packed_again_after_writes_that_are_told)
{
    const char *layers;
    amp_promise_to_tell();
    ON_BOTH_NETS(layers)
    {
        network *net = parse_settled(MIXED "loss_scale=256\namp_sidecar=none\n", layers);
        size_t bytes = (size_t)net->outputs * sizeof(float);
        float *before = malloc(bytes), *after = malloc(bytes);
        REQUIRE(before && after);
        steps(net, 1);
        check_output(net, layers);
        predict_into(net, before);
        net->layers[0].weights[0] += 1; /* not told: the convolution keeps what it has */
        predict_into(net, after);
        CHECK(!memcmp(before, after, bytes));
        amp_weights_written(net);
        check_output(net, layers);
        predict_into(net, after);
        CHECK(memcmp(before, after, bytes));
        for (int i = 0; i < 4; i++) { /* our update is a write too */
            pass(net);
            check_output(net, layers);
        }
        bad_step(net);
        check_output(net, layers);
        save_weights(net, (char *)scratch("a.weights"));
        predict_into(net, before);
        steps(net, 2);
        load_weights(net, (char *)scratch("a.weights"));
        predict_into(net, after);
        CHECK(!memcmp(before, after, bytes));
        free(before);
        free(after);
        free_network(net);
    }
}

/* A convolution packs averages that were copied into its network's weights. */
AMP_TEST(averages_are_packed_if_writes_are_told)
{
    static const char keys[] = MIXED "loss_scale=256\nema_alpha=.9\n";
    amp_promise_to_tell();
    network *net = parse_settled(keys, DETECTOR), *twin = parse_settled(keys, DETECTOR);
    network *fresh = parse_settled(keys, DETECTOR);
    steps(net, 3);
    predict(twin); /* packs the weights of before */
    CHECK_INT(amp_copy_averages(twin, net), 1);
    CHECK_INT(amp_copy_averages(fresh, net), 1);
    check_same_output(twin, fresh);
    free_network(net);
    free_network(twin);
    free_network(fresh);
}

/* The words that watch weights are raised by packing, so inference in between must not lose
 * them. */
AMP_TEST(inference_in_between_changes_nothing_if_writes_are_told)
{
    const char *layers;
    amp_promise_to_tell();
    ON_BOTH_NETS(layers)
    {
        network *net = parse(MIXED, layers), *other = parse(MIXED, layers);
        for (int i = 0; i < 8; i++) {
            network_predict(net, net->input); /* at the batch of training: the same graph */
            network_predict(net, net->input);
            pass(net);
            pass(other);
        }
        CHECK_SAME(net, other);
        CHECK(amp_session_of(net->layers)->graph->watch[0][AMP_WATCH_WEIGHTS] != 0);
        free_network(net);
        free_network(other);
    }
}

/* The search for a scale in the first pass is not told again of the second. */
AMP_TEST(a_pass_tells_what_it_redid_itself)
{
    struct amp_pass first, second;
    network *net = parse(MIXED, DETECTOR);
    load_images(net, 1);
    amp_pass(net, NULL, NULL, &first);
    amp_pass(net, NULL, NULL, &second);
    CHECK(first.clean && first.redone > 0);
    CHECK(second.clean && second.redone == 0);
    free_network(net);
}

AMP_TEST_MAIN
