/* A JPEG file, and what a batch makes of it: decoded, whole and reduced, and placed on a canvas.
 * The first byte chooses among the ways. */
#include "fuzz.h"
#include "plugin/images/place.h"

enum { SIDE = 32, MOST_PIXELS = 1 << 21 };

/* A damaged header can ask for an image of gigabytes, which is right but slow. */
static int is_small(const uint8_t *file, size_t size)
{
    for (size_t i = 0; i + 8 < size; i++) {
        if (file[i] != 0xff || file[i + 1] < 0xc0 || file[i + 1] > 0xcf) continue;
        long h = file[i + 5] << 8 | file[i + 6], w = file[i + 7] << 8 | file[i + 8];
        if (w * h > MOST_PIXELS) return 0;
    }
    return 1;
}

static void place(const struct amp_pixels *pixels, int way)
{
    static float canvas[SIDE * SIDE * 3];
    struct amp_placement p = {.canvas_w = SIDE,
                              .canvas_h = SIDE,
                              .w = 1 + way % 60,
                              .h = 1 + way * 7 % 60,
                              .left = way % 50 - 20,
                              .top = way * 3 % 50 - 20,
                              .sampling =
                                  way & 2 ? AMP_SAMPLE_AS_RESIZE_IMAGE : AMP_SAMPLE_AS_PLACE_IMAGE,
                              .distorts = way & 4,
                              .hue = .1f,
                              .saturation = 1.5f,
                              .exposure = .7f,
                              .flip = way & 1};
    FUZZ_REQUIRE(amp_place(pixels, &p, canvas));
    for (int i = 0; i < SIDE * SIDE * 3; i++)
        FUZZ_REQUIRE(canvas[i] >= 0 && canvas[i] <= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct amp_jpeg_memory memory;
    if (!size || !is_small(data + 1, size - 1)) return 0;
    int way = data[0];
    const struct amp_pixels *p = amp_jpeg_decode(data + 1, size - 1, 0, &memory);
    if (!p) return 0;
    FUZZ_REQUIRE(p->w > 0 && p->h > 0 && p->full_w == p->w && p->full_h == p->h);
    place(p, way);
    int w = p->w, h = p->h;
    p = amp_jpeg_decode(data + 1, size - 1, way, &memory);
    FUZZ_REQUIRE(p && p->full_w == w && p->full_h == h && p->w <= w && p->h <= h);
    place(p, way);
    return 0;
}
