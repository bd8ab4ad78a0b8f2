/* Runs the layers inside a recurrent layer: their matrix products and activations in the backend,
 * the rest of them in Darknet's own code. Darknet's code of a recurrent layer calls the functions
 * of its inner layers by name, not through their pointers, so those functions are interposed
 * (interposed.c). It must not know when a product is computed (core/engine/products.c).
 *
 * What comes before and after a product is what Darknet's function of the inner layer does, in its
 * order; the backend adds the bias and activates in one go with the product. */

#include "products.h"

#include "device.h"
#include "interposed.h"
#include "native.h"

#include "activations.h"
#include "batchnorm_layer.h"
#include "blas.h"
#include "convolutional_layer.h"

/* The recurrent layer that runs in this thread; graph NULL: none. */
static _Thread_local struct running {
    struct amp_graph *graph;
    int index;
    layer *l;
    bool device;
} running;

void amp_products_run(struct amp_graph *graph, int index, layer *l, bool device)
{
    running = (struct running){graph, index, l, device};
}

void amp_products_end(void)
{
    running.graph = NULL;
}

/* Which matrix of the running layer l is, and at which time step; -1: none. Darknet moves the
 * output of an inner layer on from step to step. */
static int find(const layer *l, int *step)
{
    layer *parts[AMP_MOST_PARTS];
    int n = running.graph ? amp_native_parts(running.l, parts) : 0;
    for (int k = 0; k < n; k++) {
        if (AMP_SIDE(running.device, l, weights) != AMP_SIDE(running.device, parts[k], weights))
            continue;
        *step = (int)((AMP_SIDE(running.device, l, output) -
                       AMP_SIDE(running.device, parts[k], output)) /
                      ((ptrdiff_t)l->batch * l->outputs));
        return k;
    }
    return -1;
}

/* ---- on the host ---- */

static enum ampk_activation backends(ACTIVATION a)
{
    _Static_assert((int)LOGISTIC == (int)AMPK_LOGISTIC && (int)TANH == (int)AMPK_TANH &&
                       (int)SELU == (int)AMPK_SELU,
                   "both lists are Darknet's");
    return (enum ampk_activation)a;
}

static void activate_here(float *x, int n, ACTIVATION a)
{
    if (a != LINEAR) amp_graph_activate(running.graph, x, n, backends(a));
}

static void gradient_here(const float *out, int n, ACTIVATION a, float *delta)
{
    if (a != LINEAR) amp_graph_activation_gradient(running.graph, out, n, backends(a), delta);
}

bool amp_products_activate(float *x, int n, ACTIVATION a)
{
    if (!running.graph || running.device) return false;
    activate_here(x, n, a);
    return true;
}

bool amp_products_gradient(const float *out, int n, ACTIVATION a, float *delta)
{
    if (!running.graph || running.device) return false;
    gradient_here(out, n, a, delta);
    return true;
}

/* After batch-norm, which adds the bias. */
static void finish_forward(layer l, network net)
{
    AMP_USE(forward_batchnorm_layer)(l, net);
    activate_here(l.output, l.outputs * l.batch, l.activation);
}

/* Darknet's backward_bias, which calls a function for each number of a connected layer; the sums
 * are the same to the bit. */
static void add_bias_gradient(layer l)
{
    if (l.type != CONNECTED) {
        AMP_USE(backward_bias)(l.bias_updates, l.delta, l.batch, l.out_c, l.out_h * l.out_w);
        return;
    }
    for (int b = 0; b < l.batch; b++)
        for (int i = 0; i < l.outputs; i++)
            l.bias_updates[i] += l.delta[(size_t)b * (size_t)l.outputs + (size_t)i];
}

static void begin_backward(layer l, network net)
{
    gradient_here(l.output, l.outputs * l.batch, l.activation, l.delta);
    if (l.batch_normalize)
        AMP_USE(backward_batchnorm_layer)(l, net);
    else
        add_bias_gradient(l);
}

/* ---- on a device ---- */

#ifdef GPU
static void finish_forward_gpu(layer l, network net)
{
    AMP_USE(forward_batchnorm_layer_gpu)(l, net);
    AMP_USE(activate_array_gpu)(l.output_gpu, l.outputs * l.batch, l.activation);
}

/* Darknet cuts the deltas of connected layers off at 1, those of convolutions it does not. */
static void begin_backward_gpu(layer l, network net)
{
    if (l.type == CONNECTED)
        AMP_REAL(constrain_gpu)(l.outputs * l.batch, amp_native_limit(1), l.delta_gpu, 1);
    AMP_USE(gradient_array_gpu)(l.output_gpu, l.outputs * l.batch, l.activation, l.delta_gpu);
    if (l.batch_normalize)
        AMP_USE(backward_batchnorm_layer_gpu)(l, net);
    else {
        int pixels = l.out_h * l.out_w;
        AMP_USE(backward_bias_gpu)(l.bias_updates_gpu, l.delta_gpu, l.batch, l.out_c, pixels);
    }
}
#else
static void finish_forward_gpu(layer l, network net)
{
    finish_forward(l, net);
}

static void begin_backward_gpu(layer l, network net)
{
    begin_backward(l, net);
}
#endif

/* ---- what is called in place of the inner layers' functions ---- */

bool amp_products_forward(layer l, network net)
{
    int step, k = find(&l, &step);
    bool dev = running.device;
    if (k < 0) return false;
    amp_graph_product_forward(running.graph, running.index, k, step, AMP_SIDE(dev, &net, input),
                              AMP_SIDE(dev, &l, output));
    if (l.batch_normalize) (dev ? finish_forward_gpu : finish_forward)(l, net);
    return true;
}

bool amp_products_backward(layer l, network net)
{
    int step, k = find(&l, &step);
    bool dev = running.device;
    if (k < 0) return false;
    (dev ? begin_backward_gpu : begin_backward)(l, net);
    amp_graph_product_backward(running.graph, running.index, k, step, AMP_SIDE(dev, &net, input),
                               AMP_SIDE(dev, &l, delta), AMP_SIDE(dev, &net, delta));
    return true;
}
