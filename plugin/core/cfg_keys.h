/* The keys that Darknet's parser reads, in which sections and as what, and keys that stand in a cfg
 * although it does not read them.
 *
 * Darknet skips a key that it does not know. A misspelt key, or one that only another Darknet
 * reads, then trains a network that nobody asked for, so both are errors here. Values are
 * cfg_values.h's subject.
 */
#ifndef AMP_CFG_KEYS_H
#define AMP_CFG_KEYS_H

#include "cfg.h"

enum amp_cfg_kind {
    AMP_CFG_UNKNOWN, /* no key of Darknet's */
    AMP_CFG_INTEGER,
    AMP_CFG_NUMBER,
    AMP_CFG_INTEGERS, /* with commas between them */
    AMP_CFG_NUMBERS,
    AMP_CFG_WORD
};

/* What Darknet takes the value of this key for, in whichever section it reads it. */
enum amp_cfg_kind amp_cfg_key_kind(const char *key);

/* Looks for keys that nobody reads where they stand. own, n_own: the plugin's keys under [net],
 * which are also known. An error, with file and line and what was probably meant: a key in other
 * letter case or misspelt, and a key with which another Darknet would train another network. The
 * rest is told in notes (may be NULL), in one line. 0 or -1. */
int amp_cfg_keys_check(const struct amp_cfg_file *, const char *const *own, size_t n_own,
                       char *notes, size_t notes_size, char *err, size_t err_size);

#endif
