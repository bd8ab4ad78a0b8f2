/* Random yolo and region heads with random truths, for the tests of the losses. The arrays are
 * host memory that belongs to the case. */
#ifndef CONFORMANCE_HEADS_H
#define CONFORMANCE_HEADS_H

#include "kernels/kernels.h"
#include "tests/rig/harness.h"

enum { MOST_BOXES = 5, MOST_ANCHORS = 9, MOST_CLASSES = 40, MOST_TRUTHS = 90, MOST_COORDS = 8 };

struct head_case {
    int n, h, w, classes, coords, boxes, room; /* room: of truths, per image */
    float anchor_sizes[2 * MOST_ANCHORS];
    int mask[MOST_ANCHORS];
    int map[MOST_CLASSES];
    int parent[MOST_CLASSES], group[MOST_CLASSES], offset[MOST_CLASSES], size[MOST_CLASSES];
    float *x, *truth; /* the head's input; n * room * (coords + 1) */
    struct ampk_yolo_head yolo;
    struct ampk_region_head region;
};

static int head_int(int low, int high)
{
    return low + (int)(test_random() % (uint64_t)(high - low + 1));
}

static int head_chance(int one_in)
{
    return test_random() % (uint64_t)one_in == 0;
}

static size_t head_count(const struct head_case *c)
{
    return (size_t)c->n * c->h * c->w * c->boxes * (c->coords + 1 + c->classes);
}

static struct ampk_tensor head_tensor(const struct head_case *c, float *data)
{
    int channels = c->boxes * (c->coords + 1 + c->classes);
    return (struct ampk_tensor){.data = data,
                                .dtype = AMPK_FP32,
                                .layout = AMPK_NCHW,
                                .n = c->n,
                                .c = channels,
                                .h = c->h,
                                .w = c->w,
                                .image_stride = head_count(c) / c->n};
}

/* ---- truths ---- */

static void head_place(float *truth)
{
    for (int k = 0; k < 2; k++) {
        truth[k] = (float)test_uniform(1e-3, .999);
        truth[2 + k] = (float)(head_chance(4) ? test_uniform(.001, .02) : test_uniform(.02, 1));
    }
}

/* Some of an image's truths are others over again, wholly, or in the same cell. */
static void head_image_truths(const struct head_case *c, float *truth)
{
    int numbers = c->coords + 1;
    int count = head_chance(4)   ? 0
                : head_chance(4) ? c->room
                                 : head_int(1, c->room < 9 ? c->room : 9);
    for (int t = 0; t < count; t++) {
        float *own = truth + t * numbers;
        head_place(own);
        if (t && head_chance(3)) {
            const float *other = truth + head_int(0, t - 1) * numbers;
            memcpy(own, other, (size_t)(head_chance(2) ? 4 : 2) * sizeof *own);
        }
        for (int k = 4; k < c->coords; k++)
            own[k] = (float)test_uniform(0, 1);
        own[c->coords] = (float)head_int(0, c->classes - 1);
    }
}

static void head_truths(struct head_case *c)
{
    size_t image = (size_t)c->room * (c->coords + 1);
    c->truth = calloc(c->n * image + 1, sizeof(float));
    REQUIRE(c->truth);
    for (int n = 0; n < c->n; n++)
        head_image_truths(c, c->truth + n * image);
}

/* ---- heads ---- */

static void head_shape(struct head_case *c)
{
    c->n = head_int(1, 3);
    c->h = head_int(1, 7);
    c->w = head_int(1, head_chance(2) ? 7 : 40); /* a row of several vectors, or of a part */
    c->classes = (int[]){1, 2, 3, 20, MOST_CLASSES}[test_random() % 5];
    for (int i = 0; i < MOST_CLASSES; i++)
        c->map[i] = head_int(0, c->classes - 1);
}

static void head_input(struct head_case *c)
{
    c->x = malloc(head_count(c) * sizeof(float));
    REQUIRE(c->x);
    for (size_t i = 0; i < head_count(c); i++)
        c->x[i] = (float)test_uniform(-4, 4);
    size_t area = (size_t)c->h * c->w, per_box = (size_t)(c->coords + 1 + c->classes) * area;
    for (size_t i = 0; i < head_count(c); i++) /* widths and heights around the anchors' */
        if (i % per_box / area == 2 || i % per_box / area == 3) c->x[i] /= 4;
}

static void head_free(struct head_case *c)
{
    free(c->x);
    free(c->truth);
}

static void random_yolo(struct head_case *c)
{
    head_shape(c);
    c->coords = 4;
    c->room = head_chance(2) ? 90 : head_int(1, 12);
    c->boxes = head_int(1, 3);
    int anchors = head_int(c->boxes, MOST_ANCHORS), size = 32 * head_int(1, 4);
    int first = head_int(0, anchors - c->boxes);
    for (int i = 0; i < c->boxes; i++)
        c->mask[i] = first + i;
    for (int i = 0; i < 2 * anchors; i++)
        c->anchor_sizes[i] = (float)(size * test_uniform(.02, 1));
    c->yolo =
        (struct ampk_yolo_head){.boxes = c->boxes,
                                .anchors = anchors,
                                .classes = c->classes,
                                .anchor_sizes = c->anchor_sizes,
                                .mask = c->mask,
                                .map = head_chance(3) ? c->map : NULL,
                                .map_size = MOST_CLASSES,
                                .ignore_thresh = (float)test_uniform(.05, .7),
                                .truth_thresh = head_chance(2) ? 1 : (float)test_uniform(.1, .7),
                                .net_w = size,
                                .net_h = size + 32,
                                .truths = c->room,
                                .truths_used = head_chance(8)   ? c->room + 5
                                               : head_chance(3) ? head_int(1, c->room)
                                                                : c->room};
    head_input(c);
    head_truths(c);
}

/* Groups of classes whose parents come before them, as read_tree makes them. */
static void random_tree(struct head_case *c, struct ampk_tree *tree)
{
    int groups = 0;
    for (int i = 0; i < c->classes; groups++) {
        int n = head_int(1, c->classes - i < 5 ? c->classes - i : 5);
        c->offset[groups] = i;
        c->size[groups] = n;
        int parent = groups ? head_int(c->offset[groups - 1], i - 1) : -1;
        for (; n > 0; n--, i++) {
            c->parent[i] = parent;
            c->group[i] = groups;
        }
    }
    *tree = (struct ampk_tree){c->classes, groups, c->parent, c->group, c->offset, c->size};
}

static float random_scale(void)
{
    return head_chance(2) ? 1 : (float)test_uniform(.2, 5);
}

/* A class without a place, in an image. */
static void place_nowhere(struct head_case *c)
{
    size_t numbers = (size_t)c->coords + 1;
    float *truth = c->truth + (size_t)head_int(0, c->n - 1) * c->room * numbers;
    truth[0] = truth[1] = 999999;
    truth[c->coords] = (float)head_int(0, c->classes - 1);
}

__attribute__((unused)) static void random_region(struct head_case *c, int tree)
{
    head_shape(c);
    c->coords = head_chance(3) ? head_int(5, MOST_COORDS) : 4;
    c->room = 30;
    c->boxes = head_int(1, MOST_BOXES);
    for (int i = 0; i < 2 * c->boxes; i++)
        c->anchor_sizes[i] = (float)test_uniform(.1, c->w);
    c->region = (struct ampk_region_head){.boxes = c->boxes,
                                          .classes = c->classes,
                                          .coords = c->coords,
                                          .anchor_sizes = c->anchor_sizes,
                                          .map = head_chance(3) ? c->map : NULL,
                                          .map_size = MOST_CLASSES,
                                          .softmax = tree || head_chance(2),
                                          .background = !tree && head_chance(4),
                                          .bias_match = head_chance(2),
                                          .rescore = head_chance(2),
                                          .thresh = (float)test_uniform(.05, .7),
                                          .coord_scale = random_scale(),
                                          .object_scale = random_scale(),
                                          .noobject_scale = random_scale(),
                                          .class_scale = random_scale(),
                                          .mask_scale = head_int(1, 3),
                                          .warm_up = head_chance(2),
                                          .truths = c->room};
    if (tree) random_tree(c, &c->region.tree);
    head_input(c);
    head_truths(c);
    if (tree && head_chance(2)) place_nowhere(c);
}

#endif
