/* Decides which buffers the layers need, and how long each holds data. It must not know kernels,
 * nor where a buffer lies (plan_arena.c), and it allocates nothing of a network: graph.c does. */
#include "plan.h"

#include <stdint.h>
#include <stdlib.h>

/* ---- storage formats ---- */

size_t amp_format_bytes(enum amp_format f)
{
    return f == AMP_FORMAT_FP16 || f == AMP_FORMAT_BF16 ? 2 : 4;
}

enum ampk_dtype amp_format_dtype(enum amp_format f)
{
    return f == AMP_FORMAT_FP16 ? AMPK_FP16 : f == AMP_FORMAT_BF16 ? AMPK_BF16 : AMPK_FP32;
}

/* ---- buffers and their lives ---- */

/* The steps at which a buffer holds data; of the second life 0 and 0 if there is none. */
struct life {
    int first, last, again_first, again_last;
};

static int add_buffer(struct planner *pl, size_t bytes, struct life life, int layer,
                      const char *what)
{
    struct amp_plan *plan = pl->plan;
    if (plan->n_buffers == pl->capacity) {
        int capacity = pl->capacity ? 2 * pl->capacity : 64;
        struct amp_buffer *grown = realloc(plan->buffers, (size_t)capacity * sizeof *grown);
        if (!grown) return -2;
        plan->buffers = grown;
        pl->capacity = capacity;
    }
    plan->buffers[plan->n_buffers] = (struct amp_buffer){.bytes = bytes,
                                                         .first = life.first,
                                                         .last = life.last,
                                                         .again_first = life.again_first,
                                                         .again_last = life.again_last,
                                                         .layer = layer,
                                                         .what = what};
    return plan->n_buffers++;
}

/* The clock of plan.h: step 2n - 1 - i is the backward of layer i. */
static int backward_step(const struct planner *pl, int i)
{
    return 2 * pl->plan->n - 1 - i;
}

size_t amp_plan_elements(const struct planner *pl, int i)
{
    size_t per_image = (size_t)(i < 0 ? pl->net->inputs : pl->net->layers[i].outputs);
    return per_image * (size_t)pl->net->batch;
}

/* Last step of forward at which the output of i (-1: the input) is read in this format, or -1 if
 * nobody reads it. */
static int last_forward_read(const struct planner *pl, int i, enum amp_format format)
{
    const struct amp_plan *plan = pl->plan;
    int last = -1;
    enum amp_format home = i < 0 ? AMP_FORMAT_BORDER : plan->layers[i].out;
    for (int j = i + 1; j < plan->n; j++)
        for (int k = 0; k < pl->net->layers[j].n_sources; k++)
            if (plan->layers[j].sources[k] == i && plan->layers[j].in == format) last = j;
    if (i > last && format == home) last = i;
    /* A slice of this route may be read later than the route itself. */
    for (int s = 0; s < i; s++)
        if (plan->layers[s].route == i && format == home) {
            int slice = last_forward_read(pl, s, format);
            if (slice > last) last = slice;
        }
    return last;
}

/* Whether a layer's backward takes the activation's gradient at its output. Batch-norm's input
 * often tells as much (layers_conv.c), and a linear activation needs nothing. */
static bool reads_own_output(const struct amp_layer_desc *l, bool frozen)
{
    bool recomputes = l->batch_normalize &&
                      (frozen ? ampk_is_gradient_of_input : ampk_recomputes_input)(l->activation);
    return !recomputes && l->activation != AMPK_LINEAR;
}

/* The same of backward, -1 if nobody reads it there. Backward of a matrix layer reads its input for
 * the weight gradient. */
static int last_backward_read(const struct planner *pl, int i, enum amp_format format)
{
    const struct amp_plan *plan = pl->plan;
    int last = -1;
    enum amp_format home = i < 0 ? AMP_FORMAT_BORDER : plan->layers[i].out;
    for (int j = plan->n - 1; j > i; j--)
        for (int k = 0; k < pl->net->layers[j].n_sources; k++)
            if (plan->layers[j].sources[k] == i && plan->layers[j].in == format &&
                plan->layers[j].backward && amp_layer_is_matrix(&pl->net->layers[j]))
                last = backward_step(pl, j);
    if (i >= 0 && format == home && plan->layers[i].backward) {
        const struct amp_layer_desc *l = &pl->net->layers[i];
        if (reads_own_output(l, plan->layers[i].frozen)) last = backward_step(pl, i);
    }
    for (int s = 0; s < i; s++)
        if (plan->layers[s].route == i && format == home) {
            int slice = last_backward_read(pl, s, format);
            if (slice > last) last = slice;
        }
    return last;
}

/* The step at which layer i, which is recomputed, is computed again. */
static int again_step(const struct planner *pl, int i)
{
    int at = 0;
    while (pl->plan->layers[at].again != pl->plan->layers[i].run)
        at++;
    return backward_step(pl, at);
}

/* What is read in backward, at last in this step, lives to the end if backward may be replayed. The
 * input (-1) does too: it is there before the first step. */
static int kept_until(const struct planner *pl, int i, int backward)
{
    return pl->plan->replays || i < 0 ? 2 * pl->plan->n : backward;
}

/* What is recomputed lives twice instead: up to the last reader in forward, and from where it is
 * computed again to the last reader in backward (-1: none). */
static struct life life_of(const struct planner *pl, int i, int first, int forward, int backward)
{
    if (i < 0 || !pl->plan->layers[i].recomputed)
        return (struct life){.first = first,
                             .last = backward < 0 ? forward : kept_until(pl, i, backward)};
    int again = again_step(pl, i);
    return (struct life){first, forward, again, backward > again ? backward : again};
}

/* Of the output of i, or of a copy of it. */
static struct life output_life(const struct planner *pl, int i, enum amp_format format, int first)
{
    int forward = last_forward_read(pl, i, format), backward = last_backward_read(pl, i, format);
    int end = 2 * pl->plan->n;
    bool kept = amp_plan_is_reread(pl, i, format);
    /* A convolution that is recomputed writes the fused layer's output once more. */
    if (i >= 0 && !pl->plan->layers[i].recomputed) kept |= amp_plan_runs_again(pl->plan, i);
    if (kept) return (struct life){.first = first, .last = end};
    return life_of(pl, i, first, forward, backward);
}

/* Plans copies of tensor i in the formats that its readers want beside its home format. A border
 * copy needs no buffer: it lies in Darknet's l.output. */
static int plan_copies(struct planner *pl, int i, int *copy, enum amp_format home)
{
    for (int f = 0; f < AMP_FORMATS; f++) {
        copy[f] = -1;
        if (f == (int)home || f == AMP_FORMAT_BORDER ||
            last_forward_read(pl, i, (enum amp_format)f) < 0)
            continue;
        size_t bytes = amp_plan_elements(pl, i) * amp_format_bytes((enum amp_format)f);
        copy[f] =
            add_buffer(pl, bytes, output_life(pl, i, (enum amp_format)f, i < 0 ? 0 : i), i, "copy");
        if (copy[f] == -2) return -1;
    }
    return 0;
}

/* Darknet's code, and losses, read FP32 NCHW. */
static bool any_border_reader(const struct planner *pl, int i)
{
    for (int j = i + 1; j < pl->plan->n; j++)
        for (int k = 0; k < pl->net->layers[j].n_sources; k++)
            if (pl->plan->layers[j].sources[k] == i && pl->plan->layers[j].in == AMP_FORMAT_BORDER)
                return true;
    return false;
}

/* The layer whose output Darknet takes for the network's: it skips [cost] at the end. */
static int last_without_cost(const struct amp_net_desc *net)
{
    int i = net->n - 1;
    while (i > 0 && net->layers[i].type == AMP_COST)
        i--;
    return i;
}

/* First backward step at which a reader writes the delta of i; its own backward if no reader
 * does. */
static int first_contribution(const struct planner *pl, int i)
{
    for (int j = pl->plan->n - 1; j > i; j--)
        for (int k = 0; k < pl->net->layers[j].n_sources; k++)
            if (pl->plan->layers[j].sources[k] == i && pl->plan->layers[j].source_wanted[k])
                return backward_step(pl, j);
    return backward_step(pl, i);
}

static size_t index_bytes(const struct planner *pl, int i)
{
    switch (pl->net->layers[i].type) {
    case AMP_MAXPOOL:
        /* Position within the window: one byte is enough up to 15 x 15. */
        return amp_plan_elements(pl, i) * (pl->net->layers[i].size <= 15 ? 1 : 4);
    case AMP_DROPOUT:
        return pl->plan->train ? amp_plan_elements(pl, i) : 0;
    default:
        return 0;
    }
}

/* Bytes for the largest contribution that needs conversion on its way to a source's delta.
 * Darknet's layers may overwrite the gradient that they should add to, so their contribution always
 * goes apart unless it is the first. */
static size_t dx_bytes(const struct planner *pl, int i)
{
    const struct amp_plan_layer *p = &pl->plan->layers[i];
    size_t most = 0;
    for (int k = 0; k < pl->net->layers[i].n_sources; k++) {
        if (p->sources[k] < 0 || (p->ours && !p->source_wanted[k])) continue;
        bool direct =
            p->in == pl->plan->layers[p->sources[k]].out && (p->ours || p->source_first[k]);
        size_t bytes = amp_plan_elements(pl, p->sources[k]) * amp_format_bytes(p->in);
        if (!direct && bytes > most) most = bytes;
    }
    return most;
}

/* Of a [local], which reads them in both passes. */
static size_t unfolded_bytes(const struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    if (!pl->plan->layers[i].ours || l->type != AMP_LOCAL) return 0;
    return l->n_weights / (size_t)l->filters * (size_t)pl->net->batch *
           amp_format_bytes(pl->plan->layers[i].in);
}

/* Made anew in backward, where it is computed again too. */
static struct life unfolded_life(const struct planner *pl, int i)
{
    const struct amp_plan_layer *p = &pl->plan->layers[i];
    if (!p->backward) return (struct life){i, i, 0, 0};
    return (struct life){i, i, p->recomputed ? again_step(pl, i) : backward_step(pl, i),
                         backward_step(pl, i)};
}

/* Whether the layer has a delta that readers contribute to. A loss of ours often has none: only its
 * own, which is kept unscaled elsewhere. */
static bool has_contributions(const struct amp_plan_layer *p)
{
    return !p->loss || !p->delta_from_nobody;
}

static int plan_layer_buffers(struct planner *pl, int i)
{
    struct amp_plan_layer *p = &pl->plan->layers[i];
    const struct amp_layer_desc *l = &pl->net->layers[i];
    int b = backward_step(pl, i);
    size_t n = amp_plan_elements(pl, i);
    p->border_copy = p->out != AMP_FORMAT_BORDER &&
                     (any_border_reader(pl, i) || i == last_without_cost(pl->net));
    size_t bytes[AMP_BUFFER_KINDS] = {0};
    int contribution = first_contribution(pl, amp_plan_last_sharer(pl, i));
    int made = p->fused ? i - 1 : i; /* the layer before writes a fused one */
    int written = p->fused ? i - 1 : amp_plan_first_slice(pl, i, false);
    int consumed = p->fused ? b + 1 : backward_step(pl, amp_plan_first_slice(pl, i, true));
    int read = p->fused ? b + 1 : b; /* its index, in backward */
    int saved = p->backward ? b : -1;
    /* Masks may be drawn before the first layer, and are drawn once. */
    struct life mask = {0, p->backward ? kept_until(pl, i, b) : i, 0, 0};
    struct life life[AMP_BUFFER_KINDS] = {
        output_life(pl, i, p->out, written),
        life_of(pl, i, i, i, saved),
        l->type == AMP_DROPOUT ? mask : life_of(pl, i, made, i, p->backward ? read : -1),
        {contribution, consumed, 0, 0},
        {b, b, 0, 0},
        {b, b, 0, 0},
        unfolded_life(pl, i)};
    static const char *const what[AMP_BUFFER_KINDS] = {
        "output", "batch-norm input", "index", "delta", "dy", "dx", "unfolded input"};
    /* A slice lies in its route's output; a fused layer's writer has no output of its own. */
    bool own_out = p->route < 0 && amp_plan_writes(pl->plan, i) == i;
    bool own_delta = !p->delta_slice && p->delta_owner == i;
    if (p->ours && p->out != AMP_FORMAT_BORDER && own_out)
        bytes[AMP_BUFFER_OUT] = n * amp_format_bytes(p->out);
    if (p->ours && l->batch_normalize) bytes[AMP_BUFFER_Y] = n * amp_format_bytes(p->in);
    if (p->products) bytes[AMP_BUFFER_Y] = amp_plan_operands(pl->plan, pl->net, i, false);
    bytes[AMP_BUFFER_INDEX] = index_bytes(pl, i);
    if (p->ours && p->backward && has_contributions(p) && own_delta)
        bytes[AMP_BUFFER_DELTA] = n * amp_format_bytes(p->out);
    /* It takes the delta's place, if nobody else reads that and it is dense. */
    bool part = p->delta_slice && pl->net->layers[p->route].out_c != l->out_c;
    if (p->ours && p->backward &&
        (p->in != p->out || (amp_layer_is_matrix(l) && (part || p->delta_owner != i))))
        bytes[AMP_BUFFER_DY] = n * amp_format_bytes(p->in);
    if (p->products && p->backward)
        bytes[AMP_BUFFER_DY] = amp_plan_operands(pl->plan, pl->net, i, true);
    if (p->backward) bytes[AMP_BUFFER_DX] = dx_bytes(pl, i);
    bytes[AMP_BUFFER_UNFOLDED] = unfolded_bytes(pl, i);
    for (int kind = 0; kind < AMP_BUFFER_KINDS; kind++) {
        p->buffer[kind] = -1;
        if (bytes[kind] == 0) continue;
        p->buffer[kind] = add_buffer(pl, bytes[kind], life[kind], i, what[kind]);
        if (p->buffer[kind] == -2) return -1;
    }
    /* The owner comes earlier in the net, so its buffer is planned already. */
    if (p->delta_owner >= 0 && p->delta_owner != i)
        p->buffer[AMP_BUFFER_DELTA] = pl->plan->layers[p->delta_owner].buffer[AMP_BUFFER_DELTA];
    return plan_copies(pl, i, p->copy, p->out);
}

/* Known if exactly one island format is read: the loader may then deliver it rounded. */
static enum amp_format input_format(const struct planner *pl)
{
    enum amp_format format = AMP_FORMATS;
    for (int f = 0; f < AMP_FORMATS; f++) {
        if (last_forward_read(pl, -1, (enum amp_format)f) < 0) continue;
        if (f == AMP_FORMAT_BORDER || format != AMP_FORMATS) return AMP_FORMATS;
        format = (enum amp_format)f;
    }
    return format;
}

int amp_plan_buffers(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    plan->input_format = input_format(pl);
    if (plan_copies(pl, -1, plan->input_copy, AMP_FORMAT_BORDER)) return -1;
    for (int i = 0; i < plan->n; i++)
        if (plan_layer_buffers(pl, i)) return -1;
    plan->arena_bytes = amp_arena_place(plan->buffers, plan->n_buffers);
    return plan->arena_bytes == SIZE_MAX ? -1 : 0;
}

/* Moments of parameters; averages of them and of running statistics. */
size_t amp_plan_kept_bytes(const struct amp_plan *plan, const struct amp_net_desc *net)
{
    size_t parameters = 0, statistics = 0, floats = 0;
    for (int i = 0; i < net->n; i++) {
        parameters += amp_layer_parameters(&net->layers[i]);
        statistics += amp_layer_statistics(&net->layers[i]);
    }
    if (amp_rules_keep_moments(&plan->rules)) floats += 2 * parameters;
    if (plan->rules.ema_alpha > 0) floats += parameters;
    if (plan->rules.ema_alpha > 0 && !plan->rules.ema_until) floats += statistics;
    return floats * sizeof(float);
}
