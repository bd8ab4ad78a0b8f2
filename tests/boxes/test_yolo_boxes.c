/* Boxes of a head against their definition in double precision, and pictures: a box that is put
 * into the network's input and taken out again is where it was. */

#include "tests/rig/harness.h"

#include "plugin/boxes/boxes.h"

enum { BOXES = 3, CLASSES = 4, ANCHORS = 6, MOST_CELLS = 12 * 12 };

struct random_head {
    struct amp_yolo_output head;
    int mask[BOXES];
    float anchors[2 * ANCHORS], output[MOST_CELLS * BOXES * (5 + CLASSES)];
};

static int pick(int n)
{
    return (int)(test_random() % (uint64_t)n);
}

static void make_head(struct random_head *r)
{
    int w = 1 + pick(12), h = 1 + pick(12);
    r->head = (struct amp_yolo_output){.output = r->output,
                                       .w = w,
                                       .h = h,
                                       .boxes = BOXES,
                                       .classes = CLASSES,
                                       .mask = r->mask,
                                       .anchors = r->anchors,
                                       .net_w = 32 * w,
                                       .net_h = 32 * h,
                                       .new_coords = pick(2)};
    for (int i = 0; i < BOXES; i++)
        r->mask[i] = pick(ANCHORS);
    for (int i = 0; i < 2 * ANCHORS; i++)
        r->anchors[i] = (float)test_uniform(4, 200);
    for (int i = 0; i < w * h * BOXES * (5 + CLASSES); i++)
        r->output[i] = (float)test_uniform(0, 1);
}

static float at_plane(const struct random_head *r, int box, int plane, int row, int column)
{
    return r->output[((box * (5 + CLASSES) + plane) * r->head.h + row) * r->head.w + column];
}

/* One box of a stretched picture against the definition. */
static void check_box(const struct random_head *r, int box, int row, int column, int at,
                      float thresh)
{
    const struct amp_yolo_picture picture = {640, 480, false};
    float values[5 + CLASSES], prob[CLASSES];
    struct amp_centre_box b;
    for (int plane = 0; plane < 5 + CLASSES; plane++)
        values[plane] = at_plane(r, box, plane, row, column);
    double w = r->head.new_coords ? 4 * pow((double)values[2], 2) : exp((double)values[2]);
    double h = r->head.new_coords ? 4 * pow((double)values[3], 2) : exp((double)values[3]);
    CHECK(amp_yolo_read(&r->head, &picture, at, thresh, &b, prob) == values[4]);
    /* A float has 24 bits, so half a unit of the last place is 6e-8 of the value. */
    double exact[] = {(column + (double)values[0]) / r->head.w,
                      (row + (double)values[1]) / r->head.h,
                      w * (double)r->anchors[2 * r->mask[box]] / r->head.net_w,
                      h * (double)r->anchors[2 * r->mask[box] + 1] / r->head.net_h};
    double found[] = {(double)b.x, (double)b.y, (double)b.w, (double)b.h};
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(found[i], exact[i], 1e-7 * exact[i]);
    for (int k = 0; k < CLASSES; k++) {
        float p = values[4] * values[5 + k];
        CHECK(prob[k] == (p > thresh ? p : 0));
    }
}

/* Cell by cell, within a cell box by box; those above the threshold and no others. */
AMP_TEST(boxes_in_order)
{
    static struct random_head r;
    for (int round = 0; round < 50; round++) {
        float thresh = (float)test_uniform(0, 1);
        int at = -1;
        make_head(&r);
        for (int row = 0; row < r.head.h; row++) {
            for (int column = 0; column < r.head.w; column++) {
                for (int box = 0; box < BOXES; box++) {
                    if (at_plane(&r, box, 4, row, column) <= thresh) continue;
                    at = amp_yolo_next(&r.head, at + 1, thresh);
                    REQUIRE(at >= 0);
                    check_box(&r, box, row, column, at, thresh);
                }
            }
        }
        CHECK_INT(amp_yolo_next(&r.head, at + 1, thresh), -1);
    }
}

AMP_TEST(equal_or_undefined_is_not_above)
{
    static struct random_head r;
    make_head(&r);
    for (int i = 0; i < r.head.w * r.head.h * BOXES * (5 + CLASSES); i++)
        r.output[i] = .5f;
    CHECK_INT(amp_yolo_next(&r.head, 0, .5f), -1);
    CHECK_INT(amp_yolo_next(&r.head, 0, .49f), 0);
    for (int i = 0; i < r.head.w * r.head.h * BOXES * (5 + CLASSES); i++)
        r.output[i] = NAN;
    CHECK_INT(amp_yolo_next(&r.head, 0, -1), -1);
}

/* Where letterbox_image puts a picture: w x h pixels in the middle, the longer side all over the
 * input. Its left and top are rounded down to whole pixels, its centre is not; so a box may be off
 * by half a pixel of the input. */
AMP_TEST(letterboxes_are_left)
{
    static struct random_head r;
    for (int round = 0; round < 200; round++) {
        struct amp_yolo_picture picture = {1 + pick(2000), 1 + pick(2000), true};
        struct amp_centre_box inner, outer;
        float prob[CLASSES];
        make_head(&r);
        int at = pick(r.head.w * r.head.h * BOXES), net_w = r.head.net_w, net_h = r.head.net_h;
        int w = net_w, h = net_h;
        if ((long)net_w * picture.h < (long)net_h * picture.w)
            h = picture.h * net_w / picture.w;
        else
            w = picture.w * net_h / picture.h;
        if (w == 0 || h == 0) continue;
        amp_yolo_read(&r.head, &picture, at, 0, &outer, prob);
        picture.letterbox = false;
        amp_yolo_read(&r.head, &picture, at, 0, &inner, prob);
        /* Back into the input, in pixels; 1e-6 of it for the floats between, times how much larger
         * the picture is. */
        double left = (net_w - w) / 2., top = (net_h - h) / 2.;
        CHECK_NEAR((double)outer.x * w + left, (double)inner.x * net_w, 1e-6 * net_w);
        CHECK_NEAR((double)outer.y * h + top, (double)inner.y * net_h, 1e-6 * net_h);
        CHECK_NEAR((double)outer.w * w, (double)inner.w * net_w, 1e-6 * (double)inner.w * net_w);
        CHECK_NEAR((double)outer.h * h, (double)inner.h * net_h, 1e-6 * (double)inner.h * net_h);
    }
}

AMP_TEST_MAIN
