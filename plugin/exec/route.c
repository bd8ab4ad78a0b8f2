/* Concatenation of channels, or of flat vectors where the images differ in size. */
#include "executor.h"

static bool is_flat(const struct amp_graph *g, int i)
{
    return g->net->layers[i].out_c == 0;
}

/* The part of a flat concatenation that source k fills: elements [first, first + size) of every
 * image. */
static struct ampk_tensor flat_slice(const struct ampk_tensor *whole, int first, int size)
{
    struct ampk_tensor slice = *whole;
    slice.data = (char *)whole->data + (size_t)first * ampk_dtype_bytes(whole->dtype);
    slice.c = size;
    slice.h = slice.w = 1;
    return slice;
}

static int size_of(const struct ampk_tensor *t)
{
    return t->c * t->h * t->w;
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    uint32_t *watch = &node->watch[AMP_WATCH_OUT];
    int first = 0;
    for (int k = 0; k < node->desc->n_sources; k++) {
        const struct ampk_tensor *x = amp_graph_source(g, i, k);
        if (is_flat(g, i)) {
            struct ampk_tensor slice = flat_slice(&node->out, first, size_of(x));
            g->backend->convert(g->context, x, &slice, false, watch);
            first += slice.c;
        } else {
            g->backend->channels_scatter(g->context, x, &node->out, first, watch);
            first += x->c;
        }
    }
}

static void backward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    int first = 0;
    for (int k = 0; k < node->desc->n_sources; k++) {
        const struct ampk_tensor *x = amp_graph_source(g, i, k);
        struct ampk_tensor scratch;
        bool accumulate;
        const struct ampk_tensor *dx = amp_graph_dx_begin(g, i, k, &accumulate, &scratch);
        uint32_t *watch = amp_graph_dx_watch(g, i, k);
        if (dx && is_flat(g, i)) {
            struct ampk_tensor slice = flat_slice(&node->delta, first, size_of(x));
            g->backend->convert(g->context, &slice, dx, accumulate, watch);
        } else if (dx) {
            g->backend->channels_gather(g->context, &node->delta, dx, first, accumulate, watch);
        }
        amp_graph_dx_end(g, i, k, dx);
        first += is_flat(g, i) ? size_of(x) : x->c;
    }
}

const struct amp_executor amp_exec_route = {.forward = forward, .backward = backward};
