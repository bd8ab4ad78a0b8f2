/* Batches that go to the device ahead of their pass, in a GPU build of Darknet on an emulated
 * device (test_device_training.c). A run gets the same weights, to the last bit, as one whose
 * images go through net->input. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"
#include "tests/rig/small_set.h"

#include "amp.h"
#include "plugin/attach/feed/batches.h"
#include "tests/emulation/darknet_device.h"
#include "tests/emulation/emulation.h"

#include <math.h>

#define SEEDED MIXED "loss_scale=64\nseed=7\nbatch=4\n"
#define SMALL  CONV(4, NORMALIZED "stride=2\n") YOLO("0,1")

static load_args arguments(const network *net, data *d)
{
    layer head = net->layers[net->n - 1];
    return (load_args){.type = DETECTION_DATA,
                       .paths = box_paths,
                       .n = net->batch * net->subdivisions,
                       .m = SMALL_SET_IMAGES,
                       .classes = 2,
                       .w = net->w,
                       .h = net->h,
                       .num_boxes = head.max_boxes,
                       .jitter = .2f,
                       .threads = 3,
                       .d = d};
}

/* What happens to a batch between loading and training. */
enum event { NOTHING, CHANGED, PATCHED, SHUFFLED, NOT_FINITE, DEMOTED, THROWN_AWAY, RESIZED };

struct run {
    network *net;
    bool staged; /* else its images go through net->input */
    pthread_t loading;
    data next;
    int outdated; /* batches in hand that were staged for another plan */
};

static void load_run(struct run *r)
{
    r->loading = load_data(arguments(r->net, &r->next));
}

static struct run start(const char *keys, bool staged)
{
    gpu_index = 0;
    struct run r = {.net = parse(keys, SMALL), .staged = staged};
    return r;
}

static data receive(struct run *r)
{
    pthread_join(r->loading, NULL);
    return r->next;
}

static void finish(struct run *r)
{
    data last = receive(r);
    free_data(last);
}

/* As train_network does it; but that function alone uses staged images. */
static void train_through_input(network *net, data d)
{
    for (int i = 0; i < net->subdivisions; i++) {
        get_next_batch(d, net->batch, i * net->batch, net->input, net->truth);
        train_network_datum(net);
    }
}

static const float untouched = -7;

static void suffer(struct run *r, data *batch, enum event event)
{
    struct amp_session *s = amp_session_of(r->net->layers);
    if (event == CHANGED)
        for (int k = 0; k < batch->X.rows; k++)
            scale_array(batch->X.vals[k], batch->X.cols, .5f);
    if (event == PATCHED) /* 3 % of an image */
        for (int y = 4; y < 9; y++)
            memset(batch->X.vals[1] + 16 * y + 6, 0, 5 * sizeof(float));
    if (event == SHUFFLED) {
        float *first = batch->X.vals[0];
        batch->X.vals[0] = batch->X.vals[1];
        batch->X.vals[1] = first;
    }
    if (event == NOT_FINITE) batch->X.vals[0][0] = NAN;
    if (event == DEMOTED) {
        s->demoted[0] = AMP_FORMAT_FP32;
        s->replan = true;
        r->outdated = 2;
    }
    if (event == THROWN_AWAY || event == RESIZED) {
        free_data(*batch);
        finish(r);
        if (event == RESIZED) resize_network(r->net, 32, 32);
        load_run(r);
        *batch = receive(r);
        load_run(r);
    }
}

static void step(struct run *r, enum event event)
{
    data batch = receive(r);
    load_run(r);
    suffer(r, &batch, event);
    if (r->staged) {
        r->net->input[0] = untouched;
        train_network(r->net, batch);
        bool as_loaded = event == NOTHING || event >= DEMOTED;
        bool staged = as_loaded && r->outdated-- <= 0;
        CHECK_INT(r->net->input[0] == untouched, staged);
    } else {
        train_through_input(r->net, batch);
    }
    free_data(batch);
}

static void check_run(const char *keys, enum event event)
{
    struct run r[] = {start(keys, true), start(keys, false)};
    for (int i = 0; i < 2; i++) { /* one after the other: a thread loads for one network */
        amp_batches_follow(r[i].net, &(uint64_t){7});
        load_run(&r[i]);
        for (int k = 0; k < 5; k++)
            step(&r[i], k == 2 ? event : NOTHING);
        finish(&r[i]);
    }
    CHECK_SAME(r[0].net, r[1].net);
    for (int i = 0; i < 2; i++)
        free_network(r[i].net);
    CHECK_INT(darknet_device_page_locked(), 0);
}

/* Kernels of ours that the last steps start, each of one pass. */
static size_t count_launches(bool staged)
{
    struct run r = start("subdivisions=1\n" SEEDED, staged);
    size_t before = 0;
    emulation_allow_recordings(false); /* each launch counts when it runs */
    amp_batches_follow(r.net, &(uint64_t){7});
    load_run(&r);
    for (int k = 0; k < 8; k++) {
        if (k == 2) before = emulation_launches();
        step(&r, NOTHING);
    }
    size_t launched = emulation_launches() - before;
    finish(&r);
    free_network(r.net);
    emulation_allow_recordings(true);
    return launched;
}

/* The first layer reads the images where they were copied to: nothing converts them. */
AMP_TEST(staged_images_need_no_launch)
{
    CHECK_INT(count_launches(true) + 6, count_launches(false));
}

static void check_event(enum event event)
{
    for (int late = 0; late < 2; late++) {
        darknet_device_delay(late);
        check_run(SEEDED, event);
        check_run("subdivisions=1\n" SEEDED, event);
    }
    darknet_device_delay(false);
}

AMP_TEST(it_trains_as_through_the_input)
{
    check_event(NOTHING);
    check_run("amp_dtype=bf16\n" SEEDED, NOTHING);
    check_run("amp_dtype=fp32\n" SEEDED, NOTHING);
    check_run("batch=6\nsubdivisions=3\n" SEEDED, NOTHING);
}

AMP_TEST(a_batch_that_was_changed_after_loading_counts_as_it_is)
{
    check_event(CHANGED);
    check_run(SEEDED, PATCHED);
    check_run(SEEDED, SHUFFLED);
}

AMP_TEST(an_image_that_is_not_finite_is_found)
{
    check_event(NOT_FINITE);
}

AMP_TEST(a_first_layer_that_leaves_fp16_gets_all_of_its_images)
{
    check_event(DEMOTED);
}

AMP_TEST(a_batch_that_nobody_trains_on_is_forgotten)
{
    check_event(THROWN_AWAY);
    check_event(RESIZED);
}

/* Every image is copied once, and the next batch's first ones as soon as they are loaded. */
static void check_copies(const char *keys)
{
    enum { STEPS = 4 };
    struct run r = start(keys, true);
    long before = darknet_device_asynchronous();
    load_run(&r);
    for (int k = 0; k < STEPS; k++)
        step(&r, NOTHING);
    data last = receive(&r);
    CHECK_INT(darknet_device_asynchronous() - before, STEPS * r.net->subdivisions + 1);
    CHECK(darknet_device_page_locked() > 0);
    free_data(last);
    free_network(r.net);
    CHECK_INT(darknet_device_page_locked(), 0);
}

AMP_TEST(images_are_copied_once_and_ahead)
{
    check_copies(SEEDED);
    check_copies("subdivisions=1\n" SEEDED);
    check_copies("batch=6\nsubdivisions=3\n" SEEDED);
}

/* A program that never trains on its batches as they were loaded. */
AMP_TEST(images_are_not_staged_in_vain)
{
    struct run r = start(SEEDED, false);
    load_run(&r);
    for (int k = 0; k < 4; k++) {
        step(&r, NOTHING);
        CHECK(darknet_device_page_locked() > 0);
    }
    finish(&r);
    long before = darknet_device_asynchronous();
    r.staged = true;
    load_run(&r);
    data batch = receive(&r);
    r.net->input[0] = untouched;
    train_network(r.net, batch);
    CHECK(r.net->input[0] != untouched);
    CHECK_INT(darknet_device_asynchronous() - before, r.net->subdivisions);
    free_data(batch);
    free_network(r.net);
}

AMP_TEST_MAIN
