/* The weights of a convolution on their way from FP32 masters into the layouts of oneDNN, and their
 * gradient on its way back.
 *
 * BF16 goes into a layout in one pass over the masters, if the layout is lines of BF16
 * (dnnl_compat.h), as ours is: oneDNN's own reorder takes twice as long. Else oneDNN reorders a
 * rounded copy.
 *
 * A training's passes pack their weights when they run, into work memory that all convolutions
 * share, so that no convolution keeps any. The partial gradients of a pass lie there too.
 * Winograd's passes read the masters themselves.
 */
#include "conv.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    PACKED_FILTERS = 16, /* weights that are packed at once: they stay in the first-level cache */
    PACKED_CHANNELS = 32,
    FINISHED_FILTERS = 16, /* of a tile, whose gradient a thread finishes at once */
};

/* A thread's weights that are packed at once. */
static size_t packed_bytes(const struct ampk_conv_shape *s)
{
    return ampk_whole_lines(sizeof(uint16_t) * PACKED_FILTERS * PACKED_CHANNELS * s->kh * s->kw);
}

size_t ampk_cpu_conv_padded_weights(const struct ampk_conv *conv)
{
    return ampk_conv_weight_count(&conv->shape) / conv->shape.k * conv->filters;
}

static bool has_lines(const struct ampk_conv *conv)
{
    return ampk_conv_lines(&conv->to_y) && ampk_conv_lines(&conv->to_x);
}

size_t ampk_conv_packing_memory(const struct ampk_context *ctx, const struct ampk_conv *conv)
{
    bool in_order = conv->winograd || has_lines(conv);
    size_t copy = in_order ? 0 : ampk_cpu_conv_padded_weights(conv) * sizeof(float);
    size_t packed = packed_bytes(&conv->shape) * ctx->threads;
    return ampk_whole_lines(copy > packed ? copy : packed);
}

/* ---- weights ---- */

/* Where packed weights go; NULL: not into that pass's layout. */
struct packed {
    char *to_y, *to_x;
};

static void place_slices(const struct pass *pass, char *weights)
{
    for (int i = 0; weights && pass->slice && i < pass->slices; i++)
        ampk_dnnl_weights_place(pass->slice[i], weights + i * pass->slice_bytes);
}

static uint16_t *slice_at(const struct pass *pass, char *weights, int slice)
{
    return (uint16_t *)(weights + slice * pass->slice_bytes);
}

/* Rounds a block into memory of this thread and puts it into the layouts. */
static void pack_block(struct ampk_context *ctx, const struct ampk_conv *conv,
                       struct ampk_weight_block *b, uint16_t *memory, const struct packed *out)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const struct pass *to_y = &conv->to_y, *to_x = &conv->to_x;
    size_t row = (size_t)b->channels * b->taps;
    size_t filter = (size_t)ampk_conv_slice_channels(conv) * b->taps;
    int has = ampk_smaller(b->filters, s->k - b->filter);
    ctx->isa->rows.load_bf16(memory, row,
                             conv->masters + b->filter * filter + (size_t)b->channel * b->taps,
                             AMPK_FP32, (size_t)has, row, filter);
    memset(memory + has * row, 0, (b->filters - has) * row * sizeof *memory);
    b->values = memory;
    int filters = conv->filters / to_y->slices, channels = s->c / to_x->slices;
    int group = conv->apart ? b->filter / filters : 0;
    if (out->to_y)
        ctx->isa->put_lines(b, ampk_conv_lines(to_y), b->filter % filters, b->channel,
                            slice_at(to_y, out->to_y, b->filter / filters));
    if (out->to_x)
        ctx->isa->put_lines(b, ampk_conv_lines(to_x), b->filter - group * filters,
                            b->channel % channels,
                            slice_at(to_x, out->to_x, group + b->channel / channels));
}

/* BF16 into layouts of lines. Some filters are read from memory once, in order, and then from the
 * cache. */
static uint32_t pack_lines(struct ampk_context *ctx, const struct ampk_conv *conv,
                           const struct packed *out, char *memory)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const float *weights = conv->masters;
    int taps = s->kh * s->kw, channels = ampk_conv_slice_channels(conv);
    size_t filter = (size_t)channels * taps;
    size_t lane = packed_bytes(s);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic) reduction(max : largest)
    for (int k = 0; k < s->k; k += PACKED_FILTERS) {
        size_t has = (size_t)ampk_smaller(PACKED_FILTERS, s->k - k);
        uint32_t found = 0;
        if (conv->masters_amax) found = ctx->isa->rows.amax(weights + k * filter, has * filter);
        if (found > largest) largest = found;
        for (int c = 0; c < channels; c += PACKED_CHANNELS) {
            struct ampk_weight_block b = {
                k, PACKED_FILTERS, c, ampk_smaller(channels - c, PACKED_CHANNELS), taps, NULL};
            pack_block(ctx, conv, &b, (uint16_t *)(memory + lane * omp_get_thread_num()), out);
        }
    }
    return largest;
}

/* Rounded, in order. */
static uint32_t round_weights(struct ampk_context *ctx, const struct ampk_conv *conv, float *out)
{
    size_t count = ampk_conv_weight_count(&conv->shape), pieces = ampk_pieces(count);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) reduction(max : largest)
    for (size_t i = 0; i < pieces; i++) {
        size_t first = i * AMPK_PIECE;
        uint32_t found = ctx->isa->rows.round(out + first, conv->masters + first,
                                              ampk_piece(count, first), conv->shape.compute);
        if (found > largest) largest = found;
    }
    return largest;
}

/* By oneDNN, into any layout. */
static uint32_t reorder_weights(struct ampk_context *ctx, const struct ampk_conv *conv,
                                const struct packed *out, char *memory)
{
    const struct ampk_conv_shape *s = &conv->shape;
    size_t count = ampk_conv_weight_count(s), padded = ampk_cpu_conv_padded_weights(conv);
    const struct pass *to_y = &conv->to_y, *to_x = &conv->to_x;
    size_t filters = padded / to_y->slices; /* one pass slices by k, the other by c or by groups */
    size_t channels =
        conv->apart ? padded / to_x->slices : (size_t)s->c / to_x->slices * s->kh * s->kw;
    float *rounded = (float *)memory;
    memset(rounded + count, 0, (padded - count) * sizeof *rounded);
    uint32_t largest = round_weights(ctx, conv, rounded);
#pragma omp parallel num_threads(ctx->threads)
    {
#pragma omp for schedule(dynamic) nowait
        for (int i = 0; i < (to_y->plan && out->to_y ? to_y->slices : 0); i++)
            ampk_dnnl_weights_pack(to_y->plan, rounded + i * filters, to_y->slice[i]);
#pragma omp for schedule(dynamic) nowait
        for (int i = 0; i < (to_x->plan && out->to_x ? to_x->slices : 0); i++)
            ampk_dnnl_weights_pack(to_x->plan, rounded + i * channels, to_x->slice[i]);
    }
    return largest;
}

static void pack(struct ampk_context *ctx, struct ampk_conv *conv, struct packed out, char *memory)
{
    uint32_t largest;
    place_slices(&conv->to_y, out.to_y);
    place_slices(&conv->to_x, out.to_x);
    if (conv->winograd)
        largest = round_weights(ctx, conv, (float *)(out.to_y ? out.to_y : out.to_x));
    else if (has_lines(conv))
        largest = pack_lines(ctx, conv, &out, memory);
    else
        largest = reorder_weights(ctx, conv, &out, memory);
    ampk_amax_raise(conv->masters_amax, largest);
    conv->masters_amax = NULL;
}

void ampk_cpu_conv_set_weights(struct ampk_context *ctx, const struct ampk_new_weights *list,
                               int count)
{
    for (const struct ampk_new_weights *w = list; w < list + count; w++) {
        struct ampk_conv *conv = w->conv;
        struct packed kept = {conv->to_y.weights, conv->to_x.weights};
        conv->masters = w->weights;
        conv->masters_amax = w->amax;
        if (!conv->packs_anew)
            pack(ctx, conv, kept, ampk_memory(ctx, ampk_conv_packing_memory(ctx, conv)));
    }
}

size_t ampk_conv_pass_memory(const struct ampk_context *ctx, const struct ampk_conv *conv,
                             const struct pass *pass)
{
    if (conv->winograd) return ampk_winograd_turn_bytes(conv, pass);
    size_t packed = ampk_conv_packed_bytes(pass) + ampk_conv_packing_memory(ctx, conv);
    return conv->packs_anew ? packed : 0;
}

const char *ampk_conv_take_weights(struct ampk_context *ctx, struct ampk_conv *conv,
                                   const struct pass *pass, char *memory)
{
    if (!conv->packs_anew) return pass->weights;
    if (conv->winograd) return (const char *)conv->masters;
    struct packed out = {pass->to_x ? NULL : memory, pass->to_x ? memory : NULL};
    pack(ctx, conv, out, memory + ampk_conv_packed_bytes(pass));
    return memory;
}

/* ---- weight gradients ---- */

/* Where filters are padded, the gradient is laid out with them first. */
static size_t padded_bytes(const struct ampk_conv *conv)
{
    bool padded = conv->gradient.plan && conv->filters != conv->shape.k;
    return padded ? ampk_cpu_conv_padded_weights(conv) * sizeof(float) : 0;
}

size_t ampk_conv_partials_memory(const struct ampk_conv *conv)
{
    const struct gradient *g = &conv->gradient;
    return g->partial_bytes * ampk_conv_tiles(g) * g->groups + padded_bytes(conv);
}

static struct ampk_parts parts_of(const struct ampk_conv *conv, const char *partials, int tile)
{
    const struct gradient *g = &conv->gradient;
    size_t step = g->partial_bytes / sizeof(float);
    const float *first = (const float *)partials + (size_t)tile * g->groups * step;
    return (struct ampk_parts){first, (size_t)g->groups, step, 0};
}

/* Some filters of a tile whose sums lie tap after tap; their gradient begins at `gradient`. */
static uint32_t finish_taps(struct ampk_context *ctx, const struct ampk_conv *conv,
                            struct ampk_parts parts, int first, int count, float *memory,
                            float *gradient)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const struct gradient *g = &conv->gradient;
    size_t taps = (size_t)s->kh * s->kw, channels = (size_t)s->c / g->slices_c;
    parts.first += first * channels;
    parts.stride = taps == 1 ? channels : g->filled * channels;
    if (taps == 1)
        return ctx->isa->rows.add_parts(gradient, (size_t)s->c, &parts, (size_t)count, channels);
    uint32_t largest = 0;
    for (int k = 0; k < count; k++, parts.first += channels, gradient += s->c * taps) {
        uint32_t found = ctx->isa->rows.add_parts(memory, channels, &parts, taps, channels);
        if (found > largest) largest = found;
        for (size_t c = 0; c < channels; c++)
            for (size_t tap = 0; tap < taps; tap++)
                gradient[c * taps + tap] = memory[tap * channels + c];
    }
    return largest;
}

/* Some filters of a tile. memory: a lane's. */
static uint32_t finish_filters(struct ampk_context *ctx, const struct ampk_conv *conv,
                               const char *partials, int tile, int first, int count, void *memory)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const struct gradient *g = &conv->gradient;
    size_t filter = (size_t)s->c * s->kh * s->kw, run = filter / g->slices_c;
    size_t before = (size_t)tile / g->slices_c * (s->k / g->slices_k) + first;
    float *at = g->kept + before * filter + tile % g->slices_c * run;
    struct ampk_parts parts = parts_of(conv, partials, tile);
    if (g->filled) return finish_taps(ctx, conv, parts, first, count, memory, at);
    parts.first += first * run;
    parts.stride = run;
    return ctx->isa->rows.add_parts(at, filter, &parts, (size_t)count, run);
}

/* A tile of oneDNN's. padded: laid out as the gradient is with padded filters. */
static uint32_t finish_tile(struct ampk_context *ctx, const struct ampk_conv *conv,
                            const char *partials, int tile, float *padded)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const struct gradient *g = &conv->gradient;
    struct ampk_parts parts = parts_of(conv, partials, tile);
    size_t count = ampk_dnnl_plan_weights(g->plan) / sizeof(float);
    uint32_t largest = ctx->isa->rows.add_parts((float *)parts.first, 0, &parts, 1, count);
    size_t filter = (size_t)(s->c / s->groups) * s->kh * s->kw, run = filter / g->slices_c;
    size_t filters = (size_t)s->k / g->slices_k; /* padded ones only if g->slices_k is 1 */
    size_t first = (size_t)tile / g->slices_c * filters * filter + tile % g->slices_c * run;
    bool direct = conv->filters == s->k;
    ampk_dnnl_weights_unpack(g->plan, g->partial[(size_t)tile * g->groups],
                             (direct ? g->kept : padded) + first);
    for (size_t i = 0; i < (direct ? 0 : filters); i++)
        memcpy(g->kept + first + i * filter, padded + first + i * filter, run * sizeof *padded);
    return largest;
}

void ampk_conv_finish_gradient(struct ampk_context *ctx, struct ampk_conv *conv, char *lanes,
                               char *partials)
{
    struct gradient *g = &conv->gradient;
    int tiles = ampk_conv_tiles(g), filters = conv->shape.k / g->slices_k;
    int at_once = g->plan ? filters : ampk_smaller(filters, FINISHED_FILTERS);
    int blocks = (filters + at_once - 1) / at_once;
    float *padded = (float *)(partials + (size_t)tiles * g->groups * g->partial_bytes);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic) reduction(max : largest)
    for (int i = 0; i < tiles * blocks; i++) {
        int tile = i / blocks, first = i % blocks * at_once;
        void *memory = lanes + omp_get_thread_num() * conv->lane_bytes;
        uint32_t found = g->plan ? finish_tile(ctx, conv, partials, tile, padded)
                                 : finish_filters(ctx, conv, partials, tile, first,
                                                  ampk_smaller(at_once, filters - first), memory);
        if (found > largest) largest = found;
    }
    g->amax = largest;
}

void ampk_cpu_conv_keep_gradient(struct ampk_context *ctx, struct ampk_conv *conv, float *at)
{
    struct gradient *g = &conv->gradient;
    (void)ctx;
    if (!g->is_lent) free(g->kept);
    g->kept = at;
    g->is_lent = true;
}

void ampk_cpu_conv_weight_gradients(struct ampk_context *ctx,
                                    const struct ampk_weight_gradient *list, int count,
                                    float factor, bool accumulate)
{
    for (const struct ampk_weight_gradient *g = list; g < list + count; g++) {
        const struct gradient *own = &g->conv->gradient;
        size_t n = ampk_conv_weight_count(&g->conv->shape), pieces = ampk_pieces(n);
        ampk_amax_raise(g->amax, own->amax);
#pragma omp parallel for num_threads(ctx->threads) if (pieces > 1)
        for (size_t i = 0; i < (g->dst ? pieces : 0); i++)
            ctx->isa->rows.add_scaled(g->dst + i * AMPK_PIECE, own->kept + i * AMPK_PIECE,
                                      ampk_piece(n, i * AMPK_PIECE), factor, accumulate);
    }
}
