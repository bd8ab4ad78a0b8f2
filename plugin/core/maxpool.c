/* Of a fused one (plan.h) the convolution before it does both passes. */
#include "executor.h"

/* A backend whose index is larger than the plan's gets memory of its own. */
static int create(struct amp_graph *g, int i, char *err, size_t err_size)
{
    struct amp_node *node = &g->nodes[i];
    size_t need = g->backend->maxpool_index_bytes(&node->out, node->desc->size);
    if (need <= g->plan->buffers[node->plan->buffer[AMP_BUFFER_INDEX]].bytes) return 0;
    node->index = node->own_index = g->backend->alloc(g->context, need);
    if (node->index) return 0;
    return amp_graph_no_memory(g, i, "its index", err, err_size);
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    if (node->plan->fused) return;
    g->backend->maxpool_forward(g->context, amp_graph_source(g, i, 0), l->size, l->stride, l->pad,
                                &node->out, node->index);
}

static void backward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    struct amp_contribution c;
    if (node->plan->fused || !amp_contribution_begin(g, i, 0, &c)) return;
    g->backend->maxpool_backward(g->context, &node->delta, node->index, l->size, l->stride, l->pad,
                                 c.dx, c.accumulate, c.watch);
    amp_contribution_end(g, &c);
}

const struct amp_executor amp_exec_maxpool = {create, forward, backward};
