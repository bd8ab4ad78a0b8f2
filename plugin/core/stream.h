/* Streams of random numbers that depend on the place of use, not on earlier draws: stream (seed,
 * purpose, i, k) always yields the same numbers, on every machine, in any thread and in any order.
 * Two streams that differ in seed, purpose, i or k share no counter.
 *
 * The generator is Philox4x32-10 (kernels/philox.h). It encrypts a 128-bit counter under a 64-bit
 * key:
 *
 *   key      seed
 *   counter  {block number, k, low 32 bits of i, 24 more bits of i and 8 bits of purpose} */
#ifndef AMP_STREAM_H
#define AMP_STREAM_H

#include <stdbool.h>
#include <stdint.h>

enum amp_stream_purpose {
    AMP_STREAM_WEIGHTS = 1, /* initial weights of a network */
    AMP_STREAM_IMAGE,       /* image k of batch i: which one, and its augmentation */
    AMP_STREAM_BETWEEN,     /* drawn between two steps, at i images seen: the size of random=1 */
    AMP_STREAM_PASS,        /* drawn inside a pass, at i images seen: dropout masks on the host */
    AMP_STREAM_DRAW,        /* drawing i of an evaluation's images, with replacement */
    AMP_STREAM_MASK,        /* dropout masks on a device, at i images seen; k: network and layer */
    AMP_STREAM_ANCHORS      /* where search i for anchors begins */
};

struct amp_stream {
    uint32_t key[2], counter[4], block[4];
    unsigned used; /* words of block that are used up */
    bool has_spare;
    double spare; /* the second number of a normally distributed pair */
};

/* Opens stream (seed, purpose, i, k) at its start. i must be below 2^56; a stream has 2^34
 * words. */
void amp_stream_open(struct amp_stream *, uint64_t seed, enum amp_stream_purpose, uint64_t i,
                     uint32_t k);

/* The next 32 random bits. */
uint32_t amp_stream_bits(struct amp_stream *);
/* Normally distributed, mean 0, variance 1 (Box-Muller). */
double amp_stream_normal(struct amp_stream *);

#endif
