/* The weight gradient of a convolution of BF16 by gradient_avx512.c. Tasks are as conv_create.c has
 * them, but for this: a task takes units two by two, the first of each beside the second, and it
 * reads them where they lie if they are stored as BF16. Sums are FP32, of a tap after the other.
 */
#include "conv.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <string.h>

/* ---- which ---- */

bool ampk_has_amx_bf16(void)
{
#ifdef __x86_64__
    unsigned a, b, c, d, amx_bf16 = 1u << 22; /* GCC and clang name the bit differently */
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & amx_bf16;
#else
    return false;
#endif
}

enum {
    FEWEST_PIXELS = 32,  /* the sums are loaded and stored for each two images */
    FEWEST_OF_TAPS = 128 /* those of several taps are turned too */
};

const struct ampk_pairs *ampk_pairs_for(const struct ampk_conv_shape *s, const struct ampk_isa *isa)
{
    int pixels = ampk_conv_out(s, s->h, s->kh) * ampk_conv_out(s, s->w, s->kw);
    bool pays = pixels >= (s->kh * s->kw == 1 ? FEWEST_PIXELS : FEWEST_OF_TAPS);
    return s->groups == 1 && pays && !ampk_has_amx_bf16() ? isa->pairs : NULL;
}

/* ---- sizes ---- */

struct sizes {
    size_t channels, filters; /* of a tile */
    size_t rows;              /* of filters in the sums: whole panels */
    size_t wide;              /* pixels in a row of x, with the padding */
    size_t x, dy, cast;       /* words of a task's pairs, and of what is cast */
};

static size_t whole(size_t n, size_t panel)
{
    return (n + panel - 1) / panel * panel;
}

static struct sizes sizes_of(const struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const struct gradient *g = &conv->gradient;
    struct sizes z = {.channels = (size_t)s->c / g->slices_c,
                      .filters = (size_t)s->k / g->slices_k,
                      .wide = (size_t)s->w + 2 * s->pad};
    z.rows = (size_t)g->filled;
    z.x = whole(z.channels, AMPK_PAIR_CHANNELS) * g->bands.in_rows * z.wide;
    z.dy = z.rows * g->bands.rows * conv->ow;
    z.cast = z.x > z.dy ? z.x : z.dy; /* two units of BF16 take no more than their pairs */
    return z;
}

size_t ampk_pairs_lane_bytes(const struct ampk_conv *conv)
{
    struct sizes z = sizes_of(conv);
    return ampk_whole_lines(sizeof(uint32_t) * (z.x + z.dy + z.cast));
}

/* ---- operands ---- */

/* Rows [begin, end) of a unit's operand; it has no others. */
struct band {
    const uint16_t *values;
    int begin, end;
    size_t row, stride; /* values from row to row, and from pixel to pixel */
};

/* Where they lie, or cast into memory. */
static struct band take_band(struct ampk_context *ctx, const struct ampk_conv *conv,
                             const struct operand *o, uint16_t *memory)
{
    const struct ampk_tensor *t = o->t;
    if (t->dtype == AMPK_BF16) {
        int begin = ampk_larger(-o->first, 0), end = ampk_smaller(o->rows, t->h - o->first);
        size_t row = (size_t)t->w * t->c, from = (size_t)(o->first + begin) * row;
        return (struct band){ampk_at(t, o->image, from + o->channel), begin, end, row,
                             (size_t)t->c};
    }
    ampk_conv_load_rows(ctx, conv, o, memory);
    return (struct band){memory, 0, o->rows, (size_t)t->w * o->channels, (size_t)o->channels};
}

static const uint16_t *row_of(const struct band *b, int row)
{
    return row < b->begin || row >= b->end ? NULL : b->values + (row - b->begin) * b->row;
}

/* All rows of two bands, with `pad` pixels of 0 on both sides. */
static void pair_bands(__typeof__(ampk_isa_base.pairs->of_channels) of, const struct band b[2],
                       size_t rows, size_t w, size_t pad, size_t channels, size_t panel,
                       uint32_t *out)
{
    size_t wide = w + 2 * pad, step = rows * wide * panel;
    for (size_t i = 0; i < rows; i++, out += wide * panel) {
        for (size_t c = 0; pad && c < channels; c += panel) {
            uint32_t *row = out + c / panel * step;
            memset(row, 0, pad * panel * sizeof *row);
            memset(row + (pad + w) * panel, 0, pad * panel * sizeof *row);
        }
        const struct ampk_pair_source rows_of = {row_of(&b[0], (int)i), row_of(&b[1], (int)i), w,
                                                 channels, b[0].stride};
        of(&rows_of, step, out + pad * panel);
    }
}

/* One operand of two units, of which the second may be missing. cast: room for both as BF16. */
static void pair_units(struct ampk_context *ctx, const struct ampk_conv *conv,
                       const struct ampk_tensor *t, bool is_x, int tile, int unit, uint16_t *cast,
                       uint32_t *out)
{
    const struct gradient *g = &conv->gradient;
    const struct bands *bands = &g->bands;
    int channels = t->c / (is_x ? g->slices_c : g->slices_k), n = conv->shape.n;
    struct operand o = {.t = t, .channels = channels, .padded = channels};
    struct band b[2] = {{0}};
    o.rows = is_x ? bands->in_rows : bands->rows;
    o.channel = (is_x ? tile % g->slices_c : tile / g->slices_c) * channels;
    for (int i = 0; i < 2 && unit + i < n * bands->count; i++, cast += o.rows * t->w * channels) {
        int band = (unit + i) / n;
        o.image = (size_t)((unit + i) % n);
        o.first = is_x ? band * bands->in_step - bands->in_offset : band * bands->rows;
        b[i] = take_band(ctx, conv, &o, cast);
    }
    pair_bands(is_x ? ctx->isa->pairs->of_channels : ctx->isa->pairs->of_filters, b, (size_t)o.rows,
               (size_t)t->w, is_x ? (size_t)conv->shape.pad : 0, (size_t)channels,
               is_x ? AMPK_PAIR_CHANNELS : AMPK_PAIR_FILTERS, out);
}

/* ---- a task ---- */

/* Pairs times pairs. Operands of a panel of channels stay in the cache for all filters, those of a
 * panel of filters for all taps. */
static void multiply(struct ampk_context *ctx, const struct ampk_conv *conv, const struct sizes *z,
                     const uint32_t *x, const uint32_t *dy, int rows, float *sums, bool add)
{
    const struct ampk_conv_shape *s = &conv->shape;
    size_t taps = (size_t)s->kh * s->kw, ow = (size_t)conv->ow;
    size_t x_row = z->wide * AMPK_PAIR_CHANNELS;
    size_t x_panel = (size_t)conv->gradient.bands.in_rows * x_row;
    size_t dy_panel = (size_t)conv->gradient.bands.rows * ow * AMPK_PAIR_FILTERS;
    struct ampk_gradient_rows r = {.rows = (size_t)rows,
                                   .pixels = ow,
                                   .dy_row = ow * AMPK_PAIR_FILTERS,
                                   .x_row = s->stride * x_row,
                                   .x_step = (size_t)s->stride * AMPK_PAIR_CHANNELS};
    if (s->stride == 1 && z->wide == ow) r.rows = 1, r.pixels = ow * rows;
    for (size_t c = 0; c < z->channels; c += AMPK_PAIR_CHANNELS)
        for (size_t k = 0; k < z->filters; k += AMPK_PAIR_FILTERS)
            for (size_t tap = 0; tap < taps; tap++)
                ctx->isa->pairs->multiply(
                    &r, dy + k / AMPK_PAIR_FILTERS * dy_panel,
                    x + c / AMPK_PAIR_CHANNELS * x_panel + tap / s->kw * x_row +
                        tap % s->kw * AMPK_PAIR_CHANNELS,
                    z->channels - c, sums + (tap * z->rows + k) * z->channels + c, z->channels,
                    add);
}

void ampk_pairs_task(struct ampk_context *ctx, const struct ampk_conv *conv,
                     const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                     void *memory, float *sums)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const struct gradient *g = &conv->gradient;
    struct sizes z = sizes_of(conv);
    uint32_t *x_pairs = memory, *dy_pairs = x_pairs + z.x, *cast = dy_pairs + z.dy;
    int units = s->n * g->bands.count, first = task % g->groups * g->units * 2;
    for (int unit = first; unit < ampk_smaller(first + g->units * 2, units); unit += 2) {
        int rows = ampk_smaller(g->bands.rows, conv->oh - unit / s->n * g->bands.rows);
        pair_units(ctx, conv, x, true, task / g->groups, unit, (uint16_t *)cast, x_pairs);
        pair_units(ctx, conv, dy, false, task / g->groups, unit, (uint16_t *)cast, dy_pairs);
        multiply(ctx, conv, &z, x_pairs, dy_pairs, rows, sums, unit > first);
    }
}
