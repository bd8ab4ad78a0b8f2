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

/* This thread's memory: x, y, scratch. And the packed weights of a pass's slice. */
struct lane {
    void *x, *y, *scratch;
    const char *weights;
};

static struct lane lane_at(char *memory, const struct ampk_conv *conv, size_t x_bytes,
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

/* The region of t that a pass writes for a unit and a slice. */
static struct ampk_region unit_region(const struct pass *pass, const struct ampk_tensor *t,
                                      int unit, int slice)
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

/* What becomes of the result: sums are taken, or bias and activation applied, or it is added to
 * what is there, or none of that. */
struct finish {
    const float *shift;
    float *partial; /* [units][2][channels] */
    const float *bias;
    enum ampk_activation activation;
    bool accumulate;
};

/* A unit's two per channel, of which the region's become 0. */
static float *clear_sums(const struct ampk_region *r, const struct finish *finish, int unit)
{
    size_t c = (size_t)r->tensor->c;
    float *sums = finish->partial + (size_t)unit * 2 * c;
    memset(sums + r->channel, 0, r->channels * sizeof *sums);
    memset(sums + c + r->channel, 0, r->channels * sizeof *sums);
    return sums;
}

static uint32_t store(struct ampk_context *ctx, const float *values, const struct ampk_region *r,
                      const struct finish *finish, int unit)
{
    if (finish->bias) return ctx->isa->rows.store_bias(values, r, finish->bias, finish->activation);
    if (!finish->shift) return store_region(ctx, values, r, finish->accumulate);
    float *sums = clear_sums(r, finish, unit);
    return ctx->isa->rows.store_sums(values, r, finish->shift, sums, sums + r->tensor->c);
}

/* The memory of a task: a unit's operands, and in front of scratch memory the points of the
 * slice's weights. */
static struct lane pass_lane(const struct ampk_conv *conv, const struct pass *pass,
                             const struct ampk_tensor *from, const struct ampk_tensor *to,
                             char *memory)
{
    const struct bands *bands = &pass->bands;
    size_t read = ampk_operand_bytes(conv) * pass->read * from->w * bands->in_rows;
    size_t written = sizeof(float) * (pass->written / pass->slices) * to->w * bands->rows;
    return lane_at(memory, conv, pass->to_x ? written : read, pass->to_x ? read : written);
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
    struct ampk_region region = unit_region(pass, to, unit, slice);
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
    return store(ctx, values, &region, finish, unit);
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
        struct lane lane = pass_lane(conv, pass, from, to, memory);
        lane.weights = weights + slice * pass->slice_bytes;
        uint32_t found = pass_unit(ctx, conv, pass, from, to, finish, task / slices, slice, &lane);
        if (found > largest) largest = found;
    }
    return largest;
}

/* ---- passes by Winograd ---- */

enum { MOST_TAKEN = 128 }; /* channels of a unit whose points a thread takes at once */

struct winograd_run {
    struct ampk_context *ctx;
    const struct ampk_conv *conv;
    const struct pass *pass;
    const struct ampk_tensor *from, *to;
    const struct finish *finish;
    const float *weights;
};

/* Points of some units, the first of them at the front: [channels / depth][36][tiles][depth]. */
struct points {
    float *at;
    int first;
    size_t depth;
    size_t most; /* tiles */
};

/* Points of weights in a thread's memory. */
struct weight_points {
    float *at;
    int has;          /* which: of a slice and of some channels; -1: none yet */
    uint32_t largest; /* magnitude of all weights so far */
};

/* Tiles of units [first, end). */
static size_t tiles_between(const struct winograd_run *run, int first, int end)
{
    const struct ampk_conv_shape *s = &run->conv->shape;
    const struct bands *bands = &run->pass->bands;
    return ampk_winograd_tiles_before(s, bands, end) - ampk_winograd_tiles_before(s, bands, first);
}

static float *points_of(const struct winograd_run *run, const struct points *points, int unit,
                        int channel)
{
    size_t depth = points->depth, before = (size_t)channel / depth;
    return points->at + before * ampk_winograd_tile_points(points->most, depth) +
           depth * tiles_between(run, points->first, unit) + channel % depth;
}

/* Takes the points of some channels of a unit. rows: memory for its rows. */
static void take_points(const struct winograd_run *run, int unit, int channel, int channels,
                        float *rows, const struct points *x)
{
    const struct bands *bands = &run->pass->bands;
    struct ampk_winograd_band band = ampk_winograd_band(&run->conv->shape, bands, unit);
    int first = unit % bands->count * bands->in_step - bands->in_offset;
    struct operand o = {
        run->from, (size_t)unit / bands->count, first, bands->in_rows, channel, channels, channels};
    ampk_conv_load_rows(run->ctx, run->conv, &o, rows);
    run->conv->winograd->take_input(&band, rows, (size_t)channels, points_of(run, x, unit, channel),
                                    x->depth, x->most);
}

/* Makes sure of the points of a slice's weights for `depth` channels. */
static void need_weights(const struct winograd_run *run, int slice, int channel,
                         struct weight_points *weights)
{
    int wanted = slice * run->pass->read + channel;
    if (weights->has == wanted) return;
    weights->has = wanted;
    uint32_t found = ampk_winograd_take_weights(run->ctx, run->conv, run->pass, run->weights, slice,
                                                channel, weights->at);
    if (found > weights->largest) weights->largest = found;
}

/* Units [first, end) of a slice. rows: memory for those of the result. */
static uint32_t multiply_points(const struct winograd_run *run, int first, int end, int slice,
                                const struct points *x, struct weight_points *weights,
                                const struct points *y, float *rows)
{
    const struct ampk_winograd *winograd = run->conv->winograd;
    const struct pass *pass = run->pass;
    size_t written = y->depth;
    uint32_t largest = 0;
    for (int c = 0; c < pass->read; c += pass->depth) {
        need_weights(run, slice, c, weights);
        winograd->multiply(tiles_between(run, first, end), x->depth, points_of(run, x, first, c),
                           x->most, weights->at, written, y->at, y->most, c > 0);
    }
    for (int unit = first; unit < end; unit++) {
        struct ampk_winograd_band band = ampk_winograd_band(&run->conv->shape, &pass->bands, unit);
        struct ampk_region region = unit_region(pass, run->to, unit, slice);
        winograd->give_output(&band, points_of(run, y, unit, 0), written, y->most, rows);
        region.channels /= pass->parts;
        for (int i = 0; i < pass->parts; i++) {
            uint32_t found =
                store(run->ctx, rows + i * region.channels, &region, run->finish, unit);
            if (found > largest) largest = found;
            region.channel += region.channels;
        }
    }
    return largest;
}

/* A task: units [first, end) of a slice. turn: the points of what is read, or NULL: the task takes
 * them. */
static uint32_t winograd_task(const struct winograd_run *run, int first, int end, int slice,
                              const struct points *turn, struct weight_points *weights,
                              const struct lane *lane)
{
    const struct pass *pass = run->pass;
    size_t most = ampk_winograd_most_tiles(&run->conv->shape, &pass->bands, pass->at_once);
    size_t written = (size_t)pass->written / pass->slices;
    float *y = weights->at + ampk_winograd_points(pass);
    float *x = y + ampk_winograd_tile_points(most, written);
    float *in_rows = pass->to_x ? lane->y : lane->x, *out_rows = pass->to_x ? lane->x : lane->y;
    uint32_t largest = 0;
    for (int unit = first; unit < end; unit += pass->at_once) {
        int next = ampk_smaller(unit + pass->at_once, end);
        struct points of_x = {x, unit, (size_t)pass->depth, most};
        struct points of_y = {y, unit, written, most};
        for (int i = unit; i < next && !turn; i++)
            take_points(run, i, 0, pass->read, in_rows, &of_x);
        uint32_t found =
            multiply_points(run, unit, next, slice, turn ? turn : &of_x, weights, &of_y, out_rows);
        if (found > largest) largest = found;
    }
    return largest;
}

/* Takes the points of a turn's units, for all slices. A task takes some channels of a unit. */
static void take_turn(const struct winograd_run *run, int end, const struct lane *lane,
                      const struct points *x)
{
    int channels = MOST_TAKEN;
    while (run->pass->depth % channels)
        channels /= 2;
    int parts = run->pass->read / channels;
#pragma omp for schedule(dynamic)
    for (int i = 0; i < (end - x->first) * parts; i++)
        take_points(run, x->first + i / parts, i % parts * channels, channels,
                    run->pass->to_x ? lane->y : lane->x, x);
}

/* memory: the threads'; points: for a turn. */
static uint32_t run_winograd(const struct winograd_run *run, char *memory, float *points,
                             uint32_t *weights_amax)
{
    const struct ampk_conv *conv = run->conv;
    const struct pass *pass = run->pass;
    int units = conv->shape.n * pass->bands.count, turn = pass->turn ? pass->turn : units;
    size_t most = ampk_winograd_most_tiles(&conv->shape, &pass->bands, turn);
    uint32_t largest = 0, of_weights = 0;
#pragma omp parallel num_threads(run->ctx->threads) reduction(max : largest, of_weights)
    {
        struct lane lane = pass_lane(conv, pass, run->from, run->to, memory);
        struct weight_points weights = {lane.scratch, -1, 0};
        for (int begin = 0; begin < units; begin += turn) {
            int end = ampk_smaller(begin + turn, units);
            int groups = (end - begin + pass->units - 1) / pass->units;
            struct points x = {points, begin, (size_t)pass->depth, most};
            if (pass->turn) take_turn(run, end, &lane, &x);
#pragma omp for schedule(dynamic)
            for (int task = 0; task < groups * pass->slices; task++) {
                int slice = task / groups, first = begin + task % groups * pass->units;
                uint32_t found = winograd_task(run, first, ampk_smaller(first + pass->units, end),
                                               slice, pass->turn ? &x : NULL, &weights, &lane);
                if (found > largest) largest = found;
            }
        }
        of_weights = weights.largest;
    }
    ampk_amax_raise(weights_amax, of_weights);
    return largest;
}

/* memory: the threads', and behind it what the pass takes for points and weights. */
static uint32_t run_pass(struct ampk_context *ctx, struct ampk_conv *conv, const struct pass *pass,
                         const struct ampk_tensor *from, const struct ampk_tensor *to,
                         const struct finish *finish, char *memory)
{
    char *points = memory + lanes_bytes(ctx, conv);
    const char *weights =
        ampk_conv_take_weights(ctx, conv, pass, points + ampk_winograd_turn_bytes(conv, pass));
    if (!conv->winograd) return run_units(ctx, conv, pass, from, to, finish, weights, memory);
    struct winograd_run run = {ctx, conv, pass, from, to, finish, (const float *)weights};
    uint32_t largest = run_winograd(&run, memory, (float *)points, conv->masters_amax);
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

/* Some channels and filters of a unit of x and dy: in the lane, or where they are if `in_place`. */
static struct lane take_unit(struct ampk_context *ctx, const struct ampk_conv *conv,
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
    struct lane lane = lane_at(memory, conv, g->units * x_bytes, g->units * y_bytes), first = lane;
    for (int i = 0; i < g->units; i++) {
        struct lane at = {(char *)lane.x + i * x_bytes, (char *)lane.y + i * y_bytes, lane.scratch,
                          NULL};
        at = take_unit(ctx, conv, x, dy, task, task % g->groups * g->units + i, &at, g->units == 1);
        if (i == 0) first = at;
    }
    ampk_dnnl_execute(g->plan, first.x, g->partial[task], first.y, lane.scratch);
}

/* A chunk after the other. Returns the largest magnitude of the gradient. */
static uint32_t multiply_tiles(struct ampk_context *ctx, const struct ampk_conv *conv,
                               const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                               const struct lane *lane, float *gradient, size_t filter)
{
    const struct gradient *g = &conv->gradient;
    struct ampk_winograd_gradient w = {
        .most = ampk_winograd_most_tiles(&conv->shape, &g->bands, g->chunk),
        .channels = (size_t)conv->shape.c / g->slices_c,
        .filters = (size_t)conv->shape.k / g->slices_k,
        .sums = lane->scratch,
        .at_once = g->chunk == g->units,
        .filter = filter};
    float *points = w.sums + ampk_winograd_sums(conv);
    uint32_t largest = 0;
    w.points = points;
    for (int i = 0; i < g->units; i++) {
        int unit = task % g->groups * g->units + i;
        struct ampk_winograd_band band = ampk_winograd_band(&conv->shape, &g->bands, unit);
        take_unit(ctx, conv, x, dy, task, unit, lane, false);
        conv->winograd->take_tiles(&band, lane->x, w.channels, lane->y, w.filters, w.tiles, w.most,
                                   points);
        w.tiles += (size_t)band.rows * band.columns;
        bool last = i + 1 == g->units;
        if (!last && (i + 1) % g->chunk) continue;
        w.gradient = last ? gradient : NULL;
        largest = conv->winograd->add_gradient(&w);
        w.add = true;
        w.tiles = 0;
    }
    return largest;
}

/* Winograd's, right into the gradient that is kept if a task has all units. */
static uint32_t winograd_gradient(struct ampk_context *ctx, struct ampk_conv *conv,
                                  const struct ampk_tensor *x, const struct ampk_tensor *dy,
                                  int task, char *memory, float *partial)
{
    const struct gradient *g = &conv->gradient;
    size_t taps = (size_t)conv->shape.kh * conv->shape.kw;
    size_t channels = (size_t)conv->shape.c / g->slices_c, filter = (size_t)conv->shape.c * taps;
    size_t filters = (size_t)conv->shape.k / g->slices_k;
    struct lane lane = lane_at(memory, conv, sizeof(float) * channels * x->w * g->bands.in_rows,
                               sizeof(float) * filters * dy->w * g->bands.rows);
    if (g->groups > 1)
        return multiply_tiles(ctx, conv, x, dy, task, &lane, partial, channels * taps);
    float *kept =
        g->kept + task / g->slices_c * filters * filter + task % g->slices_c * channels * taps;
    return multiply_tiles(ctx, conv, x, dy, task, &lane, kept, filter);
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
        uint32_t found = winograd_gradient(ctx, conv, x, dy, task, memory, partial);
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
