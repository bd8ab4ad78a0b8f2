/* What the fork's loader draws, from numbers that are known: how many, what of them becomes what,
 * and the edges of the rules. Against recorded draws: tests/recordings/loader.py. */
#include "tests/rig/harness.h"

#include "plugin/images/draw.h"

/* ---- numbers ---- */

struct given {
    const double *fractions; /* NULL: random ones */
    int count, used;
};

static int next(void *user)
{
    struct given *g = user;
    g->used++;
    if (!g->fractions) return (int)(test_random() >> 33);
    return (int)(g->fractions[(g->used - 1) % g->count] * 0x1p31);
}

static struct amp_random source(struct given *g)
{
    return (struct amp_random){.next = next, .user = g};
}

static const struct amp_crop_rules plain = {
    .w = 96, .h = 64, .jitter = 0.3f, .resize = 1, .flip = true, .saturation = 1, .exposure = 1};

static struct amp_crop draw(const struct amp_crop_rules *rules, int w, int h, int round,
                            const double *fractions, int count, int numbers)
{
    struct given g = {.fractions = fractions, .count = count};
    struct amp_random random = source(&g);
    struct amp_crop crop;
    amp_crop_draw(rules, w, h, round, &random, &crop);
    CHECK_INT(g.used, numbers);
    return crop;
}

#define DRAW(rules, w, h, round, fractions, numbers)                                               \
    draw(rules, w, h, round, fractions, sizeof(fractions) / sizeof *(fractions), numbers)

/* ---- the cut ---- */

/* Two for the resize, then left, right, top, bottom, flip, and seven that are not looked at here.
 * An odd number is one whose last bit is set. */
static const double odd = 0.5 + 0x1p-31;

AMP_TEST(borders_are_truncated)
{
    const double f[] = {0, 0, 0.999, 0.5, 0.01, 0.75, 0};
    struct amp_crop c = DRAW(&plain, 100, 50, AMP_NO_MOSAIC, f, 13);
    /* 30 and 15 either way: 29.94, 0, -14.7, 7.5 */
    CHECK_INT(c.left, 29);
    CHECK_INT(c.w, 100 - 29);
    CHECK_INT(c.top, -14);
    CHECK_INT(c.h, 50 + 14 - 7);
    CHECK(!c.flip);
}

AMP_TEST(without_flip_nothing_is_drawn_for_it)
{
    struct amp_crop_rules rules = plain;
    const double f[] = {odd};
    CHECK(DRAW(&rules, 100, 50, AMP_NO_MOSAIC, f, 13).flip);
    rules.flip = false;
    CHECK(!DRAW(&rules, 100, 50, AMP_NO_MOSAIC, f, 12).flip);
}

AMP_TEST(resize_moves_both_ends)
{
    struct amp_crop_rules rules = plain;
    const double f[] = {0, 0.9999, 0.5, 0.5, 0.5, 0.5, 0};
    rules.resize = 2; /* from half as much more to a quarter less, at each end */
    struct amp_crop c = DRAW(&rules, 100, 40, AMP_NO_MOSAIC, f, 13);
    CHECK_INT(c.left, -50);
    CHECK_INT(c.right, 24);
    CHECK_INT(c.top, -20);
    CHECK_INT(c.bottom, 9);
    rules.resize = 0.5f; /* the picture never grows */
    c = DRAW(&rules, 100, 40, AMP_NO_MOSAIC, f, 13);
    CHECK_INT(c.left, -50);
    CHECK_INT(c.right, 0);
}

AMP_TEST(letter_box_keeps_the_aspect)
{
    struct amp_crop_rules rules = plain;
    rules.letter_box = true;
    rules.jitter = 0;
    for (int i = 0; i < 200; i++) {
        int w = 1 + (int)(test_random() % 900), h = 1 + (int)(test_random() % 900);
        struct given g = {0};
        struct amp_random random = source(&g);
        struct amp_crop c;
        amp_crop_draw(&rules, w, h, AMP_NO_MOSAIC, &random, &c);
        CHECK(c.left <= 0 && c.top <= 0 && c.left == c.right && c.top == c.bottom);
        CHECK(c.left == 0 || c.top == 0);
        /* each end is truncated to whole pixels */
        CHECK_NEAR(c.w, c.h * 1.5, 3.5);
        CHECK(c.w >= w && c.h >= h);
    }
}

/* The sums of the borders stay: the part of the picture is moved, not scaled. */
AMP_TEST(a_mosaic_pushes_into_its_corner)
{
    const double even[] = {0, 0, 0.9, 0.2, 0.3, 0.3, 0};
    for (int round = 0; round < AMP_MOSAIC_ROUNDS; round++) {
        struct amp_crop still = DRAW(&plain, 100, 100, AMP_NO_MOSAIC, even, 13);
        struct amp_crop c = DRAW(&plain, 100, 100, round, even, 14);
        CHECK_INT(c.w, still.w);
        CHECK_INT(c.h, still.h);
        CHECK_INT(round < 2 ? c.top : c.bottom, 0);
        CHECK_INT(round % 2 == 0 ? c.left : c.right, 0);
    }
    const double flipped[] = {0, 0, 0.9, 0.2, 0.3, 0.3, odd, 0, 0, 0, 0, 0, 0, 0};
    struct amp_crop c = DRAW(&plain, 100, 100, 0, flipped, 14);
    CHECK(c.flip);
    CHECK_INT(c.right, 0);
    CHECK_INT(c.top, 0);
    const double stays[] = {0, 0, 0.9, 0.2, 0.3, 0.3, 0, 0, 0, 0, 0, 0, 0, odd};
    c = DRAW(&plain, 100, 100, 0, stays, 14);
    CHECK(c.left != 0 && c.top != 0);
}

AMP_TEST(a_cut_with_nothing_in_it_is_the_picture)
{
    struct amp_crop_rules rules = plain;
    const double all_gone[] = {0, 0, 0.99, 0.99, 0.5, 0.5, 0};
    rules.jitter = 0.6f;
    struct amp_crop c = DRAW(&rules, 100, 50, AMP_NO_MOSAIC, all_gone, 13);
    CHECK(c.left == 0 && c.top == 0 && c.w == 100 && c.h == 50);
    const double beside[] = {0, 0, 0.99, 0.01, 0.5, 0.5, 0};
    rules.jitter = 1.5f;
    c = DRAW(&rules, 100, 50, AMP_NO_MOSAIC, beside, 13);
    CHECK(c.left == 0 && c.top == 0 && c.w == 100 && c.h == 50);
    CHECK_INT(c.right, -147);
}

/* Whatever is drawn, crop.h can cut it: there is an area, and some of the picture in it. */
AMP_TEST(there_is_always_something_to_see)
{
    for (int i = 0; i < 3000; i++) {
        int w = 1 + (int)(test_random() % 300), h = 1 + (int)(test_random() % 300);
        struct amp_crop_rules rules = {.w = 32 + (int)(test_random() % 100),
                                       .h = 32 + (int)(test_random() % 100),
                                       .jitter = (float)test_uniform(0, 2),
                                       .resize = (float)test_uniform(0.3, 3),
                                       .letter_box = test_random() % 2,
                                       .flip = test_random() % 2,
                                       .hue = (float)test_uniform(0, 1),
                                       .saturation = (float)test_uniform(1, 3),
                                       .exposure = (float)test_uniform(1, 3)};
        struct given g = {0};
        struct amp_random random = source(&g);
        struct amp_crop c;
        amp_crop_draw(&rules, w, h, (int)(test_random() % 5) - 1, &random, &c);
        CHECK(c.w > 0 && c.h > 0 && c.left < w && c.top < h);
        CHECK(c.left + c.w > 0 && c.top + c.h > 0);
        CHECK(fabsf(c.hue) <= rules.hue);
        CHECK(c.saturation >= 0.999f / rules.saturation && c.saturation <= rules.saturation);
        CHECK(c.exposure >= 0.999f / rules.exposure && c.exposure <= rules.exposure);
    }
}

/* ---- the rest ---- */

AMP_TEST(labels_are_all_there_once)
{
    int order[40], seen[40] = {0};
    struct given g = {0};
    struct amp_random random = source(&g);
    amp_label_order_draw(40, &random, order);
    CHECK_INT(g.used, 40);
    for (int i = 0; i < 40; i++)
        seen[order[i]]++;
    for (int i = 0; i < 40; i++)
        CHECK_INT(seen[i], 1);
}

AMP_TEST(mixing)
{
    struct amp_cut cuts[8];
    int mixed[5] = {0};
    for (int i = 0; i < 4000; i++) {
        struct given g = {0};
        struct amp_random random = source(&g);
        enum amp_mixing asked =
            (enum amp_mixing[]){AMP_MIX_NONE, AMP_MIX_TWO, AMP_MIX_MOSAIC, AMP_MIX_ANY}[i % 4];
        struct amp_mix mix = amp_mix_draw(asked, 100, 50, 8, &random, cuts);
        int coins = asked == AMP_MIX_ANY && mix.mixing != AMP_MIX_NONE ? 3 : 2;
        CHECK_INT(g.used, coins + (mix.mixing == AMP_MIX_MOSAIC ? 16 : 0));
        CHECK_INT(mix.rounds, mix.mixing == AMP_MIX_NONE ? 1 : mix.mixing == AMP_MIX_TWO ? 2 : 4);
        mixed[asked] += mix.mixing != AMP_MIX_NONE;
        for (int k = 0; mix.mixing == AMP_MIX_MOSAIC && k < 8; k++)
            CHECK(cuts[k].x >= 20 && cuts[k].x <= 80 && cuts[k].y >= 10 && cuts[k].y <= 40);
    }
    CHECK_INT(mixed[AMP_MIX_NONE], 0);
    /* Half of 1000; six standard deviations are 95. */
    CHECK_NEAR(mixed[AMP_MIX_TWO], 500, 95);
    CHECK_NEAR(mixed[AMP_MIX_MOSAIC], 500, 95);
    CHECK_NEAR(mixed[AMP_MIX_ANY], 500, 95);
}

AMP_TEST(sizes)
{
    struct amp_size_rules rules = {.coefficient = 1.4f, .step = 32};
    CHECK_INT(amp_size_of(&rules, 416, 1.4f), 608);     /* 19.2 steps */
    CHECK_INT(amp_size_of(&rules, 416, 1 / 1.4f), 320); /* 10.3 */
    CHECK_INT(amp_size_of(&rules, 416, 1), 448);        /* always one step up */
    CHECK_INT(amp_size_of(&rules, 416, 0.99f), 416);    /* but for less than it was */
    CHECK_INT(amp_size_of(&rules, 32, 0.01f), 32);
    for (int i = 0; i < 1000; i++) {
        struct given g = {0};
        struct amp_random random = source(&g);
        float scale = amp_size_draw(&rules, &random);
        CHECK_INT(g.used, 2);
        int side = amp_size_of(&rules, 416, scale);
        CHECK(side % 32 == 0 && side >= 320 && side <= 608);
    }
}

AMP_TEST_MAIN
