/* Executors of the layers that move values or change them one by one: activation, avgpool, dropout,
 * maxpool, reorg, route, shortcut, upsample. None of them has weights.
 *
 * This file decides which tensors and directions go to the backend. It must not decide which layers
 * are fused or are slices of a route: the plan says that. */
#include "layers.h"

#include <stdlib.h>

#include "tensors.h"

/* ---- activation ---- */

static void forward_activation(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    g->backend->activation_forward(g->context, amp_graph_source(g, i, 0), node->desc->activation,
                                   &node->out, &node->watch[AMP_WATCH_OUT]);
}

/* Here and below: if nobody wants the source's gradient, as in front of the first layer that
 * learns, the contribution does not begin and nothing runs. */
static void backward_activation(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct amp_contribution c;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
    g->backend->activation_backward(g->context, &node->out, node->desc->activation, &node->delta,
                                    c.dx, c.accumulate, c.watch);
    amp_contribution_end(g, &c);
}

const struct amp_executor amp_exec_activation = {.forward = forward_activation,
                                                 .backward = backward_activation};

/* ---- avgpool ---- */

static void forward_avgpool(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    g->backend->avgpool_forward(g->context, amp_graph_source(g, i, 0), &node->out,
                                &node->watch[AMP_WATCH_OUT]);
}

static void backward_avgpool(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct amp_contribution c;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
    g->backend->avgpool_backward(g->context, &node->delta, c.dx, c.accumulate, c.watch);
    amp_contribution_end(g, &c);
}

const struct amp_executor amp_exec_avgpool = {.forward = forward_avgpool,
                                              .backward = backward_avgpool};

/* ---- dropout ----
 *
 * Masks have one byte per element, in NCHW order. They are drawn as stock Darknet would
 * (amp_native.random_uniform): on the host one number after the other, as each layer's turn comes,
 * so that the same seed drops the same values; on a device by the backend, all masks of a pass
 * before its first layer. Those follow from network, layer and images seen alone (graph.masks),
 * whatever has run before and in whatever format; a recording of the pass reads them where they
 * are. */

static size_t count_of(const struct amp_node *node)
{
    return (size_t)node->out.n * node->out.image_stride;
}

static float dropout_scale(const struct amp_node *node)
{
    return (float)(1. / (1. - (double)node->desc->probability));
}

static int create_dropout(struct amp_graph *g, int i, char *err, size_t err_size)
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
        /* The same comparison as Darknet's, so that equal random numbers keep equal values. */
        node->drawn[i] = !(g->native.random_uniform() < node->desc->probability);
    g->backend->write(g->context, node->index, node->drawn, n);
}

void amp_dropout_draw(struct amp_graph *g)
{
    if (g->native.random_uniform) return;
    for (int i = 0; i < g->n; i++) {
        struct amp_node *node = &g->nodes[i];
        if (node->desc->type != AMP_DROPOUT) continue;
        /* Each layer has its own part of the stream: its number is part of the counter. */
        struct ampk_draw draw = g->masks;
        draw.counter[1] += (uint32_t)i;
        g->backend->dropout_draw(g->context, &draw, node->desc->probability, node->index,
                                 count_of(node));
    }
}

static void forward_dropout(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_tensor *x = amp_graph_source(g, i, 0);
    /* Darknet's dropout scales the kept values in training, so inference only passes values on. */
    if (!g->train) {
        g->backend->convert(g->context, x, &node->out, false, &node->watch[AMP_WATCH_OUT]);
        return;
    }
    if (g->native.random_uniform && !g->again) draw_on_host(g, node);
    g->backend->dropout(g->context, x, node->index, dropout_scale(node), &node->out, false,
                        &node->watch[AMP_WATCH_OUT]);
}

static void backward_dropout(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct amp_contribution c;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
    g->backend->dropout(g->context, &node->delta, node->index, dropout_scale(node), c.dx,
                        c.accumulate, c.watch);
    amp_contribution_end(g, &c);
}

const struct amp_executor amp_exec_dropout = {create_dropout, forward_dropout, backward_dropout};

/* ---- maxpool: of a fused one (plan.h) the convolution before it does both passes ---- */

/* Memory for the index, if the backend needs a larger one than the plan has counted. */
static int create_maxpool(struct amp_graph *g, int i, char *err, size_t err_size)
{
    struct amp_node *node = &g->nodes[i];
    size_t need = g->backend->maxpool_index_bytes(&node->out, node->desc->size);
    if (need <= g->plan->buffers[node->plan->buffer[AMP_BUFFER_INDEX]].bytes) return 0;
    node->index = node->own_index = g->backend->alloc(g->context, need);
    if (node->index) return 0;
    return amp_graph_no_memory(g, i, "its index", err, err_size);
}

static void forward_maxpool(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    if (node->plan->fused) return;
    g->backend->maxpool_forward(g->context, amp_graph_source(g, i, 0), l->size, l->stride, l->pad,
                                &node->out, node->index);
}

static void backward_maxpool(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    struct amp_contribution c;
    if (node->plan->fused || !amp_contribution_begin(g, i, 0, &c)) return;
    g->backend->maxpool_backward(g->context, &node->delta, node->index, l->size, l->stride, l->pad,
                                 c.dx, c.accumulate, c.watch);
    amp_contribution_end(g, &c);
}

const struct amp_executor amp_exec_maxpool = {create_maxpool, forward_maxpool, backward_maxpool};

/* ---- reorg: Darknet's four kinds; each is a permutation, so backward is the opposite one ---- */

/* With extra= Darknet copies the input and puts zeros behind it; this is the part of `whole` that
 * holds the input. */
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

static void forward_reorg(struct amp_graph *g, int i)
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

static void backward_reorg(struct amp_graph *g, int i)
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

const struct amp_executor amp_exec_reorg = {.forward = forward_reorg, .backward = backward_reorg};

/* ---- route ----
 *
 * Concatenation of channels, or of flat vectors where the images differ in size; with groups, of
 * one group of every source's channels. A source whose output or delta is a slice of the route's
 * (plan.h) needs no copy. */

/* The part of the route's output or delta that belongs to one source and begins at `first`: at this
 * channel, or, if the route is flat, at this element of every image. */
static struct ampk_tensor part_of(const struct amp_graph *g, int i, const struct ampk_tensor *whole,
                                  int first, const struct ampk_tensor *source)
{
    bool flat = g->net->layers[i].out_c == 0;
    struct ampk_tensor part =
        ampk_slice(whole, first, flat ? source->c * source->h * source->w : source->c);
    if (!flat) return part;
    part.h = part.w = 1;
    part.pitch = 0;
    return part;
}

static bool is_slice(const struct amp_graph *g, int i, int k, bool delta)
{
    int s = g->plan->layers[i].sources[k];
    const struct amp_plan_layer *source = &g->plan->layers[s < 0 ? 0 : s];
    return s >= 0 && source->route == i && (source->delta_slice || !delta);
}

/* Of a source, or its delta, the channels that the route takes. */
static struct ampk_tensor taken_of(const struct amp_layer_desc *l, const struct ampk_tensor *source)
{
    if (l->groups <= 1) return *source;
    int channels = source->c / l->groups;
    return ampk_slice(source, l->group_id * channels, channels);
}

static void forward_route(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    int first = 0;
    for (int k = 0; k < node->desc->n_sources; k++) {
        struct ampk_tensor x = taken_of(node->desc, amp_graph_source(g, i, k));
        struct ampk_tensor part = part_of(g, i, &node->out, first, &x);
        /* The source has already written a slice. */
        if (!is_slice(g, i, k, false))
            g->backend->convert(g->context, &x, &part, false, &node->watch[AMP_WATCH_OUT]);
        first += part.c;
    }
}

/* The gradient of a source is 0 in the channels that the route does not take. */
static void contribute(struct amp_graph *g, const struct amp_layer_desc *l,
                       const struct ampk_tensor *part, const struct amp_contribution *c)
{
    struct ampk_tensor dx = taken_of(l, c->dx);
    size_t bytes = (size_t)c->dx->n * c->dx->image_stride * ampk_dtype_bytes(c->dx->dtype);
    if (l->groups > 1 && !c->accumulate) g->backend->fill_zero(g->context, c->dx->data, bytes);
    g->backend->convert(g->context, part, &dx, c->accumulate, c->watch);
}

static void backward_route(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    int first = 0;
    for (int k = 0; k < node->desc->n_sources; k++) {
        struct ampk_tensor x = taken_of(node->desc, amp_graph_source(g, i, k));
        struct ampk_tensor part = part_of(g, i, &node->delta, first, &x);
        first += part.c;
        /* The source reads its part of this delta directly. */
        if (is_slice(g, i, k, true)) continue;
        struct amp_contribution c;
        if (!amp_contribution_begin(g, i, k, &c)) continue;
        contribute(g, node->desc, &part, &c);
        amp_contribution_end(g, &c);
    }
}

const struct amp_executor amp_exec_route = {.forward = forward_route, .backward = backward_route};

/* ---- shortcut ----
 *
 * Of a fused sum (plan.h) the convolution before it has done the forward pass, and its delta is
 * already that of the sources which share it. */

static void forward_shortcut(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    if (node->plan->fused) return;
    g->backend->shortcut_forward(g->context, amp_graph_source(g, i, 0), amp_graph_source(g, i, 1),
                                 l->alpha, l->beta, l->activation, &node->out,
                                 &node->watch[AMP_WATCH_OUT]);
}

/* One source at a time, since both share the buffer for contributions that need conversion. A fused
 * sum and its terms share one delta; then there is nothing to add. */
static void backward_shortcut(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    for (int k = 0; k < 2; k++) {
        struct amp_contribution c;
        if (!amp_contribution_begin(g, i, k, &c) || c.dx->data == node->delta.data) continue;
        g->backend->shortcut_backward(g->context, &node->out, &node->delta, l->alpha, l->beta,
                                      l->activation, k == 0 ? c.dx : NULL, c.accumulate,
                                      k == 1 ? c.dx : NULL, c.accumulate, c.watch, c.watch);
        amp_contribution_end(g, &c);
    }
}

const struct amp_executor amp_exec_shortcut = {.forward = forward_shortcut,
                                               .backward = backward_shortcut};

/* ---- upsample ---- */

static void forward_upsample(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    g->backend->upsample(g->context, amp_graph_source(g, i, 0), l->stride, l->scale, l->reverse,
                         &node->out, false, &node->watch[AMP_WATCH_OUT]);
}

/* The gradient of repeating a cell is the sum over its copies, and the other way round: the
 * operation with `reverse` flipped. */
static void backward_upsample(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    struct amp_contribution c;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
    g->backend->upsample(g->context, &node->delta, l->stride, l->scale, !l->reverse, c.dx,
                         c.accumulate, c.watch);
    amp_contribution_end(g, &c);
}

const struct amp_executor amp_exec_upsample = {.forward = forward_upsample,
                                               .backward = backward_upsample};
