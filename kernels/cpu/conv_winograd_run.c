/* Runs the passes and the weight gradient of a convolution by winograd.c, as conv_winograd.c cut
 * them: takes points of what is read and of the weights, multiplies them, and gives the result.
 *
 * A thread takes the points of a slice's weights from the weights themselves, for some channels at
 * a time, and multiplies them while they are in its cache. A weight gradient whose task has all
 * units is written where it is kept, without partial gradients. */
#include "conv.h"

enum {
    TAPS = 9,
    MOST_TAKEN = 128,    /* channels of a unit whose points a thread takes at once */
    PACKED_CHANNELS = 8, /* whose weights' points are taken at once */
};

/* ---- points ---- */

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
    int has;          /* slice * read + the first of `depth` channels; -1: none yet */
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

/* The processor does not foresee where the rows begin, one after the other from memory. */
static void prefetch(const float *rows, size_t count, size_t step, size_t length)
{
    const size_t line = 64 / sizeof *rows;
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; i < length; i += line)
            __builtin_prefetch(rows + r * step + i);
}

/* Takes the points of a slice's weights for `depth` channels that are read. Returns the largest
 * magnitude before rounding. Goes panel by panel, so few channels at a time that they stay in the
 * first-level cache. */
static uint32_t take_weights(const struct winograd_run *run, int slice, int channel, float *points)
{
    const struct ampk_conv *conv = run->conv;
    const struct pass *pass = run->pass;
    size_t filter = (size_t)conv->shape.c * TAPS;
    size_t lane = pass->to_x ? TAPS : filter, step = pass->to_x ? filter : TAPS;
    size_t depth = (size_t)pass->depth, written = (size_t)pass->written / pass->slices;
    float panel[PACKED_CHANNELS * TAPS * AMPK_WINOGRAD_PANEL];
    uint32_t largest = 0;
    const float *weights = run->weights + slice * written * lane + channel * step;
    for (size_t i = 0; i < written; i += AMPK_WINOGRAD_PANEL)
        for (size_t c = 0; c < depth; c += PACKED_CHANNELS) {
            const float *block = weights + i * lane + c * step, *next = block;
            if (c + PACKED_CHANNELS < depth || i + AMPK_WINOGRAD_PANEL == written)
                next += PACKED_CHANNELS * step; /* perhaps beyond the last, to no harm */
            else
                next = weights + (i + AMPK_WINOGRAD_PANEL) * lane;
            if (pass->to_x)
                prefetch(next, PACKED_CHANNELS, filter, AMPK_WINOGRAD_PANEL * TAPS);
            else
                prefetch(next, AMPK_WINOGRAD_PANEL, filter, PACKED_CHANNELS * TAPS);
            conv->winograd->pack(block, lane, step, PACKED_CHANNELS, panel);
            uint32_t found = run->ctx->isa->rows.round(panel, panel, sizeof panel / sizeof *panel,
                                                       conv->shape.compute);
            if (found > largest) largest = found;
            conv->winograd->to_points(panel, PACKED_CHANNELS, pass->to_x,
                                      points + i * depth + c * AMPK_WINOGRAD_PANEL,
                                      written * depth);
        }
    return largest;
}

/* The same, if the thread does not have them. */
static void need_weights(const struct winograd_run *run, int slice, int channel,
                         struct weight_points *weights)
{
    int wanted = slice * run->pass->read + channel;
    if (weights->has == wanted) return;
    weights->has = wanted;
    uint32_t found = take_weights(run, slice, channel, weights->at);
    if (found > weights->largest) weights->largest = found;
}

/* Multiplies units [first, end) for a slice and stores the result. rows: memory for its rows. */
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
        struct ampk_region region = ampk_conv_region(pass, run->to, unit, slice);
        winograd->give_output(&band, points_of(run, y, unit, 0), written, y->most, rows);
        region.channels /= pass->parts;
        for (int i = 0; i < pass->parts; i++) {
            uint32_t found =
                ampk_conv_store(run->ctx, rows + i * region.channels, &region, run->finish, unit);
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

uint32_t ampk_winograd_run(struct ampk_context *ctx, const struct ampk_conv *conv,
                           const struct pass *pass, const struct ampk_tensor *from,
                           const struct ampk_tensor *to, const struct finish *finish,
                           const float *weights, char *memory, float *points,
                           uint32_t *weights_amax)
{
    struct winograd_run run = {ctx, conv, pass, from, to, finish, weights};
    int units = conv->shape.n * pass->bands.count, turn = pass->turn ? pass->turn : units;
    size_t most = ampk_winograd_most_tiles(&conv->shape, &pass->bands, turn);
    uint32_t largest = 0, of_weights = 0;
#pragma omp parallel num_threads(ctx->threads) reduction(max : largest, of_weights)
    {
        struct lane lane = ampk_conv_pass_lane(conv, pass, from, to, memory);
        struct weight_points of_slice = {lane.scratch, -1, 0};
        for (int begin = 0; begin < units; begin += turn) {
            int end = ampk_smaller(begin + turn, units);
            int groups = (end - begin + pass->units - 1) / pass->units;
            struct points x = {points, begin, (size_t)pass->depth, most};
            if (pass->turn) take_turn(&run, end, &lane, &x);
#pragma omp for schedule(dynamic)
            for (int task = 0; task < groups * pass->slices; task++) {
                int slice = task / groups, first = begin + task % groups * pass->units;
                uint32_t found = winograd_task(&run, first, ampk_smaller(first + pass->units, end),
                                               slice, pass->turn ? &x : NULL, &of_slice, &lane);
                if (found > largest) largest = found;
            }
        }
        of_weights = of_slice.largest;
    }
    ampk_amax_raise(weights_amax, of_weights);
    return largest;
}

/* ---- the weight gradient ---- */

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
        .filter = filter};
    float *points = w.sums + ampk_winograd_sums(conv);
    uint32_t largest = 0;
    w.points = points;
    for (int i = 0; i < g->units; i++) {
        int unit = task % g->groups * g->units + i;
        struct ampk_winograd_band band = ampk_winograd_band(&conv->shape, &g->bands, unit);
        ampk_conv_take_unit(ctx, conv, x, dy, task, unit, lane, false);
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

uint32_t ampk_winograd_gradient(struct ampk_context *ctx, struct ampk_conv *conv,
                                const struct ampk_tensor *x, const struct ampk_tensor *dy, int task,
                                char *memory, float *partial)
{
    const struct gradient *g = &conv->gradient;
    size_t channels = (size_t)conv->shape.c / g->slices_c, filter = (size_t)conv->shape.c * TAPS;
    size_t filters = (size_t)conv->shape.k / g->slices_k;
    struct lane lane =
        ampk_conv_lane_at(memory, conv, sizeof(float) * channels * x->w * g->bands.in_rows,
                          sizeof(float) * filters * dy->w * g->bands.rows);
    bool whole = g->groups == 1;
    if (whole)
        partial =
            g->kept + task / g->slices_c * filters * filter + task % g->slices_c * channels * TAPS;
    return multiply_tiles(ctx, conv, x, dy, task, &lane, partial, whole ? filter : channels * TAPS);
}
