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
 * conv_update), which saves one pass over them. */
static bool fuses_update(const struct amp_graph *g)
{
    return g->backend->conv_update != NULL;
}

/* Whether a convolution keeps its gradient where the update reads it. */
static bool lends_gradients(const struct amp_graph *g)
{
    return g->backend->conv_keep_gradient != NULL;
}

/* Whether this gradient is a convolution's, which may have a layout of its own for it. */
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

/* Floats in `gradients`. It has room for convolutions' weights only if these keep them there, or if
 * the update must read them there: with sums, or with own_gradients, it does not. */
static size_t gradients_of_pass(const struct amp_graph *g)
{
    bool elsewhere = (g->sums && !lends_gradients(g)) || g->own_gradients;
    return elsewhere ? g->n_flat : g->n_gradients;
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
    g->squared = NAN;
    if (!g->plan->train || g->n_gradients == 0) return 0;
    size_t all = g->n_gradients * sizeof(float);
    const struct amp_rules *rules = &g->plan->rules;
    g->own_gradients = !accumulate && fuses_update(g) && !amp_rules_use_trust(rules);
    if (accumulate) g->sums = g->backend->alloc(g->context, all);
    size_t of_pass = gradients_of_pass(g) * sizeof(float);
    g->gradients = g->backend->alloc(g->context, of_pass + 1);
    size_t trust = (size_t)g->n_params * sizeof(float);
    if (amp_rules_use_trust(rules)) g->trust = g->backend->alloc(g->context, trust);
    if (!g->gradients || (accumulate && !g->sums) || (amp_rules_use_trust(rules) && !g->trust)) {
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
        bool lends = lends_gradients(g);
        g->of_pass[k] = (struct ampk_weight_gradient){node->conv, lends ? NULL : p->grad,
                                                      &node->watch[AMP_WATCH_DW]};
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

/* ---- the norm ---- */

/* With sums, what they would be with this pass is squared: the number comes with the words, before
 * it is known whether the pass counts. */
static void watch_and_square(struct amp_graph *g)
{
    const struct ampk_gradient_squares squares = {.others = g->gradients,
                                                  .n = g->n_flat,
                                                  .sums = g->sums ? g->of_step : NULL,
                                                  .others_sum = g->sums,
                                                  .factor = 1 / g->scale,
                                                  .accumulate = g->has_accepted_pass,
                                                  .square = g->grad_square};
    g->backend->conv_gradient_squares(g->context, g->of_pass, g->n_learning, &squares);
}

void amp_graph_compute_weight_gradients(struct amp_graph *g)
{
    if (g->squares)
        watch_and_square(g);
    else
        g->backend->conv_weight_gradients(g->context, g->of_pass, g->n_learning, 1, false);
}

void amp_graph_square_gradients(struct amp_graph *g, bool on)
{
    g->squares = on && g->gradients && g->backend->conv_gradient_squares;
    g->squared = NAN;
}

static double norm_of(struct amp_graph *g, const float *gradients)
{
    float square;
    g->backend->sum_squares(g->context, gradients, g->n_gradients, g->grad_square);
    g->backend->read(g->context, &square, g->grad_square, sizeof square);
    return sqrt((double)square);
}

double amp_graph_sums_norm(struct amp_graph *g)
{
    return norm_of(g, g->sums);
}

double amp_graph_grad_norm(struct amp_graph *g)
{
    if (!g->n_gradients) return 0;
    double norm = g->squares || g->own_gradients
                      ? g->has_accepted_pass ? sqrt((double)g->squared) : 0
                      : norm_of(g, g->sums ? g->sums : g->gradients);
    return norm * (double)g->unscale;
}

/* ---- update ---- */

void amp_graph_set_due(struct amp_graph *g, int layer)
{
    const struct amp_node *node = &g->nodes[layer];
    for (int k = 0; k < node->bind.n_params; k++)
        g->params[node->bind.first_param + k].due = true;
}

/* Whether the gradients that the rule takes are sums over the images, as Darknet's, or means. */
static bool takes_sums(enum ampk_optimizer optimizer)
{
    return optimizer == AMPK_SGD || optimizer == AMPK_ADAM;
}

/* Darknet makes no Adam moments for [local], so its Adam updates that by SGD. */
static enum ampk_optimizer optimizer_of(const struct amp_graph *g, const struct amp_param *p,
                                        const struct amp_update *u)
{
    switch (g->plan->rules.optimizer) {
    case AMP_OPTIMIZER_ADAMW:
    case AMP_OPTIMIZER_LAMB:
        return AMPK_ADAMW;
    case AMP_OPTIMIZER_LARS:
        return AMPK_LARS;
    default:
        return p->m && (u->adam || amp_rules_keep_moments(&g->plan->rules)) ? AMPK_ADAM : AMPK_SGD;
    }
}

/* Darknet's SGD decays weights only, its Adam biases and scales too; ours do as SGD. */
static bool decays(const struct amp_graph *g, const struct amp_param *p,
                   enum ampk_optimizer optimizer)
{
    int others = g->plan->rules.decay_bn;
    if (p->kind == AMP_PARAM_WEIGHTS) return true;
    return others < 0 ? optimizer == AMPK_ADAM : others > 0;
}

static enum amp_average_move move_of_averages(const struct amp_graph *g, const struct amp_update *u)
{
    const struct amp_rules *rules = &g->plan->rules;
    if (rules->ema_alpha == 0 || !g->counts) return AMP_AVERAGE_RESTS;
    return amp_rules_average_move(rules, g->counts->averaged, u->iteration);
}

/* factor: of clip_grad_norm. Darknet's SGD divides the rate by the batch, its Adam does not. */
static struct ampk_param param_of(struct amp_graph *g, const struct amp_param *p,
                                  const struct amp_update *u, enum ampk_optimizer optimizer,
                                  float factor)
{
    float rate = u->learning_rate * p->learning_rate_scale, batch = (float)u->batch;
    float decay = decays(g, p, optimizer) ? u->decay : 0;
    bool sums = takes_sums(optimizer);
    bool trust = g->trust && p->kind == AMP_PARAM_WEIGHTS;
    bool follows = move_of_averages(g, u) == AMP_AVERAGE_FOLLOWS;
    return (struct ampk_param){.value = p->value,
                               .update = p->update,
                               .m = p->m,
                               .v = p->v,
                               .average = follows ? p->average : NULL,
                               .grad = p->sum ? p->sum : p->grad,
                               .n = p->n,
                               .unscale = g->unscale * (sums ? factor : factor / batch),
                               .rate = optimizer == AMPK_SGD ? rate / batch : rate,
                               .decay = sums ? decay * batch : decay,
                               .clip = p->clip,
                               .trust = trust ? g->trust + (p - g->params) : NULL};
}

static struct ampk_rule rule_of(const struct amp_graph *g, const struct amp_update *u)
{
    struct ampk_rule rule = {
        .momentum = u->momentum, .b1 = u->b1, .b2 = u->b2, .eps = u->eps, .t = u->t};
    if (move_of_averages(g, u) == AMP_AVERAGE_FOLLOWS)
        rule.average_rest = (float)amp_rules_average_rest(&g->plan->rules, g->counts->averaged + 1);
    return rule;
}

static float clip_factor(struct amp_graph *g, const struct amp_update *u)
{
    double factor = amp_rules_clip_factor(&g->plan->rules, u->grad_norm / u->batch);
    if (factor < 1 && g->counts) g->counts->clipped++;
    return (float)factor;
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

/* Lists the marked parameters that this optimizer updates. */
static int list_due(struct amp_graph *g, const struct amp_update *u, enum ampk_optimizer optimizer,
                    float factor)
{
    int n = 0;
    for (const struct amp_param *p = g->params; p < g->params + g->n_params; p++)
        if (p->due && optimizer_of(g, p, u) == optimizer) {
            g->due[n] = p;
            g->updates[n++] = param_of(g, p, u, optimizer, factor);
        }
    return n;
}

/* Moves what the backend updates and packs at once to conv_updates; returns how many. */
static int take_convs(struct amp_graph *g, int *n)
{
    int convs = 0, others = 0;
    for (int i = 0; i < *n; i++) {
        const struct amp_param *p = g->due[i];
        bool packed = p->kind == AMP_PARAM_WEIGHTS && g->nodes[p->layer].conv;
        if (fuses_update(g) && packed)
            g->conv_updates[convs++] = update_of(g, p, g->updates[i]);
        else
            g->updates[others++] = g->updates[i];
    }
    *n = others;
    return convs;
}

/* Updates what is marked and has this optimizer. */
static void update_by(struct amp_graph *g, const struct amp_update *u, struct ampk_rule rule,
                      enum ampk_optimizer optimizer, float factor)
{
    const struct ampk_backend *be = g->backend;
    double limit = g->plan->rules.clip_value;
    int n = list_due(g, u, optimizer, factor);
    rule.optimizer = optimizer;
    rule.limit = (float)(takes_sums(optimizer) ? limit * u->batch : limit);
    if (n && g->trust) be->trust_ratios(g->context, &rule, g->updates, n);
    int convs = take_convs(g, &n);
    if (n) be->update(g->context, &rule, g->updates, n);
    if (convs) be->conv_update(g->context, &rule, g->conv_updates, convs);
}

/* Running statistics moved in forward; now it is known that the step counts. */
static void average_statistics(struct amp_graph *g, float rest)
{
    int n = 0;
    g->counts->averaged++;
    for (const struct amp_rolling *r = g->rolling; r < g->rolling + g->n_rolling; r++)
        if (r->average) g->copies[n++] = (struct ampk_span){r->average, r->value, r->n};
    if (n) g->backend->average_many(g->context, g->copies, n, rest);
}

/* All averages become the weights, or all weights the averages. */
static void copy_averages(struct amp_graph *g, bool to_weights)
{
    for (const struct amp_param *p = g->params; p < g->params + g->n_params; p++) {
        struct ampk_span begun = {p->average, p->value, p->n}, taken = {p->value, p->average, p->n};
        g->backend->copy_many(g->context, to_weights ? &taken : &begun, 1);
    }
    g->counts->averaged = to_weights ? 0 : 1;
    if (to_weights) amp_graph_weights_changed(g);
}

/* After the weights. */
static void move_averages(struct amp_graph *g, enum amp_average_move move, float rest)
{
    switch (move) {
    case AMP_AVERAGE_RESTS:
        if (g->counts) g->counts->averaged = 0;
        break;
    case AMP_AVERAGE_FOLLOWS:
        average_statistics(g, rest);
        break;
    case AMP_AVERAGE_BEGINS:
    case AMP_AVERAGE_REPLACES:
        copy_averages(g, move == AMP_AVERAGE_REPLACES);
        break;
    }
}

/* Call before the masters change. If the backend packs while it updates, the update raises the
 * WEIGHTS words of the next pass, so they are cleared now; else the next pass packs the weights and
 * raises them. */
static void watch_update(struct amp_graph *g)
{
    if (!fuses_update(g) || g->multiplies) {
        amp_graph_weights_changed(g);
        return;
    }
    amp_graph_clear_watch(g);
    g->watch_begun = true;
}

void amp_graph_update(struct amp_graph *g, const struct amp_update *u)
{
    amp_graph_begin_range(g, "update");
    watch_update(g);
    enum amp_average_move move = move_of_averages(g, u);
    struct ampk_rule rule = rule_of(g, u);
    float factor = clip_factor(g, u);
    for (int optimizer = AMPK_SGD; optimizer <= AMPK_ADAMW; optimizer++)
        update_by(g, u, rule, (enum ampk_optimizer)optimizer, factor);
    move_averages(g, move, rule.average_rest);
    for (int i = 0; i < g->n_params; i++)
        g->params[i].due = false;
    amp_graph_end_range(g);
}
