#include "graph.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor.h"
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

/* The output shape of a layer (-1: the network's input); flat where Darknet has no image shape. */
static struct ampk_tensor shaped(const struct amp_graph *g, int i, void *data,
                                 enum amp_format format)
{
    int n = g->net->batch;
    if (i < 0) {
        const struct amp_net_desc *net = g->net;
        bool image = (int64_t)net->c * net->h * net->w == net->inputs;
        return image ? amp_graph_tensor(data, format, n, net->c, net->h, net->w)
                     : amp_graph_tensor(data, format, n, net->inputs, 1, 1);
    }
    const struct amp_layer_desc *l = &g->net->layers[i];
    if (l->out_w && l->out_h && l->out_c)
        return amp_graph_tensor(data, format, n, l->out_c, l->out_h, l->out_w);
    return amp_graph_tensor(data, format, n, l->outputs, 1, 1);
}

static void *in_arena(const struct amp_graph *g, int buffer)
{
    return buffer < 0 ? NULL : g->arena + g->plan->buffers[buffer].offset;
}

static void make_copies(struct amp_graph *g, int i, const int *buffers, struct ampk_tensor *copy)
{
    for (int f = 0; f < AMP_FORMATS; f++)
        copy[f] = shaped(g, i, in_arena(g, buffers[f]), (enum amp_format)f);
}

static void mark_fp16(struct amp_graph *g, int i)
{
    const struct amp_plan_layer *p = &g->plan->layers[i];
    unsigned mask = 0;
    if (p->ours && p->compute == AMPK_COMPUTE_FP16 && g->nodes[i].bind.n_params > 0)
        mask |= 1u << AMP_WATCH_WEIGHTS;
    if (p->in == AMP_FORMAT_FP16) mask |= 1u << AMP_WATCH_Y | 1u << AMP_WATCH_DY;
    if (p->out == AMP_FORMAT_FP16) mask |= 1u << AMP_WATCH_OUT | 1u << AMP_WATCH_DELTA;
    if (p->copy[AMP_FORMAT_FP16] >= 0) mask |= 1u << AMP_WATCH_COPY;
    if (i == 0 && g->plan->input_copy[AMP_FORMAT_FP16] >= 0) mask |= 1u << AMP_WATCH_INPUT;
    g->fp16[i] = (uint16_t)mask;
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
    node->out = shaped(g, i, out, p->out);
    node->delta = shaped(g, i, delta, p->out);
    node->y = shaped(g, i, in_arena(g, p->buffer[AMP_BUFFER_Y]), p->in);
    int dy = p->buffer[AMP_BUFFER_DY];
    node->dy = shaped(g, i, dy < 0 ? delta : in_arena(g, dy), p->in);
    node->index = in_arena(g, p->buffer[AMP_BUFFER_INDEX]);
    node->dx = in_arena(g, p->buffer[AMP_BUFFER_DX]);
    make_copies(g, i, p->copy, node->copy);
    if (p->border_copy)
        node->copy[AMP_FORMAT_BORDER] = shaped(g, i, bind->output, AMP_FORMAT_BORDER);
    struct amp_param *first = g->params + bind->first_param;
    node->weights = bind->n_params > 0 ? &first[0] : NULL;
    node->biases = bind->n_params > 1 ? &first[1] : NULL;
    node->scales = bind->n_params > 2 ? &first[2] : NULL;
    node->watch = g->watch[i];
    mark_fp16(g, i);
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

/* Whose gradient a convolution keeps. */
static bool is_kept(const struct amp_graph *g, const struct amp_param *p)
{
    return p->kind == AMP_PARAM_WEIGHTS && g->plan->layers[p->layer].ours;
}

/* Floats for the gradient of a param. Each begins where vectors can; what is over stays 0. */
static size_t room_for(const struct amp_param *p)
{
    const size_t vector = 4;
    return (p->n + vector - 1) / vector * vector;
}

static void count_gradients(struct amp_graph *g)
{
    for (const struct amp_param *p = g->params; p < g->params + g->n_params; p++) {
        g->n_gradients += room_for(p);
        if (!is_kept(g, p)) g->n_flat += room_for(p);
    }
}

/* Floats in gradients: convolutions keep theirs where there are sums, or the update reads those. */
static size_t gradients_of_pass(const struct amp_graph *g)
{
    return g->sums || g->own_gradients ? g->n_flat : g->n_gradients;
}

/* Gives every param its place in gradients and sums. */
static void place_gradients(struct amp_graph *g)
{
    size_t flat = 0, kept = g->n_flat;
    for (struct amp_param *p = g->params; p < g->params + g->n_params; p++) {
        size_t *next = is_kept(g, p) ? &kept : &flat;
        bool has_place = g->gradients && *next < gradients_of_pass(g);
        p->sum = g->sums ? g->sums + *next : NULL;
        p->grad = has_place ? g->gradients + *next : NULL;
        *next += room_for(p);
    }
}

static int allocate_gradients(struct amp_graph *g, bool accumulate, char *err, size_t err_size)
{
    count_gradients(g);
    if (!g->plan->train || g->n_gradients == 0) return 0;
    size_t all = g->n_gradients * sizeof(float);
    g->own_gradients = !accumulate && amp_graph_updates_at_once(g);
    if (accumulate) g->sums = g->backend->alloc(g->context, all);
    size_t of_pass = gradients_of_pass(g) * sizeof(float);
    g->gradients = g->backend->alloc(g->context, of_pass + 1);
    if (!g->gradients || (accumulate && !g->sums)) {
        snprintf(err, err_size, "no memory for %.1f MiB of gradients",
                 (double)(accumulate ? all : of_pass) / (1 << 20));
        return -1;
    }
    g->backend->fill_zero(g->context, g->gradients, of_pass);
    if (accumulate) g->backend->fill_zero(g->context, g->sums, all);
    place_gradients(g);
    return 0;
}

/* Of the convolutions that learn: those before first_backward have none. */
static void list_weight_gradients(struct amp_graph *g)
{
    g->n_learning = 0;
    for (int i = g->plan->first_backward; i < g->n && g->gradients; i++) {
        struct amp_node *node = &g->nodes[i];
        if (!node->conv) continue;
        const struct amp_param *p = node->weights;
        int k = g->n_learning++;
        g->of_pass[k] =
            (struct ampk_weight_gradient){node->conv, p->grad, &node->watch[AMP_WATCH_DW]};
        g->of_step[k] = (struct ampk_weight_gradient){node->conv, p->sum, NULL};
        node->gradient = &g->of_pass[k];
    }
}

static int copy_lists(struct amp_graph *g, const struct amp_param *params,
                      const struct amp_rolling *rolling)
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
        g->params[i] = params[i];
    for (int i = 0; i < g->n_rolling; i++) {
        g->rolling[i] = rolling[i];
        floats += rolling[i].n;
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

/* Of watch and loss_sums. */
static size_t report_bytes(const struct amp_graph *g)
{
    return (size_t)g->n * (sizeof *g->watch + sizeof *g->loss_sums);
}

static size_t inspected_bytes(const struct amp_graph *g)
{
    return (size_t)g->n * AMP_INSPECTED * sizeof *g->inspected;
}

static int build(struct amp_graph *g, const struct amp_binding *bindings, bool accumulate,
                 char *err, size_t err_size)
{
    g->arena = g->backend->alloc(g->context, g->plan->arena_bytes + 1);
    g->watch = g->backend->alloc(g->context, report_bytes(g));
    g->inspected = g->backend->alloc(g->context, inspected_bytes(g));
    g->grad_square = g->backend->alloc(g->context, ((size_t)g->n + 1) * sizeof *g->grad_square);
    g->losses = calloc((size_t)g->n, sizeof *g->losses);
    if (!g->arena || !g->watch || !g->inspected || !g->grad_square || !g->losses) {
        size_t left = g->backend->free_bytes ? g->backend->free_bytes(g->context) : 0;
        amp_no_memory(g->net, g->plan, left, err, err_size);
        return -1;
    }
    g->loss_sums = (struct ampk_loss_sums *)(g->watch + g->n);
    g->backend->fill_zero(g->context, g->watch, report_bytes(g));
    if (allocate_gradients(g, accumulate, err, err_size)) return -1;
    make_copies(g, -1, g->plan->input_copy, g->input_copy);
    for (int i = 0; i < g->n; i++)
        make_node(g, i, &bindings[i]);
    for (int i = 0; i < g->n; i++)
        make_slice(g, i);
    for (int i = 0; i < g->n; i++) {
        const struct amp_executor *e = amp_executor_of(g, i);
        if (e->create && e->create(g, i, err, err_size)) return -1;
        if (allocate_loss(g, i)) {
            snprintf(err, err_size, "no memory for the loss of layer %d", i);
            return -1;
        }
        const struct amp_node *node = &g->nodes[i];
        if (node->conv)
            g->convs[g->n_convs++] = (struct ampk_new_weights){node->conv, node->weights->value,
                                                               &node->watch[AMP_WATCH_WEIGHTS]};
    }
    list_weight_gradients(g);
    return 0;
}

struct amp_graph *amp_graph_create(const struct ampk_backend *backend, struct ampk_context *context,
                                   const struct amp_net_desc *net, const struct amp_plan *plan,
                                   const struct amp_binding *bindings,
                                   const struct amp_param *params, int n_params,
                                   const struct amp_rolling *rolling, int n_rolling,
                                   struct amp_native native, bool accumulate, char *err,
                                   size_t err_size)
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
    g->n_params = n_params;
    g->n_rolling = n_rolling;
    g->weights_stale = true;
    g->unscale = 1;
    snprintf(err, err_size, "out of memory");
    if (copy_lists(g, params, rolling) == 0 && build(g, bindings, accumulate, err, err_size) == 0 &&
        amp_segments_create(g) == 0)
        return g;
    amp_graph_free(g);
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
    g->summed = from->summed;
    place_gradients(g);
    list_weight_gradients(g);
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

const struct ampk_tensor *amp_graph_dx_begin(struct amp_graph *g, int layer, int k,
                                             bool *accumulate, struct ampk_tensor *scratch)
{
    const struct amp_plan_layer *p = &g->plan->layers[layer];
    if (!p->source_wanted[k]) return NULL;
    const struct amp_node *source = &g->nodes[p->sources[k]];
    *accumulate = !p->source_first[k];
    if (p->in == source->plan->out) return &source->delta;
    *scratch = shaped(g, p->sources[k], g->nodes[layer].dx, p->in);
    *accumulate = false;
    return scratch;
}

void amp_graph_dx_end(struct amp_graph *g, int layer, int k, const struct ampk_tensor *written)
{
    const struct amp_plan_layer *p = &g->plan->layers[layer];
    if (!written) return;
    struct amp_node *source = &g->nodes[p->sources[k]];
    if (written->data == source->delta.data) return;
    g->backend->convert(g->context, written, &source->delta, !p->source_first[k],
                        &source->watch[AMP_WATCH_DELTA]);
}

uint32_t *amp_graph_dx_watch(struct amp_graph *g, int layer, int k)
{
    int s = g->plan->layers[layer].sources[k];
    return s < 0 ? NULL : &g->nodes[s].watch[AMP_WATCH_DELTA];
}

/* The convolution whose bias gradient is the sum of all of that layer's delta; -1: none. */
static int summed_by(const struct amp_graph *g, int layer)
{
    int i = g->plan->layers[layer].fused ? layer - 1 : layer;
    return g->nodes[i].conv && g->plan->layers[i].backward ? i : -1;
}

uint32_t *amp_graph_conv_dx_watch(struct amp_graph *g, int layer, const struct ampk_tensor *dx)
{
    int s = g->plan->layers[layer].sources[0];
    bool shows = s >= 0 && dx && dx->data == g->nodes[s].delta.data && summed_by(g, s) >= 0;
    return shows && g->backend->watching_costs ? NULL : amp_graph_dx_watch(g, layer, 0);
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
    if (!train) g->weights_stale = true; /* whoever may have written to the masters */
    g->inspecting = g->inspecting && train;
    if (g->inspecting) g->backend->fill_zero(g->context, g->inspected, inspected_bytes(g));
    g->input = shaped(g, -1, input, AMP_FORMAT_BORDER);
    struct ampk_tensor from = g->input;
    if (g->staged) {
        from.data = (void *)g->staged;
        from.dtype = amp_format_dtype(g->plan->input_format);
        g->staged = NULL;
    }
    if (g->weights_stale || !g->watch_begun)
        g->backend->fill_zero(g->context, g->watch, report_bytes(g));
    g->watch_begun = false;
    take_weights(g);
    g->weights_stale = !train; /* the next pass is to be told of them too */
    uint32_t *watch = &g->watch[0][AMP_WATCH_INPUT];
    bool watched = false;
    for (int f = 0; f < AMP_FORMATS; f++) {
        if (!g->input_copy[f].data) continue;
        g->backend->convert(g->context, &from, &g->input_copy[f], false, watch);
        watched = true;
    }
    if (!watched)
        g->backend->amax(g->context, input, (size_t)g->net->batch * (size_t)g->net->inputs, watch);
}

static void copy_output(struct amp_graph *g, struct amp_node *node)
{
    for (int f = 0; f < AMP_FORMATS; f++)
        if (node->copy[f].data && f != (int)node->plan->out)
            g->backend->convert(g->context, &node->out, &node->copy[f], false,
                                &node->watch[AMP_WATCH_COPY]);
}

/* ---- what a pass looks like ---- */

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

void amp_graph_show(struct amp_graph *g, enum amp_seen_what what, int layer,
                    const struct ampk_tensor *x)
{
    size_t n = (size_t)g->net->batch * (size_t)g->net->layers[layer].outputs;
    float *copy = g->backend->alloc(g->context, n * sizeof *copy);
    if (!copy) return;
    struct ampk_tensor border = shaped(g, layer, copy, AMP_FORMAT_BORDER);
    g->backend->convert(g->context, x, &border, false, NULL);
    show(g, what, layer, copy, n, ampk_dtype_name(x->dtype));
    g->backend->free(g->context, copy);
}

static void inspect(struct amp_graph *g, const struct ampk_tensor *x, enum amp_inspected row,
                    int layer)
{
    if (g->see && x->data)
        amp_graph_show(g, row == AMP_INSPECTED_OUT_MAX ? AMP_SEEN_OUT : AMP_SEEN_DELTA, layer, x);
    if (g->inspecting && x->data)
        g->backend->inspect(g->context, x, inspected_word(g, row, layer),
                            inspected_word(g, row + 1, layer));
}

bool amp_graph_looked_at(const struct amp_graph *g)
{
    return g->see || g->inspecting;
}

bool amp_graph_makes_dy(const struct amp_graph *g)
{
    return g->backend->conv_bias_backward != NULL;
}

int amp_graph_loss_behind(const struct amp_graph *g, int i)
{
    return amp_graph_makes_dy(g) ? amp_plan_loss_behind(g->plan, g->net, i) : -1;
}

void amp_graph_look_at_delta(struct amp_graph *g, int layer)
{
    if (amp_graph_has_delta(g, layer))
        inspect(g, &g->nodes[layer].delta, AMP_INSPECTED_DELTA_MAX, layer);
}

static void show_gradient(struct amp_graph *g, int layer)
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

void amp_graph_watch_layers(struct amp_graph *g, amp_layer_function *at, void *user)
{
    g->at = at;
    g->at_user = user;
}

static void tell_watcher(const struct amp_graph *g, int layer, bool backward, bool done)
{
    if (g->at) g->at(layer, backward, done, g->at_user);
}

bool amp_graph_has_delta(const struct amp_graph *g, int layer)
{
    const struct amp_plan_layer *p = &g->plan->layers[layer];
    return p->backward && !p->delta_from_nobody && g->nodes[layer].delta.data;
}

void amp_graph_inspected(struct amp_graph *g, uint32_t *rows[AMP_INSPECTED])
{
    for (int row = 0; row < AMP_INSPECTED; row++)
        g->backend->read(g->context, rows[row], inspected_word(g, row, 0),
                         (size_t)g->n * sizeof *g->inspected);
}

/* Room for any one gradient that a convolution keeps; false: there is no memory. */
static bool make_norm_room(struct amp_graph *g)
{
    size_t most = 1;
    for (int i = 0; i < g->n; i++)
        if (g->nodes[i].gradient && g->nodes[i].weights->n > most) most = g->nodes[i].weights->n;
    if (!g->norm_room) g->norm_room = g->backend->alloc(g->context, most * sizeof *g->norm_room);
    return g->norm_room != NULL;
}

/* Puts the squares of those that convolutions keep, one by one, behind grad_square's first. */
static int sum_own_gradients(struct amp_graph *g)
{
    int count = 0;
    for (int i = 0; i < g->n; i++) {
        const struct amp_node *node = &g->nodes[i];
        struct ampk_weight_gradient to_room = {node->conv, g->norm_room, NULL};
        if (!node->gradient) continue;
        g->backend->conv_weight_gradients(g->context, &to_room, 1, 1, false);
        g->backend->sum_squares(g->context, g->norm_room, node->weights->n,
                                g->grad_square + ++count);
    }
    return count;
}

bool amp_graph_grad_norm(struct amp_graph *g, double *norm)
{
    int own = 0;
    bool reads_own = g->own_gradients && g->summed;
    *norm = g->n_gradients ? NAN : 0;
    if (!g->n_gradients) return true;
    if (reads_own && !make_norm_room(g)) return false;
    g->backend->sum_squares(g->context, g->sums ? g->sums : g->gradients,
                            g->sums ? g->n_gradients : gradients_of_pass(g), g->grad_square);
    if (reads_own) own = sum_own_gradients(g);
    float *squares = calloc((size_t)own + 1, sizeof *squares);
    if (!squares) return false;
    g->backend->read(g->context, squares, g->grad_square, ((size_t)own + 1) * sizeof *squares);
    double square = 0;
    for (int i = 0; i <= own; i++)
        square += squares[i];
    free(squares);
    *norm = sqrt(square) * (double)g->unscale;
    return true;
}

/* ---- passes of one layer ---- */

void amp_graph_forward_layer(struct amp_graph *g, int layer)
{
    tell_watcher(g, layer, false, false);
    amp_executor_of(g, layer)->forward(g, layer);
    inspect(g, &g->nodes[layer].out, AMP_INSPECTED_OUT_MAX, layer);
    copy_output(g, &g->nodes[layer]);
    tell_watcher(g, layer, false, true);
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
    if (g->inspecting && g->backward_began)
        be->fill_zero(g->context, inspected_word(g, AMP_INSPECTED_DELTA_MAX, 0),
                      2 * (size_t)g->n * sizeof *g->inspected);
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

/* Weight gradients of a pass are then dealt with all at once; else one by one, while the cache has
 * them. */
static bool starts_cost(const struct amp_graph *g)
{
    return g->backend->record_begin != NULL;
}

void amp_graph_backward_layer(struct amp_graph *g, int layer)
{
    struct amp_node *node = &g->nodes[layer];
    tell_watcher(g, layer, true, false);
    if (node->plan->delta_from_nobody && node->delta.data) {
        size_t bytes = output_count(g, layer) * amp_format_bytes(node->plan->out);
        g->backend->fill_zero(g->context, node->delta.data, bytes);
    }
    if (!node->gradient_sums) amp_graph_look_at_delta(g, layer); /* else it has been */
    amp_executor_of(g, layer)->backward(g, layer);
    if (node->gradient && !starts_cost(g))
        g->backend->conv_weight_gradients(g->context, node->gradient, 1, 1, false);
    show_gradient(g, layer);
    tell_watcher(g, layer, true, true);
    if (layer == g->plan->first_backward && starts_cost(g)) /* the last one: no layer's own time */
        g->backend->conv_weight_gradients(g->context, g->of_pass, g->n_learning, 1, false);
}

void amp_graph_backward(struct amp_graph *g, int layer)
{
    amp_segment_backward(g, layer);
}

/* ---- gradients of a step ---- */

void amp_graph_begin_step(struct amp_graph *g)
{
    g->summed = false;
    if (g->sums) g->backend->fill_zero(g->context, g->sums, g->n_flat * sizeof(float));
}

void amp_graph_accept_pass(struct amp_graph *g, float scale)
{
    float unscale = 1 / scale; /* exact: a power of two */
    if (g->sums) {
        g->backend->accumulate(g->context, g->gradients, g->n_flat, unscale, g->sums);
        g->backend->conv_weight_gradients(g->context, g->of_step, g->n_learning, unscale,
                                          g->summed);
    } else {
        g->unscale = unscale;
    }
    g->summed = true;
}

void amp_graph_clear_gradients(struct amp_graph *g)
{
    float *read = g->sums ? g->sums : g->gradients;
    size_t n = g->sums ? g->n_gradients : gradients_of_pass(g);
    if (read) g->backend->fill_zero(g->context, read, n * sizeof(float));
    g->summed = false;
}

/* ---- the update ---- */

bool amp_graph_updates_at_once(const struct amp_graph *g)
{
    return g->backend->conv_update_sgd != NULL;
}

void amp_graph_begin_update(struct amp_graph *g)
{
    if (!amp_graph_updates_at_once(g)) {
        g->weights_stale = true;
        return;
    }
    g->backend->fill_zero(g->context, g->watch, report_bytes(g));
    g->watch_begun = true;
}

/* ---- faults ---- */

/* Whether the sums that the layer takes of its delta, or what it makes of a delta that others
 * summed before it was stored, show that something there is not finite. */
static bool shows_refused(const struct amp_node *node, const uint32_t *watch)
{
    return !ampk_amax_is_finite(watch[AMP_WATCH_DBIAS]) ||
           (node->gradient_sums && !ampk_amax_is_finite(watch[AMP_WATCH_DY]));
}

/* Deltas that nobody watched (amp_graph_conv_dx_watch). Sums of finite FP16 values are finite: what
 * they were made of was refused. In other formats it is the sum that is told. */
static void judge_by_sums(const struct amp_graph *g, uint32_t (*watch)[AMP_WATCHES])
{
    for (int i = 0; i < g->n; i++) {
        int by = summed_by(g, i);
        bool fp16 = g->fp16[i] >> AMP_WATCH_DELTA & 1;
        if (!fp16 || by < 0 || !shows_refused(&g->nodes[by], watch[by])) continue;
        uint32_t *delta = &watch[i][AMP_WATCH_DELTA];
        if (*delta < AMPK_FP16_OVERFLOW_BITS) *delta = AMPK_FP16_OVERFLOW_BITS;
    }
}

/* With the losses on the device, in one piece. */
static uint32_t (*read_watch(struct amp_graph *g))[AMP_WATCHES]
{
    uint32_t(*host)[AMP_WATCHES] = malloc(report_bytes(g));
    size_t watch = (size_t)g->n * sizeof *host;
    if (!host) return NULL;
    g->backend->read(g->context, host, g->watch, g->device_losses ? report_bytes(g) : watch);
    if (g->device_losses) memcpy(g->losses, host + g->n, (size_t)g->n * sizeof *g->losses);
    if (g->backend->watching_costs) judge_by_sums(g, host);
    return host;
}

void amp_graph_read_losses(struct amp_graph *g)
{
    if (g->device_losses) free(read_watch(g));
}

const struct ampk_loss_sums *amp_graph_loss(const struct amp_graph *g, int layer)
{
    const struct amp_plan_layer *p = &g->plan->layers[layer];
    return g->device_losses && p->loss && p->ours ? &g->losses[layer] : NULL;
}

struct amp_fault amp_graph_fault(struct amp_graph *g, bool backward)
{
    uint32_t(*watch)[AMP_WATCHES] = read_watch(g);
    if (!watch) return (struct amp_fault){AMP_FAULT_DIVERGED, 0, AMP_WATCHES, 0};
    struct amp_fault fault =
        amp_fault_find((const uint32_t(*)[AMP_WATCHES])watch, g->fp16, g->n, backward);
    free(watch);
    return fault;
}

double amp_graph_refused(struct amp_graph *g)
{
    uint32_t(*watch)[AMP_WATCHES] = read_watch(g);
    double most = 0;
    for (int i = 0; watch && i < g->n; i++)
        for (int w = AMP_WATCH_DELTA; w <= AMP_WATCH_DY; w++) {
            float value;
            memcpy(&value, &watch[i][w], sizeof value);
            if (g->fp16[i] >> w & 1 && ampk_amax_is_finite(watch[i][w]) && value > most)
                most = value;
        }
    free(watch);
    return most > 65504 ? most : 0;
}

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
