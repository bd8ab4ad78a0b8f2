/* The weight gradient of a convolution in FP32 by gradient_fp32.c, where winograd.c does not have
 * it. A task takes one unit after the other, x with its padding on all sides. Both operands are
 * cast into panels of some channels or filters, of which some rows at a time are multiplied. Sums
 * lie tap after tap. */
#include "conv.h"

#include <string.h>

enum {
    FEWEST_PIXELS = 32, /* of an image of dy: the sums are loaded and stored for each */
    SLICE = 256,        /* filters or channels in a slice of a 1x1 convolution, or half of it, or */
    SLICE_OF_TAPS = 64, /* as of one with several taps; all, if none divides them */
    FILTERS = 64,       /* in a panel at most: so few that its pixels do not lie far apart */
    CHANNELS = 32,      /* in a panel, if that divides those of a slice */
    CHUNK_PIXELS = 112, /* multiplied at once, if rows are not longer */
};

bool ampk_gradient_suits(const struct ampk_conv_shape *s, const struct ampk_isa *isa)
{
    int pixels = ampk_conv_out(s, s->h, s->kh) * ampk_conv_out(s, s->w, s->kw);
    return isa->gradient && s->groups == 1 && s->c % AMPK_GRADIENT_CHANNELS == 0 &&
           pixels >= FEWEST_PIXELS;
}

static int slice_count(const struct ampk_conv_shape *s, int all)
{
    int slice = s->kh * s->kw == 1 ? SLICE : SLICE_OF_TAPS;
    while (slice > SLICE_OF_TAPS && all % slice)
        slice /= 2;
    return all % slice ? 1 : all / slice;
}

void ampk_gradient_slice(const struct ampk_conv *conv, int *slices_k, int *slices_c)
{
    *slices_k = slice_count(&conv->shape, conv->shape.k);
    *slices_c = slice_count(&conv->shape, conv->shape.c);
}

/* ---- a unit's operands ---- */

/* Of a tile, and of a unit of it. */
struct sizes {
    int channels, filters;
    int panel;          /* channels in a panel */
    int x_rows, x_wide; /* pixels of x, with the padding */
    int step;           /* pixels of x from one result to the next */
    size_t x, dy;       /* floats of x in all panels, of dy in one */
};

/* 1x1 without padding: pixels that the stride skips are left out of x. */
static bool is_point(const struct ampk_conv_shape *s)
{
    return s->kh == 1 && s->kw == 1 && s->pad == 0;
}

static struct sizes sizes_of(const struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const struct gradient *g = &conv->gradient;
    bool point = is_point(s);
    struct sizes z = {.channels = s->c / g->slices_c,
                      .filters = s->k / g->slices_k,
                      .panel = CHANNELS,
                      .x_rows = point ? g->bands.rows : g->bands.in_rows,
                      .x_wide = point ? conv->ow : s->w + 2 * s->pad,
                      .step = point ? 1 : s->stride};
    if (z.channels % z.panel) z.panel = AMPK_GRADIENT_CHANNELS;
    z.x = (size_t)z.channels * z.x_rows * z.x_wide;
    z.dy = (size_t)ampk_smaller(z.filters, FILTERS) * g->bands.rows * conv->ow;
    return z;
}

size_t ampk_gradient_lane_bytes(const struct ampk_conv *conv)
{
    struct sizes z = sizes_of(conv);
    return ampk_whole_lines(sizeof(float) * (z.x + z.dy));
}

/* Takes a panel of x: the pixels that a point reads, and no others. */
static void take_points(struct ampk_context *ctx, const struct ampk_conv *conv,
                        const struct operand *o, float *out)
{
    const struct ampk_tensor *t = o->t;
    int stride = conv->shape.stride;
    for (int i = 0; i < o->rows; i++, out += (size_t)conv->ow * o->channels) {
        size_t pixel = (size_t)(o->first + i) * stride * t->w;
        ctx->isa->rows.load(out, ampk_at(t, o->image, pixel * t->c + o->channel), t->dtype,
                            (size_t)conv->ow, (size_t)o->channels, (size_t)t->c * stride,
                            conv->shape.compute);
    }
}

/* Takes a panel of x: whole rows, with `pad` pixels of 0 on both sides. */
static void take_padded(struct ampk_context *ctx, const struct ampk_conv *conv, struct operand o,
                        float *out)
{
    size_t side = (size_t)conv->shape.pad * o.channels, inside = (size_t)o.t->w * o.channels;
    int end = o.first + o.rows;
    for (o.rows = 1; o.first < end; o.first++) {
        memset(out, 0, side * sizeof *out);
        ampk_conv_load_rows(ctx, conv, &o, out + side);
        memset(out + side + inside, 0, side * sizeof *out);
        out += 2 * side + inside;
    }
}

/* Takes all panels of the rows of x that some rows of dy read. */
static void take_x(struct ampk_context *ctx, const struct ampk_conv *conv, const struct sizes *z,
                   const struct ampk_tensor *x, const struct operand *dy, int channel, float *out)
{
    const struct ampk_conv_shape *s = &conv->shape;
    struct operand o = {x, dy->image, dy->first, dy->rows, channel, z->panel, z->panel};
    for (int c = 0; c < z->channels; c += z->panel, o.channel += z->panel) {
        float *panel = out + (size_t)c * z->x_rows * z->x_wide;
        if (is_point(s)) {
            take_points(ctx, conv, &o, panel);
            continue;
        }
        o.first = dy->first * s->stride - s->pad;
        o.rows = z->x_rows;
        take_padded(ctx, conv, o, panel);
    }
}

/* ---- a task ---- */

/* Multiplies a panel of dy with all panels of x. */
static void multiply_panel(struct ampk_context *ctx, const struct ampk_conv *conv,
                           const struct sizes *z, const struct operand *o, const float *dy,
                           const float *x, float *sums, bool add)
{
    const struct ampk_conv_shape *s = &conv->shape;
    size_t filters = (size_t)o->channels, panel = (size_t)z->panel, x_row = z->x_wide * panel;
    size_t tap_sums = (size_t)z->filters * z->channels;
    int chunk = ampk_larger(CHUNK_PIXELS / conv->ow, 1);
    struct ampk_gradient_rows r = {.pixels = (size_t)conv->ow,
                                   .dy_row = conv->ow * filters,
                                   .x_row = z->step * x_row,
                                   .x_step = z->step * panel};
    for (int c = 0; c < z->channels; c += z->panel, x += z->x_rows * x_row)
        for (int i = 0; i < o->rows; i += chunk) {
            r.rows = (size_t)ampk_smaller(chunk, o->rows - i);
            for (int tap = 0; tap < s->kh * s->kw; tap++) {
                const float *from = x + i * r.x_row + tap / s->kw * x_row + tap % s->kw * panel;
                ctx->isa->gradient(&r, dy + i * r.dy_row, filters, from, panel,
                                   sums + tap * tap_sums + c, (size_t)z->channels, add || i > 0);
            }
        }
}

void ampk_gradient_task(struct ampk_context *ctx, const struct ampk_conv *conv,
                        const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                        void *memory, float *sums)
{
    const struct gradient *g = &conv->gradient;
    const struct bands *bands = &g->bands;
    struct sizes z = sizes_of(conv);
    int channel = task / g->groups % g->slices_c * z.channels;
    int filter = task / g->groups / g->slices_c * z.filters;
    int begin = task % g->groups * g->units, units = conv->shape.n * bands->count;
    float *of_x = memory, *of_dy = of_x + z.x;
    for (int unit = begin; unit < ampk_smaller(begin + g->units, units); unit++) {
        struct operand o = {.t = dy, .image = (size_t)unit / bands->count};
        o.first = unit % bands->count * bands->rows;
        o.rows = ampk_smaller(bands->rows, conv->oh - o.first);
        take_x(ctx, conv, &z, x, &o, channel, of_x);
        for (int k = 0; k < z.filters; k += FILTERS) {
            o.channel = filter + k;
            o.channels = o.padded = ampk_smaller(FILTERS, z.filters - k);
            ampk_conv_load_rows(ctx, conv, &o, of_dy);
            multiply_panel(ctx, conv, &z, &o, of_dy, of_x, sums + (size_t)k * z.channels,
                           unit > begin);
        }
    }
}
