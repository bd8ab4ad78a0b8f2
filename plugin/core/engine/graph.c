/* The passes of a graph, one layer at a time. It decides what is prepared before a pass and around
 * each layer. It must not know how the graph was made (graph_build.c), what a layer computes
 * (layers.h), how gradients become an update (gradients.c), or what a fault means (step.c). */
#include "graph.h"

#include "layers.h"
#include "plugin/core/plan/plan.h"
#include "tensors.h"

const struct amp_executor *amp_graph_executor(const struct amp_graph *g, int layer)
{
    return g->plan->layers[layer].ours ? amp_layer_executor(g->net->layers[layer].type)
                                       : &amp_exec_darknet;
}

/* The convolutions pack the masters in their own type, now or when a pass runs. */
static void take_weights(struct amp_graph *g)
{
    if (g->weights_stale) g->backend->conv_set_weights(g->context, g->convs, g->n_convs);
    g->weights_stale = false;
}

/* A staged input is read where it is: it has been converted, and found to be finite, before it was
 * copied to the device. */
static void take_input(struct amp_graph *g, const float *input)
{
    uint32_t *watch = &g->watch[0][AMP_WATCH_INPUT];
    bool watched = g->staged != NULL;
    if (g->staged) g->input_copy[g->plan->input_format].data = g->staged;
    for (int f = 0; f < AMP_FORMATS && !g->staged; f++) {
        if (!g->input_copy[f].data) continue;
        g->backend->convert(g->context, &g->input, &g->input_copy[f], false, watch);
        watched = true;
    }
    g->staged = NULL;
    /* Nobody converts the input, so nothing has checked it yet. */
    if (!watched)
        g->backend->amax(g->context, input, (size_t)g->net->batch * (size_t)g->net->inputs, watch);
}

void amp_graph_begin(struct amp_graph *g, float *input, const float *truth, bool train)
{
    /* An inference between training passes loses the WEIGHTS words, so that a training pass after
     * it must raise them again. */
    if (train ? !g->train : !g->writers_tell) g->weights_stale = true;
    amp_graph_begin_range(g, train ? "forward" : "inference");
    g->train = train;
    g->backward_began = false;
    g->truth = truth;
    amp_graph_begin_inspection(g);
    g->input = amp_graph_shaped(g, -1, input, AMP_FORMAT_BORDER);
    amp_graph_make_copies(g, -1, g->plan->input_copy, g->input_copy);
    /* An update that packs the weights has already cleared the words and raised WEIGHTS for this
     * pass; clearing them here would lose a fault. */
    if (g->weights_stale || !g->watch_begun) amp_graph_clear_watch(g);
    g->watch_begun = false;
    take_weights(g);
    take_input(g, input);
    /* Before the first layer and outside of any recording: the masks depend on `seen`, which a
     * recording would freeze. */
    if (train) amp_dropout_draw(g);
}

/* The plan gives a layer one copy of its output for each other format that a reader wants. */
static void copy_output(struct amp_graph *g, struct amp_node *node)
{
    for (int f = 0; f < AMP_FORMATS; f++)
        if (node->copy[f].data && f != (int)node->plan->out)
            g->backend->convert(g->context, &node->out, &node->copy[f], false,
                                &node->watch[AMP_WATCH_COPY]);
}

void amp_graph_forward_layer(struct amp_graph *g, int layer)
{
    amp_graph_report_tracer(g, layer, false, false);
    amp_graph_executor(g, layer)->forward(g, layer);
    amp_graph_look_at_output(g, layer);
    copy_output(g, &g->nodes[layer]);
    amp_graph_report_tracer(g, layer, false, true);
}

static size_t output_count(const struct amp_graph *g, int i)
{
    return (size_t)g->net->batch * (size_t)g->net->layers[i].outputs;
}

/* Before the first backward on a forward, saves what backwards change; before every other, puts it
 * back. */
static void keep_changed(struct amp_graph *g)
{
    float *saved = g->changed_saved;
    int copies = 0;
    for (int i = 0; i < g->n_changed; i++) {
        const struct amp_changed *c = &g->changed[i];
        if (c->zeros) {
            if (g->backward_began)
                g->backend->fill_zero(g->context, c->value, c->n * sizeof(float));
            continue;
        }
        g->copies[copies++] = g->backward_began ? (struct ampk_span){c->value, saved, c->n}
                                                : (struct ampk_span){saved, c->value, c->n};
        saved += c->n;
    }
    g->backend->copy_many(g->context, g->copies, copies);
}

/* For each of Darknet's losses, writes scale times its unscaled delta where backward starts. Losses
 * of ours do this in their own backward. */
void amp_graph_begin_backward(struct amp_graph *g, float scale)
{
    const struct ampk_backend *be = g->backend;
    amp_graph_begin_range(g, "backward");
    g->scale = scale;
    if (g->n_changed) keep_changed(g);
    if (g->backward_began) amp_graph_inspect_deltas_anew(g);
    for (int i = 0; i < g->n; i++) {
        struct amp_node *node = &g->nodes[i];
        if (g->backward_began) /* the first backward finds the words clear from amp_graph_begin */
            be->fill_zero(g->context, &node->watch[AMP_WATCH_DELTA],
                          (AMP_WATCHES - AMP_WATCH_DELTA) * sizeof(uint32_t));
        if (!node->loss || node->plan->ours) continue;
        be->loss_backward(g->context, node->loss, output_count(g, i), scale, node->delta.data,
                          false, NULL);
    }
    g->backward_began = true;
}

/* Whether all weight gradients of a pass are finished in one call after its last layer. That suits
 * a device, where each launch costs time. A CPU finishes each one while it is still in the
 * cache. */
static bool weight_gradients_wait(const struct amp_graph *g)
{
    return g->backend->record_begin != NULL;
}

/* Runs layers forward once more, for backward: the same bits, but running statistics, masks and
 * observers are left alone. */
static void recompute(struct amp_graph *g, int first, int end)
{
    g->again = true;
    for (int i = first; i < end; i++) {
        amp_graph_executor(g, i)->forward(g, i);
        copy_output(g, &g->nodes[i]);
    }
    g->again = false;
}

void amp_graph_backward_layer(struct amp_graph *g, int layer)
{
    struct amp_node *node = &g->nodes[layer];
    if (!node->plan->backward) return; /* no gradient is of use there */
    amp_graph_report_tracer(g, layer, true, false);
    if (node->plan->again >= 0) recompute(g, node->plan->again, node->plan->again_end);
    /* Nobody contributes to this delta, so nobody overwrites what an earlier pass left in it. */
    if (node->plan->delta_from_nobody && node->delta.data) {
        size_t bytes = output_count(g, layer) * amp_format_bytes(node->plan->out);
        g->backend->fill_zero(g->context, node->delta.data, bytes);
    }
    amp_graph_look_at_delta(g, layer);
    amp_graph_executor(g, layer)->backward(g, layer);
    if (node->gradient && !weight_gradients_wait(g))
        g->backend->conv_weight_gradients(g->context, node->gradient, 1, 1, false);
    amp_graph_show_gradient(g, layer);
    amp_graph_report_tracer(g, layer, true, true);
    /* Outside the tracer's two calls: this time belongs to no single layer. */
    if (layer == g->plan->first_backward && weight_gradients_wait(g))
        amp_graph_compute_weight_gradients(g);
}

/* Copies all rolling statistics to rolling_saved, or back, in one call of the backend. */
static void copy_rolling(struct amp_graph *g, bool save)
{
    float *saved = g->rolling_saved;
    for (int i = 0; i < g->n_rolling; saved += g->rolling[i++].n) {
        float *value = g->rolling[i].value;
        g->copies[i] =
            (struct ampk_span){save ? saved : value, save ? value : saved, g->rolling[i].n};
    }
    g->backend->copy_many(g->context, g->copies, g->n_rolling);
}

void amp_graph_save_rolling(struct amp_graph *g)
{
    copy_rolling(g, true);
}

void amp_graph_restore_rolling(struct amp_graph *g)
{
    copy_rolling(g, false);
}
