/* Decides which layers share memory and work: residual sums and pools that the convolution before
 * them computes, and slices of concatenations. It must not know buffers or lifetimes
 * (plan_memory.c), nor whether a backend has a faster kernel for it: executors ask that. */
#include "plan.h"

#include <stdarg.h>
#include <string.h>

void amp_plan_add_reason(struct amp_plan_layer *p, const char *format, ...)
{
    size_t used = strlen(p->reason);
    va_list args;
    va_start(args, format);
    vsnprintf(p->reason + used, sizeof p->reason - used, format, args);
    va_end(args);
}

/* ---- layers that the convolution before them computes: residual sums, pools ---- */

/* How many sources of later layers layer i is. */
static int readers(const struct amp_plan *plan, const struct amp_net_desc *net, int i)
{
    int count = 0;
    for (int j = i + 1; j < plan->n; j++)
        for (int k = 0; k < net->layers[j].n_sources; k++)
            count += plan->layers[j].sources[k] == i;
    return count;
}

static bool is_same_shape(const struct amp_layer_desc *a, const struct amp_layer_desc *b)
{
    return a->outputs == b->outputs && a->out_w == b->out_w && a->out_h == b->out_h &&
           a->out_c == b->out_c;
}

/* A convolution's delta can be processed where it is written. A connected layer's delta may have to
 * be clipped first (layers_conv.c). */
static bool shares_delta(const struct amp_layer_desc *l)
{
    return amp_layer_is_matrix(l) && l->type != AMP_CONNECTED;
}

/* Whether the layer before j could compute j as well: j is its only reader, it normalizes, it needs
 * no stored output for its own gradient (most frozen ones do), and the formats agree. */
static bool can_go_on(const struct planner *pl, int j)
{
    const struct amp_plan_layer *p = &pl->plan->layers[j], *writer = p - 1;
    const struct amp_layer_desc *before = &pl->net->layers[j - 1];
    return p->ours && p->sources[0] == j - 1 && shares_delta(before) && writer->ours &&
           before->batch_normalize && ampk_recomputes_input(before->activation) &&
           readers(pl->plan, pl->net, j - 1) == 1 && writer->in == p->in && writer->out == p->in &&
           writer->backward == p->backward && !(writer->frozen && writer->backward);
}

/* Whether layer j is a plain sum: factors of 1, no activation, equal shapes. */
static bool is_plain_sum(const struct planner *pl, int j)
{
    const struct amp_layer_desc *l = &pl->net->layers[j];
    int added = l->type == AMP_SHORTCUT ? pl->plan->layers[j].sources[1] : -1;
    return added >= 0 && l->activation == AMPK_LINEAR && l->alpha == 1 && l->beta == 1 &&
           is_same_shape(&pl->net->layers[added], l);
}

/* Whether j pools windows of 2 x 2 by 2 from the corner on, as most nets do, behind an activation
 * of two slopes. Other windows overlap or begin outside of the image; the tensors there are small.
 * Other activations cost too much to be computed for every value of a window again. */
static bool is_halving(const struct planner *pl, int j)
{
    const struct amp_layer_desc *l = &pl->net->layers[j];
    return l->type == AMP_MAXPOOL && l->size == 2 && l->stride == 2 &&
           (l->pad == 0 || l->pad == 1) && ampk_is_two_slopes(pl->net->layers[j - 1].activation);
}

/* The layer whose buffer holds the delta of sum j. Both terms of a sum have its delta: the
 * convolution always, the other term if no other reader has contributed to its delta before. */
static int find_delta_owner(const struct planner *pl, int j)
{
    const struct amp_plan_layer *p = &pl->plan->layers[j];
    /* Another reader's contribution would be lost if the sum's delta replaced it. */
    if (!p->source_wanted[1] || !p->source_first[1]) return j - 1;
    const struct amp_plan_layer *added = &pl->plan->layers[p->sources[1]];
    return added->ours && added->out == p->out ? added->delta_owner : j - 1;
}

static void fuse(struct planner *pl, int j, const char *how)
{
    struct amp_plan_layer *p = &pl->plan->layers[j];
    p->fused = true;
    amp_plan_add_reason(p, "; %s by layer %d as it writes its output", how, j - 1);
}

void amp_plan_fuse_layers(struct planner *pl)
{
    struct amp_plan_layer *layers = pl->plan->layers;
    for (int j = 0; j < pl->plan->n; j++) {
        layers[j].delta_owner = j;
        if (j == 0 || !can_go_on(pl, j)) continue;
        if (is_plain_sum(pl, j)) {
            fuse(pl, j, "added");
            if (layers[j - 1].backward)
                layers[j].delta_owner = layers[j - 1].delta_owner = find_delta_owner(pl, j);
        } else if (is_halving(pl, j)) {
            fuse(pl, j, "pooled");
            /* Batch-norm's backward scatters the pool's delta on the fly. */
            layers[j - 1].delta_owner = -1;
        }
    }
}

/* ---- slices of concatenations ---- */

/* Whether layer i can write its output with gaps between pixels: the backend's operations for these
 * types take a pitch. A fused layer writes elsewhere already. */
static bool can_be_slice(const struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    if (pl->plan->layers[i].fused || amp_plan_writes(pl->plan, i) != i) return false;
    switch (l->type) {
    case AMP_CONVOLUTIONAL:
    case AMP_DECONVOLUTIONAL:
        return l->batch_normalize;
    case AMP_REORG:
        return !l->extra;
    case AMP_MAXPOOL:
    case AMP_UPSAMPLE:
        return true;
    default:
        return false;
    }
}

/* Whether route j only passes on its source, and is that source's last reader. Both have one output
 * and one delta then: in backward the route's readers contribute first, and what the source's other
 * readers add later comes to the same sums in the same order. */
static bool is_alias(const struct planner *pl, int j)
{
    if (pl->net->layers[j].n_sources != 1 || pl->net->layers[j].groups > 1) return false;
    for (int i = j + 1; i < pl->plan->n; i++)
        for (int k = 0; k < pl->net->layers[i].n_sources; k++)
            if (pl->plan->layers[i].sources[k] == pl->plan->layers[j].sources[0]) return false;
    return true;
}

static bool is_slice(const struct planner *pl, int j, int source)
{
    const struct amp_layer_desc *l = &pl->net->layers[j];
    const struct amp_plan_layer *p = &pl->plan->layers[j];
    if (source < 0 || !can_be_slice(pl, source)) return false;
    if (l->groups > 1) return false; /* it reads a part of what the source writes */
    /* For a second reader the tensor has to be dense. */
    if (readers(pl->plan, pl->net, source) != 1 && !is_alias(pl, j)) return false;
    const struct amp_layer_desc *from = &pl->net->layers[source];
    const struct amp_plan_layer *writer = &pl->plan->layers[source];
    /* Recomputed, it would write where the route's output may be gone. */
    return writer->run == p->run && writer->ours && writer->in == p->in && writer->out == p->in &&
           p->out == p->in && l->out_c > 0 && from->out_w == l->out_w && from->out_h == l->out_h;
}

/* A layer that only a concatenation of channels reads writes straight into it, and its delta is
 * read there; so does the source of a route that only passes it on. */
void amp_plan_find_slices(struct planner *pl)
{
    struct amp_plan_layer *layers = pl->plan->layers;
    for (int j = 0; j < pl->plan->n; j++) {
        layers[j].route = -1;
        if (pl->net->layers[j].type != AMP_ROUTE) continue;
        int first = 0;
        for (int k = 0; k < pl->net->layers[j].n_sources; k++) {
            int s = layers[j].sources[k];
            if (is_slice(pl, j, s)) {
                layers[s].route = j;
                layers[s].first_channel = first;
                layers[s].delta_slice = layers[s].backward;
                amp_plan_add_reason(&layers[s], "; writes into route %d", j);
            }
            if (s >= 0) first += pl->net->layers[s].out_c;
        }
    }
}

int amp_plan_first_slice(const struct planner *pl, int i, bool delta)
{
    for (int s = 0; s < i; s++) {
        const struct amp_plan_layer *p = &pl->plan->layers[s];
        if (p->route == i && (p->delta_slice || !delta)) return s;
    }
    return i;
}

/* ---- what follows from it ---- */

/* The chain of residual blocks shares one delta, which lives from the last block's first
 * contribution on. */
int amp_plan_last_sharer(const struct planner *pl, int i)
{
    int last = i;
    for (int j = i + 1; j < pl->plan->n; j++)
        if (pl->plan->layers[j].delta_owner == i) last = j;
    return last;
}

int amp_plan_writes(const struct amp_plan *plan, int i)
{
    return i + 1 < plan->n && plan->layers[i + 1].fused ? i + 1 : i;
}

int amp_plan_loss_behind(const struct amp_plan *plan, const struct amp_net_desc *net, int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    bool bias = p->ours && shares_delta(&net->layers[i]) && !net->layers[i].batch_normalize;
    if (!bias || !p->backward || p->out != AMP_FORMAT_BORDER || readers(plan, net, i) != 1)
        return -1;
    for (int j = i + 1; j < plan->n; j++) {
        const struct amp_plan_layer *loss = &plan->layers[j];
        if (loss->sources[0] != i) continue;
        bool alone = loss->loss && loss->ours && loss->delta_from_nobody;
        return alone && loss->source_wanted[0] ? j : -1;
    }
    return -1;
}

struct ampk_conv_shape amp_plan_conv_shape(const struct amp_plan *plan,
                                           const struct amp_net_desc *net, int i)
{
    struct ampk_conv_shape s = amp_conv_shape(net, i);
    s.compute = plan->layers[i].compute;
    /* The backend then needs no plan and no memory for gradients. */
    s.forward_only = !plan->layers[i].backward;
    s.biased = !net->layers[i].batch_normalize;
    return s;
}
