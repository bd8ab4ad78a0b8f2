/* The mask is drawn on the host in NCHW order, one number per element, as Darknet draws it: the
 * same seed drops the same values. */
#include "executor.h"

#include <stdio.h>
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
    if (!g->plan->train) return 0;
    node->drawn = malloc(count_of(node));
    if (node->drawn) return 0;
    snprintf(err, err_size, "layer %d (dropout): no memory for its mask", i);
    return -1;
}

static void draw_mask(struct amp_graph *g, struct amp_node *node)
{
    size_t n = count_of(node);
    for (size_t i = 0; i < n; i++)
        node->drawn[i] = !(g->random_uniform() < node->desc->probability);
    g->backend->write(g->context, node->index, node->drawn, n);
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_tensor *x = amp_graph_source(g, i, 0);
    if (!g->train) {
        g->backend->convert(g->context, x, &node->out, false, &node->watch[AMP_WATCH_OUT]);
        return;
    }
    draw_mask(g, node);
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
