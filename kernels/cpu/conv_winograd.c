/* Convolutions that winograd.c computes: which, and how their work is cut.
 *
 * Tasks are as conv_create.c has them, but for this. A band is some rows of tiles. A task of a pass
 * brings the weights of its slice to their 36 points, four times the weights and too many for all
 * slices at once, then runs over several units, so that this costs little beside them. A thread
 * keeps the points for its next task if that has the same slice.
 *
 * With AVX2, where there are several slices, the points of what is read are taken before, once for
 * all of them, a turn of some units after the other. A task that multiplies all its units at once
 * takes its weights' points for a few channels at a time: these stay in the second-level cache, and
 * every task takes them anew. One with more units would take them anew for each part of them, so
 * it has those of all channels. */
#include "conv.h"

enum {
    TAPS = 9,
    MOST_SLICE = 128,        /* channels in a slice at most; halved, a panel at least */
    BAND_TILES = 64,         /* in a band at most, but one row at least */
    TASK_TILES = 32,         /* in a task, if its turn has so many: its points are used so often */
    MULTIPLIED_TILES = 64,   /* at once where slices share, if the task has so many */
    TURN_BYTES = 4 << 20,    /* points of a turn, */
    TURN_TILES = 64,         /* but it may have so many tiles, whatever they take */
    DEPTH = 64,              /* channels that are read, of which weights' points are in the cache */
    CHUNK_TILES = 64,        /* of which the weight gradient takes the points at once, at least */
    TASKS = 16,              /* wanted, for the threads to share */
    THREAD_TASKS = 4,        /* enough for each thread */
    PARTIAL_BYTES = 8 << 20, /* partial weight gradients of all tasks */
    LEAST_COLUMNS = 16,      /* that a block of a product has with AVX2 */
    WEIGHT_TILES = 12,       /* as many tiles cost as much as the points of the weights */
    FEWEST_TILES = 16,       /* in an image: fewer do not pay for the points of the weights */
    FEWEST_BF16_TILES = 25,  /* the same where BF16 could be multiplied instead */
};

/* Channels of a slice, which divide `all`, where so many fit. */
static int slice_channels(int all, size_t fit)
{
    int slice = MOST_SLICE;
    while (slice > AMPK_WINOGRAD_PANEL && (all % slice || (size_t)slice > fit))
        slice /= 2;
    return slice;
}

static int half_slice(int slice)
{
    return slice > AMPK_WINOGRAD_PANEL ? slice / 2 : slice;
}

/* ---- which ---- */

static int tile_count(int length)
{
    return (length + 3) / 4;
}

/* What is computed must be at most twice the image, where the last block of tiles, though it may be
 * smaller, counts as a whole one. */
static bool has_enough_tiles(const struct ampk_conv_shape *s, size_t tiles, bool bf16)
{
    size_t blocks = (tiles + AMPK_WINOGRAD_ROWS - 1) / AMPK_WINOGRAD_ROWS;
    return blocks * AMPK_WINOGRAD_ROWS * 16 <= 2 * (size_t)s->h * s->w &&
           tiles >= (bf16 ? FEWEST_BF16_TILES : FEWEST_TILES);
}

/* Where images are multiplied together (not in BF16), what counts is that there are fewer products,
 * with those that the points of the weights cost. But the number of images has no say where a
 * network runs forward alone: it gives each the same results whatever others are beside it. */
bool ampk_winograd_suits(const struct ampk_conv_shape *s, const struct ampk_isa *isa, bool bf16)
{
    size_t pixels = (size_t)s->h * s->w, tiles = (size_t)tile_count(s->h) * tile_count(s->w);
    size_t images = s->forward_only ? 1 : (size_t)s->n;
    if (!isa->winograd || s->kh != 3 || s->kw != 3 || s->stride != 1 || s->pad != 1 ||
        s->groups != 1 || s->c % AMPK_WINOGRAD_PANEL || s->k % AMPK_WINOGRAD_PANEL)
        return false;
    if (!isa->winograd->shares) return has_enough_tiles(s, tiles, bf16);
    return TAPS * images * pixels > AMPK_WINOGRAD_POINTS * (images * tiles + WEIGHT_TILES);
}

/* ---- how the work is cut ---- */

/* As many rows of tiles as BAND_TILES allow, the same in each band as far as that goes. */
static struct bands cut_bands(const struct ampk_conv_shape *s)
{
    int all = tile_count(s->h), most = ampk_larger(BAND_TILES / tile_count(s->w), 1);
    int count = (all + most - 1) / most, rows = (all + count - 1) / count;
    return (struct bands){.count = (all + rows - 1) / rows,
                          .rows = 4 * rows,
                          .in_rows = 4 * rows + 2,
                          .in_step = 4 * rows,
                          .in_offset = 1};
}

struct ampk_winograd_band ampk_winograd_band(const struct ampk_conv_shape *s, const struct bands *b,
                                             int unit)
{
    int rows = ampk_smaller(b->rows, s->h - unit % b->count * b->rows);
    return (struct ampk_winograd_band){s->w, tile_count(rows), tile_count(s->w)};
}

/* Of any but an image's last. */
static size_t band_tiles(const struct ampk_conv_shape *s, const struct bands *b)
{
    return (size_t)b->rows / 4 * tile_count(s->w);
}

size_t ampk_winograd_most_tiles(const struct ampk_conv_shape *s, const struct bands *b, int units)
{
    return band_tiles(s, b) * units;
}

size_t ampk_winograd_tiles_before(const struct ampk_conv_shape *s, const struct bands *b, int unit)
{
    size_t image = (size_t)tile_count(s->h) * tile_count(s->w);
    return unit / b->count * image + unit % b->count * band_tiles(s, b);
}

size_t ampk_winograd_tile_points(size_t tiles, size_t channels)
{
    return AMPK_WINOGRAD_POINTS * (tiles * channels + AMPK_WINOGRAD_GAP);
}

/* Units that have so many tiles. */
static int units_with(int tiles, const struct ampk_conv_shape *s, const struct bands *b)
{
    int unit = (int)band_tiles(s, b);
    return (tiles + unit - 1) / unit;
}

/* Enough tasks for so many threads. Results must not depend on it. */
static int tasks_for(int threads)
{
    return ampk_smaller(THREAD_TASKS * threads, TASKS);
}

/* Halves a slice of `written` channels until `units` units, so many in a task at least, make so
 * many tasks. */
static int slice_for(int tasks, int slice, int written, int units, int at_least)
{
    while (units * (written / slice) < tasks * at_least && half_slice(slice) < slice)
        slice = half_slice(slice);
    return slice;
}

/* Units in a turn: as many as TURN_BYTES allow, the same in each as far as that goes. If instead
 * every slice took the points of its units, that would cost as much as to multiply them by some 32
 * filters. */
static int turn_units(const struct ampk_conv_shape *s, const struct pass *pass, int units)
{
    size_t unit = sizeof(float) * AMPK_WINOGRAD_POINTS * band_tiles(s, &pass->bands) * pass->read;
    int at_least = units_with(TURN_TILES, s, &pass->bands);
    int most = ampk_larger((int)(TURN_BYTES / unit), at_least), turns = (units + most - 1) / most;
    return (units + turns - 1) / turns;
}

size_t ampk_winograd_turn_bytes(const struct ampk_conv *conv, const struct pass *pass)
{
    if (!pass->turn) return 0;
    size_t tiles = ampk_winograd_most_tiles(&conv->shape, &pass->bands, pass->turn);
    size_t parts = (size_t)pass->read / pass->depth;
    return ampk_whole_lines(parts * ampk_winograd_tile_points(tiles, (size_t)pass->depth) *
                            sizeof(float));
}

/* Batch-norm's sums depend on how many channels are stored at once, so the number of threads has no
 * say in that. Slices may be larger. */
static void cut_pass(const struct ampk_conv *conv, int threads, struct pass *pass, bool to_x)
{
    const struct ampk_conv_shape *s = &conv->shape;
    int tasks = tasks_for(threads);
    pass->to_x = to_x;
    pass->read = to_x ? s->k : s->c;
    pass->written = to_x ? s->c : s->k;
    pass->bands = cut_bands(s);
    int units = s->n * pass->bands.count;
    int at_least = units_with(TASK_TILES, s, &pass->bands);
    size_t fit = conv->winograd->slice_points / AMPK_WINOGRAD_POINTS / (size_t)pass->read;
    int slice = slice_channels(pass->written, fit);
    int stored = slice_for(TASKS, slice, pass->written, units, at_least);
    slice = slice_for(tasks, slice, pass->written, units, at_least);
    pass->slices = pass->written / slice;
    pass->parts = slice / stored;
    bool shares = conv->winograd->shares;
    if (shares && pass->slices > 1) units = pass->turn = turn_units(s, pass, units);
    pass->units = ampk_smaller(ampk_larger(at_least, units * pass->slices / tasks), units);
    int at_once = shares ? units_with(MULTIPLIED_TILES, s, &pass->bands) : 1;
    pass->at_once = ampk_smaller(pass->units, at_once);
    pass->depth = pass->read;
    if (pass->turn && pass->units == pass->at_once)
        pass->depth = pass->read % DEPTH ? DEPTH / 2 : DEPTH;
}

/* Halves slices of filters and channels until there are so many tasks of `groups`. */
static void slice_gradient(const struct ampk_conv *conv, int groups, int tasks, struct gradient *g)
{
    const struct ampk_conv_shape *s = &conv->shape;
    size_t fit = conv->winograd->gradient_slice;
    int k = slice_channels(s->k, fit), c = slice_channels(s->c, fit);
    while (groups * (s->k / k) * (s->c / c) < tasks && half_slice(k) + half_slice(c) < k + c)
        *(k < c ? &c : &k) /= 2;
    g->slices_k = s->k / k;
    g->slices_c = s->c / c;
}

/* Groups are added, so the number of threads has no say in them. Slices are not: larger ones, which
 * take the same points less often, are better as long as every thread has some. */
static void cut_gradient(const struct ampk_conv *conv, int threads, struct gradient *g)
{
    const struct ampk_conv_shape *s = &conv->shape;
    g->bands = cut_bands(s);
    int units = s->n * g->bands.count;
    size_t bytes = ampk_conv_weight_count(s) * sizeof(float) * units;
    int at_least = ampk_larger(units_with(CHUNK_TILES, s, &g->bands), (int)(bytes / PARTIAL_BYTES));
    int most = (units + at_least - 1) / at_least; /* tasks of a tile of filters and channels */
    slice_gradient(conv, most, TASKS, g);
    g->units = ampk_larger(at_least, units * g->slices_k * g->slices_c / TASKS);
    g->units = ampk_smaller(g->units, units);
    while (units % g->units)
        g->units++;
    g->groups = units / g->units;
    g->chunk = ampk_smaller(units_with(CHUNK_TILES, s, &g->bands), g->units);
    slice_gradient(conv, g->groups, tasks_for(threads), g);
}

/* ---- creation ---- */

/* Floats: the points of a slice's weights, of `depth` channels. */
size_t ampk_winograd_points(const struct pass *pass)
{
    size_t slice = (size_t)pass->written / pass->slices;
    return AMPK_WINOGRAD_POINTS * (slice * pass->depth + AMPK_WINOGRAD_GAP);
}

/* Floats of a task's memory beside its operands. */
static size_t pass_scratch(const struct ampk_conv *conv, const struct pass *pass)
{
    size_t tiles = ampk_winograd_most_tiles(&conv->shape, &pass->bands, pass->at_once);
    size_t input = pass->turn ? 0 : ampk_winograd_tile_points(tiles, (size_t)pass->read);
    return ampk_winograd_points(pass) + input +
           ampk_winograd_tile_points(tiles, (size_t)pass->written / pass->slices);
}

/* Floats: the points of a task's weight gradient, of all filters only if they come in chunks. */
size_t ampk_winograd_sums(const struct ampk_conv *conv)
{
    const struct gradient *g = &conv->gradient;
    size_t c = (size_t)conv->shape.c / g->slices_c + AMPK_WINOGRAD_ROWS;
    size_t k = g->chunk < g->units ? (size_t)conv->shape.k / g->slices_k : AMPK_WINOGRAD_COLUMNS;
    return AMPK_WINOGRAD_POINTS * k / LEAST_COLUMNS * (c * LEAST_COLUMNS + AMPK_WINOGRAD_GAP);
}

static size_t gradient_scratch(const struct ampk_conv *conv)
{
    const struct gradient *g = &conv->gradient;
    size_t tiles = ampk_winograd_most_tiles(&conv->shape, &g->bands, g->chunk);
    return ampk_winograd_sums(conv) +
           ampk_winograd_tile_points(tiles, (size_t)conv->shape.c / g->slices_c) +
           ampk_winograd_tile_points(tiles, (size_t)conv->shape.k / g->slices_k);
}

static void need_lane(struct ampk_conv *conv, size_t x, size_t y, size_t scratch)
{
    size_t bytes = ampk_whole_lines(x * sizeof(float)) + ampk_whole_lines(y * sizeof(float)) +
                   ampk_whole_lines(scratch * sizeof(float));
    if (bytes > conv->lane_bytes) conv->lane_bytes = bytes;
}

static void create_pass(struct ampk_conv *conv, struct pass *pass)
{
    const struct ampk_conv_shape *s = &conv->shape;
    bool to_x = pass->to_x;
    size_t in = (size_t)pass->bands.in_rows * s->w * pass->read;
    size_t out = (size_t)pass->bands.rows * s->w * pass->written / pass->slices;
    need_lane(conv, to_x ? out : in, to_x ? in : out, pass_scratch(conv, pass));
    pass->slice_bytes = ampk_conv_weight_count(s) / pass->slices * sizeof(float);
}

static void create_gradient(struct ampk_conv *conv, int threads)
{
    const struct ampk_conv_shape *s = &conv->shape;
    struct gradient *g = &conv->gradient;
    cut_gradient(conv, threads, g);
    size_t x = (size_t)g->bands.in_rows * s->w * (s->c / g->slices_c);
    size_t y = (size_t)g->bands.rows * s->w * (s->k / g->slices_k);
    need_lane(conv, x, y, gradient_scratch(conv));
    if (g->groups > 1)
        g->partial_bytes = ampk_conv_weight_count(s) / ampk_conv_tiles(g) * sizeof(float);
}

void ampk_winograd_create(struct ampk_conv *conv, int threads)
{
    bool backward = !conv->shape.forward_only, transposed = conv->shape.transposed;
    cut_pass(conv, threads, &conv->to_y, false);
    cut_pass(conv, threads, &conv->to_x, true);
    if (backward || !transposed) create_pass(conv, &conv->to_y);
    if (backward || transposed) create_pass(conv, &conv->to_x);
    if (backward) create_gradient(conv, threads);
}
