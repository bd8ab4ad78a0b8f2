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
    struct ampk_tensor scratch;
    bool accumulate;
    const struct ampk_tensor *dx = amp_graph_dx_begin(g, i, 0, &accumulate, &scratch);
    if (!dx) return;
    g->backend->activation_backward(g->context, &node->out, node->desc->activation, &node->delta,
                                    dx, accumulate, amp_graph_dx_watch(g, i, 0));
    amp_graph_dx_end(g, i, 0, dx);
}

const struct amp_executor amp_exec_activation = {.forward = forward, .backward = backward};
