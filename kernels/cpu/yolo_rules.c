/* A yolo head's loss by the rules of AlexeyAB's Darknet, struct ampk_yolo_rules; yolo_box.h has the
 * formulas of one box.
 *
 * The labels of all images are read first. Then every box is judged by all truths of its image, as
 * many cells at once as a vector has lanes, and the truths that fall to a box of the mask are drawn
 * in their order. Truths of different boxes of the mask do not meet: threads share the images and
 * their boxes. */
#include "yolo.h"

/* A truth whose class exists. cell -1: its centre is outside of the grid. */
struct label {
    struct ampk_box box;
    int class, cell, anchor; /* anchor: the one that fits best */
    float multiplier;
};

/* A pass. labels: of image i from i * room on, counts[i] of them. */
struct pass {
    struct head h;
    struct ampk_yolo_rules rules;
    struct label *labels;
    int *counts;
    size_t room;
};

/* What one box of the mask in one image leaves. */
struct unit {
    double any_object, iou, giou, category, object, places, others;
    int recall, recall75, count;
};

/* ---- labels ---- */

static bool read_label(const struct pass *p, const float *truth, struct label *label)
{
    const struct head *h = &p->h;
    int i = cell_of(truth[0], h->w), j = cell_of(truth[1], h->h);
    bool exists = fabsf(truth[4]) < 1e6f && (int)truth[4] >= 0 && (int)truth[4] < h->o->classes;
    *label = (struct label){.box = truth_box(truth),
                            .class = class_of(h->o, truth[4]),
                            .cell = i < 0 || j < 0 ? -1 : j * (int)h->w + i,
                            .anchor = best_anchor(h, truth)};
    if (!exists || label->class < 0) return false;
    label->multiplier = ampk_multiplier_of(&p->rules, label->class);
    return true;
}

static void read_labels(struct pass *p, size_t image)
{
    int truths;
    const float *truth = truths_of(&p->h, image, &truths);
    struct label *labels = p->labels + image * p->room;
    p->counts[image] = 0;
    for (int t = 0; t < truths; t++)
        p->counts[image] += read_label(p, truth + 5 * t, labels + p->counts[image]);
}

/* ---- what a truth draws; first: entry 0 of the box ---- */

static struct ampk_box box_of(const struct head *h, size_t first, int anchor, size_t cell)
{
    const float *x = h->out + first, *size = h->o->anchor_sizes + 2 * anchor;
    bool new_coords = h->o->new_coords;
    return (struct ampk_box){
        ((float)(cell % h->w) + x[0]) / (float)h->w,
        ((float)(cell / h->w) + x[h->area]) / (float)h->h,
        ampk_side_scale(x[2 * h->area], new_coords) * size[0] / (float)h->o->net_w,
        ampk_side_scale(x[3 * h->area], new_coords) * size[1] / (float)h->o->net_h};
}

static void pull_squared(const struct pass *p, size_t first, int anchor, size_t cell,
                         struct ampk_box t, float weight)
{
    const struct head *h = &p->h;
    const float *size = h->o->anchor_sizes + 2 * anchor;
    bool new_coords = h->o->new_coords;
    float goal[4] = {t.x * (float)h->w - (float)(cell % h->w),
                     t.y * (float)h->h - (float)(cell / h->w),
                     ampk_side_goal(t.w * (float)h->o->net_w / size[0], new_coords),
                     ampk_side_goal(t.h * (float)h->o->net_h / size[1], new_coords)};
    for (size_t k = 0; k < 4; k++) {
        size_t i = first + k * h->area;
        h->delta[i] += weight * (2 - t.w * t.h) * (goal[k] - h->out[i]);
    }
}

static void pull_box(const struct pass *p, size_t first, int anchor, size_t cell,
                     const struct label *t)
{
    const struct head *h = &p->h;
    float weight = p->rules.iou_normalizer * t->multiplier;
    if (p->rules.box_loss == AMPK_BOX_MSE) {
        pull_squared(p, first, anchor, cell, t->box, weight);
        return;
    }
    struct ampk_box d =
        ampk_box_delta(&p->rules, h->o->new_coords, box_of(h, first, anchor, cell), t->box,
                       h->out[first + 2 * h->area], h->out[first + 3 * h->area], weight);
    const float add[4] = {d.x, d.y, d.w, d.h};
    for (size_t k = 0; k < 4; k++)
        h->delta[first + k * h->area] += add[k];
}

/* If the truth's class has a delta already, it alone is drawn. */
static void pull_classes(const struct pass *p, size_t first, const struct label *t)
{
    const struct head *h = &p->h;
    size_t own = first + (size_t)(CLASSES + t->class) * h->area;
    float out = h->out[own];
    if (h->delta[own] != 0) {
        float d = (ampk_class_goal(&p->rules, true) - out) * t->multiplier;
        h->delta[own] = ampk_finite_or(d, h->delta[own]);
        return;
    }
    float focal = p->rules.focal_loss ? ampk_focal_factor(out) : 0;
    for (int k = 0; k < h->o->classes; k++) {
        size_t i = first + (size_t)(CLASSES + k) * h->area;
        float d = ampk_class_delta(&p->rules, h->out[i], k == t->class, t->multiplier, focal);
        h->delta[i] = ampk_finite_or(d, h->delta[i]);
    }
}

/* ---- every box, by all truths ---- */

static bool shows_a_class(const struct head *h, size_t first)
{
    for (int k = 0; k < h->o->classes; k++)
        if (h->out[first + (size_t)(CLASSES + k) * h->area] > .25f) return true;
    return false;
}

/* A box so near a truth that it counts as that truth. */
static void be_truth(const struct pass *p, size_t first, int anchor, size_t cell,
                     const struct label *t, float object, float iou)
{
    const struct head *h = &p->h;
    bool smooth = p->rules.objectness_smooth;
    size_t own = first + (size_t)(CLASSES + t->class) * h->area;
    float goal = smooth ? iou * iou : 1;
    h->delta[first + OBJECT * h->area] = p->rules.obj_normalizer * (goal - object);
    pull_classes(p, first, t);
    if (smooth) h->delta[own] = t->multiplier * (goal - h->out[own]);
    pull_box(p, first, anchor, cell, t);
}

/* v where it is finite, else 0. */
AMPK_INLINE ampk_vec finite_or_zero(ampk_vec v)
{
    const ampk_vec zero = ampk_vec_set(0);
    return ampk_vec_if_equal(v - v, zero, v, zero);
}

/* The cells i.. of row j of a box; first: entry 0 of the first of them. Returns the sum of their
 * objectness. */
AMPK_INLINE double judge_cells(const struct pass *p, size_t first, int anchor, size_t i, size_t j,
                               const struct label *labels, int count, const bool new_coords)
{
    const struct head *h = &p->h;
    size_t left = h->w - i, object = first + OBJECT * h->area;
    struct boxes own = boxes_at(h, h->out + first, anchor, i, j, left, new_coords);
    const ampk_vec zero = ampk_vec_set(0);
    ampk_vec best = zero, best_t = zero;
    for (int t = 0; t < count; t++) {
        ampk_vec iou = ious_of(&own, labels[t].box);
        best_t = ampk_vec_if_greater(iou, best, ampk_vec_set((float)t), best_t);
        best = ampk_vec_if_greater(iou, best, iou, best);
    }
    ampk_vec out = ampk_vec_load(h->out, object, AMPK_FP32, left);
    if (count) out = finite_or_zero(out);
    ampk_vec_store(h->delta, object, AMPK_FP32, left,
                   ampk_vec_set(p->rules.obj_normalizer) * (zero - out));
    float overlaps[AMPK_LANES], which[AMPK_LANES], objects[AMPK_LANES];
    ampk_vec_store(overlaps, 0, AMPK_FP32, AMPK_LANES, best);
    ampk_vec_store(which, 0, AMPK_FP32, AMPK_LANES, best_t);
    ampk_vec_store(objects, 0, AMPK_FP32, AMPK_LANES, out);
    float ignore = h->o->ignore_thresh;
    float as_truth = h->o->truth_thresh < 1 ? h->o->truth_thresh : INFINITY;
    for (size_t k = 0; k < AMPK_LANES && k < left; k++) {
        if (overlaps[k] > ignore && shows_a_class(h, first + k))
            h->delta[object + k] =
                ampk_background_delta(&p->rules, ignore, objects[k], overlaps[k]);
        if (overlaps[k] > as_truth)
            be_truth(p, first + k, anchor, j * h->w + i + k, labels + (int)which[k], objects[k],
                     overlaps[k]);
    }
    return ampk_vec_sum(out);
}

AMPK_INLINE double judge_rows(const struct pass *p, size_t first, int anchor,
                              const struct label *labels, int count, const bool new_coords)
{
    double object = 0;
    for (size_t j = 0; j < p->h.h; j++)
        for (size_t i = 0; i < p->h.w; i += AMPK_LANES)
            object +=
                judge_cells(p, first + j * p->h.w + i, anchor, i, j, labels, count, new_coords);
    return object;
}

/* All cells of a box of an image, whose delta is cleared first. Returns the sum of objectness. */
static double judge_box(const struct pass *p, size_t image, size_t box)
{
    const struct head *h = &p->h;
    const struct label *labels = p->labels + image * p->room;
    size_t first = first_of(h, image, box);
    int anchor = anchor_of(h, box), count = p->counts[image];
    memset(h->delta + first, 0, (CLASSES + h->o->classes) * h->area * sizeof(float));
    return h->o->new_coords ? judge_rows(p, first, anchor, labels, count, true)
                            : judge_rows(p, first, anchor, labels, count, false);
}

/* ---- every truth, in its boxes ---- */

static void take_truth(const struct pass *p, size_t first, int anchor, const struct label *t,
                       struct unit *sum)
{
    const struct head *h = &p->h;
    size_t cell = (size_t)t->cell, object = first + OBJECT * h->area;
    struct ampk_box own = box_of(h, first, anchor, cell);
    struct ampk_box_overlap overlap = ampk_overlap_of(own, t->box);
    float confidence = ampk_finite_or(h->out[object], 0), iou = ampk_iou_of(&overlap);
    pull_box(p, first, anchor, cell, t);
    if (!p->rules.objectness_smooth || fabsf(h->delta[object]) < FLT_MIN)
        h->delta[object] = t->multiplier * p->rules.obj_normalizer * (1 - confidence);
    pull_classes(p, first, t);
    sum->iou += iou;
    sum->giou += ampk_giou_of(&overlap);
    sum->recall += iou > .5f;
    sum->recall75 += iou > .75f;
    sum->object += confidence;
    sum->category += h->out[first + (size_t)(CLASSES + t->class) * h->area];
    sum->count++;
}

static bool anchor_fits(const struct pass *p, int anchor, struct ampk_box truth)
{
    const struct ampk_yolo_head *o = p->h.o;
    const float *size = o->anchor_sizes + 2 * anchor;
    struct ampk_box own = {0, 0, size[0] / (float)o->net_w, size[1] / (float)o->net_h};
    return p->rules.iou_thresh < 1 &&
           ampk_shape_fit(p->rules.iou_thresh_kind, own, truth) > p->rules.iou_thresh;
}

/* The truths that fall to a box of the mask. Of boxes with the same anchor the first takes them. */
static void take_truths(const struct pass *p, size_t image, size_t box, struct unit *sum)
{
    const struct label *labels = p->labels + image * p->room;
    int anchor = anchor_of(&p->h, box);
    for (size_t k = 0; k < box; k++)
        if (anchor_of(&p->h, k) == anchor) return;
    for (int t = 0; t < p->counts[image]; t++)
        if (labels[t].cell >= 0 &&
            (labels[t].anchor == anchor || anchor_fits(p, anchor, labels[t].box)))
            take_truth(p, first_of(&p->h, image, box) + (size_t)labels[t].cell, anchor, &labels[t],
                       sum);
}

/* Shares a box's delta out among the classes that it is to show. */
static void share_out(const struct head *h, size_t first)
{
    float *delta = h->delta + first;
    size_t area = h->area;
    bool drawn = delta[0] != 0 || delta[area] != 0 || delta[2 * area] != 0 || delta[3 * area] != 0;
    if (!drawn || delta[OBJECT * area] == 0) return;
    int wanted = 0;
    for (int k = 0; k < h->o->classes; k++)
        wanted += delta[(size_t)(CLASSES + k) * area] > 0;
    for (size_t k = 0; k < 4 && wanted > 0; k++)
        delta[k * area] /= (float)wanted;
}

/* ---- sums ---- */

static double squares_of(const float *x, size_t n)
{
    double sum = 0;
    for (size_t first = 0; first < n; first += AMPK_SUM_RUN) {
        size_t end = n - first < AMPK_SUM_RUN ? n : first + AMPK_SUM_RUN;
        ampk_vec run = ampk_vec_set(0);
        for (size_t i = first; i < end; i += AMPK_LANES) {
            ampk_vec v = ampk_vec_load(x, i, AMPK_FP32, end - i);
            run = ampk_vec_fma(v, v, run);
        }
        sum += ampk_vec_sum(run);
    }
    return sum;
}

static void run_unit(const struct pass *p, size_t image, size_t box, struct unit *u)
{
    const struct head *h = &p->h;
    size_t first = first_of(h, image, box);
    *u = (struct unit){.any_object = judge_box(p, image, box)};
    take_truths(p, image, box, u);
    for (size_t cell = 0; p->rules.iou_thresh < 1 && cell < h->area; cell++)
        share_out(h, first + cell);
    u->places = squares_of(h->delta + first, OBJECT * h->area);
    u->others =
        squares_of(h->delta + first + OBJECT * h->area, (size_t)(1 + h->o->classes) * h->area);
}

/* In the order of the boxes, so that the sums do not depend on the number of threads. */
static struct unit add_units(const struct unit *units, size_t count)
{
    struct unit all = {0};
    for (size_t i = 0; i < count; i++) {
        const struct unit *u = &units[i];
        all.any_object += u->any_object, all.object += u->object, all.category += u->category;
        all.iou += u->iou, all.giou += u->giou;
        all.places += u->places, all.others += u->others;
        all.recall += u->recall, all.recall75 += u->recall75, all.count += u->count;
    }
    return all;
}

static double cost_of(const struct ampk_yolo_rules *r, const struct unit *all)
{
    double overlap = r->box_loss == AMPK_BOX_GIOU ? all->giou : all->iou;
    if (r->box_loss == AMPK_BOX_MSE) return all->places + all->others;
    return r->iou_normalizer * (all->count - overlap) / fmax(all->count, 1) +
           r->obj_normalizer * all->others;
}

void AMPK_CPU(yolo_loss_by_rules)(struct ampk_context *ctx, const struct ampk_yolo_head *o,
                                  const struct ampk_tensor *out, const float *truth, float *delta,
                                  struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    struct pass p = {.h = open_head(o, out), .rules = *o->rules};
    p.h.truth = truth;
    p.h.delta = delta;
    p.room = (size_t)o->truths;
    size_t images = p.h.images, boxes = images * (size_t)o->boxes;
    struct unit *units = ampk_memory(ctx, boxes * sizeof *units +
                                              images * (p.room * sizeof *p.labels + sizeof(int)));
    p.labels = (struct label *)(units + boxes);
    p.counts = (int *)(p.labels + images * p.room);
#pragma omp parallel for num_threads(ctx->threads) if (images > 1)
    for (size_t image = 0; image < images; image++)
        read_labels(&p, image);
#pragma omp parallel for num_threads(ctx->threads) if (boxes > 1)
    for (size_t box = 0; box < boxes; box++)
        run_unit(&p, box / o->boxes, box % o->boxes, &units[box]);
    struct unit all = add_units(units, boxes);
    *sums = (struct ampk_loss_sums){.cost = (float)cost_of(&p.rules, &all),
                                    .iou = (float)all.iou,
                                    .category = (float)all.category,
                                    .object = (float)all.object,
                                    .any_object = (float)all.any_object,
                                    .recall = (float)all.recall,
                                    .recall75 = (float)all.recall75,
                                    .count = (float)all.count,
                                    .category_count = (float)all.count,
                                    .giou = (float)all.giou,
                                    .box_squares = (float)all.places};
    AMPK_CPU(amax)(ctx, delta, images * ampk_image_size(out), delta_amax);
}
