/* 64-bit hash of bytes and of whole files: tells whether a file is the one that was written.
 *
 * The function is XXH64 with seed 0 (Yann Collet; the specification is doc/xxhash_spec.md of the
 * xxHash project). It guards against damage and mix-ups, not against someone who wants a collision.
 * Words are taken in the machine's byte order, as everything in a weights file is.
 */
#ifndef AMP_HASH_H
#define AMP_HASH_H

#include <stddef.h>
#include <stdint.h>

struct amp_hash {
    uint64_t lane[4], bytes;
    unsigned char rest[32]; /* not yet a whole block */
};

void amp_hash_begin(struct amp_hash *);
void amp_hash_add(struct amp_hash *, const void *, size_t bytes);
/* Of everything added so far; more may be added afterwards. */
uint64_t amp_hash_value(const struct amp_hash *);

/* What a file is recognised by. */
struct amp_file_id {
    uint64_t bytes, hash;
};

/* 0, or -1 with text in err that names the file. */
int amp_file_identify(const char *path, struct amp_file_id *, char *err, size_t err_size);

#endif
