/* Runs of layers between Darknet's own: which layers they have, and when one is recorded and played
 * back (struct amp_segment in tensors.h). It must not know what a layer does (graph.c). */
#include <stdlib.h>

#include "tensors.h"

static void forget_recording(struct amp_graph *g, struct amp_segment_run *w)
{
    if (w->recording) g->backend->record_free(g->context, w->recording);
    w->recording = NULL;
}

void amp_graph_free_segments(struct amp_graph *g)
{
    for (int i = 0; i < g->n_segments; i++)
        for (int k = 0; k < AMP_SEGMENT_PASSES; k++)
            for (int lane = 0; lane < AMP_LANES; lane++)
                forget_recording(g, &g->segments[i].runs[k][lane]);
    free(g->segments);
    g->segments = NULL;
    g->n_segments = 0;
}

/* A recording replays device work only. It cannot call Darknet's code, nor draw random numbers on
 * the host. */
static bool stands_apart(const struct amp_graph *g, int layer)
{
    bool drawn_apart = g->net->layers[layer].type == AMP_DROPOUT && g->native.random_uniform;
    return !g->plan->layers[layer].ours || drawn_apart;
}

/* Whether a bucket is complete, and can leave, before the layers below run backward. */
static bool ends_bucket(const struct amp_graph *g, int layer)
{
    for (int b = 0; b < g->n_buckets; b++)
        if (g->buckets[b].layer == layer && layer > g->plan->first_backward) return true;
    return false;
}

int amp_graph_find_segments(struct amp_graph *g)
{
    amp_graph_free_segments(g);
    if (!g->backend->record_begin) return 0;
    g->segments = calloc((size_t)g->n, sizeof *g->segments);
    if (!g->segments) return -1;
    struct amp_segment *s = NULL;
    for (int i = 0; i < g->n; i++) {
        bool apart = stands_apart(g, i);
        if (ends_bucket(g, i)) s = NULL;
        if (!apart && !s) {
            s = &g->segments[g->n_segments++];
            s->first = i;
        }
        /* The next layer of ours opens a new segment. */
        if (apart) s = NULL;
        if (s) s->last = i;
        g->nodes[i].segment = s;
    }
    return 0;
}

/* ---- passes ---- */

/* Where the only copy of the input is that changes its place. */
static const void *input_of(const struct amp_graph *g)
{
    enum amp_format f = g->plan->input_format;
    return f == AMP_FORMATS ? NULL : g->input_copy[f].data;
}

/* Whether the segment last ran with the present values; stores them. A recording holds these values
 * as constants, so another one of them needs another recording. */
static bool same_values(const struct amp_graph *g, struct amp_segment_run *w, bool backward)
{
    float scale = backward ? g->scale : 0;
    const void *input = input_of(g);
    bool warm_up = g->seen < AMP_REGION_WARM_UP_IMAGES;
    bool squares_sums = backward && g->squares && g->has_accepted_pass;
    bool same = w->ran && w->scale == scale && w->input == input && w->truth == g->truth &&
                w->region_warm_up == warm_up && w->squares_sums == squares_sums;
    w->ran = true;
    w->scale = scale;
    w->input = input;
    w->truth = g->truth;
    w->region_warm_up = warm_up;
    w->squares_sums = squares_sums;
    return same;
}

static void run_forward(struct amp_graph *g, const struct amp_segment *s)
{
    for (int i = s->first; i <= s->last; i++)
        amp_graph_forward_layer(g, i);
}

/* Layers before first_backward have no backward (stopbackward=1, freeze=1), even inside a
 * segment. */
static void run_backward(struct amp_graph *g, const struct amp_segment *s)
{
    for (int i = s->last; i >= s->first && i >= g->plan->first_backward; i--)
        amp_graph_backward_layer(g, i);
}

/* Runs new values once without recording, because that first run chooses plans and allocates
 * memory, which a recording must not do. The second run with equal values is recorded; later runs
 * play the recording. */
static void run(struct amp_graph *g, struct amp_segment *s, enum amp_segment_pass pass,
                void (*body)(struct amp_graph *, const struct amp_segment *))
{
    const struct ampk_backend *be = g->backend;
    struct amp_segment_run *w = &s->runs[pass][g->lane];
    /* A recording lacks these extra calls, and what the host does between two kernels. */
    if (g->inspecting || g->see || g->trace || g->sync) {
        body(g, s);
        return;
    }
    bool same = same_values(g, w, pass >= AMP_SEGMENT_BACKWARD);
    if (!same) forget_recording(g, w);
    /* Recording itself may fail; then the body below runs as usual. */
    if (same && !w->recording && be->record_begin(g->context)) {
        body(g, s);
        w->recording = be->record_end(g->context);
    }
    if (w->recording)
        be->record_play(g->context, w->recording);
    else
        body(g, s);
}

void amp_graph_forward(struct amp_graph *g, int layer)
{
    struct amp_segment *s = g->nodes[layer].segment;
    if (!s)
        amp_graph_forward_layer(g, layer);
    else if (layer == s->first)
        run(g, s, g->train ? AMP_SEGMENT_FORWARD : AMP_SEGMENT_INFERENCE, run_forward);
    if (layer == g->n - 1) amp_graph_end_range(g);
}

/* Gradients are watched at the end of the segment that has first_backward. */
static enum amp_segment_pass backward_of(const struct amp_graph *g, const struct amp_segment *s)
{
    bool squared = g->squares && s->first <= g->plan->first_backward;
    return squared ? AMP_SEGMENT_SQUARED : AMP_SEGMENT_BACKWARD;
}

void amp_graph_backward(struct amp_graph *g, int layer)
{
    struct amp_segment *s = g->nodes[layer].segment;
    if (layer < g->plan->first_backward) return;
    if (!s)
        amp_graph_backward_layer(g, layer);
    else if (layer == s->last)
        run(g, s, backward_of(g, s), run_backward);
    if (layer != g->plan->first_backward) return;
    g->warm = true;
    amp_graph_end_range(g);
}
