/* Tiles of a convolution's weights, channels times taps of a filter. Kernels use them to move
 * weights between [taps][padded c], the order of the libraries, and [c][taps], the order of the
 * masters. One block handles one tile.
 *
 * The tile lies in shared memory tap by tap, and taps start 4 banks apart. Threads that take
 * neighbouring values of [c][taps] then find them in different banks. */
#ifndef AMPK_CUDA_CONV_TILE_H
#define AMPK_CUDA_CONV_TILE_H

#include "conv_kernels.h"
#include "kernels/cuda/ops/device.h"

static const int AMPK_TILE_TAPS = 32, AMPK_TILE_VALUES = 2048, AMPK_TILE_CHANNELS = 8,
                 AMPK_TILE_BANKS = 32;
static const int AMPK_TILE_FLOATS =
    AMPK_TILE_VALUES + AMPK_TILE_TAPS * (AMPK_TILE_BANKS - AMPK_TILE_CHANNELS + 4);

struct ampk_conv_tiles {
    int filters, c, taps, padded_c; /* as ampk_conv_weights has them */
    int channels, covered, pitch;   /* of a tile: channels, taps, floats from tap to tap */
    int down, across;               /* tiles of a filter */

    unsigned blocks() const
    {
        return (unsigned)filters * down * across;
    }
};

/* Cuts each filter into tiles of about one size, with a channel count that fills whole 16-byte
 * loads. */
static inline ampk_conv_tiles ampk_cut_weights(struct ampk_conv_weights w)
{
    if (w.taps == 1 && w.c == w.padded_c) { /* both orders are the same: treat all as one filter */
        w.c = w.padded_c = w.k * w.c;
        w.k = 1;
    }
    ampk_conv_tiles t = {};
    t.filters = w.k;
    t.c = w.c;
    t.taps = w.taps;
    t.padded_c = w.padded_c;
    t.covered = w.taps < AMPK_TILE_TAPS ? w.taps : AMPK_TILE_TAPS;
    t.across = (w.taps + t.covered - 1) / t.covered;
    const int most = AMPK_TILE_VALUES / t.covered / AMPK_TILE_CHANNELS * AMPK_TILE_CHANNELS;
    t.down = (w.c + most - 1) / most;
    const int each = (w.c + t.down - 1) / t.down;
    t.channels = (each + AMPK_TILE_CHANNELS - 1) / AMPK_TILE_CHANNELS * AMPK_TILE_CHANNELS;
    t.pitch = (t.channels + AMPK_TILE_BANKS - 1) / AMPK_TILE_BANKS * AMPK_TILE_BANKS + 4;
    return t;
}

/* Whether threads can move 16 bytes at once: packed elements of these tiles that begin at a
 * multiple of 16 bytes; and floats of [c][taps] that begin at dst. */
static inline bool ampk_is_wide_packed(const ampk_conv_tiles &t, enum ampk_dtype dtype)
{
    return t.padded_c % (16 / (int)ampk_dtype_bytes(dtype)) == 0;
}

static inline bool ampk_is_wide_in_order(const ampk_conv_tiles &t, const float *dst)
{
    return t.across == 1 && ampk_fits<float, 4>(dst, (size_t)t.c * t.taps);
}

/* Where a block's tile begins: filter, channel and tap. */
struct ampk_conv_tile {
    size_t filter;
    int channel, tap;
};

static __device__ __forceinline__ ampk_conv_tile ampk_find_tile(const ampk_conv_tiles &t,
                                                                unsigned block)
{
    const unsigned tiles = (unsigned)t.down * t.across, tile = block % tiles;
    return {block / tiles, (int)(tile / t.across) * t.channels, (int)(tile % t.across) * t.covered};
}

/* Index of the tile's first value in [k][taps][padded c], and in [k][c][taps]. */
static __device__ __forceinline__ size_t ampk_place_packed(const ampk_conv_tiles &t,
                                                           const ampk_conv_tile &at)
{
    return (at.filter * t.taps + at.tap) * t.padded_c + at.channel;
}

static __device__ __forceinline__ size_t ampk_place_in_order(const ampk_conv_tiles &t,
                                                             const ampk_conv_tile &at)
{
    return (at.filter * t.c + at.channel) * t.taps + at.tap;
}

/* Loads a tile with all threads of a block, N channels of a tap at once. */
template <int N, typename From>
static __device__ __forceinline__ void
ampk_load_tile(const ampk_conv_tiles &t, const ampk_conv_tile &at, const From *packed, float *tile)
{
    packed += ampk_place_packed(t, at);
    const int runs = t.channels / N;
    for (int i = threadIdx.x; i < runs * t.covered; i += blockDim.x) {
        const int tap = i / runs, c = i % runs * N;
        if (at.channel + c >= t.c || at.tap + tap >= t.taps) continue;
        float v[N];
        ampk_load(packed + (size_t)tap * t.padded_c + c, v);
        ampk_store(tile + tap * t.pitch + c, v);
    }
}

#endif
