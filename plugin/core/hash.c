/* Hashes bytes and files. It must not know what they hold. */
#include "hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The library's functions become part of this file, so that nobody who links the archive
 * libdarknet_amp_wrap.a has to link the library too. */
#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(XXH64_state_t) <= sizeof(struct amp_hash), "a hash has room for its state");

static XXH64_state_t *state_of(struct amp_hash *h)
{
    return (XXH64_state_t *)h->state;
}

void amp_hash_begin(struct amp_hash *h)
{
    memset(h, 0, sizeof *h);
    XXH64_reset(state_of(h), 0);
}

void amp_hash_add(struct amp_hash *h, const void *data, size_t bytes)
{
    XXH64_update(state_of(h), data, bytes);
}

uint64_t amp_hash_value(const struct amp_hash *h)
{
    return XXH64_digest((const XXH64_state_t *)h->state);
}

int amp_file_identify(const char *path, struct amp_file_id *id, char *err, size_t err_size)
{
    /* Per thread, since several threads may save at once; not on the stack, where 64 KiB may be
     * much. */
    static _Thread_local unsigned char buffer[1 << 16];
    struct amp_hash h;
    uint64_t bytes = 0;
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    amp_hash_begin(&h);
    for (; fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0; bytes += (uint64_t)n)
        amp_hash_add(&h, buffer, (size_t)n);
    if (n < 0) snprintf(err, err_size, "%s: cannot read: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    *id = (struct amp_file_id){bytes, amp_hash_value(&h)};
    return n < 0 ? -1 : 0;
}
