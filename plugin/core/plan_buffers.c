/* Which buffers the layers need, and when each holds data. */
#include "planner.h"

#include <stdint.h>
#include <stdlib.h>

static int add_buffer(struct planner *pl, size_t bytes, int first, int last, int layer,
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
    plan->buffers[plan->n_buffers] = (struct amp_buffer){
        .bytes = bytes, .first = first, .last = last, .layer = layer, .what = what};
    return plan->n_buffers++;
}

static int backward_step(const struct planner *pl, int i)
{
    return 2 * pl->plan->n - 1 - i;
}

size_t amp_plan_elements(const struct planner *pl, int i)
{
    size_t per_image = (size_t)(i < 0 ? pl->net->inputs : pl->net->layers[i].outputs);
    return per_image * (size_t)pl->net->batch;
}

/* Last step at which the output of i (-1: the input) is read in this format, or -1 where nobody
 * does. */
static int last_read(const struct planner *pl, int i, enum amp_format format)
{
    const struct amp_plan *plan = pl->plan;
    int end = 2 * plan->n, last = -1;
    enum amp_format home = i < 0 ? AMP_FORMAT_BORDER : plan->layers[i].out;
    for (int j = i + 1; j < plan->n; j++)
        for (int k = 0; k < pl->net->layers[j].n_sources; k++) {
            if (plan->layers[j].sources[k] != i || plan->layers[j].in != format) continue;
            bool in_backward = plan->layers[j].backward && amp_layer_is_matrix(&pl->net->layers[j]);
            int step = in_backward ? end : j;
            if (step > last) last = step;
        }
    if (i >= 0 && format == home) {
        const struct amp_layer_desc *l = &pl->net->layers[i];
        bool gradient_reads_out =
            l->batch_normalize ? !ampk_is_two_slopes(l->activation) : l->activation != AMPK_LINEAR;
        int own = plan->layers[i].backward && gradient_reads_out ? end : i;
        if (own > last) last = own;
    }
    for (int s = 0; s < i; s++)
        if (plan->layers[s].route == i && format == home) {
            int slice = last_read(pl, s, format);
            if (slice > last) last = slice;
        }
    return last;
}

/* Copies of tensor i in the formats that its readers want and that are not its home. */
static int plan_copies(struct planner *pl, int i, int *copy, enum amp_format home)
{
    for (int f = 0; f < AMP_FORMATS; f++) {
        copy[f] = -1;
        int last = last_read(pl, i, (enum amp_format)f);
        if (f == (int)home || f == AMP_FORMAT_BORDER || last < 0) continue;
        size_t bytes = amp_plan_elements(pl, i) * amp_format_bytes((enum amp_format)f);
        copy[f] = add_buffer(pl, bytes, i < 0 ? 0 : i, last, i, "copy");
        if (copy[f] == -2) return -1;
    }
    return 0;
}

static bool any_border_reader(const struct planner *pl, int i)
{
    for (int j = i + 1; j < pl->plan->n; j++)
        for (int k = 0; k < pl->net->layers[j].n_sources; k++)
            if (pl->plan->layers[j].sources[k] == i && pl->plan->layers[j].in == AMP_FORMAT_BORDER)
                return true;
    return false;
}

static int last_without_cost(const struct amp_net_desc *net)
{
    int i = net->n - 1;
    while (i > 0 && net->layers[i].type == AMP_COST)
        i--;
    return i;
}

/* First backward step at which someone writes the delta of i. */
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
        return amp_plan_elements(pl, i) * (pl->net->layers[i].size <= 15 ? 1 : 4);
    case AMP_DROPOUT:
        return pl->plan->train ? amp_plan_elements(pl, i) : 0;
    default:
        return 0;
    }
}

/* The largest contribution that needs conversion on its way to the source's delta. Darknet's layers
 * may overwrite what they should add to, so theirs always goes apart unless it is the first. */
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

/* A loss of ours has no delta but its own where nobody adds to it. */
static bool has_contributions(const struct amp_plan_layer *p)
{
    return !p->loss || !p->delta_from_nobody;
}

static int plan_layer_buffers(struct planner *pl, int i)
{
    struct amp_plan_layer *p = &pl->plan->layers[i];
    const struct amp_layer_desc *l = &pl->net->layers[i];
    int end = 2 * pl->plan->n, b = backward_step(pl, i);
    int saved_until = p->backward ? end : i;
    size_t n = amp_plan_elements(pl, i);
    p->border_copy = p->out != AMP_FORMAT_BORDER &&
                     (any_border_reader(pl, i) || i == last_without_cost(pl->net));
    size_t bytes[AMP_BUFFER_KINDS] = {0};
    int contribution = first_contribution(pl, amp_plan_last_sharer(pl, i));
    int made = p->fused ? i - 1 : i;                 /* by the layer before */
    int indexed = l->type == AMP_DROPOUT ? 0 : made; /* masks may be drawn before the first layer */
    int written = p->fused ? i - 1 : amp_plan_first_slice(pl, i, false);
    int consumed = p->fused ? b + 1 : backward_step(pl, amp_plan_first_slice(pl, i, true));
    int first[AMP_BUFFER_KINDS] = {written, i, indexed, contribution, b, b};
    int last[AMP_BUFFER_KINDS] = {
        last_read(pl, i, p->out), saved_until, saved_until, consumed, b, b};
    static const char *const what[AMP_BUFFER_KINDS] = {
        "output", "batch-norm input", "index", "delta", "dy", "dx"};
    bool own_out = p->route < 0 && amp_plan_writes(pl->plan, i) == i;
    bool own_delta = !p->delta_slice && p->delta_owner == i;
    if (p->ours && p->out != AMP_FORMAT_BORDER && own_out)
        bytes[AMP_BUFFER_OUT] = n * amp_format_bytes(p->out);
    if (p->ours && l->batch_normalize) bytes[AMP_BUFFER_Y] = n * amp_format_bytes(p->in);
    bytes[AMP_BUFFER_INDEX] = index_bytes(pl, i);
    if (p->ours && p->backward && has_contributions(p) && own_delta)
        bytes[AMP_BUFFER_DELTA] = n * amp_format_bytes(p->out);
    if (p->ours && p->backward &&
        (p->in != p->out || (amp_layer_is_matrix(l) && p->delta_owner != i)))
        bytes[AMP_BUFFER_DY] = n * amp_format_bytes(p->in);
    if (p->backward) bytes[AMP_BUFFER_DX] = dx_bytes(pl, i);
    for (int kind = 0; kind < AMP_BUFFER_KINDS; kind++) {
        p->buffer[kind] = -1;
        if (bytes[kind] == 0) continue;
        p->buffer[kind] = add_buffer(pl, bytes[kind], first[kind], last[kind], i, what[kind]);
        if (p->buffer[kind] == -2) return -1;
    }
    if (p->delta_owner >= 0 && p->delta_owner != i)
        p->buffer[AMP_BUFFER_DELTA] = pl->plan->layers[p->delta_owner].buffer[AMP_BUFFER_DELTA];
    return plan_copies(pl, i, p->copy, p->out);
}

static enum amp_format input_format(const struct planner *pl)
{
    enum amp_format format = AMP_FORMATS;
    for (int f = 0; f < AMP_FORMATS; f++) {
        if (last_read(pl, -1, (enum amp_format)f) < 0) continue;
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
