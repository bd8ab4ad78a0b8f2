/* Reference: Darknet's yolo_layer.c. Boxes first, then truth by truth, because a later truth
 * overwrites an earlier one in the same box. */
#include "activation.h"
#include "head.h"
#include "tensor.h"

double ampk_ref_closest_decision = INFINITY;

/* w and h (entries 2 and 3) have no logistic: they are exponents. */
void ampk_ref_yolo_forward(struct ampk_context *context, const struct ampk_yolo_head *o,
                           const struct ampk_tensor *x, const struct ampk_tensor *out,
                           uint32_t *amax)
{
    (void)context;
    for (int n = 0; n < x->n; n++)
        for (int c = 0; c < x->c; c++)
            for (int h = 0; h < x->h; h++)
                for (int w = 0; w < x->w; w++) {
                    int entry = c % (5 + o->classes);
                    double v = ampk_ref_get(x, n, c, h, w);
                    if (entry != 2 && entry != 3) v = ampk_ref_activate(v, AMPK_LOGISTIC);
                    ampk_ref_set(out, n, c, h, w, v, false, amax);
                }
}

/* The state of one loss. */
struct yolo {
    const struct ampk_yolo_head *o;
    const float *out, *truth;
    float *delta;
    int w, h, area;
    double iou, category, object, any_object, recall, recall75, count;
};

/* Index of an entry. location counts n * area cells, as Darknet's entry_index. */
static size_t at(const struct yolo *y, int image, int location, int entry)
{
    size_t n = (size_t)(location / y->area), per_box = (size_t)(5 + y->o->classes);
    size_t plane = ((size_t)image * y->o->boxes + n) * per_box + entry;
    return plane * y->area + location % y->area;
}

/* The box that the outputs from `first` on describe, at cell (i, j). */
static struct ampk_ref_box box_at(const struct yolo *y, size_t first, int anchor, int i, int j)
{
    const float *x = y->out + first, *size = y->o->anchor_sizes + 2 * anchor;
    return (struct ampk_ref_box){
        .x = (i + (double)x[0]) / y->w,
        .y = (j + (double)x[y->area]) / y->h,
        .w = exp(x[2 * y->area]) * size[0] / y->o->net_w,
        .h = exp(x[3 * y->area]) * size[1] / y->o->net_h,
    };
}

/* Draws a box towards truth t, and returns their overlap. Small truths weigh more (scale). */
static double draw_box(struct yolo *y, struct ampk_ref_box t, size_t first, int anchor, int i,
                       int j)
{
    const float *x = y->out + first, *size = y->o->anchor_sizes + 2 * anchor;
    double scale = 2 - t.w * t.h;
    double goal[4] = {t.x * y->w - i, t.y * y->h - j, log(t.w * y->o->net_w / size[0]),
                      log(t.h * y->o->net_h / size[1])};
    for (int k = 0; k < 4; k++)
        y->delta[first + k * y->area] = (float)(scale * (goal[k] - x[k * y->area]));
    return ampk_ref_iou(box_at(y, first, anchor, i, j), t);
}

/* Draws the classes. If the box already has a class, only the new class is touched, as in Darknet.
 * Returns the output of the class, 0 if there is no such class. */
static double draw_class(struct yolo *y, size_t first, int class)
{
    bool exists = class >= 0 && class < y->o->classes, again = y->delta[first] != 0;
    for (int k = 0; k < y->o->classes; k++)
        if (!again || k == class)
            y->delta[first + k * y->area] =
                (float)((k == class ? 1 : 0) - (double)y->out[first + k * y->area]);
    return exists ? y->out[first + class * y->area] : 0;
}

static int truths_of(const struct ampk_yolo_head *o)
{
    return o->truths_used < o->truths ? o->truths_used : o->truths;
}

static const float *truth_at(const struct yolo *y, int image, int t)
{
    return y->truth + 5 * ((size_t)image * y->o->truths + t);
}

static int class_of(const struct yolo *y, const float *truth)
{
    return ampk_ref_class(truth[4], y->o->map, y->o->map_size);
}

static int anchor_of(const struct yolo *y, int box)
{
    return y->o->mask ? y->o->mask[box] : box;
}

/* Objectness of one box, by its best overlap with any truth. `second` shows how close the choice
 * of the best truth was. */
static void judge_cell(struct yolo *y, int image, int location)
{
    int i = location % y->area % y->w, j = location % y->area / y->w;
    int anchor = anchor_of(y, location / y->area);
    struct ampk_ref_box box = box_at(y, at(y, image, location, 0), anchor, i, j);
    double best = 0, second = 0;
    const float *best_truth = NULL;
    for (int t = 0; t < truths_of(y->o); t++) {
        const float *truth = truth_at(y, image, t);
        if (truth[0] == 0) break;
        double iou = ampk_ref_iou(box, ampk_ref_truth_box(truth));
        if (iou > best) second = best, best = iou, best_truth = truth;
        if (iou < best && iou > second) second = iou;
    }
    size_t object = at(y, image, location, 4);
    y->any_object += y->out[object];
    bool ignored = ampk_ref_exceeds(best, y->o->ignore_thresh);
    y->delta[object] = ignored ? 0 : -y->out[object];
    if (!ampk_ref_exceeds(best, y->o->truth_thresh)) return;
    ampk_ref_exceeds(best, second);
    y->delta[object] = (float)(1 - (double)y->out[object]);
    draw_class(y, at(y, image, location, 5), class_of(y, best_truth));
    draw_box(y, ampk_ref_truth_box(best_truth), at(y, image, location, 0), anchor, i, j);
}

/* The anchor with the best overlap, at the same centre. */
static int best_anchor(const struct yolo *y, struct ampk_ref_box truth)
{
    double best = 0;
    int best_n = 0;
    for (int n = 0; n < y->o->anchors; n++) {
        struct ampk_ref_box anchor =
            ampk_ref_centred((double)y->o->anchor_sizes[2 * n] / y->o->net_w,
                             (double)y->o->anchor_sizes[2 * n + 1] / y->o->net_h);
        double iou = ampk_ref_iou(anchor, ampk_ref_centred(truth.w, truth.h));
        if (ampk_ref_exceeds(iou, best)) best = iou, best_n = n;
    }
    return best_n;
}

/* The truth goes to the box of this head that has the best anchor, if there is one. */
static void take_truth(struct yolo *y, int image, const float *truth)
{
    struct ampk_ref_box t = ampk_ref_truth_box(truth);
    int i = ampk_ref_cell(truth[0], y->w), j = ampk_ref_cell(truth[1], y->h);
    int anchor = best_anchor(y, t), box = 0;
    while (box < y->o->boxes && anchor_of(y, box) != anchor)
        box++;
    if (box == y->o->boxes || i < 0 || j < 0 || i >= y->w || j >= y->h) return;
    int location = box * y->area + j * y->w + i;
    double iou = draw_box(y, t, at(y, image, location, 0), anchor, i, j);
    size_t object = at(y, image, location, 4);
    y->object += y->out[object];
    y->delta[object] = (float)(1 - (double)y->out[object]);
    y->category += draw_class(y, at(y, image, location, 5), class_of(y, truth));
    y->iou += iou;
    y->recall += ampk_ref_exceeds(iou, .5);
    y->recall75 += ampk_ref_exceeds(iou, .75);
    y->count++;
}

void ampk_ref_yolo_loss(struct ampk_context *context, const struct ampk_yolo_head *o,
                        const struct ampk_tensor *out, const float *truth, float *delta,
                        struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    size_t count = ampk_ref_count(out);
    struct yolo y = {.o = o,
                     .out = out->data,
                     .truth = truth,
                     .delta = delta,
                     .w = out->w,
                     .h = out->h,
                     .area = out->w * out->h};
    for (size_t i = 0; i < count; i++)
        delta[i] = 0;
    for (int image = 0; image < out->n; image++) {
        for (int location = 0; location < o->boxes * y.area; location++)
            judge_cell(&y, image, location);
        for (int t = 0; t < truths_of(o) && truth_at(&y, image, t)[0] != 0; t++)
            take_truth(&y, image, truth_at(&y, image, t));
    }
    ampk_ref_amax(context, delta, count, delta_amax);
    *sums = (struct ampk_loss_sums){.cost = (float)ampk_ref_squares(delta, count),
                                    .iou = (float)y.iou,
                                    .category = (float)y.category,
                                    .object = (float)y.object,
                                    .any_object = (float)y.any_object,
                                    .recall = (float)y.recall,
                                    .recall75 = (float)y.recall75,
                                    .count = (float)y.count,
                                    .category_count = (float)y.count};
}
