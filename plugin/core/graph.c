#include "graph.h"

#include <stdio.h>
#include <stdlib.h>

#include "executor.h"
#include "graph_parts.h"
#include "conv_shape.h"
#include "no_memory.h"

struct ampk_tensor amp_graph_tensor(void *data, enum amp_format format, int n, int c, int h, int w)
{
    return (struct ampk_tensor){
        .data = data,
        .dtype = amp_format_dtype(format),
        .layout = format == AMP_FORMAT_BORDER ? AMPK_NCHW : AMPK_NHWC,
        .n = n,
        .c = c,
        .h = h,
        .w = w,
        .image_stride = (size_t)c * (size_t)h * (size_t)w,
    };
}

/* ---- creation ---- */

struct ampk_tensor amp_graph_shaped(const struct amp_graph *g, int i, void *data,
                                    enum amp_format format)
{
    struct amp_image_shape s = amp_output_shape(g->net, i);
    return amp_graph_tensor(data, format, g->net->batch, s.c, s.h, s.w);
}

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

int amp_graph_no_memory(struct amp_graph *g, int i, const char *what, char *err, size_t err_size)
{
    g->no_memory = true;
    if (i < 0)
        snprintf(err, err_size, "%s", what);
    else
        snprintf(err, err_size, "layer %d (%s), %s", i, amp_layer_type_name(g->net->layers[i].type),
                 what);
    return -1;
}

static int prepare_layer(struct amp_graph *g, int i, char *err, size_t err_size)
{
    const struct amp_executor *e = amp_executor_of(g, i);
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

static int make(struct amp_graph *g, const struct amp_owned *owned, bool accumulate, char *err,
                size_t err_size)
{
    if (copy_lists(g, owned))
        return amp_graph_no_memory(g, -1, "rolling statistics and lists", err, err_size);
    if (build(g, owned->bindings, accumulate, err, err_size)) return -1;
    if (amp_segments_create(g)) return amp_graph_no_memory(g, -1, "lists", err, err_size);
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
    amp_segments_free(g);
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

/* ---- sources and contributions ---- */

const struct ampk_tensor *amp_graph_source(const struct amp_graph *g, int layer, int k)
{
    const struct amp_plan_layer *p = &g->plan->layers[layer];
    int s = p->sources[k];
    if (s < 0) return p->in == AMP_FORMAT_BORDER ? &g->input : &g->input_copy[p->in];
    const struct amp_node *source = &g->nodes[s];
    return source->plan->out == p->in ? &source->out : &source->copy[p->in];
}

bool amp_contribution_begin(struct amp_graph *g, int layer, int k, struct amp_contribution *c)
{
    const struct amp_plan_layer *p = &g->plan->layers[layer];
    *c =
        (struct amp_contribution){.layer = layer, .k = k, .watch = amp_graph_dx_watch(g, layer, k)};
    if (!p->source_wanted[k]) return false;
    const struct amp_node *source = &g->nodes[p->sources[k]];
    if (p->in == source->plan->out) {
        c->accumulate = !p->source_first[k];
        c->dx = &source->delta;
    } else {
        c->scratch = amp_graph_shaped(g, p->sources[k], g->nodes[layer].dx, p->in);
        c->dx = &c->scratch;
    }
    return true;
}

void amp_contribution_end(struct amp_graph *g, const struct amp_contribution *c)
{
    const struct amp_plan_layer *p = &g->plan->layers[c->layer];
    if (!c->dx) return;
    struct amp_node *source = &g->nodes[p->sources[c->k]];
    if (c->dx->data == source->delta.data) return;
    g->backend->convert(g->context, c->dx, &source->delta, !p->source_first[c->k], c->watch);
}

bool amp_graph_makes_dy(const struct amp_graph *g)
{
    return g->backend->conv_bias_backward != NULL;
}

int amp_graph_loss_behind(const struct amp_graph *g, int i)
{
    return amp_graph_makes_dy(g) ? amp_plan_loss_behind(g->plan, g->net, i) : -1;
}

/* ---- passes ---- */

void amp_graph_weights_changed(struct amp_graph *g)
{
    g->weights_stale = true;
}

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
    amp_executor_of(g, layer)->forward(g, layer);
    amp_graph_look_at_output(g, layer);
    copy_output(g, &g->nodes[layer]);
    amp_graph_tell_tracer(g, layer, false, true);
}

void amp_graph_forward(struct amp_graph *g, int layer)
{
    amp_segment_forward(g, layer);
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
    amp_executor_of(g, layer)->backward(g, layer);
    if (node->gradient && !weight_gradients_wait(g))
        g->backend->conv_weight_gradients(g->context, node->gradient, 1, 1, false);
    amp_graph_show_gradient(g, layer);
    amp_graph_tell_tracer(g, layer, true, true);
    /* after the last one: no layer's own time */
    if (layer == g->plan->first_backward && weight_gradients_wait(g))
        g->backend->conv_weight_gradients(g->context, g->of_pass, g->n_learning, 1, false);
}

void amp_graph_backward(struct amp_graph *g, int layer)
{
    amp_segment_backward(g, layer);
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
