/* What a task of a convolution reads, cast to what is multiplied, and what it writes, rounded to
 * storage. */
#include "conv.h"

#include <omp.h>
#include <string.h>

/* ---- what is read ---- */

void ampk_conv_load_rows(struct ampk_context *ctx, const struct ampk_conv *conv,
                         const struct operand *o, void *dst)
{
    const struct ampk_tensor *t = o->t;
    int begin = ampk_smaller(ampk_larger(o->first, 0), o->first + o->rows);
    int end = ampk_larger(ampk_smaller(o->first + o->rows, t->h), begin);
    size_t row = (size_t)t->w * o->padded * ampk_operand_bytes(conv);
    size_t above = (size_t)(begin - o->first), inside = (size_t)(end - begin);
    size_t below = (size_t)(o->first + o->rows - end);
    char *to = (char *)dst + above * row;
    memset(dst, 0, above * row);
    const void *from =
        inside ? ampk_at(t, o->image, (size_t)begin * t->w * t->c + o->channel) : NULL;
    if (inside && conv->bf16)
        ctx->isa->rows.load_bf16((uint16_t *)to, (size_t)o->padded, from, t->dtype, inside * t->w,
                                 (size_t)o->channels, (size_t)t->c);
    else if (inside)
        ctx->isa->rows.load((float *)to, from, t->dtype, inside * t->w, (size_t)o->channels,
                            (size_t)t->c, conv->shape.compute);
    memset(to + inside * row, 0, below * row);
}

static bool is_stored_so(const struct ampk_conv *conv, const struct operand *o)
{
    return conv->bf16 && o->t->dtype == AMPK_BF16 && o->channels == o->t->c &&
           o->padded == o->t->c && o->first >= 0 && o->first + o->rows <= o->t->h;
}

void *ampk_conv_take_rows(struct ampk_context *ctx, const struct ampk_conv *conv,
                          const struct operand *o, void *memory)
{
    if (is_stored_so(conv, o)) return ampk_at(o->t, o->image, (size_t)o->first * o->t->w * o->t->c);
    ampk_conv_load_rows(ctx, conv, o, memory);
    return memory;
}

struct lane ampk_conv_lane_at(char *memory, const struct ampk_conv *conv, size_t x_bytes,
                              size_t y_bytes)
{
    char *x = memory + (size_t)omp_get_thread_num() * conv->lane_bytes;
    char *y = x + ampk_whole_lines(x_bytes);
    return (struct lane){x, y, y + ampk_whole_lines(y_bytes), NULL};
}

struct lane ampk_conv_pass_lane(const struct ampk_conv *conv, const struct pass *pass,
                                const struct ampk_tensor *from, const struct ampk_tensor *to,
                                char *memory)
{
    const struct bands *bands = &pass->bands;
    size_t read = ampk_operand_bytes(conv) * pass->read * from->w * bands->in_rows;
    size_t written = sizeof(float) * (pass->written / pass->slices) * to->w * bands->rows;
    return ampk_conv_lane_at(memory, conv, pass->to_x ? written : read,
                             pass->to_x ? read : written);
}

struct lane ampk_conv_take_unit(struct ampk_context *ctx, const struct ampk_conv *conv,
                                const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                                int unit, const struct lane *lane, bool in_place)
{
    const struct gradient *g = &conv->gradient;
    const struct bands *bands = &g->bands;
    int tile = task / g->groups;
    int filters = dy->c / g->slices_k, padded = conv->filters / g->slices_k;
    int channels = ampk_conv_slice_channels(conv) / g->slices_c;
    int filter = tile / g->slices_c * filters;
    int channel = (conv->apart ? tile : tile % g->slices_c) * channels;
    size_t image = (size_t)unit / bands->count;
    int band = unit % bands->count, first = band * bands->in_step - bands->in_offset;
    struct operand read_x = {x, image, first, bands->in_rows, channel, channels, channels};
    struct operand read_dy = {dy, image, band * bands->rows, bands->rows, filter, filters, padded};
    if (in_place)
        return (struct lane){ampk_conv_take_rows(ctx, conv, &read_x, lane->x),
                             ampk_conv_take_rows(ctx, conv, &read_dy, lane->y), lane->scratch,
                             NULL};
    ampk_conv_load_rows(ctx, conv, &read_x, lane->x);
    ampk_conv_load_rows(ctx, conv, &read_dy, lane->y);
    return *lane;
}

/* ---- what is written ---- */

struct ampk_region ampk_conv_region(const struct pass *pass, const struct ampk_tensor *t, int unit,
                                    int slice)
{
    int channels = t->c / pass->slices, first = unit % pass->bands.count * pass->bands.rows;
    int rows = ampk_smaller(pass->bands.rows, t->h - first);
    return (struct ampk_region){.tensor = t,
                                .image = (size_t)unit / pass->bands.count,
                                .pixel = (size_t)first * t->w,
                                .pixels = (size_t)rows * t->w,
                                .channel = (size_t)slice * channels,
                                .channels = (size_t)channels,
                                .source_stride = (size_t)pass->written / pass->slices};
}

static uint32_t store_region(struct ampk_context *ctx, const float *source,
                             const struct ampk_region *r, bool accumulate)
{
    size_t c = (size_t)r->tensor->c;
    return ctx->isa->rows.store(ampk_at(r->tensor, r->image, r->pixel * c + r->channel),
                                r->tensor->dtype, c, source, r->source_stride, r->pixels,
                                r->channels, accumulate);
}

float *ampk_conv_clear_sums(const struct ampk_region *r, const struct finish *finish, int unit)
{
    size_t c = (size_t)r->tensor->c;
    float *sums = finish->partial + (size_t)unit * 2 * c;
    memset(sums + r->channel, 0, r->channels * sizeof *sums);
    memset(sums + c + r->channel, 0, r->channels * sizeof *sums);
    return sums;
}

uint32_t ampk_conv_store(struct ampk_context *ctx, const float *values, const struct ampk_region *r,
                         const struct finish *finish, int unit)
{
    if (finish->bias) return ctx->isa->rows.store_bias(values, r, finish->bias, finish->activation);
    if (!finish->shift) return store_region(ctx, values, r, finish->accumulate);
    float *sums = ampk_conv_clear_sums(r, finish, unit);
    return ctx->isa->rows.store_sums(values, r, finish->shift, sums, sums + r->tensor->c);
}
