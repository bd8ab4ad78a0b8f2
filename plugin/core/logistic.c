/* [logistic] on the device. */
#include "loss.h"

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_tensor x = amp_loss_input(g, i), out = node->out;
    x.layout = out.layout = AMPK_NHWC; /* the operation's; here the order does not matter */
    g->backend->activation_forward(g->context, &x, AMPK_LOGISTIC, &out,
                                   &node->watch[AMP_WATCH_OUT]);
    if (amp_loss_wanted(g, i))
        g->backend->logistic_loss(g->context, &node->out, g->truth, node->loss, &g->loss_sums[i],
                                  &node->watch[AMP_WATCH_LOSS]);
}

const struct amp_executor amp_exec_logistic = {.forward = forward, .backward = amp_loss_backward};
