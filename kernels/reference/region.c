/* Reference: Darknet's region_layer.c, with the activations and the backward of its GPU half.
 * Boxes first, then truth by truth, because a later truth overwrites an earlier one in the same
 * box. */
#include "activation.h"
#include "head.h"
#include "tensor.h"

#include <string.h>

/* The state of one loss. */
struct region {
    const struct ampk_region_head *o;
    const float *out, *truth;
    float *delta;
    int w, h, area;
    double iou, category, object, any_object, recall, recall75, count, category_count;
};

static struct region open_head(const struct ampk_region_head *o, const struct ampk_tensor *out)
{
    return (struct region){
        .o = o, .out = out->data, .w = out->w, .h = out->h, .area = out->w * out->h};
}

static int per_box(const struct ampk_region_head *o)
{
    return o->coords + 1 + o->classes;
}

/* Index of an entry. location counts n * area cells, as Darknet's entry_index. */
static size_t at(const struct region *r, int image, int location, int entry)
{
    size_t box = (size_t)image * r->o->boxes + (size_t)(location / r->area);
    return (box * per_box(r->o) + entry) * r->area + location % r->area;
}

/* ---- forward ---- */

/* Entries: x, y, w, h, masks, objectness, classes. w and h have no logistic: they are exponents. */
static bool is_logistic(const struct ampk_region_head *o, int entry)
{
    if (entry < 2) return true;
    if (entry < 4) return false;
    if (entry < o->coords) return true;
    if (entry == o->coords) return !o->background;
    return !o->softmax && !o->tree.classes;
}

/* Softmax of n entries, `stride` elements apart. */
static void softmax(const float *x, float *out, int n, size_t stride)
{
    double largest = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        largest = fmax(largest, x[i * stride]);
    for (int i = 0; i < n; i++)
        sum += exp(x[i * stride] - largest);
    for (int i = 0; i < n; i++)
        out[i * stride] = (float)(exp(x[i * stride] - largest) / sum);
}

static void activate_cell(const struct region *r, const float *x, float *out, int image,
                          int location)
{
    const struct ampk_region_head *o = r->o;
    for (int entry = 0; entry < per_box(o); entry++) {
        size_t i = at(r, image, location, entry);
        out[i] = is_logistic(o, entry) ? (float)ampk_ref_activate(x[i], AMPK_LOGISTIC) : x[i];
    }
    for (int g = 0; g < o->tree.groups; g++) {
        size_t i = at(r, image, location, o->coords + 1 + o->tree.group_offset[g]);
        softmax(x + i, out + i, o->tree.group_size[g], r->area);
    }
    if (o->tree.classes || !o->softmax) return;
    size_t i = at(r, image, location, o->coords + !o->background);
    softmax(x + i, out + i, o->classes + o->background, r->area);
}

void ampk_ref_region_forward(struct ampk_context *context, const struct ampk_region_head *o,
                             const struct ampk_tensor *x, const struct ampk_tensor *out,
                             uint32_t *amax)
{
    struct region r = open_head(o, out);
    for (int image = 0; image < x->n; image++)
        for (int location = 0; location < o->boxes * r.area; location++)
            activate_cell(&r, x->data, out->data, image, location);
    ampk_ref_amax(context, out->data, ampk_ref_count(out), amax);
}

/* ---- boxes ---- */

/* Anchors are in cells here, so they are divided by the grid's sides. */
static struct ampk_ref_box box_at(const struct region *r, size_t first, int n, int i, int j)
{
    const float *x = r->out + first, *size = r->o->anchor_sizes + 2 * n;
    return (struct ampk_ref_box){
        .x = (i + (double)x[0]) / r->w,
        .y = (j + (double)x[r->area]) / r->h,
        .w = exp(x[2 * r->area]) * size[0] / r->w,
        .h = exp(x[3 * r->area]) * size[1] / r->h,
    };
}

/* Draws a box towards t, and returns their overlap. */
static double draw_box(struct region *r, struct ampk_ref_box t, double scale, size_t first, int n,
                       int i, int j)
{
    const float *x = r->out + first, *size = r->o->anchor_sizes + 2 * n;
    double goal[4] = {t.x * r->w - i, t.y * r->h - j, log(t.w * r->w / size[0]),
                      log(t.h * r->h / size[1])};
    for (int k = 0; k < 4; k++)
        r->delta[first + k * r->area] = (float)(scale * (goal[k] - x[k * r->area]));
    return ampk_ref_iou(box_at(r, first, n, i, j), t);
}

/* ---- classes ---- */

/* Draws a class and all classes above it in the tree, each against its siblings. Returns the
 * product of their outputs. */
static double draw_path(struct region *r, size_t first, int class)
{
    const struct ampk_tree *tree = &r->o->tree;
    double path = 1;
    if (class >= tree->classes) return 0;
    for (; class >= 0; class = tree->parent[class]) {
        int g = tree->group[class], offset = tree->group_offset[g];
        for (int k = offset; k < offset + tree->group_size[g]; k++) {
            size_t i = first + (size_t)k * r->area;
            double goal = k == class ? 1 : 0;
            r->delta[i] = (float)(r->o->class_scale * (goal - r->out[i]));
        }
        path *= r->out[first + (size_t) class * r->area];
    }
    return path;
}

/* Draws the classes and returns the number for the statistics. */
static double draw_class(struct region *r, size_t first, int class)
{
    if (r->o->tree.classes) return class < 0 ? 0 : draw_path(r, first, class);
    bool again = r->delta[first] != 0 && !r->o->softmax;
    bool exists = class >= 0 && class < r->o->classes;
    for (int k = 0; k < r->o->classes; k++) {
        size_t i = first + (size_t)k * r->area;
        if (!again || k == class)
            r->delta[i] = (float)(r->o->class_scale * ((k == class ? 1 : 0) - (double)r->out[i]));
    }
    return exists && !again ? r->out[first + (size_t) class * r->area] : 0;
}

/* ---- truths ---- */

static const float *truth_at(const struct region *r, int image, int t)
{
    return r->truth + (size_t)(r->o->coords + 1) * ((size_t)image * r->o->truths + t);
}

/* The first label with a class but no place: x and y are beyond 100000. NULL: none. */
static const float *placeless(const struct region *r, int image)
{
    for (int t = 0; t < r->o->truths && truth_at(r, image, t)[0] != 0; t++) {
        const float *truth = truth_at(r, image, t);
        if (truth[0] > 100000 && truth[1] > 100000) return truth;
    }
    return NULL;
}

/* The product of a class's output and those of all classes above it. */
static double path_probability(const struct region *r, size_t first, int class)
{
    double p = 1;
    for (; class >= 0; class = r->o->tree.parent[class])
        p *= r->out[first + (size_t) class * r->area];
    return p;
}

/* The box that most likely shows the class learns it. All others learn that they show nothing. */
static void take_placeless(struct region *r, int image, const float *truth)
{
    const struct ampk_region_head *o = r->o;
    int class = ampk_ref_class(truth[o->coords], NULL, 0), best = 0;
    double most = 0;
    for (int n = 0; n < o->boxes * r->area; n++) {
        size_t object = at(r, image, n, o->coords);
        r->delta[object] = (float)(o->noobject_scale * (0 - (double)r->out[object]));
        if (class < 0 || class >= o->tree.classes) continue;
        double p = r->out[object] * path_probability(r, at(r, image, n, o->coords + 1), class);
        if (ampk_ref_exceeds(p, most)) most = p, best = n;
    }
    r->category += draw_class(r, at(r, image, best, o->coords + 1), class);
    r->delta[at(r, image, best, o->coords)] = 0;
    r->category_count++;
}

/* Objectness of one box, by its best overlap with any truth; during warm-up the box is also drawn
 * to its anchor. */
static void judge_cell(struct region *r, int image, int location)
{
    const struct ampk_region_head *o = r->o;
    int n = location / r->area, i = location % r->area % r->w, j = location % r->area / r->w;
    size_t first = at(r, image, location, 0), object = at(r, image, location, o->coords);
    struct ampk_ref_box box = box_at(r, first, n, i, j);
    double best = 0;
    for (int t = 0; t < o->truths && truth_at(r, image, t)[0] != 0; t++)
        best = fmax(best, ampk_ref_iou(box, ampk_ref_truth_box(truth_at(r, image, t))));
    r->any_object += r->out[object];
    double miss = (o->background ? 1 : 0) - (double)r->out[object];
    r->delta[object] = ampk_ref_exceeds(best, o->thresh) ? 0 : (float)(o->noobject_scale * miss);
    if (!o->warm_up) return;
    struct ampk_ref_box anchor = {(i + .5) / r->w, (j + .5) / r->h,
                                  (double)o->anchor_sizes[2 * n] / r->w,
                                  (double)o->anchor_sizes[2 * n + 1] / r->h};
    draw_box(r, anchor, .01, first, n, i, j);
}

/* The box of a cell with the best overlap, at the same centre. */
static int best_box(const struct region *r, int image, struct ampk_ref_box truth, int i, int j)
{
    double best = 0;
    int best_n = 0;
    for (int n = 0; n < r->o->boxes; n++) {
        const float *size = r->o->anchor_sizes + 2 * n;
        int location = n * r->area + j * r->w + i;
        struct ampk_ref_box box =
            r->o->bias_match ? ampk_ref_centred((double)size[0] / r->w, (double)size[1] / r->h)
                             : box_at(r, at(r, image, location, 0), n, i, j);
        box.x = box.y = 0;
        double iou = ampk_ref_iou(box, ampk_ref_centred(truth.w, truth.h));
        if (ampk_ref_exceeds(iou, best)) best = iou, best_n = n;
    }
    return best_n;
}

static double object_goal(const struct ampk_region_head *o, double iou)
{
    return o->background ? 0 : o->rescore ? iou : 1;
}

static void take_truth(struct region *r, int image, const float *truth)
{
    const struct ampk_region_head *o = r->o;
    struct ampk_ref_box t = ampk_ref_truth_box(truth);
    int i = ampk_ref_cell(truth[0], r->w), j = ampk_ref_cell(truth[1], r->h);
    if (i < 0 || j < 0 || i >= r->w || j >= r->h) return;
    int n = best_box(r, image, t, i, j), location = n * r->area + j * r->w + i;
    double scale = o->coord_scale * (2 - t.w * t.h);
    double iou = draw_box(r, t, scale, at(r, image, location, 0), n, i, j);
    for (int k = 4; k < o->coords; k++) {
        size_t mask = at(r, image, location, k);
        r->delta[mask] = (float)(o->mask_scale * ((double)truth[k + 1] - r->out[mask]));
    }
    size_t object = at(r, image, location, o->coords);
    r->object += r->out[object];
    r->delta[object] = (float)(o->object_scale * (object_goal(o, iou) - r->out[object]));
    int class = ampk_ref_class(truth[o->coords], o->map, o->map_size);
    r->category += draw_class(r, at(r, image, location, o->coords + 1), class);
    r->iou += iou;
    r->recall += ampk_ref_exceeds(iou, .5);
    r->recall75 += ampk_ref_exceeds(iou, .75);
    r->count++;
    r->category_count++;
}

static void take_image(struct region *r, int image)
{
    const float *truth = r->o->tree.classes ? placeless(r, image) : NULL;
    if (truth) {
        take_placeless(r, image, truth);
        return;
    }
    for (int location = 0; location < r->o->boxes * r->area; location++)
        judge_cell(r, image, location);
    for (int t = 0; t < r->o->truths && truth_at(r, image, t)[0] != 0; t++)
        take_truth(r, image, truth_at(r, image, t));
}

/* Darknet's backward: multiplies delta by the derivative of the logistics of place, masks and
 * objectness, but not of those of classes. */
static void through_logistics(struct region *r, int images)
{
    for (int image = 0; image < images; image++)
        for (int location = 0; location < r->o->boxes * r->area; location++)
            for (int entry = 0; entry <= r->o->coords; entry++) {
                size_t i = at(r, image, location, entry);
                double p = r->out[i];
                if (is_logistic(r->o, entry)) r->delta[i] = (float)(r->delta[i] * (1 - p) * p);
            }
}

void ampk_ref_region_loss(struct ampk_context *context, const struct ampk_region_head *o,
                          const struct ampk_tensor *out, const float *truth, float *delta,
                          struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    size_t count = ampk_ref_count(out);
    struct region r = open_head(o, out);
    r.truth = truth;
    r.delta = delta;
    memset(delta, 0, count * sizeof *delta);
    for (int image = 0; image < out->n; image++)
        take_image(&r, image);
    *sums = (struct ampk_loss_sums){.cost = (float)ampk_ref_squares(delta, count),
                                    .iou = (float)r.iou,
                                    .category = (float)r.category,
                                    .object = (float)r.object,
                                    .any_object = (float)r.any_object,
                                    .recall = (float)r.recall,
                                    .recall75 = (float)r.recall75,
                                    .count = (float)r.count,
                                    .category_count = (float)r.category_count};
    through_logistics(&r, out->n);
    ampk_ref_amax(context, delta, count, delta_amax);
}
