/* The matrix products of recurrent layers and what is computed element by element around them, on
 * the backend. It decides when each is computed, and keeps the rounded operands. Darknet's own code
 * runs the layers: batch-norm, state and the order of everything are its, in FP32, with all its
 * ways. It calls here for every product and activation (attach/products.c).
 *
 * The input of a product is rounded once more in backward, because Darknet's code may hand over
 * another one there: rnn and crnn without what shortcut=1 adds, and an lstm on the CPU, at its
 * first time step, the output of that step instead of the state before it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensors.h"

struct amp_product {
    struct amp_matrix matrix;
    struct ampk_conv *all;  /* of all time steps; only for gradients if there is a `step` */
    struct ampk_conv *step; /* of one; NULL: the matrix reads the layer's input */
    struct amp_param *weights, *biases;
};

/* ---- operands ---- */

static enum ampk_dtype dtype_of(const struct amp_node *node)
{
    switch (node->plan->compute) {
    case AMPK_COMPUTE_FP16:
        return AMPK_FP16;
    case AMPK_COMPUTE_BF16:
        return AMPK_BF16;
    default:
        return AMPK_FP32;
    }
}

/* As amp_plan_product_shape has it: vectors are the pixels of one image. */
static struct ampk_tensor operand(const struct amp_node *node, int images, int channels, void *data)
{
    const struct amp_layer_desc *l = node->desc;
    bool crnn = l->type == AMP_CRNN;
    int h = crnn ? l->out_h : images, w = crnn ? l->out_w : 1;
    return (struct ampk_tensor){.data = data,
                                .dtype = dtype_of(node),
                                .layout = AMPK_NHWC,
                                .n = crnn ? images : 1,
                                .c = channels,
                                .h = h,
                                .w = w,
                                .image_stride = (size_t)channels * (size_t)h * (size_t)w};
}

/* The same as Darknet has it. */
static struct ampk_tensor outside(const struct amp_node *node, int images, int channels,
                                  float *data)
{
    struct ampk_tensor t = operand(node, images, channels, data);
    t.dtype = AMPK_FP32;
    if (node->desc->type == AMP_CRNN) t.layout = AMPK_NCHW;
    return t;
}

/* The kept operands of matrix k: of one time step, or of all if step is -1. */
static struct ampk_tensor kept(const struct amp_graph *g, int i, int k, int step, bool gradients)
{
    const struct amp_node *node = &g->nodes[i];
    const struct amp_matrix *m = &node->products[k].matrix;
    int channels = gradients ? m->outputs : m->inputs;
    int images = step < 0 ? g->net->batch : amp_plan_step_images(g->net);
    char *data = gradients ? node->dy.data : node->y.data;
    data += amp_plan_operand_offset(g->plan, g->net, i, k, gradients);
    if (step > 0)
        data += (size_t)step * amp_plan_operand_bytes(g->plan, g->net, i, channels, images);
    return operand(node, images, channels, data);
}

/* ---- creation ---- */

static struct ampk_conv *make_conv(struct amp_graph *g, int i, const struct amp_matrix *m,
                                   int images, char *err, size_t err_size)
{
    struct ampk_conv_shape shape = amp_plan_product_shape(g->plan, g->net, i, m, images);
    return g->backend->conv_create(g->context, &shape, err, err_size);
}

/* 0, or -1 with the backend's reason in err. */
static int make_product(struct amp_graph *g, int i, struct amp_product *p, char *err,
                        size_t err_size)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_matrix *m = &p->matrix;
    if (m->reads_input || node->plan->backward) {
        p->all = make_conv(g, i, m, g->net->batch, err, err_size);
        if (!p->all) return -1;
    }
    if (!m->reads_input) {
        p->step = make_conv(g, i, m, amp_plan_step_images(g->net), err, err_size);
        if (!p->step) return -1;
    }
    g->convs[g->n_convs++] = (struct ampk_new_weights){
        p->step ? p->step : p->all, p->weights->value, &node->watch[AMP_WATCH_WEIGHTS]};
    return 0;
}

static int make_no_bias(struct amp_graph *g, struct amp_node *node)
{
    int most = 0;
    for (int k = 0; k < node->n_products; k++)
        if (node->products[k].matrix.outputs > most) most = node->products[k].matrix.outputs;
    size_t bytes = (size_t)most * sizeof *node->no_bias;
    node->no_bias = g->backend->alloc(g->context, bytes);
    if (!node->no_bias) return -1;
    g->backend->fill_zero(g->context, node->no_bias, bytes);
    return 0;
}

int amp_products_create(struct amp_graph *g, int i, char *err, size_t err_size)
{
    struct amp_node *node = &g->nodes[i];
    struct amp_matrix list[AMP_MOST_MATRICES];
    char why[400] = "";
    if (!node->plan->products) return 0;
    int n = amp_layer_matrices(node->desc, list);
    node->products = calloc((size_t)n, sizeof *node->products);
    if (!node->products) return amp_graph_no_memory(g, i, "lists", err, err_size);
    node->n_products = n;
    g->multiplies = true;
    for (int k = 0; k < n; k++) {
        /* Of each matrix: weights, biases, perhaps scales. */
        int param = node->bind.first_param + k * (node->bind.n_params / n);
        node->products[k] = (struct amp_product){
            .matrix = list[k], .weights = &g->params[param], .biases = &g->params[param + 1]};
        if (!make_product(g, i, &node->products[k], why, sizeof why)) continue;
        if (strstr(why, AMPK_NO_MEMORY))
            return amp_graph_no_memory(g, i, "weights and work of its products", err, err_size);
        snprintf(err, err_size, "layer %d (%s): %s", i, amp_layer_type_name(node->desc->type), why);
        return -1;
    }
    if (make_no_bias(g, node)) return amp_graph_no_memory(g, i, "lists", err, err_size);
    return 0;
}

void amp_products_free(struct amp_graph *g, struct amp_node *node)
{
    for (int k = 0; k < node->n_products; k++) {
        const struct amp_product *p = &node->products[k];
        if (p->all) g->backend->conv_destroy(g->context, p->all);
        if (p->step) g->backend->conv_destroy(g->context, p->step);
    }
    g->backend->free(g->context, node->no_bias);
    free(node->products);
}

/* ---- forward ---- */

void amp_products_begin(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    node->product_called = false;
    if (!node->n_products) return;
    struct ampk_tensor to = kept(g, i, 0, -1, false); /* matrix 0 reads the layer's input */
    struct ampk_tensor from = outside(node, g->net->batch, to.c, amp_graph_source(g, i, 0)->data);
    g->backend->convert(g->context, &from, &to, false, &node->watch[AMP_WATCH_Y]);
}

/* Gates come after the sum of two products. */
static enum ampk_activation activation_of(const struct amp_layer_desc *l)
{
    return l->type == AMP_RNN || l->type == AMP_CRNN ? l->activation : AMPK_LINEAR;
}

/* Darknet's code works on a stream of its own, so each product takes the device over. */
void amp_graph_product_forward(struct amp_graph *g, int i, int k, int step, float *x, float *y)
{
    const struct ampk_backend *be = g->backend;
    struct amp_node *node = &g->nodes[i];
    const struct amp_product *p = &node->products[k];
    int images = p->step ? amp_plan_step_images(g->net) : g->net->batch;
    struct ampk_tensor from = outside(node, images, p->matrix.inputs, x);
    struct ampk_tensor in = kept(g, i, k, p->step ? step : -1, false);
    struct ampk_tensor to = outside(node, images, p->matrix.outputs, y);
    node->product_called = true;
    if (!p->step && step > 0) return; /* the first step's product was that of all */
    be->acquire(g->context);
    if (p->step) be->convert(g->context, &from, &in, false, &node->watch[AMP_WATCH_Y]);
    bool plain = node->desc->batch_normalize;
    be->conv_bias_forward(g->context, p->step ? p->step : p->all, &in,
                          plain ? node->no_bias : p->biases->value,
                          plain ? AMPK_LINEAR : activation_of(node->desc), &to, NULL);
    be->release(g->context);
}

static struct ampk_tensor flat(float *x, int n)
{
    return (struct ampk_tensor){.data = x,
                                .dtype = AMPK_FP32,
                                .layout = AMPK_NHWC,
                                .n = 1,
                                .c = n,
                                .h = 1,
                                .w = 1,
                                .image_stride = (size_t)n};
}

void amp_graph_activate(struct amp_graph *g, float *x, int n, enum ampk_activation activation)
{
    struct ampk_tensor t = flat(x, n);
    g->backend->activation_forward(g->context, &t, activation, &t, NULL);
}

void amp_graph_activation_gradient(struct amp_graph *g, const float *out, int n,
                                   enum ampk_activation activation, float *delta)
{
    struct ampk_tensor y = flat((float *)(uintptr_t)out, n), d = flat(delta, n);
    g->backend->activation_backward(g->context, &y, activation, &d, &d, false, NULL);
}

/* ---- backward ---- */

/* Adds the gradient of a product's input to dx, which Darknet has in NCHW. */
static void add_gradient(struct amp_graph *g, int i, struct ampk_conv *conv,
                         const struct ampk_tensor *x, const struct ampk_tensor *dy,
                         const struct ampk_tensor *dx)
{
    const struct ampk_backend *be = g->backend;
    struct ampk_tensor turned = *dx;
    bool turns = dx->layout == AMPK_NCHW;
    turned.layout = AMPK_NHWC;
    if (turns)
        turned.data = (char *)g->nodes[i].dy.data +
                      amp_plan_operand_offset(g->plan, g->net, i, g->nodes[i].n_products, true);
    be->conv_backward(g->context, conv, x, dy, &turned, !turns, NULL);
    if (turns) be->convert(g->context, &turned, dx, true, NULL);
}

void amp_graph_product_backward(struct amp_graph *g, int i, int k, int step, float *x, float *dy,
                                float *dx)
{
    const struct ampk_backend *be = g->backend;
    struct amp_node *node = &g->nodes[i];
    const struct amp_product *p = &node->products[k];
    int images = amp_plan_step_images(g->net);
    struct ampk_tensor of_y = outside(node, images, p->matrix.outputs, dy);
    struct ampk_tensor rounded = kept(g, i, k, step, true);
    node->product_called = true;
    be->acquire(g->context);
    be->convert(g->context, &of_y, &rounded, false, &node->watch[AMP_WATCH_DY]);
    if (p->step) {
        struct ampk_tensor from = outside(node, images, p->matrix.inputs, x);
        struct ampk_tensor in = kept(g, i, k, step, false), to = from;
        be->convert(g->context, &from, &in, false, &node->watch[AMP_WATCH_Y]);
        to.data = dx;
        if (dx) add_gradient(g, i, p->step, NULL, &rounded, &to);
    }
    be->release(g->context);
}

void amp_products_finish(struct amp_graph *g, int i, float *delta)
{
    const struct ampk_backend *be = g->backend;
    struct amp_node *node = &g->nodes[i];
    /* Without a call there is no gradient: Darknet's gru has no backward on the CPU, or its calls
     * pass by and it has multiplied itself. */
    if (!node->product_called) return;
    for (int k = 0; k < node->n_products; k++) {
        const struct amp_product *p = &node->products[k];
        struct ampk_tensor in = kept(g, i, k, -1, false), dy = kept(g, i, k, -1, true);
        struct ampk_tensor dx = outside(node, g->net->batch, p->matrix.inputs, delta);
        if (delta && !p->step)
            add_gradient(g, i, p->all, &in, &dy, &dx);
        else
            be->conv_backward(g->context, p->all, &in, &dy, NULL, false, NULL);
        struct ampk_weight_gradient gradient = {p->all, p->weights->grad, NULL};
        be->conv_weight_gradients(g->context, &gradient, 1, 1, false);
    }
}
