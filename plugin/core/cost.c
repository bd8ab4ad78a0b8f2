/* [cost] on the device. Without a truth it does nothing, as Darknet's. */
#include "loss.h"

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_tensor x = amp_loss_input(g, i);
    if (amp_loss_wanted(g, i))
        g->backend->cost_loss(g->context, &node->desc->loss.cost, &x, g->truth, &node->out,
                              node->loss, &g->loss_sums[i], &node->watch[AMP_WATCH_OUT],
                              &node->watch[AMP_WATCH_LOSS]);
}

const struct amp_executor amp_exec_cost = {.forward = forward, .backward = amp_loss_backward};
