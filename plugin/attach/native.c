/* Decides what Darknet's own layer code is given to work on, so that it can run inside a scaled
 * step: private copies of layers with other pointers. It also decides which arrays of Darknet's
 * count as masters, momentum and state. It must not know the plan, nor why a layer is not ours.
 *
 * Layers are copied because Darknet's functions take them by value: a pointer changed in the copy
 * is seen by this call only, and Darknet's struct stays as it was. */

#include "native.h"

#include "device.h"
#include "fail.h"
#include "interposed.h"

#include "activations.h"
#include "blas.h"

#include <stdlib.h>
#include <string.h>

/* ---- what Darknet has for training on a GPU only ---- */

void backward_lstm_layer(layer l, network net); /* in no header */

static float *zeros(size_t n)
{
    return amp_allocate(n, sizeof(float));
}

/* make_batchnorm_layer leaves these NULL in a CPU build, but its backward writes to them. */
static void complete_batchnorm(layer *l)
{
    size_t n = (size_t)l->batch * (size_t)l->outputs, c = (size_t)l->out_c;
    if (l->x) return;
    l->x = zeros(n);
    l->x_norm = zeros(n);
    l->mean_delta = zeros(c);
    l->variance_delta = zeros(c);
}

void amp_native_complete(layer *l)
{
    size_t n = (size_t)l->batch * (size_t)l->outputs, steps = (size_t)l->steps;
    if (l->type == BATCHNORM) complete_batchnorm(l);
    if (l->type == LSTM && !l->delta) l->delta = zeros(n * steps);
    if (l->type == RNN) { /* training keeps every time step's state; Darknet made room for one */
        free(l->state);
        l->state = zeros(n * (steps + 1));
    }
}

/* Does what backward_region_layer_gpu does. Darknet's own backward for the CPU is commented out. */
static void backward_region(layer l, network net)
{
    int cells = l.w * l.h, box_size = (l.coords + 1 + l.classes) * cells;
    for (int box = 0; box < l.batch * l.n; box++) {
        int x_y = box * box_size, object = x_y + l.coords * cells;
        AMP_REAL(gradient_array)(l.output + x_y, 2 * cells, LOGISTIC, l.delta + x_y);
        if (!l.background)
            AMP_REAL(gradient_array)(l.output + object, cells, LOGISTIC, l.delta + object);
    }
    for (int i = 0; i < l.batch * l.inputs; i++)
        net.delta[i] += l.delta[i];
}

typedef void backward_function(layer, network);

/* The layer's backward on the CPU. own: the one that Darknet set, which is missing or empty for two
 * types. */
static backward_function *complete_backward(const layer *l, backward_function *own)
{
    if (l->type == REGION) return backward_region;
    return l->type == LSTM ? AMP_USE(backward_lstm_layer) : own;
}

/* ---- what Darknet owns ---- */

/* The layers that hold the weights: the layer itself, or those nested in a recurrent one. The order
 * is fixed: sidecars list params in it, and swap_updates takes grads in it. */
int amp_native_parts(layer *l, layer *parts[AMP_MOST_PARTS])
{
    switch (l->type) {
    case CONVOLUTIONAL:
    case DECONVOLUTIONAL:
    case CONNECTED:
    case LOCAL:
        parts[0] = l;
        return 1;
    case RNN:
    case CRNN:
        parts[0] = l->input_layer;
        parts[1] = l->self_layer;
        parts[2] = l->output_layer;
        return 3;
    case GRU: {
        layer *nested[] = {l->uz, l->wz, l->ur, l->wr, l->uh, l->wh};
        memcpy(parts, nested, sizeof nested);
        return 6;
    }
    case LSTM: {
        layer *nested[] = {l->uf, l->wf, l->ui, l->wi, l->ug, l->wg, l->uo, l->wo};
        memcpy(parts, nested, sizeof nested);
        return 8;
    }
    default:
        return 0;
    }
}

/* Darknet sets nweights for convolutions and deconvolutions only. Of a convolution they are as many
 * as it reads from a file: `darknet oneoff` leaves out the first filters of one. */
static size_t weight_count(const layer *l)
{
    if (l->type == CONVOLUTIONAL)
        return (size_t)(l->c / l->groups) * (size_t)l->n * (size_t)l->size * (size_t)l->size;
    if (l->type == CONNECTED) return (size_t)l->inputs * (size_t)l->outputs;
    if (l->type == LOCAL)
        return (size_t)l->size * (size_t)l->size * (size_t)l->c * (size_t)l->n * (size_t)l->out_w *
               (size_t)l->out_h;
    return (size_t)l->nweights;
}

static size_t bias_count(const layer *l)
{
    return (size_t)(l->type == CONNECTED || l->type == LOCAL ? l->outputs : l->n);
}

struct lister {
    struct amp_owned owned; /* params, rolling and changed NULL: only count */
    int layer;
    bool device;
};

/* clip: Darknet clips weights in the update of convolutions only. */
static void list_param(struct lister *out, enum amp_param_kind kind, size_t n, float *value,
                       float *update, float *m, float *v, const layer *l)
{
    struct amp_owned *o = &out->owned;
    if (o->params)
        o->params[o->n_params] = (struct amp_param){
            .kind = kind,
            .layer = out->layer,
            .n = n,
            .value = value,
            .update = update,
            .m = m,
            .v = v,
            .learning_rate_scale = l->learning_rate_scale,
            .clip = kind == AMP_PARAM_WEIGHTS && l->type == CONVOLUTIONAL ? l->clip : 0,
        };
    o->n_params++;
}

static void list_rolling(struct lister *out, float *value, size_t n, bool carried)
{
    struct amp_owned *o = &out->owned;
    if (o->rolling)
        o->rolling[o->n_rolling] =
            (struct amp_rolling){.value = value, .n = n, .layer = out->layer, .carried = carried};
    o->n_rolling++;
}

static void list_weight_layer(struct lister *out, layer *l)
{
    size_t biases = bias_count(l);
    bool dev = out->device;
    list_param(out, AMP_PARAM_WEIGHTS, weight_count(l), AMP_SIDE(dev, l, weights),
               AMP_SIDE(dev, l, weight_updates), AMP_SIDE(dev, l, m), AMP_SIDE(dev, l, v), l);
    list_param(out, AMP_PARAM_BIASES, biases, AMP_SIDE(dev, l, biases),
               AMP_SIDE(dev, l, bias_updates), AMP_SIDE(dev, l, bias_m), AMP_SIDE(dev, l, bias_v),
               l);
    if (!l->batch_normalize) return;
    list_param(out, AMP_PARAM_SCALES, biases, AMP_SIDE(dev, l, scales),
               AMP_SIDE(dev, l, scale_updates), AMP_SIDE(dev, l, scale_m),
               AMP_SIDE(dev, l, scale_v), l);
    list_rolling(out, AMP_SIDE(dev, l, rolling_mean), biases, false);
    list_rolling(out, AMP_SIDE(dev, l, rolling_variance), biases, false);
}

/* The state that an LSTM takes over into the next pass: h, c, and the gradient of c. */
static void lstm_state(layer *l, bool device, float *state[3])
{
    float *host[3] = {l->h_cpu, l->c_cpu, l->dc_cpu};
#ifdef GPU
    float *on_device[3] = {l->h_gpu, l->c_gpu, l->dc_gpu};
    memcpy(state, device ? on_device : host, sizeof host);
#else
    (void)device;
    memcpy(state, host, sizeof host);
#endif
}

/* State moves in forward, before anyone knows whether the step counts. Listed with the rolling
 * statistics, it is saved at the start of a step and put back if the step is skipped. Darknet's
 * crnn, and on the CPU its rnn, begin every pass from zero. */
static void list_carried(struct lister *out, layer *l)
{
    size_t n = (size_t)l->batch * (size_t)l->outputs;
    if (l->type == GRU || (l->type == RNN && out->device))
        list_rolling(out, AMP_SIDE(out->device, l, state), n, true);
    if (l->type != LSTM) return;
    float *state[3];
    lstm_state(l, out->device, state);
    for (int k = 0; k < 3; k++)
        list_rolling(out, state[k], n, true);
}

static void list_changed(struct lister *out, float *value, size_t n, bool zeros)
{
    struct amp_owned *o = &out->owned;
    if (o->changed) o->changed[o->n_changed] = (struct amp_changed){value, n, zeros};
    o->n_changed++;
}

/* What backward of a recurrent layer changes. It adds to the deltas of nested layers, which forward
 * has set to zero; the last one's may be the layer's own, which the graph writes again. An LSTM
 * replaces the gradient of c that it has read. On the CPU, and in crnn on both sides, the states of
 * all time steps are computed again, but without what shortcut=1 adds. */
static void list_all_changed(struct lister *out, layer *l, float *delta)
{
    layer *parts[AMP_MOST_PARTS];
    bool dev = out->device;
    size_t images = (size_t)l->batch, steps = (size_t)l->steps;
    if (l->type != RNN && l->type != GRU && l->type != LSTM && l->type != CRNN) return;
    int n = amp_native_parts(l, parts);
    for (int k = 0; k < n; k++) {
        float *own = AMP_SIDE(dev, parts[k], delta);
        if (own != delta) list_changed(out, own, (size_t)parts[k]->outputs * images * steps, true);
    }
    if (l->type == LSTM) {
        float *state[3];
        lstm_state(l, dev, state);
        list_changed(out, state[2], (size_t)l->outputs * images, false);
    }
    bool all_steps = l->type == CRNN || (l->type == RNN && !dev);
    if (all_steps && l->shortcut)
        list_changed(out, AMP_SIDE(dev, l, state),
                     (size_t)l->self_layer->outputs * images * (steps + 1), false);
}

/* delta: the pointer before attaching, because l.delta is NULL while attached. */
static void list_binding(struct lister *out, layer *l, float *delta, int first_param)
{
    bool dev = out->device;
    out->owned.bindings[out->layer] = (struct amp_binding){
        .output = AMP_SIDE(dev, l, output),
        .delta = delta,
        .rolling_mean = AMP_SIDE(dev, l, rolling_mean),
        .rolling_variance = AMP_SIDE(dev, l, rolling_variance),
        .first_param = first_param,
        .n_params = out->owned.n_params - first_param,
    };
}

static void list_layer(struct lister *out, layer *l, float *delta)
{
    layer *parts[AMP_MOST_PARTS];
    int first = out->owned.n_params, n = amp_native_parts(l, parts);
    for (int k = 0; k < n; k++)
        list_weight_layer(out, parts[k]);
    list_carried(out, l);
    list_all_changed(out, l, delta);
    if (l->type == BATCHNORM) {
        list_rolling(out, AMP_SIDE(out->device, l, rolling_mean), (size_t)l->out_c, false);
        list_rolling(out, AMP_SIDE(out->device, l, rolling_variance), (size_t)l->out_c, false);
    }
    list_binding(out, l, delta, first);
}

static void list_layers(struct lister *out, const network *net, const struct amp_saved *saved)
{
    out->owned.n_params = out->owned.n_rolling = out->owned.n_changed = 0;
    for (out->layer = 0; out->layer < net->n; out->layer++) {
        layer *l = &net->layers[out->layer];
        list_layer(out, l, saved ? saved[out->layer].delta : AMP_SIDE(out->device, l, delta));
    }
}

struct amp_owned amp_native_list(const network *net, const struct amp_saved *saved, bool device)
{
    struct lister out = {.device = device};
    struct amp_owned *o = &out.owned;
    o->bindings = amp_allocate((size_t)net->n, sizeof *o->bindings);
    list_layers(&out, net, saved); /* only counts: these arrays are NULL */
    o->params = amp_allocate((size_t)o->n_params, sizeof *o->params);
    o->rolling = amp_allocate((size_t)o->n_rolling, sizeof *o->rolling);
    o->changed = amp_allocate((size_t)o->n_changed, sizeof *o->changed);
    list_layers(&out, net, saved);
    return *o;
}

void amp_native_free_list(struct amp_owned *o)
{
    free(o->bindings);
    free(o->params);
    free(o->rolling);
    free(o->changed);
}

/* ---- its own code ---- */

void amp_native_forward(layer *l, const struct amp_saved *saved, bool device, network view,
                        float *input, bool train)
{
    layer copy = *l;
    /* Darknet's loss layers write to l.delta in forward. */
    AMP_SIDE(device, &copy, delta) = saved->delta;
    AMP_SIDE(device, &view, input) = input;
    view.train = train;
    /* Some of Darknet's code multiplies the workspace by 0 instead of overwriting it, and NaN * 0
     * stays NaN. */
    if (l->workspace_size && !device) memset(view.workspace, 0, l->workspace_size);
    saved->forward(copy, view);
}

struct update_pointers {
    float *weights, *biases, *scales;
};

/* Lets the layer add its gradients to the params' grad: Darknet would add them to its momentum,
 * where scaled values must never go. Returns the old pointers. */
static struct update_pointers swap_updates(layer *l, bool device, const struct amp_param *params,
                                           int *next)
{
    struct update_pointers old = {AMP_SIDE(device, l, weight_updates),
                                  AMP_SIDE(device, l, bias_updates),
                                  AMP_SIDE(device, l, scale_updates)};
    AMP_SIDE(device, l, weight_updates) = params[(*next)++].grad;
    AMP_SIDE(device, l, bias_updates) = params[(*next)++].grad;
    if (l->batch_normalize) AMP_SIDE(device, l, scale_updates) = params[(*next)++].grad;
    return old;
}

static _Thread_local float scale_of_deltas = 1; /* the loss scale while Darknet's backward runs */
static _Thread_local unsigned limited;          /* calls of constrain_gpu that arrived here */

#ifdef GPU
/* Besides backward only updates call constrain_gpu, for weights, while the scale here is 1. */
float amp_native_limit(float limit)
{
    limited++;
    return limit * scale_of_deltas;
}
#endif

/* After a backward on a device. A recurrent layer calls constrain_gpu for sure; if no call arrived,
 * Darknet's calls go past the plugin and deltas were cut off at 1. */
static void check_limit(const layer *l, unsigned calls, float scale)
{
    bool limits = l->type == RNN || l->type == GRU || l->type == LSTM;
    if (limits && !calls && scale != 1)
        amp_fail("rnn, gru, lstm: this Darknet's calls do not pass through the plugin, so that it "
                 "cuts deltas off below the loss scale; start the program with "
                 "LD_PRELOAD=libdarknet_amp.so, or set loss_scale=1");
}

void amp_native_backward(layer *l, const struct amp_saved *saved, bool device, network view,
                         float *input, float *delta, float scale, const struct amp_param *params,
                         int n_params)
{
    layer copy = *l, *parts[AMP_MOST_PARTS];
    struct update_pointers old[AMP_MOST_PARTS];
    /* Nested layers are pointers, so the copy shares them with Darknet: their pointers are put back
     * below. */
    int next = 0, n = n_params ? amp_native_parts(&copy, parts) : 0;
    for (int k = 0; k < n; k++)
        old[k] = swap_updates(parts[k], device, params, &next);
    AMP_SIDE(device, &copy, delta) = saved->delta;
    AMP_SIDE(device, &view, input) = input;
    AMP_SIDE(device, &view, delta) = delta;
    copy.smooth *= scale; /* smooth adds to a convolution's delta, which is scaled */
    scale_of_deltas = scale;
    unsigned before = limited;
    /* On the CPU two types need another function than the one that Darknet set. */
    (device ? saved->backward : complete_backward(l, saved->backward))(copy, view);
    if (device) check_limit(l, limited - before, scale);
    scale_of_deltas = 1;
    for (int k = 0; k < n; k++) {
        AMP_SIDE(device, parts[k], weight_updates) = old[k].weights;
        AMP_SIDE(device, parts[k], bias_updates) = old[k].biases;
        AMP_SIDE(device, parts[k], scale_updates) = old[k].scales;
    }
}

void amp_native_scale_kept(layer *l, bool device, const struct ampk_backend *backend,
                           struct ampk_context *context, float factor)
{
    float *state[3] = {NULL};
    if (l->type == LSTM) lstm_state(l, device, state);
    /* The gradient of c. */
    float *kept = state[2];
#ifdef GPU
    if (l->type == L2NORM && device) kept = l->scales_gpu;
#endif
    if (kept) backend->scale(context, kept, (size_t)l->batch * (size_t)l->outputs, factor);
}
