/* Reference: kinds of IoU, and the gradients by which AlexeyAB's Darknet draws a box to a truth, in
 * double, edge by edge as they are defined there. They are not the derivatives of these kinds;
 * tests/kernels/box_gradients.c shows where they differ. */
#include "heads.h"

/* Of a box: x, y, w, h, and the edges. */
struct edges {
    double x, y, w, h, l, r, t, b;
};

double (*ampk_ref_move_edge)(double);

static double edge_at(double place)
{
    return ampk_ref_move_edge ? ampk_ref_move_edge(place) : place;
}

static struct edges edges_of(const double box[4])
{
    double x = box[0], y = box[1], w = box[2], h = box[3];
    return (struct edges){.x = x,
                          .y = y,
                          .w = w,
                          .h = h,
                          .l = edge_at(x - w / 2),
                          .r = edge_at(x + w / 2),
                          .t = edge_at(y - h / 2),
                          .b = edge_at(y + h / 2)};
}

static double square(double v)
{
    return v * v;
}

/* ---- kinds ---- */

/* atan(w/h) of two boxes: CIoU's v. */
static double shape_cost(struct edges a, struct edges b)
{
    return 4 / square(M_PI) * square(atan(b.w / b.h) - atan(a.w / a.h));
}

double ampk_ref_iou(enum ampk_box_loss kind, const double box_a[4], const double box_b[4],
                    double beta)
{
    struct edges a = edges_of(box_a), b = edges_of(box_b);
    double w = fmin(a.r, b.r) - fmax(a.l, b.l), h = fmin(a.b, b.b) - fmax(a.t, b.t);
    double shared = w < 0 || h < 0 ? 0 : w * h, joint = a.w * a.h + b.w * b.h - shared;
    double iou = shared == 0 || joint == 0 ? 0 : shared / joint;
    double hull_w = fmax(a.r, b.r) - fmin(a.l, b.l), hull_h = fmax(a.b, b.b) - fmin(a.t, b.t);
    double hull = hull_w * hull_h, diagonal = square(hull_w) + square(hull_h);
    double apart = diagonal == 0 ? 0 : (square(a.x - b.x) + square(a.y - b.y)) / diagonal;
    double v = shape_cost(a, b);
    switch (kind) {
    case AMPK_BOX_GIOU:
        return hull == 0 ? iou : iou - (hull - joint) / hull;
    case AMPK_BOX_DIOU:
        return iou - pow(apart, beta);
    case AMPK_BOX_CIOU:
        return iou - apart - v / (1 - iou + v + 1e-6) * v;
    default:
        return iou;
    }
}

/* ---- gradients ---- */

/* a > b, of edges. How close they are counts beside the image's size, 1: edges near 0 are not more
 * exact than others. */
static bool beyond(double a, double b)
{
    return ampk_ref_exceeds(1 + a, 1 + b);
}

/* By the four edges, as their names say. */
struct slopes {
    double l, r, t, b;
};

/* What each edge does to the intersection; w, h: signed, so that boxes apart in both axes have a
 * positive intersection, as in AlexeyAB's Darknet. */
static struct slopes of_shared(struct edges p, struct edges t, double w, double h)
{
    return (struct slopes){.l = beyond(p.l, t.l) ? -h : 0,
                           .r = beyond(t.r, p.r) ? h : 0,
                           .t = beyond(p.t, t.t) ? -w : 0,
                           .b = beyond(t.b, p.b) ? w : 0};
}

static struct slopes of_hull(struct edges p, struct edges t, double w, double h)
{
    return (struct slopes){.l = beyond(t.l, p.l) ? -h : 0,
                           .r = beyond(p.r, t.r) ? h : 0,
                           .t = beyond(t.t, p.t) ? -w : 0,
                           .b = beyond(p.b, t.b) ? w : 0};
}

static struct slopes of_joint(struct edges p, struct slopes shared)
{
    return (struct slopes){
        .l = -p.h - shared.l, .r = p.h - shared.r, .t = -p.w - shared.t, .b = p.w - shared.b};
}

/* That of a / b, from those of a and b; 0 where b is not above 0. */
static struct slopes of_quotient(double a, struct slopes da, double b, struct slopes db)
{
    if (!(b > 0)) return (struct slopes){0};
    return (struct slopes){.l = (b * da.l - a * db.l) / square(b),
                           .r = (b * da.r - a * db.r) / square(b),
                           .t = (b * da.t - a * db.t) / square(b),
                           .b = (b * da.b - a * db.b) / square(b)};
}

static struct slopes sum_of(struct slopes a, struct slopes b)
{
    return (struct slopes){a.l + b.l, a.r + b.r, a.t + b.t, a.b + b.b};
}

/* DIoU's terms of x (or y) and w (or h): of -distance^2 / diagonal^2, the part by the diagonal with
 * the wrong sign for x. low, high: whether the box itself has that edge of the hull. */
static void together(double centre, double truth, double span, double diagonal, double distance,
                     bool low, bool high, double *x, double *w)
{
    double one_sided = (double)high - (double)low, both = .5 * ((double)high + (double)low);
    *x = (2 * (truth - centre) * diagonal - 2 * span * one_sided * distance) / square(diagonal);
    *w = 2 * span * both * distance / square(diagonal);
}

static void add_distance(enum ampk_box_loss kind, struct edges p, struct edges t, double iou,
                         bool disjoint, double g[4])
{
    double hull_w = fmax(p.r, t.r) - fmin(p.l, t.l), hull_h = fmax(p.b, t.b) - fmin(p.t, t.t);
    double diagonal = square(hull_w) + square(hull_h), d[4];
    double distance = square(p.x - t.x) + square(p.y - t.y);
    together(p.x, t.x, hull_w, diagonal, distance, p.l<t.l, p.r> t.r, &d[0], &d[2]);
    together(p.y, t.y, hull_h, diagonal, distance, p.t<t.t, p.b> t.b, &d[1], &d[3]);
    if (kind == AMPK_BOX_CIOU) {
        double v = shape_cost(p, t), alpha = v / (1 - iou + v + 1e-6);
        double turn = 8 / square(M_PI) * (atan(t.w / t.h) - atan(p.w / p.h));
        d[2] += alpha * turn * p.h;
        d[3] -= alpha * turn * p.w;
    }
    for (int k = 0; k < 4; k++)
        g[k] = disjoint ? d[k] : g[k] + d[k];
}

void ampk_ref_box_gradient(enum ampk_box_loss kind, const double box[4], const double truth[4],
                           double g[4])
{
    struct edges p = edges_of(box), t = edges_of(truth);
    double w = fmin(p.r, t.r) - fmax(p.l, t.l), h = fmin(p.b, t.b) - fmax(p.t, t.t);
    double hull_w = fmax(p.r, t.r) - fmin(p.l, t.l), hull_h = fmax(p.b, t.b) - fmin(p.t, t.t);
    double shared = w * h, joint = p.w * p.h + t.w * t.h - shared, hull = hull_w * hull_h;
    bool disjoint =
        !beyond(fmin(p.r, t.r), fmax(p.l, t.l)) || !beyond(fmin(p.b, t.b), fmax(p.t, t.t));
    struct slopes d_shared = of_shared(p, t, w, h), d_joint = of_joint(p, d_shared);
    struct slopes s = of_quotient(shared, d_shared, joint, d_joint);
    if (kind == AMPK_BOX_GIOU && hull > 0) {
        struct slopes own = of_quotient(joint, d_joint, hull, of_hull(p, t, hull_w, hull_h));
        s = disjoint ? own : sum_of(s, own);
    }
    g[0] = s.l + s.r;
    g[1] = s.t + s.b;
    g[2] = s.r - s.l;
    g[3] = s.b - s.t;
    if (kind == AMPK_BOX_DIOU || kind == AMPK_BOX_CIOU)
        add_distance(kind, p, t, shared / joint, disjoint, g);
}
