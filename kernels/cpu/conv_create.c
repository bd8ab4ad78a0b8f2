/* How the work of a convolution is cut, and what is created for it.
 *
 * It is cut into tasks, by the shape and the CPU's instructions alone, so that results do not
 * depend on the number of threads: a band of rows of one image (a unit) times a slice of the
 * channels that are written. A task casts its operands in memory of its thread, sized for the
 * second-level cache. Where an image has several bands, the rows that two bands share and the
 * padding above and below are part of the operand; a single band leaves the padding to oneDNN.
 * Filters that do not fill oneDNN's blocks of BF16, as those of a detection head, are padded with
 * 0.
 *
 * Groups are not sliced, but where an image is one row, as that of a [local], they are the slices:
 * each reads and writes channels of its own.
 *
 * The weight gradient is sliced both ways, into tiles of filters times channels, so that a tile
 * stays in the cache too. A task takes several units in one call, or one after the other
 * (conv_gradient.c), or two (conv_pairs.c); conv_weights.c then adds the partial gradients of a
 * tile in order.
 *
 * Work memory, which all convolutions share, has room for the packed weights of a pass, or for
 * Winograd's points (conv_winograd.c), and for the partial gradients, so that a training's
 * convolution keeps its gradient alone. It keeps packed weights where there is no backward, and
 * where a pass of oneDNN is so short that packing would take longer.
 */
#include "conv.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    SLICE = 64,       /* channels in a slice, if that divides them; more until */
    SLICE_WORK = 256, /* channels times taps are as many: to cast the operand again for each slice
                         is cheap then */
    TASKS = 32,       /* wanted at least, for the threads to share */
    BAND_ROWS = 4,    /* but no band is less than this for it */
    GRADIENT_TASKS = 16,     /* fewer for the weight gradient: they have to be added */
    BF16_BLOCK = 16,         /* filters or channels of oneDNN's layouts of BF16 */
    TASK_BYTES = 512 << 10,  /* operands of a task */
    PARTIAL_BYTES = 8 << 20, /* partial weight gradients of all tasks */
    PACKED_ANEW = 128,       /* values of a channel that a pass writes: with fewer, to pack weights
                                each time is no longer little beside multiplying */
};

/* ---- how the work is cut ---- */

static int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

static int slice_count(const struct ampk_conv *conv, int channels, int slice)
{
    const struct ampk_conv_shape *s = &conv->shape;
    if (conv->apart) return s->groups;
    while (slice * s->kh * s->kw < SLICE_WORK)
        slice *= 2;
    return s->groups == 1 && channels % slice == 0 ? channels / slice : 1;
}

/* Bands for an image of `rows` to be written, whose operands have `bytes` altogether. */
static int band_count(const struct ampk_conv_shape *s, int rows, int slices, size_t bytes)
{
    int for_cache = (int)(bytes / TASK_BYTES) + 1;
    int for_tasks = ampk_smaller(divide_up(TASKS, s->n * slices), rows / BAND_ROWS);
    return ampk_smaller(ampk_larger(for_cache, for_tasks), rows);
}

/* Bands of y's rows; the other tensor is x. */
static struct bands forward_bands(const struct ampk_conv_shape *s, int oh, int count)
{
    int rows = divide_up(oh, ampk_larger(count, 1));
    if (rows == oh) return (struct bands){1, oh, s->h, 0, 0, s->pad, s->pad};
    return (struct bands){.count = divide_up(oh, rows),
                          .rows = rows,
                          .in_rows = (rows - 1) * s->stride + s->kh,
                          .in_step = rows * s->stride,
                          .in_offset = s->pad};
}

/* Bands of dx's rows; the other tensor is dy. A band is a small convolution whose input is the band
 * and whose padding is such that its output is all of dy that saw a row of the band. */
static struct bands data_bands(const struct ampk_conv_shape *s, int oh, int count)
{
    int rows = divide_up(divide_up(s->h, ampk_larger(count, 1)), s->stride) * s->stride;
    if (rows >= s->h || s->pad >= s->kh) return (struct bands){1, s->h, oh, 0, 0, s->pad, s->pad};
    int before = (s->kh - 1 - s->pad) / s->stride; /* rows of dy above the band's own */
    int in_rows = (rows - 1 + s->pad) / s->stride + before + 1;
    int top = s->pad + before * s->stride;
    return (struct bands){.count = divide_up(s->h, rows),
                          .rows = rows,
                          .in_rows = in_rows,
                          .in_step = rows / s->stride,
                          .in_offset = before,
                          .pad_top = top,
                          .pad_bottom =
                              ampk_larger((in_rows - 1) * s->stride + s->kh - rows - top, 0)};
}

/* Units in one task of the weight gradient: a divisor of all. */
static int task_units(int all, int tiles, size_t unit_bytes, size_t weight_bytes)
{
    int for_cache = (int)(TASK_BYTES / unit_bytes), for_tasks = all * tiles / GRADIENT_TASKS;
    int at_least = (int)(weight_bytes * all / PARTIAL_BYTES);
    int units = ampk_larger(ampk_larger(ampk_smaller(for_cache, for_tasks), at_least), 1);
    if (units > all) units = all;
    while (all % units)
        units++;
    return units;
}

/* ---- creation ---- */

/* plan: NULL if it needs no scratch memory. */
static void need_lane(struct ampk_conv *conv, const struct ampk_dnnl_plan *plan, size_t x_bytes,
                      size_t y_bytes)
{
    size_t bytes = ampk_whole_lines(x_bytes) + ampk_whole_lines(y_bytes) +
                   ampk_whole_lines(plan ? ampk_dnnl_plan_scratch(plan) : 0);
    if (bytes > conv->lane_bytes) conv->lane_bytes = bytes;
}

/* Without memory for them. */
static struct ampk_dnnl_weights **create_weights(const struct ampk_dnnl_plan *plan, int count,
                                                 char *err, size_t err_size)
{
    struct ampk_dnnl_weights **all = calloc((size_t)count, sizeof *all);
    if (!all) snprintf(err, err_size, AMPK_NO_MEMORY);
    for (int i = 0; all && i < count; i++) {
        all[i] = ampk_dnnl_weights_create(plan, err, err_size);
        if (all[i]) continue;
        while (i-- > 0)
            ampk_dnnl_weights_destroy(all[i]);
        free(all);
        return NULL;
    }
    return all;
}

static void destroy_weights(struct ampk_dnnl_weights **all, int count)
{
    for (int i = 0; all && i < count; i++)
        ampk_dnnl_weights_destroy(all[i]);
    free(all);
}

/* The convolution of one unit, as one slice sees it. */
static struct ampk_dnnl_shape unit_shape(const struct ampk_conv *conv, const struct bands *b)
{
    const struct ampk_conv_shape *s = &conv->shape;
    return (struct ampk_dnnl_shape){.n = 1,
                                    .c = ampk_conv_slice_channels(conv),
                                    .w = s->w,
                                    .k = conv->filters,
                                    .kh = s->kh,
                                    .kw = s->kw,
                                    .stride = s->stride,
                                    .groups = ampk_conv_slice_groups(conv),
                                    .pad_top = b->pad_top,
                                    .pad_bottom = b->pad_bottom,
                                    .pad_side = s->pad,
                                    .plain_c = ampk_conv_slice_channels(conv),
                                    .bf16 = conv->bf16};
}

/* The bands and slices that the pass from x to y writes; the convolution of one of them. */
static struct ampk_dnnl_shape cut_to_y(struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    struct pass *pass = &conv->to_y;
    pass->slices = slice_count(conv, s->k, SLICE);
    size_t filters = (size_t)conv->filters / pass->slices;
    size_t bytes = ampk_operand_bytes(conv) * s->c * s->w * s->h +
                   sizeof(float) * filters * conv->ow * conv->oh;
    pass->bands = forward_bands(s, conv->oh, band_count(s, conv->oh, pass->slices, bytes));
    pass->read = ampk_conv_slice_channels(conv);
    pass->written = conv->filters;
    struct ampk_dnnl_shape shape = unit_shape(conv, &pass->bands);
    shape.h = pass->bands.in_rows;
    shape.k = (int)filters;
    return shape;
}

/* The same from y to x. */
static struct ampk_dnnl_shape cut_to_x(struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    struct pass *pass = &conv->to_x;
    pass->slices = slice_count(conv, s->c, SLICE);
    size_t channels = (size_t)s->c / pass->slices;
    size_t bytes = sizeof(float) * channels * s->w * s->h +
                   ampk_operand_bytes(conv) * conv->filters * conv->ow * conv->oh;
    pass->bands = data_bands(s, conv->oh, band_count(s, s->h, pass->slices, bytes));
    pass->read = conv->filters / (conv->apart ? s->groups : 1);
    pass->written = s->c;
    pass->to_x = true;
    struct ampk_dnnl_shape shape = unit_shape(conv, &pass->bands);
    shape.h = pass->bands.rows;
    shape.c = (int)channels;
    shape.k = pass->read;
    return shape;
}

static bool create_plan(struct ampk_context *ctx, struct pass *pass,
                        const struct ampk_dnnl_shape *shape, char *err, size_t err_size)
{
    enum ampk_dnnl_step step = pass->to_x ? AMPK_DNNL_BACKWARD_DATA : AMPK_DNNL_FORWARD;
    pass->plan = ampk_dnnl_plan_create(ctx->dnnl, step, shape, err, err_size);
    if (!pass->plan) return false;
    pass->slice_bytes = ampk_whole_lines(ampk_dnnl_plan_weights(pass->plan));
    pass->slice = create_weights(pass->plan, pass->slices, err, err_size);
    return pass->slice != NULL;
}

static bool create_pass(struct ampk_context *ctx, struct ampk_conv *conv, struct pass *pass,
                        const struct ampk_dnnl_shape *shape, char *err, size_t err_size)
{
    int w = conv->shape.w, ow = conv->ow;
    if (!(conv->is_1x1 ? ampk_1x1_create(pass, err, err_size)
                       : create_plan(ctx, pass, shape, err, err_size)))
        return false;
    size_t read = ampk_operand_bytes(conv) * pass->read * pass->bands.in_rows;
    size_t written = sizeof(float) * pass->written / pass->slices * pass->bands.rows;
    need_lane(conv, pass->plan, (pass->to_x ? written : read) * w,
              (pass->to_x ? read : written) * ow);
    return true;
}

static bool create_passes(struct ampk_context *ctx, struct ampk_conv *conv, char *err,
                          size_t err_size)
{
    struct ampk_dnnl_shape to_y = cut_to_y(conv), to_x = cut_to_x(conv);
    bool backward = !conv->shape.forward_only, transposed = conv->shape.transposed;
    return ((!backward && transposed) ||
            create_pass(ctx, conv, &conv->to_y, &to_y, err, err_size)) &&
           ((!backward && !transposed) ||
            create_pass(ctx, conv, &conv->to_x, &to_x, err, err_size));
}

/* Groups units for a kernel of our own, which takes one or two together: at_once. The last group
 * may have fewer. Padding is part of the operand. */
static void group_units(const struct ampk_conv_shape *s, struct gradient *g, int at_once)
{
    struct bands *b = &g->bands;
    *b = (struct bands){.count = b->count,
                        .rows = b->rows,
                        .in_rows = (b->rows - 1) * s->stride + s->kh,
                        .in_step = b->rows * s->stride,
                        .in_offset = s->pad};
    int all = divide_up(s->n * g->bands.count, at_once), tiles = g->slices_k * g->slices_c;
    int at_least = (int)(ampk_conv_weight_count(s) * sizeof(float) * all / PARTIAL_BYTES);
    int units = ampk_larger(all * tiles / GRADIENT_TASKS, at_least);
    g->units = ampk_smaller(ampk_larger(units, 1), all);
    g->groups = divide_up(all, g->units);
}

/* How the weight gradient is cut. */
static void cut_gradient(struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    struct gradient *g = &conv->gradient;
    if (conv->fp32_gradient) {
        ampk_gradient_slice(conv, &g->slices_k, &g->slices_c);
    } else {
        /* oneDNN transposes both operands of a tile of BF16, so larger ones are faster. */
        int slice = conv->bf16 && !conv->pairs ? 2 * SLICE : SLICE;
        g->slices_k = slice_count(conv, s->k, slice);
        g->slices_c = conv->apart ? 1 : slice_count(conv, s->c, slice);
    }
    int tiles = g->slices_k * g->slices_c;
    size_t filters = (size_t)conv->filters / g->slices_k;
    size_t channels = (size_t)ampk_conv_slice_channels(conv) / g->slices_c;
    size_t x_row = channels * s->w, y_row = filters * conv->ow;
    size_t read = conv->pairs ? sizeof(uint32_t) : ampk_operand_bytes(conv);
    size_t bytes = read * (x_row * s->h + y_row * conv->oh);
    g->bands = forward_bands(s, conv->oh, band_count(s, conv->oh, tiles, bytes));
    if (conv->pairs || conv->fp32_gradient) {
        int panel = conv->pairs ? AMPK_PAIR_FILTERS : 1;
        group_units(s, g, conv->pairs ? 2 : 1);
        g->filled = divide_up(s->k / g->slices_k, panel) * panel;
        return;
    }
    size_t unit_bytes = read * (x_row * g->bands.in_rows + y_row * g->bands.rows);
    int all = s->n * g->bands.count;
    g->units =
        task_units(all, tiles, unit_bytes, sizeof(float) * ampk_cpu_conv_padded_weights(conv));
    g->groups = all / g->units;
}

static void create_own_gradient(struct ampk_conv *conv)
{
    const struct ampk_conv_shape *s = &conv->shape;
    struct gradient *g = &conv->gradient;
    size_t lane = conv->pairs ? ampk_pairs_lane_bytes(conv) : ampk_gradient_lane_bytes(conv);
    if (lane > conv->lane_bytes) conv->lane_bytes = lane;
    g->partial_bytes = sizeof(float) * g->filled * (s->c / g->slices_c) * s->kh * s->kw;
}

static bool create_gradient(struct ampk_context *ctx, struct ampk_conv *conv, char *err,
                            size_t err_size)
{
    const struct ampk_conv_shape *s = &conv->shape;
    struct gradient *g = &conv->gradient;
    cut_gradient(conv);
    if (conv->pairs || conv->fp32_gradient) {
        create_own_gradient(conv);
        return true;
    }
    size_t filters = (size_t)conv->filters / g->slices_k;
    size_t channels = (size_t)ampk_conv_slice_channels(conv) / g->slices_c;
    size_t read = ampk_operand_bytes(conv);
    size_t x_size = channels * s->w * g->bands.in_rows, y_size = filters * conv->ow * g->bands.rows;
    struct ampk_dnnl_shape shape = unit_shape(conv, &g->bands);
    shape.n = g->units;
    shape.h = g->bands.in_rows;
    shape.k = (int)filters;
    shape.c = (int)channels;
    g->plan = ampk_dnnl_plan_create(ctx->dnnl, AMPK_DNNL_BACKWARD_WEIGHTS, &shape, err, err_size);
    if (!g->plan) return false;
    need_lane(conv, g->plan, g->units * read * x_size, g->units * read * y_size);
    g->partial_bytes = ampk_whole_lines(ampk_dnnl_plan_weights(g->plan));
    g->partial = create_weights(g->plan, ampk_conv_tiles(g) * g->groups, err, err_size);
    return g->partial != NULL;
}

/* Memory for what the convolution keeps. */
static bool allocate_kept(struct ampk_conv *conv, char *err, size_t err_size)
{
    size_t weights = ampk_conv_weight_count(&conv->shape) * sizeof(float);
    struct pass *passes[] = {&conv->to_y, &conv->to_x};
    bool all = true;
    for (int i = 0; i < 2 && !conv->packs_anew; i++)
        if (passes[i]->slice_bytes)
            all &= (passes[i]->weights = ampk_aligned_memory(ampk_conv_packed_bytes(passes[i]))) !=
                   NULL;
    if (!conv->shape.forward_only)
        all &= (conv->gradient.kept = ampk_aligned_memory(weights)) != NULL;
    if (!all) snprintf(err, err_size, AMPK_NO_MEMORY ": weights of a convolution");
    return all;
}

/* What batch-norm's backward takes for the layer, or its bias. */
static size_t gradient_sums_bytes(const struct ampk_conv *conv)
{
    struct ampk_conv_result y = ampk_conv_result(&conv->shape);
    size_t pixels = (size_t)y.h * y.w, pairs = ((size_t)y.h + 1) / 2;
    size_t plain = pixels / ampk_bn_piece_pixels(y.c) + 1;
    size_t pooled = pairs / ampk_bn_piece_pairs(y.c, y.w) + 1;
    size_t pieces = (size_t)conv->shape.n * (plain > pooled ? plain : pooled);
    return (2 * pieces + AMPK_BN_ARRAYS) * (size_t)y.c * sizeof(float);
}

static size_t largest_of(size_t a, size_t b, size_t c)
{
    size_t most = a > b ? a : b;
    return most > c ? most : c;
}

static bool reserve_memory(struct ampk_context *ctx, const struct ampk_conv *conv, char *err,
                           size_t err_size)
{
    const struct pass *pass = ampk_conv_forward_pass(conv);
    size_t lanes = conv->lane_bytes * ctx->threads;
    size_t forward = lanes + ampk_conv_pass_memory(ctx, conv, pass) + ampk_conv_sums_bytes(conv);
    size_t bytes = largest_of(forward, ampk_conv_packing_memory(ctx, conv), 0);
    if (!conv->shape.forward_only) {
        const struct pass *back = pass->to_x ? &conv->to_y : &conv->to_x;
        size_t run =
            largest_of(ampk_conv_pass_memory(ctx, conv, back), ampk_conv_partials_memory(conv), 0);
        bytes = largest_of(bytes, lanes + run, gradient_sums_bytes(conv));
    }
    if (ampk_memory_reserve(ctx, bytes)) return true;
    snprintf(err, err_size, AMPK_NO_MEMORY ": %zu bytes of work memory for a convolution", bytes);
    return false;
}

/* oneDNN 2.6 gives wrong BF16 results where channels or filters do not fill its blocks. */
static bool fills_blocks(int channels)
{
    return channels % BF16_BLOCK == 0;
}

/* Filters can be padded, but in groups they would be read from all over dy. Channels are not: the
 * three of an image would be 13 zeros of 16, which is slower than FP32. Where a stride leaves
 * columns out between two windows, or is wider than the image, oneDNN 2.6's weight gradient takes
 * in what its scratch memory happens to hold. */
static bool multiplies_bf16(bool on_this_cpu, const struct ampk_conv_shape *s)
{
    return s->compute == AMPK_COMPUTE_BF16 && on_this_cpu && fills_blocks(s->c / s->groups) &&
           ((s->stride <= s->kw && s->stride <= s->w) || s->forward_only) &&
           (s->groups == 1 || fills_blocks(s->k / s->groups));
}

static struct ampk_conv describe(const struct ampk_conv_shape *s, const struct ampk_isa *isa,
                                 bool bf16_on_this_cpu)
{
    bool bf16 = multiplies_bf16(bf16_on_this_cpu, s);
    int oh = ampk_conv_out(s, s->h, s->kh), ow = ampk_conv_out(s, s->w, s->kw);
    const struct ampk_winograd *winograd = ampk_winograd_suits(s, isa, bf16) ? isa->winograd : NULL;
    bf16 = bf16 && !winograd;
    return (struct ampk_conv){.shape = *s,
                              .bf16 = bf16,
                              .winograd = winograd,
                              .pairs = bf16 ? ampk_pairs_for(s, isa) : NULL,
                              .fp32_gradient = !bf16 && !winograd && ampk_gradient_suits(s, isa),
                              .is_1x1 = bf16 && ampk_1x1_suits(s, isa),
                              .filters = bf16 ? divide_up(s->k, BF16_BLOCK) * BF16_BLOCK : s->k,
                              .apart = s->groups > 1 && s->h == 1 && s->kh == 1 && s->pad == 0,
                              .oh = oh,
                              .ow = ow,
                              .packs_anew =
                                  !s->forward_only && (winograd || s->n * oh * ow >= PACKED_ANEW)};
}

/* What both passes read, and the weight gradient. */
size_t ampk_conv_bytes(const struct ampk_conv_shape *s, const struct ampk_isa *isa, bool bf16)
{
    struct ampk_conv conv = describe(s, isa, bf16);
    size_t packed = ampk_cpu_conv_padded_weights(&conv) * ampk_operand_bytes(&conv);
    if (s->forward_only) return packed;
    return (conv.packs_anew ? 0 : 2 * packed) + ampk_conv_weight_count(s) * sizeof(float);
}

/* The packed weights of a pass or one partial gradient, whichever is more. Winograd's points are
 * not counted, nor further partial gradients. */
size_t ampk_conv_work_bytes(const struct ampk_conv_shape *s, const struct ampk_isa *isa, bool bf16)
{
    struct ampk_conv conv = describe(s, isa, bf16);
    size_t weights = ampk_cpu_conv_padded_weights(&conv);
    size_t copy = conv.bf16 ? 0 : weights * sizeof(float);
    size_t packed = conv.packs_anew ? weights * ampk_operand_bytes(&conv) + copy : copy;
    if (conv.winograd) packed = 0;
    size_t gradient = s->forward_only ? 0 : weights * sizeof(float);
    return packed > gradient ? packed : gradient;
}

struct ampk_conv *ampk_cpu_conv_create(struct ampk_context *ctx, const struct ampk_conv_shape *s,
                                       char *err, size_t err_size)
{
    const char *fault = ampk_conv_shape_fault(s);
    struct ampk_conv *conv = fault ? NULL : calloc(1, sizeof *conv);
    if (!conv) {
        snprintf(err, err_size, "%s", fault ? fault : AMPK_NO_MEMORY);
        return NULL;
    }
    *conv = describe(s, ctx->isa, ctx->multiplies_bf16);
    if (conv->winograd) ampk_winograd_create(conv, ctx->threads);
    if ((conv->winograd || (create_passes(ctx, conv, err, err_size) &&
                            (s->forward_only || create_gradient(ctx, conv, err, err_size)))) &&
        allocate_kept(conv, err, err_size) && reserve_memory(ctx, conv, err, err_size))
        return conv;
    ampk_cpu_conv_destroy(ctx, conv);
    return NULL;
}

void ampk_cpu_conv_destroy(struct ampk_context *ctx, struct ampk_conv *conv)
{
    (void)ctx;
    if (!conv) return;
    destroy_weights(conv->to_y.slice, conv->to_y.slices);
    destroy_weights(conv->to_x.slice, conv->to_x.slices);
    ampk_1x1_destroy(&conv->to_y);
    ampk_1x1_destroy(&conv->to_x);
    const struct gradient *g = &conv->gradient;
    destroy_weights(g->partial, ampk_conv_tiles(g) * g->groups);
    free(conv->to_y.weights);
    free(conv->to_x.weights);
    if (!g->is_lent) free(g->kept);
    ampk_dnnl_plan_destroy(conv->to_y.plan);
    ampk_dnnl_plan_destroy(conv->to_x.plan);
    ampk_dnnl_plan_destroy(g->plan);
    free(conv);
}
