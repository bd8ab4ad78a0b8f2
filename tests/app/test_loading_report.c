/* What `amp profile CFG DATA` says of given times of loading: cores, verdict and advice. */
#include "tests/rig/harness.h"

#include "plugin/app/loading.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 100 images in 0.1 s; an image takes a core 10 ms by Darknet's way, 3 ms by ours: 10 cores and 3.
 */
static struct amp_machine machine;
static struct amp_loading example(void)
{
    struct amp_loading l = {.data = "a.data",
                            .width = 416,
                            .height = 320,
                            .listed = 1000,
                            .images = 300,
                            .darknet = 10e-3,
                            .stages = {.1e-3, 1.8e-3, 1e-3, .1e-3, 0},
                            .batch = 80e-3,
                            .loader = AMP_LOADER_FAST,
                            .cores = 8,
                            .threads = 8,
                            .precision = "fp16",
                            .step_images = 100,
                            .step = .1,
                            .passes = 3};
    machine = (struct amp_machine){.backend = "cuda", .device = "a GPU"};
    l.machine = &machine;
    return l;
}

static FILE *begin(char text[4096])
{
    FILE *f = fmemopen(text, 4096, "w");
    REQUIRE(f);
    return f;
}

static const char *said(const struct amp_loading *l)
{
    static char text[4096];
    FILE *f = begin(text);
    amp_loading_print(l, f);
    fclose(f);
    return text;
}

static const char *said_in_json(const struct amp_loading *l)
{
    static char text[4096];
    struct amp_json j = {.out = begin(text), .digits = AMP_JSON_FLOAT};
    amp_loading_write_json(l, &j, NULL);
    fclose(j.out);
    return text;
}

/* What both reports have in the middle. */
#define STAGES_AND_BATCH                                                                           \
    "  read the file                        0.10      2%\n"                                        \
    "  decode                               1.80     36%\n"                                        \
    "  place and distort                    1.00     20%\n"                                        \
    "  labels                               0.10      2%\n"                                        \
    "  left to Darknet                      2.00     40%\n"                                        \
    "a batch of 100 images on 8 threads, by the clock: 1250.0 images/s\n"

AMP_TEST(every_word_and_number)
{
    static const char text[] =
        "\n"
        "loading: a.data: 300 of 1000 images, to 416x320\n"
        "time on a core, median of 3 rounds of each image\n"
        "\n"
        "one core              images/s  ms an image   share\n"
        "Darknet                  100.0        10.00\n"
        "darknet-amp              200.0         5.00         2.0x\n" STAGES_AND_BATCH
        "left to Darknet: 23 of 300 images: 20 PNG, 3 other\n"
        "a training step: 100 images in 0.1 s, 1000.0 images/s (fp16, a GPU; fastest of 3 passes)\n"
        "loading its images takes 5.0 cores, by Darknet's way 10\n"
        "\n"
        "Loading keeps up: it takes 5.0 of the 8 cores that load.\n";
    static const char json[] =
        "{\"data\": \"a.data\", \"width\": 416, \"height\": 320, \"random\": false,\n"
        " \"listed\": 1000, \"images\": 300, \"rounds\": 3,\n"
        " \"images_per_second\": {\"darknet\": 100, \"amp\": 200}, "
        "\"images_per_second_batch\": 1250,\n"
        " \"stages\": [\n"
        "  {\"stage\": \"read\", \"milliseconds\": 0.1, \"share\": 0.02},\n"
        "  {\"stage\": \"decode\", \"milliseconds\": 1.8, \"share\": 0.36},\n"
        "  {\"stage\": \"place\", \"milliseconds\": 1, \"share\": 0.2},\n"
        "  {\"stage\": \"labels\", \"milliseconds\": 0.1, \"share\": 0.02},\n"
        "  {\"stage\": \"darknet\", \"milliseconds\": 2, \"share\": 0.4}],\n"
        " \"left_to_darknet\": [{\"kind\": \"PNG\", \"images\": 20}, {\"kind\": \"other\", "
        "\"images\": 3}],\n"
        " \"step\": {\"backend\": \"cuda\", \"device\": \"a GPU\", \"threads\": 0, \"precision\": "
        "\"fp16\", \"images\": 100, \"passes\": 3, \"seconds\": 0.1},\n"
        " \"cores_needed\": {\"darknet\": 10, \"amp\": 5},\n"
        " \"loader\": \"fast\", \"loader_threads\": 8, \"cores\": 8, \"keeps_up\": true}";
    struct amp_loading l = example();
    l.left[AMP_KIND_PNG] = 20;
    l.left[AMP_KIND_OTHER] = 3;
    l.stages[AMP_LOAD_DARKNET] = 2e-3;
    CHECK_STR(said(&l), text);
    CHECK_STR(said_in_json(&l), json);
    machine.device[0] = '\0';
    machine.threads = 4;
    l.random_size = true;
    l.loader = AMP_LOADER_DARKNET;
    CHECK_SAYS(said(&l), " images/s (fp16, CPU, 4 threads; fastest of 3 passes)\n");
    CHECK_SAYS(said_in_json(&l), "\"height\": 320, \"random\": true,");
    CHECK_SAYS(said_in_json(&l), "\"device\": null, \"threads\": 4,");
    CHECK_SAYS(said_in_json(&l), "\"loader\": \"darknet\", \"loader_threads\": 8, \"cores\": 8, "
                                 "\"keeps_up\": false}");
}

AMP_TEST(keeps_up)
{
    struct amp_loading l = example();
    CHECK_NEAR(amp_loading_cores(&l, amp_loading_ours(&l)), 3, 1e-9);
    CHECK_NEAR(amp_loading_cores(&l, l.darknet), 10, 1e-9);
    CHECK(amp_loading_keeps_up(&l));
    CHECK_SAYS(said(&l), "\nLoading keeps up: it takes 3.0 of the 8 cores that load.\n");
    CHECK_SAYS(said(&l), "left to Darknet: 0 of 300 images\n");
}

/* There it takes from what trains. */
AMP_TEST(on_the_cpu)
{
    struct amp_loading l = example();
    machine.device[0] = 0;
    l.step = .15;
    CHECK_SAYS(said(&l), "which train too: it adds about 25 % to a step.\n");
}

AMP_TEST(waits)
{
    struct amp_loading l = example();
    l.threads = 1;
    CHECK_SAYS(said(&l), "a batch of 100 images on 1 thread, by the clock: ");
    CHECK(!strstr(said(&l), "amp_image_cache"));
    l.cache = 1;
    CHECK_SAYS(said(&l), " images/s, all loaded before (amp_image_cache), as after the first epoch "
                         "if it holds the set\n");
    l.threads = 2;
    l.threads_given = true;
    CHECK(!amp_loading_keeps_up(&l));
    CHECK_SAYS(said(&l), "\nTraining will wait for images: they take 3.0 cores, and 2 load: raise "
                         "amp_loader_threads=2, there are 8 cores.\n");
    l.threads = 16; /* more than cores help nothing */
    l.cores = 2;
    CHECK(!amp_loading_keeps_up(&l));
    CHECK_SAYS(said(&l),
               "and 2 load: shrink the image files (scripts/shrink), or use more cores.\n");
    l.left[AMP_KIND_PNG] = 150;
    l.left[AMP_KIND_OTHER] = 50;
    CHECK_SAYS(said(&l), "left to Darknet: 200 of 300 images: 150 PNG, 50 other\n");
    CHECK_SAYS(said(&l), "convert the images to JPEG, or use more cores.\n");
}

/* Darknet has no way to compare with. */
AMP_TEST(by_alexeyabs_rules)
{
    struct amp_loading l = example();
    l.by_fork = true;
    l.darknet = NAN;
    l.mixing = "mosaic";
    l.stages[AMP_LOAD_DARKNET] = 2e-3;
    l.left[AMP_KIND_PNG] = 20;
    CHECK_SAYS(said(&l),
               "\n"
               "loading: a.data: 300 of 1000 images, to 416x320, half of them made of several "
               "(mosaic)\n"
               "time on a core, median of 3 rounds of each image\n"
               "\n"
               "one core              images/s  ms an image   share\n"
               "by AlexeyAB's rules      200.0         5.00\n" STAGES_AND_BATCH
               "left to Darknet: 20 of 300 images: 20 PNG\n");
    CHECK_SAYS(said(&l), "\nloading its images takes 5.0 cores\n\nLoading keeps up: ");
    CHECK_SAYS(said_in_json(&l), "\"images_per_second\": {\"darknet\": null, \"amp\": 200}");
    CHECK_SAYS(said_in_json(&l), "\"cores_needed\": {\"darknet\": null, \"amp\": 5}");
    CHECK_SAYS(said_in_json(&l), "\"loader\": \"fork\", \"loader_threads\": 8,");
}

AMP_TEST(by_darknets_way)
{
    struct amp_loading l = example();
    l.loader = AMP_LOADER_DARKNET;
    CHECK(!amp_loading_keeps_up(&l));
    CHECK_SAYS(said(&l), "they take 10 cores, and 8 load: amp_loader=fast instead of darknet takes "
                         "3.0.\n");
    l.step = .2;
    CHECK(amp_loading_keeps_up(&l));
    l.step = 1000;
    CHECK_SAYS(said(&l), "it takes less than 0.1 of the 8 cores that load.\n");
}

AMP_TEST_MAIN
