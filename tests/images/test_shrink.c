/* Smaller images: every pixel against a mean in double precision, sizes, and the JPEG file that
 * comes back from the disk. Linked with --wrap for fclose. */
#include "tests/rig/harness.h"
#include "tests/rig/files.h"

#include "plugin/images/shrink.h"

#include <errno.h>

enum { MOST_SIDE = 70, JPEG_SIDE = 150 };

/* Over a network a full disk may only show when a file is closed. */
static bool fails_to_close;

int __real_fclose(FILE *);
int __wrap_fclose(FILE *);
int __wrap_fclose(FILE *f)
{
    int failed = __real_fclose(f);
    if (!fails_to_close) return failed;
    errno = ENOSPC;
    return EOF;
}

static int between(int low, int high)
{
    return low + (int)(test_random() % (unsigned)(high - low + 1));
}

/* One pixel wide or high more often than by chance. */
static int random_side(int most)
{
    return between(0, 4) ? between(1, most) : 1;
}

static struct amp_pixels make(int w, int h)
{
    struct amp_pixels p = {0};
    REQUIRE(amp_pixels_resize(&p, w, h));
    return p;
}

static struct amp_pixels noise(int w, int h)
{
    struct amp_pixels p = make(w, h);
    for (int i = 0; i < w * h * 3; i++)
        p.bytes[i] = (uint8_t)test_random();
    return p;
}

/* ---- the mean ---- */

/* The part of pixel i of `length` that lies in the part [from, to) of the whole, in pixels. */
static double overlap(int i, double from, double to)
{
    double low = i > from ? i : from, high = i + 1 < to ? i + 1 : to;
    return high > low ? high - low : 0;
}

static double mean(const struct amp_pixels *p, int w, int h, int x, int y, int channel)
{
    double sx = (double)p->w / w, sy = (double)p->h / h, sum = 0;
    for (int j = (int)(y * sy); j < p->h && j < (y + 1) * sy; j++)
        for (int i = (int)(x * sx); i < p->w && i < (x + 1) * sx; i++)
            sum += p->bytes[(j * p->w + i) * 3 + channel] * overlap(i, x * sx, (x + 1) * sx) *
                   overlap(j, y * sy, (y + 1) * sy);
    return sum / (sx * sy);
}

AMP_TEST(every_pixel_is_the_mean_of_its_area)
{
    for (int n = 0; n < 300; n++) {
        struct amp_pixels from = noise(random_side(MOST_SIDE), random_side(MOST_SIDE)), to = {0};
        int w = between(1, from.w), h = between(1, from.h);
        REQUIRE(amp_shrink(&from, w, h, &to));
        CHECK(to.w == w && to.h == h && to.full_w == w && to.full_h == h);
        for (int i = 0; i < w * h * 3; i++) {
            double exact = mean(&from, w, h, i / 3 % w, i / 3 / w, i % 3);
            CHECK_NEAR(to.bytes[i], exact, .5 + 1e-9);
        }
        free(from.bytes);
        free(to.bytes);
    }
}

AMP_TEST(the_same_size_is_the_same_image)
{
    struct amp_pixels from = noise(random_side(MOST_SIDE), random_side(MOST_SIDE)), to = {0};
    REQUIRE(amp_shrink(&from, from.w, from.h, &to));
    CHECK(!memcmp(to.bytes, from.bytes, (size_t)from.w * (size_t)from.h * 3));
    free(from.bytes);
    free(to.bytes);
}

AMP_TEST(a_half_goes_up)
{
    struct amp_pixels from = make(2, 1), to = {0};
    memcpy(from.bytes, (uint8_t[]){0, 254, 7, 1, 255, 8}, 6);
    REQUIRE(amp_shrink(&from, 1, 1, &to));
    CHECK(to.bytes[0] == 1 && to.bytes[1] == 255 && to.bytes[2] == 8);
    free(from.bytes);
    free(to.bytes);
}

/* Sums of many pixels neither wrap nor round: white stays white, and one step below stays that. */
AMP_TEST(large_images_keep_their_colour)
{
    static const int sizes[][4] = {
        {65500, 1, 1, 1}, {1, 65500, 1, 1}, {65500, 3, 16, 1}, {4001, 2999, 641, 479}};
    for (int n = 0; n < 4; n++) {
        struct amp_pixels from = make(sizes[n][0], sizes[n][1]), to = {0};
        memset(from.bytes, n % 2 ? 254 : 255, (size_t)from.w * (size_t)from.h * 3);
        REQUIRE(amp_shrink(&from, sizes[n][2], sizes[n][3], &to));
        for (int i = 0; i < to.w * to.h * 3; i++)
            CHECK_INT(to.bytes[i], n % 2 ? 254 : 255);
        free(from.bytes);
        free(to.bytes);
    }
}

/* ---- sizes ---- */

AMP_TEST(sizes_keep_the_shape)
{
    static const int sizes[][5] = {{1920, 1080, 640, 640, 360}, {1080, 1920, 640, 360, 640},
                                   {500, 500, 416, 416, 416},   {3, 2, 2, 2, 1},
                                   {5000, 1, 16, 16, 1},        {1, 5000, 16, 1, 16},
                                   {641, 640, 640, 640, 639},   {48, 32, 20, 20, 13}};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        int w, h;
        amp_shrink_size(sizes[n][0], sizes[n][1], sizes[n][2], &w, &h);
        CHECK_INT(w, sizes[n][3]);
        CHECK_INT(h, sizes[n][4]);
    }
    for (int n = 0; n < 1000; n++) {
        int from_w = random_side(65500), from_h = random_side(65500), w, h;
        int longest = from_w > from_h ? from_w : from_h, side = between(1, longest);
        amp_shrink_size(from_w, from_h, side, &w, &h);
        CHECK_INT(w > h ? w : h, side);
        CHECK(w >= 1 && h >= 1 && w <= from_w && h <= from_h);
        double exact_w = (double)from_w * side / longest, exact_h = (double)from_h * side / longest;
        CHECK_NEAR(w, exact_w, exact_w < .5 ? 1 : .5);
        CHECK_NEAR(h, exact_h, exact_h < .5 ? 1 : .5);
    }
}

/* ---- the file ---- */

/* Channels differ, and there are no edges. */
static struct amp_pixels smooth(int w, int h)
{
    struct amp_pixels p = make(w, h);
    for (int i = 0; i < w * h; i++) {
        p.bytes[3 * i] = (uint8_t)(20 + 200 * (i % w) / w);
        p.bytes[3 * i + 1] = (uint8_t)(230 - 200 * (i / w) / h);
        p.bytes[3 * i + 2] = (uint8_t)(60 + 90 * (i % w + i / w) / (w + h));
    }
    return p;
}

/* A step between neighbours of a narrow picture is an edge to JPEG, so those are not this narrow.
 */
AMP_TEST(a_file_comes_back_nearly_the_same)
{
    struct amp_jpeg_memory memory = {0};
    const char *path = scratch("copy.jpg");
    char err[600] = "";
    for (int n = 0; n < 30; n++) {
        struct amp_pixels p = smooth(between(8, JPEG_SIDE), between(8, JPEG_SIDE));
        REQUIRE(!amp_jpeg_write(&p, path, err, sizeof err));
        const struct amp_pixels *back = amp_jpeg_read(path, 0, &memory);
        REQUIRE(back && !memory.turned && !memory.damaged);
        CHECK(back->w == p.w && back->h == p.h);
        for (int i = 0; i < p.w * p.h * 3; i++)
            CHECK_NEAR(back->bytes[i], p.bytes[i], 6);
        free(p.bytes);
        unlink(path);
    }
    amp_jpeg_free(&memory);
}

/* libjpeg warns once of a file that lacks only its end. */
AMP_TEST(one_warning_is_damage)
{
    struct amp_jpeg_memory memory = {0};
    const char *path = scratch("cut.jpg");
    char err[600] = "";
    struct amp_pixels p = smooth(24, 16);
    REQUIRE(!amp_jpeg_write(&p, path, err, sizeof err) && amp_jpeg_file(path, &memory));
    REQUIRE(amp_jpeg_decode(memory.file, memory.file_bytes, 0, &memory) && !memory.damaged);
    CHECK(amp_jpeg_decode(memory.file, memory.file_bytes - 2, 0, &memory) && memory.damaged);
    free(p.bytes);
    unlink(path);
    amp_jpeg_free(&memory);
}

AMP_TEST(one_pixel_is_a_file_too)
{
    struct amp_jpeg_memory memory = {0};
    const char *path = scratch("pixel.jpg");
    char err[600];
    struct amp_pixels p = noise(1, 1);
    REQUIRE(!amp_jpeg_write(&p, path, err, sizeof err));
    const struct amp_pixels *back = amp_jpeg_read(path, 0, &memory);
    REQUIRE(back);
    CHECK(back->w == 1 && back->h == 1);
    for (int c = 0; c < 3; c++)
        CHECK_NEAR(back->bytes[c], p.bytes[c], 6);
    free(p.bytes);
    amp_jpeg_free(&memory);
}

AMP_TEST(a_file_that_cannot_be_written_is_named)
{
    char err[600], there[10];
    struct amp_pixels p = noise(3, 3);
    scratch_write("there.jpg", "old", 3);
    CHECK_INT(amp_jpeg_write(&p, scratch("there.jpg"), err, sizeof err), -1);
    CHECK_SAYS(err, "/there.jpg: cannot write: File exists");
    CHECK_INT(scratch_read("there.jpg", there, sizeof there), 3);
    CHECK_INT(amp_jpeg_write(&p, scratch("none/a.jpg"), err, sizeof err), -1);
    CHECK_SAYS(err, "/none/a.jpg: cannot write: No such file");
    fails_to_close = true;
    CHECK_INT(amp_jpeg_write(&p, scratch("late.jpg"), err, sizeof err), -1);
    fails_to_close = false;
    CHECK_SAYS(err, "/late.jpg: cannot write: No space left");
    p.w = AMP_JPEG_MOST_SIDE + 1;
    CHECK_INT(amp_jpeg_write(&p, scratch("wide.jpg"), err, sizeof err), -1);
    CHECK_SAYS(err, "/wide.jpg: cannot write: Maximum supported image dimension");
    free(p.bytes);
}

AMP_TEST_MAIN
