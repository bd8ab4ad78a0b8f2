#include "executor.h"

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    g->backend->upsample(g->context, amp_graph_source(g, i, 0), l->stride, l->scale, l->reverse,
                         &node->out, false, &node->watch[AMP_WATCH_OUT]);
}

/* The adjoint of repeating a cell is the sum over its copies, and the other way round. */
static void backward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    struct amp_contribution c;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
    g->backend->upsample(g->context, &node->delta, l->stride, l->scale, !l->reverse, c.dx,
                         c.accumulate, c.watch);
    amp_contribution_end(g, &c);
}

const struct amp_executor amp_exec_upsample = {.forward = forward, .backward = backward};
