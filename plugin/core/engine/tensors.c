/* Finds the tensors that a layer reads and writes, and turns the watch words of a pass into a
 * fault. It decides which copy a reader gets, whether a contribution overwrites or adds, and which
 * word watches which tensor. It must not know layer types or react to a fault: step.c does that. */
#include "tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/net/net.h"

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

struct ampk_tensor amp_graph_shaped(const struct amp_graph *g, int i, void *data,
                                    enum amp_format format)
{
    /* A flat layer is an image of one pixel with as many channels as values. */
    struct amp_image_shape s = amp_output_shape(g->net, i);
    return amp_graph_tensor(data, format, g->net->batch, s.c, s.h, s.w);
}

void *amp_graph_in_arena(const struct amp_graph *g, int buffer)
{
    return buffer < 0 ? NULL : g->arena + g->plan->buffers[buffer].offset;
}

void amp_graph_make_copies(struct amp_graph *g, int i, const int *buffers, struct ampk_tensor *copy)
{
    for (int f = 0; f < AMP_FORMATS; f++)
        copy[f] = amp_graph_shaped(g, i, amp_graph_in_arena(g, buffers[f]), (enum amp_format)f);
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

void amp_graph_weights_changed(struct amp_graph *g)
{
    g->weights_stale = true;
}

/* ---- sources and contributions ---- */

const struct ampk_tensor *amp_graph_source(const struct amp_graph *g, int layer, int k)
{
    const struct amp_plan_layer *p = &g->plan->layers[layer];
    int s = p->sources[k];
    /* Layer -1 is the network's input. */
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
    /* Equal formats: the layer writes the source's delta directly. The plan knows who comes first,
     * so that nothing has to be zeroed. */
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
    /* The executor has written, or added to, the delta itself. */
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

/* ---- watch words ---- */

/* Only FP16 can refuse a finite value: BF16 and TF32 have the range of FP32. These bits therefore
 * decide whether a large word is a fault. */
void amp_graph_mark_fp16(struct amp_graph *g, int i)
{
    const struct amp_plan_layer *p = &g->plan->layers[i];
    unsigned mask = 0;
    bool fp16 = p->compute == AMPK_COMPUTE_FP16;
    if ((p->ours || p->products) && fp16 && g->nodes[i].bind.n_params > 0)
        mask |= 1u << AMP_WATCH_WEIGHTS;
    bool products = p->products && fp16;
    if (products) mask |= AMP_FP16_STATES;
    if (p->in == AMP_FORMAT_FP16 || products) mask |= 1u << AMP_WATCH_Y | 1u << AMP_WATCH_DY;
    if (p->out == AMP_FORMAT_FP16) mask |= 1u << AMP_WATCH_OUT | 1u << AMP_WATCH_DELTA;
    if (p->copy[AMP_FORMAT_FP16] >= 0) mask |= 1u << AMP_WATCH_COPY;
    if (i == 0 && g->plan->input_copy[AMP_FORMAT_FP16] >= 0) mask |= 1u << AMP_WATCH_INPUT;
    g->fp16[i] = (uint16_t)mask;
}

/* The words, the loss sums and the gradients' square are cleared and read together. */
size_t amp_graph_watch_bytes(const struct amp_graph *g)
{
    return (size_t)g->n * (sizeof *g->watch + sizeof *g->loss_sums) + sizeof *g->grad_square;
}

void amp_graph_clear_watch(struct amp_graph *g)
{
    g->backend->fill_zero(g->context, g->watch, amp_graph_watch_bytes(g));
}

uint32_t *amp_graph_dx_watch(struct amp_graph *g, int layer, int k)
{
    int s = g->plan->layers[layer].sources[k];
    return s < 0 ? NULL : &g->nodes[s].watch[AMP_WATCH_DELTA];
}

/* The convolution whose bias gradient sums the whole delta of this layer. -1: none, or the delta is
 * clipped first, which hides an inf. */
static int summed_by(const struct amp_graph *g, int layer)
{
    int i = g->plan->layers[layer].fused ? layer - 1 : layer;
    if (g->clips_connected && g->net->layers[i].type == AMP_CONNECTED) return -1;
    return g->nodes[i].conv && g->plan->layers[i].backward ? i : -1;
}

uint32_t *amp_graph_conv_dx_watch(struct amp_graph *g, int layer, const struct ampk_tensor *dx)
{
    int s = g->plan->layers[layer].sources[0];
    bool shows = s >= 0 && dx && dx->data == g->nodes[s].delta.data && summed_by(g, s) >= 0;
    return shows && g->backend->watching_costs ? NULL : amp_graph_dx_watch(g, layer, 0);
}

/* Raises the words of deltas that nobody watched (amp_graph_conv_dx_watch). A sum of finite FP16
 * values is finite in FP32, so a sum that is not tells that FP16 refused a value of the delta. In
 * other formats the sum's own word is the fault. */
static void judge_by_sums(const struct amp_graph *g, uint32_t (*watch)[AMP_WATCHES])
{
    for (int i = 0; i < g->n; i++) {
        int by = summed_by(g, i);
        bool fp16 = g->fp16[i] >> AMP_WATCH_DELTA & 1;
        if (!fp16 || by < 0 || ampk_amax_is_finite(watch[by][AMP_WATCH_DBIAS])) continue;
        uint32_t *delta = &watch[i][AMP_WATCH_DELTA];
        if (*delta < AMPK_FP16_OVERFLOW_BITS) *delta = AMPK_FP16_OVERFLOW_BITS;
    }
}

/* Reads the words, and our losses and the gradients' square with them: each transfer waits for the
 * device, so there is only one. NULL: out of memory. */
static uint32_t (*read_watch(struct amp_graph *g))[AMP_WATCHES]
{
    size_t all = amp_graph_watch_bytes(g), words = (size_t)g->n * sizeof *g->watch;
    uint32_t(*host)[AMP_WATCHES] = malloc(all);
    if (!host) return NULL;
    g->backend->read(g->context, host, g->watch, g->own_losses || g->squares ? all : words);
    if (g->own_losses) memcpy(g->losses, host + g->n, (size_t)g->n * sizeof *g->losses);
    if (g->squares) memcpy(&g->squared, (char *)host + all - sizeof g->squared, sizeof g->squared);
    if (g->backend->watching_costs) judge_by_sums(g, host);
    return host;
}

void amp_graph_read_losses(struct amp_graph *g)
{
    if (g->own_losses) free(read_watch(g));
}

const struct ampk_loss_sums *amp_graph_loss(const struct amp_graph *g, int layer)
{
    const struct amp_plan_layer *p = &g->plan->layers[layer];
    return g->own_losses && p->loss && p->ours ? &g->losses[layer] : NULL;
}

struct amp_fault amp_graph_fault(struct amp_graph *g, bool backward)
{
    uint32_t(*watch)[AMP_WATCHES] = read_watch(g);
    /* Without the words nobody can vouch for the gradients, so the pass must not count. */
    if (!watch) return (struct amp_fault){AMP_FAULT_DIVERGED, 0, AMP_WATCHES, 0};
    struct amp_fault fault =
        amp_fault_find((const uint32_t(*)[AMP_WATCHES])watch, g->fp16, g->n, backward);
    if (backward)
        g->largest_gradient =
            amp_largest_gradient((const uint32_t(*)[AMP_WATCHES])watch, g->fp16, g->n);
    free(watch);
    return fault;
}
