/* What leaves for other processes while backward still runs: the gradients in buckets, and what the
 * passes add to the rolling statistics. It decides where a bucket ends and what is in it. It must
 * not know who gets it, nor whether the pass counts: until it does, the step's sums stay as they
 * are (spread.h).
 *
 * In memory the sums of biases, scales and layers that Darknet runs come first, then the weights of
 * our convolutions, layer after layer (gradients.c). Backward goes the other way, so buckets are
 * cut from the end, and all that comes first belongs to the last one. */
#include "graph.h"

#include <stdlib.h>

#include "tensors.h"

/* Nothing is left to compute while the last bucket travels, so that is this part of the others. */
enum { LAST_BUCKET = 16 };

/* ---- cutting ---- */

/* Whether the weights have a place behind the flat gradients. */
static bool is_apart(const struct amp_graph *g, const struct amp_param *p)
{
    return p->sum && p->sum >= g->sums + g->n_flat;
}

static void add_bucket(struct amp_graph *g, size_t first, size_t end, int layer)
{
    int lowest = g->plan->first_backward;
    g->buckets[g->n_buckets++] =
        (struct amp_bucket){first, end - first, layer > lowest ? layer : lowest};
}

static void cut(struct amp_graph *g, size_t floats)
{
    size_t end = g->n_gradients;
    for (int i = g->n_params - 1; i >= 0; i--) {
        const struct amp_param *p = &g->params[i];
        if (!is_apart(g, p)) continue;
        size_t first = (size_t)(p->sum - g->sums), left = first - g->n_flat;
        bool is_last = left <= floats / LAST_BUCKET;
        if (end - first < floats && !is_last) continue;
        if (left) add_bucket(g, first, end, p->layer);
        if (left) end = first;
        if (is_last) break;
    }
    add_bucket(g, 0, end, 0);
}

/* ---- room ---- */

/* 0 everywhere: what no pass writes stays so, as in the sums. */
static int make_room(struct amp_graph *g, bool rounded)
{
    const struct ampk_backend *be = g->backend;
    size_t bytes = g->n_gradients * sizeof *g->sums_sent;
    g->buckets = calloc((size_t)g->n_params + 1, sizeof *g->buckets);
    g->of_bucket = calloc((size_t)g->n, sizeof *g->of_bucket);
    g->sums_sent = be->alloc(g->context, bytes);
    if (rounded) g->sums_rounded = be->alloc(g->context, bytes / 2);
    if (!g->buckets || !g->of_bucket || !g->sums_sent || (rounded && !g->sums_rounded)) return -1;
    be->fill_zero(g->context, g->sums_sent, bytes);
    if (rounded) be->fill_zero(g->context, g->sums_rounded, bytes / 2);
    return 0;
}

int amp_graph_cut(struct amp_graph *g, size_t bytes, bool rounded)
{
    size_t rolling = (amp_graph_rolling_floats(g) + 1) * sizeof(float);
    if (g->rolling_terms) return 0;
    g->rolling_terms = g->backend->alloc(g->context, rolling);
    if (!g->rolling_terms) return -1;
    g->backend->fill_zero(g->context, g->rolling_terms, rolling);
    if (!bytes || !g->sums) return 0;
    if (make_room(g, rounded)) return -1;
    cut(g, bytes / sizeof(float));
    return amp_graph_find_segments(g);
}

/* ---- gradients ---- */

/* The operations are those of amp_graph_accept_pass, so the bits are the same. */
void amp_graph_fill_bucket(struct amp_graph *g, const struct amp_bucket *b)
{
    const struct ampk_backend *be = g->backend;
    float unscale = 1 / g->scale, *to = g->sums_sent;
    size_t flat = b->first ? 0 : g->n_flat;
    size_t copied = g->has_accepted_pass ? b->n : flat;
    struct ampk_span sums = {to + b->first, g->sums + b->first, copied};
    int n = 0;
    if (copied) be->copy_many(g->context, &sums, 1);
    if (flat) be->accumulate(g->context, g->gradients, flat, unscale, to);
    for (int i = 0; i < g->n_learning; i++) {
        size_t place = (size_t)(g->of_step[i].dst - g->sums);
        if (place < b->first || place >= b->first + b->n) continue;
        g->of_bucket[n++] = (struct ampk_weight_gradient){g->of_step[i].conv, to + place, NULL};
    }
    if (n) be->conv_weight_gradients(g->context, g->of_bucket, n, unscale, g->has_accepted_pass);
}

void amp_graph_take_sums(struct amp_graph *g)
{
    float *sums = g->sums;
    g->sums = g->sums_sent;
    g->sums_sent = sums;
    g->has_accepted_pass = true;
    amp_graph_place_gradients(g);
    amp_graph_list_weight_gradients(g);
}

/* ---- rolling statistics ---- */

size_t amp_graph_rolling_floats(const struct amp_graph *g)
{
    size_t n = 0;
    for (int i = 0; i < g->n_rolling; i++)
        n += g->rolling[i].n;
    return n;
}

float *amp_graph_rolling_terms(struct amp_graph *g, float of_now, float of_before)
{
    const struct ampk_backend *be = g->backend;
    float *terms = g->rolling_terms;
    size_t at = 0;
    for (int i = 0; i < g->n_rolling; at += g->rolling[i++].n)
        g->copies[i] = (struct ampk_span){terms + at, g->rolling[i].value, g->rolling[i].n};
    be->copy_many(g->context, g->copies, g->n_rolling);
    be->scale(g->context, terms, at, of_now);
    be->accumulate(g->context, g->rolling_saved, at, of_before, terms);
    return terms;
}

/* A frozen layer's have not moved, and must not move by rounding. */
void amp_graph_take_rolling(struct amp_graph *g)
{
    const float *terms = g->rolling_terms;
    int n = 0;
    for (const struct amp_rolling *r = g->rolling; r < g->rolling + g->n_rolling; terms += r++->n)
        if (!g->plan->layers[r->layer].frozen)
            g->copies[n++] = (struct ampk_span){r->value, terms, r->n};
    g->backend->copy_many(g->context, g->copies, n);
}
