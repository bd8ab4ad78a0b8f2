/* A picture that is written as a JPEG is the same when it is read again, but for JPEG's own errors.
 */
#define _GNU_SOURCE
#include "tests/rig/harness.h"

#include "plugin/images/jpeg.h"

enum { W = 37, H = 23, PLANE = W * H };

/* Slopes: without edges quality 100 loses little. */
static void draw(float *planes)
{
    for (int c = 0; c < 3; c++) {
        float a = (float)test_uniform(0, 1), across = (float)test_uniform(-.02, .02),
              down = (float)test_uniform(-.02, .02);
        for (int i = 0; i < PLANE; i++)
            planes[c * PLANE + i] = a + across * (float)(i % W) + down * (float)(i / W);
    }
}

static float clamped(float x)
{
    return fminf(fmaxf(x, 0), 1);
}

AMP_TEST(what_is_written_is_read_again)
{
    float planes[3 * PLANE];
    char *file = NULL;
    size_t bytes;
    struct amp_jpeg_memory memory = {0};
    draw(planes);
    FILE *f = open_memstream(&file, &bytes);
    REQUIRE(f);
    CHECK(amp_jpeg_write(f, planes, W, H, 100, "a mark"));
    fclose(f);
    CHECK(memmem(file, 64, "a mark", 6));
    const struct amp_pixels *p = amp_jpeg_decode((const uint8_t *)file, bytes, 0, &memory);
    REQUIRE(p);
    CHECK(p->w == W && p->h == H);
    /* Of quality 100 luminance and colours are off by a rounding each, about .4 in the mean, and
     * blue has 1.772 times that of its colour: .8, at most some five times as much. */
    double sum = 0;
    for (int i = 0; i < PLANE; i++)
        for (int c = 0; c < 3; c++) { /* blue comes first there */
            double expected = 255 * (double)clamped(planes[c * PLANE + i]),
                   found = p->bytes[3 * i + 2 - c];
            CHECK_NEAR(found, expected, 8);
            sum += (found - expected) * (found - expected);
        }
    CHECK_NEAR(sqrt(sum / (3 * PLANE)), 0, 1.2);
    amp_jpeg_free(&memory);
    free(file);
}

AMP_TEST(a_full_disk_is_told)
{
    float planes[3 * PLANE] = {0};
    FILE *f = fopen("/dev/full", "w");
    REQUIRE(f);
    setvbuf(f, NULL, _IONBF, 0);
    CHECK(!amp_jpeg_write(f, planes, W, H, 95, "a mark"));
    CHECK(ferror(f));
    fclose(f);
}

AMP_TEST_MAIN
