/* A cfg with some keys changed, for a second network beside the user's own: a file in memory,
 * nothing is written to a disk. */
#ifndef AMP_CFG_VARIANT_H
#define AMP_CFG_VARIANT_H

#include <stddef.h>

#include "cfg_file.h"

struct amp_cfg_key {
    const char *key, *value; /* NULL: the key is left out */
    int section;             /* 0: [net]; layer i's is i + 1 */
};

struct amp_cfg_variant {
    int fd;
    char path[32]; /* to be opened by, in this process */
};

/* Close it when the cfg has been read. 0, or -1 with text in err. */
int amp_cfg_variant_open(struct amp_cfg_variant *, const struct amp_cfg_file *,
                         const struct amp_cfg_key *keys, int n, char *err, size_t err_size);
void amp_cfg_variant_close(struct amp_cfg_variant *);

#endif
