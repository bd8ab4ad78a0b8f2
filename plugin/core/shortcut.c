/* Of a fused sum (plan.h) the convolution before it has done the forward pass, and its delta is
 * already that of the sources which share it. */
#include "executor.h"

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    if (node->plan->fused) return;
    g->backend->shortcut_forward(g->context, amp_graph_source(g, i, 0), amp_graph_source(g, i, 1),
                                 l->alpha, l->beta, l->activation, &node->out,
                                 &node->watch[AMP_WATCH_OUT]);
}

/* One source at a time: they share the buffer for contributions that need conversion. */
static void backward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    for (int k = 0; k < 2; k++) {
        struct amp_contribution c;
        if (!amp_contribution_begin(g, i, k, &c) || c.dx->data == node->delta.data) continue;
        g->backend->shortcut_backward(g->context, &node->out, &node->delta, l->alpha, l->beta,
                                      l->activation, k == 0 ? c.dx : NULL, c.accumulate,
                                      k == 1 ? c.dx : NULL, c.accumulate, c.watch, c.watch);
        amp_contribution_end(g, &c);
    }
}

const struct amp_executor amp_exec_shortcut = {.forward = forward, .backward = backward};
