/* A classifier's images by the path of our own, against Darknet's on the same random stream: the
 * same draws, truths to the bit, pixels within 5e-4. */
#define _GNU_SOURCE
#include "tests/rig/harness.h"
#include "tests/rig/picture_files.h"

#include "plugin/attach/feed/classification.h"
#include "plugin/images/turn_rows.h"

#include "darknet.h"
#include "data.h"
#include "image.h"

enum { CASES = 600, CLASSES = 3 };

static char *labels[CLASSES] = {"/none/", "pic", "/other/"};

static load_args random_arguments(void)
{
    static char *paths[1] = {image_path};
    int size = between(1, 16) * 16;
    load_args a = {.paths = paths,
                   .n = 1,
                   .m = 1,
                   .size = size,
                   .w = size,
                   .h = size,
                   .min = size / between(1, 3),
                   .max = size * between(1, 3),
                   .aspect = 1,
                   .saturation = 1,
                   .exposure = 1,
                   .labels = labels,
                   .classes = CLASSES,
                   .type = CLASSIFICATION_DATA};
    if (between(0, 1)) a.angle = (float)test_uniform(0, 180);
    if (between(0, 1)) a.aspect = (float)test_uniform(1, 2);
    if (between(0, 2)) a.hue = (float)test_uniform(0, .5);
    if (between(0, 2)) a.saturation = (float)test_uniform(1, 2);
    if (between(0, 2)) a.exposure = (float)test_uniform(1, 2);
    return a;
}

static bool load(load_args a, bool ours, unsigned seed, data *d, int *next)
{
    static const struct amp_image_loader loader;
    a.d = d;
    srand(seed);
    bool loaded = ours ? amp_classification_load(&loader, &a) : true;
    if (!ours) load_data_blocking(a);
    *next = rand();
    return loaded;
}

static struct {
    long pixels, off;
    double sum;
} seen;

/* Darknet makes magenta of a hue of exactly 1, where red is meant: that is rare. */
static void compare(const load_args *a, data ours, data darknets)
{
    int plane = a->size * a->size;
    CHECK_INT(ours.w, darknets.w);
    CHECK_INT(ours.h, darknets.h);
    REQUIRE(ours.X.rows == 1 && ours.X.cols == darknets.X.cols && ours.X.cols == 3 * plane);
    REQUIRE(ours.y.rows == 1 && ours.y.cols == CLASSES && darknets.y.cols == CLASSES);
    CHECK(!memcmp(ours.y.vals[0], darknets.y.vals[0], CLASSES * sizeof(float)));
    const float *x = ours.X.vals[0], *y = darknets.X.vals[0];
    for (int i = 0; i < 3 * plane; i++) {
        double error = fabs((double)x[i] - (double)y[i]);
        seen.pixels++;
        seen.off += !(error <= 5e-4);
        seen.sum += error;
    }
}

static bool compare_a_case(void)
{
    load_args a = random_arguments();
    unsigned seed = (unsigned)test_random();
    data ours, darknets;
    int next[2];
    load(a, false, seed, &darknets, &next[0]);
    bool mine = load(a, true, seed, &ours, &next[1]);
    if (mine) {
        CHECK_INT(next[1], next[0]);
        compare(&a, ours, darknets);
        free_data(ours);
    } else { /* nothing was drawn */
        srand(seed);
        CHECK_INT(next[1], rand());
    }
    free_data(darknets);
    return mine;
}

AMP_TEST(random_cases)
{
    name_files("pic", "jpg");
    memset(&seen, 0, sizeof seen);
    for (int i = 0; i < CASES && test_failures < 5; i++) {
        int w, h;
        random_size(&w, &h);
        bool mine = write_case(i % 10, w, h);
        CHECK(compare_a_case() == mine);
    }
    printf("%ld numbers, mean error %.2g, %ld above 5e-4\n", seen.pixels,
           seen.sum / (double)seen.pixels, seen.off);
    CHECK(seen.sum / (double)seen.pixels <= 5e-6);
    CHECK((double)seen.off <= 1e-3 * (double)seen.pixels);
}

/* What only Darknet does. */
AMP_TEST(a_cut_of_the_middle_is_left_to_darknet)
{
    data d;
    int next;
    name_files("pic", "jpg");
    write_case(0, 40, 30);
    load_args a = random_arguments();
    a.center = 1;
    CHECK(!load(a, true, 1, &d, &next));
}

static bool is_supported(amp_turn_function *function)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (function == amp_turn_avx2) return __builtin_cpu_supports("avx2");
    if (function == amp_turn_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
    return function == amp_turn_base;
}

/* All give the same bits. */
AMP_TEST(instruction_sets_agree)
{
    static amp_turn_function *const functions[] = {
#ifdef __x86_64__
        amp_turn_avx2, amp_turn_avx512,
#endif
        amp_turn_base};
    struct amp_pixels image = {0};
    for (int round = 0; round < 40; round++) {
        REQUIRE(amp_pixels_resize(&image, between(1, 90), between(1, 90)));
        for (int i = 0; i < image.w * image.h * 3; i++)
            image.bytes[i] = (uint8_t)test_random();
        struct amp_turn t = {.w = between(1, 70), .h = between(1, 70), .flip = between(0, 1)};
        t.left = test_uniform(-20, 40);
        t.top = test_uniform(-20, 40);
        for (int i = 0; i < 2; i++) {
            t.across[i] = test_uniform(-2, 2);
            t.down[i] = test_uniform(-2, 2);
        }
        t.colours = (struct amp_colours){(float)test_uniform(-.5, .5), (float)test_uniform(.5, 2),
                                         (float)test_uniform(.5, 2)};
        size_t n = (size_t)t.w * (size_t)t.h * 3;
        float *base = calloc(n, sizeof *base), *other = calloc(n, sizeof *other);
        REQUIRE(base && other);
        amp_turn_base(&image, &t, base);
        for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
            if (!is_supported(functions[k])) continue;
            memset(other, 0xff, n * sizeof *other);
            functions[k](&image, &t, other);
            CHECK(!memcmp(base, other, n * sizeof *base));
        }
        free(base);
        free(other);
    }
    free(image.bytes);
}

AMP_TEST_MAIN
