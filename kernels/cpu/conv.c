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

static size_t lanes_bytes(const struct ampk_context *ctx, const struct ampk_conv *conv)
{
    return conv->lane_bytes * ctx->threads;
}

/* ---- passes ---- */

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
        product.sums = ampk_conv_clear_sums(r, finish, unit) + r->channel;
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
    void *x = pass->to_x ? lane->x : ampk_conv_take_rows(ctx, conv, &o, lane->x);
    void *y = pass->to_x ? ampk_conv_take_rows(ctx, conv, &o, lane->y) : lane->y;
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
