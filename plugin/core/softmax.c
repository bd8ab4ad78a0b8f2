/* [softmax] on the device, with and without loss. */
#include "loss.h"

static int create(struct amp_graph *g, int i, char *err, size_t err_size)
{
    const struct amp_layer_desc *l = &g->net->layers[i];
    struct ampk_softmax o = {.groups = l->loss.groups,
                             .spatial = l->loss.spatial && l->w && l->h && l->c,
                             .temperature = l->loss.temperature};
    if (amp_loss_tree(g, i, l->inputs, &o.tree, NULL, 0, err, err_size)) return -1;
    return amp_loss_options(g, i, &o, sizeof o, err, err_size);
}

/* Darknet gives the layer no image shape; a spatial one has its input's. */
static struct ampk_tensor shaped(const struct amp_graph *g, int i, struct ampk_tensor t)
{
    const struct amp_layer_desc *l = &g->net->layers[i];
    const struct ampk_softmax *o = g->nodes[i].options;
    if (!o->spatial) return t;
    return amp_graph_tensor(t.data, AMP_FORMAT_BORDER, t.n, l->c, l->h, l->w);
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_softmax *o = node->options;
    struct ampk_tensor x = shaped(g, i, amp_loss_input(g, i)), out = shaped(g, i, node->out);
    g->backend->softmax_forward(g->context, o, &x, &out, &node->watch[AMP_WATCH_OUT]);
    if (amp_loss_wanted(g, i))
        g->backend->softmax_loss(g->context, &out, g->truth, o->tree.classes != 0, node->loss,
                                 &g->loss_sums[i], &node->watch[AMP_WATCH_LOSS]);
}

const struct amp_executor amp_exec_softmax = {create, forward, amp_loss_backward};
