/* Keeps the gradients of a pass and the sums of a step, and turns them into the update. It decides
 * where each gradient lies, when it is unscaled, and which rule a parameter follows. It must not
 * know whether a pass counts: step.c calls amp_graph_accept_pass only for finite ones.
 *
 * Everything here is FP32: a sum over many images would lose its small terms in 16 bits, and the
 * masters move by steps far below their own rounding in 16 bits. */
#include "graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensors.h"

/* Whether the backend updates and packs the weights of a convolution in one operation (kernels.h,
 * conv_update_sgd), which saves one pass over them. */
static bool fuses_update(const struct amp_graph *g)
{
    return g->backend->conv_update_sgd != NULL;
}

/* Whether the convolution keeps this gradient itself, in a layout of its own. */
static bool is_kept(const struct amp_graph *g, const struct amp_param *p)
{
    return p->kind == AMP_PARAM_WEIGHTS && g->plan->layers[p->layer].ours;
}

/* The weights of a frozen convolution have no gradient. (Its bias has room for one, which the
 * backend computes on the way.) */
static bool has_gradient(const struct amp_graph *g, const struct amp_param *p)
{
    return !(g->plan->layers[p->layer].frozen && is_kept(g, p));
}

/* Floats that a gradient takes, rounded up so that the next one begins where vectors can. The
 * padding stays 0. */
static size_t room_for(const struct amp_param *p)
{
    const size_t vector = 4;
    return (p->n + vector - 1) / vector * vector;
}

static void count_gradients(struct amp_graph *g)
{
    for (const struct amp_param *p = g->params; p < g->params + g->n_params; p++) {
        if (!has_gradient(g, p)) continue;
        g->n_gradients += room_for(p);
        if (!is_kept(g, p)) g->n_flat += room_for(p);
    }
}

/* Floats in `gradients`. It has room for convolutions' weights only if the update must read them
 * there: with sums, or with own_gradients, it does not. */
static size_t gradients_of_pass(const struct amp_graph *g)
{
    return g->sums || g->own_gradients ? g->n_flat : g->n_gradients;
}

void amp_graph_place_gradients(struct amp_graph *g)
{
    size_t flat = 0, kept = g->n_flat;
    for (struct amp_param *p = g->params; p < g->params + g->n_params; p++) {
        if (!has_gradient(g, p)) continue;
        /* Convolutions' weights come last: accept_pass then adds all others in one sweep. */
        size_t *next = is_kept(g, p) ? &kept : &flat;
        bool has_place = g->gradients && *next < gradients_of_pass(g);
        p->sum = g->sums ? g->sums + *next : NULL;
        p->grad = has_place ? g->gradients + *next : NULL;
        *next += room_for(p);
    }
}

int amp_graph_alloc_gradients(struct amp_graph *g, bool accumulate, char *err, size_t err_size)
{
    count_gradients(g);
    if (!g->plan->train || g->n_gradients == 0) return 0;
    size_t all = g->n_gradients * sizeof(float);
    g->own_gradients = !accumulate && fuses_update(g);
    if (accumulate) g->sums = g->backend->alloc(g->context, all);
    size_t of_pass = gradients_of_pass(g) * sizeof(float);
    g->gradients = g->backend->alloc(g->context, of_pass + 1);
    if (!g->gradients || (accumulate && !g->sums)) {
        char what[50];
        snprintf(what, sizeof what, "%.1f MiB of gradients",
                 (double)(accumulate ? all : of_pass) / (1 << 20));
        return amp_graph_no_memory(g, -1, what, err, err_size);
    }
    g->backend->fill_zero(g->context, g->gradients, of_pass);
    if (accumulate) g->backend->fill_zero(g->context, g->sums, all);
    amp_graph_place_gradients(g);
    return 0;
}

/* Only convolutions that learn. */
void amp_graph_list_weight_gradients(struct amp_graph *g)
{
    g->n_learning = 0;
    for (int i = g->plan->first_backward; i < g->n && g->gradients; i++) {
        struct amp_node *node = &g->nodes[i];
        if (!node->conv || !node->plan->backward || node->plan->frozen) continue;
        const struct amp_param *p = node->weights;
        int k = g->n_learning++;
        g->of_pass[k] =
            (struct ampk_weight_gradient){node->conv, p->grad, &node->watch[AMP_WATCH_DW]};
        g->of_step[k] = (struct ampk_weight_gradient){node->conv, p->sum, NULL};
        node->gradient = &g->of_pass[k];
    }
}

void amp_graph_begin_step(struct amp_graph *g)
{
    /* Convolutions' sums are not zeroed here: the first accepted pass overwrites them. */
    g->has_accepted_pass = false;
    if (g->sums) g->backend->fill_zero(g->context, g->sums, g->n_flat * sizeof(float));
}

void amp_graph_accept_pass(struct amp_graph *g, float scale)
{
    float unscale = 1 / scale; /* exact, since the scale is a power of two */
    if (g->sums) {
        g->backend->accumulate(g->context, g->gradients, g->n_flat, unscale, g->sums);
        g->backend->conv_weight_gradients(g->context, g->of_step, g->n_learning, unscale,
                                          g->has_accepted_pass);
    } else {
        /* One pass per step: the update multiplies by this, so nothing is copied. */
        g->unscale = unscale;
    }
    g->has_accepted_pass = true;
}

void amp_graph_clear_gradients(struct amp_graph *g)
{
    float *read = g->sums ? g->sums : g->gradients;
    size_t n = g->sums ? g->n_gradients : gradients_of_pass(g);
    if (read) g->backend->fill_zero(g->context, read, n * sizeof(float));
    g->has_accepted_pass = false;
}

/* Allocates room for the largest gradient that a convolution keeps; false without memory. Only a
 * log asks for the norm, so nobody else pays for this. */
static bool make_norm_room(struct amp_graph *g)
{
    size_t most = 1;
    for (int i = 0; i < g->n; i++)
        if (g->nodes[i].gradient && g->nodes[i].weights->n > most) most = g->nodes[i].weights->n;
    if (!g->norm_room) g->norm_room = g->backend->alloc(g->context, most * sizeof *g->norm_room);
    return g->norm_room != NULL;
}

/* Appends to grad_square, after its first element, the square sum of every gradient that a
 * convolution keeps. Returns how many. */
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
    bool reads_own = g->own_gradients && g->has_accepted_pass;
    *norm = g->n_gradients ? NAN : 0;
    if (!g->n_gradients) return true;
    if (reads_own && !make_norm_room(g)) return false;
    g->backend->sum_squares(g->context, g->sums ? g->sums : g->gradients,
                            g->sums ? g->n_gradients : gradients_of_pass(g), g->grad_square);
    if (reads_own) own = sum_own_gradients(g);
    float *squares = calloc((size_t)own + 1, sizeof *squares);
    if (!squares) return false;
    g->backend->read(g->context, squares, g->grad_square, ((size_t)own + 1) * sizeof *squares);
    /* Summed in double on the host: few numbers, of very different size. */
    double square = 0;
    for (int i = 0; i <= own; i++)
        square += squares[i];
    free(squares);
    *norm = sqrt(square) * (double)g->unscale;
    return true;
}

/* ---- update ---- */

void amp_graph_set_due(struct amp_graph *g, int layer)
{
    const struct amp_node *node = &g->nodes[layer];
    for (int k = 0; k < node->bind.n_params; k++)
        g->params[node->bind.first_param + k].due = true;
}

/* Darknet's rules: SGD divides the rate by the batch, Adam does not; SGD decays weights only, Adam
 * biases and scales too. */
static struct ampk_param rule_of(const struct amp_graph *g, const struct amp_param *p,
                                 const struct amp_update *u, bool adam)
{
    float rate = u->learning_rate * p->learning_rate_scale, batch = (float)u->batch;
    bool decays = adam || p->kind == AMP_PARAM_WEIGHTS;
    return (struct ampk_param){.value = p->value,
                               .update = p->update,
                               .m = p->m,
                               .v = p->v,
                               .grad = p->sum ? p->sum : p->grad,
                               .n = p->n,
                               .unscale = g->unscale,
                               .rate = adam ? rate : rate / batch,
                               .decay_batch = decays ? u->decay * batch : 0,
                               .clip = p->clip};
}

/* The update of a convolution's weights, from its sum or from the gradient that it keeps of the
 * only pass. Without an accepted pass that gradient is stale: factor 0. */
static struct ampk_weight_update update_of(const struct amp_graph *g, const struct amp_param *p,
                                           struct ampk_param rule)
{
    const struct amp_node *node = &g->nodes[p->layer];
    if (!rule.grad && !(g->has_accepted_pass && node->gradient)) rule.unscale = 0;
    return (struct ampk_weight_update){node->conv, rule, &node->watch[AMP_WATCH_WEIGHTS]};
}

struct due {
    int params, convs; /* in updates, in conv_updates */
};

/* Lists the marked parameters with Adam's moments (adam), or the others. */
static struct due list_due(struct amp_graph *g, const struct amp_update *u, bool adam)
{
    struct due due = {0, 0};
    bool fused = fuses_update(g);
    for (const struct amp_param *p = g->params; p < g->params + g->n_params; p++) {
        if (!p->due || (u->adam && p->m) != adam) continue;
        struct ampk_param rule = rule_of(g, p, u, adam);
        if (fused && p->kind == AMP_PARAM_WEIGHTS && g->nodes[p->layer].conv)
            g->conv_updates[due.convs++] = update_of(g, p, rule);
        else
            g->updates[due.params++] = rule;
    }
    return due;
}

/* Call before the masters change. If the backend packs while it updates, the update raises the
 * WEIGHTS words of the next pass, so they are cleared now; else the next pass packs the weights and
 * raises them. */
static void watch_update(struct amp_graph *g)
{
    if (!fuses_update(g)) {
        amp_graph_weights_changed(g);
        return;
    }
    amp_graph_clear_watch(g);
    g->watch_begun = true;
}

void amp_graph_update(struct amp_graph *g, const struct amp_update *u)
{
    const struct ampk_backend *be = g->backend;
    watch_update(g);
    /* Two rounds, since both lists share their memory. */
    struct due due = list_due(g, u, true);
    if (due.params) be->update_adam(g->context, g->updates, due.params, u->b1, u->b2, u->eps, u->t);
    if (due.convs)
        be->conv_update_adam(g->context, g->conv_updates, due.convs, u->b1, u->b2, u->eps, u->t);
    due = list_due(g, u, false);
    if (due.params) be->update_sgd(g->context, g->updates, due.params, u->momentum);
    if (due.convs) be->conv_update_sgd(g->context, g->conv_updates, due.convs, u->momentum);
    for (int i = 0; i < g->n_params; i++)
        g->params[i].due = false;
}
