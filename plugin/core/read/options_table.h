/* The table of keys (options.h), for the file that reads a cfg by it. */
#ifndef AMP_OPTIONS_TABLE_H
#define AMP_OPTIONS_TABLE_H

#include "options.h"

static const double scale_min = 1, scale_max = AMP_LOSS_SCALE_MAX;

/* NULL: no key of ours. */
const struct amp_option_row *amp_option_find(const char *key);
/* Sets the member of this row; false if the value is not allowed. */
bool amp_option_set(const struct amp_option_row *, struct amp_options *, bool is_net,
                    const char *value);
/* Whether an unknown key was meant to be one of ours: by its beginning, or by at most one wrong
 * character in six. */
bool amp_option_is_meant(const char *key, const struct amp_option_row **nearest);

#endif
