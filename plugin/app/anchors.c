/* Decides which anchors fit a set of boxes, and which head gets which. It must not know where boxes
 * come from or how a result is shown. */
#include "anchors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/stream.h"

/* k-means ends in a place that depends on where it begins. */
enum { SEARCHES = 5, ROUNDS = 200 };

/* ---- IoU ---- */

static float iou(struct amp_extent a, struct amp_extent b)
{
    float common = fminf(a.w, b.w) * fminf(a.h, b.h);
    return common / (a.w * a.h + b.w * b.h - common);
}

static int nearest(struct amp_extent box, const struct amp_extent *anchors, int k, float *best)
{
    int at = 0;
    *best = -1;
    for (int i = 0; i < k; i++) {
        float x = iou(box, anchors[i]);
        if (x > *best) at = i;
        if (x > *best) *best = x;
    }
    return at;
}

double amp_anchors_iou(const struct amp_extent *boxes, size_t n, const struct amp_extent *anchors,
                       int k)
{
    double sum = 0;
    float best;
    for (size_t i = 0; i < n; i++) {
        nearest(boxes[i], anchors, k, &best);
        sum += (double)best;
    }
    return n ? sum / (double)n : 0;
}

/* ---- one search ---- */

struct mean {
    double w, h;
    size_t n;
};

/* k-means++ (Arthur and Vassilvitskii 2007): each begins at a box that is drawn by its distance, 1
 * - IoU, to those before it. -1: all boxes are at one of those. left: room for n numbers. */
static int begin(const struct amp_extent *boxes, size_t n, int k, struct amp_stream *draw,
                 float *left, struct amp_extent *anchors)
{
    for (size_t i = 0; i < n; i++)
        left[i] = 1;
    for (int a = 0; a < k; a++) {
        double sum = 0;
        size_t at = n;
        for (size_t i = 0; i < n; i++)
            sum += (double)left[i];
        double drawn = sum * amp_stream_bits(draw) * 0x1p-32;
        for (size_t i = 0; i < n && drawn >= 0; i++) {
            if (left[i] > 0) at = i;
            drawn -= (double)left[i];
        }
        if (at == n) return -1;
        anchors[a] = boxes[at];
        for (size_t i = 0; i < n; i++)
            left[i] = fminf(left[i], fmaxf(1 - iou(boxes[i], boxes[at]), 0));
    }
    return 0;
}

/* Each anchor becomes the mean of the boxes that it is nearest to. Returns the mean IoU before. */
static double improve(const struct amp_extent *boxes, size_t n, struct amp_extent *anchors, int k)
{
    struct mean means[AMP_MOST_ANCHORS] = {{0}};
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        float best;
        struct mean *m = &means[nearest(boxes[i], anchors, k, &best)];
        sum += (double)best;
        m->w += (double)boxes[i].w;
        m->h += (double)boxes[i].h;
        m->n++;
    }
    for (int a = 0; a < k; a++)
        if (means[a].n)
            anchors[a] = (struct amp_extent){(float)(means[a].w / (double)means[a].n),
                                             (float)(means[a].h / (double)means[a].n)};
    return sum / (double)n;
}

/* Means are not what is best for IoU, so the best of all rounds counts. */
static double search(const struct amp_extent *boxes, size_t n, int k, struct amp_extent *anchors)
{
    struct amp_extent now[AMP_MOST_ANCHORS], before[AMP_MOST_ANCHORS];
    double best = -1;
    memcpy(now, anchors, (size_t)k * sizeof *now);
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(before, now, sizeof now);
        double reached = improve(boxes, n, now, k);
        if (reached > best) memcpy(anchors, before, (size_t)k * sizeof *anchors);
        if (reached > best) best = reached;
        if (!memcmp(before, now, (size_t)k * sizeof *now)) break;
    }
    return best;
}

/* ---- all ---- */

static int by_area(const void *a, const void *b)
{
    const struct amp_extent *x = a, *y = b;
    float left = x->w * x->h, right = y->w * y->h;
    return (left > right) - (left < right);
}

static void round_all(struct amp_extent *anchors, int k)
{
    for (int i = 0; i < k; i++)
        anchors[i] =
            (struct amp_extent){fmaxf(1, roundf(anchors[i].w)), fmaxf(1, roundf(anchors[i].h))};
}

int amp_anchors_find(const struct amp_extent *boxes, size_t n, int k, bool whole,
                     struct amp_extent *anchors)
{
    struct amp_extent tried[AMP_MOST_ANCHORS];
    float *left = malloc((n + 1) * sizeof *left);
    double best = -1;
    int failed = !left;
    for (int i = 0; i < SEARCHES && !failed; i++) {
        struct amp_stream draw;
        amp_stream_open(&draw, 0, AMP_STREAM_ANCHORS, (uint64_t)i, 0);
        failed = begin(boxes, n, k, &draw, left, tried);
        double reached = failed ? -1 : search(boxes, n, k, tried);
        if (reached > best) memcpy(anchors, tried, (size_t)k * sizeof *anchors);
        if (reached > best) best = reached;
    }
    free(left);
    if (failed) return -1;
    if (whole) round_all(anchors, k);
    qsort(anchors, (size_t)k, sizeof *anchors, by_area);
    return 0;
}

/* ---- heads ---- */

static bool has_anchors(const struct amp_layer_desc *l)
{
    return l->type == AMP_YOLO || l->type == AMP_REGION;
}

/* Whether its cells are smaller than another's; of equal ones, whether it comes first. */
static bool is_finer(const struct amp_net_desc *net, const struct amp_anchor_head *a,
                     const struct amp_anchor_head *b)
{
    int left = net->layers[a->layer].w, right = net->layers[b->layer].w;
    return left != right ? left > right : a->layer < b->layer;
}

static int count_finer(const struct amp_net_desc *net, const struct amp_anchor_heads *heads, int i)
{
    int finer = 0;
    for (int k = 0; k < heads->n; k++)
        finer += k != i && is_finer(net, &heads->head[k], &heads->head[i]);
    return finer;
}

static int list_heads(const struct amp_net_desc *net, struct amp_anchor_heads *heads)
{
    *heads = (struct amp_anchor_heads){.unit = {1, 1}};
    for (int i = 0; i < net->n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        if (!has_anchors(l)) continue;
        if (heads->n == AMP_MOST_HEADS) return -1;
        heads->head[heads->n++] = (struct amp_anchor_head){.layer = i, .n = l->num};
        if (l->type == AMP_REGION)
            heads->unit =
                (struct amp_extent){(float)net->w / (float)l->w, (float)net->h / (float)l->h};
    }
    return 0;
}

int amp_anchor_heads_find(const struct amp_net_desc *net, int k, struct amp_anchor_heads *heads)
{
    int all = 0;
    if (list_heads(net, heads)) return -1;
    for (int i = 0; i < heads->n; i++)
        all += heads->head[i].n;
    for (int i = 0; i < heads->n && all != k; i++)
        heads->head[i].n = k / heads->n + (count_finer(net, heads, i) < k % heads->n);
    for (int i = 0; i < heads->n; i++) {
        struct amp_anchor_head *h = &heads->head[i];
        const struct amp_layer_desc *l = &net->layers[h->layer];
        for (int other = 0; other < heads->n; other++)
            if (other != i && is_finer(net, &heads->head[other], h))
                h->first += heads->head[other].n;
        h->filters = h->n * (l->coords + 1 + l->classes);
    }
    return 0;
}

struct amp_extent *amp_anchors_of_cfg(const struct amp_net_desc *net,
                                      const struct amp_anchor_heads *heads, int *n)
{
    size_t all = 0;
    for (int i = 0; i < heads->n; i++)
        all += (size_t)net->layers[heads->head[i].layer].num;
    struct amp_extent *anchors = malloc((all + 1) * sizeof *anchors);
    *n = 0;
    for (int i = 0; anchors && i < heads->n; i++) {
        const struct amp_layer_desc *l = &net->layers[heads->head[i].layer];
        for (int k = 0; k < l->num; k++) {
            const float *size = &l->loss.anchor_sizes[2 * (l->loss.mask ? l->loss.mask[k] : k)];
            anchors[(*n)++] = (struct amp_extent){size[0] * heads->unit.w, size[1] * heads->unit.h};
        }
    }
    return anchors;
}
