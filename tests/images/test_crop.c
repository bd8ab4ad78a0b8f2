/* The cut of a picture: against the same steps one after the other on whole pictures, written
 * straight from what OpenCV's resize and cvtColor say they compute on bytes. Exact: both are whole
 * numbers but for the way back from hues, which is float in the same order. */
#include "tests/rig/harness.h"

#include "plugin/images/crop.h"
#include "plugin/images/crop_rows.h"

enum { MOST_SIDE = 90 };

struct picture {
    struct amp_pixels pixels;
    uint8_t bytes[MOST_SIDE * MOST_SIDE * 3 * 9]; /* a cut may be three times as wide and high */
};

static int random_in(int low, int high)
{
    return low + (int)(test_random() % (uint64_t)(high - low + 1));
}

static void set_size(struct picture *p, int w, int h)
{
    p->pixels = (struct amp_pixels){.bytes = p->bytes, .w = w, .h = h, .full_w = w, .full_h = h};
}

static uint8_t *pixel(struct picture *p, int x, int y)
{
    return p->bytes + ((size_t)y * (size_t)p->pixels.w + (size_t)x) * 3;
}

/* Every second one in few colours, so that greys and equal channels occur. */
static void random_picture(struct picture *p)
{
    set_size(p, random_in(1, MOST_SIDE), random_in(1, MOST_SIDE));
    unsigned step = test_random() % 2 ? 1 : 85;
    for (int i = 0; i < p->pixels.w * p->pixels.h * 3; i++)
        p->bytes[i] = (uint8_t)(test_random() % 256 / step * step);
}

static struct amp_crop random_crop(const struct picture *p, bool recolours)
{
    int w = p->pixels.w, h = p->pixels.h;
    struct amp_crop c = {.picture_w = w, .picture_h = h, .saturation = 1, .exposure = 1};
    c.left = random_in(-w, w - 1);
    c.top = random_in(-h, h - 1);
    c.w = random_in(c.left < 0 ? 1 - c.left : 1, 2 * w);
    c.h = random_in(c.top < 0 ? 1 - c.top : 1, 2 * h);
    c.flip = test_random() % 2;
    if (!recolours) return c;
    c.hue = (float)test_uniform(-0.4, 0.4);
    c.saturation = (float)test_uniform(0.3, 3);
    c.exposure = (float)test_uniform(0.3, 3);
    return c;
}

/* ---- the steps ---- */

static void take_cut(struct picture *from, const struct amp_crop *c, struct picture *to)
{
    double sums[3] = {0};
    int pixels = from->pixels.w * from->pixels.h;
    for (int i = 0; i < pixels * 3; i++)
        sums[i % 3] += from->bytes[i];
    set_size(to, c->w, c->h);
    for (int y = 0; y < c->h; y++)
        for (int x = 0; x < c->w; x++) {
            int px = x + c->left, py = y + c->top;
            bool inside = px >= 0 && px < from->pixels.w && py >= 0 && py < from->pixels.h;
            for (int k = 0; k < 3; k++)
                pixel(to, x, y)[k] =
                    inside ? pixel(from, px, py)[k] : (uint8_t)rint(sums[k] * (1.0 / pixels));
        }
}

struct neighbours {
    int at[2], weight[2];
};

static struct neighbours neighbours_of(int i, int n, int size)
{
    float at = (float)((i + 0.5) * ((double)size / n) - 0.5);
    int first = (int)floor(at);
    float share = at - (float)first;
    struct neighbours k = {{first, first + 1},
                           {(int)rintf((1 - share) * 2048), (int)rintf(share * 2048)}};
    for (int j = 0; j < 2; j++)
        k.at[j] = k.at[j] < 0 ? 0 : k.at[j] >= size ? size - 1 : k.at[j];
    return k;
}

static void resize(struct picture *from, int w, int h, struct picture *to)
{
    set_size(to, w, h);
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int k = 0; k < 3; k++) {
                struct neighbours across = neighbours_of(x, w, from->pixels.w);
                struct neighbours down = neighbours_of(y, h, from->pixels.h);
                int sum = 2;
                for (int j = 0; j < 2; j++) {
                    int row = pixel(from, across.at[0], down.at[j])[k] * across.weight[0] +
                              pixel(from, across.at[1], down.at[j])[k] * across.weight[1];
                    sum += (row >> 4) * down.weight[j] >> 16;
                }
                pixel(to, x, y)[k] = (uint8_t)(sum >> 2);
            }
}

static uint8_t changed(float value)
{
    value = rintf(value);
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void to_hsv(const uint8_t bgr[3], int hsv[3])
{
    int b = bgr[0], g = bgr[1], r = bgr[2], most = b, least = b;
    if (g > most) most = g;
    if (r > most) most = r;
    if (g < least) least = g;
    if (r < least) least = r;
    int range = most - least, turn = 0;
    if (most == r)
        turn = g - b;
    else if (most == g)
        turn = b - r + 2 * range;
    else
        turn = r - g + 4 * range;
    double hue = range ? turn * rint(4096 * 180 / (6.0 * range)) : 0;
    double saturation = most ? range * rint(4096 * 255 / (double)most) : 0;
    hsv[0] = (int)floor(hue / 4096 + 0.5);
    if (hsv[0] < 0) hsv[0] += 180;
    hsv[1] = (int)floor(saturation / 4096 + 0.5);
    hsv[2] = most;
}

static void from_hsv(const uint8_t hsv[3], uint8_t bgr[3])
{
    static const int which[6][3] = {{1, 3, 0}, {1, 0, 2}, {3, 0, 1},
                                    {0, 2, 1}, {0, 1, 3}, {2, 1, 0}};
    float h = hsv[0] * (6 / 180.0f), s = hsv[1] * (1 / 255.0f), v = hsv[2] * (1 / 255.0f);
    int sector = (int)h;
    h -= (float)sector;
    float shares[4] = {v, v * (1 - s), v * (1 - s * h), v * (1 - s * (1 - h))};
    for (int k = 0; k < 3; k++)
        bgr[k] = (uint8_t)(shares[which[sector % 6][k]] * 255);
}

static void recolour(struct picture *p, const struct amp_crop *c)
{
    for (int i = 0; i < p->pixels.w * p->pixels.h; i++) {
        int hsv[3];
        to_hsv(p->bytes + 3 * i, hsv);
        uint8_t other[3] = {changed((float)hsv[0] + 179 * c->hue),
                            changed((float)hsv[1] * c->saturation),
                            changed((float)hsv[2] * c->exposure)};
        from_hsv(other, p->bytes + 3 * i);
    }
}

/* ---- comparisons ---- */

static void check_planes(const float *planes, struct picture *p, bool flip)
{
    int w = p->pixels.w, h = p->pixels.h, wrong = 0;
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int k = 0; k < 3; k++) {
                float expected = (float)pixel(p, flip ? w - 1 - x : x, y)[2 - k] / 255;
                wrong += planes[(k * h + y) * w + x] != expected;
            }
    CHECK_INT(wrong, 0);
}

static void compare_with_steps(const struct amp_crop_set *set, bool recolours)
{
    static struct picture picture, cut, result;
    static float planes[3 * MOST_SIDE * MOST_SIDE];
    random_picture(&picture);
    struct amp_crop c = random_crop(&picture, recolours);
    int w = random_in(1, MOST_SIDE), h = random_in(1, MOST_SIDE);
    take_cut(&picture, &c, &cut);
    resize(&cut, w, h, &result);
    if (recolours) recolour(&result, &c);
    struct amp_part whole = {.w = w, .h = h};
    REQUIRE(amp_crop_part_on(set, &picture.pixels, &c, w, h, &whole, planes));
    check_planes(planes, &result, c.flip);
}

AMP_TEST(every_instruction_set_computes_the_steps)
{
    struct amp_crop_set sets[AMP_CROP_SETS];
    int count = amp_crop_sets(sets);
    for (int i = 0; i < count; i++)
        for (int round = 0; round < 60; round++)
            compare_with_steps(&sets[i], round % 2);
}

/* Every colour, in lines of 256: the tables of cvtColor are divisions here. */
AMP_TEST(all_colours)
{
    static struct picture line;
    static float planes[3 * 256];
    struct amp_crop c = {.w = 256, .h = 1, .picture_w = 256, .picture_h = 1};
    c.hue = (float)test_uniform(-0.1, 0.1);
    c.saturation = (float)test_uniform(0.6, 1.6);
    c.exposure = (float)test_uniform(0.6, 1.6);
    for (int rest = 0; rest < 1 << 16; rest += random_in(1, 20)) {
        set_size(&line, 256, 1);
        for (int i = 0; i < 256; i++) {
            uint8_t colour[3] = {(uint8_t)i, (uint8_t)rest, (uint8_t)(rest >> 8)};
            memcpy(pixel(&line, i, 0), colour, 3);
        }
        REQUIRE(amp_crop_picture(&line.pixels, &c, 256, 1, planes));
        recolour(&line, &c);
        check_planes(planes, &line, false);
        if (test_failures) return;
    }
}

AMP_TEST(nothing_changes_nothing)
{
    static struct picture p;
    static float planes[3 * MOST_SIDE * MOST_SIDE];
    random_picture(&p);
    int w = p.pixels.w, h = p.pixels.h;
    struct amp_crop c = {
        .w = w, .h = h, .picture_w = w, .picture_h = h, .saturation = 1, .exposure = 1};
    REQUIRE(amp_crop_picture(&p.pixels, &c, w, h, planes));
    check_planes(planes, &p, false);
    c.flip = true;
    REQUIRE(amp_crop_picture(&p.pixels, &c, w, h, planes));
    check_planes(planes, &p, true);
}

/* A part is what the whole has there, and nothing else is touched. */
AMP_TEST(parts)
{
    static struct picture p;
    static float whole[3 * MOST_SIDE * MOST_SIDE], part[3 * MOST_SIDE * MOST_SIDE];
    for (int round = 0; round < 60; round++) {
        random_picture(&p);
        struct amp_crop c = random_crop(&p, round % 2);
        int w = random_in(2, MOST_SIDE), h = random_in(2, MOST_SIDE), wrong = 0;
        struct amp_part t = {.w = random_in(1, w), .h = random_in(1, h)};
        t.x = random_in(0, w - t.w);
        t.y = random_in(0, h - t.h);
        t.from_x = random_in(0, w - t.w);
        t.from_y = random_in(0, h - t.h);
        for (int i = 0; i < 3 * w * h; i++)
            part[i] = -1;
        REQUIRE(amp_crop_picture(&p.pixels, &c, w, h, whole));
        REQUIRE(amp_crop_part(&p.pixels, &c, w, h, &t, part));
        for (int i = 0; i < 3 * w * h; i++) {
            int x = i % w - t.x, y = i / w % h - t.y, plane = i / (w * h);
            bool inside = x >= 0 && x < t.w && y >= 0 && y < t.h;
            int from = (plane * h + y + t.from_y) * w + x + t.from_x;
            wrong += part[i] != (inside ? whole[from] : -1);
        }
        CHECK_INT(wrong, 0);
    }
}

AMP_TEST_MAIN
