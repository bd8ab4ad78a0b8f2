/* The weight gradient of a convolution in FP32 by gradient_fp32.c, where winograd.c does not have
 * it. Tasks are as conv_create.c has them, but for this: a task takes one unit after the other, in
 * panels of filters and of channels that stay in the first-level cache, x with its padding on all
 * sides. Sums lie tap after tap. */
#include "conv.h"

#include <string.h>

enum {
    FEWEST_PIXELS = 32, /* the sums are loaded and stored for each image */
    SLICE = 256,        /* filters or channels in a slice, if that divides them; of several taps: */
    SLICE_OF_TAPS = 64,
    PANEL = 64, /* filters or channels, at most: so few that a panel's pixels do not lie far apart */
    CHUNK_PIXELS = 64, /* multiplied at once, if rows are not longer */
};

bool ampk_rows_suit(const struct ampk_conv_shape *s, const struct ampk_isa *isa)
{
    int pixels = ampk_conv_out(s, s->h, s->kh) * ampk_conv_out(s, s->w, s->kw);
    return isa->gradient && s->groups == 1 && s->c % AMPK_GRADIENT_CHANNELS == 0 &&
           pixels >= FEWEST_PIXELS;
}

static int slice_count(const struct ampk_conv_shape *s, int all)
{
    int slice = s->kh * s->kw == 1 ? SLICE : SLICE_OF_TAPS;
    while (slice > PANEL && all % slice)
        slice /= 2;
    return all % slice ? 1 : all / slice;
}

void ampk_rows_slice(const struct ampk_conv *conv, int *slices_k, int *slices_c)
{
    *slices_k = slice_count(&conv->shape, conv->shape.k);
    *slices_c = slice_count(&conv->shape, conv->shape.c);
}

/* ---- a unit's operands ---- */

struct sizes {
    int channels, filters, panel; /* of a tile; of a panel of channels */
    int x_rows, x_wide, step;     /* pixels of x in a unit; from one that a tap reads to the next */
    size_t x, dy;                 /* floats of a unit */
};

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
                      .panel = PANEL,
                      .x_rows = point ? g->bands.rows : g->bands.in_rows,
                      .x_wide = point ? conv->ow : s->w + 2 * s->pad,
                      .step = point ? 1 : s->stride};
    while (z.channels % z.panel)
        z.panel -= AMPK_GRADIENT_CHANNELS;
    z.x = (size_t)z.channels * z.x_rows * z.x_wide;
    z.dy = (size_t)z.filters * g->bands.rows * conv->ow;
    return z;
}

size_t ampk_rows_lane_bytes(const struct ampk_conv *conv)
{
    struct sizes z = sizes_of(conv);
    return ampk_whole_lines(sizeof(float) * (z.x + z.dy));
}

/* A panel of x, of the pixels alone that a point reads. */
static void take_points(struct ampk_context *ctx, const struct ampk_conv *conv,
                        const struct operand *o, int stride, float *out)
{
    const struct ampk_tensor *t = o->t;
    for (int i = 0; i < o->rows; i++, out += (size_t)conv->ow * o->channels) {
        size_t pixel = (size_t)(o->first + i) * stride * t->w;
        ctx->isa->rows.load(out, ampk_at(t, o->image, pixel * t->c + o->channel), t->dtype,
                            (size_t)conv->ow, (size_t)o->channels, (size_t)t->c * stride,
                            conv->shape.compute);
    }
}

/* The same with `pad` pixels of 0 on both sides. */
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

/* ---- a task ---- */

/* A panel of filters times one of channels: `rows` rows of dy. */
static void multiply_panels(struct ampk_context *ctx, const struct ampk_conv *conv,
                            const struct sizes *z, int rows, const float *dy, int filters,
                            const float *x, float *sums, bool add)
{
    const struct ampk_conv_shape *s = &conv->shape;
    size_t x_row = (size_t)z->x_wide * z->panel, dy_row = (size_t)conv->ow * filters;
    int chunk = ampk_larger(CHUNK_PIXELS / conv->ow, 1);
    for (int i = 0; i < rows; i += chunk) {
        struct ampk_gradient_rows r = {.rows = (size_t)ampk_smaller(chunk, rows - i),
                                       .pixels = (size_t)conv->ow,
                                       .dy_row = dy_row,
                                       .x_row = z->step * x_row,
                                       .x_step = (size_t)z->step * z->panel};
        const float *from = x + i * z->step * x_row;
        for (int tap = 0; tap < s->kh * s->kw; tap++)
            ctx->isa->gradient(&r, dy + i * dy_row, (size_t)filters,
                               from + tap / s->kw * x_row + tap % s->kw * z->panel,
                               (size_t)z->panel, sums + (size_t)tap * z->filters * z->channels,
                               (size_t)z->channels, add || i > 0);
    }
}

void ampk_rows_task(struct ampk_context *ctx, const struct ampk_conv *conv,
                    const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                    void *memory, float *sums)
{
    const struct ampk_conv_shape *s = &conv->shape;
    const struct gradient *g = &conv->gradient;
    const struct bands *bands = &g->bands;
    struct sizes z = sizes_of(conv);
    int channel = task / g->groups % g->slices_c * z.channels;
    int filter = task / g->groups / g->slices_c * z.filters;
    int begin = task % g->groups * g->units, units = s->n * bands->count;
    for (int unit = begin; unit < ampk_smaller(begin + g->units, units); unit++) {
        int first = unit % bands->count * bands->rows;
        int rows = ampk_smaller(bands->rows, conv->oh - first);
        float *of_x = memory, *of_dy = of_x + z.x;
        size_t x_pixels = (size_t)z.x_rows * z.x_wide, dy_pixels = (size_t)rows * conv->ow;
        struct operand o = {.t = x, .image = (size_t)unit / bands->count};
        o.channels = o.padded = z.panel;
        for (int c = 0; c < z.channels; c += z.panel) {
            o.channel = channel + c;
            o.first = is_point(s) ? first : first * s->stride - s->pad;
            o.rows = is_point(s) ? rows : bands->in_rows;
            if (is_point(s))
                take_points(ctx, conv, &o, s->stride, of_x + c * x_pixels);
            else
                take_padded(ctx, conv, o, of_x + c * x_pixels);
        }
        o.t = dy;
        o.first = first;
        o.rows = rows;
        for (int k = 0; k < z.filters; k += PANEL) {
            o.channel = filter + k;
            o.channels = o.padded = ampk_smaller(PANEL, z.filters - k);
            ampk_conv_load_rows(ctx, conv, &o, of_dy + k * dy_pixels);
            for (int c = 0; c < z.channels; c += z.panel)
                multiply_panels(ctx, conv, &z, rows, of_dy + k * dy_pixels, o.channels,
                                of_x + c * x_pixels, sums + (size_t)k * z.channels + c,
                                unit > begin);
        }
    }
}
