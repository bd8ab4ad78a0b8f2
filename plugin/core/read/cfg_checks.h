/* Checks of Darknet's own keys and their values, which its parser takes without looking.
 *
 * cfg_keys.c knows the sections in which Darknet reads each key, its kind of value, and keys that
 * stand in cfgs although this Darknet does not read them. Darknet skips a key that it does not
 * know. A misspelt key, or one that only another Darknet reads, then trains a network that nobody
 * asked for. Both are therefore errors.
 *
 * cfg_values.c knows what Darknet does with a value: it reads a word as 0, walks past the end of a
 * shorter list, writes past the end of its anchors, and divides by step=0. */
#ifndef AMP_CFG_CHECKS_H
#define AMP_CFG_CHECKS_H

#include "cfg.h"

/* ---- keys ---- */

enum amp_cfg_kind {
    AMP_CFG_UNKNOWN, /* Darknet has no such key */
    AMP_CFG_SWITCH,  /* an integer that Darknet only compares with 0 */
    AMP_CFG_INTEGER,
    AMP_CFG_NUMBER,
    AMP_CFG_INTEGERS, /* with commas between them */
    AMP_CFG_NUMBERS,
    AMP_CFG_WORD
};

/* The kind of value that Darknet reads from this key, in whichever section. */
enum amp_cfg_kind amp_cfg_key_kind(const char *key);

/* Looks for keys that nobody reads in their section. own, n_own: the plugin's keys under [net],
 * which count as known. Four things are errors, with file and line: a key that is misspelt or in
 * another letter case, with what was probably meant; a key that Darknet reads under [net] only, in
 * a layer; a key with which another Darknet would train another network; and a switch that is
 * neither 0 nor 1 (batch_normalize=2). The rest goes into notes (may be NULL), in one line. 0 or
 * -1. */
int amp_cfg_keys_check(const struct amp_cfg_file *, const char *const *own, size_t n_own,
                       char *notes, size_t notes_size, char *err, size_t err_size);

/* ---- values ---- */

/* Checks that numbers are numbers, finite and within 32 bits; that lists have no empty element and
 * no remark with a comma; that Darknet knows `policy`, which has the keys it needs and as many
 * scales as steps; and that there are at most 2 * num anchors. 0, or -1 with "file:line: what, and
 * what is allowed" in err. */
int amp_cfg_values_check(const struct amp_cfg_file *, char *err, size_t err_size);

/* What subdivisions takes, for messages. */
#define AMP_SUBDIVISIONS "a divisor of batch, at least 1, or with mixed_precision=1 auto"

/* True with subdivisions=auto and mixed_precision=1: the plugin picks the number (need.h), and
 * Darknet, which would read 0 and divide by it, is given that. */
bool amp_cfg_picks_subdivisions(const struct amp_cfg_file *);

/* Checks values that Darknet takes, but which train something else than the user meant:
 * subdivisions that do not divide the batch; numbers out of range; steps that fall, scales that are
 * not as many or not above 0; anchors that are fewer than 2 * num or not above 0; blanks for
 * commas; an unknown type of [cost]. Call it after amp_cfg_values_check. 0, or -1 as above. notes
 * (may be NULL) receives lines about what is odd but allowed: a learning_rate of 0, a negative
 * step, a burn_in that fills the training, and a remark behind a number. */
int amp_cfg_values_check_training(const struct amp_cfg_file *, char *notes, size_t notes_size,
                                  char *err, size_t err_size);

#endif
