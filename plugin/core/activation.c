#include "executor.h"

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    g->backend->activation_forward(g->context, amp_graph_source(g, i, 0), node->desc->activation,
                                   &node->out, &node->watch[AMP_WATCH_OUT]);
}

static void backward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct amp_contribution c;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
    g->backend->activation_backward(g->context, &node->out, node->desc->activation, &node->delta,
                                    c.dx, c.accumulate, c.watch);
    amp_contribution_end(g, &c);
}

const struct amp_executor amp_exec_activation = {.forward = forward, .backward = backward};
