/* Darknet's yolo layer: its forward pass and its loss. The rules are those of Darknet's
 * forward_yolo_layer; head.h has the order in which truths count. */
#include "head.h"

/* Entries of a box: x, y, w, h, objectness, classes. w and h (2, 3) have no logistic: they are
 * exponents. */
struct yolo_entries {
    int classes;

    __device__ int entries() const
    {
        return 5 + classes;
    }

    __device__ bool is_logistic(int entry) const
    {
        return entry != 2 && entry != 3;
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
    ampk_head_activate(ctx, yolo_entries{o->classes}, x, out, amax);
}

extern "C" void ampk_cuda_yolo_loss(struct ampk_context *ctx, const struct ampk_yolo_head *o,
                                    const struct ampk_tensor *out, const float *truth, float *delta,
                                    struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    struct yolo_head head;
    head.out = (const float *)out->data;
    head.truth = truth;
    head.delta = delta;
    head.images = out->n;
    head.boxes = o->boxes;
    head.coords = 4;
    head.classes = o->classes;
    head.w = out->w;
    head.h = out->h;
    head.area = out->w * out->h;
    head.truths = o->truths;
    head.truths_used = o->truths_used < o->truths ? o->truths_used : o->truths;
    head.anchor_w = (float)o->net_w;
    head.anchor_h = (float)o->net_h;
    head.anchor_sizes = o->anchor_sizes;
    head.o = *o;
    ampk_head_loss(ctx, head, sums, delta_amax);
}
