/* The watch words of a pass: which word watches what, and what they say when it has run. */
#include "graph_parts.h"

#include <stdlib.h>
#include <string.h>

void amp_graph_mark_fp16(struct amp_graph *g, int i)
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

size_t amp_graph_watch_bytes(const struct amp_graph *g)
{
    return (size_t)g->n * (sizeof *g->watch + sizeof *g->loss_sums);
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

/* The convolution whose bias gradient is the sum of all of that layer's delta; -1: none, or it is
 * clipped first. */
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
    uint32_t(*host)[AMP_WATCHES] = malloc(amp_graph_watch_bytes(g));
    size_t watch = (size_t)g->n * sizeof *host;
    if (!host) return NULL;
    g->backend->read(g->context, host, g->watch,
                     g->device_losses ? amp_graph_watch_bytes(g) : watch);
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
