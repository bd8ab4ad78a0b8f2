/* Decides what leaves ahead of the vote, when, and in which order. It must not know what is in a
 * bucket (core/engine/buckets.c), nor whether it counts in the end (vote.c). */
#include "ahead.h"

#include "devices.h"
#include "group.h"
#include "plugin/core/engine/tensors.h"

#include <math.h>

bool amp_ahead_begin(struct amp_ahead *a, struct amp_step *s, bool first)
{
    if (first) {
        a->rolling = false;
        a->buckets = 0;
    }
    return !amp_devices_have_nccl() || !amp_graph_cut(s->graph, a->bucket_bytes, a->bf16);
}

/* ---- sending ---- */

/* After K passes the statistics are .99^K of what they were plus what each process adds (spread.h):
 * process 0 all that its passes have made of them, the others what they have become beyond .99^own.
 * Later passes make each of these smaller. */
static void send_rolling(struct amp_ahead *a, struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    double keeps = (double).99f;
    double of_now = pow(keeps, s->subdivisions - a->share.first - a->share.passes);
    double of_before = amp_group_rank() ? -of_now * pow(keeps, a->share.passes) : 0;
    size_t n = amp_graph_rolling_floats(g);
    float *terms = amp_graph_rolling_terms(g, (float)of_now, (float)of_before);
    if (n) amp_devices_begin(g->backend, g->context, terms, n, &amp_devices_adding);
    a->rolling = true;
}

static void send_bucket(const struct amp_ahead *a, struct amp_step *s, const struct amp_bucket *b)
{
    struct amp_graph *g = s->graph;
    float *sums = g->sums_sent + b->first;
    uint16_t *rounded = a->bf16 ? g->sums_rounded + b->first : NULL;
    if (rounded) amp_devices_round(g->backend, g->context, sums, rounded, b->n, false);
    amp_devices_begin(g->backend, g->context, rounded ? (void *)rounded : sums, b->n,
                      rounded ? &amp_devices_adding_bf16 : &amp_devices_adding);
}

/* The first backward of a graph chooses plans by timing them, which work beside it would disturb:
 * then all is sent when it has run. */
void amp_ahead_send(struct amp_ahead *a, struct amp_step *s, int layer)
{
    struct amp_graph *g = s->graph;
    if (!amp_devices_have_nccl() || !g->warm) return;
    if (!a->rolling) send_rolling(a, s);
    for (; a->buckets < g->n_buckets && layer <= g->buckets[a->buckets].layer; a->buckets++) {
        const struct amp_bucket *b = &g->buckets[a->buckets];
        amp_graph_fill_bucket(g, b);
        send_bucket(a, s, b);
        /* Here and not after it: layers below the last bucket come when the pass is judged. */
        s->sent = a->buckets == g->n_buckets - 1;
    }
}

void amp_ahead_send_rest(struct amp_ahead *a, struct amp_step *s)
{
    const struct amp_graph *g = s->graph;
    if (!amp_devices_have_nccl()) return;
    if (!a->rolling) send_rolling(a, s);
    for (; a->buckets < g->n_buckets; a->buckets++)
        send_bucket(a, s, &g->buckets[a->buckets]);
}

/* ---- taking ---- */

void amp_ahead_finish(void)
{
    if (amp_devices_have_nccl()) amp_devices_finish();
}

void amp_ahead_take_gradients(const struct amp_ahead *a, struct amp_step *s)
{
    struct amp_graph *g = s->graph;
    if (a->bf16)
        amp_devices_round(g->backend, g->context, g->sums_sent, g->sums_rounded, g->n_gradients,
                          true);
    amp_graph_take_sums(g);
    s->sent = false;
}

void amp_ahead_take_rolling(struct amp_step *s)
{
    amp_graph_take_rolling(s->graph);
}
