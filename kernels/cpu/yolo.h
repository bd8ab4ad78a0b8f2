/* What the two losses of the CPU's yolo head share, Darknet's own (yolo.c) and that of a head with
 * rules (yolo_rules.c): the entries of a box, boxes of as many cells as a vector has lanes, labels.
 */
#ifndef AMPK_CPU_YOLO_H
#define AMPK_CPU_YOLO_H

#include "arithmetic.h"
#include "kernels/yolo_box.h"

struct head {
    const struct ampk_yolo_head *o;
    const float *out, *truth;
    float *delta;
    size_t images, w, h, area;
};

enum { OBJECT = 4, CLASSES = 5 }; /* entries of a box; 0 to 3: x, y, w, h */

static inline struct head open_head(const struct ampk_yolo_head *o, const struct ampk_tensor *out)
{
    return (struct head){.o = o,
                         .out = out->data,
                         .images = (size_t)out->n,
                         .w = (size_t)out->w,
                         .h = (size_t)out->h,
                         .area = (size_t)out->w * out->h};
}

/* Index of entry 0 of a box in cell 0; entry k of cell c is k * area + c further. */
static inline size_t first_of(const struct head *h, size_t image, size_t box)
{
    return (image * h->o->boxes + box) * (size_t)(CLASSES + h->o->classes) * h->area;
}

static inline int anchor_of(const struct head *h, size_t box)
{
    return h->o->mask ? h->o->mask[box] : (int)box;
}

/* ---- boxes ---- */

static inline float overlap(float x1, float w1, float x2, float w2)
{
    return fminf(x1 + w1 / 2, x2 + w2 / 2) - fmaxf(x1 - w1 / 2, x2 - w2 / 2);
}

/* Intersection over union. */
static inline float iou_of(struct ampk_box a, struct ampk_box b)
{
    float w = overlap(a.x, a.w, b.x, b.w), h = overlap(a.y, a.h, b.y, b.h);
    float both = w < 0 || h < 0 ? 0 : w * h;
    return both / (a.w * a.h + b.w * b.h - both);
}

/* The same for a vector of boxes and one other. */
struct boxes {
    ampk_vec left, right, top, bottom, size;
};

AMPK_INLINE ampk_vec smaller(ampk_vec a, ampk_vec b)
{
    return ampk_vec_if_greater(a, b, b, a);
}

AMPK_INLINE ampk_vec larger(ampk_vec a, ampk_vec b)
{
    return ampk_vec_if_greater(a, b, a, b);
}

AMPK_INLINE ampk_vec ious_of(const struct boxes *a, struct ampk_box b)
{
    const ampk_vec zero = ampk_vec_set(0);
    ampk_vec w = smaller(a->right, ampk_vec_set(b.x + b.w / 2)) -
                 larger(a->left, ampk_vec_set(b.x - b.w / 2));
    ampk_vec h = smaller(a->bottom, ampk_vec_set(b.y + b.h / 2)) -
                 larger(a->top, ampk_vec_set(b.y - b.h / 2));
    ampk_vec both = larger(w, zero) * larger(h, zero);
    return both / (a->size + ampk_vec_set(b.w * b.h) - both);
}

/* Sides over the anchors', from their outputs. */
AMPK_INLINE ampk_vec side_scale(ampk_vec out, const bool new_coords)
{
    if (new_coords) return out * out * ampk_vec_set(4);
    return ampk_vec_exp(out);
}

/* The boxes of cells i.. of row j, from their outputs at x; `left` cells are there. new_coords is a
 * constant at each call. */
AMPK_INLINE struct boxes boxes_at(const struct head *h, const float *x, int anchor, size_t i,
                                  size_t j, size_t left, const bool new_coords)
{
    static const float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const float *size = h->o->anchor_sizes + 2 * anchor;
    const ampk_vec half = ampk_vec_set(.5f);
    ampk_vec v[4];
    for (int k = 0; k < 4; k++)
        v[k] = ampk_vec_load(x + k * h->area, 0, AMPK_FP32, left);
    ampk_vec column = ampk_vec_load(lane, 0, AMPK_FP32, AMPK_LANES) + ampk_vec_set((float)i);
    ampk_vec cx = (column + v[0]) / ampk_vec_set((float)h->w);
    ampk_vec cy = (ampk_vec_set((float)j) + v[1]) / ampk_vec_set((float)h->h);
    ampk_vec w = side_scale(v[2], new_coords) * ampk_vec_set(size[0] / (float)h->o->net_w);
    ampk_vec height = side_scale(v[3], new_coords) * ampk_vec_set(size[1] / (float)h->o->net_h);
    return (struct boxes){cx - w * half, cx + w * half, cy - height * half, cy + height * half,
                          w * height};
}

/* ---- truths ---- */

/* The labels of an image; *count of them. */
static inline const float *truths_of(const struct head *h, size_t image, int *count)
{
    const float *truth = h->truth + image * h->o->truths * 5;
    int most = h->o->truths_used < h->o->truths ? h->o->truths_used : h->o->truths;
    for (*count = 0; *count < most && truth[*count * 5] != 0;)
        ++*count;
    return truth;
}

static inline struct ampk_box truth_box(const float *truth)
{
    return (struct ampk_box){truth[0], truth[1], truth[2], truth[3]};
}

/* From a coordinate to the cell of an axis. -1: outside, or not a number. */
static inline int cell_of(float at, size_t cells)
{
    float place = at * (float)cells;
    int cell = fabsf(place) < 1e5f ? (int)place : -1;
    return cell < (int)cells ? cell : -1;
}

/* From a label to a class, by the map if there is one. -1: there is no such class. */
static inline int class_of(const struct ampk_yolo_head *o, float label)
{
    int class = fabsf(label) < 1e6f ? (int)label : -1;
    if (o->map) class = class >= 0 && class < o->map_size ? o->map[class] : -1;
    return class >= 0 && class < o->classes ? class : -1;
}

/* The anchor with the best overlap, at the same centre. */
static inline int best_anchor(const struct head *h, const float *truth)
{
    float best = 0;
    int best_n = 0;
    for (int n = 0; n < h->o->anchors; n++) {
        const float *size = h->o->anchor_sizes + 2 * n;
        struct ampk_box anchor = {0, 0, size[0] / (float)h->o->net_w, size[1] / (float)h->o->net_h};
        float iou = iou_of(anchor, (struct ampk_box){0, 0, truth[2], truth[3]});
        if (iou > best) best = iou, best_n = n;
    }
    return best_n;
}

/* yolo_rules.c: yolo_loss of a head with rules. */
__typeof__(*ampk_cpu.yolo_loss) AMPK_CPU(yolo_loss_by_rules);

#endif
