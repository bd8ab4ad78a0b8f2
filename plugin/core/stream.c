/* Turns a counter into random numbers. It must not keep state outside of struct amp_stream: two
 * runs with a seed draw the same numbers only because nothing else counts. */
#include "stream.h"

#include <math.h>

#include "kernels/philox.h"

void amp_stream_open(struct amp_stream *s, uint64_t seed, enum amp_stream_purpose purpose,
                     uint64_t i, uint32_t k)
{
    *s = (struct amp_stream){
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .counter = {0, k, (uint32_t)i, (uint32_t)(i >> 32) << 8 | (uint32_t)purpose},
        /* An empty block: the first word fills it. */
        .used = 4,
    };
}

uint32_t amp_stream_bits(struct amp_stream *s)
{
    if (s->used == 4) {
        ampk_philox(s->counter, s->key, s->block);
        s->counter[0]++;
        s->used = 0;
    }
    return s->block[s->used++];
}

double amp_stream_normal(struct amp_stream *s)
{
    if (s->has_spare) {
        s->has_spare = false;
        return s->spare;
    }
    /* + 1: the logarithm never gets 0. */
    double radius = sqrt(-2 * log((amp_stream_bits(s) + 1.) * 0x1p-32));
    double angle = 6.283185307179586477 * (amp_stream_bits(s) * 0x1p-32);
    s->spare = radius * sin(angle);
    s->has_spare = true;
    return radius * cos(angle);
}
