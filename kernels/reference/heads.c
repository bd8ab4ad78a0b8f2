/* Reference: Darknet's yolo_layer.c, and region_layer.c with the activations and the backward of
 * its GPU half. Boxes first, then truth by truth, because a later truth overwrites an earlier one
 * in the same box. Measures how close the decisions were. */
#include "activation.h"
#include "operations.h"
#include "tensor.h"

double ampk_ref_closest_decision = INFINITY;

/* a > b, for decisions that depend on rounding. */
static bool exceeds(double a, double b)
{
    double distance = fabs(a - b) / fmax(fabs(a), fabs(b));
    if (a != b && distance < ampk_ref_closest_decision) ampk_ref_closest_decision = distance;
    return a > b;
}

/* ---- boxes ---- */

/* Centre and sides, as fractions of the image. */
struct box {
    double x, y, w, h;
};

static double overlap(double x1, double w1, double x2, double w2)
{
    return fmin(x1 + w1 / 2, x2 + w2 / 2) - fmax(x1 - w1 / 2, x2 - w2 / 2);
}

/* Intersection over union. */
static double iou_of(struct box a, struct box b)
{
    double w = overlap(a.x, a.w, b.x, b.w), h = overlap(a.y, a.h, b.y, b.h);
    double both = w < 0 || h < 0 ? 0 : w * h;
    return both / (a.w * a.h + b.w * b.h - both);
}

static struct box truth_box(const float *truth)
{
    return (struct box){truth[0], truth[1], truth[2], truth[3]};
}

static struct box centred(struct box b)
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
    double iou, category, object, any_object, recall, recall75, count, category_count;
};

/* Index of an entry. location counts n * area cells, as Darknet's entry_index. */
static size_t at(const struct head *h, int image, int location, int entry)
{
    size_t box = (size_t)image * h->boxes + (size_t)(location / h->area);
    return (box * h->entries + entry) * h->area + location % h->area;
}

static struct box anchor_at(const struct head *h, int anchor)
{
    const float *size = h->anchor_sizes + 2 * anchor;
    return (struct box){0, 0, (double)size[0] / h->anchor_w, (double)size[1] / h->anchor_h};
}

/* The box that the outputs from `first` on describe, at cell (i, j). */
static struct box box_at(const struct head *h, size_t first, int anchor, int i, int j)
{
    const float *x = h->out + first, *size = h->anchor_sizes + 2 * anchor;
    return (struct box){
        .x = (i + (double)x[0]) / h->w,
        .y = (j + (double)x[h->area]) / h->h,
        .w = exp(x[2 * h->area]) * size[0] / h->anchor_w,
        .h = exp(x[3 * h->area]) * size[1] / h->anchor_h,
    };
}

/* Draws a box towards t, and returns their overlap. */
static double draw_box(struct head *h, struct box t, double scale, size_t first, int anchor, int i,
                       int j)
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
static void draw_classes(struct head *h, size_t first, int classes, int class, double scale,
                         bool again)
{
    for (int k = 0; k < classes; k++) {
        size_t i = first + (size_t)k * h->area;
        if (!again || k == class)
            h->delta[i] = (float)(scale * ((k == class ? 1 : 0) - (double)h->out[i]));
    }
}

/* Label t of an image; NULL behind the last one. */
static const float *truth_at(const struct head *h, int image, int t, int truths_used)
{
    const float *truth = h->truth + (size_t)h->truth_size * ((size_t)image * h->truths + t);
    return t < truths_used && truth[0] != 0 ? truth : NULL;
}

/* From a coordinate (a fraction) to the cell of an axis with so many cells, as in Darknet: an FP32
 * product, cut to an int. -1 if it is outside or not a number. */
static int cell_of(float at, int cells)
{
    float place = at * (float)cells;
    int cell = fabsf(place) < 1e5f ? (int)place : -1;
    return cell < cells ? cell : -1;
}

/* From a label to a class, by the map if there is one. -1 if there is no such class. */
static int class_of(float label, const int *map, int map_size)
{
    int class = fabsf(label) < 1e6f ? (int)label : -1;
    if (map) class = class >= 0 && class < map_size ? map[class] : -1;
    return class;
}

static void count_truth(struct head *h, double iou)
{
    h->iou += iou;
    h->recall += exceeds(iou, .5);
    h->recall75 += exceeds(iou, .75);
    h->count++;
    h->category_count++;
}

/* The cost is the sum of the squares of delta. */
static struct ampk_loss_sums sums_of(const struct head *h, size_t count)
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
                                   .category_count = (float)h->category_count};
}

/* ---- yolo ---- */

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

static struct head open_yolo(const struct ampk_yolo_head *o, const struct ampk_tensor *out)
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

static const float *yolo_truth_at(const struct head *h, int image, int t)
{
    int used = h->yolo->truths_used < h->truths ? h->yolo->truths_used : h->truths;
    return truth_at(h, image, t, used);
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

static int yolo_anchor_of(const struct head *h, int box)
{
    return h->yolo->mask ? h->yolo->mask[box] : box;
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
    h->delta[object] = exceeds(best, h->yolo->ignore_thresh) ? 0 : -h->out[object];
    if (!exceeds(best, h->yolo->truth_thresh)) return;
    exceeds(best, second);
    draw_yolo_truth(h, image, location, anchor, best_truth);
}

/* The anchor with the best overlap, at the same centre. */
static int best_anchor(const struct head *h, struct box truth)
{
    double best = 0;
    int best_n = 0;
    for (int n = 0; n < h->yolo->anchors; n++) {
        double iou = iou_of(anchor_at(h, n), centred(truth));
        if (exceeds(iou, best)) best = iou, best_n = n;
    }
    return best_n;
}

/* The truth goes to the box of this head that has the best anchor, if there is one. */
static void take_yolo_truth(struct head *h, int image, const float *truth)
{
    const struct ampk_yolo_head *o = h->yolo;
    int i = cell_of(truth[0], h->w), j = cell_of(truth[1], h->h);
    int anchor = best_anchor(h, truth_box(truth)), box = 0;
    while (box < o->boxes && yolo_anchor_of(h, box) != anchor)
        box++;
    if (box == o->boxes || i < 0 || j < 0) return;
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
    for (int image = 0; image < out->n; image++) {
        for (int location = 0; location < o->boxes * h.area; location++)
            judge_yolo_cell(&h, image, location);
        for (int t = 0; (truth = yolo_truth_at(&h, image, t)); t++)
            take_yolo_truth(&h, image, truth);
    }
    ampk_ref_amax(context, delta, count, delta_amax);
    *sums = sums_of(&h, count);
}

/* ---- region ---- */

/* Anchors are in cells here. */
static struct head open_region(const struct ampk_region_head *o, const struct ampk_tensor *out)
{
    return (struct head){.region = o,
                         .out = out->data,
                         .boxes = o->boxes,
                         .entries = o->coords + 1 + o->classes,
                         .w = out->w,
                         .h = out->h,
                         .area = out->w * out->h,
                         .truths = o->truths,
                         .truth_size = o->coords + 1,
                         .anchor_sizes = o->anchor_sizes,
                         .anchor_w = out->w,
                         .anchor_h = out->h};
}

/* Entries: x, y, w, h, masks, objectness, classes. w and h have no logistic: they are exponents. */
static bool is_logistic(const struct ampk_region_head *o, int entry)
{
    if (entry < 2) return true;
    if (entry < 4) return false;
    if (entry < o->coords) return true;
    if (entry == o->coords) return !o->background;
    return !o->softmax && !o->tree.classes;
}

static void activate_cell(const struct head *h, const float *x, float *out, int image, int location)
{
    const struct ampk_region_head *o = h->region;
    for (int entry = 0; entry < h->entries; entry++) {
        size_t i = at(h, image, location, entry);
        out[i] = is_logistic(o, entry) ? (float)ampk_ref_activate(x[i], AMPK_LOGISTIC) : x[i];
    }
    for (int g = 0; g < o->tree.groups; g++) {
        size_t i = at(h, image, location, o->coords + 1 + o->tree.group_offset[g]);
        ampk_ref_softmax(x + i, out + i, o->tree.group_size[g], h->area, 1);
    }
    if (o->tree.classes || !o->softmax) return;
    size_t i = at(h, image, location, o->coords + !o->background);
    ampk_ref_softmax(x + i, out + i, o->classes + o->background, h->area, 1);
}

void ampk_ref_region_forward(struct ampk_context *context, const struct ampk_region_head *o,
                             const struct ampk_tensor *x, const struct ampk_tensor *out,
                             uint32_t *amax)
{
    struct head h = open_region(o, out);
    for (int image = 0; image < x->n; image++)
        for (int location = 0; location < o->boxes * h.area; location++)
            activate_cell(&h, x->data, out->data, image, location);
    ampk_ref_amax(context, out->data, ampk_ref_count(out), amax);
}

/* Draws a class and all classes above it in the tree, each against its siblings. Returns the
 * product of their outputs. */
static double draw_path(struct head *h, size_t first, int class)
{
    const struct ampk_tree *tree = &h->region->tree;
    double path = 1;
    if (class < 0 || class >= tree->classes) return 0;
    for (; class >= 0; class = tree->parent[class]) {
        int g = tree->group[class], offset = tree->group_offset[g];
        draw_classes(h, first + (size_t)offset * h->area, tree->group_size[g], class - offset,
                     h->region->class_scale, false);
        path *= h->out[first + (size_t) class * h->area];
    }
    return path;
}

/* Draws the classes and returns the number for the statistics. */
static double draw_region_class(struct head *h, size_t first, int class)
{
    const struct ampk_region_head *o = h->region;
    if (o->tree.classes) return draw_path(h, first, class);
    bool again = h->delta[first] != 0 && !o->softmax, exists = class >= 0 && class < o->classes;
    draw_classes(h, first, o->classes, class, o->class_scale, again);
    return exists && !again ? h->out[first + (size_t) class * h->area] : 0;
}

/* The first label with a class but no place: x and y are beyond 100000. NULL: none. */
static const float *placeless(const struct head *h, int image)
{
    const float *truth;
    for (int t = 0; (truth = truth_at(h, image, t, h->truths)); t++)
        if (truth[0] > 100000 && truth[1] > 100000) return truth;
    return NULL;
}

/* The product of a class's output and those of all classes above it. */
static double path_probability(const struct head *h, size_t first, int class)
{
    double p = 1;
    for (; class >= 0; class = h->region->tree.parent[class])
        p *= h->out[first + (size_t) class * h->area];
    return p;
}

/* The box that most likely shows the class learns it. All others learn that they show nothing. */
static void take_placeless(struct head *h, int image, const float *truth)
{
    const struct ampk_region_head *o = h->region;
    int class = class_of(truth[o->coords], NULL, 0), best = 0;
    double most = 0;
    for (int n = 0; n < o->boxes * h->area; n++) {
        size_t object = at(h, image, n, o->coords);
        h->delta[object] = (float)(o->noobject_scale * (0 - (double)h->out[object]));
        if (class < 0 || class >= o->tree.classes) continue;
        double p = h->out[object] * path_probability(h, at(h, image, n, o->coords + 1), class);
        if (exceeds(p, most)) most = p, best = n;
    }
    h->category += draw_region_class(h, at(h, image, best, o->coords + 1), class);
    h->delta[at(h, image, best, o->coords)] = 0;
    h->category_count++;
}

/* Objectness of one box, by its best overlap with any truth; during warm-up the box is also drawn
 * to its anchor. */
static void judge_region_cell(struct head *h, int image, int location)
{
    const struct ampk_region_head *o = h->region;
    int n = location / h->area, i = location % h->area % h->w, j = location % h->area / h->w;
    size_t first = at(h, image, location, 0), object = at(h, image, location, o->coords);
    struct box box = box_at(h, first, n, i, j);
    double best = 0;
    const float *truth;
    for (int t = 0; (truth = truth_at(h, image, t, o->truths)); t++)
        best = fmax(best, iou_of(box, truth_box(truth)));
    h->any_object += h->out[object];
    double miss = (o->background ? 1 : 0) - (double)h->out[object];
    h->delta[object] = exceeds(best, o->thresh) ? 0 : (float)(o->noobject_scale * miss);
    if (!o->warm_up) return;
    struct box anchor = anchor_at(h, n);
    anchor.x = (i + .5) / h->w;
    anchor.y = (j + .5) / h->h;
    draw_box(h, anchor, .01, first, n, i, j);
}

/* The box of a cell with the best overlap, at the same centre. */
static int best_box(const struct head *h, int image, struct box truth, int i, int j)
{
    double best = 0;
    int best_n = 0;
    for (int n = 0; n < h->region->boxes; n++) {
        int location = n * h->area + j * h->w + i;
        struct box box =
            h->region->bias_match ? anchor_at(h, n) : box_at(h, at(h, image, location, 0), n, i, j);
        double iou = iou_of(centred(box), centred(truth));
        if (exceeds(iou, best)) best = iou, best_n = n;
    }
    return best_n;
}

static double object_goal(const struct ampk_region_head *o, double iou)
{
    return o->background ? 0 : o->rescore ? iou : 1;
}

static void take_region_truth(struct head *h, int image, const float *truth)
{
    const struct ampk_region_head *o = h->region;
    struct box t = truth_box(truth);
    int i = cell_of(truth[0], h->w), j = cell_of(truth[1], h->h);
    if (i < 0 || j < 0) return;
    int n = best_box(h, image, t, i, j), location = n * h->area + j * h->w + i;
    double scale = o->coord_scale * (2 - t.w * t.h);
    double iou = draw_box(h, t, scale, at(h, image, location, 0), n, i, j);
    for (int k = 4; k < o->coords; k++) {
        size_t mask = at(h, image, location, k);
        h->delta[mask] = (float)(o->mask_scale * ((double)truth[k + 1] - h->out[mask]));
    }
    size_t object = at(h, image, location, o->coords);
    h->object += h->out[object];
    h->delta[object] = (float)(o->object_scale * (object_goal(o, iou) - h->out[object]));
    int class = class_of(truth[o->coords], o->map, o->map_size);
    h->category += draw_region_class(h, at(h, image, location, o->coords + 1), class);
    count_truth(h, iou);
}

static void take_image(struct head *h, int image)
{
    const float *truth = h->region->tree.classes ? placeless(h, image) : NULL;
    if (truth) {
        take_placeless(h, image, truth);
        return;
    }
    for (int location = 0; location < h->region->boxes * h->area; location++)
        judge_region_cell(h, image, location);
    for (int t = 0; (truth = truth_at(h, image, t, h->truths)); t++)
        take_region_truth(h, image, truth);
}

/* Darknet's backward: multiplies delta by the derivative of the logistics of place, masks and
 * objectness, but not of those of classes. */
static void through_logistics(struct head *h, int images)
{
    for (int image = 0; image < images; image++)
        for (int location = 0; location < h->region->boxes * h->area; location++)
            for (int entry = 0; entry <= h->region->coords; entry++) {
                size_t i = at(h, image, location, entry);
                double p = h->out[i];
                if (is_logistic(h->region, entry)) h->delta[i] = (float)(h->delta[i] * (1 - p) * p);
            }
}

void ampk_ref_region_loss(struct ampk_context *context, const struct ampk_region_head *o,
                          const struct ampk_tensor *out, const float *truth, float *delta,
                          struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    size_t count = ampk_ref_count(out);
    struct head h = open_region(o, out);
    h.truth = truth;
    h.delta = delta;
    memset(delta, 0, count * sizeof *delta);
    for (int image = 0; image < out->n; image++)
        take_image(&h, image);
    *sums = sums_of(&h, count);
    through_logistics(&h, out->n);
    ampk_ref_amax(context, delta, count, delta_amax);
}
