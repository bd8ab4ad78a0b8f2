/* Concatenation of channels, or of flat vectors where the images differ in size. A source whose
 * output or delta is a slice of the route's (plan.h) needs no copy. */
#include "executor.h"

/* The part of the route's output or delta that a source fills from `first` on: channels, or
 * elements of every image. */
static struct ampk_tensor part_of(const struct amp_graph *g, int i, const struct ampk_tensor *whole,
                                  int first, const struct ampk_tensor *source)
{
    bool flat = g->net->layers[i].out_c == 0;
    struct ampk_tensor part =
        ampk_slice(whole, first, flat ? source->c * source->h * source->w : source->c);
    if (!flat) return part;
    part.h = part.w = 1;
    part.pitch = 0;
    return part;
}

static bool is_slice(const struct amp_graph *g, int i, int k, bool delta)
{
    int s = g->plan->layers[i].sources[k];
    const struct amp_plan_layer *source = &g->plan->layers[s < 0 ? 0 : s];
    return s >= 0 && source->route == i && (source->delta_slice || !delta);
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    int first = 0;
    for (int k = 0; k < node->desc->n_sources; k++) {
        const struct ampk_tensor *x = amp_graph_source(g, i, k);
        struct ampk_tensor part = part_of(g, i, &node->out, first, x);
        if (!is_slice(g, i, k, false))
            g->backend->convert(g->context, x, &part, false, &node->watch[AMP_WATCH_OUT]);
        first += part.c;
    }
}

static void backward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    int first = 0;
    for (int k = 0; k < node->desc->n_sources; k++) {
        struct ampk_tensor part = part_of(g, i, &node->delta, first, amp_graph_source(g, i, k));
        first += part.c;
        if (is_slice(g, i, k, true)) continue;
        struct amp_contribution c;
        if (!amp_contribution_begin(g, i, k, &c)) continue;
        g->backend->convert(g->context, &part, c.dx, c.accumulate, c.watch);
        amp_contribution_end(g, &c);
    }
}

const struct amp_executor amp_exec_route = {.forward = forward, .backward = backward};
