/* cfg and .data files: opened here, taken apart in cfg_text.h. Also a cfg with some keys or
 * sections changed, for Darknet's parser. */
#ifndef AMP_CFG_H
#define AMP_CFG_H

#include "cfg_text.h"

/* NULL on failure, with "file:line: what, and what is allowed" in err. */
struct amp_cfg_file *amp_cfg_read(const char *path, char *err, size_t err_size);
/* asked: mixed precision is asked for beside the cfg, and so Windows line ends are no failure. */
struct amp_cfg_file *amp_cfg_read_asked(const char *path, bool asked, char *err, size_t err_size);
/* The same from a text; messages name path. */
struct amp_cfg_file *amp_cfg_parse(const char *path, const char *text, size_t size, char *err,
                                   size_t err_size);
/* Reads a Darknet .data file: the same lines without sections (Darknet's read_data_cfg). The result
 * has exactly one section, named "". A "[" opens no section there. */
struct amp_cfg_file *amp_cfg_read_data(const char *path, char *err, size_t err_size);

/* ---- a cfg with some keys changed: a file in memory, nothing is written to a disk ---- */

struct amp_cfg_key {
    const char *key;   /* NULL: value is the whole section, with its name */
    const char *value; /* NULL: the key is left out */
    int section;       /* 0: [net]; layer i's is i + 1 */
};

struct amp_cfg_variant {
    int fd;
    char path[32]; /* path to open it by, in this process only */
};

/* Opens the changed cfg; close it when it has been read. 0, or -1 with text in err. */
int amp_cfg_variant_open(struct amp_cfg_variant *, const struct amp_cfg_file *,
                         const struct amp_cfg_key *keys, int n, char *err, size_t err_size);
void amp_cfg_variant_close(struct amp_cfg_variant *);
/* True for the path of an open one. Its keys and lines are not the user's, so nobody is told what
 * is odd about them. The program and the plugin may have a copy of this file each. */
bool amp_cfg_is_variant(const char *path);

#endif
