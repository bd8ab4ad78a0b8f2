/* The common parts of yolo and region: boxes, the truths of an image, and the order in which they
 * count.
 *
 * Darknet takes the truths one after another; a later one overwrites what an earlier one left in
 * the same box of the same cell. Truths of different boxes do not affect each other. So each warp
 * takes the truths of one box, in order, and warps work on different boxes at the same time.
 *
 * A head H is a struct ampk_head and has
 *     judge(image, box, cell, truths)        the delta of a box from all the truths
 *     assign(image, truth) -> ampk_taken     the box that a truth belongs to
 *     draw(taken, image, truth)              its delta, by a whole warp; fills in the statistics
 *     passed_back(i, delta)                  delta i of the head's input */
#ifndef AMPK_CUDA_HEAD_H
#define AMPK_CUDA_HEAD_H

#include "kernels/yolo_box.h"
#include "loss.h"

static __device__ __forceinline__ float ampk_overlap(float x1, float w1, float x2, float w2)
{
    return fminf(x1 + w1 / 2, x2 + w2 / 2) - fmaxf(x1 - w1 / 2, x2 - w2 / 2);
}

static __device__ __forceinline__ float ampk_iou(ampk_box a, ampk_box b)
{
    float w = ampk_overlap(a.x, a.w, b.x, b.w), h = ampk_overlap(a.y, a.h, b.y, b.h);
    float both = w < 0 || h < 0 ? 0.f : w * h;
    return both / (a.w * a.h + b.w * b.h - both);
}

/* An image's truths as a block sees them. */
struct ampk_truths {
    const ampk_box *boxes; /* shared memory */
    int count;
    int placeless; /* the first truth without a place in the image, or -1 */
};

/* The box that takes a truth, and what the statistics get. box < 0: no box takes it. */
struct ampk_taken {
    int box, cell, anchor;
    float iou, category, object;
    float counts, counts_category; /* 1 or 0 */
};

struct ampk_head {
    const float *out, *truth;
    float *delta;
    int images, boxes, coords, classes, w, h, area;
    int truths, truths_used;
    float anchor_w, anchor_h; /* divisors that turn anchor sizes into fractions of the image */
    const float *anchor_sizes;

    /* Index of entry 0 of a box; entry k is k * area further. */
    __device__ __forceinline__ size_t at(int image, int box, int cell) const
    {
        return ((size_t)image * boxes + box) * (coords + 1 + classes) * area + cell;
    }

    __device__ __forceinline__ const float *truth_at(int image, int t) const
    {
        return truth + ((size_t)image * truths + t) * (coords + 1);
    }

    __device__ __forceinline__ ampk_box anchor_box(int anchor) const
    {
        return {0, 0, anchor_sizes[2 * anchor] / anchor_w, anchor_sizes[2 * anchor + 1] / anchor_h};
    }

    __device__ __forceinline__ ampk_box box_at(size_t first, int anchor, int cell) const
    {
        const float *x = out + first;
        return {(cell % w + x[0]) / w, (cell / w + x[area]) / h,
                expf(x[2 * area]) * anchor_sizes[2 * anchor] / anchor_w,
                expf(x[3 * area]) * anchor_sizes[2 * anchor + 1] / anchor_h};
    }

    /* Draws a box towards a truth: the delta is scale * (goal - output) for each coordinate. */
    __device__ __forceinline__ void draw_box(ampk_box t, float scale, size_t first, int anchor,
                                             int cell) const
    {
        const float goal[4] = {t.x * w - cell % w, t.y * h - cell / w,
                               logf(t.w * anchor_w / anchor_sizes[2 * anchor]),
                               logf(t.h * anchor_h / anchor_sizes[2 * anchor + 1])};
        for (int k = 0; k < 4; k++) {
            size_t i = first + (size_t)k * area;
            delta[i] = scale * (goal[k] - out[i]);
        }
    }

    /* The cell of a truth's centre, -1 outside of the grid. The test is written so that NaN is
     * outside. */
    __device__ __forceinline__ int cell_of(const float *t) const
    {
        float x = t[0] * w, y = t[1] * h;
        if (!(x > -1 && x < w && y > -1 && y < h)) return -1;
        return (int)y * w + (int)x;
    }

    /* The class of a label, -1 if there is no such class. */
    __device__ __forceinline__ int class_of(const float *t, const int *map, int map_size) const
    {
        float label = t[coords];
        int found = label > -1 && label < 1e6f ? (int)label : -1;
        if (map) found = found >= 0 && found < map_size ? map[found] : -1;
        return found < classes ? found : -1;
    }
};

static __device__ __forceinline__ ampk_box ampk_truth_box(const float *t)
{
    return {t[0], t[1], t[2], t[3]};
}

/* Reads the truths of an image into boxes. All threads must call. The first truth with x = 0 ends
 * the list, as in Darknet. */
static __device__ __forceinline__ ampk_truths ampk_read_truths(const ampk_head &head, int image,
                                                               ampk_box *boxes)
{
    __shared__ int after,
        placeless; /* truths from the end mark on; from the first placeless one on */
    int used = head.truths_used;
    if (threadIdx.x == 0) after = placeless = 0;
    __syncthreads();
    for (int t = threadIdx.x; t < used; t += blockDim.x) {
        boxes[t] = ampk_truth_box(head.truth_at(image, t));
        if (boxes[t].x == 0) atomicMax(&after, used - t);
        if (boxes[t].x > 100000 && boxes[t].y > 100000) atomicMax(&placeless, used - t);
    }
    __syncthreads();
    return {boxes, used - after, placeless > after ? used - placeless : -1};
}

/* ---- kernels: two blocks a multiprocessor, because with more ptxas would spill registers ---- */

/* Block (image, part) judges some boxes of the image by all of its truths. */
template <typename Head>
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS, 2)
    ampk_judge_boxes(Head head, float *any_object)
{
    AMPK_SHARED_MEMORY(ampk_box, boxes);
    int image = blockIdx.x, n = head.boxes * head.area;
    ampk_truths truths = ampk_read_truths(head, image, boxes);
    float sum = 0;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < n; i += gridDim.y * blockDim.x)
        sum += head.judge(image, i / head.area, i % head.area, truths);
    sum = ampk_block_sum(sum);
    if (threadIdx.x == 0) any_object[image * gridDim.y + blockIdx.y] = sum;
}

/* Whether no truth before t belongs to the same box: then this warp takes all truths of that box.
 * All lanes must call. */
static __device__ __forceinline__ bool ampk_is_first(const ampk_taken *taken, int t)
{
    bool earlier = false;
    for (int k = threadIdx.x % AMPK_WARP; k < t; k += AMPK_WARP)
        earlier |= taken[k].box == taken[t].box && taken[k].cell == taken[t].cell;
    return !__any_sync(0xffffffffu, earlier);
}

/* Sums the image's statistics in the order of the truths, one thread for each number. */
static __device__ __forceinline__ void
ampk_add_truths(const ampk_head &head, const ampk_taken *taken, int count, float *parts)
{
    if (threadIdx.x >= 7) return;
    float sum = 0;
    for (int t = 0; t < count; t++) {
        const ampk_taken &k = taken[t];
        float recall = k.iou > .5f, recall75 = k.iou > .75f;
        const float of_truth[7] = {k.iou,    k.category, k.object,         recall,
                                   recall75, k.counts,   k.counts_category};
        sum += of_truth[threadIdx.x];
    }
    parts[(size_t)threadIdx.x * head.images + blockIdx.x] = sum;
}

/* One block takes all truths of an image. */
template <typename Head>
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS, 2)
    ampk_take_truths(Head head, float *parts)
{
    AMPK_SHARED_MEMORY(ampk_box, boxes);
    ampk_taken *taken = reinterpret_cast<ampk_taken *>(boxes + head.truths_used);
    int image = blockIdx.x, warp = threadIdx.x / AMPK_WARP, warps = blockDim.x / AMPK_WARP;
    ampk_truths truths = ampk_read_truths(head, image, boxes);
    if (truths.placeless >= 0 && head.takes_placeless()) {
        head.take_placeless(image, truths.placeless, taken);
        truths.count = 1;
    } else {
        for (int t = threadIdx.x; t < truths.count; t += blockDim.x)
            taken[t] = head.assign(image, head.truth_at(image, t));
        __syncthreads();
        for (int t = warp; t < truths.count; t += warps) {
            if (taken[t].box < 0 || !ampk_is_first(taken, t)) continue;
            for (int k = t; k < truths.count; k++)
                if (taken[k].box == taken[t].box && taken[k].cell == taken[t].cell)
                    head.draw(&taken[k], image, head.truth_at(image, k));
        }
    }
    __syncthreads();
    ampk_add_truths(head, taken, truths.count, parts);
}

/* Sums the squares of delta, which is the cost, and turns delta into the gradient that leaves the
 * head. */
template <typename Head>
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    ampk_pass_back(Head head, size_t n, float *squares, uint32_t *amax)
{
    const int together = 8; /* loads in flight at a time */
    float sum = 0;
    uint32_t largest = 0;
    for (size_t i = ampk_first(); i < n; i += together * ampk_stride()) {
        float d[together];
        for (int k = 0; k < together; k++) {
            size_t at = i + k * ampk_stride();
            d[k] = at < n ? head.delta[at] : 0;
        }
        for (int k = 0; k < together; k++) {
            size_t at = i + k * ampk_stride();
            if (at >= n) break;
            sum += d[k] * d[k];
            largest = ampk_larger(largest, ampk_magnitude(head.passed_back(at, d[k])));
        }
    }
    sum = ampk_block_sum(sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
    ampk_raise_amax(amax, largest);
}

/* ---- the whole loss ---- */

/* used: labels of an image that count; anchor_w, anchor_h: the image's sides in the anchors' unit.
 */
template <typename Head, typename Options>
static inline void ampk_fill_head(Head *head, const Options &o, int coords, int used, int anchor_w,
                                  int anchor_h, const struct ampk_tensor *out, const float *truth,
                                  float *delta)
{
    head->out = (const float *)out->data;
    head->truth = truth;
    head->delta = delta;
    head->images = out->n;
    head->boxes = o.boxes;
    head->coords = coords;
    head->classes = o.classes;
    head->w = out->w;
    head->h = out->h;
    head->area = out->w * out->h;
    head->truths = o.truths;
    head->truths_used = used;
    head->anchor_w = (float)anchor_w;
    head->anchor_h = (float)anchor_h;
    head->anchor_sizes = o.anchor_sizes;
    head->o = o;
}

/* Of 48 KiB of shared memory, a block's own variables need some, too. */
static_assert(AMPK_MOST_TRUTHS * sizeof(ampk_box) + (AMPK_MOST_TRUTHS + 1) * sizeof(ampk_taken) <=
                  47 << 10,
              "truths fit into a block's shared memory");

template <typename Head>
static inline void ampk_head_loss(struct ampk_context *ctx, const Head &head,
                                  struct ampk_loss_sums *sums, uint32_t *amax)
{
    size_t per_image = (size_t)head.boxes * head.area;
    size_t n = head.images * per_image * (head.coords + 1 + head.classes);
    unsigned parts = (unsigned)((per_image + AMPK_LOSS_THREADS - 1) / AMPK_LOSS_THREADS);
    if (parts > 16) parts = 16;
    struct ampk_loss_parts_of p =
        ampk_loss_work(ctx, ampk_loss_parts(n), parts * head.images, head.images);
    size_t boxes = head.truths_used * sizeof(ampk_box);
    size_t taken = (head.truths_used + 1) * sizeof(ampk_taken);
    ampk_rt_zero(head.delta, n * sizeof(float), ctx->stream);
    AMPK_LAUNCH(ampk_judge_boxes<Head>, dim3(head.images, parts), AMPK_LOSS_THREADS, boxes,
                ctx->stream, head, p.any_object);
    AMPK_LAUNCH(ampk_take_truths<Head>, head.images, AMPK_LOSS_THREADS, boxes + taken, ctx->stream,
                head, p.image);
    AMPK_LAUNCH(ampk_pass_back<Head>, p.costs, AMPK_LOSS_THREADS, 0, ctx->stream, head, n, p.cost,
                amax);
    ampk_finish_loss(ctx, p, sums);
}

/* yolo_rules.cu: yolo_loss of a head with rules. */
void ampk_yolo_loss_by_rules(struct ampk_context *, const struct ampk_yolo_head *,
                             const struct ampk_tensor *out, const float *truth, float *delta,
                             struct ampk_loss_sums *, uint32_t *delta_amax);

/* ---- activation ---- */

/* Each block has one plane (image, box, entry): applies the logistic or copies it, scales
 * it, as the options say, or leaves it to a softmax. */
template <typename Options>
static __global__ void __launch_bounds__(AMPK_LOSS_THREADS)
    ampk_activate_planes(Options o, int area, const float *__restrict__ x, float *__restrict__ out,
                         uint32_t *amax)
{
    size_t first = (size_t)blockIdx.x * area;
    int entry = (int)(blockIdx.x % o.entries());
    bool logistic = o.is_logistic(entry), scaled = o.is_scaled(entry);
    if (o.is_softmax(entry)) return;
    uint32_t largest = 0;
    for (int i = threadIdx.x; i < area; i += blockDim.x) {
        float v = logistic ? ampk_logistic(x[first + i]) : x[first + i];
        if (scaled) v = o.scaled(v);
        out[first + i] = v;
        largest = ampk_larger(largest, ampk_magnitude(v));
    }
    ampk_raise_amax(amax, largest);
}

template <typename Options>
static inline void ampk_head_activate(struct ampk_context *ctx, Options o,
                                      const struct ampk_tensor *x, const struct ampk_tensor *out,
                                      uint32_t *amax)
{
    int area = x->h * x->w;
    int threads = area > 128 ? 256 : area > 64 ? 128 : 64;
    AMPK_LAUNCH(ampk_activate_planes<Options>, x->n * x->c, threads, 0, ctx->stream, o, area,
                (const float *)x->data, (float *)out->data, amax);
}

#endif
