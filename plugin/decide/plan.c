#include "plan.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct planner {
    const struct amp_net_desc *net;
    const struct amp_options *options;
    unsigned device_losses;
    const enum amp_format *demoted;
    struct amp_plan *plan;
    int capacity; /* of plan->buffers */
};

size_t amp_format_bytes(enum amp_format f)
{
    return f == AMP_FORMAT_FP16 || f == AMP_FORMAT_BF16 ? 2 : 4;
}

enum ampk_dtype amp_format_dtype(enum amp_format f)
{
    return f == AMP_FORMAT_FP16 ? AMPK_FP16 : f == AMP_FORMAT_BF16 ? AMPK_BF16 : AMPK_FP32;
}

/* ---- what each layer is ---- */

static bool has_executor(const struct amp_layer_desc *l)
{
    switch (l->type) {
    case AMP_CONVOLUTIONAL:
        return !l->binary && !l->xnor;
    case AMP_CONNECTED:
    case AMP_MAXPOOL:
    case AMP_ROUTE:
    case AMP_SHORTCUT:
    case AMP_UPSAMPLE:
    case AMP_REORG:
    case AMP_AVGPOOL:
    case AMP_DROPOUT:
    case AMP_ACTIVATION:
        return true;
    default:
        return false;
    }
}

/* A loss (or softmax) that the backend computes itself. Not where its section says
 * mixed_precision=0, where the truth is another layer's output, or with onlyforward=1, which
 * Darknet's two builds take differently. */
static bool is_on_device(const struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    bool can = pl->device_losses >> l->type & 1;
    if (!can || l->onlyforward || l->override == 0) return false;
    for (int k = 0; k < i; k++)
        if (pl->net->layers[k].truth) return false;
    return true;
}

static enum amp_format island_of(const struct amp_options *o)
{
    switch (o->dtype) {
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

/* Darknet's dropout works in the memory of the layer before it: whoever reads that layer later
 * reads the dropped values. Ours has its own tensor, so such readers are sent to it. */
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

static void choose_darknet(const struct amp_layer_desc *l, struct amp_plan_layer *p)
{
    p->in = p->out = AMP_FORMAT_BORDER;
    p->compute = AMPK_COMPUTE_FP32;
    if (p->loss)
        explain(p, "loss: stays FP32, its delta carries the loss scale");
    else if (l->type == AMP_CONVOLUTIONAL)
        explain(p, "%s weights: Darknet's own FP32 code", l->xnor ? "xnor" : "binary");
    else if (l->type == AMP_GRU)
        explain(p, "Darknet's own FP32 code; it has no backward on the CPU: neither this layer nor "
                   "any before it learns");
    else if (amp_layer_is_recurrent(l))
        explain(p, "recurrent state stays FP32 in Darknet's own code");
    else
        explain(p, "no executor of ours: Darknet's own FP32 code, conversions at its border");
    if (l->override == 1 && !p->loss)
        explain(p,
                "mixed_precision=1 is asked for, but only Darknet's own FP32 code runs this layer");
}

/* Storage of a layer of ours, before heads are told apart. */
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
    if (amp_layer_is_matrix(l)) {
        explain(p, "%s operands, sums and %s in FP32",
                amp_compute_name(compute_of(island, pl->options)),
                l->batch_normalize ? "batch-norm arithmetic" : "bias");
        return island;
    }
    bool all_fp32 = l->override != 1;
    for (int k = 0; k < l->n_sources; k++)
        all_fp32 = all_fp32 && p->sources[k] >= 0 && pl->plan->layers[p->sources[k]].ours &&
                   pl->plan->layers[p->sources[k]].in == AMP_FORMAT_FP32;
    enum amp_format storage = all_fp32 ? AMP_FORMAT_FP32 : island;
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
    p->ours = has_executor(l) || is_on_device(pl, i);
    p->loss = amp_layer_is_loss(l);
    if (!p->ours) {
        choose_darknet(l, p);
        return 0;
    }
    if (is_on_device(pl, i)) {
        p->in = p->out = AMP_FORMAT_BORDER;
        p->compute = AMPK_COMPUTE_FP32;
        explain(p, p->loss ? "FP32: loss, on the device" : "FP32: softmax, on the device");
        return 0;
    }
    p->in = p->out = choose_storage(pl, i);
    p->compute = compute_of(p->in, pl->options);
    return 0;
}

/* A convolution or connected layer that is read as FP32 NCHW only (or by nobody) writes that
 * itself. */
static void choose_heads(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    for (int i = 0; i < plan->n; i++) {
        struct amp_plan_layer *p = &plan->layers[i];
        if (!p->ours || !amp_layer_is_matrix(&pl->net->layers[i])) continue;
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
        size_t used = strlen(p->reason);
        if (reader < 0)
            snprintf(p->reason + used, sizeof p->reason - used, "; writes FP32: the net's output");
        else
            snprintf(p->reason + used, sizeof p->reason - used, "; writes FP32 for %s %d",
                     amp_layer_type_name(pl->net->layers[reader].type), reader);
    }
}

/* ---- who reads what, who contributes to which delta ---- */

static void find_backward(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    plan->first_backward = 0;
    plan->replayable = true;
    for (int i = 0; i < plan->n; i++) {
        if (pl->net->layers[i].stopbackward) plan->first_backward = i + 1;
        if (amp_layer_is_recurrent(&pl->net->layers[i])) plan->replayable = false;
    }
    for (int i = 0; i < plan->n; i++)
        plan->layers[i].backward = plan->train && i >= plan->first_backward;
}

/* Darknet's crop has none: nothing before it learns. */
static bool has_delta(const struct planner *pl, int i)
{
    return i >= 0 && pl->net->layers[i].type != AMP_CROP;
}

/* Darknet's losses leave their delta where others add to it; ours add theirs in their backward. */
static bool darknet_loss(const struct amp_plan_layer *p)
{
    return p->loss && !p->ours;
}

static void find_contributions(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    for (int i = 0; i < plan->n; i++)
        plan->layers[i].delta_from_nobody = !darknet_loss(&plan->layers[i]) && has_delta(pl, i);
    for (int j = plan->n - 1; j >= 0; j--) {
        struct amp_plan_layer *reader = &plan->layers[j];
        for (int k = 0; k < pl->net->layers[j].n_sources; k++) {
            int s = reader->sources[k];
            reader->source_wanted[k] =
                reader->backward && s >= plan->first_backward && has_delta(pl, s);
            if (!reader->source_wanted[k]) continue;
            struct amp_plan_layer *source = &plan->layers[s];
            reader->source_first[k] = source->delta_from_nobody;
            source->delta_from_nobody = false;
        }
    }
}

/* ---- layers that the convolution before them computes: residual sums, pools ---- */

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

/* Whether the layer before j, which nobody else reads, could go on to what j makes: it normalizes,
 * and needs no output for its gradient. */
static bool can_go_on(const struct planner *pl, int j)
{
    const struct amp_plan_layer *p = &pl->plan->layers[j], *writer = p - 1;
    const struct amp_layer_desc *before = &pl->net->layers[j - 1];
    return p->ours && p->sources[0] == j - 1 && amp_layer_is_matrix(before) && writer->ours &&
           before->batch_normalize && ampk_is_two_slopes(before->activation) &&
           readers(pl->plan, pl->net, j - 1) == 1 && writer->in == p->in && writer->out == p->in;
}

/* Whether layer j only adds to what the layer before it makes. */
static bool is_plain_sum(const struct planner *pl, int j)
{
    const struct amp_layer_desc *l = &pl->net->layers[j];
    int added = l->type == AMP_SHORTCUT ? pl->plan->layers[j].sources[1] : -1;
    return added >= 0 && l->activation == AMPK_LINEAR && l->alpha == 1 && l->beta == 1 &&
           is_same_shape(&pl->net->layers[added], l);
}

/* Windows of 2 x 2 by 2 from the corner on, which is what nets have; others, which overlap or begin
 * outside of the image, are small. */
static bool is_halving(const struct amp_layer_desc *l)
{
    return l->type == AMP_MAXPOOL && l->size == 2 && l->stride == 2 && (l->pad == 0 || l->pad == 1);
}

/* The delta of a sum is that of both its terms: the convolution's always, and the other's where no
 * other reader has contributed before. */
static int find_delta_owner(const struct planner *pl, int j)
{
    const struct amp_plan_layer *p = &pl->plan->layers[j];
    if (!p->source_wanted[1] || !p->source_first[1]) return j - 1;
    const struct amp_plan_layer *added = &pl->plan->layers[p->sources[1]];
    return added->ours && added->out == p->out ? added->delta_owner : j - 1;
}

static void fuse(struct planner *pl, int j, const char *how)
{
    struct amp_plan_layer *p = &pl->plan->layers[j];
    p->fused = true;
    size_t used = strlen(p->reason);
    snprintf(p->reason + used, sizeof p->reason - used, "; %s by layer %d as it writes its output",
             how, j - 1);
}

static void fuse_layers(struct planner *pl)
{
    struct amp_plan_layer *layers = pl->plan->layers;
    for (int j = 0; j < pl->plan->n; j++) {
        layers[j].delta_owner = j;
        if (j == 0 || !can_go_on(pl, j)) continue;
        if (is_plain_sum(pl, j)) {
            fuse(pl, j, "added");
            if (layers[j - 1].backward)
                layers[j].delta_owner = layers[j - 1].delta_owner = find_delta_owner(pl, j);
        } else if (is_halving(&pl->net->layers[j])) {
            fuse(pl, j, "pooled");
            layers[j - 1].delta_owner = -1;
        }
    }
}

/* ---- slices of concatenations ---- */

/* Whether layer i can write its output with gaps between pixels. */
static bool can_be_slice(const struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    if (pl->plan->layers[i].fused || amp_plan_writes(pl->plan, i) != i) return false;
    switch (l->type) {
    case AMP_CONVOLUTIONAL:
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

static bool is_slice(const struct planner *pl, int j, int source)
{
    const struct amp_layer_desc *l = &pl->net->layers[j];
    const struct amp_plan_layer *p = &pl->plan->layers[j];
    if (source < 0 || !can_be_slice(pl, source) || readers(pl->plan, pl->net, source) != 1)
        return false;
    const struct amp_layer_desc *from = &pl->net->layers[source];
    const struct amp_plan_layer *writer = &pl->plan->layers[source];
    return writer->ours && writer->in == p->in && writer->out == p->in && p->out == p->in &&
           l->out_c > 0 && from->out_w == l->out_w && from->out_h == l->out_h;
}

/* What only a concatenation of channels reads is written there at once, and its delta is read
 * there: but a convolution's, which its gradient takes the place of. */
static void find_slices(struct planner *pl)
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
                layers[s].delta_slice =
                    layers[s].backward && !amp_layer_is_matrix(&pl->net->layers[s]);
                size_t used = strlen(layers[s].reason);
                snprintf(layers[s].reason + used, sizeof layers[s].reason - used,
                         "; writes into route %d", j);
            }
            if (s >= 0) first += pl->net->layers[s].out_c;
        }
    }
}

/* The first layer whose output, or whose delta, is a slice of that of i; i itself if there is none.
 */
static int first_slice(const struct planner *pl, int i, bool delta)
{
    for (int s = 0; s < i; s++) {
        const struct amp_plan_layer *p = &pl->plan->layers[s];
        if (p->route == i && (p->delta_slice || !delta)) return s;
    }
    return i;
}

int amp_plan_writes(const struct amp_plan *plan, int i)
{
    return i + 1 < plan->n && plan->layers[i + 1].fused ? i + 1 : i;
}

int amp_plan_normalized_source(const struct amp_plan *plan, const struct amp_net_desc *net, int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    if (!amp_layer_is_matrix(&net->layers[i]) || p->in != AMP_FORMAT_FP16 || !p->source_wanted[0])
        return -1;
    int s = p->sources[0];
    const struct amp_layer_desc *l = &net->layers[s];
    bool normalized =
        amp_layer_is_matrix(l) && l->batch_normalize && ampk_is_two_slopes(l->activation);
    bool fp16 = plan->layers[s].out == AMP_FORMAT_FP16;
    return normalized && fp16 && readers(plan, net, s) == 1 ? s : -1;
}

int amp_plan_loss_behind(const struct amp_plan *plan, const struct amp_net_desc *net, int i)
{
    const struct amp_plan_layer *p = &plan->layers[i];
    bool bias = p->ours && amp_layer_is_matrix(&net->layers[i]) && !net->layers[i].batch_normalize;
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

/* The last of the layers that share the delta of i. */
static int last_sharer(const struct planner *pl, int i)
{
    int last = i;
    for (int j = i + 1; j < pl->plan->n; j++)
        if (pl->plan->layers[j].delta_owner == i) last = j;
    return last;
}

/* ---- buffers ---- */

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

static size_t elements(const struct planner *pl, int i)
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
        size_t bytes = elements(pl, i) * amp_format_bytes((enum amp_format)f);
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
        return elements(pl, i) * (pl->net->layers[i].size <= 15 ? 1 : 4);
    case AMP_DROPOUT:
        return pl->plan->train ? elements(pl, i) : 0;
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
        size_t bytes = elements(pl, p->sources[k]) * amp_format_bytes(p->in);
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
    size_t n = elements(pl, i);
    p->border_copy = p->out != AMP_FORMAT_BORDER &&
                     (any_border_reader(pl, i) || i == last_without_cost(pl->net));
    size_t bytes[AMP_BUFFER_KINDS] = {0};
    int contribution = first_contribution(pl, last_sharer(pl, i));
    int made = p->fused ? i - 1 : i; /* by the layer before */
    int written = p->fused ? i - 1 : first_slice(pl, i, false);
    int consumed = p->fused ? b + 1 : backward_step(pl, first_slice(pl, i, true));
    int first[AMP_BUFFER_KINDS] = {written, i, made, contribution, b, b};
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

/* ---- totals ---- */

static size_t darknet_layer_bytes(const struct planner *pl, int i)
{
    const struct amp_layer_desc *l = &pl->net->layers[i];
    size_t per_element = 8;                                                 /* output, delta */
    if (l->batch_normalize && !amp_layer_is_recurrent(l)) per_element = 16; /* x, x_norm */
    if (l->type == AMP_DROPOUT) per_element = 4;  /* rand; the rest is its input's */
    if (l->type == AMP_MAXPOOL) per_element = 12; /* indexes */
    return elements(pl, i) * per_element;
}

static void add_totals(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    plan->mixed_bytes = plan->arena_bytes;
    for (int i = 0; i < plan->n; i++) {
        const struct amp_layer_desc *l = &pl->net->layers[i];
        const struct amp_plan_layer *p = &plan->layers[i];
        plan->flop += l->forward_flop;
        if (p->ours && amp_layer_is_matrix(l) && p->compute != AMPK_COMPUTE_FP32)
            plan->flop_reduced += l->forward_flop;
        plan->darknet_bytes += darknet_layer_bytes(pl, i);
        if (!p->ours)
            plan->mixed_bytes += darknet_layer_bytes(pl, i) + (p->loss ? 4 * elements(pl, i) : 0);
        else if (p->out == AMP_FORMAT_BORDER || p->border_copy)
            plan->mixed_bytes += (p->loss ? 8 : 4) * elements(pl, i);
    }
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

static int build(struct planner *pl)
{
    struct amp_plan *plan = pl->plan;
    for (int i = 0; i < plan->n; i++)
        if (choose_layer(pl, i)) return -1;
    choose_heads(pl);
    find_backward(pl);
    find_contributions(pl);
    fuse_layers(pl);
    find_slices(pl);
    plan->input_format = input_format(pl);
    if (plan_copies(pl, -1, plan->input_copy, AMP_FORMAT_BORDER)) return -1;
    for (int i = 0; i < plan->n; i++)
        if (plan_layer_buffers(pl, i)) return -1;
    plan->arena_bytes = amp_arena_place(plan->buffers, plan->n_buffers);
    if (plan->arena_bytes == SIZE_MAX) return -1;
    add_totals(pl);
    return 0;
}

struct amp_plan *amp_plan_make(const struct amp_net_desc *net, const struct amp_options *options,
                               unsigned device_losses, const enum amp_format *demoted, bool train,
                               char *err, size_t err_size)
{
    struct amp_plan *plan = calloc(1, sizeof *plan);
    if (plan) plan->layers = calloc((size_t)net->n, sizeof *plan->layers);
    if (plan && plan->layers) {
        plan->n = net->n;
        plan->island = island_of(options);
        plan->train = train;
        struct planner pl = {.net = net,
                             .options = options,
                             .device_losses = device_losses,
                             .demoted = demoted,
                             .plan = plan};
        if (build(&pl) == 0) return plan;
    }
    snprintf(err, err_size, "out of memory while planning %d layers", net->n);
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
