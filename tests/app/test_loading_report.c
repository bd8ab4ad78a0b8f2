/* What `amp bench-loader` says of given times: cores, verdict and advice. */
#include "tests/rig/harness.h"

#include "plugin/app/loading.h"

#include <stdlib.h>
#include <string.h>

/* 100 images in 0.1 s; an image takes a core 10 ms by Darknet's way, 3 ms by ours: 10 cores and 3.
 */
static struct amp_loading example(void)
{
    struct amp_loading l = {.data = "a.data",
                            .cfg = "a.cfg",
                            .width = 416,
                            .height = 320,
                            .listed = 1000,
                            .images = 300,
                            .darknet = 10e-3,
                            .stages = {.1e-3, 1.8e-3, 1e-3, .1e-3, 0},
                            .loader = AMP_LOADER_FAST,
                            .cores = 8,
                            .threads = 8,
                            .precision = "fp16",
                            .step_images = 100,
                            .step = .1,
                            .passes = 3};
    l.machine.backend = "cuda";
    strcpy(l.machine.device, "a GPU");
    return l;
}

static const char *said(const struct amp_loading *l)
{
    static char text[4096];
    FILE *f = fmemopen(text, sizeof text, "w");
    REQUIRE(f);
    amp_loading_print(l, f);
    fclose(f);
    return text;
}

AMP_TEST(keeps_up)
{
    struct amp_loading l = example();
    CHECK_NEAR(amp_loading_cores(&l, amp_loading_ours(&l)), 3, 1e-9);
    CHECK_NEAR(amp_loading_cores(&l, l.darknet), 10, 1e-9);
    CHECK(amp_loading_keeps_up(&l));
    CHECK_SAYS(said(&l), "\nLoading keeps up: it takes 3.0 of the 8 cores that load.\n");
    CHECK_SAYS(said(&l), "all 8 cores (computed: one core times 8): Darknet 800 images/s, "
                         "darknet-amp 2667\n");
    CHECK_SAYS(said(&l), "left to Darknet: 0 of 300 images\n");
}

/* There it takes from what trains. */
AMP_TEST(on_the_cpu)
{
    struct amp_loading l = example();
    l.machine.device[0] = 0;
    l.step = .15;
    CHECK_SAYS(said(&l), "which train too: it adds about 25 % to a step.\n");
}

AMP_TEST(waits)
{
    struct amp_loading l = example();
    l.threads = 2;
    l.threads_given = true;
    CHECK(!amp_loading_keeps_up(&l));
    CHECK_SAYS(said(&l), "\nTraining will wait for images: they take 3.0 cores, and 2 load: raise "
                         "amp_loader_threads=2, there are 8 cores.\n");
    l.threads = 16; /* more than cores help nothing */
    l.cores = 2;
    CHECK(!amp_loading_keeps_up(&l));
    CHECK_SAYS(said(&l),
               "and 2 load: shrink the image files (darknet amp shrink), or use more cores.\n");
    l.left[AMP_KIND_PNG] = 150;
    l.left[AMP_KIND_OTHER] = 50;
    CHECK_SAYS(said(&l), "left to Darknet: 200 of 300 images: 150 PNG, 50 other\n");
    CHECK_SAYS(said(&l), "convert the images to JPEG, or use more cores.\n");
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
