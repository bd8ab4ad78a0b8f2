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
        struct ampk_tensor scratch;
        bool accumulate;
        const struct ampk_tensor *dx = amp_graph_dx_begin(g, i, k, &accumulate, &scratch);
        if (!dx || dx->data == node->delta.data) continue;
        uint32_t *watch = amp_graph_dx_watch(g, i, k);
        g->backend->shortcut_backward(g->context, &node->out, &node->delta, l->alpha, l->beta,
                                      l->activation, k == 0 ? dx : NULL, accumulate,
                                      k == 1 ? dx : NULL, accumulate, watch, watch);
        amp_graph_dx_end(g, i, k, dx);
    }
}

const struct amp_executor amp_exec_shortcut = {.forward = forward, .backward = backward};
