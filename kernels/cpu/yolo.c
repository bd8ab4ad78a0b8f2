/* The yolo head: its activations and its loss, by the rules of Darknet's forward_yolo_layer.
 *
 * First every box is judged by all truths, as many cells at once as a vector has lanes. Then the
 * truths of an image are drawn one after the other, since a later one overwrites what an earlier
 * one left in the same box. Threads share the images and, where truths do not meet, their boxes. */
#include "yolo.h"

/* ---- activations ---- */

/* scaled, a constant at each call: about the middle of 0 and 1. */
AMPK_INLINE uint32_t activate(const float *x, size_t n, bool logistic, const bool scaled,
                              float scale, float *out)
{
    ampk_vec_amax largest = ampk_vec_amax_zero();
    const ampk_vec factor = ampk_vec_set(scale), shift = ampk_vec_set((scale - 1) / -2);
    for (size_t i = 0; i < n; i += AMPK_LANES) {
        ampk_vec v = ampk_vec_load(x, i, AMPK_FP32, n - i);
        if (logistic) v = ampk_vec_logistic(v);
        if (scaled) v = ampk_vec_fma(v, factor, shift);
        ampk_vec_store_amax(out, i, AMPK_FP32, n - i, v, &largest);
    }
    return ampk_vec_amax_get(largest);
}

static uint32_t activate_plane(const float *x, size_t n, bool logistic, float scale, float *out)
{
    return scale == 1 ? activate(x, n, logistic, false, 1, out)
                      : activate(x, n, logistic, true, scale, out);
}

/* w and h (entries 2 and 3) have no logistic: they are exponents. With new_coords nothing has. */
void AMPK_CPU(yolo_forward)(struct ampk_context *ctx, const struct ampk_yolo_head *o,
                            const struct ampk_tensor *x, const struct ampk_tensor *out,
                            uint32_t *amax)
{
    size_t area = (size_t)x->h * x->w, planes = (size_t)x->n * x->c, entries = CLASSES + o->classes;
    const float *from = x->data;
    float *to = out->data;
    float of_centres = o->scale_x_y != 0 ? o->scale_x_y : 1;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest) if (planes > 1)
    for (size_t plane = 0; plane < planes; plane++) {
        size_t entry = plane % entries, first = plane * area;
        bool logistic = !o->new_coords && entry != 2 && entry != 3;
        float scale = entry < 2 ? of_centres : 1;
        uint32_t m = activate_plane(from + first, area, logistic, scale, to + first);
        if (m > largest) largest = m;
    }
    ampk_amax_raise(amax, largest);
}

/* ---- what a truth draws ---- */

/* Draws the classes of a box towards one. If the box has a class already, only the new one is
 * touched. */
static void draw_classes(const struct head *h, size_t first, int class, bool again)
{
    for (int k = 0; k < h->o->classes; k++) {
        size_t i = first + (size_t)(CLASSES + k) * h->area;
        if (!again || k == class) h->delta[i] = (k == class ? 1 : 0) - h->out[i];
    }
}

/* Draws place and size of a box, whose entry 0 is at `first`, towards a truth. */
static void draw_box(const struct head *h, size_t first, struct ampk_box t, int anchor, int i,
                     int j)
{
    const float *size = h->o->anchor_sizes + 2 * anchor;
    float goal[4] = {t.x * (float)h->w - (float)i, t.y * (float)h->h - (float)j,
                     logf(t.w * (float)h->o->net_w / size[0]),
                     logf(t.h * (float)h->o->net_h / size[1])};
    for (size_t k = 0; k < 4; k++)
        h->delta[first + k * h->area] = (2 - t.w * t.h) * (goal[k] - h->out[first + k * h->area]);
}

/* ---- every box, by all truths ---- */

/* A box that overlaps a truth so much that it counts as that truth. */
static void be_truth(const struct head *h, size_t first, const float *truth, int anchor, size_t i,
                     size_t j)
{
    size_t object = first + OBJECT * h->area;
    h->delta[object] = 1 - h->out[object];
    draw_classes(h, first, class_of(h->o, truth[4]), false);
    draw_box(h, first, truth_box(truth), anchor, (int)i, (int)j);
}

/* Objectness of the cells i.. of row j goes to 0, unless the box overlaps a truth enough to be
 * ignored. first: entry 0 of the first of them. Returns the sum of their objectness. */
AMPK_INLINE double judge_cells(const struct head *h, size_t first, int anchor, size_t i, size_t j,
                               const float *truth, int truths)
{
    size_t left = h->w - i, object = first + OBJECT * h->area;
    struct boxes own = boxes_at(h, h->out + first, anchor, i, j, left, false);
    const ampk_vec zero = ampk_vec_set(0);
    ampk_vec best = zero, best_t = zero;
    for (int t = 0; t < truths; t++) {
        ampk_vec iou = ious_of(&own, truth_box(truth + 5 * t));
        best_t = ampk_vec_if_greater(iou, best, ampk_vec_set((float)t), best_t);
        best = ampk_vec_if_greater(iou, best, iou, best);
    }
    ampk_vec out = ampk_vec_load(h->out, object, AMPK_FP32, left);
    ampk_vec delta = ampk_vec_if_greater(best, ampk_vec_set(h->o->ignore_thresh), zero, zero - out);
    ampk_vec_store(h->delta, object, AMPK_FP32, left, delta);
    float overlaps[AMPK_LANES], which[AMPK_LANES];
    ampk_vec_store(overlaps, 0, AMPK_FP32, AMPK_LANES, best);
    ampk_vec_store(which, 0, AMPK_FP32, AMPK_LANES, best_t);
    for (size_t k = 0; k < AMPK_LANES && k < left; k++)
        if (overlaps[k] > h->o->truth_thresh)
            be_truth(h, first + k, truth + 5 * (int)which[k], anchor, i + k, j);
    return ampk_vec_sum(out);
}

/* All cells of a box of an image, whose delta is cleared first. */
static double judge_box(const struct head *h, size_t image, size_t box)
{
    int truths;
    const float *truth = truths_of(h, image, &truths);
    size_t first = first_of(h, image, box);
    double object = 0;
    memset(h->delta + first, 0, (CLASSES + h->o->classes) * h->area * sizeof(float));
    for (size_t j = 0; j < h->h; j++)
        for (size_t i = 0; i < h->w; i += AMPK_LANES)
            object += judge_cells(h, first + j * h->w + i, anchor_of(h, box), i, j, truth, truths);
    return object;
}

/* ---- every truth, in its box ---- */

/* The box of one cell (i, j), from its outputs at x. */
static struct ampk_box box_at(const struct head *h, const float *x, int anchor, int i, int j)
{
    const float *size = h->o->anchor_sizes + 2 * anchor;
    return (struct ampk_box){((float)i + x[0]) / (float)h->w, ((float)j + x[h->area]) / (float)h->h,
                             expf(x[2 * h->area]) * size[0] / (float)h->o->net_w,
                             expf(x[3 * h->area]) * size[1] / (float)h->o->net_h};
}

/* What the statistics get from an image. */
struct taken {
    double iou, category, object;
    int recall, recall75, count;
};

/* The truth goes to the box of this head that has the best anchor, if there is one. */
static void take_truth(const struct head *h, size_t image, const float *truth, struct taken *sum)
{
    int i = cell_of(truth[0], h->w), j = cell_of(truth[1], h->h), boxes = h->o->boxes, box = 0;
    int anchor = best_anchor(h, truth), class = class_of(h->o, truth[4]);
    while (box < boxes && anchor_of(h, (size_t)box) != anchor)
        box++;
    if (box == boxes || i < 0 || j < 0) return;
    size_t first = first_of(h, image, (size_t)box) + (size_t)j * h->w + (size_t)i;
    size_t object = first + OBJECT * h->area, classes = first + CLASSES * h->area;
    draw_box(h, first, truth_box(truth), anchor, i, j);
    h->delta[object] = 1 - h->out[object];
    draw_classes(h, first, class, h->delta[classes] != 0);
    float iou = iou_of(box_at(h, h->out + first, anchor, i, j), truth_box(truth));
    sum->iou += iou;
    sum->recall += iou > .5f;
    sum->recall75 += iou > .75f;
    sum->object += h->out[object];
    if (class >= 0) sum->category += h->out[classes + (size_t) class * h->area];
    sum->count++;
}

static struct taken take_truths(const struct head *h, size_t image)
{
    struct taken sum = {0};
    int truths;
    const float *truth = truths_of(h, image, &truths);
    for (int t = 0; t < truths; t++)
        take_truth(h, image, truth + 5 * t, &sum);
    return sum;
}

/* What the threads found is added in the order of images, so that the sums do not depend on how
 * many there are. */
void AMPK_CPU(yolo_loss)(struct ampk_context *ctx, const struct ampk_yolo_head *o,
                         const struct ampk_tensor *out, const float *truth, float *delta,
                         struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    if (o->rules) {
        AMPK_CPU(yolo_loss_by_rules)(ctx, o, out, truth, delta, sums, delta_amax);
        return;
    }
    struct head h = open_head(o, out);
    h.truth = truth;
    h.delta = delta;
    size_t boxes = h.images * (size_t)o->boxes, count = h.images * ampk_image_size(out);
    double *objects = ampk_memory(ctx, boxes * sizeof *objects + h.images * sizeof(struct taken));
    struct taken *taken = (struct taken *)(objects + boxes), all = {0};
    double any_object = 0;
#pragma omp parallel for num_threads(ctx->threads) if (boxes > 1)
    for (size_t box = 0; box < boxes; box++)
        objects[box] = judge_box(&h, box / o->boxes, box % o->boxes);
#pragma omp parallel for num_threads(ctx->threads) if (h.images > 1)
    for (size_t image = 0; image < h.images; image++)
        taken[image] = take_truths(&h, image);
    for (size_t box = 0; box < boxes; box++)
        any_object += objects[box];
    for (size_t image = 0; image < h.images; image++) {
        all.iou += taken[image].iou;
        all.category += taken[image].category;
        all.object += taken[image].object;
        all.recall += taken[image].recall;
        all.recall75 += taken[image].recall75;
        all.count += taken[image].count;
    }
    *sums = (struct ampk_loss_sums){.iou = (float)all.iou,
                                    .category = (float)all.category,
                                    .object = (float)all.object,
                                    .any_object = (float)any_object,
                                    .recall = (float)all.recall,
                                    .recall75 = (float)all.recall75,
                                    .count = (float)all.count,
                                    .category_count = (float)all.count};
    AMPK_CPU(sum_squares)(ctx, delta, count, &sums->cost);
    AMPK_CPU(amax)(ctx, delta, count, delta_amax);
}
