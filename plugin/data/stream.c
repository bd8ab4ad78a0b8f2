#include "stream.h"

#include <math.h>

#define ROUNDS      10
#define MULTIPLIER0 0xd2511f53u
#define MULTIPLIER1 0xcd9e8d57u
#define KEY_STEP0   0x9e3779b9u
#define KEY_STEP1   0xbb67ae85u

void amp_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; ++round) {
        uint64_t p0 = (uint64_t)MULTIPLIER0 * a, p1 = (uint64_t)MULTIPLIER1 * c;
        a = (uint32_t)(p1 >> 32) ^ b ^ k0;
        b = (uint32_t)p1;
        c = (uint32_t)(p0 >> 32) ^ d ^ k1;
        d = (uint32_t)p0;
        k0 += KEY_STEP0;
        k1 += KEY_STEP1;
    }
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
}

void amp_stream_open(struct amp_stream *s, uint64_t seed, enum amp_stream_purpose purpose,
                     uint64_t i, uint32_t k)
{
    *s = (struct amp_stream){
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .counter = {0, k, (uint32_t)i, (uint32_t)(i >> 32) << 8 | (uint32_t)purpose},
        .used = 4,
    };
}

uint32_t amp_stream_bits(struct amp_stream *s)
{
    if (s->used == 4) {
        amp_philox(s->counter, s->key, s->block);
        ++s->counter[0];
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
    double radius = sqrt(-2 * log((amp_stream_bits(s) + 1.) * 0x1p-32));
    double angle = 6.283185307179586477 * (amp_stream_bits(s) * 0x1p-32);
    s->spare = radius * sin(angle);
    s->has_spare = true;
    return radius * cos(angle);
}
