/* How much two boxes overlap, by each kind of IoU, and the deltas of a yolo head with rules
 * (struct ampk_yolo_rules) for one box: the formulas that the CPU and the CUDA backend share, in
 * FP32. It knows no tensors and does not say which box takes which truth. The reference has
 * formulas of its own, in double (reference/yolo_iou.c).
 *
 * IoU, GIoU: Rezatofighi et al. 2019, "Generalized Intersection over Union"; DIoU, CIoU: Zheng et
 * al. 2020, "Distance-IoU Loss". The gradients are those by which AlexeyAB's Darknet trains, which
 * in places are not the derivatives; the differences are named where they are. */
#ifndef AMPK_YOLO_BOX_H
#define AMPK_YOLO_BOX_H

#include <float.h>
#include <math.h>

#include "kernels.h"

#ifdef __CUDACC__
#define AMPK_OF_BOXES static __device__ __forceinline__
#else
#define AMPK_OF_BOXES static inline
#endif

/* Centre and sides, as fractions of the image. */
struct ampk_box {
    float x, y, w, h;
};

/* A box along one axis. */
struct ampk_side {
    float centre, size, low, high;
};

AMPK_OF_BOXES struct ampk_side ampk_side_of(float centre, float size)
{
    struct ampk_side s = {centre, size, centre - size / 2, centre + size / 2};
    return s;
}

/* What two boxes share of an axis; negative: how far they are apart. */
AMPK_OF_BOXES float ampk_shared(struct ampk_side a, struct ampk_side b)
{
    return fminf(a.high, b.high) - fmaxf(a.low, b.low);
}

/* What the smallest box around both has of an axis. */
AMPK_OF_BOXES float ampk_spanned(struct ampk_side a, struct ampk_side b)
{
    return fmaxf(a.high, b.high) - fminf(a.low, b.low);
}

/* ---- how much two boxes overlap ---- */

/* What the kinds are made of. */
struct ampk_box_overlap {
    float shared, joint;         /* areas of intersection and union */
    float hull_w, hull_h, apart; /* of the box around both; the centres' squared distance */
};

AMPK_OF_BOXES struct ampk_box_overlap ampk_overlap_of(struct ampk_box a, struct ampk_box b)
{
    struct ampk_side ax = ampk_side_of(a.x, a.w), bx = ampk_side_of(b.x, b.w);
    struct ampk_side ay = ampk_side_of(a.y, a.h), by = ampk_side_of(b.y, b.h);
    struct ampk_box_overlap o;
    float w = ampk_shared(ax, bx), h = ampk_shared(ay, by);
    o.shared = w < 0 || h < 0 ? 0 : w * h;
    o.joint = a.w * a.h + b.w * b.h - o.shared;
    o.hull_w = ampk_spanned(ax, bx);
    o.hull_h = ampk_spanned(ay, by);
    o.apart = (a.x - b.x) * (a.x - b.x) + (a.y - b.y) * (a.y - b.y);
    return o;
}

/* 0 where nothing is shared, and where there is nothing to share. */
AMPK_OF_BOXES float ampk_iou_of(const struct ampk_box_overlap *o)
{
    return o->shared == 0 || o->joint == 0 ? 0 : o->shared / o->joint;
}

AMPK_OF_BOXES float ampk_giou_of(const struct ampk_box_overlap *o)
{
    float hull = o->hull_w * o->hull_h;
    return ampk_iou_of(o) - (hull == 0 ? 0 : (hull - o->joint) / hull);
}

/* The centres' distance over the hull's diagonal, squared. */
AMPK_OF_BOXES float ampk_distance_of(const struct ampk_box_overlap *o)
{
    float diagonal = o->hull_w * o->hull_w + o->hull_h * o->hull_h;
    return diagonal == 0 ? 0 : o->apart / diagonal;
}

/* beta: the exponent of that, .6 in NMS. */
AMPK_OF_BOXES float ampk_diou_of(const struct ampk_box_overlap *o, float beta)
{
    return ampk_iou_of(o) - powf(ampk_distance_of(o), beta);
}

/* CIoU's difference of shapes, as an angle. */
AMPK_OF_BOXES float ampk_shape_difference(float truth_w, float truth_h, float w, float h)
{
    return atanf(truth_w / truth_h) - atanf(w / h);
}

/* CIoU's alpha times 4 / pi^2, which times the square of the angle is what CIoU takes off. */
AMPK_OF_BOXES float ampk_shape_weight(float iou, float difference)
{
    const float quarter = 0.405284735f; /* 4 / pi^2 */
    float v = quarter * difference * difference;
    return quarter * v / (1 - iou + v + 1e-6f);
}

AMPK_OF_BOXES float ampk_ciou_of(const struct ampk_box_overlap *o, struct ampk_box a,
                                 struct ampk_box b)
{
    float iou = ampk_iou_of(o), difference = ampk_shape_difference(b.w, b.h, a.w, a.h);
    return iou - ampk_distance_of(o) - ampk_shape_weight(iou, difference) * difference * difference;
}

/* How well an anchor's shape fits a truth's, both at the same place, by the kind of iou_thresh. */
AMPK_OF_BOXES float ampk_shape_fit(enum ampk_box_loss kind, struct ampk_box anchor,
                                   struct ampk_box truth)
{
    anchor.x = truth.x = anchor.y = truth.y = 0;
    struct ampk_box_overlap o = ampk_overlap_of(anchor, truth);
    if (kind == AMPK_BOX_GIOU) return ampk_giou_of(&o);
    if (kind == AMPK_BOX_CIOU) return ampk_ciou_of(&o, anchor, truth);
    return ampk_iou_of(&o);
}

/* ---- by which gradient a box is drawn to a truth ---- */

/* Of the coordinates' centre and size along one axis. */
struct ampk_pull {
    float centre, size;
};

/* Areas that both axes have in common: intersection, union and hull. The intersection is the
 * product of two signed lengths: where boxes are apart in both axes, it is positive. */
struct ampk_areas {
    float shared, joint, hull;
};

/* IoU, and with `generalized` GIoU, along an axis: what moving the edges low and high would gain,
 * added up for the centre and subtracted for the size. The derivative by the size would be half
 * of that. across: of the other axis, what is shared, the box's size, the hull's size. Where the
 * boxes are apart, GIoU's own term is alone. */
AMPK_OF_BOXES struct ampk_pull ampk_pull_along(struct ampk_side p, struct ampk_side t,
                                               const float across[3], struct ampk_areas a,
                                               bool generalized, bool disjoint)
{
    float shared[2] = {p.low > t.low ? -across[0] : 0, p.high < t.high ? across[0] : 0};
    float hull[2] = {p.low < t.low ? -across[2] : 0, p.high > t.high ? across[2] : 0};
    float gain[2];
    for (int k = 0; k < 2; k++) {
        float joint = (k == 0 ? -across[1] : across[1]) - shared[k];
        gain[k] = a.joint > 0 ? (a.joint * shared[k] - a.shared * joint) / (a.joint * a.joint) : 0;
        if (!generalized || !(a.hull > 0)) continue;
        float own = (a.hull * joint - a.joint * hull[k]) / (a.hull * a.hull);
        gain[k] = disjoint ? own : gain[k] + own;
    }
    struct ampk_pull sum = {gain[0] + gain[1], gain[1] - gain[0]};
    return sum;
}

/* DIoU's term along an axis. Of the derivative of -apart / diagonal the part by the hull has the
 * other sign for the centre, and the same for the size: AlexeyAB's Darknet trains with it so.
 * span: the hull's size; diagonal: squared, and so is apart. */
AMPK_OF_BOXES struct ampk_pull ampk_pull_together(struct ampk_side p, struct ampk_side t,
                                                  float span, float diagonal, float apart)
{
    float right = p.high > t.high ? 1 : 0, left = p.low < t.low ? 1 : 0;
    float share = 2 * span * (apart / diagonal) / diagonal;
    struct ampk_pull pull = {2 * (t.centre - p.centre) / diagonal - share * (right - left),
                             share * (right + left) / 2};
    return pull;
}

/* The gradient of a kind of IoU (not MSE) for a box p and a truth t. p's sides are not 0. CIoU's
 * part lacks the factor 1 / (w^2 + h^2) of the derivative, and its alpha counts as a constant. */
AMPK_OF_BOXES struct ampk_box ampk_box_gradient(enum ampk_box_loss kind, struct ampk_box p,
                                                struct ampk_box t)
{
    struct ampk_side px = ampk_side_of(p.x, p.w), tx = ampk_side_of(t.x, t.w);
    struct ampk_side py = ampk_side_of(p.y, p.h), ty = ampk_side_of(t.y, t.h);
    float w = ampk_shared(px, tx), h = ampk_shared(py, ty);
    float hull_w = ampk_spanned(px, tx), hull_h = ampk_spanned(py, ty);
    struct ampk_areas a = {w * h, p.w * p.h + t.w * t.h - w * h, hull_w * hull_h};
    const float across_x[3] = {h, p.h, hull_h}, across_y[3] = {w, p.w, hull_w};
    bool generalized = kind == AMPK_BOX_GIOU, disjoint = w <= 0 || h <= 0;
    struct ampk_pull x = ampk_pull_along(px, tx, across_x, a, generalized, disjoint);
    struct ampk_pull y = ampk_pull_along(py, ty, across_y, a, generalized, disjoint);
    if (kind == AMPK_BOX_DIOU || kind == AMPK_BOX_CIOU) {
        float diagonal = hull_w * hull_w + hull_h * hull_h;
        float apart = (p.x - t.x) * (p.x - t.x) + (p.y - t.y) * (p.y - t.y);
        struct ampk_pull dx = ampk_pull_together(px, tx, hull_w, diagonal, apart);
        struct ampk_pull dy = ampk_pull_together(py, ty, hull_h, diagonal, apart);
        if (kind == AMPK_BOX_CIOU) {
            float difference = ampk_shape_difference(t.w, t.h, p.w, p.h);
            float factor = 2 * ampk_shape_weight(a.shared / a.joint, difference) * difference;
            dx.size += factor * p.h;
            dy.size -= factor * p.w;
        }
        x.centre = disjoint ? dx.centre : x.centre + dx.centre;
        x.size = disjoint ? dx.size : x.size + dx.size;
        y.centre = disjoint ? dy.centre : y.centre + dy.centre;
        y.size = disjoint ? dy.size : y.size + dy.size;
    }
    struct ampk_box gradient = {x.centre, y.centre, x.size, y.size};
    return gradient;
}

AMPK_OF_BOXES float ampk_limited(float delta, float most)
{
    if (!(fabsf(delta) <= FLT_MAX)) return 0;
    return fminf(fmaxf(delta, -most), most);
}

/* What is added to the four deltas of box p, decoded from outputs of which the third and fourth
 * are out_w and out_h, when a truth t draws it by an IoU kind; weight: iou_normalizer times the
 * class's multiplier. Sides of 0 count as 1. The exponential is the derivative of a side by its
 * output but for the side itself; with new_coords there is no such factor. */
AMPK_OF_BOXES struct ampk_box ampk_box_delta(const struct ampk_yolo_rules *r, bool new_coords,
                                             struct ampk_box p, struct ampk_box t, float out_w,
                                             float out_h, float weight)
{
    if (p.w == 0) p.w = 1;
    if (p.h == 0) p.h = 1;
    struct ampk_box g = ampk_box_gradient(r->box_loss, p, t);
    float w = new_coords ? 1 : expf(out_w), h = new_coords ? 1 : expf(out_h);
    struct ampk_box delta = {
        ampk_limited(g.x * weight, r->max_delta), ampk_limited(g.y * weight, r->max_delta),
        ampk_limited(g.w * w * weight, r->max_delta), ampk_limited(g.h * h * weight, r->max_delta)};
    return delta;
}

/* The output that a side of a truth asks for; ratio: the truth's side over the anchor's. */
AMPK_OF_BOXES float ampk_side_goal(float ratio, bool new_coords)
{
    return new_coords ? sqrtf(ratio / 4) : logf(ratio);
}

/* A side over the anchor's, from its output. */
AMPK_OF_BOXES float ampk_side_scale(float out, bool new_coords)
{
    return new_coords ? out * out * 4 : expf(out);
}

/* ---- objectness and classes ---- */

/* A box's objectness goes to 0 unless it matches a truth; match: the overlap, 0 where it does not
 * count. */
AMPK_OF_BOXES float ampk_background_delta(const struct ampk_yolo_rules *r, float ignore_thresh,
                                          float object, float match)
{
    float delta = r->obj_normalizer * (0 - object);
    if (!(match > ignore_thresh)) return delta;
    return r->objectness_smooth ? fmaxf(delta, r->obj_normalizer * (match - object)) : 0;
}

AMPK_OF_BOXES float ampk_multiplier_of(const struct ampk_yolo_rules *r, int category)
{
    return r->class_multipliers ? r->class_multipliers[category] : 1;
}

/* What an output of the truth's class, or of another one, is to become. */
AMPK_OF_BOXES float ampk_class_goal(const struct ampk_yolo_rules *r, bool own)
{
    float eps = r->label_smooth_eps;
    return own ? 1 - eps + eps * .5f : eps * .5f;
}

/* By focal loss (Lin et al. 2017, "Focal Loss for Dense Object Detection", gamma 2, alpha .5), the
 * factor on the deltas of all classes; p: the output of the truth's class. */
AMPK_OF_BOXES float ampk_focal_factor(float p)
{
    float q = p + 1e-15f;
    return -.5f * (1 - q) * (2 * q * logf(q) + q - 1);
}

/* The delta of a class's output p in a box that has none yet. own: it is the truth's class;
 * focal: ampk_focal_factor. */
AMPK_OF_BOXES float ampk_class_delta(const struct ampk_yolo_rules *r, float p, bool own,
                                     float multiplier, float focal)
{
    if (r->focal_loss) return ((own ? 1 : 0) - p) * focal;
    float delta = ampk_class_goal(r, own) - p;
    return own && r->class_multipliers ? delta * multiplier * r->cls_normalizer : delta;
}

/* The new delta unless it is not finite. */
AMPK_OF_BOXES float ampk_finite_or(float delta, float old)
{
    return fabsf(delta) <= FLT_MAX ? delta : old;
}

#endif
