/* Steps that do not count, through Darknet: no trace of them in weights, momentum, running
 * statistics or Adam's t; and steps that begin in their middle. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"

#include "plugin/attach/session.h"

static struct amp_step *step_of(network *net)
{
    return &amp_session_of(net->layers)->step;
}

/* ---- Adam's t, and all the rest ---- */

AMP_TEST(a_skipped_step_is_as_if_it_had_not_been)
{
    static const char *const keys[] = {MIXED, MIXED "adam=1\n", MIXED "adam=1\namp_dtype=fp32\n"};
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        for (int k = 0; k < 3; k++) {
            network *net = parse(keys[k], layers), *other = parse(keys[k], layers);
            steps(net, 2);
            steps(other, 2);
            bad_step(net);
            CHECK_SAME(net, other);
            CHECK_INT(step_of(net)->scaler.skipped, 1);
            CHECK_INT(*net->t, 2);
            *net->seen = *other->seen; /* for the same images */
            steps(net, 3);
            steps(other, 3);
            CHECK_SAME(net, other);
            CHECK_INT(*net->t, 5);
            free_network(net);
            free_network(other);
        }
    }
}

/* ---- learning rates ---- */

/* Each moves the rate in every one of these steps; onecycle momentum too, and B1 of adamw. */
static const char *const schedules[] = {
    MIXED "policy=cosine\nmax_batches=9\n",
    MIXED "policy=cosine\nmax_batches=9\nburn_in=6\noptimizer=lamb\n",
    MIXED "policy=sgdr\nsgdr_cycle=5\nmax_batches=9\n",
    MIXED "policy=onecycle\nmax_batches=9\n",
    MIXED "policy=onecycle\nmax_batches=9\noptimizer=adamw\n",
    MIXED "policy=cyclic\ncyclic_step=7\n",
};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

static void check_rate(network *net, const network *other)
{
    const struct amp_session *s = amp_session_of(net->layers);
    size_t iteration = *net->seen / (size_t)(net->batch * net->subdivisions);
    double rate = amp_schedule_rate(&s->options.schedule, s->own_rate.learning_rate, iteration);
    CHECK(net->learning_rate == (float)rate);
    CHECK(net->learning_rate == other->learning_rate && net->momentum == other->momentum);
    CHECK(net->B1 == other->B1);
}

/* The iteration is counted, as without the skip; nothing else is. other: never had it. */
AMP_TEST(a_skipped_step_leaves_no_trace_in_a_schedule)
{
    for (int k = 0; k < SCHEDULES; k++) {
        const char *layers = both_nets[k % 2];
        network *net = parse(schedules[k], layers), *other = parse(schedules[k], layers);
        steps(net, 2);
        steps(other, 2);
        float before = net->learning_rate;
        bad_step(net);
        CHECK_INT(step_of(net)->scaler.skipped, 1);
        CHECK_SAME(net, other);
        *other->seen = *net->seen; /* for the same images, and the same iteration */
        for (int i = 0; i < 4; i++) {
            steps(net, 1);
            steps(other, 1);
            check_rate(net, other);
            CHECK(net->learning_rate != before);
            CHECK_SAME(net, other);
        }
        free_network(net);
        free_network(other);
    }
}

/* ---- a layer that overflows in the middle of a run ---- */

static void scale_layer(network *net, int i, float factor)
{
    layer *l = &net->layers[i];
    int n = l->type == CONNECTED ? l->inputs * l->outputs : l->nweights;
    if (l->type == LOCAL) n = l->c * l->size * l->size * l->outputs;
    for (int k = 0; k < n; k++)
        l->weights[k] *= factor;
}

static int demotions(network *net)
{
    int n = 0;
    for (int i = 0; i < net->n; i++)
        n += amp_session_of(net->layers)->demoted[i] != AMP_FORMATS;
    return n;
}

/* As if the layer had left FP16 before. */
static void demote_by_hand(network *net, int i)
{
    struct amp_session *s = amp_session_of(net->layers);
    s->demoted[i] = AMP_FORMAT_FP32;
    s->replan = true;
}

static void check_demotion(const char *keys, const char *layers, int i)
{
    char line[200];
    network *net = parse(keys, layers), *twin = parse(keys, layers);
    listen_to(net);
    steps(net, 2);
    scale_layer(net, i, 1e6f); /* batch-norm follows, so FP32 can go on */
    network *before = plain_copy(net, strstr(keys, "adam") ? "adam=1\n" : "", layers);
    steps(net, 1);
    CHECK_SAME(net, before);
    CHECK_INT(step_of(net)->scaler.skipped, 1);
    CHECK_NEAR(step_of(net)->scaler.scale, 256, 0);
    CHECK_INT(amp_session_of(net->layers)->demoted[i], AMP_FORMAT_FP32);
    CHECK_INT(demotions(net), 1);
    snprintf(line, sizeof line, "of layer %d (%s) does not fit FP16", i,
             amp_layer_type_name(amp_session_of(net->layers)->graph->nodes[i].desc->type));
    if (!strstr(said(net), line)) TEST_FAIL("\"%s\" is not in: %s", line, said(net));
    CHECK(strstr(said(net), "step skipped; this layer continues in FP32") != NULL);
    copy_kept(net, twin);
    demote_by_hand(twin, i);
    steps(net, 3);
    steps(twin, 3);
    CHECK_SAME(net, twin);
    CHECK_INT(*net->t, 5);
    CHECK_INT(step_of(net)->scaler.skipped, 1);
    CHECK_INT(amp_session_of(net->layers)->plan->layers[i].in, AMP_FORMAT_FP32);
    CHECK(isfinite(distance(net, before, "weights")) && !is_same(net, before));
    stop_listening(net);
    free_network(net);
    free_network(twin);
    free_network(before);
}

#define LOCAL_NET                                                                                  \
    CONV(6, NORMALIZED "stride=2\n")                                                               \
    LOCAL_LAYER(4, "stride=2\n")                                                                   \
    "[batchnorm]\n[connected]\noutput=5\nactivation=linear\n[cost]\n"

AMP_TEST(a_layer_that_overflows_in_forward_goes_on_in_fp32)
{
    static const char keys[] = MIXED "loss_scale=256\n";
    static const char adam[] = MIXED "loss_scale=256\nadam=1\n";
    check_demotion(keys, DETECTOR, 0);
    check_demotion(keys, DETECTOR, 2);
    check_demotion(adam, DETECTOR, 7);
    check_demotion(adam, CLASSIFIER, 0);
    check_demotion(keys, CLASSIFIER, 5); /* deconvolutional */
    check_demotion(keys, CLASSIFIER, 7); /* connected */
    check_demotion(keys, LOCAL_NET, 1);
}

/* The second pass: what the first one found is dropped with it. */
AMP_TEST(an_image_that_overflows_in_the_second_pass)
{
    network *net = parse(MIXED, DETECTOR);
    steps(net, 2);
    network *before = plain_copy(net, "", DETECTOR);
    pass(net);
    load_images(net, 1);
    net->input[3] = 1e6f;
    train_network_datum(net);
    CHECK_SAME(net, before);
    CHECK_INT(amp_session_of(net->layers)->demoted[0], AMP_FORMAT_FP32);
    steps(net, 1);
    CHECK_INT(step_of(net)->scaler.applied, 3);
    free_network(net);
    free_network(before);
}

/* Darknet's losses compute an index from a label, of whatever image of the pass it is: they get
 * none of them. */
AMP_TEST(of_a_pass_with_a_bad_label_no_label_is_left)
{
    network *net = parse(MIXED, DETECTOR);
    for (int image = 0; image < net->batch; image++) {
        load_images(net, 3);
        net->truth[image * net->truths] = NAN;
        train_network_datum(net);
        for (int i = 0; i < net->batch * net->truths; i++)
            CHECK(net->truth[i] == 0);
    }
    CHECK_INT(step_of(net)->scaler.skipped, net->batch / net->subdivisions);
    free_network(net);
}

/* ---- a step that begins in its middle ---- */

/* seen: 8 images are a step, 4 a pass; 5 is no multiple of either. */
static void check_middle(const char *layers, size_t seen)
{
    network *net = parse(MIXED "amp_dtype=fp32\n", layers), *plain = parse("", layers);
    *net->seen = *plain->seen = seen;
    for (int i = 0; i < 7; i++) {
        pass(net);
        pass(plain);
        /* the first step has one pass, and its loss is that of the pass */
        if (i == 0) CHECK_NEAR(amp_last_loss(net), *net->cost / (float)net->batch, 1e-6);
        /* within a step, Darknet's momentum holds the gradients so far; ours are elsewhere */
        if (step_of(net)->passes == 0) check_near_plain(net, plain, STEPS_TOLERANCE);
        CHECK_INT(*net->t, *plain->t);
    }
    CHECK(*net->t >= 3);
    free_network(net);
    free_network(plain);
}

AMP_TEST(a_run_that_begins_in_the_middle_of_a_step_is_darknets)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        check_middle(layers, 4);
        check_middle(layers, 5);
        check_middle(layers, 8 * 7 + 4);
    }
}

AMP_TEST(a_step_that_begins_in_its_middle_and_fails_leaves_no_trace)
{
    const char *layers;
    ON_BOTH_NETS(layers)
    {
        network *net = parse(MIXED, layers), *fresh = parse("", layers);
        *net->seen = 4;
        load_images(net, 4);
        net->input[0] = NAN;
        train_network_datum(net);
        CHECK_SAME(net, fresh);
        CHECK_INT(step_of(net)->scaler.skipped, 1);
        *net->seen = 12;
        pass(net);
        CHECK_INT(*net->t, 1);
        CHECK(isfinite(distance(net, fresh, "weights")) && !is_same(net, fresh));
        free_network(net);
        free_network(fresh);
    }
}

/* ---- divergence ---- */

AMP_TEST(a_huge_learning_rate_is_called_by_its_name)
{
    network *net = parse(MIXED "learning_rate=1000\n", DETECTOR);
    listen_to(net);
    step_of(net)->stop = stop;
    if (!setjmp(stopped)) steps(net, 20);
    const char *told = strstr(said(net), "look like divergence; lower learning_rate");
    CHECK(told && !strstr(told + 1, "look like divergence"));
    stop_listening(net);
    free_network(net);
}

/* An FP16 copy is read by one layer, the original by another: only the first one has to leave FP16.
 */
AMP_TEST(a_copy_that_does_not_fit_takes_its_readers_out_of_fp16)
{
    static const char both[] =
        CONV(4, "mixed_precision=0\n") CONV(4, "") "[route]\nlayers=0\n" CONV(
            4, "mixed_precision=0\n") "[shortcut]\nfrom=1\nactivation=linear\n" CONV(4,
                                                                                     "") "[cost]\n";
    network *net = parse(MIXED, both);
    steps(net, 1);
    struct amp_session *s = amp_session_of(net->layers);
    const struct amp_fault fault = {AMP_FAULT_FORWARD, 0, AMP_WATCH_COPY, 1e5};
    CHECK_INT(s->plan->layers[1].in, AMP_FORMAT_FP16);
    CHECK(s->plan->layers[0].copy[AMP_FORMAT_FP16] >= 0);
    amp_session_demote(s, &fault);
    for (int i = 0; i < net->n; i++)
        CHECK_INT(s->demoted[i], i == 1 ? AMP_FORMAT_FP32 : AMP_FORMATS);
    steps(net, 1);
    CHECK_INT(s->plan->layers[0].copy[AMP_FORMAT_FP16], -1);
    free_network(net);
}

/* What left FP16 in training is out of it in inference too; the other way round it is not. */
AMP_TEST(inference_takes_over_what_left_fp16)
{
    static const char two[] = CONV(4, "") CONV(4, "") CONV(4, "") "[cost]\n";
    network *net = parse(MIXED, two);
    struct amp_session *s = amp_session_of(net->layers);
    s->demoted[0] = s->inference_demoted[1] = AMP_FORMAT_FP32;
    s->replan = s->inference_demotes = true;
    steps(net, 1);
    CHECK_INT(s->plan->layers[0].in, AMP_FORMAT_FP32);
    CHECK_INT(s->plan->layers[1].in, AMP_FORMAT_FP16);
    predict(net);
    CHECK_INT(s->plan->layers[0].in, AMP_FORMAT_FP32);
    CHECK_INT(s->plan->layers[1].in, AMP_FORMAT_FP32);
    CHECK_INT(s->plan->layers[2].in, AMP_FORMAT_FP16);
    steps(net, 1);
    CHECK_INT(s->plan->layers[1].in, AMP_FORMAT_FP16);
    free_network(net);
}

/* Every layer can leave FP16, the last one too: by itself, and as the reader of a copy. */
AMP_TEST(the_last_layer_leaves_fp16_as_any_other)
{
    static const char two[] = CONV(4, "mixed_precision=0\n") CONV(4, "");
    for (int copy = 0; copy < 2; copy++)
        for (int train = 0; train < 2; train++) {
            network *net = parse(MIXED, two);
            struct amp_session *s = amp_session_of(net->layers);
            predict(net);
            REQUIRE(s->plan->layers[1].in == AMP_FORMAT_FP16);
            const struct amp_fault fault = {AMP_FAULT_FORWARD, !copy,
                                            copy ? AMP_WATCH_COPY : AMP_WATCH_Y, 1e5};
            if (train)
                amp_session_demote(s, &fault);
            else
                amp_session_demote_inference(s, &fault);
            CHECK_INT(s->demoted[1], train ? AMP_FORMAT_FP32 : AMP_FORMATS);
            CHECK_INT(s->inference_demoted[1], train ? AMP_FORMATS : AMP_FORMAT_FP32);
            CHECK_INT(s->demoted[0], AMP_FORMATS);
            CHECK_INT(s->inference_demoted[0], AMP_FORMATS);
            predict(net);
            CHECK_INT(s->plan->layers[1].in, AMP_FORMAT_FP32);
            free_network(net);
        }
}

AMP_TEST_MAIN
