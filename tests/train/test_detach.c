/* amp_detach gives Darknet back what it had: every byte of the network and its layers, and training
 * that goes on as plain Darknet's from that state. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "amp.h"

/* ---- the bytes of a network ---- */

struct image {
    network net;
    layer *layers;
};

static struct image image_of(const network *net)
{
    struct image image = {*net, malloc((size_t)net->n * sizeof(layer))};
    REQUIRE(image.layers);
    memcpy(&image.net, net, sizeof *net); /* padding too */
    memcpy(image.layers, net->layers, (size_t)net->n * sizeof(layer));
    return image;
}

static void check_image(const network *net, struct image *before, const char *when)
{
    before->net.train = net->train; /* Darknet's own, set by training */
    if (memcmp(&before->net, net, sizeof *net)) TEST_FAIL("%s: the network is another", when);
    for (int i = 0; i < net->n; i++)
        for (size_t k = 0; k < sizeof(layer); k++) {
            if (((char *)&before->layers[i])[k] == ((char *)&net->layers[i])[k]) continue;
            TEST_FAIL("%s: byte %zu of layer %d is another", when, k, i);
            break;
        }
}

static void attach(network *net, const char *keys, const char *layers)
{
    REQUIRE(!amp_session_of(net->layers));
    REQUIRE(amp_attach(net, write_cfg(keys, layers)) == 1);
    CHECK(net->layers[0].delta == NULL && amp_session_of(net->layers) != NULL);
}

static void detach(network *net)
{
    CHECK_INT(amp_detach(net), 1);
    CHECK(!amp_session_of(net->layers));
    CHECK_INT(amp_detach(net), 0);
}

AMP_TEST(every_byte_comes_back)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = parse("", layers);
        struct image before = image_of(net);
        for (int twice = 0; twice < 2; twice++) {
            attach(net, MIXED, layers);
            detach(net);
            check_image(net, &before, "at once");
            attach(net, MIXED, layers);
            predict(net);
            detach(net);
            check_image(net, &before, "after inference");
            attach(net, MIXED, layers);
            steps(net, 2);
            detach(net);
            check_image(net, &before, "after training");
        }
        free(before.layers);
        free_network(net);
    }
}

/* Policies and optimizers of ours write to the network's own rate, burn-in, momentum, B1, B2 and
 * eps. */
AMP_TEST(rates_and_betas_come_back)
{
    static const char *const keys[] = {
        MIXED "optimizer=adamw\n", MIXED "optimizer=lamb\nB1=.8\nB2=.9\neps=.01\n",
        MIXED "optimizer=lars\npolicy=cosine\nmax_batches=9\n",
        MIXED "optimizer=adam\npolicy=onecycle\nmax_batches=9\n",
        MIXED "ema_alpha=.9\npolicy=cyclic\ncyclic_step=2\nburn_in=3\n"};
    for (int k = 0; k < 5; k++) {
        network *net = parse("", DETECTOR);
        net->burn_in = 7;
        net->B1 = .5f, net->B2 = .6f, net->eps = .7f; /* 0 in a network without Adam */
        struct image before = image_of(net);
        attach(net, keys[k], DETECTOR);
        detach(net);
        check_image(net, &before, "at once");
        attach(net, keys[k], DETECTOR);
        steps(net, 2);
        detach(net);
        check_image(net, &before, keys[k]);
        free(before.layers);
        free_network(net);
    }
}

/* [batchnorm] gets the arrays that Darknet's own code writes to and never allocates. */
AMP_TEST(only_batchnorm_keeps_its_missing_arrays)
{
    static const char layers[] = CONV(4, "") "[batchnorm]\n" YOLO("0,1");
    network *net = parse("", layers);
    struct image before = image_of(net);
    attach(net, MIXED, layers);
    steps(net, 1);
    detach(net);
    layer *l = &net->layers[1], *was = &before.layers[1];
    REQUIRE(l->type == BATCHNORM);
    CHECK(l->x && l->x_norm && l->mean_delta && l->variance_delta && !was->x);
    was->x = l->x;
    was->x_norm = l->x_norm;
    was->mean_delta = l->mean_delta;
    was->variance_delta = l->variance_delta;
    check_image(net, &before, "batchnorm");
    free(before.layers);
    free_network(net);
}

/* ---- training goes on ---- */

/* A detached network and plain Darknet in the same state train alike. */
static void check_training(network *net, const char *layers)
{
    network *plain = plain_copy(net, "", layers);
    for (int i = 0; i < net->n; i++) {
        const layer *a = &net->layers[i], *b = &plain->layers[i];
        CHECK(a->forward == b->forward && a->backward == b->backward && a->update == b->update);
        CHECK_INT(a->delta != NULL, b->delta != NULL);
    }
    steps(net, 3);
    steps(plain, 3);
    CHECK_SAME(net, plain);
    free_network(plain);
}

AMP_TEST(training_goes_on_as_plain_darknet)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = parse("", layers);
        for (int twice = 0; twice < 2; twice++) {
            attach(net, MIXED, layers);
            steps(net, 3);
            detach(net);
            check_training(net, layers);
        }
        free_network(net);
    }
}

AMP_TEST(detached_after_a_resize)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        for (int when = 0; when < 3; when++) { /* before, after, or amid training */
            network *net = parse("", layers);
            attach(net, MIXED, layers);
            if (when) steps(net, 1);
            resize_network(net, 32, 32);
            if (when != 1) steps(net, 1);
            detach(net);
            check_training(net, layers);
            attach(net, MIXED, layers); /* at the size that it has now */
            steps(net, 1);
            free_network(net);
        }
    }
}

static void overflow(network *net)
{
    for (int k = 0; k < net->layers[1].nweights; k++)
        net->layers[1].weights[k] *= 1e6f;
}

AMP_TEST(detached_after_a_demotion)
{
    static const char layers[] = CONV(6, NORMALIZED) CONV(6, NORMALIZED) YOLO("0,1");
    network *net = parse("", layers);
    struct image before = image_of(net);
    attach(net, MIXED, layers);
    steps(net, 1);
    overflow(net);
    steps(net, 1);
    CHECK_INT(amp_session_of(net->layers)->demoted[1], AMP_FORMAT_FP32);
    detach(net);
    check_image(net, &before, "after a demotion");
    check_training(net, layers);
    free(before.layers);
    free_network(net);
}

/* What the first pass of a step found is not lost to the second. */
AMP_TEST(detached_in_the_middle_of_a_step)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = parse("", layers), *plain = parse("", layers);
        attach(net, MIXED "amp_dtype=fp32\n", layers);
        pass(net);
        detach(net);
        pass(net);
        steps(plain, 1);
        check_distance(net, plain, "weights", ONE_STEP_TOLERANCE);
        check_distance(net, plain, "momentum", ONE_STEP_TOLERANCE);
        CHECK_INT(*net->t, *plain->t);
        free_network(net);
        free_network(plain);
    }
}

AMP_TEST(detached_in_the_middle_of_a_step_that_failed)
{
    network *net = parse("", DETECTOR), *plain = parse("", DETECTOR);
    attach(net, MIXED, DETECTOR);
    load_images(net, 0);
    net->input[0] = NAN;
    train_network_datum(net);
    detach(net);
    *plain->seen = *net->seen;
    CHECK_SAME(net, plain);
    pass(net);
    pass(plain);
    CHECK_SAME(net, plain);
    free_network(net);
    free_network(plain);
}

AMP_TEST_MAIN
