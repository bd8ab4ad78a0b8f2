/* Two or four pictures in one: where the parts lie and which truths stay. Against recordings:
 * tests/recordings/loader.py. */
#include "tests/rig/harness.h"

#include "plugin/images/mix.h"

enum { W = 96, H = 64, MOST = 20 };
static const struct amp_truth_rules rules = {.w = W, .h = H, .classes = 3, .max = MOST};

static int random_in(int low, int high)
{
    return low + (int)(test_random() % (uint64_t)(high - low + 1));
}

static struct amp_crop random_crop(void)
{
    struct amp_crop c = {.picture_w = random_in(20, 500), .picture_h = random_in(20, 500)};
    c.left = random_in(-c.picture_w, c.picture_w / 3);
    c.right = random_in(-c.picture_w, c.picture_w / 3);
    c.top = random_in(-c.picture_h, c.picture_h / 3);
    c.bottom = random_in(-c.picture_h, c.picture_h / 3);
    c.w = c.picture_w - c.left - c.right;
    c.h = c.picture_h - c.top - c.bottom;
    c.flip = test_random() % 2;
    return c;
}

AMP_TEST(four_parts_make_the_whole)
{
    for (int i = 0; i < 500; i++) {
        struct amp_cut cut = {random_in(W / 5, W * 4 / 5), random_in(H / 5, H * 4 / 5)};
        int times[H][W] = {{0}};
        for (int round = 0; round < AMP_MOSAIC_ROUNDS; round++) {
            struct amp_crop c = random_crop();
            struct amp_part p = amp_mosaic_part(&rules, &c, &cut, round);
            CHECK(p.from_x >= 0 && p.from_x + p.w <= W && p.from_y >= 0 && p.from_y + p.h <= H);
            for (int y = 0; y < p.h; y++)
                for (int x = 0; x < p.w; x++)
                    times[p.y + y][p.x + x]++;
        }
        for (int k = 0; k < W * H; k++)
            if (times[k / W][k % W] != 1)
                TEST_FAIL("(%d, %d) is written %d times", k % W, k / W, times[k / W][k % W]);
        if (test_failures) return;
    }
}

/* Without borders the parts meet at the pictures' own corners; a border that is added is not shown,
 * as far as there is enough of the picture. */
AMP_TEST(added_borders_are_moved_away)
{
    struct amp_cut cut = {40, 30};
    struct amp_crop c = {.w = 100, .h = 100, .picture_w = 100, .picture_h = 100};
    struct amp_part p = amp_mosaic_part(&rules, &c, &cut, 0);
    CHECK_INT(p.from_x, W - 40);
    CHECK_INT(p.from_y, H - 30);
    c.right = c.bottom = -25; /* a quarter of the picture: 24 and 16 pixels */
    p = amp_mosaic_part(&rules, &c, &cut, 0);
    CHECK_INT(p.from_x, W - 40 - 24);
    CHECK_INT(p.from_y, H - 30 - 16);
    p = amp_mosaic_part(&rules, &c, &cut, 3);
    CHECK_INT(p.from_x, 0);
    CHECK_INT(p.from_y, 0);
    c.flip = true; /* what was added at the right is at the left now; up and down stay */
    p = amp_mosaic_part(&rules, &c, &cut, 3);
    CHECK_INT(p.from_x, 24);
    CHECK_INT(p.from_y, 0);
    c.right = -90; /* 86 pixels, of which the part leaves no more than 40 */
    p = amp_mosaic_part(&rules, &c, &cut, 3);
    CHECK_INT(p.from_x, 40);
}

static void random_truths(float *truths, int n)
{
    for (int i = 0; i < n; i++, truths += AMP_TRUTH_FLOATS) {
        double left = test_uniform(0, 0.95), top = test_uniform(0, 0.95);
        double right = test_uniform(left, 1), bottom = test_uniform(top, 1);
        truths[0] = (float)(left + right) / 2;
        truths[1] = (float)(top + bottom) / 2;
        truths[2] = (float)(right - left);
        truths[3] = (float)(bottom - top);
        truths[4] = (float)(i % rules.classes);
    }
}

/* Its overlap with the part, in pixels. Boxes of whole pixels may lose one at each end. */
static double overlap(const float *t, const struct amp_part *p)
{
    double left = (t[0] - t[2] / 2) * W - p->from_x, right = (t[0] + t[2] / 2) * W - p->from_x;
    double top = (t[1] - t[3] / 2) * H - p->from_y, bottom = (t[1] + t[3] / 2) * H - p->from_y;
    double w = fmin(right, p->w) - fmax(left, 0), h = fmin(bottom, p->h) - fmax(top, 0);
    return fmin(w, h);
}

AMP_TEST(bounded_truths_stay_in_their_part)
{
    for (int i = 0; i < 2000; i++) {
        struct amp_cut cut = {random_in(W / 5, W * 4 / 5), random_in(H / 5, H * 4 / 5)};
        struct amp_crop c = random_crop();
        struct amp_part p = amp_mosaic_part(&rules, &c, &cut, random_in(0, 3));
        float one[AMP_TRUTH_FLOATS], truth[AMP_TRUTH_FLOATS];
        random_truths(one, 1);
        int kept = amp_mosaic_truths(&rules, &p, true, truth, 0, one, 1);
        double pixels = overlap(one, &p);
        if (pixels >= 3.01) CHECK_INT(kept, 1);
        if (pixels <= 0.99) CHECK_INT(kept, 0);
        if (!kept) continue;
        double left = (truth[0] - truth[2] / 2) * W, right = (truth[0] + truth[2] / 2) * W;
        double top = (truth[1] - truth[3] / 2) * H, bottom = (truth[1] + truth[3] / 2) * H;
        CHECK(left >= p.x - 1e-4 && right <= p.x + p.w + 1e-4);
        CHECK(top >= p.y - 1e-4 && bottom <= p.y + p.h + 1e-4);
        CHECK_NEAR(left, rint(left), 1e-4);
        CHECK_NEAR(bottom, rint(bottom), 1e-4);
        CHECK(right - left > 1 && bottom - top > 1);
    }
}

AMP_TEST(truths_keep_their_size_inside)
{
    struct amp_part p = {.x = 40, .y = 0, .w = W - 40, .h = 30, .from_x = 10, .from_y = 5};
    float inside[AMP_TRUTH_FLOATS] = {30.0f / W, 20.0f / H, 10.5f / W, 8.25f / H, 2}, truth[5];
    CHECK_INT(amp_mosaic_truths(&rules, &p, false, truth, 0, inside, 1), 1);
    CHECK_NEAR(truth[0] * W, 60, 1e-4);
    CHECK_NEAR(truth[1] * H, 15, 1e-4);
    CHECK_NEAR(truth[2] * W, 10.5, 1e-4);
    CHECK_NEAR(truth[3] * H, 8.25, 1e-4);
    CHECK_NEAR(truth[4], 2, 0);
    inside[0] = 62.0f / W; /* from 86.75 to 97.25: a whole pixel is over the edge */
    CHECK_INT(amp_mosaic_truths(&rules, &p, false, truth, 0, inside, 1), 1);
    CHECK_NEAR(truth[0] * W, (86.75 + 96.25) / 2, 1e-4);
    inside[0] = 72.0f / W; /* nothing is left */
    CHECK_INT(amp_mosaic_truths(&rules, &p, false, truth, 0, inside, 1), 0);
}

/* Room counts what is looked at. */
AMP_TEST(the_room_is_kept)
{
    struct amp_part p = {.w = W, .h = H};
    float truths[MOST * AMP_TRUTH_FLOATS], others[10 * AMP_TRUTH_FLOATS];
    random_truths(others, 10);
    for (int i = 0; i < 10; i++) {
        others[i * AMP_TRUTH_FLOATS + 2] = i == 1 ? 0.001f : 0.2f; /* one is too narrow */
        others[i * AMP_TRUTH_FLOATS + 3] = 0.2f;
        others[i * AMP_TRUTH_FLOATS] = others[i * AMP_TRUTH_FLOATS + 1] = 0.5f;
    }
    CHECK_INT(amp_mosaic_truths(&rules, &p, false, truths, 0, others, 10), 9);
    CHECK_INT(amp_mosaic_truths(&rules, &p, false, truths, MOST - 3, others, 10), MOST - 1);
    CHECK_INT(amp_mosaic_truths(&rules, &p, false, truths, MOST, others, 10), MOST);
    CHECK_INT(amp_mixup_truths(&rules, truths, 0, others, 10), 10);
    CHECK_INT(amp_mixup_truths(&rules, truths, MOST - 3, others, 10), MOST);
    CHECK_NEAR(truths[(MOST - 2) * AMP_TRUTH_FLOATS + 2], 0.001, 1e-9);
}

AMP_TEST(mixup_is_the_mean)
{
    float a[100], b[100], mean[100];
    for (int i = 0; i < 100; i++) {
        a[i] = (float)random_in(0, 255) / 255;
        b[i] = (float)random_in(0, 255) / 255;
        mean[i] = (float)(((double)a[i] + b[i]) / 2);
    }
    amp_mixup_planes(a, b, 100);
    for (int i = 0; i < 100; i++)
        CHECK_NEAR(a[i], mean[i], 1e-7);
}

AMP_TEST_MAIN
