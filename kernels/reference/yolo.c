/* Reference: Darknet's yolo_layer.c; yolo_rules.c has the loss by other rules. Boxes first, then
 * truth by truth, because a later truth overwrites an earlier one in the same box. */
#include "activation.h"
#include "heads.h"

/* w and h (entries 2 and 3) have no logistic: they are exponents. With new_coords nothing has. */
static double activated(const struct ampk_yolo_head *o, int entry, double v)
{
    double scale = o->scale_x_y != 0 ? o->scale_x_y : 1;
    bool logistic = !o->new_coords && entry != 2 && entry != 3;
    if (logistic) v = ampk_ref_activate(v, AMPK_LOGISTIC);
    return entry < 2 ? scale * v - (scale - 1) / 2 : v;
}

void ampk_ref_yolo_forward(struct ampk_context *context, const struct ampk_yolo_head *o,
                           const struct ampk_tensor *x, const struct ampk_tensor *out,
                           uint32_t *amax)
{
    (void)context;
    for (int n = 0; n < x->n; n++)
        for (int c = 0; c < x->c; c++)
            for (int h = 0; h < x->h; h++)
                for (int w = 0; w < x->w; w++) {
                    double v = activated(o, c % (5 + o->classes), ampk_ref_get(x, n, c, h, w));
                    ampk_ref_set(out, n, c, h, w, v, false, amax);
                }
}

/* Draws box and classes towards a truth. Small truths weigh more. Returns the overlap. */
static double draw_yolo_truth(struct head *h, int image, int location, int anchor,
                              const float *truth)
{
    const struct ampk_yolo_head *o = h->yolo;
    int i = location % h->area % h->w, j = location % h->area / h->w;
    size_t first = at(h, image, location, 0), object = at(h, image, location, 4);
    size_t classes = at(h, image, location, 5);
    struct box t = truth_box(truth);
    h->delta[object] = (float)(1 - (double)h->out[object]);
    draw_classes(h, classes, o->classes, class_of(truth[4], o->map, o->map_size), 1,
                 h->delta[classes] != 0);
    return draw_box(h, t, 2 - t.w * t.h, first, anchor, i, j);
}

/* Objectness of one box, by its best overlap with any truth. `second` shows how close the choice
 * of the best truth was. */
static void judge_yolo_cell(struct head *h, int image, int location)
{
    int i = location % h->area % h->w, j = location % h->area / h->w;
    int anchor = yolo_anchor_of(h, location / h->area);
    struct box box = box_at(h, at(h, image, location, 0), anchor, i, j);
    double best = 0, second = 0;
    const float *truth, *best_truth = NULL;
    for (int t = 0; (truth = yolo_truth_at(h, image, t)); t++) {
        double iou = iou_of(box, truth_box(truth));
        if (iou > best) second = best, best = iou, best_truth = truth;
        if (iou < best && iou > second) second = iou;
    }
    size_t object = at(h, image, location, 4);
    h->any_object += h->out[object];
    h->delta[object] = ampk_ref_exceeds(best, h->yolo->ignore_thresh) ? 0 : -h->out[object];
    if (!ampk_ref_exceeds(best, h->yolo->truth_thresh)) return;
    ampk_ref_exceeds(best, second);
    draw_yolo_truth(h, image, location, anchor, best_truth);
}

/* The truth goes to the box of this head that has the best anchor, if there is one. */
static void take_yolo_truth(struct head *h, int image, const float *truth)
{
    const struct ampk_yolo_head *o = h->yolo;
    int i = cell_of(truth[0], h->w), j = cell_of(truth[1], h->h);
    int anchor = best_anchor_of(h, truth_box(truth)), box = yolo_box_of(h, anchor);
    if (box < 0 || i < 0 || j < 0) return;
    int location = box * h->area + j * h->w + i;
    int class = class_of(truth[4], o->map, o->map_size);
    double iou = draw_yolo_truth(h, image, location, anchor, truth);
    h->object += h->out[at(h, image, location, 4)];
    if (class >= 0 && class < o->classes) h->category += h->out[at(h, image, location, 5 + class)];
    count_truth(h, iou);
}

void ampk_ref_yolo_loss(struct ampk_context *context, const struct ampk_yolo_head *o,
                        const struct ampk_tensor *out, const float *truth, float *delta,
                        struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    size_t count = ampk_ref_count(out);
    struct head h = open_yolo(o, out);
    h.truth = truth;
    h.delta = delta;
    memset(delta, 0, count * sizeof *delta);
    if (o->rules) {
        ampk_ref_yolo_loss_by_rules(&h, out->n, sums);
        ampk_ref_amax(context, delta, count, delta_amax);
        return;
    }
    for (int image = 0; image < out->n; image++) {
        for (int location = 0; location < o->boxes * h.area; location++)
            judge_yolo_cell(&h, image, location);
        for (int t = 0; (truth = yolo_truth_at(&h, image, t)); t++)
            take_yolo_truth(&h, image, truth);
    }
    ampk_ref_amax(context, delta, count, delta_amax);
    *sums = sums_of(&h, count);
}
