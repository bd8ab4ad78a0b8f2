/* Darknet's yolo and region layers: their forward passes and their losses. The rules are those of
 * Darknet's forward_yolo_layer and forward_region_layer; head.h has the order in which truths
 * count. */
#include "head.h"

/* ---- yolo ---- */

/* Entries of a box: x, y, w, h, objectness, classes. w and h (2, 3) have no logistic: they are
 * exponents. */
struct yolo_entries {
    int classes;
    bool new_coords; /* nothing has a logistic */
    float scale;     /* of the centre, about its middle */

    __device__ int entries() const
    {
        return 5 + classes;
    }

    __device__ bool is_logistic(int entry) const
    {
        return entry != 2 && entry != 3 && !new_coords;
    }

    __device__ bool is_scaled(int entry) const
    {
        return entry < 2 && scale != 1;
    }

    __device__ float scaled(float v) const
    {
        return scale * v - (scale - 1) / 2;
    }

    __device__ bool is_softmax(int) const
    {
        return false;
    }
};

/* The hooks that head.h calls. */
struct yolo_head : ampk_head {
    struct ampk_yolo_head o;

    __device__ int anchor_of(int box) const
    {
        return o.mask ? o.mask[box] : box;
    }

    /* Delta of a box from all truths: objectness goes to 0, unless the box overlaps a truth enough
     * to be ignored or to count as that truth. */
    __device__ float judge(int image, int box, int cell, const ampk_truths &truths) const
    {
        size_t first = at(image, box, cell), object = first + 4 * (size_t)area;
        int anchor = anchor_of(box), best_t = 0;
        ampk_box own = box_at(first, anchor, cell);
        float best = 0;
        for (int t = 0; t < truths.count; t++) {
            float iou = ampk_iou(own, truths.boxes[t]);
            if (iou > best) best = iou, best_t = t;
        }
        delta[object] = best > o.ignore_thresh ? 0.f : 0 - out[object];
        if (best > o.truth_thresh) be_truth(first, anchor, cell, truth_at(image, best_t));
        return out[object];
    }

    /* Treats a box as a truth because they overlap enough. */
    __device__ void be_truth(size_t first, int anchor, int cell, const float *t) const
    {
        int category = class_of(t, o.map, o.map_size);
        ampk_box box = ampk_truth_box(t);
        delta[first + 4 * (size_t)area] = 1 - out[first + 4 * (size_t)area];
        for (int k = 0; k < classes; k++) {
            size_t i = first + (size_t)(5 + k) * area;
            delta[i] = (k == category ? 1 : 0) - out[i];
        }
        draw_box(box, 2 - box.w * box.h, first, anchor, cell);
    }

    /* The anchor with the best overlap decides. If this head lacks that anchor, the truth gets no
     * box here. */
    __device__ ampk_taken assign(int, const float *t) const
    {
        ampk_box box = {0, 0, t[2], t[3]};
        ampk_taken taken = {-1, cell_of(t), 0, 0, 0, 0, 0, 0};
        float best = 0;
        for (int n = 0; n < o.anchors; n++) {
            float iou = ampk_iou(anchor_box(n), box);
            if (iou > best) best = iou, taken.anchor = n;
        }
        for (int k = boxes - 1; k >= 0 && taken.cell >= 0; k--)
            if (anchor_of(k) == taken.anchor) taken.box = k;
        return taken;
    }

    /* Lanes share the classes. Lane 0 does the rest, after reading what an earlier truth left
     * (`again`). */
    __device__ void draw(ampk_taken *taken, int image, const float *t) const
    {
        int lane = threadIdx.x % AMPK_WARP, category = class_of(t, o.map, o.map_size);
        size_t first = at(image, taken->box, taken->cell), object = first + 4 * (size_t)area;
        size_t classes_from = object + area;
        bool again = delta[classes_from] != 0; /* this box has a class already */
        __syncwarp();
        for (int k = lane; k < classes; k += AMPK_WARP) {
            size_t i = classes_from + (size_t)k * area;
            if (!again || k == category) delta[i] = (k == category ? 1 : 0) - out[i];
        }
        if (lane == 0) {
            ampk_box box = ampk_truth_box(t);
            draw_box(box, 2 - box.w * box.h, first, taken->anchor, taken->cell);
            delta[object] = 1 - out[object];
            taken->iou = ampk_iou(box_at(first, taken->anchor, taken->cell), box);
            taken->object = out[object];
            taken->category = category < 0 ? 0 : out[classes_from + (size_t)category * area];
            taken->counts = taken->counts_category = 1;
        }
        __syncwarp();
    }

    /* Truths without a place exist in region only. */
    __device__ bool takes_placeless() const
    {
        return false;
    }

    __device__ void take_placeless(int, int, ampk_taken *) const {}

    __device__ float passed_back(size_t, float d) const
    {
        return d;
    }
};

extern "C" void ampk_cuda_yolo_forward(struct ampk_context *ctx, const struct ampk_yolo_head *o,
                                       const struct ampk_tensor *x, const struct ampk_tensor *out,
                                       uint32_t *amax)
{
    float scale = o->scale_x_y != 0 ? o->scale_x_y : 1;
    ampk_head_activate(ctx, yolo_entries{o->classes, o->new_coords, scale}, x, out, amax);
}

extern "C" void ampk_cuda_yolo_loss(struct ampk_context *ctx, const struct ampk_yolo_head *o,
                                    const struct ampk_tensor *out, const float *truth, float *delta,
                                    struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    if (o->rules) {
        ampk_yolo_loss_by_rules(ctx, o, out, truth, delta, sums, delta_amax);
        return;
    }
    int used = o->truths_used < o->truths ? o->truths_used : o->truths;
    struct yolo_head head;
    ampk_fill_head(&head, *o, 4, used, o->net_w, o->net_h, out, truth, delta);
    ampk_head_loss(ctx, head, sums, delta_amax);
}

/* ---- region ---- */

/* Entries of a box: x, y, w, h, masks, objectness, classes. w and h (2, 3) have no logistic: they
 * are exponents. */
struct region_entries {
    int coords, classes;
    bool background, softmax;

    __device__ int entries() const
    {
        return coords + 1 + classes;
    }

    __device__ bool is_logistic(int entry) const
    {
        if (entry < coords) return entry < 2 || entry >= 4;
        return entry > coords || !background;
    }

    __device__ bool is_scaled(int) const
    {
        return false;
    }

    __device__ float scaled(float v) const
    {
        return v;
    }

    __device__ bool is_softmax(int entry) const
    {
        return softmax && entry >= coords + !background;
    }
};

/* The hooks that head.h calls. */
struct region_head : ampk_head {
    struct ampk_region_head o;

    /* ---- all boxes ---- */

    /* Delta of a box from all truths: objectness goes to 0 unless the box overlaps a truth. During
     * warm-up, the box is also drawn to its anchor. */
    __device__ float judge(int image, int box, int cell, const ampk_truths &truths) const
    {
        size_t first = at(image, box, cell), object = first + (size_t)coords * area;
        if (takes_placeless() && truths.placeless >= 0) {
            delta[object] = o.noobject_scale * (0 - out[object]);
            return 0;
        }
        ampk_box own = box_at(first, box, cell);
        float best = 0;
        for (int t = 0; t < truths.count; t++)
            best = fmaxf(best, ampk_iou(own, truths.boxes[t]));
        float miss = (o.background ? 1 : 0) - out[object];
        delta[object] = best > o.thresh ? 0.f : o.noobject_scale * miss;
        if (o.warm_up) draw_to_anchor(first, box, cell);
        return out[object];
    }

    __device__ void draw_to_anchor(size_t first, int box, int cell) const
    {
        ampk_box anchor = anchor_box(box);
        anchor.x = (cell % w + .5f) / w;
        anchor.y = (cell / w + .5f) / h;
        draw_box(anchor, .01f, first, box, cell);
    }

    /* ---- truths ---- */

    /* The box with the best overlap takes the truth, compared at the same centre. bias_match
     * compares anchors instead of predicted boxes. */
    __device__ ampk_taken assign(int image, const float *t) const
    {
        ampk_box truth_box = {0, 0, t[2], t[3]};
        ampk_taken taken = {-1, cell_of(t), 0, 0, 0, 0, 0, 0};
        if (taken.cell < 0) return taken;
        float best = 0;
        for (int n = 0; n < boxes; n++) {
            ampk_box box =
                o.bias_match ? anchor_box(n) : box_at(at(image, n, taken.cell), n, taken.cell);
            box.x = box.y = 0;
            float iou = ampk_iou(box, truth_box);
            if (iou > best) best = iou, taken.anchor = n;
        }
        taken.box = taken.anchor;
        return taken;
    }

    __device__ void draw(ampk_taken *taken, int image, const float *t) const
    {
        size_t first = at(image, taken->box, taken->cell);
        float category =
            draw_class(first + (size_t)(coords + 1) * area, class_of(t, o.map, o.map_size));
        if (threadIdx.x % AMPK_WARP == 0) {
            size_t object = first + (size_t)coords * area;
            ampk_box box = ampk_truth_box(t);
            taken->iou = ampk_iou(box_at(first, taken->anchor, taken->cell), box);
            draw_box(box, o.coord_scale * (2 - box.w * box.h), first, taken->anchor, taken->cell);
            for (int k = 4; k < coords; k++) {
                size_t i = first + (size_t)k * area;
                delta[i] = o.mask_scale * (t[k + 1] - out[i]);
            }
            float goal = o.background ? 0 : o.rescore ? taken->iou : 1.f;
            delta[object] = o.object_scale * (goal - out[object]);
            taken->object = out[object];
            taken->category = category;
            taken->counts = taken->counts_category = 1;
        }
        __syncwarp();
    }

    /* Draws the classes, with a whole warp; classes_from: the entry of the first class. Returns
     * the number for the statistics. */
    __device__ float draw_class(size_t classes_from, int category) const
    {
        if (o.tree.classes) return draw_path(classes_from, category);
        bool again = delta[classes_from] != 0 && !o.softmax; /* this box has a class already */
        __syncwarp();
        for (int k = threadIdx.x % AMPK_WARP; k < classes; k += AMPK_WARP) {
            size_t i = classes_from + (size_t)k * area;
            if (!again || k == category)
                delta[i] = o.class_scale * ((k == category ? 1 : 0) - out[i]);
        }
        __syncwarp();
        return again || category < 0 ? 0.f : out[classes_from + (size_t)category * area];
    }

    /* Draws a class and all classes above it in the tree, each against its siblings. Returns the
     * product of their outputs. */
    __device__ float draw_path(size_t classes_from, int category) const
    {
        float path = category < 0 ? 0.f : 1.f;
        for (; category >= 0; category = o.tree.parent[category]) {
            int group = o.tree.group[category], offset = o.tree.group_offset[group];
            int end = offset + o.tree.group_size[group];
            for (int k = offset + threadIdx.x % AMPK_WARP; k < end; k += AMPK_WARP) {
                size_t i = classes_from + (size_t)k * area;
                delta[i] = o.class_scale * ((k == category ? 1 : 0) - out[i]);
            }
            path *= out[classes_from + (size_t)category * area];
        }
        __syncwarp();
        return path;
    }

    /* ---- a class without a place: the box that most likely shows it learns it ---- */

    __device__ bool takes_placeless() const
    {
        return o.tree.classes != 0;
    }

    __device__ float likelihood(size_t first, int category) const
    {
        float p = out[first + (size_t)coords * area];
        for (; category >= 0; category = o.tree.parent[category])
            p *= out[first + (size_t)(coords + 1 + category) * area];
        return p > 0 ? p : 0;
    }

    /* The likeliest of all boxes, of equal ones the first. All threads of the block must call. A
     * maximum of 64-bit keys does not depend on the order of the atomics. */
    __device__ int likeliest(int image, int category) const
    {
        __shared__ unsigned long long
            most; /* bits of the likelihood above those of the position, inverted */
        if (threadIdx.x == 0) most = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < boxes * area && category >= 0; i += blockDim.x) {
            float p = likelihood(at(image, i / area, i % area), category);
            unsigned long long key = (unsigned long long)__float_as_uint(p) << 32;
            atomicMax(&most, key | (0xffffffffu - (unsigned)i));
        }
        __syncthreads();
        return most ? (int)(0xffffffffu - (unsigned)most) : 0;
    }

    __device__ void take_placeless(int image, int t, ampk_taken *taken) const
    {
        int category = class_of(truth_at(image, t), NULL, 0), best = likeliest(image, category);
        size_t first = at(image, best / area, best % area);
        if (threadIdx.x >= AMPK_WARP) return;
        float path = draw_path(first + (size_t)(coords + 1) * area, category);
        if (threadIdx.x > 0) return;
        delta[first + (size_t)coords * area] = 0;
        *taken = {best / area, best % area, 0, 0, path, 0, 0, 1};
    }

    /* ---- backward: goes through the logistics of place, masks and objectness; not those of
     * classes ---- */

    __device__ float passed_back(size_t i, float d) const
    {
        int entry = (int)(i / area % (coords + 1 + classes));
        bool logistic = entry < coords ? entry < 2 || entry >= 4 : entry == coords && !o.background;
        if (!logistic || d == 0) return d;
        float p = out[i];
        return delta[i] = d * ((1 - p) * p);
    }
};

extern "C" void ampk_cuda_region_forward(struct ampk_context *ctx, const struct ampk_region_head *o,
                                         const struct ampk_tensor *x, const struct ampk_tensor *out,
                                         uint32_t *amax)
{
    bool tree = o->tree.classes != 0, softmax = o->softmax || tree;
    int area = x->h * x->w;
    size_t box = (size_t)(o->coords + 1 + o->classes) * area;
    ampk_head_activate(ctx, region_entries{o->coords, o->classes, o->background, softmax}, x, out,
                       amax);
    struct ampk_softmax_planes p = {x->n * o->boxes,
                                    1,
                                    area,
                                    o->coords + !o->background,
                                    o->classes + o->background,
                                    box,
                                    NULL,
                                    NULL};
    if (tree) {
        p.groups = o->tree.groups;
        p.first = o->coords + 1;
        p.group_offset = o->tree.group_offset;
        p.group_size = o->tree.group_size;
    }
    if (softmax) ampk_softmax_over_planes(ctx, p, x, out, amax);
}

extern "C" void ampk_cuda_region_loss(struct ampk_context *ctx, const struct ampk_region_head *o,
                                      const struct ampk_tensor *out, const float *truth,
                                      float *delta, struct ampk_loss_sums *sums,
                                      uint32_t *delta_amax)
{
    struct region_head head;
    ampk_fill_head(&head, *o, o->coords, o->truths, out->w, out->h, out, truth, delta);
    ampk_head_loss(ctx, head, sums, delta_amax);
}
