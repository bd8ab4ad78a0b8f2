/* Executor of [local]: a convolution with other filters at every place.
 *
 * It decides how that becomes the grouped convolution of amp_conv_shape (net.h): what the windows
 * see is unfolded, and in NHWC the tensors of a batch are in memory what the convolution reads and
 * writes. Only the biases are not: Darknet has them as NCHW. */
#include "layers.h"
#include "tensors.h"

/* A batch as one image: a pixel is an image, and has the channels of all its places. */
static struct ampk_tensor as_one_image(const struct ampk_tensor *t)
{
    struct ampk_tensor one = *t;
    one.n = one.h = 1;
    one.c = t->c * t->h * t->w;
    one.w = t->n;
    one.image_stride = (size_t)one.c * (size_t)one.w;
    return one;
}

static struct ampk_tensor unfolded(const struct amp_graph *g, int i)
{
    const struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    return amp_graph_tensor(node->unfolded, node->plan->in, g->net->batch, l->c * l->size * l->size,
                            l->out_h, l->out_w);
}

static int create(struct amp_graph *g, int i, char *err, size_t err_size)
{
    struct amp_node *node = &g->nodes[i];
    if (amp_make_convolution(g, i, err, err_size)) return -1;
    size_t bytes = (size_t)node->desc->outputs * sizeof(float);
    node->place_biases = g->backend->alloc(g->context, bytes);
    if (node->place_biases) return 0;
    return amp_graph_no_memory(g, i, "its biases", err, err_size);
}

/* Biases or their gradient: from Darknet's order to place_biases, or back. */
static void move_biases(struct amp_graph *g, const struct amp_node *node, float *darknet, bool back)
{
    const struct amp_layer_desc *l = node->desc;
    struct ampk_tensor theirs =
        amp_graph_tensor(darknet, AMP_FORMAT_BORDER, 1, l->filters, l->out_h, l->out_w);
    struct ampk_tensor ours =
        amp_graph_tensor(node->place_biases, AMP_FORMAT_FP32, 1, l->filters, l->out_h, l->out_w);
    g->backend->convert(g->context, back ? &ours : &theirs, back ? &theirs : &ours, false, NULL);
}

/* What the windows see of the source, as the convolution reads it. */
static struct ampk_tensor unfold(struct amp_graph *g, int i)
{
    const struct amp_layer_desc *l = g->nodes[i].desc;
    struct ampk_tensor to = unfolded(g, i);
    g->backend->unfold(g->context, amp_graph_source(g, i, 0), l->size, l->stride, l->pad, &to);
    return as_one_image(&to);
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_tensor x = unfold(g, i), y = as_one_image(&node->out);
    move_biases(g, node, node->biases->value, false);
    g->backend->conv_bias_forward(g->context, node->conv, &x, node->place_biases,
                                  node->desc->activation, &y, &node->watch[AMP_WATCH_OUT]);
}

/* The bias gradient of a frozen layer must not count in the norm of all gradients. */
static void backward_bias(struct amp_graph *g, int i, const struct ampk_tensor *dy)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_tensor out = as_one_image(&node->out), d = as_one_image(&node->delta);
    g->backend->bias_act_backward(g->context, &out, node->desc->activation, &d, dy,
                                  node->place_biases, &node->watch[AMP_WATCH_DY],
                                  &node->watch[AMP_WATCH_DBIAS]);
    if (!node->plan->frozen) move_biases(g, node, node->biases->grad, true);
}

/* The gradient of what the windows see takes the place of what they see. */
static void backward_data(struct amp_graph *g, int i, const struct ampk_tensor *dy)
{
    const struct amp_node *node = &g->nodes[i];
    const struct amp_layer_desc *l = node->desc;
    struct ampk_tensor windows = unfolded(g, i), dx = as_one_image(&windows);
    struct amp_contribution c;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
    g->backend->conv_backward(g->context, node->conv, NULL, dy, &dx, false, NULL);
    g->backend->fold(g->context, &windows, l->size, l->stride, l->pad, c.dx, c.accumulate, c.watch);
    amp_contribution_end(g, &c);
}

static void backward(struct amp_graph *g, int i)
{
    const struct amp_node *node = &g->nodes[i];
    struct ampk_tensor dy = as_one_image(&node->dy);
    backward_bias(g, i, &dy);
    if (!node->plan->frozen) {
        struct ampk_tensor x = unfold(g, i);
        g->backend->conv_backward(g->context, node->conv, &x, &dy, NULL, false, NULL);
    }
    backward_data(g, i, &dy);
}

const struct amp_executor amp_exec_local = {create, forward, backward};
