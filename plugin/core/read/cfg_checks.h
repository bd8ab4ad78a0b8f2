/* Checks of Darknet's own keys and their values, which its parser takes without looking. Which keys
 * there are stands in key_table.h.
 *
 * Darknet skips a key that it does not know. A misspelt key, or one that only another Darknet
 * reads, then trains a network that nobody asked for. By stock's rules both are errors. By the
 * fork's rules (dialect.h) most of it is a note: its users' cfgs have such things, and the fork
 * runs.
 *
 * cfg_values.c knows what Darknet does with a value: it reads a word as 0, walks past the end of a
 * shorter list, writes past the end of its anchors, and divides by step=0. */
#ifndef AMP_CFG_CHECKS_H
#define AMP_CFG_CHECKS_H

#include "cfg.h"
#include "complaints.h"
#include "key_table.h"

/* ---- keys ---- */

/* Looks for keys that nobody reads in their section. own, n_own: the plugin's keys under [net],
 * which count as known. Four things are errors: a key that is misspelt or in another letter case,
 * with what was probably meant; a key that Darknet reads under [net] only, in a layer; a key with
 * which another Darknet would train another network; and a switch that is neither 0 nor 1
 * (batch_normalize=2). The rest is one note. By the fork's rules there is one error: a key that
 * asks for what this program cannot train. 0 or -1. */
int amp_cfg_keys_check(const struct amp_complaints *, const char *const *own, size_t n_own);

/* ---- values ---- */

/* Checks that numbers are numbers, finite and within 32 bits; that lists have no empty element and
 * no remark with a comma; that Darknet knows `policy`, which has the keys it needs and as many
 * scales as steps; and that there are at most 2 * num anchors. By the fork's rules anything may
 * stand behind a number that can be read. 0, or -1 with what is allowed. */
int amp_cfg_values_check(const struct amp_complaints *);

/* What subdivisions takes, for messages. */
#define AMP_SUBDIVISIONS "a divisor of batch, at least 1, or with mixed_precision=1 auto"

/* True with subdivisions=auto and mixed_precision=1: the plugin picks the number (need.h), and
 * Darknet, which would read 0 and divide by it, is given that. */
bool amp_cfg_picks_subdivisions(const struct amp_cfg_file *);

/* Checks values that Darknet takes, but which train something else than the user meant:
 * subdivisions that do not divide the batch; numbers out of range; steps that fall, scales that are
 * not as many or not above 0; anchors that are fewer than 2 * num or not above 0; blanks for
 * commas; an unknown type of [cost]. Call it after amp_cfg_values_check. 0 or -1. Notes are about
 * what is odd but allowed: a learning_rate of 0, a negative step, a burn_in that fills the
 * training, and a remark behind a number. By the fork's rules also about what such cfgs have: steps
 * that fall or lie behind the end, a batch that is cut, scales and anchors that are not as many. */
int amp_cfg_values_check_training(const struct amp_complaints *);

/* Notes keys that are given twice. */
void amp_cfg_note_doubles(const struct amp_complaints *);

#endif
