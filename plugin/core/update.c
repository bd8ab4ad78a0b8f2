#include "update.h"

#include "graph_parts.h"

bool amp_graph_fuses_update(const struct amp_graph *g)
{
    return g->backend->conv_update_sgd != NULL;
}

void amp_graph_set_due(struct amp_graph *g, int layer)
{
    const struct amp_node *node = &g->nodes[layer];
    for (int k = 0; k < node->bind.n_params; k++)
        g->params[node->bind.first_param + k].due = true;
}

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

/* Those of a convolution: by sums, or by the gradient that it keeps of the step's pass, if it
 * learns and there was one. */
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

/* Lists the parameters that are due, those with Adam's moments or the others. */
static struct due list_due(struct amp_graph *g, const struct amp_update *u, bool adam)
{
    struct due due = {0, 0};
    bool fused = amp_graph_fuses_update(g);
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

/* The masters are about to change. Where the backend updates and packs in one operation, that
 * raises the WEIGHTS words of the next pass, which are cleared for it; else the next pass packs
 * them and raises those words. */
static void watch_update(struct amp_graph *g)
{
    if (!amp_graph_fuses_update(g)) {
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
