/* Values of Darknet's own keys that its parser takes without looking: it reads a word as 0, walks
 * past the end of a shorter list, writes past the end of its anchors, divides by step=0. */
#ifndef AMP_CFG_VALUES_H
#define AMP_CFG_VALUES_H

#include "cfg.h"

/* Numbers are numbers, finite and within 32 bits; lists have no empty element; `policy` is one that
 * Darknet knows, with the keys that it needs and as many scales as steps; anchors are 2 * num. 0,
 * or -1 with "file:line: what, and what is allowed" in err. */
int amp_cfg_values_check(const struct amp_cfg_file *, char *err, size_t err_size);

/* Values that Darknet takes, and then trains something else with than was meant: subdivisions that
 * do not divide the batch, a negative burn_in or learning_rate, a momentum of 1 or more, fewer
 * anchors than 2 * num, an unknown type of [cost]. To be called after the values are known to be
 * numbers. 0, or -1 as above. */
int amp_cfg_values_check_training(const struct amp_cfg_file *, char *err, size_t err_size);

#endif
