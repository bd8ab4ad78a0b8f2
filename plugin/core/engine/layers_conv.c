/* Executor of [convolutional], [deconvolutional] and [connected], with and without batch-norm. A
 * connected layer is a convolution whose kernel covers its whole input, a deconvolutional one a
 * convolution that the backend runs the other way round.
 *
 * It decides which fused operations of the backend a layer uses: pooling inside batch-norm, and the
 * first layer's weight gradient inside batch-norm's backward. It must not decide which layers are
 * fused (plan_fuse.c), nor how the backend computes. */
#include <stdio.h>
#include <string.h>

#include "plugin/core/net/net.h"
#include "layers.h"
#include "sync_bn.h"
#include "tensors.h"

static float *alloc_floats(struct amp_graph *g, int n)
{
    float *p = g->backend->alloc(g->context, (size_t)n * sizeof(float));
    if (p) g->backend->fill_zero(g->context, p, (size_t)n * sizeof(float));
    return p;
}

/* The fused maxpool after layer i, or NULL. amp_plan_writes names the next layer also for a fused
 * shortcut, so the type decides. */
static struct amp_node *pool_after(const struct amp_graph *g, int i)
{
    struct amp_node *to = &g->nodes[amp_plan_writes(g->plan, i)];
    return to->desc->type == AMP_MAXPOOL ? to : NULL;
}

/* Describes the gradient that reaches layer i, whose activation has two slopes. Before a fused
 * maxpool that gradient is never stored: it follows from the pool's delta and index. */
static struct ampk_layer_gradient gradient_behind(const struct amp_graph *g, int i,
                                                  const struct ampk_batchnorm *bn)
{
    const struct amp_node *node = &g->nodes[i], *pool = pool_after(g, i);
    return (struct ampk_layer_gradient){.y = &node->y,
                                        .bn = bn,
                                        .activation = node->desc->activation,
                                        .d = pool ? &pool->delta : &node->delta,
                                        .argmax = pool ? pool->index : NULL};
}

/* Whether batch-norm's backward also computes the weight gradient. That is possible if nobody wants
 * a data gradient, as in a first layer, since dy is then needed for nothing else. */
static bool choose_fused_gradient(struct amp_graph *g, int i)
{
    const struct ampk_backend *be = g->backend;
    const struct amp_node *node = &g->nodes[i];
    struct ampk_layer_gradient gradient = gradient_behind(g, i, NULL);
    return be->conv_takes_gradient && node->plan->backward && node->desc->batch_normalize &&
           ampk_is_two_slopes(node->desc->activation) && !node->plan->source_wanted[0] &&
           be->conv_takes_gradient(g->context, node->conv, amp_graph_source(g, i, 0), &gradient);
}

int amp_make_convolution(struct amp_graph *g, int i, char *err, size_t err_size)
{
    struct amp_node *node = &g->nodes[i];
    char why[400] = "";
    struct ampk_conv_shape shape = amp_plan_conv_shape(g->plan, g->net, i);
    node->conv = g->backend->conv_create(g->context, &shape, why, sizeof why);
    /* The backend marks lack of memory in its message: the user then gets advice on batch and
     * subdivisions instead of an error about the shape. */
    if (!node->conv && strstr(why, AMPK_NO_MEMORY))
        return amp_graph_no_memory(g, i, "weights and work of its convolution", err, err_size);
    if (!node->conv) {
        snprintf(err, err_size, "layer %d (%s): %s", i, amp_layer_type_name(node->desc->type), why);
        return -1;
    }
    return 0;
}

static int create(struct amp_graph *g, int i, char *err, size_t err_size)
{
    struct amp_node *node = &g->nodes[i];
    if (amp_make_convolution(g, i, err, err_size)) return -1;
    /* Asked once, here: if the answer is yes, the convolution changes its gradient's memory. */
    node->fuses_weight_gradient = choose_fused_gradient(g, i);
    if (!node->desc->batch_normalize) return 0;
    node->mean = alloc_floats(g, node->desc->filters);
    node->variance = alloc_floats(g, node->desc->filters);
    if (node->mean && node->variance) return 0;
    return amp_graph_no_memory(g, i, "batch-norm's statistics", err, err_size);
}

/* Training normalizes with the batch's own statistics, inference and a frozen layer with the
 * rolling ones. */
static struct ampk_batchnorm batchnorm_of(const struct amp_graph *g, const struct amp_node *node,
                                          bool train)
{
    return (struct ampk_batchnorm){
        .scale = node->scales->value,
        .bias = node->biases->value,
        .mean = train ? node->mean : node->bind.rolling_mean,
        .variance = train ? node->variance : node->bind.rolling_variance,
        .rule = g->bn_rule,
        .peers = train ? amp_sync_peers(g) : NULL,
    };
}

/* Shows the layer's own output to an observer although it is stored nowhere. A fused sum adds it in
 * FP32, so it is shown in FP32; a fused maxpool compares rounded values, so it is shown as stored.
 * Without memory it is not shown. */
static void show_own_output(struct amp_graph *g, int i, bool train)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_batchnorm bn = batchnorm_of(g, node, train);
    struct ampk_tensor out = node->out;
    if (!pool_after(g, i)) out.dtype = AMPK_FP32;
    size_t bytes = (size_t)out.n * out.image_stride * ampk_dtype_bytes(out.dtype);
    out.data = g->backend->alloc(g->context, bytes);
    if (!out.data) return;
    g->backend->bn_act_forward(g->context, &node->y, &bn, node->desc->activation, NULL, &out, NULL,
                               NULL);
    amp_graph_show(g, AMP_SEEN_OUT, i, &out);
    g->backend->free(g->context, out.data);
}

/* The same for the delta before a fused maxpool. */
static void show_own_delta(struct amp_graph *g, int i)
{
    struct ampk_tensor delta = g->nodes[i].delta;
    const struct amp_node *pool = pool_after(g, i);
    size_t bytes = (size_t)delta.n * delta.image_stride * ampk_dtype_bytes(delta.dtype);
    delta.data = g->backend->alloc(g->context, bytes);
    if (!delta.data) return;
    g->backend->maxpool_backward(g->context, &pool->delta, pool->index, pool->desc->size,
                                 pool->desc->stride, pool->desc->pad, &delta, false, NULL);
    amp_graph_show(g, AMP_SEEN_DELTA, i, &delta);
    g->backend->free(g->context, delta.data);
}

/* Run again, a layer normalizes with the statistics of its first run: with the running ones moved,
 * the same sums would be rounded differently. */
static struct ampk_bn_statistics statistics_of(const struct amp_graph *g, struct amp_node *node)
{
    int c = g->spare_channels;
    if (g->again)
        return (struct ampk_bn_statistics){.mean = g->spare,
                                           .variance = g->spare + c,
                                           .rolling_mean = g->spare + 2 * c,
                                           .rolling_variance = g->spare + 3 * c,
                                           .rule = g->bn_rule};
    return (struct ampk_bn_statistics){.mean = node->mean,
                                       .variance = node->variance,
                                       .rolling_mean = node->bind.rolling_mean,
                                       .rolling_variance = node->bind.rolling_variance,
                                       .rule = g->bn_rule,
                                       .amax = &node->watch[AMP_WATCH_ROLLING]};
}

static void forward_batchnorm(struct amp_graph *g, int i, const struct ampk_tensor *x)
{
    const struct ampk_backend *be = g->backend;
    struct amp_node *node = &g->nodes[i];
    int to = amp_plan_writes(g->plan, i);
    bool train = g->train && !node->plan->frozen;
    struct amp_node *pool = pool_after(g, i);
    const struct ampk_tensor *add = to == i || pool ? NULL : amp_graph_source(g, to, 1);
    enum ampk_activation activation = node->desc->activation;
    bool synced = g->sync && train && !g->again;
    struct ampk_bn_statistics statistics =
        synced ? amp_sync_own_statistics(g, i) : statistics_of(g, node);
    uint32_t *word = &node->watch[AMP_WATCH_Y];
    /* Where watching costs a pass over y, batch-norm watches y, since it reads y anyway. */
    bool late = be->watching_costs;
    struct ampk_batchnorm bn = batchnorm_of(g, node, train);
    be->conv_forward(g->context, node->conv, x, &node->y, train ? &statistics : NULL,
                     late ? NULL : word);
    if (synced) amp_sync_statistics(g, i);
    if (pool)
        be->bn_act_pool_forward(g->context, &node->y, &bn, activation, &pool->out, pool->index,
                                late ? word : NULL, &node->watch[AMP_WATCH_OUT]);
    else
        be->bn_act_forward(g->context, &node->y, &bn, activation, add, &g->nodes[to].out,
                           late ? word : NULL, &g->nodes[to].watch[AMP_WATCH_OUT]);
    /* After the operation, and only for an observer: this computes the output a second time. */
    if (to != i && g->see && !g->again) show_own_output(g, i, train);
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_backend *be = g->backend;
    const struct ampk_tensor *x = amp_graph_source(g, i, 0);
    if (node->desc->batch_normalize)
        forward_batchnorm(g, i, x);
    else
        be->conv_bias_forward(g->context, node->conv, x, node->biases->value,
                              node->desc->activation, &node->out, &node->watch[AMP_WATCH_OUT]);
}

static void backward_batchnorm(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct amp_node *pool = pool_after(g, i);
    enum ampk_activation activation = node->desc->activation;
    uint32_t *dy_watch = &node->watch[AMP_WATCH_DY], *db_watch = &node->watch[AMP_WATCH_DBIAS];
    struct ampk_batchnorm bn = batchnorm_of(g, node, true);
    /* Where backward finds all in y, no output had to be kept. */
    const struct ampk_tensor *out = ampk_recomputes_input(activation) ? NULL : &node->out;
    if (pool)
        g->backend->bn_act_pool_backward(g->context, &node->y, &bn, activation, &pool->delta,
                                         pool->index, &node->dy, node->scales->grad,
                                         node->biases->grad, dy_watch, db_watch);
    else
        g->backend->bn_act_backward(g->context, &node->y, out, &bn, activation, &node->delta,
                                    &node->dy, node->scales->grad, node->biases->grad, dy_watch,
                                    db_watch);
}

/* Backward of a frozen layer's batch-norm. Its statistics are constants, so it multiplies each
 * channel by scale / deviation. That is batch-norm's forward without mean, bias and activation. The
 * arrays for a batch's own statistics, which this layer does not have, hold zeros. The memory of y,
 * which nobody reads again, takes the gradient in between. */
static void backward_frozen_batchnorm(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_batchnorm bn = batchnorm_of(g, node, false);
    bn.mean = node->mean;
    bn.bias = node->variance;
    g->backend->bias_act_backward(g->context, &node->out, node->desc->activation, &node->delta,
                                  &node->y, node->biases->grad, &node->watch[AMP_WATCH_DY],
                                  &node->watch[AMP_WATCH_DBIAS]);
    g->backend->bn_act_forward(g->context, &node->y, &bn, AMPK_LINEAR, NULL, &node->dy, NULL,
                               &node->watch[AMP_WATCH_DY]);
}

static void no_sums(void *user, float *sums, size_t n)
{
    const struct amp_graph *g = user;
    g->backend->fill_zero(g->context, sums, n * sizeof *sums);
}

/* The same where the activation's input is computed again from y: the operation of a layer that
 * learns, without what the statistics add. */
static void backward_frozen_again(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_bn_peers constant = {no_sums, g};
    struct ampk_batchnorm bn = batchnorm_of(g, node, false);
    bn.peers = &constant;
    g->backend->bn_act_backward(g->context, &node->y, NULL, &bn, node->desc->activation,
                                &node->delta, &node->dy, node->scales->grad, node->biases->grad,
                                &node->watch[AMP_WATCH_DY], &node->watch[AMP_WATCH_DBIAS]);
}

/* The whole backward of a layer without data gradient, in one operation. */
static void backward_fused(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_batchnorm bn = batchnorm_of(g, node, true);
    struct ampk_layer_gradient gradient = gradient_behind(g, i, &bn);
    g->backend->conv_bn_backward(g->context, node->conv, amp_graph_source(g, i, 0), &gradient,
                                 node->scales->grad, node->biases->grad, &node->watch[AMP_WATCH_DY],
                                 &node->watch[AMP_WATCH_DBIAS]);
}

/* Backward of a layer without batch-norm, on a backend that fuses it. */
static void backward_bias(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    int loss = amp_graph_loss_behind(g, i);
    struct ampk_tensor d = node->delta;
    /* Read directly from the loss, unscaled: the factor below applies the loss scale, and no scaled
     * copy has to be stored. */
    if (loss >= 0) d.data = g->nodes[loss].loss;
    struct ampk_bias_gradient bias = {.out = &node->out,
                                      .d = &d,
                                      .activation = node->desc->activation,
                                      .factor = loss >= 0 ? g->scale : 1,
                                      .dbias = node->biases->grad,
                                      .dy_amax = &node->watch[AMP_WATCH_DY],
                                      .db_amax = &node->watch[AMP_WATCH_DBIAS]};
    struct amp_contribution c;
    amp_contribution_begin(g, i, 0, &c);
    const struct ampk_tensor *x = amp_graph_source(g, i, 0);
    g->backend->conv_bias_backward(g->context, node->conv, x, &bias, &node->dy, c.dx, c.accumulate,
                                   amp_graph_conv_dx_watch(g, i, c.dx));
    amp_contribution_end(g, &c);
}

/* Darknet's backward_connected_layer_gpu clips the delta to 1; ours is scaled, so the limit is the
 * scale. The watch word already knows whether the delta had left FP16 before. A scale beyond FP16's
 * range clips no finite value. */
static void clip_delta(struct amp_graph *g, const struct amp_node *node)
{
    if (g->clips_connected && node->desc->type == AMP_CONNECTED)
        g->backend->clip(g->context, &node->delta, g->scale);
}

static void backward_layer(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_backend *be = g->backend;
    clip_delta(g, node);
    if (!node->desc->batch_normalize && amp_graph_makes_dy(g)) {
        backward_bias(g, i);
        return;
    }
    if (g->see && pool_after(g, i)) show_own_delta(g, i);
    if (node->fuses_weight_gradient) {
        backward_fused(g, i);
        return;
    }
    bool frozen = node->desc->batch_normalize && node->plan->frozen;
    if (frozen && ampk_is_gradient_of_input(node->desc->activation))
        backward_frozen_again(g, i);
    else if (frozen)
        backward_frozen_batchnorm(g, i);
    else if (node->desc->batch_normalize)
        backward_batchnorm(g, i);
    else
        be->bias_act_backward(g->context, &node->out, node->desc->activation, &node->delta,
                              &node->dy, node->biases->grad, &node->watch[AMP_WATCH_DY],
                              &node->watch[AMP_WATCH_DBIAS]);
    struct amp_contribution c;
    amp_contribution_begin(g, i, 0, &c);
    be->conv_backward(g->context, node->conv, amp_graph_source(g, i, 0), &node->dy, c.dx,
                      c.accumulate, amp_graph_conv_dx_watch(g, i, c.dx));
    amp_contribution_end(g, &c);
}

/* The bias gradient of a frozen layer must not count in the norm of all gradients. */
static void backward(struct amp_graph *g, int i)
{
    const struct amp_node *node = &g->nodes[i];
    backward_layer(g, i);
    if (node->plan->frozen)
        g->backend->fill_zero(g->context, node->biases->grad, node->biases->n * sizeof(float));
}

const struct amp_executor amp_exec_convolution = {create, forward, backward};
