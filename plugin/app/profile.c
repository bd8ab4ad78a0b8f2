#include "profile.h"

#include <math.h>

/* ---- counting ---- */

static double inputs_of(const struct amp_profile *p, int i)
{
    const struct amp_layer_desc *l = &p->net->layers[i];
    double n = 0;
    for (int k = 0; k < l->n_sources; ++k)
        n += l->sources[k] < 0 ? p->net->inputs : p->net->layers[l->sources[k]].outputs;
    return n;
}

/* Of a route's inputs, those that are not its sources' own slices of it. */
static double copied_of(const struct amp_profile *p, int i, bool delta)
{
    const struct amp_plan_layer *plan = p->plan->layers;
    double n = inputs_of(p, i);
    for (int s = 0; s < i; ++s)
        if (plan[s].route == i && (plan[s].delta_slice || !delta)) n -= p->net->layers[s].outputs;
    return n;
}

static double outputs_of(const struct amp_profile *p, int i, enum amp_profile_way way)
{
    size_t bytes = way == AMP_PROFILE_MIXED ? amp_format_bytes(p->plan->layers[i].out) : 4;
    return (double)bytes * p->net->layers[i].outputs * p->net->batch;
}

/* Backward reads what forward read and wrote and the delta; it writes the source's delta. A fused
 * layer is the convolution's before it, but for a delta that it does not share. */
static void count_bytes(const struct amp_profile *p, int i, enum amp_profile_way way)
{
    double *bytes = p->layers[i].bytes[way];
    const struct amp_layer_desc *l = &p->net->layers[i];
    const struct amp_plan_layer *plan = &p->plan->layers[i];
    bool mixed = way == AMP_PROFILE_MIXED;
    double in = (mixed ? (double)amp_format_bytes(plan->in) : 4) * inputs_of(p, i) * p->net->batch;
    double out = outputs_of(p, i, way);
    double weights = (mixed ? (double)amp_format_bytes(plan->in) : 4) * (double)l->n_weights;
    double known = mixed || !p->no_fp32 ? 1 : NAN;
    if (mixed && plan->fused) {
        bool passes_on = plan->backward && l->type == AMP_SHORTCUT &&
                         p->plan->layers[plan->sources[1]].delta_owner != plan->delta_owner;
        bytes[AMP_PROFILE_FORWARD] = 0;
        bytes[AMP_PROFILE_BACKWARD] = passes_on ? 2 * out : 0;
        return;
    }
    if (mixed && plan->ours && l->type == AMP_ROUTE) {
        double one = (double)amp_format_bytes(plan->in) * p->net->batch;
        bytes[AMP_PROFILE_FORWARD] = 2 * one * copied_of(p, i, false);
        bytes[AMP_PROFILE_BACKWARD] = plan->backward ? 4 * one * copied_of(p, i, true) : 0;
        return;
    }
    int written = mixed ? amp_plan_writes(p->plan, i) : i;
    double delta = outputs_of(p, written, way);
    double fused = written != i ? delta : 0; /* residual or maxima */
    bytes[AMP_PROFILE_FORWARD] = known * (in + out + weights + fused);
    bytes[AMP_PROFILE_BACKWARD] =
        known * (plan->backward ? 2 * in + out + delta + weights + 4 * (double)l->n_weights : 0);
}

void amp_profile_count(struct amp_profile *p)
{
    for (int i = 0; i < p->net->n; ++i) {
        const struct amp_layer_desc *l = &p->net->layers[i];
        double flop = l->forward_flop * p->net->batch;
        bool wanted = false; /* a source wants its delta */
        for (int k = 0; k < l->n_sources; ++k)
            wanted = wanted || p->plan->layers[i].source_wanted[k];
        p->layers[i].flop[AMP_PROFILE_FORWARD] = flop;
        p->layers[i].flop[AMP_PROFILE_BACKWARD] =
            p->plan->layers[i].backward ? (wanted ? 2 : 1) * flop : 0;
        count_bytes(p, i, AMP_PROFILE_FP32);
        count_bytes(p, i, AMP_PROFILE_MIXED);
    }
}

/* ---- sums ---- */

void amp_profile_add(struct amp_profile_layer *sum, const struct amp_profile_layer *x)
{
    for (int pass = 0; pass < AMP_PROFILE_PASSES; ++pass) {
        sum->flop[pass] += x->flop[pass];
        for (int way = 0; way < AMP_PROFILE_WAYS; ++way) {
            sum->seconds[way][pass] += x->seconds[way][pass];
            sum->bytes[way][pass] += x->bytes[way][pass];
        }
    }
}

const char *amp_profile_unit(const struct amp_net_desc *net)
{
    return net->time_steps > 1 ? "inputs (sequences x time_steps)" : "images";
}

struct amp_profile_layer amp_profile_total(const struct amp_profile *p)
{
    struct amp_profile_layer sum = p->other;
    for (int i = 0; i < p->net->n; ++i)
        amp_profile_add(&sum, &p->layers[i]);
    return sum;
}

double amp_profile_both(const double passes[AMP_PROFILE_PASSES])
{
    return passes[AMP_PROFILE_FORWARD] + passes[AMP_PROFILE_BACKWARD];
}

double amp_profile_over(double a, double b)
{
    return b > 0 ? a / b : NAN;
}
