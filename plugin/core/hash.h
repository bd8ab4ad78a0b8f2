/* 64-bit hash of bytes and of whole files: shows whether a file is the one that was written.
 *
 * The function is XXH64 with seed 0, by libxxhash. It guards against damage and mix-ups, not
 * against someone who wants a collision. */
#ifndef AMP_HASH_H
#define AMP_HASH_H

#include <stddef.h>
#include <stdint.h>

struct amp_hash {
    uint64_t state[11]; /* state of the library, whose header only hash.c includes */
};

void amp_hash_begin(struct amp_hash *);
void amp_hash_add(struct amp_hash *, const void *, size_t bytes);
/* The hash of all bytes so far; more may be added afterwards. */
uint64_t amp_hash_value(const struct amp_hash *);

/* Identity of a file. */
struct amp_file_id {
    uint64_t bytes, hash;
};

/* 0, or -1 with text in err that names the file. */
int amp_file_identify(const char *path, struct amp_file_id *, char *err, size_t err_size);

#endif
