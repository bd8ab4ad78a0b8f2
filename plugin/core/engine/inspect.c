/* Shows the tensors of a pass to observers and collects numbers for the log. It must not change a
 * pass: whoever looks gets copies, and without memory for a copy sees nothing. */

#include <stdlib.h>

#include "tensors.h"

size_t amp_graph_inspected_bytes(const struct amp_graph *g)
{
    return (size_t)g->n * AMP_INSPECTED * sizeof *g->inspected;
}

/* Rows of n words, one after the other. */
static uint32_t *inspected_word(struct amp_graph *g, enum amp_inspected row, int layer)
{
    return g->inspected + (int)row * g->n + layer;
}

/* x: FP32 NCHW in backend memory. */
static void show(struct amp_graph *g, enum amp_seen_what what, int layer, const float *x, size_t n,
                 const char *format)
{
    float *host = malloc((n + 1) * sizeof *host);
    if (!host) return;
    g->backend->read(g->context, host, x, n * sizeof *host);
    g->see(&(struct amp_seen){layer, what, format, host, n}, g->see_user);
    free(host);
}

/* Through FP32 NCHW: observers compare with Darknet, whatever the tensor is stored as. */
void amp_graph_show(struct amp_graph *g, enum amp_seen_what what, int layer,
                    const struct ampk_tensor *x)
{
    size_t n = (size_t)g->net->batch * (size_t)g->net->layers[layer].outputs;
    float *copy = g->backend->alloc(g->context, n * sizeof *copy);
    if (!copy) return;
    struct ampk_tensor border = amp_graph_shaped(g, layer, copy, AMP_FORMAT_BORDER);
    g->backend->convert(g->context, x, &border, false, NULL);
    show(g, what, layer, copy, n, ampk_dtype_name(x->dtype));
    g->backend->free(g->context, copy);
}

/* One place for both: the observer sees the tensor, the log gets its numbers. */
static void inspect(struct amp_graph *g, const struct ampk_tensor *x, enum amp_inspected row,
                    int layer)
{
    if (g->see && x->data)
        amp_graph_show(g, row == AMP_INSPECTED_OUT_MAX ? AMP_SEEN_OUT : AMP_SEEN_DELTA, layer, x);
    /* On the device, into two words per layer: reading whole tensors back would take far longer. */
    if (g->inspecting && x->data)
        g->backend->inspect(g->context, x, inspected_word(g, row, layer),
                            inspected_word(g, row + 1, layer));
}

bool amp_graph_looked_at(const struct amp_graph *g)
{
    return g->see || g->inspecting;
}

void amp_graph_begin_inspection(struct amp_graph *g)
{
    /* Inference is not inspected. */
    g->inspecting = g->inspecting && g->train;
    if (g->inspecting)
        g->backend->fill_zero(g->context, g->inspected, amp_graph_inspected_bytes(g));
}

void amp_graph_inspect_deltas_anew(struct amp_graph *g)
{
    if (g->inspecting) /* Both rows of deltas; they follow each other. */
        g->backend->fill_zero(g->context, inspected_word(g, AMP_INSPECTED_DELTA_MAX, 0),
                              2 * (size_t)g->n * sizeof *g->inspected);
}

void amp_graph_look_at_output(struct amp_graph *g, int layer)
{
    inspect(g, &g->nodes[layer].out, AMP_INSPECTED_OUT_MAX, layer);
}

void amp_graph_look_at_delta(struct amp_graph *g, int layer)
{
    if (amp_graph_has_delta(g, layer))
        inspect(g, &g->nodes[layer].delta, AMP_INSPECTED_DELTA_MAX, layer);
}

void amp_graph_show_gradient(struct amp_graph *g, int layer)
{
    const struct amp_node *node = &g->nodes[layer];
    const struct amp_param *p = node->weights;
    if (!g->see || !p) return;
    if (!node->conv) {
        show(g, AMP_SEEN_GRADIENT, layer, p->grad, p->n, "fp32");
        return;
    }
    float *copy = g->backend->alloc(g->context, p->n * sizeof *copy);
    if (!copy) return;
    /* A convolution keeps its gradient in a layout of its own and can only write it out. */
    struct ampk_weight_gradient to_copy = {node->conv, copy, NULL};
    g->backend->conv_weight_gradients(g->context, &to_copy, 1, 1, false);
    show(g, AMP_SEEN_GRADIENT, layer, copy, p->n, "fp32");
    g->backend->free(g->context, copy);
}

void amp_graph_inspect(struct amp_graph *g, bool on)
{
    g->inspecting = on;
}

void amp_graph_observe(struct amp_graph *g, amp_see_function *see, void *user)
{
    g->see = see;
    g->see_user = user;
}

void amp_graph_trace_layers(struct amp_graph *g, amp_layer_function *call, void *user)
{
    g->trace = call;
    g->trace_user = user;
}

void amp_graph_report_tracer(const struct amp_graph *g, int layer, bool backward, bool done)
{
    const struct ampk_backend *be = g->backend;
    if (g->trace) g->trace(layer, backward, done, g->trace_user);
    if (be->range_begin && done) be->range_end(g->context);
    if (be->range_begin && !done)
        be->range_begin(g->context, backward ? "backward" : "forward", layer,
                        amp_layer_type_name(g->net->layers[layer].type));
}

/* Who calls forward alone, or is stopped in a pass, leaves a range that the next pass ends. */
void amp_graph_begin_range(struct amp_graph *g, const char *pass)
{
    amp_graph_end_range(g);
    g->in_range = g->backend->range_begin != NULL;
    if (g->in_range) g->backend->range_begin(g->context, pass, -1, NULL);
}

void amp_graph_end_range(struct amp_graph *g)
{
    if (g->in_range) g->backend->range_end(g->context);
    g->in_range = false;
}

/* A delta from nobody is zero; it would only confuse an observer. */
bool amp_graph_has_delta(const struct amp_graph *g, int layer)
{
    const struct amp_plan_layer *p = &g->plan->layers[layer];
    return p->backward && !p->delta_from_nobody && g->nodes[layer].delta.data;
}

/* One transfer per row; only steps that the log wants pay for it. */
void amp_graph_inspected(struct amp_graph *g, uint32_t *rows[AMP_INSPECTED])
{
    for (int row = 0; row < AMP_INSPECTED; row++)
        g->backend->read(g->context, rows[row], inspected_word(g, row, 0),
                         (size_t)g->n * sizeof *g->inspected);
}
