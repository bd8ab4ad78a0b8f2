/* Decides for checkpoint=auto which layers backward computes again, so that the activations of a
 * pass fit in a budget, for the least arithmetic. It tries plans and reads their totals; how a plan
 * is made it must not know. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

struct search {
    const struct amp_net_desc *net;
    const struct amp_options *options;
    unsigned ours;
    const enum amp_format *demoted;
    const struct amp_plan *plain; /* nothing recomputed */
    bool *recompute;              /* per layer, of the plan that is tried */
    struct amp_plan *best;        /* NULL: none yet */
};

static double budget(const struct search *s)
{
    return s->options->checkpoint_gib * (1 << 30);
}

/* Bytes that forward leaves for backward. */
static size_t kept_bytes(const struct amp_plan *plan, int i)
{
    size_t bytes = 0;
    for (int kind = AMP_BUFFER_OUT; kind <= AMP_BUFFER_INDEX; kind++) {
        int b = plan->layers[i].buffer[kind];
        if (b >= 0) bytes += plan->buffers[b].bytes;
    }
    return bytes;
}

/* The first `layers` layers, but for one that is kept where a run has so many bytes. A convolution
 * that computes the next layer too is not kept: that layer is smaller. */
static void mark(struct search *s, int layers, size_t run_bytes)
{
    size_t run = 0;
    memset(s->recompute, 0, (size_t)s->net->n * sizeof *s->recompute);
    for (int i = 0; i < layers; i++) {
        const struct amp_plan_layer *p = &s->plain->layers[i];
        run += kept_bytes(s->plain, i);
        s->recompute[i] = p->ours && !p->loss && p->backward;
        if (run < run_bytes || amp_plan_writes(s->plain, i) != i) continue;
        s->recompute[i] = false;
        run = 0;
    }
}

/* Whether plan is better than the best so far: first it must fit, then be cheap, then be small. */
static bool is_better(const struct search *s, const struct amp_plan *plan)
{
    const struct amp_plan *best = s->best;
    if (!best) return true;
    bool fits = (double)plan->mixed_bytes <= budget(s),
         fitted = (double)best->mixed_bytes <= budget(s);
    if (fits != fitted) return fits;
    if (fits && plan->flop_again != best->flop_again) return plan->flop_again < best->flop_again;
    return plan->mixed_bytes < best->mixed_bytes;
}

/* Makes one plan and keeps it if it is the best. 1: it fits; 0: it does not; -1: no memory. */
static int try(struct search *s, int layers, size_t run_bytes, char *err, size_t err_size)
{
    mark(s, layers, run_bytes);
    struct amp_plan *plan = amp_plan_make_with(s->net, s->options, s->ours, s->demoted, true,
                                               s->recompute, err, err_size);
    if (!plan) return -1;
    bool fits = (double)plan->mixed_bytes <= budget(s);
    if (is_better(s, plan)) {
        amp_plan_free(s->best);
        s->best = plan;
    } else {
        amp_plan_free(plan);
    }
    return fits;
}

/* The fewest layers of runs of so many bytes that fit, by halving: the first layers of a net have
 * the largest tensors for the least arithmetic. */
static int search_layers(struct search *s, size_t run_bytes, char *err, size_t err_size)
{
    int low = 0, high = s->net->n; /* low does not fit */
    int found = try(s, high, run_bytes, err, err_size);
    while (found >= 0 && high - low > 1) {
        int middle = (low + high) / 2;
        found = try(s, middle, run_bytes, err, err_size);
        if (found > 0)
            high = middle;
        else
            low = middle;
    }
    return found < 0 ? -1 : 0;
}

struct amp_plan *amp_plan_make(const struct amp_net_desc *net, const struct amp_options *options,
                               unsigned ours, const enum amp_format *demoted, bool train, char *err,
                               size_t err_size)
{
    enum { MOST_RUNS = 64 };
    struct amp_plan *plain =
        amp_plan_make_with(net, options, ours, demoted, train, NULL, err, err_size);
    struct search s = {net, options, ours, demoted, plain, NULL, NULL};
    if (!plain || !train || options->checkpoint_gib == 0 ||
        (double)plain->mixed_bytes <= budget(&s))
        return plain;
    s.recompute = calloc((size_t)net->n, sizeof *s.recompute);
    size_t all = 0;
    for (int i = 0; i < net->n; i++)
        all += kept_bytes(plain, i);
    int failed = s.recompute ? 0 : -1;
    if (failed) snprintf(err, err_size, "out of memory while planning %d layers", net->n);
    for (int runs = 1; !failed && runs <= MOST_RUNS; runs += 1 + runs / 4)
        failed = search_layers(&s, all / (size_t)runs, err, err_size);
    free(s.recompute);
    amp_plan_free(plain);
    if (failed) {
        amp_plan_free(s.best);
        return NULL;
    }
    s.best->over_budget = (double)s.best->mixed_bytes > budget(&s);
    return s.best;
}
