/* What the reference's yolo and region heads share: boxes, the entries of a head, labels, sums. The
 * heads' own rules are in yolo.c, yolo_rules.c and region.c. */
#ifndef AMPK_REFERENCE_HEADS_H
#define AMPK_REFERENCE_HEADS_H

#include "operations.h"
#include "tensor.h"

/* a > b, for decisions that depend on rounding: lowers ampk_ref_closest_decision. */
bool ampk_ref_exceeds(double a, double b);

/* ---- boxes ---- */

/* Centre and sides, as fractions of the image. */
struct box {
    double x, y, w, h;
};

static inline double overlap(double x1, double w1, double x2, double w2)
{
    return fmin(x1 + w1 / 2, x2 + w2 / 2) - fmax(x1 - w1 / 2, x2 - w2 / 2);
}

/* Intersection over union. */
static inline double iou_of(struct box a, struct box b)
{
    double w = overlap(a.x, a.w, b.x, b.w), h = overlap(a.y, a.h, b.y, b.h);
    double both = w < 0 || h < 0 ? 0 : w * h;
    return both / (a.w * a.h + b.w * b.h - both);
}

static inline struct box truth_box(const float *truth)
{
    return (struct box){truth[0], truth[1], truth[2], truth[3]};
}

static inline struct box centred(struct box b)
{
    return (struct box){0, 0, b.w, b.h};
}

/* ---- what both heads have ---- */

/* The state of one loss. */
struct head {
    const struct ampk_yolo_head *yolo; /* or region; the other one is NULL */
    const struct ampk_region_head *region;
    const float *out, *truth;
    float *delta;
    int boxes, entries, w, h, area;
    int truths, truth_size; /* labels of an image, numbers of a label */
    const float *anchor_sizes;
    int anchor_w, anchor_h; /* the image's sides in the anchors' unit */
    double iou, category, object, any_object, recall, recall75, count, category_count, giou;
};

/* Index of an entry. location counts n * area cells, as Darknet's entry_index. */
static inline size_t at(const struct head *h, int image, int location, int entry)
{
    size_t box = (size_t)image * h->boxes + (size_t)(location / h->area);
    return (box * h->entries + entry) * h->area + location % h->area;
}

static inline struct box anchor_at(const struct head *h, int anchor)
{
    const float *size = h->anchor_sizes + 2 * anchor;
    return (struct box){0, 0, (double)size[0] / h->anchor_w, (double)size[1] / h->anchor_h};
}

/* The box that the outputs from `first` on describe, at cell (i, j). */
static inline struct box box_at(const struct head *h, size_t first, int anchor, int i, int j)
{
    const float *x = h->out + first, *size = h->anchor_sizes + 2 * anchor;
    bool new_coords = h->yolo && h->yolo->new_coords;
    double w = x[2 * h->area], height = x[3 * h->area];
    return (struct box){
        .x = (i + (double)x[0]) / h->w,
        .y = (j + (double)x[h->area]) / h->h,
        .w = (new_coords ? 4 * w * w : exp(w)) * size[0] / h->anchor_w,
        .h = (new_coords ? 4 * height * height : exp(height)) * size[1] / h->anchor_h,
    };
}

/* Draws a box towards t, and returns their overlap. */
static inline double draw_box(struct head *h, struct box t, double scale, size_t first, int anchor,
                              int i, int j)
{
    const float *x = h->out + first, *size = h->anchor_sizes + 2 * anchor;
    double goal[4] = {t.x * h->w - i, t.y * h->h - j, log(t.w * h->anchor_w / size[0]),
                      log(t.h * h->anchor_h / size[1])};
    for (int k = 0; k < 4; k++)
        h->delta[first + k * h->area] = (float)(scale * (goal[k] - x[k * h->area]));
    return iou_of(box_at(h, first, anchor, i, j), t);
}

/* Draws the classes; if the box already has one (again), only the new class is touched, as in
 * Darknet. */
static inline void draw_classes(struct head *h, size_t first, int classes, int class, double scale,
                                bool again)
{
    for (int k = 0; k < classes; k++) {
        size_t i = first + (size_t)k * h->area;
        if (!again || k == class)
            h->delta[i] = (float)(scale * ((k == class ? 1 : 0) - (double)h->out[i]));
    }
}

/* Label t of an image; NULL behind the last one. */
static inline const float *truth_at(const struct head *h, int image, int t, int truths_used)
{
    const float *truth = h->truth + (size_t)h->truth_size * ((size_t)image * h->truths + t);
    return t < truths_used && truth[0] != 0 ? truth : NULL;
}

/* From a coordinate (a fraction) to the cell of an axis with so many cells, as in Darknet: an FP32
 * product, cut to an int. -1 if it is outside or not a number. */
static inline int cell_of(float at, int cells)
{
    float place = at * (float)cells;
    int cell = fabsf(place) < 1e5f ? (int)place : -1;
    return cell < cells ? cell : -1;
}

/* From a label to a class, by the map if there is one. -1 if there is no such class. */
static inline int class_of(float label, const int *map, int map_size)
{
    int class = fabsf(label) < 1e6f ? (int)label : -1;
    if (map) class = class >= 0 && class < map_size ? map[class] : -1;
    return class;
}

static inline void count_truth(struct head *h, double iou)
{
    h->iou += iou;
    h->recall += ampk_ref_exceeds(iou, .5);
    h->recall75 += ampk_ref_exceeds(iou, .75);
    h->count++;
    h->category_count++;
}

/* The cost is the sum of the squares of delta. */
static inline struct ampk_loss_sums sums_of(const struct head *h, size_t count)
{
    double cost = 0;
    for (size_t i = 0; i < count; i++)
        cost += (double)h->delta[i] * h->delta[i];
    return (struct ampk_loss_sums){.cost = (float)cost,
                                   .iou = (float)h->iou,
                                   .category = (float)h->category,
                                   .object = (float)h->object,
                                   .any_object = (float)h->any_object,
                                   .recall = (float)h->recall,
                                   .recall75 = (float)h->recall75,
                                   .count = (float)h->count,
                                   .category_count = (float)h->category_count,
                                   .giou = (float)h->giou};
}

/* ---- yolo, by either rules ---- */

static inline struct head open_yolo(const struct ampk_yolo_head *o, const struct ampk_tensor *out)
{
    return (struct head){.yolo = o,
                         .out = out->data,
                         .boxes = o->boxes,
                         .entries = 5 + o->classes,
                         .w = out->w,
                         .h = out->h,
                         .area = out->w * out->h,
                         .truths = o->truths,
                         .truth_size = 5,
                         .anchor_sizes = o->anchor_sizes,
                         .anchor_w = o->net_w,
                         .anchor_h = o->net_h};
}

static inline const float *yolo_truth_at(const struct head *h, int image, int t)
{
    int used = h->yolo->truths_used < h->truths ? h->yolo->truths_used : h->truths;
    return truth_at(h, image, t, used);
}

static inline int yolo_anchor_of(const struct head *h, int box)
{
    return h->yolo->mask ? h->yolo->mask[box] : box;
}

/* The anchor with the best overlap, at the same centre. */
static inline int best_anchor_of(const struct head *h, struct box truth)
{
    double best = 0;
    int best_n = 0;
    for (int n = 0; n < h->yolo->anchors; n++) {
        double iou = iou_of(anchor_at(h, n), centred(truth));
        if (ampk_ref_exceeds(iou, best)) best = iou, best_n = n;
    }
    return best_n;
}

/* The first box of this head with an anchor, -1: none. */
static inline int yolo_box_of(const struct head *h, int anchor)
{
    for (int box = 0; box < h->boxes; box++)
        if (yolo_anchor_of(h, box) == anchor) return box;
    return -1;
}

/* yolo_rules.c: the loss of an opened head that has rules. */
void ampk_ref_yolo_loss_by_rules(struct head *, int images, struct ampk_loss_sums *);

#endif
