/* Checks values of Darknet's own keys, which its parser takes without looking: it reads a word as
 * 0, walks past the end of a shorter list, writes past the end of its anchors, and divides by
 * step=0. */
#ifndef AMP_CFG_VALUES_H
#define AMP_CFG_VALUES_H

#include "cfg.h"

/* Checks that numbers are numbers, finite and within 32 bits; that lists have no empty element;
 * that Darknet knows `policy`, which has the keys it needs and as many scales as steps; and that
 * there are at most 2 * num anchors. 0, or -1 with "file:line: what, and what is allowed" in
 * err. */
int amp_cfg_values_check(const struct amp_cfg_file *, char *err, size_t err_size);

/* Checks values that Darknet takes, but which train something else than the user meant:
 * subdivisions that do not divide the batch, a negative burn_in, learning_rate or decay, a momentum
 * of 1 or more, fewer anchors than 2 * num, an unknown type of [cost]. Call it after
 * amp_cfg_values_check. 0, or -1 as above. notes (may be NULL) receives lines about what is odd but
 * allowed: a learning_rate of 0, and a remark behind a number. */
int amp_cfg_values_check_training(const struct amp_cfg_file *, char *notes, size_t notes_size,
                                  char *err, size_t err_size);

#endif
