/* Detection images by the path of our own, against Darknet's on the same random stream: the same
 * draws, labels to the bit, pixels within 5e-4, decoded bytes as OpenCV has them. */
#define _GNU_SOURCE
#include "tests/rig/harness.h"
#include "tests/rig/files.h"

#include "plugin/attach/feed/detection.h"
#include "plugin/attach/feed/loader.h"
#include "plugin/attach/session.h"
#include "plugin/attach/feed/images.h"
#include "plugin/images/place_rows.h"

#include "darknet.h"
#include "data.h"
#include "image.h"

#include <jpeglib.h>
#include <sys/stat.h>

enum { BOXES = 7, CASES = 1000, MOST_PIXELS = 1 << 20 };

static int between(int low, int high)
{
    return low + (int)(test_random() % (uint64_t)(high - low + 1));
}

/* ---- files ---- */

static char image_path[300], label_path[300];

static void name_files(const char *stem, const char *suffix)
{
    char name[100];
    if (*image_path) remove(image_path);
    if (*label_path) remove(label_path);
    snprintf(name, sizeof name, "%s.%s", stem, suffix);
    strcpy(image_path, scratch(name));
    snprintf(name, sizeof name, "%s.txt", stem);
    strcpy(label_path, scratch(name));
}

/* Small and large; narrow ones too. */
static int random_side(void)
{
    return (int)pow(4000, test_uniform(0, 1));
}

static bool smooth; /* only pictures without noise and edges */

/* A picture with areas of one colour, greys, and noise, so that hues of all kinds occur. */
static uint8_t *paint(int w, int h, int channels)
{
    size_t count = (size_t)w * (size_t)h * (size_t)channels;
    uint8_t *bytes = malloc(count);
    REQUIRE(bytes);
    int kind = smooth ? 4 : between(0, 3), colour = between(0, 1 << 24), step = between(1, 60);
    for (size_t i = 0; i < count; i++) {
        int c = (int)(i % (size_t)channels), x = (int)(i / (size_t)channels) % w;
        bytes[i] = kind == 0   ? (uint8_t)test_random()
                   : kind == 1 ? (uint8_t)(colour >> c * 8)
                   : smooth    ? (uint8_t)(40 + (c + 1) * 60 * x / w)
                   : kind == 2 ? (uint8_t)(x / step * 40)
                               : (uint8_t)((colour >> c * 8) + x * (c + 1) / step);
    }
    return bytes;
}

/* An APP1 marker that says which side is up. */
static void write_orientation(struct jpeg_compress_struct *jpeg, int orientation, bool big_endian)
{
    uint8_t little[] = {'E', 'x', 'i', 'f', 0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0,    2,
                        0,   0,   1,   4,   0, 1, 0,   0,   0,  9, 0, 0, 0, 0x12, 1,
                        3,   0,   1,   0,   0, 0, 0,   0,   0,  0, 0, 0, 0, 0};
    uint8_t big[] = {'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0,
                     2,   1,   0,   0,   4, 0, 0,   0,   1, 0,  0, 0, 9, 1, 0x12,
                     0,   3,   0,   0,   0, 1, 0,   0,   0, 0,  0, 0, 0, 0};
    little[36] = big[37] = (uint8_t)orientation;
    jpeg_write_marker(jpeg, JPEG_APP0 + 1, big_endian ? big : little, sizeof little);
}

/* colours: what libjpeg calls them; GREY and CMYK have 1 and 4. */
static void write_jpeg(int w, int h, J_COLOR_SPACE colours)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    FILE *file = fopen(image_path, "wb");
    REQUIRE(file);
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, file);
    jpeg.image_width = (unsigned)w;
    jpeg.image_height = (unsigned)h;
    jpeg.input_components = colours == JCS_GRAYSCALE ? 1 : colours == JCS_CMYK ? 4 : 3;
    jpeg.in_color_space = colours;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, between(5, 100), TRUE);
    if (between(0, 2) == 0) jpeg_simple_progression(&jpeg);
    jpeg.comp_info[0].h_samp_factor = between(1, 2);
    jpeg.comp_info[0].v_samp_factor = between(1, 2);
    if (between(0, 5) == 0) jpeg.restart_interval = 3;
    uint8_t *bytes = paint(w, h, jpeg.input_components);
    jpeg_start_compress(&jpeg, TRUE);
    if (between(0, 1)) write_orientation(&jpeg, between(0, 9), between(0, 1));
    for (int y = 0; y < h; y++) {
        JSAMPROW row = bytes + (size_t)y * (size_t)w * (size_t)jpeg.input_components;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    free(bytes);
    REQUIRE(!fclose(file));
}

/* Number of `bytes` bytes, the first one lowest (BMP) or highest (PNG). */
static void put(FILE *file, uint32_t number, int bytes, bool highest_first)
{
    for (int i = 0; i < bytes; i++)
        fputc((uint8_t)(number >> 8 * (highest_first ? bytes - 1 - i : i)), file);
}

static void write_bmp(int w, int h)
{
    FILE *file = fopen(image_path, "wb");
    uint32_t row = ((uint32_t)w * 3 + 3) & ~3u, header[] = {40, (uint32_t)w, (uint32_t)h};
    uint8_t *bytes = paint((int)row / 3 + 1, h, 3);
    REQUIRE(file);
    fputs("BM", file);
    put(file, 54 + row * (uint32_t)h, 4, false);
    put(file, 0, 4, false);
    put(file, 54, 4, false);
    for (int i = 0; i < 3; i++)
        put(file, header[i], 4, false);
    put(file, 1, 2, false);
    put(file, 24, 2, false);
    for (int i = 0; i < 6; i++)
        put(file, 0, 4, false);
    fwrite(bytes, row, (size_t)h, file);
    free(bytes);
    REQUIRE(!fclose(file));
}

static void write_chunk(FILE *file, const char *kind, const uint8_t *bytes, size_t n)
{
    uint32_t crc = ~0u;
    put(file, (uint32_t)n, 4, true);
    fputs(kind, file);
    fwrite(bytes, 1, n, file);
    for (size_t i = 0; i < n + 4; i++) {
        crc ^= i < 4 ? (uint8_t)kind[i] : bytes[i - 4];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    put(file, ~crc, 4, true);
}

/* Of one row, not compressed: a stream of zlib's with one stored block. */
static void write_png(int w)
{
    FILE *file = fopen(image_path, "wb");
    size_t n = (size_t)w * 3 + 1; /* filter 0, then the row */
    uint8_t *bytes = paint(w, 1, 3), *stream = calloc(1, n + 11);
    uint8_t header[13] = {0, 0, (uint8_t)(w >> 8), (uint8_t)w, 0, 0, 0, 1, 8, 2};
    uint32_t a = 1, b = 0; /* Adler's sums */
    REQUIRE(file && stream);
    memcpy(stream,
           (uint8_t[]){0x78, 1, 1, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)~n, (uint8_t)(~n >> 8)},
           7);
    memcpy(stream + 8, bytes, n - 1);
    for (size_t i = 0; i < n; i++) {
        a = (a + stream[7 + i]) % 65521;
        b = (b + a) % 65521;
    }
    for (int i = 0; i < 4; i++)
        stream[7 + n + (size_t)i] = (uint8_t)((b << 16 | a) >> (24 - 8 * i));
    fwrite("\x89PNG\r\n\x1a\n", 1, 8, file);
    write_chunk(file, "IHDR", header, sizeof header);
    write_chunk(file, "IDAT", stream, n + 11);
    write_chunk(file, "IEND", stream, 0);
    free(bytes);
    free(stream);
    REQUIRE(!fclose(file));
}

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

static struct amp_detection_loader loader;

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

static void random_size(int *w, int *h)
{
    do {
        *w = random_side();
        *h = random_side();
    } while (*w * *h > MOST_PIXELS);
}

/* Returns whether it is ours to read. The suffix means nothing: decoders go by the first bytes. */
static bool write_case(int kind, int w, int h)
{
    static const J_COLOR_SPACE colours[] = {JCS_RGB, JCS_RGB,       JCS_RGB,   JCS_RGB,
                                            JCS_RGB, JCS_GRAYSCALE, JCS_YCbCr, JCS_CMYK};
    if (kind < 8)
        write_jpeg(w, h, colours[kind]);
    else if (kind == 8)
        write_bmp(w, h);
    else
        write_png(w);
    return kind < 7;
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
 * which Darknet leaves almost black where rounding puts it above the image's. */
AMP_TEST(resized_as_darknet_resizes)
{
    struct amp_jpeg_memory memory = {0};
    name_files("a", "jpg");
    for (int i = 0; i < 100; i++) {
        int w, h, side = between(20, 300), wrong = 0, ends = i % 2;
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
    loader = (struct amp_detection_loader){0};
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
        loader =
            (struct amp_detection_loader){.reduces = true, .cache = amp_image_cache_new(20 << 20)};
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
    loader = (struct amp_detection_loader){0};
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

static void check_next(enum amp_load_part done, void *next)
{
    int *part = next;
    CHECK_INT((int)done, (*part)++);
}

AMP_TEST(each_part_is_told_when_it_is_done)
{
    int next = 0;
    struct loaded l;
    load_args a = random_arguments();
    a.d = &l.data;
    name_files("a", "jpg");
    write_jpeg(100, 100, JCS_RGB);
    write_labels();
    REQUIRE(amp_load_image(&a, false, check_next, &next));
    CHECK_INT(next, AMP_LOAD_PARTS);
    free_data(l.data);
}

/* What the keys of a cfg choose. A program has one loader, of its first network's keys. */
AMP_TEST(the_keys_choose_the_loader)
{
    static struct amp_net_desc net;
    static struct amp_session s = {.desc = &net};
    load_args args = {.type = DETECTION_DATA, .n = 100, .threads = 64};
    CHECK(!amp_loader_choose(NULL, &args));
    s.options.loader = AMP_LOADER_DARKNET;
    CHECK(!amp_loader_choose(&s, &args));
    s.options.loader = AMP_LOADER_FAST;
    s.options.jpeg_scale = true;
    s.options.image_cache = 1;
    const struct amp_detection_loader *l = amp_loader_choose(&s, &args);
    REQUIRE(l);
    CHECK(l->reduces && l->cache);
    args.type = CLASSIFICATION_DATA;
    CHECK(!amp_loader_choose(&s, &args));
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
