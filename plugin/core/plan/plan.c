/* Decides which layer runs our code, in which format it stores and computes, and who contributes to
 * which gradient. It must not know kernels or memory: plan_fuse.c then decides which layers share
 * work, and plan_memory.c where buffers lie. The same net and options always give the same plan.
 * plan_report.c prints it. */
#include "plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/text.h"

/* ---- what each layer is ---- */

/* Types that have an executor on some backends only: losses, and the softmax before one. */
static bool is_loss_or_softmax(const struct amp_layer_desc *l)
{
    return amp_layer_is_loss(l) || l->type == AMP_SOFTMAX;
}

/* The table of executors (layers.c), as one bit per type. */
static bool has_row(const struct planner *pl, int i)
{
    return pl->ours >> pl->net->layers[i].type & 1;
}

/* On the device or not: types with an executor on every backend. */
static bool has_executor(const struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    bool convolves = l->type == AMP_CONVOLUTIONAL;
    /* Binary and xnor weights, and smooth, change what a convolution computes; our convolution has
     * no such modes. */
    bool only_darknet = is_loss_or_softmax(l) || (convolves && (l->binary || l->xnor || l->smooth));
    return has_row(pl, i) && !only_darknet;
}

/* Why Darknet runs a loss (or softmax) although the backend has it; NULL: no reason. onlyforward=1
 * is one, since Darknet's CPU and GPU builds treat it differently. */
static const char *why_left_to_darknet(const struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    if (l->override == 0) return "mixed_precision=0 in its section";
    if (l->onlyforward) return "onlyforward=1 in its section";
    for (int k = 0; k < i; k++)
        if (pl->net->layers[k].truth) return "its truth is the output of a layer with truth=1";
    return NULL;
}

static bool backend_has(const struct planner *pl, int i)
{
    return has_row(pl, i) && is_loss_or_softmax(&pl->net->layers[i]);
}

/* Whether the backend computes this loss (or softmax). */
static bool is_loss_of_ours(const struct planner *pl, int i)
{
    return backend_has(pl, i) && !why_left_to_darknet(pl, i);
}

/* tf32 and fp32 both store FP32: they differ in arithmetic only (compute_of). */
static enum amp_format island_of(const struct amp_options *o)
{
    switch (o->dtype) {
    case AMP_DTYPE_AUTO: /* amp_plan_make refuses it */
    case AMP_DTYPE_FP16:
        return AMP_FORMAT_FP16;
    case AMP_DTYPE_BF16:
        return AMP_FORMAT_BF16;
    default:
        return AMP_FORMAT_FP32;
    }
}

static enum ampk_compute compute_of(enum amp_format storage, const struct amp_options *o)
{
    switch (storage) {
    case AMP_FORMAT_FP16:
        return AMPK_COMPUTE_FP16;
    case AMP_FORMAT_BF16:
        return AMPK_COMPUTE_BF16;
    default:
        return o->dtype == AMP_DTYPE_TF32 ? AMPK_COMPUTE_TF32 : AMPK_COMPUTE_FP32;
    }
}

/* Darknet's dropout works in the memory of the layer before it, so whoever reads that layer later
 * reads the dropped values. Our dropout has its own tensor, so such readers are sent to it. */
static int resolve_source(const struct amp_net_desc *net, int reader, int source)
{
    while (source >= 0 && source + 1 < reader && net->layers[source + 1].type == AMP_DROPOUT)
        source++;
    return source;
}

static void explain(struct amp_plan_layer *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void explain(struct amp_plan_layer *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(p->reason, sizeof p->reason, format, args);
    va_end(args);
}

/* What Darknet's code does with recurrent layers, whoever computes their products. */
static void explain_darknets_ways(const struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    struct amp_plan_layer *p = &pl->plan->layers[i];
    if (!amp_layer_is_recurrent(l)) return;
    if (l->type == AMP_GRU)
        amp_plan_add_reason(p,
                            "; Darknet's code has no backward on the CPU: neither this layer nor "
                            "any before it learns");
    if (l->type == AMP_CRNN) amp_plan_add_reason(p, "; Darknet's code never changes its weights");
    if (l->batch_normalize && pl->net->time_steps > 1)
        amp_plan_add_reason(p, "; Darknet's batch-norm: backward takes the last time step's "
                               "statistics for all steps, so gradients can be far too large");
}

/* Darknet's code knows FP32 NCHW only. The reason tells the user why, in the report. */
static void choose_darknet(const struct planner *pl, const struct amp_layer_desc *l,
                           struct amp_plan_layer *p)
{
    p->in = p->out = AMP_FORMAT_BORDER;
    p->compute = AMPK_COMPUTE_FP32;
    if (p->loss)
        explain(p, "loss: stays FP32%s",
                pl->plan->island == AMP_FORMAT_FP16 ? ", its delta carries the loss scale" : "");
    else if (l->type == AMP_CONVOLUTIONAL)
        explain(p, "%s: Darknet's own FP32 code",
                l->xnor     ? "xnor weights"
                : l->binary ? "binary weights"
                            : "smooth");
    else if (amp_layer_is_recurrent(l))
        explain(p, "a pass has fewer than %d vectors: Darknet's own FP32 code", AMP_PRODUCT_ROWS);
    else if (amp_layer_is_loss(l) || l->type == AMP_SOFTMAX)
        explain(p, "Darknet's own FP32 code, conversions at its border");
    else
        explain(p, "no executor of ours: Darknet's own FP32 code, conversions at its border");
    if (l->override == 1 && !p->loss && !amp_layer_is_recurrent(l))
        explain(p,
                "mixed_precision=1 is asked for, but only Darknet's own FP32 code runs this layer");
}

/* Whether a layer of ours that this one reads is kept in FP32. Of several sources the widest type
 * wins, as in PyTorch: rounding the sum of two layers would lose what one of them was kept in FP32
 * for. */
static bool reads_kept_in_fp32(const struct planner *pl, const struct amp_plan_layer *p,
                               int n_sources)
{
    for (int k = 0; k < n_sources; k++) {
        const struct amp_plan_layer *source =
            p->sources[k] < 0 ? NULL : &pl->plan->layers[p->sources[k]];
        if (source && source->ours && source->in == AMP_FORMAT_FP32) return true;
    }
    return false;
}

/* Storage format of a layer of ours. choose_heads may change the output's format afterwards. A
 * demotion comes first, since the layer has shown that it needs the range; then the user's wish. */
static enum amp_format choose_storage(struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    struct amp_plan_layer *p = &pl->plan->layers[i];
    enum amp_format island = pl->plan->island;
    if (pl->demoted && pl->demoted[i] != AMP_FORMATS) {
        explain(p, "moved to %s during training: its values overflowed FP16",
                amp_format_name(pl->demoted[i]));
        return pl->demoted[i];
    }
    if (l->override == 0) {
        explain(p, "mixed_precision=0 in its section");
        return AMP_FORMAT_FP32;
    }
    if (p->products) {
        explain(p, "%s operands of its products; sums, state and all else in FP32",
                amp_compute_name(compute_of(island, pl->options)));
        return island;
    }
    if (amp_layer_is_matrix(l)) {
        explain(p, "%s operands, sums and %s in FP32",
                amp_compute_name(compute_of(island, pl->options)),
                l->batch_normalize ? "batch-norm arithmetic" : "bias");
        return island;
    }
    enum amp_format storage =
        l->override != 1 && reads_kept_in_fp32(pl, p, l->n_sources) ? AMP_FORMAT_FP32 : island;
    explain(p, "passes %s through", amp_format_name(storage));
    return storage;
}

static int choose_layer(struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    struct amp_plan_layer *p = &pl->plan->layers[i];
    size_t n = (size_t)l->n_sources;
    p->sources = malloc(n * sizeof *p->sources);
    p->source_first = calloc(n, sizeof *p->source_first);
    p->source_wanted = calloc(n, sizeof *p->source_wanted);
    if (!p->sources || !p->source_first || !p->source_wanted) return -1;
    for (int k = 0; k < l->n_sources; k++)
        p->sources[k] = resolve_source(pl->net, i, l->sources[k]);
    p->ours = has_executor(pl, i) || is_loss_of_ours(pl, i);
    p->loss = amp_layer_is_loss(l);
    p->products = amp_layer_is_recurrent(l) && amp_plan_products_pay(pl->net, i);
    if (p->products) {
        p->in = p->out = AMP_FORMAT_BORDER;
        p->compute = compute_of(choose_storage(pl, i), pl->options);
        explain_darknets_ways(pl, i);
        return 0;
    }
    /* The report also says that mixed_precision= in the section has no effect, if so. */
    if (!p->ours) {
        choose_darknet(pl, l, p);
        explain_darknets_ways(pl, i);
        if (backend_has(pl, i))
            amp_plan_add_reason(p, "; by Darknet's own code: %s", why_left_to_darknet(pl, i));
        else if (l->override == 0)
            amp_plan_add_reason(p,
                                "; mixed_precision=0 changes nothing%s: Darknet's code runs it "
                                "anyway",
                                p->loss || l->type == AMP_SOFTMAX ? " on a CPU" : "");
        return 0;
    }
    /* Losses compute in FP32 and read and write FP32 NCHW. */
    if (is_loss_of_ours(pl, i)) {
        p->in = p->out = AMP_FORMAT_BORDER;
        p->compute = AMPK_COMPUTE_FP32;
        explain(p, p->loss ? "FP32: loss" : "FP32: softmax");
        return 0;
    }
    p->in = p->out = choose_storage(pl, i);
    p->compute = compute_of(p->in, pl->options);
    return 0;
}

/* Whether the layer can write FP32 NCHW itself. In a [local] layer the images of a batch are laid
 * out as pixels, so NCHW order differs. */
static bool can_be_head(const struct amp_layer_desc *l)
{
    return amp_layer_is_matrix(l) && l->type != AMP_LOCAL;
}

/* If all readers of a matrix layer want FP32 NCHW, or nobody reads it, it writes
 * FP32 NCHW itself. Its results then reach Darknet's losses unrounded, and no copy is needed. */
static void choose_heads(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    for (int i = 0; i < plan->n; i++) {
        struct amp_plan_layer *p = &plan->layers[i];
        if (!p->ours || !can_be_head(&pl->net->layers[i])) continue;
        int reader = -1;
        bool only_border = true;
        for (int j = i + 1; j < plan->n; j++)
            for (int k = 0; k < pl->net->layers[j].n_sources; k++) {
                if (plan->layers[j].sources[k] != i) continue;
                reader = j;
                only_border = only_border && plan->layers[j].in == AMP_FORMAT_BORDER;
            }
        if (!only_border) continue;
        p->out = AMP_FORMAT_BORDER;
        /* The reason names the last reader, usually the loss. */
        if (reader < 0)
            amp_plan_add_reason(p, "; writes FP32: the net's output");
        else
            amp_plan_add_reason(p, "; writes FP32 for %s %d",
                                amp_layer_type_name(pl->net->layers[reader].type), reader);
    }
}

/* ---- who reads what, who contributes to which delta ---- */

/* What the layers up to one with stopbackward go on doing, since their update still runs. */
static void explain_stop(const struct planner *pl, int stop)
{
    int moving = 0;
    for (int i = 0; i <= stop; i++)
        moving += amp_layer_learns(&pl->net->layers[i]);
    if (moving)
        amp_plan_add_reason(&pl->plan->layers[stop],
                            "; stopbackward: up to here decay still shrinks the weights of %d "
                            "layers and statistics move; freeze=1 keeps them",
                            moving);
}

/* Whether a gradient is of use at layer i: the layer learns, or one of its sources' layers does.
 * Those come earlier, so their answers are known. */
static bool wants_gradient(const struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    bool wanted = amp_layer_learns(l);
    for (int k = 0; k < l->n_sources; k++) {
        int s = pl->plan->layers[i].sources[k];
        wanted |= s >= 0 && pl->plan->layers[s].backward;
    }
    return wanted;
}

/* stopbackward ends Darknet's backward loop, so no layer up to the last one with it learns. Above
 * it backward runs everywhere; with frozen layers there only where a gradient is of use (net.c
 * leaves one that learns). */
static void find_backward(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    bool any_frozen = false;
    int stop = -1;
    for (int i = 0; i < plan->n; i++) {
        const struct amp_layer_desc *l = &pl->net->layers[i];
        if (l->stopbackward) stop = i;
        plan->layers[i].frozen = l->freeze;
        any_frozen = !l->stopbackward && (any_frozen || l->freeze); /* above stop */
    }
    plan->first_backward = stop + 1;
    for (int i = stop + 1; i < plan->n; i++)
        plan->layers[i].backward = plan->train && (!any_frozen || wants_gradient(pl, i));
    while (any_frozen && plan->train && !plan->layers[plan->first_backward].backward)
        plan->first_backward++;
    if (stop >= 0) explain_stop(pl, stop);
    for (int i = 0; i < plan->n; i++)
        if (plan->layers[i].frozen)
            amp_plan_add_reason(&plan->layers[i], "; frozen%s",
                                plan->layers[i].backward ? ", passes gradients on" : "");
}

/* Whether layer i has a delta. Darknet's crop has none, so nothing before it learns. */
static bool has_delta(const struct planner *pl, int i)
{
    return i >= 0 && pl->net->layers[i].type != AMP_CROP;
}

/* Darknet's losses write their delta in forward, to the place where readers add later; so no reader
 * is the first. Our losses add theirs in their own backward. */
static bool darknet_loss(const struct amp_plan_layer *p)
{
    return p->loss && !p->ours;
}

static void find_contributions(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    for (int i = 0; i < plan->n; i++)
        plan->layers[i].delta_from_nobody = !darknet_loss(&plan->layers[i]) && has_delta(pl, i);
    /* In the order of backward: the reader that comes last in the net contributes first. */
    for (int j = plan->n - 1; j >= 0; j--) {
        struct amp_plan_layer *reader = &plan->layers[j];
        for (int k = 0; k < pl->net->layers[j].n_sources; k++) {
            int s = reader->sources[k];
            reader->source_wanted[k] =
                reader->backward && has_delta(pl, s) && plan->layers[s].backward;
            if (!reader->source_wanted[k]) continue;
            struct amp_plan_layer *source = &plan->layers[s];
            reader->source_first[k] = source->delta_from_nobody;
            source->delta_from_nobody = false;
        }
    }
}

/* ---- totals ---- */

/* What stock Darknet's layer takes. */
static size_t darknet_layer_bytes(const struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    size_t per_element = 8;                       /* output, delta */
    if (l->batch_normalize) per_element = 16;     /* x, x_norm */
    if (l->type == AMP_DROPOUT) per_element = 4;  /* rand; the rest is its input's */
    if (l->type == AMP_MAXPOOL) per_element = 12; /* indexes */
    if (!amp_layer_is_recurrent(l)) return amp_plan_elements(pl, i) * per_element;
    /* Its own output and delta, or states as large; its inner layers have what others have. */
    return amp_plan_elements(pl, i) * 8 + amp_plan_inner_elements(pl->net, i) * per_element;
}

/* For the report: predicted bytes and the share of reduced arithmetic. Nothing is allocated by
 * these numbers. */
static void add_totals(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    plan->mixed_bytes = plan->arena_bytes;
    for (int i = 0; i < plan->n; i++) {
        const struct amp_layer_desc *l = &pl->net->layers[i];
        const struct amp_plan_layer *p = &plan->layers[i];
        plan->flop += l->forward_flop;
        plan->n_recomputed += p->recomputed;
        if (p->recomputed) plan->flop_again += l->forward_flop;
        bool multiplies = p->products || (p->ours && amp_layer_is_matrix(l));
        if (multiplies && p->compute != AMPK_COMPUTE_FP32) plan->flop_reduced += l->forward_flop;
        plan->darknet_bytes += darknet_layer_bytes(pl, i);
        if (!p->ours)
            plan->mixed_bytes +=
                darknet_layer_bytes(pl, i) + (p->loss ? 4 * amp_plan_elements(pl, i) : 0);
        else if (p->out == AMP_FORMAT_BORDER || p->border_copy)
            plan->mixed_bytes += (p->loss ? 8 : 4) * amp_plan_elements(pl, i);
    }
}

static int build(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    for (int i = 0; i < plan->n; i++)
        if (choose_layer(pl, i)) return -1;
    choose_heads(pl);
    find_backward(pl);
    /* The order matters: fusion asks who contributes first, slices ask what is fused, and buffers
     * need all of it. */
    find_contributions(pl);
    amp_plan_mark_recomputed(pl);
    amp_plan_fuse_layers(pl);
    amp_plan_find_runs(pl);
    amp_plan_find_slices(pl);
    amp_plan_find_again(pl);
    if (amp_plan_buffers(pl)) return -1;
    add_totals(pl);
    return 0;
}

/* A gradient that is a function of the activation's input is computed where batch-norm keeps what
 * it follows from. Darknet's own code knows none of these activations. */
static int check_activations(const struct planner *pl, char *err, size_t err_size)
{
    for (int i = 0; i < pl->net->n; i++) {
        const struct amp_layer_desc *l = &pl->net->layers[i];
        const struct amp_plan_layer *p = &pl->plan->layers[i];
        bool kept = amp_layer_is_matrix(l) && l->batch_normalize;
        if (!ampk_is_gradient_of_input(l->activation) || (p->ours && (kept || !p->backward)))
            continue;
        snprintf(err, err_size,
                 "%s:%d: activation=%s in %s: its gradient needs the activation's input, which "
                 "only batch-norm keeps; allowed in training: [convolutional], [deconvolutional] "
                 "and [connected] with batch_normalize=1, without binary, xnor and smooth",
                 pl->net->cfg_path, l->line, amp_activation_name(l->activation), l->type_name);
        return -1;
    }
    return 0;
}

/* A double for each statistic (sync_bn.c). */
static void count_synced(struct planner *pl)
{
    for (int i = 0; i < pl->net->n; i++) {
        const struct amp_plan_layer *p = &pl->plan->layers[i];
        const struct amp_layer_desc *l = &pl->net->layers[i];
        if (!p->ours || p->frozen || !l->batch_normalize) continue;
        size_t bytes = amp_layer_statistics(l) * sizeof(double);
        pl->plan->synced_forward++;
        pl->plan->synced_backward += p->backward;
        pl->plan->synced_bytes += p->backward ? 2 * bytes : bytes;
    }
}

struct amp_plan *amp_plan_make_with(const struct amp_net_desc *net,
                                    const struct amp_options *options, unsigned ours,
                                    const enum amp_format *demoted, bool train,
                                    const bool *recompute, char *err, size_t err_size)
{
    if (options->dtype == AMP_DTYPE_AUTO) {
        snprintf(err, err_size, "amp_dtype=auto is not settled");
        return NULL;
    }
    /* check_activations has a message of its own. */
    snprintf(err, err_size, "out of memory while planning %d layers", net->n);
    struct amp_plan *plan = calloc(1, sizeof *plan);
    if (plan) plan->layers = calloc((size_t)net->n, sizeof *plan->layers);
    if (plan && plan->layers) {
        plan->n = net->n;
        plan->dtype = amp_dtype_word(options->dtype);
        plan->dtype_reason = options->dtype_reason;
        plan->rules = options->rules;
        plan->level = options->level;
        plan->island = island_of(options);
        plan->train = train;
        plan->replays = amp_options_replay(options);
        struct planner pl = {.net = net,
                             .recompute = recompute,
                             .options = options,
                             .ours = ours,
                             .demoted = demoted,
                             .plan = plan};
        if (build(&pl) == 0 && check_activations(&pl, err, err_size) == 0) {
            if (options->sync_bn && train) count_synced(&pl);
            return plan;
        }
    }
    amp_plan_free(plan);
    return NULL;
}

void amp_plan_free(struct amp_plan *plan)
{
    if (!plan) return;
    for (int i = 0; plan->layers && i < plan->n; i++) {
        free(plan->layers[i].sources);
        free(plan->layers[i].source_first);
        free(plan->layers[i].source_wanted);
    }
    free(plan->layers);
    free(plan->buffers);
    free(plan);
}
