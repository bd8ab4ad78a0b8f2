#include "rig.h"

#include "recurrent.h"

#include "kernels/reference/tensor.h"
#include "plugin/core/read/options.h"
#include "plugin/core/engine/layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t (*random_bits)(void);

static double uniform(double low, double high)
{
    return low + (high - low) * (double)(random_bits() >> 11) * 0x1p-53;
}

static void *allocate(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) abort();
    return p;
}

static float *random_floats(size_t n, double low, double high)
{
    float *x = allocate(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)uniform(low, high);
    return x;
}

/* ---- stand-ins for Darknet's layers ---- */

static double f(double x)
{
    return x + sin(x) / 2;
}

static double f_slope(double x)
{
    return 1 + cos(x) / 2;
}

static size_t outputs_of(const struct rig *r, int i)
{
    return (size_t)r->net->batch * (size_t)r->net->layers[i].outputs;
}

static void forward_loss(struct rig *r, int i, const float *x, bool train)
{
    const struct amp_binding *b = &r->bindings[i];
    for (size_t k = 0; k < outputs_of(r, i); k++) {
        double miss = (double)r->truth[i][k] - (double)x[k];
        b->output[k] = x[k];
        if (!train) continue;
        b->delta[k] = (float)miss;
        r->loss += miss * miss / 2;
        r->loss_rounding += pow(miss * (double)x[k] * 0x1p-24, 2);
    }
}

/* Of a convolution with size=1: a matrix of filters x c for every pixel. */
struct matrix_at {
    float *weights, *biases, *x, *y;
    int c, filters;
    size_t stride; /* between channels */
};

static struct matrix_at matrix_at(const struct rig *r, int i, int image, int pixel, float *x,
                                  float *y, const struct amp_param *p, bool gradients)
{
    const struct amp_layer_desc *l = &r->net->layers[i];
    return (struct matrix_at){
        .weights = gradients ? p[0].grad : p[0].value,
        .biases = gradients ? p[1].grad : p[1].value,
        .x = x + (size_t)image * (size_t)l->inputs + (size_t)pixel,
        .y = y + (size_t)image * (size_t)l->outputs + (size_t)pixel,
        .c = l->c,
        .filters = l->filters,
        .stride = (size_t)l->w * (size_t)l->h,
    };
}

static void forward_convolution(struct rig *r, int i, float *x)
{
    const struct amp_layer_desc *l = &r->net->layers[i];
    const struct amp_param *p = &r->graph->params[r->bindings[i].first_param];
    for (int n = 0; n < r->net->batch; n++)
        for (int at = 0; at < l->w * l->h; at++) {
            struct matrix_at o = matrix_at(r, i, n, at, x, r->bindings[i].output, p, false);
            for (int k = 0; k < o.filters; k++) {
                double sum = o.biases[k];
                for (int c = 0; c < o.c; c++)
                    sum += (double)o.weights[k * o.c + c] * (double)o.x[(size_t)c * o.stride];
                o.y[(size_t)k * o.stride] = (float)sum;
            }
        }
}

static void backward_convolution(struct rig *r, int i, float *x, float *dx)
{
    const struct amp_layer_desc *l = &r->net->layers[i];
    const struct amp_param *p = &r->graph->params[r->bindings[i].first_param];
    for (int n = 0; n < r->net->batch; n++)
        for (int at = 0; at < l->w * l->h; at++) {
            struct matrix_at g = matrix_at(r, i, n, at, x, r->bindings[i].delta, p, true);
            struct matrix_at w = matrix_at(r, i, n, at, x, r->bindings[i].delta, p, false);
            float *to = dx ? dx + (size_t)n * (size_t)l->inputs + (size_t)at : NULL;
            for (int k = 0; k < g.filters; k++) {
                float d = g.y[(size_t)k * g.stride];
                g.biases[k] += d;
                for (int c = 0; c < g.c; c++) {
                    g.weights[k * g.c + c] += d * g.x[(size_t)c * g.stride];
                    if (to) to[(size_t)c * g.stride] += d * w.weights[k * g.c + c];
                }
            }
        }
}

static void forward_crop(struct rig *r, int i, const float *x)
{
    const struct amp_layer_desc *l = &r->net->layers[i];
    float *y = r->bindings[i].output;
    for (int plane = 0; plane < r->net->batch * l->c; plane++)
        for (int h = 0; h < l->out_h; h++)
            for (int w = 0; w < l->out_w; w++)
                *y++ = x[(plane * l->h + h) * l->w + w];
}

static void native_forward(void *user, int i, float *x, bool train)
{
    struct rig *r = user;
    const struct amp_layer_desc *l = &r->net->layers[i];
    if (amp_layer_is_loss(l))
        forward_loss(r, i, x, train);
    else if (l->type == AMP_CONVOLUTIONAL)
        forward_convolution(r, i, x);
    else if (l->type == AMP_CROP)
        forward_crop(r, i, x);
    else if (r->recurrent[i])
        recurrent_forward(r->recurrent[i], r->graph, i, x);
    else
        for (size_t k = 0; k < outputs_of(r, i); k++)
            r->bindings[i].output[k] = (float)f(x[k]);
}

static void native_backward(void *user, int i, float *x, float *dx)
{
    struct rig *r = user;
    const struct amp_layer_desc *l = &r->net->layers[i];
    const float *d = r->bindings[i].delta;
    bool overwrites = l->type == AMP_NORMALIZATION || l->type == AMP_BATCHNORM;
    if (l->type == AMP_CONVOLUTIONAL) {
        backward_convolution(r, i, x, dx);
        return;
    }
    if (r->recurrent[i]) {
        recurrent_backward(r->recurrent[i], r->graph, i, x, dx);
        return;
    }
    if (!dx || l->type == AMP_CROP) return;
    for (size_t k = 0; k < outputs_of(r, i); k++) {
        float share = amp_layer_is_loss(l) ? d[k] : (float)(d[k] * f_slope(x[k]));
        dx[k] = overwrites ? share : dx[k] + share;
    }
}

/* ---- dropout: numbers given by layer and element ---- */

static _Thread_local uint64_t dropout_state; /* graphs of several threads draw */

static float dropout_uniform(void)
{
    uint64_t z = (dropout_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)(z >> 40) * 0x1p-24f;
}

void rig_seed_dropout(uint64_t seed)
{
    dropout_state = 1000003u * seed;
}

/* ---- creation ---- */

static void add_param(struct rig *r, int layer, enum amp_param_kind kind, size_t n, double low,
                      double high)
{
    struct amp_param *p = &r->params[r->n_params++];
    *p = (struct amp_param){.kind = kind,
                            .layer = layer,
                            .n = n,
                            .value = random_floats(n, low, high),
                            .update = allocate(n, sizeof(float)),
                            .m = allocate(n, sizeof(float)),
                            .v = allocate(n, sizeof(float)),
                            .learning_rate_scale = r->net->layers[layer].learning_rate_scale,
                            .clip = kind == AMP_PARAM_WEIGHTS ? r->net->clip : 0};
}

/* Half of what keeps magnitudes, since two products are added. */
static void add_recurrent(struct rig *r, int i)
{
    const struct amp_layer_desc *l = &r->net->layers[i];
    struct amp_matrix list[AMP_MOST_MATRICES];
    int n = amp_layer_matrices(l, list), taps = l->type == AMP_CRNN ? 9 : 1;
    for (int k = 0; k < n; k++) {
        size_t weights = (size_t)list[k].inputs * (size_t)list[k].outputs * (size_t)taps;
        double bound = sqrt(3. / (list[k].inputs * taps)) / 2;
        add_param(r, i, AMP_PARAM_WEIGHTS, weights, -bound, bound);
        add_param(r, i, AMP_PARAM_BIASES, (size_t)list[k].outputs, -.2, .2);
    }
    r->bindings[i].n_params = 2 * n;
    r->recurrent[i] = recurrent_create(r->net, i);
}

static void add_params(struct rig *r, int i)
{
    const struct amp_layer_desc *l = &r->net->layers[i];
    struct amp_binding *b = &r->bindings[i];
    b->first_param = r->n_params;
    if (l->n_weights == 0) return;
    if (amp_layer_is_recurrent(l)) {
        add_recurrent(r, i);
        return;
    }
    size_t biases = l->type == AMP_LOCAL ? (size_t)l->outputs : (size_t)l->filters;
    double fan_in =
        l->type == AMP_CONNECTED ? l->inputs : (double)l->size * l->size * l->c / l->groups;
    double bound = sqrt(3 / fan_in);
    add_param(r, i, AMP_PARAM_WEIGHTS, l->n_weights, -bound, bound);
    add_param(r, i, AMP_PARAM_BIASES, biases, -.2, .2);
    if (l->batch_normalize) {
        add_param(r, i, AMP_PARAM_SCALES, biases, .5, 1.5);
        b->rolling_mean = random_floats(biases, -.1, .1);
        b->rolling_variance = random_floats(biases, .5, 1.5);
        r->rolling[r->n_rolling++] =
            (struct amp_rolling){.value = b->rolling_mean, .n = biases, .layer = i};
        r->rolling[r->n_rolling++] =
            (struct amp_rolling){.value = b->rolling_variance, .n = biases, .layer = i};
    }
    b->n_params = r->n_params - b->first_param;
}

static void bind_layers(struct rig *r)
{
    size_t n = (size_t)r->net->n;
    r->bindings = allocate(n, sizeof *r->bindings);
    r->params = allocate(2 * AMP_MOST_MATRICES * n, sizeof *r->params);
    r->recurrent = allocate(n, sizeof *r->recurrent);
    r->rolling = allocate(2 * n, sizeof *r->rolling);
    r->truth = allocate(n, sizeof *r->truth);
    r->input = random_floats((size_t)r->net->batch * (size_t)r->net->inputs, -1, 1);
    for (int i = 0; i < r->net->n; i++) {
        add_params(r, i);
        r->bindings[i].output = allocate(outputs_of(r, i), sizeof(float));
        if (!r->plan->layers[i].ours && r->net->layers[i].type != AMP_CROP)
            r->bindings[i].delta = allocate(outputs_of(r, i), sizeof(float));
        if (r->plan->layers[i].loss) r->truth[i] = random_floats(outputs_of(r, i), -1, 1);
    }
    size_t floats = 0;
    for (int i = 0; i < r->n_rolling; i++)
        floats += r->rolling[i].n;
    r->rolling_start = allocate(floats, sizeof(float));
    for (int i = 0, at = 0; i < r->n_rolling; at += (int)r->rolling[i++].n)
        memcpy(r->rolling_start + at, r->rolling[i].value, r->rolling[i].n * sizeof(float));
}

int rig_make_graph(struct rig *r, bool accumulate)
{
    struct amp_native native = {r, native_forward, native_backward,
                                r->draws_masks ? NULL : dropout_uniform};
    struct amp_owned owned = {.bindings = r->bindings,
                              .params = r->params,
                              .rolling = r->rolling,
                              .n_params = r->n_params,
                              .n_rolling = r->n_rolling};
    const struct amp_rules *rules = &r->options.rules;
    if (!r->kept)
        r->kept = amp_kept_create(r->backend, r->context, rules, &owned, r->err, sizeof r->err);
    if (!r->kept) return -1;
    struct amp_param *params = allocate((size_t)r->n_params + 1, sizeof *params);
    memcpy(params, r->params, (size_t)r->n_params * sizeof *params);
    owned.params = params;
    amp_kept_enter(r->kept, &owned);
    amp_graph_free(r->graph);
    r->graph = amp_graph_create(r->backend, r->context, r->net, r->plan, &owned, native, accumulate,
                                r->err, sizeof r->err);
    free(params);
    return r->graph ? 0 : -1;
}

int rig_plan_again(struct rig *r)
{
    amp_graph_free(r->graph);
    r->graph = NULL;
    amp_plan_free(r->plan);
    r->plan = amp_plan_make(r->net, &r->options, r->ours, NULL, true, r->err, sizeof r->err);
    return r->plan ? rig_make_graph(r, r->net->subdivisions > 1) : -1;
}

static int build(struct rig *r, const char *text)
{
    size_t size = sizeof r->err;
    r->cfg = amp_cfg_parse("rig.cfg", text, strlen(text), r->err, size);
    if (!r->cfg || amp_options_read(r->cfg, &r->options, NULL, 0, r->err, size)) return -1;
    amp_options_settle_dtype(&r->options, false, false); /* fp16, wherever the test runs */
    r->net = amp_net_describe(r->cfg, 0, 0, true, r->err, size);
    if (!r->net) return -1;
    r->plan = amp_plan_make(r->net, &r->options, r->ours, NULL, true, r->err, size);
    r->context = r->backend->context_create(0, r->err, size);
    if (!r->plan || !r->context) return -1;
    bind_layers(r);
    return rig_make_graph(r, r->net->subdivisions > 1);
}

static struct rig *create(const char *text, const struct ampk_backend *backend, unsigned ours,
                          uint64_t (*random)(void))
{
    random_bits = random;
    struct rig *r = allocate(1, sizeof *r);
    r->backend = backend;
    r->ours = ours;
    if (build(r, text) == 0) return r;
    fprintf(stderr, "%s\n", r->err);
    rig_free(r);
    return NULL;
}

struct rig *rig_create(const char *text, const struct ampk_backend *backend,
                       uint64_t (*random)(void))
{
    return create(text, backend, amp_layers_ours(NULL), random);
}

struct rig *rig_create_with_losses(const char *text, const struct ampk_backend *backend,
                                   uint64_t (*random)(void))
{
    return create(text, backend, amp_layers_ours(backend), random);
}

static void free_values(struct rig *r)
{
    for (int i = 0; i < r->n_params; i++) {
        free(r->params[i].value);
        free(r->params[i].update);
        free(r->params[i].m);
        free(r->params[i].v);
    }
    for (int i = 0; i < r->n_rolling; i++)
        free(r->rolling[i].value);
    for (int i = 0; i < r->net->n; i++) {
        free(r->bindings[i].output);
        free(r->bindings[i].delta);
        free(r->truth[i]);
        recurrent_free(r->recurrent[i]);
    }
}

void rig_free(struct rig *r)
{
    if (!r) return;
    amp_graph_free(r->graph);
    amp_kept_free(r->kept);
    if (r->bindings) free_values(r);
    if (r->context) r->backend->context_destroy(r->context);
    free(r->bindings);
    free(r->params);
    free(r->rolling);
    free(r->rolling_start);
    free(r->truth);
    free(r->recurrent);
    free(r->input);
    amp_plan_free(r->plan);
    amp_net_desc_free(r->net);
    amp_cfg_free(r->cfg);
    free(r);
}

/* ---- passes ---- */

size_t rig_count(const struct ampk_tensor *t)
{
    return ampk_ref_count(t);
}

double *rig_load(const struct ampk_tensor *t)
{
    return ampk_ref_load(t);
}

/* A term of a fused sum is only to be found in the sum. */
static void nudge(struct rig *r, int layer, size_t i, float h)
{
    struct amp_node *node = &r->graph->nodes[amp_plan_writes(r->plan, layer)];
    size_t image = ampk_ref_count(&node->out) / (size_t)node->out.n;
    int n = (int)(i / image);
    size_t at = i % image;
    double v = ampk_ref_get_flat(&node->out, n, at) + (double)h;
    ampk_ref_set_flat(&node->out, n, at, v, false, NULL);
    for (int k = 0; k < AMP_FORMATS; k++)
        if (node->copy[k].data) ampk_ref_set_flat(&node->copy[k], n, at, v, false, NULL);
}

void rig_disturb(const struct rig *r, const struct ampk_tensor *t)
{
    size_t image = t->data && r->noise ? ampk_ref_count(t) / (size_t)t->n : 0;
    for (int n = 0; n < t->n; n++)
        for (size_t i = 0; i < image; i++) {
            double v = ampk_ref_get_flat(t, n, i);
            rig_seed_dropout(r->noise_draw << 32 | ampk_ref_float_bits((float)v));
            v *= 1 + r->noise * (2 * (double)dropout_uniform() - 1);
            ampk_ref_set_flat(t, n, i, v, false, NULL);
        }
}

void rig_forward_nudged(struct rig *r, int layer, size_t i, float h)
{
    for (int k = 0, at = 0; k < r->n_rolling; at += (int)r->rolling[k++].n)
        memcpy(r->rolling[k].value, r->rolling_start + at, r->rolling[k].n * sizeof(float));
    r->loss = r->loss_rounding = 0;
    amp_graph_weights_changed(r->graph);
    amp_graph_begin(r->graph, r->input, r->labels, true);
    for (int k = 0; k < r->net->n; k++) {
        rig_seed_dropout((uint64_t)k);
        amp_graph_forward(r->graph, k);
        if (k == layer) nudge(r, layer, i, h);
        const struct amp_node *node = &r->graph->nodes[amp_plan_writes(r->plan, k)];
        rig_disturb(r, &node->out);
        for (int format = 0; format < AMP_FORMATS; format++)
            rig_disturb(r, &node->copy[format]);
    }
}

void rig_forward(struct rig *r)
{
    rig_forward_nudged(r, -1, 0, 0);
}

void rig_settle(struct rig *r, struct rig *other)
{
    rig_forward(r);
    for (int k = 0, at = 0; k < r->n_rolling; at += (int)r->rolling[k++].n)
        for (size_t i = 0; i < r->rolling[k].n; i++) {
            float *start = &r->rolling_start[at + (int)i];
            if (r->rolling[k].value == r->bindings[r->rolling[k].layer].rolling_mean)
                *start = (r->rolling[k].value[i] - .99f * *start) / .01f;
            other->rolling_start[at + (int)i] = *start;
        }
}

void rig_backward(struct rig *r, float scale)
{
    amp_graph_begin_backward(r->graph, scale);
    for (int i = r->net->n - 1; i >= r->plan->first_backward; i--)
        amp_graph_backward(r->graph, i);
}

float *rig_gradient(struct rig *r, int param)
{
    const struct amp_param *p = &r->graph->params[param];
    const struct amp_node *node = &r->graph->nodes[p->layer];
    float *gradient = allocate(p->n, sizeof *gradient);
    if (p->grad)
        memcpy(gradient, p->grad, p->n * sizeof *gradient);
    else if (r->plan->layers[p->layer].backward && !r->plan->layers[p->layer].frozen)
        r->backend->conv_weight_gradients(
            r->context, &(struct ampk_weight_gradient){node->conv, gradient, NULL}, 1, 1, false);
    return gradient;
}
