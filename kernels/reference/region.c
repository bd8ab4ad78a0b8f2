/* Reference: Darknet's region_layer.c, with the activations and the backward of its GPU half. Boxes
 * first, then truth by truth, because a later truth overwrites an earlier one in the same box. */
#include "activation.h"
#include "heads.h"

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
        if (ampk_ref_exceeds(p, most)) most = p, best = n;
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
    h->delta[object] = ampk_ref_exceeds(best, o->thresh) ? 0 : (float)(o->noobject_scale * miss);
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
        if (ampk_ref_exceeds(iou, best)) best = iou, best_n = n;
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
