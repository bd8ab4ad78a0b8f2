/* Convolution: oneDNN multiplies FP32 operands that were rounded to the compute type, and sums in
 * FP32. Tensors keep the type that they are stored in. With compute type BF16 and AVX512-BF16 it
 * multiplies BF16: rows that are stored as BF16 are then read where they lie.
 * 1x1 convolutions of BF16 are product_avx512.c's, which stores BF16 itself.
 * Of 3 x 3 taps winograd.c computes what is multiplied in FP32, and from some size of the image on
 * also what would be multiplied in BF16: with a quarter of the products FP32 is faster then. Other
 * weight gradients, where it suits, are conv_pairs.c's (BF16) and conv_gradient.c's (FP32 with
 * AVX2).
 *
 * A pass runs tasks (conv_create.c): each casts its operands, multiplies (of Winograd, slices may
 * share operands), and the result is rounded to storage on its way out, together with batch-norm's
 * sums or bias and activation.
 */
#include "conv.h"

#include <omp.h>
#include <string.h>

/* ---- a task's operands ---- */

static size_t lanes_bytes(const struct ampk_context *ctx, const struct ampk_conv *conv)
{
    return conv->lane_bytes * ctx->threads;
}

struct lane ampk_conv_lane_at(char *memory, const struct ampk_conv *conv, size_t x_bytes,
                              size_t y_bytes)
{
    char *x = memory + (size_t)omp_get_thread_num() * conv->lane_bytes;
    char *y = x + ampk_whole_lines(x_bytes);
    return (struct lane){x, y, y + ampk_whole_lines(y_bytes), NULL};
}

static bool is_stored_so(const struct ampk_conv *conv, const struct operand *o)
{
    return conv->bf16 && o->t->dtype == AMPK_BF16 && o->channels == o->t->c &&
           o->padded == o->t->c && o->first >= 0 && o->first + o->rows <= o->t->h;
}

/* Rows as oneDNN reads them: where they are, if they are stored so, else cast into memory. */
static void *take_rows(struct ampk_context *ctx, const struct ampk_conv *conv,
                       const struct operand *o, void *memory)
{
    if (is_stored_so(conv, o)) return ampk_at(o->t, o->image, (size_t)o->first * o->t->w * o->t->c);
    ampk_conv_load_rows(ctx, conv, o, memory);
    return memory;
}

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

/* ---- passes ---- */

/* A unit's two per channel, of which the region's become 0. */
static float *clear_sums(const struct ampk_region *r, const struct finish *finish, int unit)
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
    float *sums = clear_sums(r, finish, unit);
    return ctx->isa->rows.store_sums(values, r, finish->shift, sums, sums + r->tensor->c);
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

/* A unit of a 1x1 convolution. Returns whether it is stored already: else it is FP32 in memory. */
static bool multiply_1x1(struct ampk_context *ctx, const struct pass *pass, const void *from,
                         const struct ampk_region *r, const struct finish *finish, int unit,
                         const char *weights, float *memory, uint32_t *largest)
{
    const struct ampk_tensor *t = r->tensor;
    bool at_once = t->dtype == AMPK_BF16 && t->c == pass->written && !finish->bias;
    struct ampk_product product = {.x = from,
                                   .panels = (const uint32_t *)weights,
                                   .pixels = r->pixels,
                                   .pairs = (size_t)pass->read / 2,
                                   .written = (size_t)pass->written / pass->slices,
                                   .out = at_once ? NULL : memory,
                                   .accumulate = finish->accumulate};
    if (at_once) {
        product.y = ampk_at(t, r->image, r->pixel * t->c + r->channel);
        product.stride = (size_t)t->c;
    }
    if (at_once && finish->shift) {
        product.shift = finish->shift + r->channel;
        product.sums = clear_sums(r, finish, unit) + r->channel;
        product.squares = product.sums + t->c;
    }
    *largest = ctx->isa->product(&product);
    return at_once;
}

static uint32_t pass_unit(struct ampk_context *ctx, struct ampk_conv *conv, const struct pass *pass,
                          const struct ampk_tensor *from, const struct ampk_tensor *to,
                          const struct finish *finish, int unit, int slice, const struct lane *lane)
{
    const struct bands *bands = &pass->bands;
    struct ampk_region region = ampk_conv_region(pass, to, unit, slice);
    int first = unit % bands->count * bands->in_step - bands->in_offset;
    int rows = conv->is_1x1 ? (int)region.pixels / to->w : bands->in_rows;
    int channels = conv->apart ? pass->read : from->c, channel = conv->apart ? slice * channels : 0;
    struct operand o = {from, region.image, first, rows, channel, channels, pass->read};
    void *x = pass->to_x ? lane->x : take_rows(ctx, conv, &o, lane->x);
    void *y = pass->to_x ? take_rows(ctx, conv, &o, lane->y) : lane->y;
    float *values = pass->to_x ? x : y;
    uint32_t largest = 0;
    if (!conv->is_1x1)
        ampk_dnnl_execute(pass->plan, x, pass->slice[slice], y, lane->scratch);
    else if (multiply_1x1(ctx, pass, pass->to_x ? y : x, &region, finish, unit, lane->weights,
                          values, &largest))
        return largest;
    return ampk_conv_store(ctx, values, &region, finish, unit);
}

static uint32_t run_units(struct ampk_context *ctx, struct ampk_conv *conv, const struct pass *pass,
                          const struct ampk_tensor *from, const struct ampk_tensor *to,
                          const struct finish *finish, const char *weights, char *memory)
{
    int slices = pass->slices, units = conv->shape.n * pass->bands.count;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic) reduction(max : largest)
    for (int task = 0; task < units * slices; task++) {
        int slice = task % slices;
        struct lane lane = ampk_conv_pass_lane(conv, pass, from, to, memory);
        lane.weights = weights + slice * pass->slice_bytes;
        uint32_t found = pass_unit(ctx, conv, pass, from, to, finish, task / slices, slice, &lane);
        if (found > largest) largest = found;
    }
    return largest;
}

/* memory: the threads', and behind it what the pass takes for points or weights. */
static uint32_t run_pass(struct ampk_context *ctx, struct ampk_conv *conv, const struct pass *pass,
                         const struct ampk_tensor *from, const struct ampk_tensor *to,
                         const struct finish *finish, char *memory)
{
    char *points = memory + lanes_bytes(ctx, conv);
    const char *weights = ampk_conv_take_weights(ctx, conv, pass, points);
    if (!conv->winograd) return run_units(ctx, conv, pass, from, to, finish, weights, memory);
    uint32_t largest = ampk_winograd_run(ctx, conv, pass, from, to, finish, (const float *)weights,
                                         memory, (float *)points, conv->masters_amax);
    conv->masters_amax = NULL;
    return largest;
}

/* ---- forward ---- */

void ampk_cpu_conv_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                           const struct ampk_tensor *x, const struct ampk_tensor *y,
                           const struct ampk_bn_statistics *statistics, uint32_t *amax)
{
    const struct pass *pass = ampk_conv_forward_pass(conv);
    size_t before = lanes_bytes(ctx, conv) + ampk_conv_pass_memory(ctx, conv, pass);
    char *memory = ampk_memory(ctx, before + ampk_conv_sums_bytes(conv));
    struct finish finish = {.shift = statistics ? statistics->rolling_mean : NULL,
                            .partial = (float *)(memory + before)};
    ampk_amax_raise(amax, run_pass(ctx, conv, pass, x, y, &finish, memory));
    size_t units = (size_t)conv->shape.n * pass->bands.count;
    if (statistics)
        ctx->isa->rows.finish_statistics(finish.partial, units, (size_t)y->n * y->h * y->w,
                                         (size_t)y->c, statistics);
}

void ampk_cpu_conv_bias_forward(struct ampk_context *ctx, struct ampk_conv *conv,
                                const struct ampk_tensor *x, const float *bias,
                                enum ampk_activation activation, const struct ampk_tensor *y,
                                uint32_t *amax)
{
    const struct pass *pass = ampk_conv_forward_pass(conv);
    char *memory =
        ampk_memory(ctx, lanes_bytes(ctx, conv) + ampk_conv_pass_memory(ctx, conv, pass));
    struct finish finish = {.bias = bias, .activation = activation};
    ampk_amax_raise(amax, run_pass(ctx, conv, pass, x, y, &finish, memory));
}

/* ---- backward ---- */

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
        return (struct lane){take_rows(ctx, conv, &read_x, lane->x),
                             take_rows(ctx, conv, &read_dy, lane->y), lane->scratch, NULL};
    ampk_conv_load_rows(ctx, conv, &read_x, lane->x);
    ampk_conv_load_rows(ctx, conv, &read_dy, lane->y);
    return *lane;
}

/* All units in one call. */
static void multiply_units(struct ampk_context *ctx, const struct ampk_conv *conv,
                           const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                           size_t x_bytes, size_t y_bytes, char *memory)
{
    const struct gradient *g = &conv->gradient;
    struct lane lane = ampk_conv_lane_at(memory, conv, g->units * x_bytes, g->units * y_bytes),
                first = lane;
    for (int i = 0; i < g->units; i++) {
        struct lane at = {(char *)lane.x + i * x_bytes, (char *)lane.y + i * y_bytes, lane.scratch,
                          NULL};
        at = ampk_conv_take_unit(ctx, conv, x, dy, task, task % g->groups * g->units + i, &at,
                                 g->units == 1);
        if (i == 0) first = at;
    }
    ampk_dnnl_execute(g->plan, first.x, g->partial[task], first.y, lane.scratch);
}

static void gradient_task(struct ampk_context *ctx, struct ampk_conv *conv,
                          const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                          char *memory, float *partial)
{
    const struct gradient *g = &conv->gradient;
    if (conv->pairs || conv->fp32_gradient) {
        char *lane = memory + omp_get_thread_num() * conv->lane_bytes;
        (conv->pairs ? ampk_pairs_task : ampk_gradient_task)(ctx, conv, x, dy, task, lane, partial);
        return;
    }
    size_t x_row = (size_t)ampk_conv_slice_channels(conv) / g->slices_c * x->w;
    size_t y_row = (size_t)conv->filters / g->slices_k * dy->w;
    multiply_units(ctx, conv, x, dy, task, ampk_operand_bytes(conv) * x_row * g->bands.in_rows,
                   ampk_operand_bytes(conv) * y_row * g->bands.rows, memory);
}

static void weight_gradient(struct ampk_context *ctx, struct ampk_conv *conv,
                            const struct ampk_tensor *x, const struct ampk_tensor *dy, char *memory)
{
    struct gradient *g = &conv->gradient;
    int tasks = ampk_conv_tiles(g) * g->groups;
    char *partials = memory + lanes_bytes(ctx, conv);
    for (int i = 0; g->partial && i < tasks; i++)
        ampk_dnnl_weights_place(g->partial[i], partials + i * g->partial_bytes);
    uint32_t largest = 0;
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic) reduction(max : largest)
    for (int task = 0; task < tasks; task++) {
        float *partial = (float *)(partials + task * g->partial_bytes);
        if (!conv->winograd) {
            gradient_task(ctx, conv, x, dy, task, memory, partial);
            continue;
        }
        uint32_t found = ampk_winograd_gradient(ctx, conv, x, dy, task, memory, partial);
        if (found > largest) largest = found;
    }
    if (conv->winograd && g->groups == 1)
        g->amax = largest;
    else
        ampk_conv_finish_gradient(ctx, conv, memory, partials);
}

void ampk_cpu_conv_backward(struct ampk_context *ctx, struct ampk_conv *conv,
                            const struct ampk_tensor *x, const struct ampk_tensor *dy,
                            const struct ampk_tensor *dx, bool accumulate, uint32_t *dx_amax)
{
    bool transposed = conv->shape.transposed;
    const struct pass *pass = transposed ? &conv->to_y : &conv->to_x;
    size_t weights = dx ? ampk_conv_pass_memory(ctx, conv, pass) : 0;
    size_t partials = x ? ampk_conv_partials_memory(conv) : 0;
    char *memory =
        ampk_memory(ctx, lanes_bytes(ctx, conv) + (weights > partials ? weights : partials));
    struct finish finish = {.accumulate = accumulate};
    if (dx) ampk_amax_raise(dx_amax, run_pass(ctx, conv, pass, dy, dx, &finish, memory));
    if (x) weight_gradient(ctx, conv, transposed ? dy : x, transposed ? x : dy, memory);
}
