#include "graph.h"

#include <stdio.h>
#include <stdlib.h>

#include "gradients.h"
#include "inspect.h"
#include "layers.h"
#include "plan_memory.h"
#include "tensors.h"

/* ---- creation ---- */

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
    void *out = p->out == AMP_FORMAT_BORDER ? bind->output : in_arena(g, p->buffer[AMP_BUFFER_OUT]);
    void *delta = p->ours ? in_arena(g, p->buffer[AMP_BUFFER_DELTA]) : bind->delta;
    node->out = amp_graph_shaped(g, i, out, p->out);
    node->delta = amp_graph_shaped(g, i, delta, p->out);
    node->y = amp_graph_shaped(g, i, in_arena(g, p->buffer[AMP_BUFFER_Y]), p->in);
    int dy = p->buffer[AMP_BUFFER_DY];
    node->dy = amp_graph_shaped(g, i, dy < 0 ? delta : in_arena(g, dy), p->in);
    node->index = in_arena(g, p->buffer[AMP_BUFFER_INDEX]);
    node->dx = in_arena(g, p->buffer[AMP_BUFFER_DX]);
    make_copies(g, i, p->copy, node->copy);
    if (p->border_copy)
        node->copy[AMP_FORMAT_BORDER] = amp_graph_shaped(g, i, bind->output, AMP_FORMAT_BORDER);
    struct amp_param *first = g->params + bind->first_param;
    node->weights = bind->n_params > 0 ? &first[0] : NULL;
    node->biases = bind->n_params > 1 ? &first[1] : NULL;
    node->scales = bind->n_params > 2 ? &first[2] : NULL;
    node->watch = g->watch[i];
    amp_graph_mark_fp16(g, i);
}

/* A layer that writes into a route has its part of the route's output, and perhaps of its delta. */
static void make_slice(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_plan_layer *p = node->plan;
    if (p->route < 0) return;
    const struct amp_node *route = &g->nodes[p->route];
    node->out = ampk_slice(&route->out, p->first_channel, node->out.c);
    if (p->delta_slice) node->delta = ampk_slice(&route->delta, p->first_channel, node->out.c);
}

static int copy_lists(struct amp_graph *g, const struct amp_owned *owned)
{
    size_t floats = 0;
    g->nodes = calloc((size_t)g->n, sizeof *g->nodes);
    g->fp16 = calloc((size_t)g->n, sizeof *g->fp16);
    g->params = calloc((size_t)g->n_params + 1, sizeof *g->params);
    g->rolling = calloc((size_t)g->n_rolling + 1, sizeof *g->rolling);
    g->copies = calloc((size_t)g->n_rolling + 1, sizeof *g->copies);
    g->updates = calloc((size_t)g->n_params + 1, sizeof *g->updates);
    g->conv_updates = calloc((size_t)g->n, sizeof *g->conv_updates);
    g->convs = calloc((size_t)g->n, sizeof *g->convs);
    g->of_pass = calloc((size_t)g->n, sizeof *g->of_pass);
    g->of_step = calloc((size_t)g->n, sizeof *g->of_step);
    if (!g->nodes || !g->fp16 || !g->params || !g->rolling || !g->copies || !g->updates ||
        !g->conv_updates || !g->convs || !g->of_pass || !g->of_step)
        return -1;
    for (int i = 0; i < g->n_params; i++)
        g->params[i] = owned->params[i];
    for (int i = 0; i < g->n_rolling; i++) {
        g->rolling[i] = owned->rolling[i];
        floats += owned->rolling[i].n;
    }
    g->rolling_saved = g->backend->alloc(g->context, (floats + 1) * sizeof(float));
    return g->rolling_saved ? 0 : -1;
}

static int allocate_loss(struct amp_graph *g, int i)
{
    if (!g->plan->layers[i].loss || !g->plan->train) return 0;
    g->device_losses |= g->plan->layers[i].ours;
    size_t bytes = (size_t)g->net->batch * (size_t)g->net->layers[i].outputs * sizeof(float);
    g->nodes[i].loss = g->backend->alloc(g->context, bytes);
    return g->nodes[i].loss ? 0 : -1;
}

/* NULL: the plan says that the layer is ours, but no executor is. */
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
    if (node->conv)
        g->convs[g->n_convs++] = (struct ampk_new_weights){node->conv, node->weights->value,
                                                           &node->watch[AMP_WATCH_WEIGHTS]};
    return 0;
}

static int build(struct amp_graph *g, const struct amp_binding *bindings, bool accumulate,
                 char *err, size_t err_size)
{
    g->arena = g->backend->alloc(g->context, g->plan->arena_bytes + 1);
    g->watch = g->backend->alloc(g->context, amp_graph_watch_bytes(g));
    g->inspected = g->backend->alloc(g->context, amp_graph_inspected_bytes(g));
    g->grad_square = g->backend->alloc(g->context, ((size_t)g->n + 1) * sizeof *g->grad_square);
    g->losses = calloc((size_t)g->n, sizeof *g->losses);
    if (!g->arena || !g->watch || !g->inspected || !g->grad_square || !g->losses)
        return amp_graph_no_memory(g, -1, "activations", err, err_size);
    g->loss_sums = (struct ampk_loss_sums *)(g->watch + g->n);
    amp_graph_clear_watch(g);
    if (amp_graph_alloc_gradients(g, accumulate, err, err_size)) return -1;
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

static bool stands_apart(const struct amp_graph *g, int layer)
{
    bool drawn_apart = g->net->layers[layer].type == AMP_DROPOUT && g->native.random_uniform;
    return !g->plan->layers[layer].ours || drawn_apart;
}

static int find_segments(struct amp_graph *g)
{
    if (!g->backend->record_begin) return 0;
    g->segments = calloc((size_t)g->n, sizeof *g->segments);
    if (!g->segments) return -1;
    struct amp_segment *s = NULL;
    for (int i = 0; i < g->n; i++) {
        bool apart = stands_apart(g, i);
        if (!apart && !s) {
            s = &g->segments[g->n_segments++];
            s->first = i;
        }
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

static void free_segments(struct amp_graph *g)
{
    for (int i = 0; i < g->n_segments; i++)
        for (int k = 0; k < AMP_SEGMENT_PASSES; k++)
            forget_recording(g, &g->segments[i].runs[k]);
    free(g->segments);
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
    g->weights_stale = true;
    g->unscale = 1;
    char why[400];
    if (make(g, owned, accumulate, why, sizeof why) == 0) return g;
    bool no_memory = g->no_memory;
    amp_graph_free(g);
    if (no_memory)
        amp_no_memory(net, plan, why, backend->free_bytes ? backend->free_bytes(context) : 0, err,
                      err_size);
    else
        snprintf(err, err_size, "%s", why);
    return NULL;
}

static void free_node(struct amp_graph *g, struct amp_node *node)
{
    const struct ampk_backend *be = g->backend;
    if (node->conv) be->conv_destroy(g->context, node->conv);
    be->free(g->context, node->mean);
    be->free(g->context, node->variance);
    be->free(g->context, node->gradient_sums);
    be->free(g->context, node->loss);
    be->free(g->context, node->own_index);
    be->free(g->context, node->constants);
    free(node->options);
    free(node->drawn);
}

void amp_graph_free(struct amp_graph *g)
{
    if (!g) return;
    free_segments(g);
    for (int i = 0; g->nodes && i < g->n; i++)
        free_node(g, &g->nodes[i]);
    g->backend->free(g->context, g->arena);
    g->backend->free(g->context, g->watch);
    g->backend->free(g->context, g->inspected);
    g->backend->free(g->context, g->grad_square);
    g->backend->free(g->context, g->norm_room);
    g->backend->free(g->context, g->gradients);
    g->backend->free(g->context, g->sums);
    g->backend->free(g->context, g->rolling_saved);
    free(g->nodes);
    free(g->fp16);
    free(g->params);
    free(g->rolling);
    free(g->losses);
    free(g->copies);
    free(g->updates);
    free(g->conv_updates);
    free(g->convs);
    free(g->of_pass);
    free(g->of_step);
    free(g);
}

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

static void take_weights(struct amp_graph *g)
{
    if (g->weights_stale) g->backend->conv_set_weights(g->context, g->convs, g->n_convs);
    g->weights_stale = false;
}

void amp_graph_begin(struct amp_graph *g, float *input, const float *truth, bool train)
{
    g->train = train;
    g->backward_began = false;
    g->truth = truth;
    if (!train) g->weights_stale = true; /* anybody may have written to the masters */
    amp_graph_begin_inspection(g);
    g->input = amp_graph_shaped(g, -1, input, AMP_FORMAT_BORDER);
    struct ampk_tensor from = g->input;
    if (g->staged) {
        from.data = (void *)g->staged;
        from.dtype = amp_format_dtype(g->plan->input_format);
        g->staged = NULL;
    }
    if (g->weights_stale || !g->watch_begun) amp_graph_clear_watch(g);
    g->watch_begun = false;
    take_weights(g);
    g->weights_stale = !train; /* packed again: an inference's WEIGHTS words are its own */
    uint32_t *watch = &g->watch[0][AMP_WATCH_INPUT];
    bool watched = false;
    for (int f = 0; f < AMP_FORMATS; f++) {
        if (!g->input_copy[f].data) continue;
        g->backend->convert(g->context, &from, &g->input_copy[f], false, watch);
        watched = true;
    }
    if (!watched)
        g->backend->amax(g->context, input, (size_t)g->net->batch * (size_t)g->net->inputs, watch);
    if (train) amp_dropout_draw(g);
}

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
    amp_graph_tell_tracer(g, layer, false, false);
    executor_of(g, layer)->forward(g, layer);
    amp_graph_look_at_output(g, layer);
    copy_output(g, &g->nodes[layer]);
    amp_graph_tell_tracer(g, layer, false, true);
}

static size_t output_count(const struct amp_graph *g, int i)
{
    return (size_t)g->net->batch * (size_t)g->net->layers[i].outputs;
}

void amp_graph_begin_backward(struct amp_graph *g, float scale)
{
    const struct ampk_backend *be = g->backend;
    g->scale = scale;
    if (g->backward_began) amp_graph_inspect_deltas_anew(g);
    for (int i = 0; i < g->n; i++) {
        struct amp_node *node = &g->nodes[i];
        if (g->backward_began) /* amp_graph_begin has cleared the words for the first */
            be->fill_zero(g->context, &node->watch[AMP_WATCH_DELTA],
                          (AMP_WATCHES - AMP_WATCH_DELTA) * sizeof(uint32_t));
        if (!node->loss || node->plan->ours) continue;
        size_t n = output_count(g, i);
        if (be->loss_backward) {
            be->loss_backward(g->context, node->loss, n, scale, node->delta.data, false, NULL);
        } else {
            be->fill_zero(g->context, node->delta.data, n * sizeof(float));
            be->accumulate(g->context, node->loss, n, scale, node->delta.data);
        }
    }
    g->backward_began = true;
}

/* Those of a pass are then dealt with all at once; else one by one, while the cache has them. */
static bool weight_gradients_wait(const struct amp_graph *g)
{
    return g->backend->record_begin != NULL;
}

void amp_graph_backward_layer(struct amp_graph *g, int layer)
{
    struct amp_node *node = &g->nodes[layer];
    amp_graph_tell_tracer(g, layer, true, false);
    if (node->plan->delta_from_nobody && node->delta.data) {
        size_t bytes = output_count(g, layer) * amp_format_bytes(node->plan->out);
        g->backend->fill_zero(g->context, node->delta.data, bytes);
    }
    if (!node->gradient_sums) amp_graph_look_at_delta(g, layer); /* else it has been */
    executor_of(g, layer)->backward(g, layer);
    if (node->gradient && !weight_gradients_wait(g))
        g->backend->conv_weight_gradients(g->context, node->gradient, 1, 1, false);
    amp_graph_show_gradient(g, layer);
    amp_graph_tell_tracer(g, layer, true, true);
    /* after the last one: no layer's own time */
    if (layer == g->plan->first_backward && weight_gradients_wait(g))
        g->backend->conv_weight_gradients(g->context, g->of_pass, g->n_learning, 1, false);
}

/* ---- passes of one segment ---- */

/* Whether it last ran with the values that hold now; takes them. */
static bool same_values(const struct amp_graph *g, struct amp_segment_run *w, bool backward)
{
    float scale = backward ? g->scale : 0;
    bool warm_up = g->seen < AMP_REGION_WARM_UP_IMAGES;
    bool same = w->ran && w->scale == scale && w->truth == g->truth && w->region_warm_up == warm_up;
    w->ran = true;
    w->scale = scale;
    w->truth = g->truth;
    w->region_warm_up = warm_up;
    return same;
}

static void run_forward(struct amp_graph *g, const struct amp_segment *s)
{
    for (int i = s->first; i <= s->last; i++)
        amp_graph_forward_layer(g, i);
}

static void run_backward(struct amp_graph *g, const struct amp_segment *s)
{
    for (int i = s->last; i >= s->first && i >= g->plan->first_backward; i--)
        amp_graph_backward_layer(g, i);
}

/* Unrecorded with values that are new; recorded once and played when they come again. */
static void run(struct amp_graph *g, struct amp_segment *s, enum amp_segment_pass pass,
                void (*body)(struct amp_graph *, const struct amp_segment *))
{
    const struct ampk_backend *be = g->backend;
    struct amp_segment_run *w = &s->runs[pass];
    if (g->inspecting || g->see || g->trace) { /* more than was recorded */
        body(g, s);
        return;
    }
    bool same = same_values(g, w, pass == AMP_SEGMENT_BACKWARD);
    if (!same) forget_recording(g, w);
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
}

void amp_graph_backward(struct amp_graph *g, int layer)
{
    struct amp_segment *s = g->nodes[layer].segment;
    if (!s)
        amp_graph_backward_layer(g, layer);
    else if (layer == s->last)
        run(g, s, AMP_SEGMENT_BACKWARD, run_backward);
}

/* ---- running statistics ---- */

/* Between the rolling statistics and where they are saved. */
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
