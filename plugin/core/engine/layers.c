/* The table of executors: it decides which layer types run our code, and on which backends, and
 * runs Darknet's own code for all others. It must not decide for a single layer: one of a
 * listed type may still be Darknet's, for reasons that plan.c finds. */
#include "layers.h"

#include <stddef.h>
#include <string.h>

#include "tensors.h"

#define NEEDS(operation) offsetof(struct ampk_backend, operation)

static const struct row {
    const struct amp_executor *executor;
    size_t needs; /* an operation that some backends lack; 0: none needed */
} rows[AMP_BLANK + 1] = {
    [AMP_CONVOLUTIONAL] = {&amp_exec_convolution, 0},
    [AMP_DECONVOLUTIONAL] = {&amp_exec_convolution, 0},
    [AMP_CONNECTED] = {&amp_exec_convolution, 0},
    [AMP_MAXPOOL] = {&amp_exec_maxpool, 0},
    [AMP_AVGPOOL] = {&amp_exec_avgpool, 0},
    [AMP_LOCAL] = {&amp_exec_local, 0},
    [AMP_ROUTE] = {&amp_exec_route, 0},
    [AMP_SHORTCUT] = {&amp_exec_shortcut, 0},
    [AMP_UPSAMPLE] = {&amp_exec_upsample, 0},
    [AMP_REORG] = {&amp_exec_reorg, 0},
    [AMP_DROPOUT] = {&amp_exec_dropout, 0},
    [AMP_ACTIVATION] = {&amp_exec_activation, 0},
    [AMP_YOLO] = {&amp_exec_yolo, NEEDS(yolo_loss)},
    [AMP_REGION] = {&amp_exec_region, NEEDS(region_loss)},
    [AMP_SOFTMAX] = {&amp_exec_softmax, NEEDS(softmax_loss)},
    [AMP_COST] = {&amp_exec_cost, NEEDS(cost_loss)},
    [AMP_LOGISTIC] = {&amp_exec_logistic, NEEDS(logistic_loss)},
};

/* Whether the pointer at this offset is set. memcmp, since operations are functions of many types,
 * and no single pointer type may read them all. */
static bool has_operation(const struct ampk_backend *b, size_t operation)
{
    static const char none[sizeof(void (*)(void))];
    return b && memcmp((const char *)b + operation, none, sizeof none) != 0;
}

/* A type with an operation of its own is a loss, or the softmax before one. */
static bool runs_on(const struct row *row, const struct ampk_backend *b)
{
    return !row->needs || has_operation(b, row->needs);
}

/* AMP_BLANK is the last type, so one word has a bit for each. */
unsigned amp_layers_ours(const struct ampk_backend *b)
{
    unsigned ours = 0;
    for (int type = 0; type <= AMP_BLANK; type++)
        if (rows[type].executor && runs_on(&rows[type], b)) ours |= 1u << type;
    return ours;
}

const struct amp_executor *amp_layer_executor(enum amp_layer_type type)
{
    return rows[type].executor;
}

/* ---- the executor of every layer that Darknet's own FP32 code runs ----
 *
 * It decides where that code reads and writes, in FP32 NCHW, and does not know what it computes.
 * Some of Darknet's layers overwrite the gradient that they should add to. They therefore get a
 * zeroed buffer of their own, whose contents are then added to the source's delta. */

static size_t count_of(const struct ampk_tensor *t)
{
    return (size_t)t->n * t->image_stride;
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_backend *be = g->backend;
    size_t n = count_of(&node->out);
    /* Darknet's loop zeroes l.delta before each layer, but l.delta is NULL while the plugin is
     * attached; so this does it. */
    if (g->train && node->bind.delta)
        be->fill_zero(g->context, node->bind.delta, n * sizeof(float));
    amp_products_begin(g, i);
    g->native.forward(g->native.user, i, amp_graph_source(g, i, 0)->data, g->train);
    if (!g->train) return;
    /* Darknet's code raises no watch words. Inference is not judged, so it needs none. */
    be->amax(g->context, node->bind.output, n, &node->watch[AMP_WATCH_OUT]);
    if (!node->loss) return;
    /* Darknet's loss leaves an unscaled delta. It is kept apart, so that backward can be repeated
     * with another scale. */
    struct ampk_tensor delta = node->out, loss = node->out;
    delta.data = node->bind.delta;
    loss.data = node->loss;
    be->convert(g->context, &delta, &loss, false, &node->watch[AMP_WATCH_LOSS]);
}

/* Darknet's code has written these gradients without watching them. */
static void watch_gradients(struct amp_graph *g, struct amp_node *node)
{
    for (int k = 0; k < node->bind.n_params; k++) {
        const struct amp_param *p = &g->params[node->bind.first_param + k];
        uint32_t *word =
            &node->watch[p->kind == AMP_PARAM_WEIGHTS ? AMP_WATCH_DW : AMP_WATCH_DBIAS];
        g->backend->amax(g->context, p->grad, p->n, word);
    }
}

static void backward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_backend *be = g->backend;
    int s = node->plan->sources[0];
    for (int k = 0; k < node->bind.n_params; k++) {
        struct amp_param *p = &g->params[node->bind.first_param + k];
        /* Darknet's code adds to its gradients; here they must hold this pass alone. */
        be->fill_zero(g->context, p->grad, p->n * sizeof(float));
    }
    float *delta = NULL;
    struct ampk_tensor apart;
    bool direct = false;
    /* Without a source the layer reads the network's input, which wants no gradient. */
    if (s >= 0) {
        const struct amp_node *source = &g->nodes[s];
        /* The first contribution may go straight into the source's delta if that is FP32 NCHW:
         * overwriting is right then. */
        direct = node->plan->source_wanted[0] && node->plan->source_first[0] &&
                 source->plan->out == AMP_FORMAT_BORDER;
        apart = source->delta;
        apart.dtype = AMPK_FP32;
        apart.layout = AMPK_NCHW;
        if (!direct) apart.data = node->dx;
        delta = apart.data;
        be->fill_zero(g->context, delta, count_of(&apart) * sizeof(float));
    }
    node->product_called = false;
    g->native.backward(g->native.user, i, amp_graph_source(g, i, 0)->data, delta);
    amp_products_finish(g, i, delta);
    watch_gradients(g, node);
    /* Darknet's code had to write somewhere even if nobody wants the result. */
    if (!node->plan->source_wanted[0]) return;
    if (direct)
        be->amax(g->context, delta, count_of(&apart), amp_graph_dx_watch(g, i, 0));
    else
        be->convert(g->context, &apart, &g->nodes[s].delta, !node->plan->source_first[0],
                    amp_graph_dx_watch(g, i, 0));
}

const struct amp_executor amp_exec_darknet = {
    .create = amp_products_create, .forward = forward, .backward = backward};
