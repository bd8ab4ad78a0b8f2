/* Decides which layers backward computes again, and before which layer's backward. It must not know
 * buffers (plan_memory.c, which gives such tensors two short lives instead of a long one), nor who
 * asked for it: a layer's section, or a budget (plan_budget.c).
 *
 * Recomputed layers that follow each other are a run. A run is computed again as a whole, from
 * tensors outside of it, which are kept to the end of the step: backward may be redone, and then
 * the run is computed once more. Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
 */
#include "plan.h"

bool amp_plan_runs_again(const struct amp_plan *plan, int i)
{
    return plan->layers[i].recomputed || (plan->layers[i].fused && plan->layers[i - 1].recomputed);
}

/* Without backward nothing of a layer is kept anyway, and its tensors may be needed by others. */
void amp_plan_mark_recomputed(struct planner *pl)
{
    for (int i = 0; i < pl->plan->n; i++) {
        struct amp_plan_layer *p = &pl->plan->layers[i];
        bool asked = pl->recompute ? pl->recompute[i] : pl->net->layers[i].recompute;
        p->recomputed = asked && p->ours && !p->loss && p->backward;
        if (asked && !p->recomputed && pl->plan->train)
            amp_plan_add_reason(p, "; checkpoint=1 has no effect: it has no backward");
    }
}

/* A fused layer is the work of the convolution before it. */
void amp_plan_find_runs(struct planner *pl)
{
    for (int i = 0; i < pl->plan->n; i++) {
        struct amp_plan_layer *p = &pl->plan->layers[i], *before = p - 1;
        if (p->recomputed && p->fused && !before->recomputed) {
            p->recomputed = false;
            amp_plan_add_reason(p, "; checkpoint=1 has no effect: layer %d has none", i - 1);
        }
        p->run = !p->recomputed ? -1 : i > 0 && before->recomputed ? before->run : i;
        if (p->recomputed) amp_plan_add_reason(p, "; computed again in backward");
    }
}

/* The run in which a layer is computed again. */
static int run_of(const struct amp_plan *plan, int i)
{
    return plan->layers[i].recomputed ? plan->layers[i].run : plan->layers[i - 1].run;
}

bool amp_plan_is_reread(const struct planner *pl, int i, enum amp_format format)
{
    const struct amp_plan *plan = pl->plan;
    int own = i < 0 ? -1 : plan->layers[i].run;
    for (int j = i + 1; j < plan->n; j++)
        for (int k = 0; amp_plan_runs_again(plan, j) && k < pl->net->layers[j].n_sources; k++)
            if (plan->layers[j].sources[k] == i && plan->layers[j].in == format &&
                run_of(plan, j) != own)
                return true;
    /* A slice of this route may be reread, too. */
    for (int k = 0; k < i; k++)
        if (plan->layers[k].route == i && plan->layers[i].out == format &&
            amp_plan_is_reread(pl, k, format))
            return true;
    return false;
}

/* The last layer whose backward reads what layer i of a run computes: itself, or a matrix layer
 * that reads its output. */
static int last_user(const struct planner *pl, int i)
{
    const struct amp_plan *plan = pl->plan;
    int last = i;
    for (int j = i + 1; j < plan->n; j++)
        for (int k = 0; k < pl->net->layers[j].n_sources; k++)
            if (plan->layers[j].sources[k] == i && plan->layers[j].backward &&
                amp_layer_is_matrix(&pl->net->layers[j]))
                last = j;
    return last;
}

void amp_plan_find_again(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    for (int i = 0; i < plan->n; i++)
        plan->layers[i].again = plan->layers[i].again_end = -1;
    for (int first = 0, end; first < plan->n; first = end) {
        int at = first;
        end = first + 1;
        if (!plan->layers[first].recomputed) continue;
        while (end < plan->n && plan->layers[end].run == first)
            end++;
        for (int i = first; i < end; i++)
            if (last_user(pl, i) > at) at = last_user(pl, i);
        plan->layers[at].again = first;
        plan->layers[at].again_end = end;
    }
}
