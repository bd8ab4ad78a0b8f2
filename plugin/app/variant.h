/* A network for measuring: the user's cfg with some keys changed. Belongs to the `darknet`
 * program. */
#ifndef AMP_VARIANT_H
#define AMP_VARIANT_H

#include "darknet.h"
#include "plugin/core/cfg.h"

/* Darknet builds it and lists its layers on stderr below the line "what". weights NULL: random
 * ones. NULL after a message on stderr. */
network *amp_variant_load(const char *what, const struct amp_cfg_file *, const struct amp_cfg_key *,
                          int n, const char *weights);

/* Between these two calls nothing reaches standard output: Darknet's heads print a line in every
 * pass, and the command's result must stand alone. begin returns the argument of end; -1: stdout
 * stays open. */
int amp_quiet_begin(void);
void amp_quiet_end(int kept);

#endif
