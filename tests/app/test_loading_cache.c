/* Which images `amp profile CFG DATA` loads for its line of a batch by the clock, by the files that
 * are read: with amp_image_cache, each once. */
#include "tests/rig/harness.h"
#include "tests/rig/attached.h"
#include "tests/rig/child.h"

#include "plugin/app/loading.h"
#include "plugin/images/jpeg.h"

#include <stdatomic.h>

enum { IMAGES = 60, BATCH = 8 };

static atomic_int reads;
bool __real_amp_jpeg_file(const char *path, struct amp_jpeg_memory *);
bool __wrap_amp_jpeg_file(const char *path, struct amp_jpeg_memory *);
bool __wrap_amp_jpeg_file(const char *path, struct amp_jpeg_memory *memory)
{
    reads++;
    return __real_amp_jpeg_file(path, memory);
}

static char *paths[IMAGES];

static void write_set(void)
{
    char name[20];
    for (int i = 0; i < IMAGES; i++) {
        snprintf(name, sizeof name, "p%d.txt", i);
        scratch_write(name, "0 .5 .5 .4 .4\n", 14);
        snprintf(name, sizeof name, "p%d.jpg", i);
        paths[i] = strdup(scratch(name));
        REQUIRE(paths[i] && !symlink(AMP_JPEG, paths[i]));
    }
}

/* Reads beside those of the single images, which the cache has no part in. */
static int reads_of_batches(const char *keys, int cache)
{
    char err[300] = "";
    network *net = parse(keys, DETECTOR);
    FILE *progress = fopen("/dev/null", "w");
    struct amp_loading l = {
        .loader = AMP_LOADER_FAST, .cache = cache, .threads = 3, .step_images = BATCH};
    load_args a = {.paths = paths,
                   .m = IMAGES,
                   .w = net->w,
                   .h = net->h,
                   .num_boxes = 90,
                   .classes = 2,
                   .type = DETECTION_DATA,
                   .threads = 3};
    REQUIRE(progress);
    reads = 0;
    REQUIRE(!amp_loading_measure(&l, net, &a, progress, err, sizeof err));
    fclose(progress);
    free_network(net);
    return reads - l.images * AMP_LOAD_ROUNDS;
}

static void without_a_cache(void)
{
    CHECK_INT(reads_of_batches(MIXED, 0), AMP_LOAD_ROUNDS * BATCH);
    _exit(test_failures ? 1 : 0);
}

static void with_a_cache(void)
{
    int n = reads_of_batches(MIXED "amp_image_cache=100\n", 100);
    if (n < 1 || n > BATCH) TEST_FAIL("%d files were read for batches of %d", n, BATCH);
    _exit(test_failures ? 1 : 0);
}

/* A program has one cache. */
AMP_TEST(what_is_timed_was_loaded_before)
{
    write_set();
    CHECK_INT(run(without_a_cache), 0);
    if (test_failures) fputs(text, stderr);
    CHECK_INT(run(with_a_cache), 0);
    if (test_failures) fputs(text, stderr);
    for (int i = 0; i < IMAGES; i++)
        free(paths[i]);
}

AMP_TEST_MAIN
