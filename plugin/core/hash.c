#include "hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const uint64_t P1 = 0x9e3779b185ebca87, P2 = 0xc2b2ae3d27d4eb4f, P3 = 0x165667b19e3779f9,
                      P4 = 0x85ebca77c2b2ae63, P5 = 0x27d4eb2f165667c5;

static uint64_t rotate(uint64_t x, int left)
{
    return x << left | x >> (64 - left);
}

static uint64_t word(const unsigned char *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

static uint64_t mix(uint64_t lane, uint64_t w)
{
    return rotate(lane + w * P2, 31) * P1;
}

static void add_block(struct amp_hash *h, const unsigned char *p)
{
    for (int i = 0; i < 4; ++i)
        h->lane[i] = mix(h->lane[i], word(p + 8 * i));
}

void amp_hash_begin(struct amp_hash *h)
{
    *h = (struct amp_hash){.lane = {P1 + P2, P2, 0, -P1}};
}

void amp_hash_add(struct amp_hash *h, const void *data, size_t bytes)
{
    const unsigned char *p = data, *end = p + bytes;
    size_t held = h->bytes % 32;
    h->bytes += bytes;
    if (held) {
        size_t n = bytes < 32 - held ? bytes : 32 - held;
        memcpy(h->rest + held, p, n);
        p += n;
        if (held + n < 32) return;
        add_block(h, h->rest);
    }
    for (; end - p >= 32; p += 32)
        add_block(h, p);
    if (end > p) memcpy(h->rest, p, (size_t)(end - p));
}

static uint64_t join_lanes(const struct amp_hash *h)
{
    if (h->bytes < 32) return P5;
    uint64_t v = rotate(h->lane[0], 1) + rotate(h->lane[1], 7) + rotate(h->lane[2], 12) +
                 rotate(h->lane[3], 18);
    for (int i = 0; i < 4; ++i)
        v = (v ^ mix(0, h->lane[i])) * P1 + P4;
    return v;
}

uint64_t amp_hash_value(const struct amp_hash *h)
{
    const unsigned char *p = h->rest, *end = p + h->bytes % 32;
    uint64_t v = join_lanes(h) + h->bytes;
    for (; end - p >= 8; p += 8)
        v = rotate(v ^ mix(0, word(p)), 27) * P1 + P4;
    if (end - p >= 4) {
        uint32_t half;
        memcpy(&half, p, sizeof half);
        v = rotate(v ^ half * P1, 23) * P2 + P3;
        p += 4;
    }
    for (; p < end; ++p)
        v = rotate(v ^ *p * P5, 11) * P1;
    v = (v ^ v >> 33) * P2;
    v = (v ^ v >> 29) * P3;
    return v ^ v >> 32;
}

int amp_file_identify(const char *path, struct amp_file_id *id, char *err, size_t err_size)
{
    static _Thread_local unsigned char buffer[1 << 16];
    struct amp_hash h;
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    amp_hash_begin(&h);
    while (fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0)
        amp_hash_add(&h, buffer, (size_t)n);
    if (n < 0) snprintf(err, err_size, "%s: cannot read: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    *id = (struct amp_file_id){h.bytes, amp_hash_value(&h)};
    return n < 0 ? -1 : 0;
}
