/* The weights of a convolution on their way from FP32 masters into the layouts of oneDNN or of
 * winograd.c, and their gradient on its way back.
 *
 * BF16 goes into both passes' layouts in one pass over the masters, if the layouts are lines of
 * BF16 (dnnl_compat.h): oneDNN's own reorder takes twice as long. Else oneDNN or winograd.c
 * reorders a rounded copy.
 */
#include "conv.h"

#include <omp.h>
#include <string.h>

enum {
    PACKED_FILTERS = 16, /* weights that are packed at once: they stay in the first-level cache */
    PACKED_CHANNELS = 32,
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

size_t ampk_conv_weights_memory(const struct ampk_context *ctx, const struct ampk_conv *conv)
{
    size_t copy = ampk_cpu_conv_padded_weights(conv) * sizeof(float);
    size_t packed = packed_bytes(&conv->shape) * ctx->threads;
    return copy > packed ? copy : packed;
}

/* ---- weights ---- */

/* Rounds a block into memory of this thread and puts it into the layouts of both passes. */
static void pack_block(struct ampk_context *ctx, struct ampk_conv *conv, const float *weights,
                       struct ampk_weight_block *b, uint16_t *memory)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const struct pass *to_y = &conv->to_y, *to_x = &conv->to_x;
    size_t row = (size_t)b->channels * b->taps;
    size_t filter = (size_t)ampk_conv_slice_channels(conv) * b->taps;
    int has = ampk_smaller(b->filters, s->k - b->filter);
    ctx->isa->rows.load_bf16(memory, row,
                             weights + b->filter * filter + (size_t)b->channel * b->taps, AMPK_FP32,
                             (size_t)has, row, filter);
    memset(memory + has * row, 0, (b->filters - has) * row * sizeof *memory);
    b->values = memory;
    int filters = conv->filters / to_y->slices, channels = s->c / to_x->slices;
    int group = conv->apart ? b->filter / filters : 0;
    if (to_y->plan)
        ctx->isa->put_lines(b, ampk_dnnl_plan_lines(to_y->plan), b->filter % filters, b->channel,
                            ampk_dnnl_weights_bf16(to_y->weights[b->filter / filters]));
    if (to_x->plan)
        ctx->isa->put_lines(b, ampk_dnnl_plan_lines(to_x->plan), b->filter - group * filters,
                            b->channel % channels,
                            ampk_dnnl_weights_bf16(to_x->weights[group + b->channel / channels]));
}

/* BF16 into layouts of lines. Some filters are read from memory once, in order, and then from the
 * cache. */
static uint32_t pack_lines(struct ampk_context *ctx, struct ampk_conv *conv, const float *weights)
{
    const struct ampk_conv_shape *s = &conv->shape;
    int taps = s->kh * s->kw, channels = ampk_conv_slice_channels(conv);
    size_t filter = (size_t)channels * taps;
    size_t lane = packed_bytes(s);
    char *memory = ampk_memory(ctx, lane * ctx->threads);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic) reduction(max : largest)
    for (int k = 0; k < s->k; k += PACKED_FILTERS) {
        size_t has = (size_t)ampk_smaller(PACKED_FILTERS, s->k - k);
        uint32_t found = ctx->isa->rows.amax(weights + k * filter, has * filter);
        if (found > largest) largest = found;
        for (int c = 0; c < channels; c += PACKED_CHANNELS) {
            struct ampk_weight_block b = {
                k, PACKED_FILTERS, c, ampk_smaller(channels - c, PACKED_CHANNELS), taps, NULL};
            pack_block(ctx, conv, weights, &b, (uint16_t *)(memory + lane * omp_get_thread_num()));
        }
    }
    return largest;
}

/* By oneDNN, into any layout, or into Winograd's panels. */
static uint32_t reorder_weights(struct ampk_context *ctx, struct ampk_conv *conv,
                                const float *weights)
{
    const struct ampk_conv_shape *s = &conv->shape;
    size_t count = ampk_conv_weight_count(s), pieces = ampk_pieces(count);
    size_t padded = ampk_cpu_conv_padded_weights(conv);
    const struct pass *to_y = &conv->to_y, *to_x = &conv->to_x;
    size_t filters = padded / to_y->slices; /* one pass slices by k, the other by c or by groups */
    size_t channels =
        conv->apart ? padded / to_x->slices : (size_t)s->c / to_x->slices * s->kh * s->kw;
    float *rounded = ampk_memory(ctx, padded * sizeof *rounded);
    memset(rounded + count, 0, (padded - count) * sizeof *rounded);
    uint32_t largest = 0;
#pragma omp parallel num_threads(ctx->threads)
    {
#pragma omp for reduction(max : largest)
        for (size_t i = 0; i < pieces; i++) {
            size_t first = i * AMPK_PIECE, size = ampk_piece(count, first);
            uint32_t found =
                ctx->isa->rows.round(rounded + first, weights + first, size, s->compute);
            if (found > largest) largest = found;
        }
        if (conv->winograd) ampk_winograd_pack(conv, rounded);
#pragma omp for schedule(dynamic) nowait
        for (int i = 0; i < (to_y->plan ? to_y->slices : 0); i++)
            ampk_dnnl_weights_pack(to_y->plan, rounded + i * filters, to_y->weights[i]);
#pragma omp for schedule(dynamic) nowait
        for (int i = 0; i < (to_x->plan ? to_x->slices : 0); i++)
            ampk_dnnl_weights_pack(to_x->plan, rounded + i * channels, to_x->weights[i]);
    }
    return largest;
}

static bool has_lines(const struct ampk_conv *conv)
{
    const struct ampk_dnnl_plan *to_y = conv->to_y.plan, *to_x = conv->to_x.plan;
    return !conv->winograd && (!to_y || ampk_dnnl_plan_lines(to_y)) &&
           (!to_x || ampk_dnnl_plan_lines(to_x));
}

void ampk_cpu_conv_set_weights(struct ampk_context *ctx, const struct ampk_new_weights *list,
                               int count)
{
    for (const struct ampk_new_weights *w = list; w < list + count; w++)
        ampk_amax_raise(w->amax, has_lines(w->conv) ? pack_lines(ctx, w->conv, w->weights)
                                                    : reorder_weights(ctx, w->conv, w->weights));
}

/* ---- weight gradients ---- */

/* A task's part of a tile. */
static float *partial(const struct ampk_conv *conv, int tile, int group, size_t *count)
{
    const struct gradient *g = &conv->gradient;
    size_t task = (size_t)tile * g->groups + group;
    if (!g->sums) return ampk_dnnl_weights_values(g->partial[task], count);
    *count = ampk_conv_tile(conv);
    return g->sums + task * *count;
}

/* Adds the partial gradients of a tile; returns the largest magnitude of the sum. */
static uint32_t finish_tile(struct ampk_context *ctx, struct ampk_conv *conv, int tile)
{
    size_t count;
    float *sum = partial(conv, tile, 0, &count);
    for (int i = 1; i < conv->gradient.groups; i++)
        ctx->isa->rows.add(sum, partial(conv, tile, i, &count), count);
    return ctx->isa->rows.amax(sum, count);
}

/* Of oneDNN one tile goes straight to dst, or to `plain`, which is laid out as dst is, and from
 * there while it is in the cache. */
static void take_tile(struct ampk_context *ctx, struct ampk_conv *conv, int tile, float *dst,
                      float factor, bool accumulate, float *plain)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const struct gradient *g = &conv->gradient;
    size_t filter = (size_t)(s->c / s->groups) * s->kh * s->kw, run = filter / g->slices_c, count;
    size_t filters = (size_t)s->k / g->slices_k; /* padded ones only if g->slices_k is 1 */
    size_t first = (size_t)tile / g->slices_c * filters * filter + tile % g->slices_c * run;
    const float *from = plain + first;
    size_t step = filter;
    if (g->sums) {
        from = partial(conv, tile, 0, &count);
        step = run;
    } else {
        bool direct = !accumulate && factor == 1 && conv->filters == s->k;
        ampk_dnnl_weights_unpack(g->plan, g->partial[(size_t)tile * g->groups],
                                 (direct ? dst : plain) + first);
        if (direct) return;
    }
    for (size_t i = 0; i < filters; i++)
        ctx->isa->rows.add_scaled(dst + first + i * filter, from + i * step, run, factor,
                                  accumulate);
}

/* Whoever wants the gradient first has the tiles finished, and may store them at once. */
static void take_gradient(struct ampk_context *ctx, struct ampk_conv *conv, float *dst,
                          float factor, bool accumulate)
{
    struct gradient *g = &conv->gradient;
    int tiles = g->slices_k * g->slices_c;
    float *plain = ampk_memory(ctx, ampk_cpu_conv_padded_weights(conv) * sizeof *plain);
    uint32_t largest = g->added ? g->amax : 0;
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic) reduction(max : largest)
    for (int tile = 0; tile < tiles; tile++) {
        uint32_t found = g->added ? 0 : finish_tile(ctx, conv, tile);
        if (found > largest) largest = found;
        if (dst) take_tile(ctx, conv, tile, dst, factor, accumulate, plain);
    }
    g->added = true;
    g->amax = largest;
}

void ampk_cpu_conv_weight_gradients(struct ampk_context *ctx,
                                    const struct ampk_weight_gradient *list, int count,
                                    float factor, bool accumulate)
{
    for (const struct ampk_weight_gradient *g = list; g < list + count; g++) {
        if (g->dst || !g->conv->gradient.added)
            take_gradient(ctx, g->conv, g->dst, factor, accumulate);
        ampk_amax_raise(g->amax, g->conv->gradient.amax);
    }
}
