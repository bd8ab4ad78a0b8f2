/* Pieces, tiles and blocks of tensors (tiles.h).
 *
 * A piece of the work is a run of pixels of one image; the shape alone decides its length. Operands
 * of one dtype in NHWC are used where they are. Any other mixture goes through small FP32 blocks,
 * so that each kernel exists for one dtype at a time. */
#include "tiles.h"

#include <string.h>

enum {
    TILE = 512, /* elements in a tile of up to this many channels, else one pixel */
    TILE_CHANNELS = 128,
    BLOCK_PIXELS = 64, /* sides of the FP32 blocks */
    BLOCK_CHANNELS = 64,
    SUM_PIXELS = 8, /* of a block that a kernel gets at once */
};

/* ---- tiles ---- */

static bool is_nhwc(const struct ampk_tensor *t)
{
    return t->layout == AMPK_NHWC || t->c == 1 || (t->h == 1 && t->w == 1);
}

/* Whether all inputs and the output are NHWC of one dtype, which goes to *dtype. */
static bool is_direct(const struct ampk_job *job, enum ampk_dtype *dtype)
{
    const struct ampk_tensor *first = job->in[0] ? job->in[0] : job->out;
    const struct ampk_tensor *all[] = {job->in[0], job->in[1], job->in[2], job->out};
    *dtype = first->dtype;
    for (int i = 0; i < 4; i++)
        if (all[i] && (!is_nhwc(all[i]) || all[i]->dtype != first->dtype)) return false;
    return true;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The parts of a tile that do not depend on where in and out are. */
static struct ampk_tile tile_at(const struct ampk_job *job, const struct ampk_region *region,
                                size_t pixel, size_t pixels, size_t channel, size_t channels)
{
    struct ampk_tile tile = {.source_stride = region->source_stride,
                             .pixels = pixels,
                             .first_channel = channel,
                             .channels = channels};
    if (job->source)
        tile.source = job->source + (pixel - region->pixel) * region->source_stride +
                      (channel - region->channel);
    for (int i = 0; i < 2; i++)
        if (job->sums[i]) tile.sums[i] = job->sums[i] + channel;
    return tile;
}

/* Pixels in a tile. A kernel walks a tile column by column. That order must stay close to the
 * order in memory, or the processor's prefetching fails. */
static size_t tile_pixels(size_t channels)
{
    return channels <= TILE_CHANNELS ? TILE / channels : 1;
}

/* Address of the region's first channel of a pixel, NHWC. */
static void *direct_at(const struct ampk_tensor *t, const struct ampk_region *region, size_t pixel)
{
    return ampk_at(t, region->image, pixel * (size_t)ampk_pitch(t) + region->channel);
}

/* Tile by tile, on the tensors themselves. */
static uint32_t run_direct(const struct ampk_job *job, const struct ampk_region *region,
                           enum ampk_dtype dtype)
{
    size_t end = region->pixel + region->pixels, step = tile_pixels(region->channels);
    uint32_t largest = 0;
    for (size_t pixel = region->pixel; pixel < end; pixel += step) {
        struct ampk_tile tile = tile_at(job, region, pixel, ampk_less(step, end - pixel),
                                        region->channel, region->channels);
        for (int i = 0; i < AMPK_TILE_INPUTS; i++)
            if (job->in[i]) {
                tile.in[i] = direct_at(job->in[i], region, pixel);
                tile.in_step[i] = (size_t)ampk_pitch(job->in[i]);
            }
        if (job->out) {
            tile.out = direct_at(job->out, region, pixel);
            tile.out_step = (size_t)ampk_pitch(job->out);
        }
        tile.dtype = dtype;
        largest = (uint32_t)larger(largest, job->kernel(job, &tile));
    }
    return largest;
}

/* A block has its channels side by side, as NHWC tensors have. */
AMPK_INLINE void load_pixels(const void *data, enum ampk_dtype t, size_t first, size_t pitch,
                             const struct ampk_tile *tile, float *block)
{
    for (size_t i = 0; i < tile->pixels; i++)
        for (size_t j = 0; j < tile->channels; j += AMPK_LANES) {
            size_t left = tile->channels - j;
            ampk_vec v = ampk_vec_load(data, first + i * pitch + j, t, left);
            ampk_vec_store(block, i * BLOCK_CHANNELS + j, AMPK_FP32, left, v);
        }
}

AMPK_INLINE void store_pixels(void *data, enum ampk_dtype t, size_t first, size_t pitch,
                              const struct ampk_tile *tile, const float *block)
{
    for (size_t i = 0; i < tile->pixels; i++)
        for (size_t j = 0; j < tile->channels; j += AMPK_LANES) {
            size_t left = tile->channels - j;
            ampk_vec v = ampk_vec_load(block, i * BLOCK_CHANNELS + j, AMPK_FP32, left);
            ampk_vec_store(data, first + i * pitch + j, t, left, v);
        }
}

static void load_block(const struct ampk_tensor *t, size_t image, size_t pixel, size_t channel,
                       const struct ampk_tile *tile, float *block)
{
    const void *data = ampk_at(t, image, 0);
    size_t pitch = (size_t)ampk_pitch(t), area = (size_t)t->h * (size_t)t->w;
    if (is_nhwc(t)) {
        AMPK_WITH_DTYPE(t->dtype, T,
                        load_pixels(data, T, pixel * pitch + channel, pitch, tile, block));
        return;
    }
    const void *planes = ampk_at(t, image, channel * area + pixel);
    AMPK_WITH_DTYPE(
        t->dtype, T,
        ampk_turn(planes, T, area, tile->channels, tile->pixels, block, AMPK_FP32, BLOCK_CHANNELS));
}

static void store_block(const struct ampk_tensor *t, size_t image, size_t pixel, size_t channel,
                        const struct ampk_tile *tile, const float *block)
{
    void *data = ampk_at(t, image, 0);
    size_t pitch = (size_t)ampk_pitch(t), area = (size_t)t->h * (size_t)t->w;
    if (is_nhwc(t)) {
        AMPK_WITH_DTYPE(t->dtype, T,
                        store_pixels(data, T, pixel * pitch + channel, pitch, tile, block));
        return;
    }
    void *planes = ampk_at(t, image, channel * area + pixel);
    AMPK_WITH_DTYPE(
        t->dtype, T,
        ampk_turn(block, AMPK_FP32, BLOCK_CHANNELS, tile->pixels, tile->channels, planes, T, area));
}

/* The kernel on the blocks of a tile, a few pixels at a time: over so many it adds in FP32. */
static uint32_t run_tile(const struct ampk_job *job, const struct ampk_region *region, size_t pixel,
                         const struct ampk_tile *whole,
                         float block[][BLOCK_PIXELS * BLOCK_CHANNELS])
{
    uint32_t largest = 0;
    for (size_t i = 0; i < whole->pixels; i += SUM_PIXELS) {
        struct ampk_tile tile =
            tile_at(job, region, pixel + i, ampk_less(whole->pixels - i, SUM_PIXELS),
                    whole->first_channel, whole->channels);
        for (int k = 0; k < AMPK_TILE_INPUTS; k++) {
            if (job->in[k]) tile.in[k] = block[k] + i * BLOCK_CHANNELS;
            tile.in_step[k] = BLOCK_CHANNELS;
        }
        tile.out = block[AMPK_TILE_INPUTS] + i * BLOCK_CHANNELS;
        tile.out_step = BLOCK_CHANNELS;
        tile.dtype = AMPK_FP32;
        largest = (uint32_t)larger(largest, job->kernel(job, &tile));
    }
    return largest;
}

/* Block by block: loads each input into FP32, runs the kernel on the blocks, and stores the
 * result. */
static uint32_t run_blocks(const struct ampk_job *job, const struct ampk_region *region)
{
    float block[AMPK_TILE_INPUTS + 1][BLOCK_PIXELS * BLOCK_CHANNELS];
    size_t end = region->pixel + region->pixels, last = region->channel + region->channels;
    uint32_t largest = 0;
    for (size_t channel = region->channel; channel < last; channel += BLOCK_CHANNELS)
        for (size_t pixel = region->pixel; pixel < end; pixel += BLOCK_PIXELS) {
            struct ampk_tile tile = {.pixels = ampk_less(end - pixel, BLOCK_PIXELS),
                                     .first_channel = channel,
                                     .channels = ampk_less(last - channel, BLOCK_CHANNELS)};
            for (int i = 0; i < AMPK_TILE_INPUTS; i++)
                if (job->in[i])
                    load_block(job->in[i], region->image, pixel, channel, &tile, block[i]);
            largest = (uint32_t)larger(largest, run_tile(job, region, pixel, &tile, block));
            if (job->out)
                store_block(job->out, region->image, pixel, channel, &tile,
                            block[AMPK_TILE_INPUTS]);
        }
    return largest;
}

uint32_t AMPK_CPU(run_region)(const struct ampk_job *job, const struct ampk_region *region)
{
    enum ampk_dtype dtype;
    return is_direct(job, &dtype) ? run_direct(job, region, dtype) : run_blocks(job, region);
}

/* ---- whole tensors ---- */

uint32_t AMPK_CPU(run_job)(const struct ampk_job *job, const struct ampk_tensor *shape, int threads,
                           int sums, float *partial)
{
    size_t pixels = (size_t)shape->h * shape->w, step = ampk_bn_piece_pixels(shape->c);
    size_t pieces = ampk_bn_pieces(shape), c = (size_t)shape->c;
    uint32_t largest = 0;
#pragma omp parallel for num_threads(threads) reduction(max : largest)
    for (size_t i = 0; i < pieces * shape->n; i++) {
        size_t first = i % pieces * step;
        struct ampk_region region = {shape, i / pieces, first, ampk_less(step, pixels - first),
                                     0,     c,          0};
        struct ampk_job piece = *job;
        for (int j = 0; j < sums; j++) {
            piece.sums[j] = partial + (i * sums + j) * c;
            memset(piece.sums[j], 0, c * sizeof(float));
        }
        uint32_t found = AMPK_CPU(run_region)(&piece, &region);
        if (found > largest) largest = found;
    }
    return largest;
}
