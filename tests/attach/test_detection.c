/* Detection images by the path of our own, against Darknet's on the same random stream: the same
 * draws, labels to the bit, pixels within 5e-4, decoded bytes as OpenCV has them. */
#define _GNU_SOURCE
#include "tests/rig/harness.h"
#include "tests/rig/files.h"
#include "tests/rig/picture_files.h"

#include "amp.h"
#include "plugin/attach/feed/detection.h"
#include "plugin/attach/feed/loader.h"
#include "plugin/attach/feed/rows.h"
#include "plugin/attach/session.h"
#include "plugin/attach/feed/images.h"
#include "plugin/images/place_rows.h"

#include "darknet.h"
#include "data.h"
#include "image.h"

#include <sys/stat.h>

enum { BOXES = 7, CASES = 1000 };

static void write_labels(void)
{
    FILE *file = fopen(label_path, "w");
    REQUIRE(file);
    for (int n = between(0, BOXES + 3); n > 0; n--)
        fprintf(file, "%d %f %f %f %f\n", between(0, 4), test_uniform(0, 1), test_uniform(0, 1),
                test_uniform(0, 1), test_uniform(0, 1));
    fclose(file);
}

/* ---- the two ways ---- */

struct loaded {
    data data;
    int next; /* drawn after it */
};

static load_args random_arguments(void)
{
    static char *paths[1] = {image_path};
    load_args a = {.paths = paths,
                   .n = 1,
                   .m = 1,
                   .w = between(1, 20) * 16,
                   .h = between(1, 20) * 16,
                   .num_boxes = BOXES,
                   .classes = 5,
                   .type = DETECTION_DATA};
    if (between(0, 1)) a.jitter = (float)test_uniform(0, .5);
    if (between(0, 2)) a.hue = (float)test_uniform(0, .5);
    if (between(0, 2)) a.saturation = (float)test_uniform(1, 2);
    if (between(0, 2)) a.exposure = (float)test_uniform(1, 2);
    return a;
}

static struct amp_image_loader loader;

/* False if this file is left to Darknet: nothing may have been drawn then. */
static bool load_ours(load_args a, unsigned seed, struct loaded *l)
{
    a.d = &l->data;
    srand(seed);
    bool ours = amp_detection_load(&loader, &a);
    l->next = rand();
    return ours;
}

static void load_darknets(load_args a, unsigned seed, struct loaded *l)
{
    a.d = &l->data;
    srand(seed);
    load_data_blocking(a);
    l->next = rand();
}

/* Darknet makes magenta of a hue of exactly 1, where red is meant. */
static bool is_magenta_for_red(float ours[3], float darknets[3])
{
    return fabsf(ours[1] - ours[2]) < 1e-3f && fabsf(darknets[0] - darknets[2]) < 1e-3f &&
           fabsf(ours[0] - darknets[0]) < 1e-3f && fabsf(ours[1] - darknets[1]) < 1e-3f;
}

static struct {
    long pixels, magenta;
    double worst, sum;
} seen;

static void compare(const load_args *a, const struct loaded *ours, const struct loaded *darknets)
{
    int plane = a->w * a->h, wrong = 0;
    CHECK_INT(ours->next, darknets->next);
    CHECK_INT(ours->data.X.rows, 1);
    CHECK_INT(ours->data.y.rows, 1);
    REQUIRE(ours->data.X.cols == darknets->data.X.cols &&
            ours->data.y.cols == darknets->data.y.cols);
    CHECK(!memcmp(ours->data.y.vals[0], darknets->data.y.vals[0], 5 * BOXES * sizeof(float)));
    const float *x = ours->data.X.vals[0], *y = darknets->data.X.vals[0];
    for (int i = 0; i < plane; i++) {
        float mine[3] = {x[i], x[i + plane], x[i + 2 * plane]};
        float its[3] = {y[i], y[i + plane], y[i + 2 * plane]};
        double worst = 0;
        for (int c = 0; c < 3; c++)
            worst = fmax(worst, fabs((double)mine[c] - (double)its[c]));
        seen.pixels++;
        if (worst > 5e-4 && is_magenta_for_red(mine, its)) {
            seen.magenta++;
            continue;
        }
        wrong += !(worst <= 5e-4);
        seen.worst = fmax(seen.worst, worst);
        seen.sum += worst;
    }
    if (wrong) TEST_FAIL("%d of %d pixels are wrong", wrong, plane);
}

static int compare_a_case(void)
{
    load_args a = random_arguments();
    unsigned seed = (unsigned)test_random();
    struct loaded ours = {.next = 0}, darknets;
    write_labels();
    load_darknets(a, seed, &darknets);
    bool read = load_ours(a, seed, &ours);
    if (read) {
        compare(&a, &ours, &darknets);
        free_data(ours.data);
    } else {
        srand(seed);
        CHECK_INT(ours.next, rand());
    }
    free_data(darknets.data);
    return read;
}

/* What is left to Darknet is left before anything is drawn. */
AMP_TEST(random_cases)
{
    int left = 0;
    name_files("a", "jpg");
    memset(&seen, 0, sizeof seen);
    for (int i = 0; i < CASES && test_failures < 5; i++) {
        int w, h, before = test_failures;
        random_size(&w, &h);
        bool mine = write_case(i % 10, w, h);
        CHECK(compare_a_case() == mine);
        left += !mine;
        if (test_failures > before) TEST_FAIL("case %d: %d x %d", i, w, h);
    }
    printf("%d cases, %d left to Darknet; %ld pixels, worst %.2g, mean %.2g, %ld magenta\n", CASES,
           left, seen.pixels, seen.worst, seen.sum / (double)seen.pixels, seen.magenta);
    CHECK(seen.sum / (double)seen.pixels <= 5e-6);
    CHECK((double)seen.magenta <= 1e-3 * (double)seen.pixels);
}

#ifdef OPENCV /* stb_image, which Darknet has else, decodes a little differently */
static void cut_file(void)
{
    struct stat info;
    REQUIRE(!stat(image_path, &info));
    REQUIRE(!truncate(image_path, (off_t)test_uniform(0, (double)info.st_size)));
}

/* Of files that end early too, where a part of the image is left. */
AMP_TEST(bytes_are_opencvs)
{
    struct amp_jpeg_memory memory = {0};
    int cut = 0;
    name_files("a", "jpg");
    for (int i = 0; i < 100; i++) {
        int w, h, wrong = 0;
        random_size(&w, &h);
        write_jpeg(w, h, i % 4 ? JCS_RGB : JCS_GRAYSCALE);
        if (i % 2) cut_file();
        const struct amp_pixels *p = amp_jpeg_read(image_path, 0, &memory);
        if (!p && i % 2) continue; /* Darknet says so */
        REQUIRE(p);
        cut += i % 2;
        image im = load_image_color(image_path, 0, 0);
        REQUIRE(p->w == im.w && p->h == im.h);
        for (int k = 0; k < w * h; k++)
            for (int c = 0; c < 3; c++)
                wrong += im.data[c * w * h + k] != (float)(p->bytes[k * 3 + 2 - c] / 255.);
        CHECK_INT(wrong, 0);
        free_image(im);
    }
    CHECK(cut > 10);
    amp_jpeg_free(&memory);
}

/* The ways evaluation takes, against Darknet's resize_image. The one does without the last row,
 * which Darknet leaves almost black where rounding puts it above the image's. The other rounds as
 * GCC makes Darknet round. */
AMP_TEST(resized_as_darknet_resizes)
{
#ifdef __clang__
    enum { WAYS = 1 };
#else
    enum { WAYS = 2 };
#endif
    struct amp_jpeg_memory memory = {0};
    name_files("a", "jpg");
    for (int i = 0; i < 100; i++) {
        int w, h, side = between(20, 300), wrong = 0, ends = i % WAYS;
        random_size(&w, &h);
        write_jpeg(w, h, JCS_RGB);
        const struct amp_pixels *p = amp_jpeg_read(image_path, 0, &memory);
        REQUIRE(p);
        image full = load_image_color(image_path, 0, 0), ours = make_image(side, side, 3);
        image its = resize_image(full, side, side);
        struct amp_placement place = {.canvas_w = side,
                                      .canvas_h = side,
                                      .w = side,
                                      .h = side,
                                      .sampling = ends ? AMP_SAMPLE_AS_RESIZE_IMAGE_ENDS
                                                       : AMP_SAMPLE_AS_RESIZE_IMAGE};
        REQUIRE(amp_place(p, &place, ours.data));
        for (int k = 0; k < side * side * 3; k++)
            wrong +=
                k / side % side < side - 1 + ends && !(fabsf(ours.data[k] - its.data[k]) <= 5e-4f);
        if (wrong) TEST_FAIL("%d x %d to %d: %d wrong", p->w, p->h, side, wrong);
        free_image(full);
        free_image(ours);
        free_image(its);
    }
    amp_jpeg_free(&memory);
}
#endif

/* An image from the cache gives what the file gave, to the bit. */
AMP_TEST(the_cache_changes_nothing)
{
    loader.cache = amp_image_cache_new(20 << 20);
    REQUIRE(loader.cache);
    for (int i = 0; i < 30; i++) {
        int w, h;
        char stem[20];
        snprintf(stem, sizeof stem, "b%d", i); /* the cache goes by names */
        name_files(stem, "jpg");
        random_size(&w, &h);
        write_jpeg(w, h, JCS_RGB);
        loader.reduces = between(0, 1);
        load_args a = random_arguments();
        unsigned seed = (unsigned)test_random();
        struct loaded first, second;
        write_labels();
        REQUIRE(load_ours(a, seed, &first));
        REQUIRE(!remove(image_path));
        REQUIRE(load_ours(a, seed, &second));
        CHECK_INT(first.next, second.next);
        CHECK(!memcmp(first.data.X.vals[0], second.data.X.vals[0],
                      (size_t)first.data.X.cols * sizeof(float)));
        CHECK(!memcmp(first.data.y.vals[0], second.data.y.vals[0],
                      (size_t)first.data.y.cols * sizeof(float)));
        free_data(first.data);
        free_data(second.data);
    }
    amp_image_cache_free(loader.cache);
    loader = (struct amp_image_loader){0};
}

/* Reduced or not, a smooth picture gives the same pixels, nearly, and the same labels. */
AMP_TEST(reduced_images_lie_where_full_ones_do)
{
    name_files("a", "jpg");
    smooth = true;
    for (int i = 0; i < 30; i++) {
        load_args a = random_arguments();
        unsigned seed = (unsigned)test_random();
        struct loaded full, reduced;
        double sum = 0;
        write_jpeg(between(700, 1500), between(700, 1500), JCS_RGB);
        write_labels();
        REQUIRE(load_ours(a, seed, &full));
        loader.reduces = true;
        REQUIRE(load_ours(a, seed, &reduced));
        loader.reduces = false;
        CHECK_INT(full.next, reduced.next);
        CHECK(!memcmp(full.data.y.vals[0], reduced.data.y.vals[0], 5 * BOXES * sizeof(float)));
        for (int k = 0; k < full.data.X.cols; k++)
            sum += fabs((double)full.data.X.vals[0][k] - (double)reduced.data.X.vals[0][k]);
        CHECK_NEAR(sum / full.data.X.cols, 0, .02);
        free_data(full.data);
        free_data(reduced.data);
    }
    smooth = false;
}

/* However the canvas lies: the image stays larger than its longer side, and no larger than needed.
 */
AMP_TEST(images_are_reduced_to_the_longer_side)
{
    name_files("a", "jpg");
    for (int i = 0; i < 2; i++) {
        loader = (struct amp_image_loader){.reduces = true, .cache = amp_image_cache_new(20 << 20)};
        load_args a = random_arguments();
        struct loaded l;
        a.w = i ? 320 : 80;
        a.h = i ? 80 : 320;
        write_jpeg(1500, 1500, JCS_RGB);
        write_labels();
        REQUIRE(loader.cache && load_ours(a, 1, &l));
        const struct amp_pixels *kept = amp_image_cache_take(loader.cache, image_path, 320);
        CHECK(kept && kept->w == 375 && kept->h == 375);
        if (kept) amp_image_cache_give(loader.cache, kept);
        amp_image_cache_free(loader.cache);
        free_data(l.data);
    }
    loader = (struct amp_image_loader){0};
}

AMP_TEST(sizes_of_reduced_images)
{
    struct amp_jpeg_memory memory = {0};
    name_files("a", "jpg");
    for (int i = 0; i < 50; i++) {
        int w, h, least = between(1, 500), reduce = 8;
        random_size(&w, &h);
        write_jpeg(w, h, JCS_RGB);
        const struct amp_pixels *p = amp_jpeg_read(image_path, 0, &memory);
        REQUIRE(p && p->full_w == p->w && p->full_h == p->h);
        int full_w = p->w, full_h = p->h; /* the file may be turned */
        int shorter = full_w < full_h ? full_w : full_h;
        if (i % 2 && shorter >= 8) least = shorter >> between(1, 3); /* to be met exactly */
        p = amp_jpeg_read(image_path, least, &memory);
        REQUIRE(p);
        while (reduce > 1 && (full_w / reduce < least || full_h / reduce < least))
            reduce /= 2;
        CHECK(p->full_w == full_w && p->full_h == full_h);
        CHECK_INT(p->w, (full_w + reduce - 1) / reduce);
        CHECK_INT(p->h, (full_h + reduce - 1) / reduce);
    }
    amp_jpeg_free(&memory);
}

static bool runs_here(amp_place_function *function)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (function == amp_place_avx2) return __builtin_cpu_supports("avx2");
    if (function == amp_place_avx512)
        return __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq");
#endif
    return function == amp_place_base;
}

AMP_TEST(all_instruction_sets_give_the_same_bits)
{
    static amp_place_function *const functions[] = {
#ifdef __x86_64__
        amp_place_avx2, amp_place_avx512,
#endif
        amp_place_base};
    for (int i = 0; i < 100; i++) {
        int n = between(1, 80), w = between(1, 90);
        struct amp_pixels image = {.w = w, .h = 2};
        struct amp_placement p = {.canvas_w = n,
                                  .canvas_h = 2,
                                  .w = n,
                                  .h = 2,
                                  .distorts = true,
                                  .hue = (float)test_uniform(-.5, .5),
                                  .saturation = (float)test_uniform(.5, 2),
                                  .exposure = (float)test_uniform(.5, 2)};
        image.bytes = paint(w, 2, 3);
        int source[80];
        float right[80], row[273] = {0}, expected[480], got[480];
        for (int x = 0; x < n; x++) {
            source[x] = between(0, w - 1) * 3;
            right[x] = (float)test_uniform(0, 1);
        }
        struct amp_columns columns = {.count = n, .source = source, .right = right, .row = row};
        amp_place_base(&image, &p, &columns, expected);
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
            if (!runs_here(functions[f])) continue;
            functions[f](&image, &p, &columns, got);
            CHECK(!memcmp(got, expected, (size_t)n * 6 * sizeof *got));
        }
        free(image.bytes);
    }
}

static float *new_row(int w, int h)
{
    float *row = malloc(3 * sizeof *row * (size_t)w * (size_t)h);
    REQUIRE(row);
    return row;
}

/* Memory of pictures is lent again, the last that came back first, while its size is asked for. */
AMP_TEST(rows_are_kept_for_the_next_batch)
{
    amp_rows_free();
    float *a = amp_row_take(8, 4), *b = amp_row_take(8, 4);
    REQUIRE(a && b && a != b);
    data d = {.X = {.rows = 2, .cols = 96, .vals = malloc(2 * sizeof(float *))}, .shallow = 1};
    d.X.vals[0] = a;
    d.X.vals[1] = b;
    free_data(d); /* somebody else has the rows */
    float *c = amp_row_take(8, 4);
    REQUIRE(c && c != a && c != b);
    d = (data){.X = {.rows = 3, .cols = 96, .vals = malloc(3 * sizeof(float *))}};
    d.X.vals[0] = a;
    d.X.vals[1] = b;
    d.X.vals[2] = c;
    free_data(d);
    amp_row_give(new_row(8, 4), 96); /* no more than were lent */
    CHECK(amp_row_take(8, 4) == c);
    amp_row_give(new_row(4, 4), 48); /* of another size */
    CHECK(amp_row_take(8, 4) == b);
    CHECK(amp_row_take(8, 4) == a);
    amp_row_give(a, 96);
    amp_row_give(b, 96);
    float *small = amp_row_take(4, 4); /* frees them */
    amp_row_give(c, 96);
    amp_row_give(small, 48);
    CHECK(amp_row_take(4, 4) == small);
    free(small);
}

#ifdef OPENCV /* without it Darknet ends the program */
/* A row whose picture cannot be decoded comes back: no foreign one is kept in its place. */
AMP_TEST(the_row_of_a_broken_picture_comes_back)
{
    const struct amp_row_loader crops = {
        .fast = &loader,
        .by_crops = true,
        .crops = {.cut = {.w = 12, .h = 4}, .truths = {12, 4, 5, BOXES}}};
    char *paths[1] = {image_path}, *name;
    data d;
    load_args a = {.paths = paths, .n = 1, .m = 1, .w = 12, .h = 4, .d = &d};
    name_files("a", "jpg");
    FILE *f = fopen(image_path, "w");
    REQUIRE(f);
    fputs("no image", f);
    fclose(f);
    amp_row_give(amp_row_take(12, 4), 144);
    amp_refuse_bad_images(1);
    CHECK(!amp_loader_load(&crops, &a, &name));
    amp_refuse_bad_images(0);
    CHECK(!d.X.rows && !d.y.rows);
    float *own = amp_row_take(12, 4), *foreign = new_row(12, 4);
    amp_row_give(own, 144);
    amp_row_give(foreign, 144);
    CHECK(amp_row_take(12, 4) == own);
    free(own);
}
#endif

static void check_next(enum amp_load_part done, void *next)
{
    int *part = next;
    CHECK_INT((int)done, (*part)++);
}

AMP_TEST(each_part_is_told_when_it_is_done)
{
    int next = 0;
    struct loaded l;
    name_files("a", "jpg");
    write_jpeg(100, 100, JCS_RGB);
    write_labels();
    loader = (struct amp_image_loader){.done = check_next, .user = &next};
    REQUIRE(load_ours(random_arguments(), 1, &l));
    CHECK_INT(next, AMP_LOAD_DARKNET);
    free_data(l.data);
    loader = (struct amp_image_loader){0};
}

static const struct amp_image_loader *chosen(struct amp_session *s, const load_args *args)
{
    struct amp_row_loader l;
    amp_loader_choose(s, args, &l);
    return l.fast;
}

/* What the keys of a cfg choose. A program has one loader, of its first network's keys. */
AMP_TEST(the_keys_choose_the_loader)
{
    static struct amp_layer_desc head;
    static struct amp_net_desc net = {.n = 1, .layers = &head};
    static struct amp_session s = {.desc = &net};
    load_args args = {.type = DETECTION_DATA, .n = 100, .threads = 64};
    CHECK(!chosen(NULL, &args));
    s.options.loader = AMP_LOADER_DARKNET;
    CHECK(!chosen(&s, &args));
    CHECK(strstr(s.log.feeding, "amp_loader=fast"));
    net.dialect = AMP_DIALECT_FORK; /* and it ends in [region] */
    CHECK(!chosen(&s, &args));
    s.options.loader = AMP_LOADER_FAST;
    s.options.jpeg_scale = true;
    s.options.image_cache = 1;
    const struct amp_image_loader *l = chosen(&s, &args);
    REQUIRE(l);
    CHECK(l->reduces && l->cache);
    s.options.loader = AMP_LOADER_DARKNET;
    head.loss.yolo.own_rules = true; /* it ends in [yolo], whose images Darknet cannot load */
    CHECK(chosen(&s, &args) == l);
    CHECK(!strstr(s.log.feeding, "amp_loader=fast"));
    s.options.loader = AMP_LOADER_FAST;
    head.loss.yolo.own_rules = false;
    args.type = CLASSIFICATION_DATA;
    CHECK(chosen(&s, &args) == l);
    args.type = REGRESSION_DATA;
    CHECK(!chosen(&s, &args));
    CHECK_INT(amp_loader_threads(NULL, &args), 64);
    s.options.loader_threads = 70;
    CHECK_INT(amp_loader_threads(&s, &args), 70);
    s.options.loader_threads = 3;
    CHECK_INT(amp_loader_threads(&s, &args), 3);
    args.n = 2;
    CHECK_INT(amp_loader_threads(&s, &args), 2);
    args.threads = 1; /* the program has its own threads */
    CHECK_INT(amp_loader_threads(&s, &args), 1);
    args.threads = 0;
    CHECK_INT(amp_loader_threads(NULL, &args), 1);
}

AMP_TEST_MAIN
