/* Builds a graph from a plan, and takes it apart. It decides where each tensor lies (arena or
 * Darknet's own memory) and what is prepared before the first pass. It must not know how a pass
 * runs (graph.c, segments.c). */
#include <stdio.h>
#include <stdlib.h>

#include "layers.h"
#include "plugin/core/plan/plan.h"
#include "sync_bn.h"
#include "tensors.h"

static void make_node(struct amp_graph *g, int i, const struct amp_binding *bind)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_plan_layer *p = &g->plan->layers[i];
    node->desc = &g->net->layers[i];
    node->plan = p;
    node->bind = *bind;
    /* A border tensor is Darknet's own memory, so that Darknet's code, and the user's, find it
     * where they look. */
    void *out = p->out == AMP_FORMAT_BORDER ? bind->output
                                            : amp_graph_in_arena(g, p->buffer[AMP_BUFFER_OUT]);
    void *delta = p->ours ? amp_graph_in_arena(g, p->buffer[AMP_BUFFER_DELTA]) : bind->delta;
    node->out = amp_graph_shaped(g, i, out, p->out);
    node->delta = amp_graph_shaped(g, i, delta, p->out);
    node->y = amp_graph_shaped(g, i, amp_graph_in_arena(g, p->buffer[AMP_BUFFER_Y]), p->in);
    /* Without a buffer of its own dy is written over delta, which nobody reads after that. */
    int dy = p->buffer[AMP_BUFFER_DY];
    node->dy = amp_graph_shaped(g, i, dy < 0 ? delta : amp_graph_in_arena(g, dy), p->in);
    node->index = amp_graph_in_arena(g, p->buffer[AMP_BUFFER_INDEX]);
    node->dx = amp_graph_in_arena(g, p->buffer[AMP_BUFFER_DX]);
    node->unfolded = amp_graph_in_arena(g, p->buffer[AMP_BUFFER_UNFOLDED]);
    amp_graph_make_copies(g, i, p->copy, node->copy);
    if (p->border_copy)
        node->copy[AMP_FORMAT_BORDER] = amp_graph_shaped(g, i, bind->output, AMP_FORMAT_BORDER);
    /* In the order that struct amp_binding promises; a layer without batch-norm has no scales. */
    struct amp_param *first = g->params + bind->first_param;
    node->weights = bind->n_params > 0 ? &first[0] : NULL;
    node->biases = bind->n_params > 1 ? &first[1] : NULL;
    node->scales = bind->n_params > 2 ? &first[2] : NULL;
    node->watch = g->watch[i];
    amp_graph_mark_fp16(g, i);
}

/* A layer that writes into a route gets its channels of the route's output, and perhaps of the
 * route's delta. This runs after all nodes are made, since a route comes after its sources. */
static void make_slice(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_plan_layer *p = node->plan;
    if (p->route < 0) return;
    const struct amp_node *route = &g->nodes[p->route];
    node->out = ampk_slice(&route->out, p->first_channel, node->out.c);
    if (!p->delta_slice) return;
    node->delta = ampk_slice(&route->delta, p->first_channel, node->out.c);
    if (p->buffer[AMP_BUFFER_DY] < 0) node->dy.data = node->delta.data;
}

/* The lists that passes work with are allocated here, once. The + 1 keeps malloc and alloc from
 * being asked for 0 bytes. */
static int copy_lists(struct amp_graph *g, const struct amp_owned *owned)
{
    size_t floats = 0, changed = 0;
    int most = g->n_rolling > g->n_changed ? g->n_rolling : g->n_changed;
    g->nodes = calloc((size_t)g->n, sizeof *g->nodes);
    g->fp16 = calloc((size_t)g->n, sizeof *g->fp16);
    g->params = calloc((size_t)g->n_params + 1, sizeof *g->params);
    g->rolling = calloc((size_t)g->n_rolling + 1, sizeof *g->rolling);
    g->changed = calloc((size_t)g->n_changed + 1, sizeof *g->changed);
    g->copies = calloc((size_t)most + 1, sizeof *g->copies);
    g->updates = calloc((size_t)g->n_params + 1, sizeof *g->updates);
    g->due = calloc((size_t)g->n_params + 1, sizeof *g->due);
    g->conv_updates = calloc((size_t)g->n, sizeof *g->conv_updates);
    g->convs = calloc((size_t)g->n * AMP_MOST_MATRICES, sizeof *g->convs);
    g->of_pass = calloc((size_t)g->n, sizeof *g->of_pass);
    g->of_step = calloc((size_t)g->n, sizeof *g->of_step);
    if (!g->nodes || !g->fp16 || !g->params || !g->rolling || !g->changed || !g->copies ||
        !g->updates || !g->due || !g->conv_updates || !g->convs || !g->of_pass || !g->of_step)
        return -1;
    for (int i = 0; i < g->n_params; i++)
        g->params[i] = owned->params[i];
    for (int i = 0; i < g->n_rolling; i++) {
        g->rolling[i] = owned->rolling[i];
        floats += owned->rolling[i].n;
    }
    for (int i = 0; i < g->n_changed; i++) {
        g->changed[i] = owned->changed[i];
        if (!owned->changed[i].zeros) changed += owned->changed[i].n;
    }
    g->rolling_saved = g->backend->alloc(g->context, (floats + 1) * sizeof(float));
    g->changed_saved = g->backend->alloc(g->context, (changed + 1) * sizeof(float));
    return g->rolling_saved && g->changed_saved ? 0 : -1;
}

/* A loss keeps its unscaled delta in memory of its own, outside the arena: a replay at a lower
 * scale starts from it. */
static int allocate_loss(struct amp_graph *g, int i)
{
    if (!g->plan->layers[i].loss || !g->plan->train) return 0;
    g->own_losses |= g->plan->layers[i].ours;
    size_t bytes = (size_t)g->net->batch * (size_t)g->net->layers[i].outputs * sizeof(float);
    g->nodes[i].loss = g->backend->alloc(g->context, bytes);
    return g->nodes[i].loss ? 0 : -1;
}

static int prepare_layer(struct amp_graph *g, int i, char *err, size_t err_size)
{
    const struct amp_executor *e = amp_graph_executor(g, i);
    if (!e) {
        snprintf(err, err_size, "layer %d (%s): the plan has an executor for it, there is none", i,
                 amp_layer_type_name(g->net->layers[i].type));
        return -1;
    }
    if (e->create && e->create(g, i, err, err_size)) return -1;
    if (allocate_loss(g, i)) return amp_graph_no_memory(g, i, "its loss", err, err_size);
    const struct amp_node *node = &g->nodes[i];
    if (node->conv && node->weights->grad && g->backend->conv_keep_gradient)
        g->backend->conv_keep_gradient(g->context, node->conv, node->weights->grad);
    /* All convolutions pack their new weights in one call of the backend, which takes this list. */
    if (node->conv)
        g->convs[g->n_convs++] = (struct ampk_new_weights){node->conv, node->weights->value,
                                                           &node->watch[AMP_WATCH_WEIGHTS]};
    return 0;
}

/* A convolution that runs again takes statistics again, so that the same code of the backend runs;
 * they come here: four arrays for the layer with the most channels. */
static int allocate_spare(struct amp_graph *g)
{
    int most = 0;
    for (int i = 0; i < g->n; i++)
        if (g->plan->layers[i].recomputed && g->net->layers[i].batch_normalize &&
            g->net->layers[i].filters > most)
            most = g->net->layers[i].filters;
    if (most == 0) return 0;
    size_t bytes = 4 * (size_t)most * sizeof *g->spare;
    g->spare = g->backend->alloc(g->context, bytes);
    if (!g->spare) return -1;
    g->backend->fill_zero(g->context, g->spare, bytes);
    g->spare_channels = most;
    return 0;
}

static int build(struct amp_graph *g, const struct amp_binding *bindings, bool accumulate,
                 char *err, size_t err_size)
{
    /* One byte more, so that an empty plan does not ask for 0 bytes. */
    g->arena = g->backend->alloc(g->context, g->plan->arena_bytes + 1);
    g->watch = g->backend->alloc(g->context, amp_graph_watch_bytes(g));
    g->inspected = g->backend->alloc(g->context, amp_graph_inspected_bytes(g));
    g->losses = calloc((size_t)g->n, sizeof *g->losses);
    if (!g->arena || !g->watch || !g->inspected || !g->losses)
        return amp_graph_no_memory(g, -1, "activations", err, err_size);
    /* Directly behind the watch words, so that one transfer reads all. */
    g->loss_sums = (struct ampk_loss_sums *)(g->watch + g->n);
    g->grad_square = (float *)(g->loss_sums + g->n);
    amp_graph_clear_watch(g);
    if (amp_graph_alloc_gradients(g, accumulate, err, err_size)) return -1;
    if (allocate_spare(g))
        return amp_graph_no_memory(g, -1, "statistics of what is recomputed", err, err_size);
    amp_graph_make_copies(g, -1, g->plan->input_copy, g->input_copy);
    for (int i = 0; i < g->n; i++)
        make_node(g, i, &bindings[i]);
    for (int i = 0; i < g->n; i++)
        make_slice(g, i);
    for (int i = 0; i < g->n; i++)
        if (prepare_layer(g, i, err, err_size)) return -1;
    amp_graph_list_weight_gradients(g);
    return 0;
}

static int make(struct amp_graph *g, const struct amp_owned *owned, bool accumulate, char *err,
                size_t err_size)
{
    if (copy_lists(g, owned))
        return amp_graph_no_memory(g, -1, "rolling statistics and lists", err, err_size);
    if (build(g, owned->bindings, accumulate, err, err_size)) return -1;
    if (amp_graph_find_segments(g)) return amp_graph_no_memory(g, -1, "lists", err, err_size);
    return 0;
}

struct amp_graph *amp_graph_create(const struct ampk_backend *backend, struct ampk_context *context,
                                   const struct amp_net_desc *net, const struct amp_plan *plan,
                                   const struct amp_owned *owned, struct amp_native native,
                                   bool accumulate, char *err, size_t err_size)
{
    struct amp_graph *g = calloc(1, sizeof *g);
    if (!g) {
        snprintf(err, err_size, "out of memory");
        return NULL;
    }
    g->backend = backend;
    g->context = context;
    g->net = net;
    g->plan = plan;
    g->native = native;
    g->n = net->n;
    g->n_params = owned->n_params;
    g->n_rolling = owned->n_rolling;
    g->n_changed = owned->n_changed;
    g->counts = owned->counts;
    g->weights_stale = true;
    g->unscale = 1;
    char why[400];
    if (make(g, owned, accumulate, why, sizeof why) == 0) return g;
    /* Only the lack of memory gets advice on batch and subdivisions, and the advice needs the free
     * bytes after the failed graph is gone. */
    bool no_memory = g->no_memory;
    amp_graph_free(g);
    if (no_memory)
        amp_no_memory(net, plan, why, backend->free_bytes ? backend->free_bytes(context) : 0, err,
                      err_size);
    else
        snprintf(err, err_size, "%s", why);
    return NULL;
}

/* backend->free takes NULL, so half-made nodes need no special case. */
static void free_node(struct amp_graph *g, struct amp_node *node)
{
    const struct ampk_backend *be = g->backend;
    if (node->conv) be->conv_destroy(g->context, node->conv);
    amp_products_free(g, node);
    be->free(g->context, node->mean);
    be->free(g->context, node->variance);
    be->free(g->context, node->loss);
    be->free(g->context, node->own_index);
    be->free(g->context, node->place_biases);
    be->free(g->context, node->constants);
    free(node->options);
    free(node->drawn);
}

void amp_graph_free(struct amp_graph *g)
{
    if (!g) return;
    amp_graph_end_range(g);
    amp_graph_free_segments(g);
    amp_sync_free(g);
    for (int i = 0; g->nodes && i < g->n; i++)
        free_node(g, &g->nodes[i]);
    g->backend->free(g->context, g->arena);
    g->backend->free(g->context, g->watch);
    g->backend->free(g->context, g->inspected);
    g->backend->free(g->context, g->gradients);
    g->backend->free(g->context, g->sums);
    g->backend->free(g->context, g->trust);
    g->backend->free(g->context, g->rolling_saved);
    g->backend->free(g->context, g->changed_saved);
    g->backend->free(g->context, g->spare);
    g->backend->free(g->context, g->sums_sent);
    g->backend->free(g->context, g->sums_rounded);
    g->backend->free(g->context, g->rolling_terms);
    free(g->buckets);
    free(g->of_bucket);
    free(g->nodes);
    free(g->fp16);
    free(g->params);
    free(g->rolling);
    free(g->changed);
    free(g->losses);
    free(g->copies);
    free(g->updates);
    free(g->due);
    free(g->conv_updates);
    free(g->convs);
    free(g->of_pass);
    free(g->of_step);
    free(g);
}

/* Swaps instead of copying: `from` is freed right after and takes the fresh arrays with it. The
 * lists below point into sums, so they are made again. */
void amp_graph_take_step(struct amp_graph *g, struct amp_graph *from)
{
    float *rolling = g->rolling_saved, *sums = g->sums;
    g->rolling_saved = from->rolling_saved;
    from->rolling_saved = rolling;
    if (!from->sums) return;
    g->sums = from->sums;
    from->sums = sums;
    g->has_accepted_pass = from->has_accepted_pass;
    amp_graph_place_gradients(g);
    amp_graph_list_weight_gradients(g);
}
