/* Builds a graph from a plan and runs its passes. It decides where each tensor lies (arena or
 * Darknet's own memory), what is prepared before a pass, and when a run of layers may be recorded
 * and played back. It must not know what a layer computes (layers.h), how gradients become an
 * update (gradients.c), or what a fault means (step.c). */
#include "graph.h"

#include <stdio.h>
#include <stdlib.h>

#include "layers.h"
#include "plan.h"
#include "sync_bn.h"
#include "tensors.h"

/* ---- creation ---- */

/* The plan counts a missing buffer as -1. */
static void *in_arena(const struct amp_graph *g, int buffer)
{
    return buffer < 0 ? NULL : g->arena + g->plan->buffers[buffer].offset;
}

static void make_copies(struct amp_graph *g, int i, const int *buffers, struct ampk_tensor *copy)
{
    for (int f = 0; f < AMP_FORMATS; f++)
        copy[f] = amp_graph_shaped(g, i, in_arena(g, buffers[f]), (enum amp_format)f);
}

static void make_node(struct amp_graph *g, int i, const struct amp_binding *bind)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_plan_layer *p = &g->plan->layers[i];
    node->desc = &g->net->layers[i];
    node->plan = p;
    node->bind = *bind;
    /* A border tensor is Darknet's own memory, so that Darknet's code, and the user's, find it
     * where they look. */
    void *out = p->out == AMP_FORMAT_BORDER ? bind->output : in_arena(g, p->buffer[AMP_BUFFER_OUT]);
    void *delta = p->ours ? in_arena(g, p->buffer[AMP_BUFFER_DELTA]) : bind->delta;
    node->out = amp_graph_shaped(g, i, out, p->out);
    node->delta = amp_graph_shaped(g, i, delta, p->out);
    node->y = amp_graph_shaped(g, i, in_arena(g, p->buffer[AMP_BUFFER_Y]), p->in);
    /* Without a buffer of its own dy is written over delta, which nobody reads after that. */
    int dy = p->buffer[AMP_BUFFER_DY];
    node->dy = amp_graph_shaped(g, i, dy < 0 ? delta : in_arena(g, dy), p->in);
    node->index = in_arena(g, p->buffer[AMP_BUFFER_INDEX]);
    node->dx = in_arena(g, p->buffer[AMP_BUFFER_DX]);
    node->unfolded = in_arena(g, p->buffer[AMP_BUFFER_UNFOLDED]);
    make_copies(g, i, p->copy, node->copy);
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

/* NULL if the plan calls the layer ours but no executor exists for it. */
static const struct amp_executor *executor_of(const struct amp_graph *g, int layer)
{
    return g->plan->layers[layer].ours ? amp_layer_executor(g->net->layers[layer].type)
                                       : &amp_exec_darknet;
}

static int prepare_layer(struct amp_graph *g, int i, char *err, size_t err_size)
{
    const struct amp_executor *e = executor_of(g, i);
    if (!e) {
        snprintf(err, err_size, "layer %d (%s): the plan has an executor for it, there is none", i,
                 amp_layer_type_name(g->net->layers[i].type));
        return -1;
    }
    if (e->create && e->create(g, i, err, err_size)) return -1;
    if (allocate_loss(g, i)) return amp_graph_no_memory(g, i, "its loss", err, err_size);
    const struct amp_node *node = &g->nodes[i];
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
    make_copies(g, -1, g->plan->input_copy, g->input_copy);
    for (int i = 0; i < g->n; i++)
        make_node(g, i, &bindings[i]);
    for (int i = 0; i < g->n; i++)
        make_slice(g, i);
    for (int i = 0; i < g->n; i++)
        if (prepare_layer(g, i, err, err_size)) return -1;
    amp_graph_list_weight_gradients(g);
    return 0;
}

/* ---- segments ---- */

/* A recording replays device work only. It cannot call Darknet's code, nor draw random numbers on
 * the host. */
static bool stands_apart(const struct amp_graph *g, int layer)
{
    bool drawn_apart = g->net->layers[layer].type == AMP_DROPOUT && g->native.random_uniform;
    return !g->plan->layers[layer].ours || drawn_apart;
}

/* Whether a bucket is complete, and can leave, before the layers below run backward. */
static bool ends_bucket(const struct amp_graph *g, int layer)
{
    for (int b = 0; b < g->n_buckets; b++)
        if (g->buckets[b].layer == layer && layer > g->plan->first_backward) return true;
    return false;
}

static int find_segments(struct amp_graph *g)
{
    if (!g->backend->record_begin) return 0;
    g->segments = calloc((size_t)g->n, sizeof *g->segments);
    if (!g->segments) return -1;
    struct amp_segment *s = NULL;
    for (int i = 0; i < g->n; i++) {
        bool apart = stands_apart(g, i);
        if (ends_bucket(g, i)) s = NULL;
        if (!apart && !s) {
            s = &g->segments[g->n_segments++];
            s->first = i;
        }
        /* The next layer of ours opens a new segment. */
        if (apart) s = NULL;
        if (s) s->last = i;
        g->nodes[i].segment = s;
    }
    return 0;
}

static void forget_recording(struct amp_graph *g, struct amp_segment_run *w)
{
    if (w->recording) g->backend->record_free(g->context, w->recording);
    w->recording = NULL;
}

/* Before convolutions and tensors go: a recording refers to both. */
static void free_segments(struct amp_graph *g)
{
    for (int i = 0; i < g->n_segments; i++)
        for (int k = 0; k < AMP_SEGMENT_PASSES; k++)
            for (int lane = 0; lane < AMP_LANES; lane++)
                forget_recording(g, &g->segments[i].runs[k][lane]);
    free(g->segments);
    g->segments = NULL;
    g->n_segments = 0;
}

int amp_graph_find_segments(struct amp_graph *g)
{
    free_segments(g);
    return find_segments(g);
}

/* ---- creation and end ---- */

static int make(struct amp_graph *g, const struct amp_owned *owned, bool accumulate, char *err,
                size_t err_size)
{
    if (copy_lists(g, owned))
        return amp_graph_no_memory(g, -1, "rolling statistics and lists", err, err_size);
    if (build(g, owned->bindings, accumulate, err, err_size)) return -1;
    if (find_segments(g)) return amp_graph_no_memory(g, -1, "lists", err, err_size);
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
    be->free(g->context, node->gradient_sums);
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
    free_segments(g);
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

/* ---- passes ---- */

/* The convolutions keep a packed copy of the masters in their own type. */
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
    make_copies(g, -1, g->plan->input_copy, g->input_copy);
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

/* ---- passes of one layer ---- */

void amp_graph_forward_layer(struct amp_graph *g, int layer)
{
    amp_graph_report_tracer(g, layer, false, false);
    executor_of(g, layer)->forward(g, layer);
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
        executor_of(g, i)->forward(g, i);
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
    if (!node->gradient_sums) amp_graph_look_at_delta(g, layer); /* else the reader already has */
    executor_of(g, layer)->backward(g, layer);
    if (node->gradient && !weight_gradients_wait(g))
        g->backend->conv_weight_gradients(g->context, node->gradient, 1, 1, false);
    amp_graph_show_gradient(g, layer);
    amp_graph_report_tracer(g, layer, true, true);
    /* Outside the tracer's two calls: this time belongs to no single layer. */
    if (layer == g->plan->first_backward && weight_gradients_wait(g))
        amp_graph_watch_weight_gradients(g);
}

/* ---- passes of one segment ---- */

/* Where the only copy of the input is that changes its place. */
static const void *input_of(const struct amp_graph *g)
{
    enum amp_format f = g->plan->input_format;
    return f == AMP_FORMATS ? NULL : g->input_copy[f].data;
}

/* Whether the segment last ran with the present values; stores them. A recording holds these values
 * as constants, so another one of them needs another recording. */
static bool same_values(const struct amp_graph *g, struct amp_segment_run *w, bool backward)
{
    float scale = backward ? g->scale : 0;
    const void *input = input_of(g);
    bool warm_up = g->seen < AMP_REGION_WARM_UP_IMAGES;
    bool squares_sums = backward && g->squares && g->has_accepted_pass;
    bool same = w->ran && w->scale == scale && w->input == input && w->truth == g->truth &&
                w->region_warm_up == warm_up && w->squares_sums == squares_sums;
    w->ran = true;
    w->scale = scale;
    w->input = input;
    w->truth = g->truth;
    w->region_warm_up = warm_up;
    w->squares_sums = squares_sums;
    return same;
}

static void run_forward(struct amp_graph *g, const struct amp_segment *s)
{
    for (int i = s->first; i <= s->last; i++)
        amp_graph_forward_layer(g, i);
}

/* Layers before first_backward have no backward (stopbackward=1, freeze=1), even inside a
 * segment. */
static void run_backward(struct amp_graph *g, const struct amp_segment *s)
{
    for (int i = s->last; i >= s->first && i >= g->plan->first_backward; i--)
        amp_graph_backward_layer(g, i);
}

/* Runs new values once without recording, because that first run chooses plans and allocates
 * memory, which a recording must not do. The second run with equal values is recorded; later runs
 * play the recording. */
static void run(struct amp_graph *g, struct amp_segment *s, enum amp_segment_pass pass,
                void (*body)(struct amp_graph *, const struct amp_segment *))
{
    const struct ampk_backend *be = g->backend;
    struct amp_segment_run *w = &s->runs[pass][g->lane];
    /* A recording lacks these extra calls, and what the host does between two kernels. */
    if (g->inspecting || g->see || g->trace || g->sync) {
        body(g, s);
        return;
    }
    bool same = same_values(g, w, pass >= AMP_SEGMENT_BACKWARD);
    if (!same) forget_recording(g, w);
    /* Recording itself may fail; then the body below runs as usual. */
    if (same && !w->recording && be->record_begin(g->context)) {
        body(g, s);
        w->recording = be->record_end(g->context);
    }
    if (w->recording)
        be->record_play(g->context, w->recording);
    else
        body(g, s);
}

void amp_graph_forward(struct amp_graph *g, int layer)
{
    struct amp_segment *s = g->nodes[layer].segment;
    if (!s)
        amp_graph_forward_layer(g, layer);
    else if (layer == s->first)
        run(g, s, g->train ? AMP_SEGMENT_FORWARD : AMP_SEGMENT_INFERENCE, run_forward);
    if (layer == g->n - 1) amp_graph_end_range(g);
}

/* Gradients are watched at the end of the segment that has first_backward. */
static enum amp_segment_pass backward_of(const struct amp_graph *g, const struct amp_segment *s)
{
    bool squared = g->squares && s->first <= g->plan->first_backward;
    return squared ? AMP_SEGMENT_SQUARED : AMP_SEGMENT_BACKWARD;
}

void amp_graph_backward(struct amp_graph *g, int layer)
{
    struct amp_segment *s = g->nodes[layer].segment;
    if (layer < g->plan->first_backward) return;
    if (!s)
        amp_graph_backward_layer(g, layer);
    else if (layer == s->last)
        run(g, s, backward_of(g, s), run_backward);
    if (layer != g->plan->first_backward) return;
    g->warm = true;
    amp_graph_end_range(g);
}

/* ---- running statistics ---- */

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
