/* Masks have one byte per element, in NCHW order. They are drawn as stock Darknet would
 * (amp_native.random_uniform): on the host one number after the other, as each layer's turn comes,
 * so that the same seed drops the same values; on a device by the backend, all masks of a pass
 * before its first layer. Those follow from network, layer and images seen alone (graph.masks),
 * whatever has run before and in whatever format; a recording of the pass reads them where they
 * are. */
#include "executor.h"

#include <stdlib.h>

static size_t count_of(const struct amp_node *node)
{
    return (size_t)node->out.n * node->out.image_stride;
}

static float scale_of(const struct amp_node *node)
{
    return (float)(1. / (1. - (double)node->desc->probability));
}

static int create(struct amp_graph *g, int i, char *err, size_t err_size)
{
    struct amp_node *node = &g->nodes[i];
    if (!g->plan->train || !g->native.random_uniform) return 0;
    node->drawn = malloc(count_of(node));
    if (node->drawn) return 0;
    return amp_graph_no_memory(g, i, "its mask", err, err_size);
}

static void draw_on_host(struct amp_graph *g, struct amp_node *node)
{
    size_t n = count_of(node);
    for (size_t i = 0; i < n; i++)
        node->drawn[i] = !(g->native.random_uniform() < node->desc->probability);
    g->backend->write(g->context, node->index, node->drawn, n);
}

void amp_dropout_draw(struct amp_graph *g)
{
    if (g->native.random_uniform) return;
    for (int i = 0; i < g->n; i++) {
        struct amp_node *node = &g->nodes[i];
        if (node->desc->type != AMP_DROPOUT) continue;
        struct ampk_draw draw = g->masks;
        draw.counter[1] += (uint32_t)i;
        g->backend->dropout_draw(g->context, &draw, node->desc->probability, node->index,
                                 count_of(node));
    }
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_tensor *x = amp_graph_source(g, i, 0);
    if (!g->train) {
        g->backend->convert(g->context, x, &node->out, false, &node->watch[AMP_WATCH_OUT]);
        return;
    }
    if (g->native.random_uniform) draw_on_host(g, node);
    g->backend->dropout(g->context, x, node->index, scale_of(node), &node->out, false,
                        &node->watch[AMP_WATCH_OUT]);
}

static void backward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct amp_contribution c;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
    g->backend->dropout(g->context, &node->delta, node->index, scale_of(node), c.dx, c.accumulate,
                        c.watch);
    amp_contribution_end(g, &c);
}

const struct amp_executor amp_exec_dropout = {create, forward, backward};
