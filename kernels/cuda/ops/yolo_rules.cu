/* A yolo head's loss by the rules of AlexeyAB's Darknet, struct ampk_yolo_rules; yolo_box.h has the
 * formulas of one box. Has not run on a card yet.
 *
 * All boxes are judged first, a thread each. Then a block takes the truths that fall to one box of
 * the mask in an image: a warp draws all truths of a cell, in their order, so that a sum of
 * several always adds up in the same order. Sums over the pass are made of parts, as in head.h. */
#include "head.h"

/* What the truth of a cell gives to the statistics. cell < 0: this box does not take it. */
struct rules_taken {
    int cell;
    float iou, giou, category, object;
};

enum { TAKEN_ROWS = 8 }; /* numbers of the statistics that truths add to */

struct rules_head : ampk_head {
    struct ampk_yolo_head o;
    struct ampk_yolo_rules rules;

    __device__ int anchor_of(int box) const
    {
        return o.mask ? o.mask[box] : box;
    }

    /* The head's class of a truth; -1 if there is none, before the map or after it. */
    __device__ int label_of(const float *t) const
    {
        return class_of(t, NULL, 0) < 0 ? -1 : class_of(t, o.map, o.map_size);
    }

    __device__ ampk_box box_of(size_t first, int anchor, int cell) const
    {
        const float *x = out + first;
        return {(cell % w + x[0]) / w, (cell / w + x[area]) / h,
                ampk_side_scale(x[2 * area], o.new_coords) * anchor_sizes[2 * anchor] / anchor_w,
                ampk_side_scale(x[3 * area], o.new_coords) * anchor_sizes[2 * anchor + 1] /
                    anchor_h};
    }

    __device__ float object_of(size_t first, bool has_truth) const
    {
        return ampk_finite_or(out[first + 4 * (size_t)area],
                              has_truth ? 0 : out[first + 4 * (size_t)area]);
    }

    /* Adds the delta of place and size. */
    __device__ void pull_box(size_t first, int anchor, int cell, ampk_box t, float weight) const
    {
        const float *x = out + first;
        float add[4];
        if (rules.box_loss == AMPK_BOX_MSE) {
            float tw = t.w * anchor_w / anchor_sizes[2 * anchor];
            float th = t.h * anchor_h / anchor_sizes[2 * anchor + 1];
            const float goal[4] = {t.x * w - cell % w, t.y * h - cell / w,
                                   ampk_side_goal(tw, o.new_coords),
                                   ampk_side_goal(th, o.new_coords)};
            for (int k = 0; k < 4; k++)
                add[k] = weight * (2 - t.w * t.h) * (goal[k] - x[k * area]);
        } else {
            ampk_box d = ampk_box_delta(&rules, o.new_coords, box_of(first, anchor, cell), t,
                                        x[2 * area], x[3 * area], weight);
            add[0] = d.x, add[1] = d.y, add[2] = d.w, add[3] = d.h;
        }
        for (int k = 0; k < 4; k++)
            delta[first + (size_t)k * area] += add[k];
    }

    /* Draws the classes, `lanes` threads together, of which this is number `lane`. again: the
     * truth's class had a delta before. */
    __device__ void pull_classes(size_t first, int category, bool again, int lane, int lanes) const
    {
        size_t classes_from = first + 5 * (size_t)area;
        float p = out[classes_from + (size_t)category * area];
        float multiplier = ampk_multiplier_of(&rules, category), focal = ampk_focal_factor(p);
        for (int k = lane; k < classes; k += lanes) {
            size_t i = classes_from + (size_t)k * area;
            if (again && k != category) continue;
            float d = again ? (ampk_class_goal(&rules, true) - p) * multiplier
                            : ampk_class_delta(&rules, out[i], k == category, multiplier, focal);
            delta[i] = ampk_finite_or(d, delta[i]);
        }
    }

    /* ---- all boxes ---- */

    __device__ bool shows_a_class(size_t first) const
    {
        for (int k = 0; k < classes; k++)
            if (out[first + (size_t)(5 + k) * area] > .25f) return true;
        return false;
    }

    /* A box so near a truth that it counts as that truth. */
    __device__ void be_truth(size_t first, int anchor, int cell, const float *t, float object,
                             float iou) const
    {
        int category = label_of(t);
        size_t own = first + (size_t)(5 + category) * area;
        float goal = rules.objectness_smooth ? iou * iou : 1;
        float multiplier = ampk_multiplier_of(&rules, category);
        delta[first + 4 * (size_t)area] = rules.obj_normalizer * (goal - object);
        pull_classes(first, category, false, 0, 1);
        if (rules.objectness_smooth) delta[own] = multiplier * (goal - out[own]);
        pull_box(first, anchor, cell, ampk_truth_box(t), rules.iou_normalizer * multiplier);
    }

    /* Returns the box's objectness. */
    __device__ float judge(int image, int box, int cell, const ampk_truths &truths,
                           bool has_truth) const
    {
        size_t first = at(image, box, cell);
        int anchor = anchor_of(box), best_t = 0;
        ampk_box own = box_of(first, anchor, cell);
        float best = 0, object = object_of(first, has_truth);
        for (int t = 0; t < truths.count; t++) {
            float iou = ampk_iou(own, truths.boxes[t]);
            if (iou > best) best = iou, best_t = t;
        }
        float match = best > o.ignore_thresh && shows_a_class(first) ? best : 0;
        delta[first + 4 * (size_t)area] =
            ampk_background_delta(&rules, o.ignore_thresh, object, match);
        if (o.truth_thresh < 1 && best > o.truth_thresh)
            be_truth(first, anchor, cell, truth_at(image, best_t), object, best);
        return object;
    }

    /* ---- truths ---- */

    /* The anchor that fits a truth best. */
    __device__ int best_anchor(ampk_box truth) const
    {
        float best = 0;
        int best_n = 0;
        truth.x = truth.y = 0;
        for (int n = 0; n < o.anchors; n++) {
            float iou = ampk_iou(anchor_box(n), truth);
            if (iou > best) best = iou, best_n = n;
        }
        return best_n;
    }

    /* The cell in which a box of the mask takes a truth, or -1. Of boxes with the same anchor only
     * the first takes any. */
    __device__ int cell_for(int box, const float *t) const
    {
        int anchor = anchor_of(box);
        for (int k = 0; k < box; k++)
            if (anchor_of(k) == anchor) return -1;
        if (label_of(t) < 0) return -1;
        ampk_box truth = ampk_truth_box(t);
        if (best_anchor(truth) == anchor) return cell_of(t);
        if (rules.iou_thresh < 1 &&
            ampk_shape_fit(rules.iou_thresh_kind, anchor_box(anchor), truth) > rules.iou_thresh)
            return cell_of(t);
        return -1;
    }

    /* By a whole warp. */
    __device__ void draw(rules_taken *taken, int image, int box, const float *t) const
    {
        int lane = threadIdx.x % AMPK_WARP, category = label_of(t), anchor = anchor_of(box);
        size_t first = at(image, box, taken->cell), object_at = first + 4 * (size_t)area;
        size_t own = object_at + (size_t)(1 + category) * area;
        float multiplier = ampk_multiplier_of(&rules, category);
        bool again = delta[own] != 0;
        __syncwarp();
        pull_classes(first, category, again, lane, AMPK_WARP);
        if (lane == 0) {
            ampk_box truth = ampk_truth_box(t), own_box = box_of(first, anchor, taken->cell);
            ampk_box_overlap overlap = ampk_overlap_of(own_box, truth);
            float object = object_of(first, true);
            pull_box(first, anchor, taken->cell, truth, rules.iou_normalizer * multiplier);
            if (!rules.objectness_smooth || fabsf(delta[object_at]) < FLT_MIN)
                delta[object_at] = multiplier * rules.obj_normalizer * (1 - object);
            taken->iou = ampk_iou_of(&overlap);
            taken->giou = ampk_giou_of(&overlap);
            taken->object = object;
            taken->category = out[own];
        }
        __syncwarp();
    }

    /* Shares a box's delta out among the classes that it is to show. */
    __device__ void share_out(size_t first) const
    {
        bool drawn = false;
        int wanted = 0;
        for (int k = 0; k < 4; k++)
            drawn |= delta[first + (size_t)k * area] != 0;
        if (!drawn || delta[first + 4 * (size_t)area] == 0) return;
        for (int k = 0; k < classes; k++)
            wanted += delta[first + (size_t)(5 + k) * area] > 0;
        for (int k = 0; k < 4 && wanted > 0; k++)
            delta[first + (size_t)k * area] /= (float)wanted;
    }
};

/* ---- kernels ---- */

/* Truths without a class get no size, so that they overlap nothing. Returns whether any other is
 * there. All threads must call. */
static __device__ __forceinline__ bool drop_truths(const rules_head &head, int image,
                                                   const ampk_truths &truths, ampk_box *boxes)
{
    __shared__ int any;
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    for (int t = threadIdx.x; t < truths.count; t += blockDim.x) {
        if (head.label_of(head.truth_at(image, t)) < 0)
            boxes[t].w = boxes[t].h = 0;
        else
            atomicMax(&any, 1);
    }
    __syncthreads();
    return any != 0;
}

/* Block (image, part) judges some boxes of the image by all of its truths. */
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS, 2)
    ampk_judge_by_rules(rules_head head, float *any_object)
{
    AMPK_SHARED_MEMORY(ampk_box, boxes);
    int image = blockIdx.x, n = head.boxes * head.area;
    ampk_truths truths = ampk_read_truths(head, image, boxes);
    bool has_truth = drop_truths(head, image, truths, boxes);
    float sum = 0;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < n; i += gridDim.y * blockDim.x)
        sum += head.judge(image, i / head.area, i % head.area, truths, has_truth);
    sum = ampk_block_sum(sum);
    if (threadIdx.x == 0) any_object[image * gridDim.y + blockIdx.y] = sum;
}

/* Whether no truth before t falls into the same cell: then this warp takes all truths of that
 * cell. All lanes must call. */
static __device__ __forceinline__ bool is_first_of_cell(const rules_taken *taken, int t)
{
    bool earlier = false;
    for (int k = threadIdx.x % AMPK_WARP; k < t; k += AMPK_WARP)
        earlier |= taken[k].cell == taken[t].cell;
    return !__any_sync(0xffffffffu, earlier);
}

/* Sums the statistics of this block in the order of the truths, one thread for each number. */
static __device__ __forceinline__ void add_taken(const rules_taken *taken, int count, float *parts)
{
    if (threadIdx.x >= TAKEN_ROWS) return;
    float sum = 0;
    for (int t = 0; t < count; t++) {
        const rules_taken &k = taken[t];
        float recall = k.iou > .5f, recall75 = k.iou > .75f;
        const float of_truth[TAKEN_ROWS] = {k.iou,    k.category, k.object, recall,
                                            recall75, 1,          1,        k.giou};
        if (k.cell >= 0) sum += of_truth[threadIdx.x];
    }
    size_t column = (size_t)blockIdx.x * gridDim.y + blockIdx.y;
    parts[(size_t)threadIdx.x * gridDim.x * gridDim.y + column] = sum;
}

/* Block (image, box) takes the truths that fall to this box of the mask. */
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS, 2)
    ampk_take_by_rules(rules_head head, float *parts)
{
    AMPK_SHARED_MEMORY(ampk_box, boxes);
    rules_taken *taken = reinterpret_cast<rules_taken *>(boxes + head.truths_used);
    int image = blockIdx.x, box = blockIdx.y;
    int warp = threadIdx.x / AMPK_WARP, warps = blockDim.x / AMPK_WARP;
    int count = ampk_read_truths(head, image, boxes).count;
    for (int t = threadIdx.x; t < count; t += blockDim.x)
        taken[t].cell = head.cell_for(box, head.truth_at(image, t));
    __syncthreads();
    for (int t = warp; t < count; t += warps) {
        if (taken[t].cell < 0 || !is_first_of_cell(taken, t)) continue;
        for (int k = t; k < count; k++)
            if (taken[k].cell == taken[t].cell)
                head.draw(&taken[k], image, box, head.truth_at(image, k));
    }
    __syncthreads();
    add_taken(taken, count, parts);
}

static __global__ void __launch_bounds__(AMPK_LOSS_THREADS, 2) ampk_share_out(rules_head head)
{
    size_t n = (size_t)head.images * head.boxes * head.area;
    for (size_t i = ampk_first(); i < n; i += ampk_stride()) {
        int box = (int)(i / head.area);
        head.share_out(head.at(box / head.boxes, box % head.boxes, (int)(i % head.area)));
    }
}

/* The squares of delta: those of places and sizes, and all others. */
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    ampk_rules_squares(rules_head head, size_t n, float *others, float *places, uint32_t *amax)
{
    float sum = 0, sum_of_places = 0;
    uint32_t largest = 0;
    for (size_t i = ampk_first(); i < n; i += ampk_stride()) {
        float d = head.delta[i];
        int entry = (int)(i / head.area % (5 + head.classes));
        (entry < 4 ? sum_of_places : sum) += d * d;
        largest = ampk_larger(largest, ampk_magnitude(d));
    }
    sum = ampk_block_sum(sum);
    sum_of_places = ampk_block_sum(sum_of_places);
    if (threadIdx.x == 0) {
        others[blockIdx.x] = sum;
        places[blockIdx.x] = sum_of_places;
    }
    ampk_raise_amax(amax, largest);
}

/* From the sum of the others' squares to the cost. */
static __global__ void __launch_bounds__(32)
    ampk_rules_cost(struct ampk_yolo_rules rules, struct ampk_loss_sums *sums)
{
    if (threadIdx.x > 0) return;
    float overlap = rules.box_loss == AMPK_BOX_GIOU ? sums->giou : sums->iou;
    sums->cost = rules.box_loss == AMPK_BOX_MSE
                     ? sums->cost + sums->box_squares
                     : rules.obj_normalizer * sums->cost +
                           rules.iou_normalizer * (sums->count - overlap) / fmaxf(sums->count, 1);
}

/* ---- the whole loss ---- */

static_assert(AMPK_MOST_TRUTHS * (sizeof(ampk_box) + sizeof(rules_taken)) <= 47 << 10,
              "truths fit into a block's shared memory");

/* Room for the parts: `columns` of what truths give. */
static struct ampk_loss_parts_of parts_of(struct ampk_context *ctx, unsigned costs,
                                          unsigned any_objects, unsigned columns)
{
    size_t count = 2 * (size_t)costs + any_objects + TAKEN_ROWS * (size_t)columns;
    float *work = (float *)ampk_cuda_work(ctx, count * sizeof(float));
    float *truths = work + 2 * costs + any_objects;
    return {work,
            work + 2 * costs,
            truths,
            costs,
            any_objects,
            columns,
            truths + (TAKEN_ROWS - 1) * (size_t)columns,
            work + costs};
}

void ampk_yolo_loss_by_rules(struct ampk_context *ctx, const struct ampk_yolo_head *o,
                             const struct ampk_tensor *out, const float *truth, float *delta,
                             struct ampk_loss_sums *sums, uint32_t *delta_amax)
{
    struct rules_head head;
    int used = o->truths_used < o->truths ? o->truths_used : o->truths;
    ampk_fill_head(&head, *o, 4, used, o->net_w, o->net_h, out, truth, delta);
    head.rules = *o->rules;
    size_t per_image = (size_t)head.boxes * head.area;
    size_t n = head.images * per_image * (5 + head.classes);
    unsigned parts = (unsigned)((per_image + AMPK_LOSS_THREADS - 1) / AMPK_LOSS_THREADS);
    if (parts > 16) parts = 16;
    struct ampk_loss_parts_of p =
        parts_of(ctx, ampk_loss_parts(n), parts * head.images, (unsigned)head.images * head.boxes);
    size_t boxes = used * sizeof(ampk_box), taken = used * sizeof(rules_taken);
    ampk_rt_zero(delta, n * sizeof(float), ctx->stream);
    AMPK_LAUNCH(ampk_judge_by_rules, dim3(head.images, parts), AMPK_LOSS_THREADS, boxes,
                ctx->stream, head, p.any_object);
    AMPK_LAUNCH(ampk_take_by_rules, dim3(head.images, head.boxes), AMPK_LOSS_THREADS, boxes + taken,
                ctx->stream, head, p.image);
    if (head.rules.iou_thresh < 1)
        AMPK_LAUNCH(
            ampk_share_out,
            ampk_cuda_blocks(ctx, head.images * per_image, AMPK_LOSS_THREADS, AMPK_LOSS_THREADS),
            AMPK_LOSS_THREADS, 0, ctx->stream, head);
    AMPK_LAUNCH(ampk_rules_squares, p.costs, AMPK_LOSS_THREADS, 0, ctx->stream, head, n, p.cost,
                p.box_squares, delta_amax);
    ampk_finish_loss(ctx, p, sums);
    AMPK_LAUNCH(ampk_rules_cost, 1, 32, 0, ctx->stream, head.rules, sums);
}
