/* A network for measuring: the user's cfg with some keys changed. Belongs to the `darknet`
 * program. */
#ifndef AMP_VARIANT_H
#define AMP_VARIANT_H

#include "darknet.h"
#include "plugin/core/cfg.h"

/* Built by Darknet, which lists its layers on stderr below the line "what". weights NULL: random
 * ones. NULL after a message on stderr. */
network *amp_variant_load(const char *what, const struct amp_cfg_file *, const struct amp_cfg_key *,
                          int n, const char *weights);

/* Between the two nothing reaches standard output, where Darknet's heads print a line in every pass
 * and the command's result must stand alone. begin returns what end wants; -1: it stays open. */
int amp_quiet_begin(void);
void amp_quiet_end(int kept);

#endif
