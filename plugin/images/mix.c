/* Decides where the pictures of a mosaic lie, and which truths of mixed pictures stay. It must not
 * know how a picture is cut. */
#include "mix.h"

#include <string.h>

/* ---- mixup ---- */

void amp_mixup_planes(float *planes, const float *other, size_t n)
{
    for (size_t i = 0; i < n; i++)
        planes[i] = planes[i] * 0.5f + other[i] * 0.5f;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

int amp_mixup_truths(const struct amp_truth_rules *rules, float *truths, int count,
                     const float *others, int others_count)
{
    int added = smaller(others_count, rules->max - count);
    memcpy(truths + count * AMP_TRUTH_FLOATS, others,
           (size_t)added * AMP_TRUTH_FLOATS * sizeof *truths);
    return count + added;
}

/* ---- mosaic ---- */

/* How much of a border is not of the picture, in pixels of the result; at most `most`. */
static int empty(int border, int side, int picture_side, int most)
{
    int pixels = border < 0 ? -border * side / picture_side : 0;
    return smaller(pixels, most);
}

struct amp_part amp_mosaic_part(const struct amp_truth_rules *rules, const struct amp_crop *c,
                                const struct amp_cut *cut, int round)
{
    bool top = round < 2, at_left = round % 2 == 0;
    int w = rules->w, h = rules->h;
    int left = c->flip ? c->right : c->left, right = c->flip ? c->left : c->right;
    struct amp_part p = {.x = at_left ? 0 : cut->x,
                         .y = top ? 0 : cut->y,
                         .w = at_left ? cut->x : w - cut->x,
                         .h = top ? cut->y : h - cut->y};
    p.from_x = at_left ? w - cut->x - empty(right, w, c->picture_w, w - cut->x)
                       : empty(left, w, c->picture_w, cut->x);
    p.from_y = top ? h - cut->y - empty(c->bottom, h, c->picture_h, h - cut->y)
                   : empty(c->top, h, c->picture_h, cut->y);
    return p;
}

/* One direction of a box: centre and size as fractions. */
struct span {
    float at, size;
};

struct ends {
    int start, end; /* in pixels, truncated */
};

static struct ends ends_of(const struct span *s, int side)
{
    return (struct ends){(int)((s->at - s->size / 2) * (float)side),
                         (int)((s->at + s->size / 2) * (float)side)};
}

/* To whole pixels within [start, end). */
static void bound(struct span *s, int side, int start, int end)
{
    struct ends e = ends_of(s, side);
    if (e.start < start) e.start = start;
    if (e.end > end) e.end = end;
    s->at = (float)(e.start + e.end) / 2 / (float)side;
    s->size = (float)(e.end - e.start) / (float)side;
}

/* The whole pixels that are over an edge go. */
static void clip(struct span *s, int side)
{
    struct ends e = ends_of(s, side);
    float before = e.start < 0 ? (float)-e.start / (float)side : 0;
    float after = e.end > side ? (float)(e.end - side) / (float)side : 0;
    s->at += (before - after) / 2;
    s->size -= before + after;
}

static bool stays(const struct span *s, int side)
{
    struct ends e = ends_of(s, side);
    return e.start >= 0 && e.end <= side && s->at > 0 && s->at < 1 && s->size > 1 / (float)side;
}

static struct span move(float at, float size, int pixels, int side)
{
    return (struct span){at + (float)pixels / (float)side, size};
}

int amp_mosaic_truths(const struct amp_truth_rules *rules, const struct amp_part *p, bool bounded,
                      float *truths, int count, const float *others, int others_count)
{
    int looked_at = smaller(others_count, rules->max - count);
    for (int i = 0; i < looked_at; i++, others += AMP_TRUTH_FLOATS) {
        struct span across = move(others[0], others[2], p->x - p->from_x, rules->w);
        struct span down = move(others[1], others[3], p->y - p->from_y, rules->h);
        if (bounded) {
            bound(&across, rules->w, p->x, p->x + p->w);
            bound(&down, rules->h, p->y, p->y + p->h);
        } else {
            clip(&across, rules->w);
            clip(&down, rules->h);
        }
        if (!stays(&across, rules->w) || !stays(&down, rules->h)) continue;
        const float truth[AMP_TRUTH_FLOATS] = {across.at, down.at, across.size, down.size,
                                               others[4]};
        memcpy(truths + count++ * AMP_TRUTH_FLOATS, truth, sizeof truth);
    }
    return count;
}
