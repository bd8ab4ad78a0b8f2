/* From labels to truths: against double precision, and the edges of the rules. Against recordings:
 * tests/recordings/loader.py. */
#include "tests/rig/harness.h"

#include "plugin/images/truths.h"

enum { LABELS = 30 };
static const struct amp_truth_rules rules = {.w = 100, .h = 50, .classes = 4, .max = 20};
static const int in_order[LABELS] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14,
                                     15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29};

static struct amp_crop whole(int w, int h)
{
    return (struct amp_crop){.w = w, .h = h, .picture_w = w, .picture_h = h};
}

static int keep(const struct amp_crop *crop, struct amp_box_label label, float *truth)
{
    return amp_crop_truths(&rules, crop, &label, 1, in_order, truth);
}

/* ---- against double precision ---- */

static double clip(double x)
{
    return fmin(fmax(x, 0), 1);
}

/* In pixels of the picture; false if it is so near a limit that float may decide otherwise. */
static bool expect(const struct amp_crop *c, const struct amp_box_label *l, double box[4],
                   bool *kept)
{
    double left = clip((((double)l->x - l->w / 2.0) * c->picture_w - c->left) / c->w);
    double right = clip((((double)l->x + l->w / 2.0) * c->picture_w - c->left) / c->w);
    double top = clip((((double)l->y - l->h / 2.0) * c->picture_h - c->top) / c->h);
    double bottom = clip((((double)l->y + l->h / 2.0) * c->picture_h - c->top) / c->h);
    double w = (right - left) * rules.w, h = (bottom - top) * rules.h;
    box[0] = (left + right) / 2;
    if (c->flip) box[0] = 1 - box[0];
    box[1] = (top + bottom) / 2;
    box[2] = right - left;
    box[3] = bottom - top;
    *kept = w >= 1 && h >= 1;
    return fabs(w - 1) > 1e-3 && fabs(h - 1) > 1e-3;
}

AMP_TEST(boxes_move_with_the_cut)
{
    int kept_count = 0, dropped = 0;
    for (int i = 0; i < 5000; i++) {
        struct amp_crop c = whole(200, 300);
        c.left = (int)test_uniform(-80, 80);
        c.top = (int)test_uniform(-80, 80);
        c.w = (int)test_uniform(50, 300);
        c.h = (int)test_uniform(50, 300);
        c.flip = test_random() % 2;
        struct amp_box_label l = {(int)(test_random() % 4), (float)test_uniform(0, 1),
                                  (float)test_uniform(0, 1), (float)test_uniform(0, 0.3),
                                  (float)test_uniform(0, 0.3)};
        float truth[AMP_TRUTH_FLOATS];
        double box[4];
        bool kept;
        if (!expect(&c, &l, box, &kept)) continue;
        REQUIRE(keep(&c, l, truth) == kept);
        kept_count += kept;
        dropped += !kept;
        for (int k = 0; kept && k < 4; k++)
            CHECK_NEAR(truth[k], box[k], 1e-6);
        if (kept) CHECK_INT((int)truth[4], l.class_id);
    }
    CHECK(kept_count > 1000 && dropped > 100);
}

/* ---- edges ---- */

AMP_TEST(what_is_left_out)
{
    struct amp_crop c = whole(100, 100);
    float truth[AMP_TRUTH_FLOATS];
    struct amp_box_label good = {3, 0.5f, 0.5f, 0.2f, 0.2f};
    CHECK_INT(keep(&c, good, truth), 1);
    const struct amp_box_label bad[] = {
        {4, 0.5f, 0.5f, 0.2f, 0.2f},    {-1, 0.5f, 0.5f, 0.2f, 0.2f},
        {0, 0, 0, 0.9f, 0.9f},          {0, 1.6f, 0.5f, 0.2f, 0.2f},
        {0, 0.5f, -0.6f, 0.2f, 0.2f},   {0, 0.5f, 0.5f, 0.0099f, 0.2f},
        {0, 0.5f, 0.5f, 0.2f, 0.0199f}, {0, NAN, 0.5f, 0.2f, 0.2f},
        {0, 0.5f, 0.5f, 0.2f, NAN},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (keep(&c, bad[i], truth)) TEST_FAIL("label %zu is kept", i);
    /* Outside the picture, though the cut reaches over there. */
    c.left = c.top = -100;
    c.w = c.h = 300;
    CHECK_INT(keep(&c, bad[3], truth), 0);
    CHECK_INT(keep(&c, good, truth), 1);
}

/* The room counts labels, not what is kept of them. */
AMP_TEST(the_room_is_cut_first)
{
    struct amp_crop c = whole(100, 100);
    struct amp_box_label labels[LABELS];
    float truths[LABELS * AMP_TRUTH_FLOATS];
    int order[LABELS];
    for (int i = 0; i < LABELS; i++) {
        order[i] = LABELS - 1 - i;
        labels[i] = (struct amp_box_label){i % 2 ? 1 : 9, 0.5f, 0.5f, 0.2f, 0.2f};
    }
    memset(truths, 0x7f, sizeof truths);
    CHECK_INT(amp_crop_truths(&rules, &c, labels, LABELS, order, truths), 10);
    CHECK_INT((int)truths[4], 1);
    uint32_t after;
    memcpy(&after, &truths[10 * AMP_TRUTH_FLOATS], sizeof after);
    CHECK_INT(after, 0x7f7f7f7f);
}

AMP_TEST_MAIN
