/* A layer that Darknet's own FP32 code runs: it reads and writes FP32 NCHW; what it adds to its
 * source's delta goes through a zeroed buffer of its own, since some of Darknet's layers overwrite
 * instead. */
#include "layers.h"
#include "tensors.h"

static size_t count_of(const struct ampk_tensor *t)
{
    return (size_t)t->n * t->image_stride;
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_backend *be = g->backend;
    size_t n = count_of(&node->out);
    if (g->train && node->bind.delta)
        be->fill_zero(g->context, node->bind.delta, n * sizeof(float));
    g->native.forward(g->native.user, i, amp_graph_source(g, i, 0)->data, g->train);
    if (!g->train) return;
    be->amax(g->context, node->bind.output, n, &node->watch[AMP_WATCH_OUT]);
    if (!node->loss) return;
    struct ampk_tensor delta = node->out, loss = node->out;
    delta.data = node->bind.delta;
    loss.data = node->loss;
    be->convert(g->context, &delta, &loss, false, &node->watch[AMP_WATCH_LOSS]);
}

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
        be->fill_zero(g->context, p->grad, p->n * sizeof(float));
    }
    float *delta = NULL;
    struct ampk_tensor apart;
    bool direct = false;
    if (s >= 0) {
        const struct amp_node *source = &g->nodes[s];
        direct = node->plan->source_wanted[0] && node->plan->source_first[0] &&
                 source->plan->out == AMP_FORMAT_BORDER;
        apart = source->delta;
        apart.dtype = AMPK_FP32;
        apart.layout = AMPK_NCHW;
        if (!direct) apart.data = node->dx;
        delta = apart.data;
        be->fill_zero(g->context, delta, count_of(&apart) * sizeof(float));
    }
    g->native.backward(g->native.user, i, amp_graph_source(g, i, 0)->data, delta);
    watch_gradients(g, node);
    if (!node->plan->source_wanted[0]) return;
    if (direct)
        be->amax(g->context, delta, count_of(&apart), amp_graph_dx_watch(g, i, 0));
    else
        be->convert(g->context, &apart, &g->nodes[s].delta, !node->plan->source_first[0],
                    amp_graph_dx_watch(g, i, 0));
}

const struct amp_executor amp_exec_darknet = {.forward = forward, .backward = backward};
