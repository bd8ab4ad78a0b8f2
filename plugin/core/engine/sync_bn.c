/* Decides what of batch-norm processes send each other, and what they make of it. It must not know
 * how bytes travel, nor which processes there are. */
#include "sync_bn.h"

#include <stdio.h>
#include <stdlib.h>

#include "tensors.h"

struct amp_sync_bn {
    struct amp_bn_peers peers;
    struct ampk_bn_peers kernels; /* the same for kernels */
    double *sums;                 /* room for two arrays of the most channels of a layer */
    float *host;                  /* for four */
    float *rolling;               /* backend memory, for two: see amp_sync_own_statistics */
};

/* Replaces n floats, backend memory, by their means over all processes. */
static void means(void *user, float *x, size_t n)
{
    struct amp_graph *g = user;
    const struct amp_sync_bn *sync = g->sync;
    g->backend->read(g->context, sync->host, x, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        sync->sums[i] = sync->host[i];
    sync->peers.add(sync->peers.user, sync->sums, n);
    for (size_t i = 0; i < n; i++)
        sync->host[i] = (float)(sync->sums[i] / sync->peers.count);
    g->backend->write(g->context, x, sync->host, n * sizeof *x);
}

static size_t most_channels(const struct amp_graph *g)
{
    size_t most = 1;
    for (int i = 0; i < g->n_rolling; i++)
        if (g->rolling[i].n > most) most = g->rolling[i].n;
    return most;
}

int amp_graph_sync_batchnorm(struct amp_graph *g, const struct amp_bn_peers *peers, char *err,
                             size_t err_size)
{
    size_t most = most_channels(g);
    g->sync = calloc(1, sizeof *g->sync);
    if (g->sync) {
        g->sync->peers = *peers;
        g->sync->kernels = (struct ampk_bn_peers){means, g};
        g->sync->sums = malloc(2 * most * sizeof *g->sync->sums);
        g->sync->host = malloc(4 * most * sizeof *g->sync->host);
        g->sync->rolling = g->backend->alloc(g->context, 2 * most * sizeof *g->sync->rolling);
        if (g->sync->sums && g->sync->host && g->sync->rolling) return 0;
    }
    return amp_graph_no_memory(g, -1, "what amp_sync_bn exchanges", err, err_size);
}

void amp_sync_free(struct amp_graph *g)
{
    if (!g->sync) return;
    g->backend->free(g->context, g->sync->rolling);
    free(g->sync->sums);
    free(g->sync->host);
    free(g->sync);
}

/* The running statistics are the shift of the sums; they move later, by those of all. */
struct ampk_bn_statistics amp_sync_own_statistics(struct amp_graph *g, int layer)
{
    struct amp_node *node = &g->nodes[layer];
    size_t c = (size_t)node->y.c;
    float *rolling = g->sync->rolling;
    const struct ampk_span copies[] = {{rolling, node->bind.rolling_mean, c},
                                       {rolling + c, node->bind.rolling_variance, c}};
    g->backend->copy_many(g->context, copies, 2);
    return (struct ampk_bn_statistics){.mean = node->mean,
                                       .variance = node->variance,
                                       .rolling_mean = rolling,
                                       .rolling_variance = rolling + c,
                                       .rule = g->bn_rule};
}

/* A layer's mean, variance, rolling mean and rolling variance: to the host, or back. */
static void move(struct amp_graph *g, struct amp_node *node, bool back)
{
    size_t c = (size_t)node->y.c, bytes = c * sizeof(float);
    float *there[] = {node->mean, node->variance, node->bind.rolling_mean,
                      node->bind.rolling_variance};
    for (size_t k = 0; k < 4; k++)
        if (back)
            g->backend->write(g->context, there[k], g->sync->host + k * c, bytes);
        else
            g->backend->read(g->context, g->sync->host + k * c, there[k], bytes);
}

static float roll(float rolling, float batch)
{
    return .99f * rolling + .01f * batch;
}

/* Of one channel, from the sums of its values and of their squares, `count` of all processes.
 * to: its mean; the other three follow c floats apart each. */
static void finish(float *to, size_t c, double count, double sum, double squares,
                   enum ampk_bn_rule rule)
{
    double mean = sum / count, spread = squares - count * mean * mean;
    if (spread < 0) spread = 0;
    float unbiased = (float)(spread / (count - 1));
    to[0] = (float)mean;
    to[c] = rule == AMPK_BN_CUDNN ? (float)(spread / count) : unbiased;
    to[2 * c] = roll(to[2 * c], to[0]);
    to[3 * c] = roll(to[3 * c], unbiased);
}

void amp_sync_statistics(struct amp_graph *g, int layer)
{
    struct amp_node *node = &g->nodes[layer];
    const struct amp_sync_bn *sync = g->sync;
    size_t c = (size_t)node->y.c;
    double own = (double)node->y.n * node->y.h * node->y.w, all = own * sync->peers.count;
    double *sums = sync->sums, divisor = g->bn_rule == AMPK_BN_CUDNN ? own : own - 1;
    move(g, node, false);
    for (size_t k = 0; k < c; k++) {
        double mean = sync->host[k], variance = sync->host[c + k];
        sums[k] = own * mean;
        sums[c + k] = variance * divisor + own * mean * mean;
    }
    sync->peers.add(sync->peers.user, sums, 2 * c);
    for (size_t k = 0; k < c; k++)
        finish(sync->host + k, c, all, sums[k], sums[c + k], g->bn_rule);
    move(g, node, true);
    uint32_t *word = &node->watch[AMP_WATCH_ROLLING];
    g->backend->amax(g->context, node->bind.rolling_mean, c, word);
    g->backend->amax(g->context, node->bind.rolling_variance, c, word);
}

const struct ampk_bn_peers *amp_sync_peers(const struct amp_graph *g)
{
    return g->sync ? &g->sync->kernels : NULL;
}
