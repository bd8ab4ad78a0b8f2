/* Reference: a yolo head's loss by the rules of AlexeyAB's Darknet, as kernels.h has them. All
 * boxes are judged first; then the truths are taken in their order, since they add up in a box.
 * Knows no formula of overlaps: those are in yolo_iou.c. */
#include "heads.h"

#include <float.h>

/* A truth that counts: its box, its class in the head, and the weight of that class. */
struct label {
    struct box box;
    int class;
    double multiplier;
};

/* False for a class that does not exist, before the map or after it. */
static bool read_label(const struct ampk_yolo_head *o, const float *truth, struct label *label)
{
    int raw = class_of(truth[4], NULL, 0), class = class_of(truth[4], o->map, o->map_size);
    if (raw < 0 || raw >= o->classes || class < 0 || class >= o->classes) return false;
    const float *multipliers = o->rules->class_multipliers;
    *label = (struct label){truth_box(truth), class, multipliers ? multipliers[class] : 1};
    return true;
}

static double iou_by(enum ampk_box_loss kind, struct box a, struct box b)
{
    return ampk_ref_iou(kind, (const double[]){a.x, a.y, a.w, a.h},
                        (const double[]){b.x, b.y, b.w, b.h}, .6);
}

/* ---- deltas of one box ---- */

/* A box of the head, at its cell. */
struct spot {
    int anchor, i, j;
    size_t first, object, classes; /* entries */
    double confidence;             /* its objectness */
};

/* has_truth: of the image. */
static struct spot spot_at(const struct head *h, int image, int location, bool has_truth)
{
    struct spot s = {.anchor = yolo_anchor_of(h, location / h->area),
                     .i = location % h->area % h->w,
                     .j = location % h->area / h->w,
                     .first = at(h, image, location, 0),
                     .object = at(h, image, location, 4),
                     .classes = at(h, image, location, 5)};
    double out = h->out[s.object];
    s.confidence = has_truth && !isfinite(out) ? 0 : out;
    return s;
}

static struct box spot_box(const struct head *h, const struct spot *s)
{
    return box_at(h, s->first, s->anchor, s->i, s->j);
}

static void draw_squared(struct head *h, const struct spot *s, struct box t, double weight)
{
    const float *x = h->out + s->first, *size = h->anchor_sizes + 2 * s->anchor;
    double w = t.w * h->anchor_w / size[0], height = t.h * h->anchor_h / size[1];
    bool new_coords = h->yolo->new_coords;
    double goal[4] = {t.x * h->w - s->i, t.y * h->h - s->j, new_coords ? sqrt(w / 4) : log(w),
                      new_coords ? sqrt(height / 4) : log(height)};
    for (int k = 0; k < 4; k++) {
        float *delta = h->delta + s->first + k * h->area;
        *delta = (float)(*delta + weight * (2 - t.w * t.h) * (goal[k] - x[k * h->area]));
    }
}

static void draw_overlap(struct head *h, const struct spot *s, struct box t, double weight)
{
    const struct ampk_yolo_rules *r = h->yolo->rules;
    struct box p = spot_box(h, s);
    const double box[4] = {p.x, p.y, p.w != 0 ? p.w : 1, p.h != 0 ? p.h : 1};
    double gradient[4];
    ampk_ref_box_gradient(r->box_loss, box, (const double[]){t.x, t.y, t.w, t.h}, gradient);
    for (int k = 0; k < 4; k++) {
        float *delta = h->delta + s->first + k * h->area;
        bool exponent = k >= 2 && !h->yolo->new_coords;
        double d = gradient[k] * weight * (exponent ? exp(h->out[s->first + k * h->area]) : 1);
        if (!isfinite(d)) d = 0;
        *delta = (float)(*delta + fmin(fmax(d, -r->max_delta), r->max_delta));
    }
}

static void draw_box_by_rules(struct head *h, const struct spot *s, const struct label *t)
{
    const struct ampk_yolo_rules *r = h->yolo->rules;
    double weight = r->iou_normalizer * t->multiplier;
    if (r->box_loss == AMPK_BOX_MSE)
        draw_squared(h, s, t->box, weight);
    else
        draw_overlap(h, s, t->box, weight);
}

/* The derivative of focal loss over that of cross-entropy; p: of the truth's class. 1e-15 keeps the
 * logarithm finite. */
static double focal(double p)
{
    double q = p + 1e-15;
    return -.5 * (1 - q) * (2 * q * log(q) + q - 1);
}

/* The delta of class k in a box without classes; p: its output. */
static double class_delta(const struct ampk_yolo_rules *r, const struct label *t, int k, double p,
                          double of_truth)
{
    bool own = k == t->class;
    if (r->focal_loss) return ((own ? 1 : 0) - p) * focal(of_truth);
    double eps = r->label_smooth_eps, goal = own ? 1 - eps / 2 : eps / 2;
    return (goal - p) * (own && r->class_multipliers ? t->multiplier * r->cls_normalizer : 1);
}

static void set_finite(float *delta, double d)
{
    if (isfinite(d)) *delta = (float)d;
}

static void draw_classes_by_rules(struct head *h, const struct spot *s, const struct label *t)
{
    const struct ampk_yolo_rules *r = h->yolo->rules;
    size_t own = s->classes + (size_t)t->class * h->area;
    double p = h->out[own], eps = r->label_smooth_eps;
    if (h->delta[own] != 0) {
        set_finite(&h->delta[own], (1 - eps / 2 - p) * t->multiplier);
        return;
    }
    for (int k = 0; k < h->yolo->classes; k++) {
        size_t i = s->classes + (size_t)k * h->area;
        set_finite(&h->delta[i], class_delta(r, t, k, h->out[i], p));
    }
}

/* ---- every box, by all truths ---- */

/* A box so near a truth that it counts as that truth. */
static void be_truth(struct head *h, const struct spot *s, const struct label *t, double iou)
{
    const struct ampk_yolo_rules *r = h->yolo->rules;
    size_t own = s->classes + (size_t)t->class * h->area;
    double goal = r->objectness_smooth ? iou * iou : 1;
    h->delta[s->object] = (float)(r->obj_normalizer * (goal - s->confidence));
    draw_classes_by_rules(h, s, t);
    if (r->objectness_smooth) {
        ampk_ref_exceeds(goal, h->out[own]); /* share_out looks at the sign */
        h->delta[own] = (float)(t->multiplier * (goal - h->out[own]));
    }
    draw_box_by_rules(h, s, t);
}

static bool shows_a_class(const struct head *h, const struct spot *s)
{
    for (int k = 0; k < h->yolo->classes; k++)
        if (h->out[s->classes + (size_t)k * h->area] > .25f) return true;
    return false;
}

/* `second` shows how close the choice of the best truth was. */
static void judge_box(struct head *h, int image, int location, bool has_truth)
{
    const struct ampk_yolo_rules *r = h->yolo->rules;
    struct spot s = spot_at(h, image, location, has_truth);
    struct box box = spot_box(h, &s);
    struct label label, best_label = {.class = 0};
    double best = 0, second = 0;
    const float *truth;
    for (int t = 0; (truth = yolo_truth_at(h, image, t)); t++) {
        if (!read_label(h->yolo, truth, &label)) continue;
        double iou = iou_by(AMPK_BOX_IOU, box, label.box);
        /* A truth that lies in the box wholly overlaps it as much as another one of its size. */
        if (iou == best && memcmp(&label.box, &best_label.box, sizeof label.box))
            second = nextafter(best, 0);
        if (iou > best) second = best, best = iou, best_label = label;
        if (iou < best && iou > second) second = iou;
    }
    h->any_object += s.confidence;
    double delta = r->obj_normalizer * (0 - s.confidence);
    if (shows_a_class(h, &s) && ampk_ref_exceeds(best, h->yolo->ignore_thresh))
        delta = r->objectness_smooth ? fmax(delta, r->obj_normalizer * (best - s.confidence)) : 0;
    h->delta[s.object] = (float)delta;
    double limit = h->yolo->truth_thresh;
    if (limit >= 1 || !ampk_ref_exceeds(best, limit)) return;
    ampk_ref_exceeds(best, second);
    be_truth(h, &s, &best_label, best);
}

/* ---- every truth, in its boxes ---- */

static void take(struct head *h, int image, int location, const struct label *t)
{
    const struct ampk_yolo_rules *r = h->yolo->rules;
    struct spot s = spot_at(h, image, location, true);
    struct box box = spot_box(h, &s);
    draw_box_by_rules(h, &s, t);
    if (!r->objectness_smooth || fabsf(h->delta[s.object]) < FLT_MIN)
        h->delta[s.object] = (float)(t->multiplier * r->obj_normalizer * (1 - s.confidence));
    draw_classes_by_rules(h, &s, t);
    h->object += s.confidence;
    h->category += h->out[s.classes + (size_t)t->class * h->area];
    h->giou += iou_by(AMPK_BOX_GIOU, box, t->box);
    count_truth(h, iou_by(AMPK_BOX_IOU, box, t->box));
}

static bool anchor_fits(const struct head *h, int anchor, struct box truth)
{
    const struct ampk_yolo_rules *r = h->yolo->rules;
    enum ampk_box_loss kind = r->iou_thresh_kind;
    if (kind == AMPK_BOX_MSE) kind = AMPK_BOX_IOU;
    return r->iou_thresh < 1 &&
           ampk_ref_exceeds(iou_by(kind, anchor_at(h, anchor), centred(truth)), r->iou_thresh);
}

static void take_truth(struct head *h, int image, const float *truth)
{
    struct label t;
    int i = cell_of(truth[0], h->w), j = cell_of(truth[1], h->h);
    if (!read_label(h->yolo, truth, &t) || i < 0 || j < 0) return;
    int best = best_anchor_of(h, t.box);
    for (int anchor = 0; anchor < h->yolo->anchors; anchor++) {
        int box = yolo_box_of(h, anchor);
        if (box < 0 || (anchor != best && !anchor_fits(h, anchor, t.box))) continue;
        take(h, image, box * h->area + j * h->w + i, &t);
    }
}

/* Where a truth may have several boxes, a box's delta is shared out among its classes. */
static void share_out(struct head *h, int image, int location)
{
    struct spot s = spot_at(h, image, location, true);
    int wanted = 0;
    for (int k = 0; k < h->yolo->classes; k++)
        wanted += h->delta[s.classes + (size_t)k * h->area] > 0;
    for (int k = 0; k < 4 && wanted && h->delta[s.object] != 0; k++)
        h->delta[s.first + k * h->area] /= (float)wanted;
}

/* ---- the whole loss ---- */

static bool image_has_truth(const struct head *h, int image)
{
    const float *truth;
    struct label label;
    for (int t = 0; (truth = yolo_truth_at(h, image, t)); t++)
        if (read_label(h->yolo, truth, &label)) return true;
    return false;
}

static void add_squares(const struct head *h, int images, double *places, double *others)
{
    for (int image = 0; image < images; image++)
        for (int location = 0; location < h->boxes * h->area; location++)
            for (int entry = 0; entry < h->entries; entry++) {
                double d = h->delta[at(h, image, location, entry)];
                *(entry < 4 ? places : others) += d * d;
            }
}

static double cost_of(const struct head *h, double places, double others)
{
    const struct ampk_yolo_rules *r = h->yolo->rules;
    double overlap = r->box_loss == AMPK_BOX_GIOU ? h->giou : h->iou;
    if (r->box_loss == AMPK_BOX_MSE) return places + others;
    return r->iou_normalizer * (h->count - overlap) / fmax(h->count, 1) +
           r->obj_normalizer * others;
}

void ampk_ref_yolo_loss_by_rules(struct head *h, int images, struct ampk_loss_sums *sums)
{
    const float *truth;
    for (int image = 0; image < images; image++) {
        bool has_truth = image_has_truth(h, image);
        for (int location = 0; location < h->boxes * h->area; location++)
            judge_box(h, image, location, has_truth);
        for (int t = 0; (truth = yolo_truth_at(h, image, t)); t++)
            take_truth(h, image, truth);
        for (int location = 0; location < h->boxes * h->area; location++)
            if (h->yolo->rules->iou_thresh < 1) share_out(h, image, location);
    }
    double places = 0, others = 0;
    add_squares(h, images, &places, &others);
    *sums = sums_of(h, 0);
    sums->cost = (float)cost_of(h, places, others);
    sums->box_squares = (float)places;
}
