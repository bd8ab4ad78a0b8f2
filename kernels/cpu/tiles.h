/* Loops over the pixels of tensors, for operations with one parameter or one sum per channel. An
 * operation is a kernel, which computes a tile: some pixels of some channels of one image. */
#ifndef AMPK_CPU_TILES_H
#define AMPK_CPU_TILES_H

#include "arithmetic.h"

enum { AMPK_TILE_INPUTS = 3 }; /* tensors that a kernel reads at most */

/* Some pixels of some channels of one image, as a kernel sees them. */
struct ampk_tile {
    const void *in[AMPK_TILE_INPUTS];
    void *out;
    size_t in_step[AMPK_TILE_INPUTS], out_step; /* from pixel to pixel, in elements of dtype */
    enum ampk_dtype dtype;
    const float *source; /* see struct ampk_job */
    size_t source_stride;
    size_t pixels, first_channel, channels;
    float *sums[2]; /* the kernel adds its sums over the pixels; starts at first_channel */
};

/* One operation. */
struct ampk_job {
    /* Returns the largest magnitude stored, as amax bits. */
    uint32_t (*kernel)(const struct ampk_job *, const struct ampk_tile *);
    const struct ampk_tensor *in[AMPK_TILE_INPUTS], *out; /* NULL: not there; perhaps slices */
    const float *source;                                  /* a dense FP32 input, or NULL */
    const float *parameter[AMPK_BN_PARAMETERS];           /* per channel */
    enum ampk_activation activation;
    float *sums[2]; /* per channel, NULL: not there */
};

static inline size_t ampk_less(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Pieces of work in an image. */
static inline size_t ampk_bn_pieces(const struct ampk_tensor *t)
{
    size_t step = ampk_bn_piece_pixels(t->c);
    return ((size_t)t->h * t->w + step - 1) / step;
}

/* Runs the job on a region; returns the largest magnitude stored, as amax bits. */
uint32_t AMPK_CPU(run_region)(const struct ampk_job *, const struct ampk_region *);
/* Runs it on a whole tensor. sums: sums per channel, 0 to 2. partial: sums*c floats for each piece
 * of each image. */
uint32_t AMPK_CPU(run_job)(const struct ampk_job *, const struct ampk_tensor *shape, int threads,
                           int sums, float *partial);

#endif
