/* Darknet's keys: the sections in which its parser reads each of them, and their kinds of value;
 * and keys that stand in cfgs although Darknet does not read them.
 *
 * Darknet skips a key that it does not know. A misspelt key, or one that only another Darknet
 * reads, then trains a network that nobody asked for. Both are therefore errors here. cfg_values.h
 * checks values. */
#ifndef AMP_CFG_KEYS_H
#define AMP_CFG_KEYS_H

#include "cfg.h"

enum amp_cfg_kind {
    AMP_CFG_UNKNOWN, /* Darknet has no such key */
    AMP_CFG_INTEGER,
    AMP_CFG_NUMBER,
    AMP_CFG_INTEGERS, /* with commas between them */
    AMP_CFG_NUMBERS,
    AMP_CFG_WORD
};

/* The kind of value that Darknet reads from this key, in whichever section. */
enum amp_cfg_kind amp_cfg_key_kind(const char *key);

/* Looks for keys that nobody reads in their section. own, n_own: the plugin's keys under [net],
 * which count as known. Two things are errors, with file, line and the probable meaning: a key that
 * is misspelt or in another letter case, and a key with which another Darknet would train another
 * network. The rest goes into notes (may be NULL), in one line. 0 or -1. */
int amp_cfg_keys_check(const struct amp_cfg_file *, const char *const *own, size_t n_own,
                       char *notes, size_t notes_size, char *err, size_t err_size);

#endif
