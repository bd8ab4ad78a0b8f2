/* Darknet's four kinds of reorg; each is a permutation, so backward is the opposite permutation. */
#include "executor.h"

/* extra: the input, followed by zeros. */
static struct ampk_tensor without_extra(const struct amp_node *node,
                                        const struct ampk_tensor *whole)
{
    struct ampk_tensor part = *whole;
    part.c = node->desc->inputs;
    part.h = part.w = 1;
    return part;
}

static void permute(struct amp_graph *g, const struct amp_node *node, const struct ampk_tensor *src,
                    bool forward, const struct ampk_tensor *dst, bool accumulate, uint32_t *watch)
{
    const struct amp_layer_desc *l = node->desc;
    bool direction = forward == l->reverse;
    if (l->flatten)
        g->backend->flatten(g->context, src, l->w * l->h, l->c, !direction, dst, accumulate, watch);
    else
        g->backend->reorg(g->context, src, l->w, l->h, l->c, l->stride, direction, dst, accumulate,
                          watch);
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_tensor *x = amp_graph_source(g, i, 0);
    uint32_t *watch = &node->watch[AMP_WATCH_OUT];
    if (node->desc->extra && !node->desc->flatten) {
        size_t bytes =
            (size_t)node->out.n * node->out.image_stride * ampk_dtype_bytes(node->out.dtype);
        struct ampk_tensor part = without_extra(node, &node->out);
        g->backend->fill_zero(g->context, node->out.data, bytes);
        g->backend->convert(g->context, x, &part, false, watch);
    } else {
        permute(g, node, x, true, &node->out, false, watch);
    }
}

static void backward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct amp_contribution c;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
    if (node->desc->extra && !node->desc->flatten) {
        struct ampk_tensor part = without_extra(node, &node->delta);
        g->backend->convert(g->context, &part, c.dx, c.accumulate, c.watch);
    } else {
        permute(g, node, &node->delta, false, c.dx, c.accumulate, c.watch);
    }
    amp_contribution_end(g, &c);
}

const struct amp_executor amp_exec_reorg = {.forward = forward, .backward = backward};
