#include "segment.h"

#include <stdlib.h>

#include "graph.h"

static bool stands_apart(const struct amp_graph *g, int layer)
{
    bool drawn_apart = g->net->layers[layer].type == AMP_DROPOUT && g->native.random_uniform;
    return !g->plan->layers[layer].ours || drawn_apart;
}

int amp_segments_create(struct amp_graph *g)
{
    if (!g->backend->record_begin) return 0;
    g->segments = calloc((size_t)g->n, sizeof *g->segments);
    if (!g->segments) return -1;
    struct amp_segment *s = NULL;
    for (int i = 0; i < g->n; i++) {
        bool apart = stands_apart(g, i);
        if (!apart && !s) {
            s = &g->segments[g->n_segments++];
            s->first = i;
        }
        if (apart) s = NULL;
        if (s) s->last = i;
        g->nodes[i].segment = s;
    }
    return 0;
}

static void forget_recording(struct amp_graph *g, struct amp_segment_way *w)
{
    if (w->recording) g->backend->record_free(g->context, w->recording);
    w->recording = NULL;
}

void amp_segments_free(struct amp_graph *g)
{
    for (int i = 0; i < g->n_segments; i++)
        for (int k = 0; k < AMP_WAYS; k++)
            forget_recording(g, &g->segments[i].way[k]);
    free(g->segments);
}

/* Whether it last ran with the values that hold now; takes them. */
static bool same_values(const struct amp_graph *g, struct amp_segment_way *w, bool backward)
{
    float scale = backward ? g->scale : 0;
    bool warm_up = g->seen < AMP_REGION_WARM_UP_IMAGES;
    bool same = w->ran && w->scale == scale && w->truth == g->truth && w->region_warm_up == warm_up;
    w->ran = true;
    w->scale = scale;
    w->truth = g->truth;
    w->region_warm_up = warm_up;
    return same;
}

static void run_forward(struct amp_graph *g, const struct amp_segment *s)
{
    for (int i = s->first; i <= s->last; i++)
        amp_graph_forward_layer(g, i);
}

static void run_backward(struct amp_graph *g, const struct amp_segment *s)
{
    for (int i = s->last; i >= s->first && i >= g->plan->first_backward; i--)
        amp_graph_backward_layer(g, i);
}

/* Unrecorded with values that are new; recorded once and played when they come again. */
static void run(struct amp_graph *g, struct amp_segment *s, enum amp_way way,
                void (*body)(struct amp_graph *, const struct amp_segment *))
{
    const struct ampk_backend *be = g->backend;
    struct amp_segment_way *w = &s->way[way];
    if (g->inspecting || g->see || g->trace) { /* more than was recorded */
        body(g, s);
        return;
    }
    bool same = same_values(g, w, way == AMP_BACKWARD);
    if (!same) forget_recording(g, w);
    if (same && !w->recording && be->record_begin(g->context)) {
        body(g, s);
        w->recording = be->record_end(g->context);
    }
    if (w->recording)
        be->record_play(g->context, w->recording);
    else
        body(g, s);
}

void amp_segment_forward(struct amp_graph *g, int layer)
{
    struct amp_segment *s = g->nodes[layer].segment;
    if (!s)
        amp_graph_forward_layer(g, layer);
    else if (layer == s->first)
        run(g, s, g->train ? AMP_FORWARD : AMP_INFERENCE, run_forward);
}

void amp_segment_backward(struct amp_graph *g, int layer)
{
    struct amp_segment *s = g->nodes[layer].segment;
    if (!s)
        amp_graph_backward_layer(g, layer);
    else if (layer == s->last)
        run(g, s, AMP_BACKWARD, run_backward);
}
