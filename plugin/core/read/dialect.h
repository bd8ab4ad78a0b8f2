/* By whose rules a cfg is trained: stock Darknet's, or the fork's (AlexeyAB's Darknet, and
 * hank-ai's as far as it agrees). The two read the same cfg differently: other losses, other
 * defaults, other layers. Only numbers and layers of the description (plugin/core/net) follow from
 * it; nobody behind that asks for the dialect. */
#ifndef AMP_DIALECT_H
#define AMP_DIALECT_H

#include <stdbool.h>

#include "cfg_text.h"

/* Values of the key amp_dialect, in the order of its words. */
enum amp_dialect_choice { AMP_DIALECT_AUTO, AMP_DIALECT_IS_STOCK, AMP_DIALECT_IS_FORK };

/* Sets cfg->dialect and why. The fork's rules hold with mixed_precision=1 and amp_dialect=fork; or
 * auto, if the cfg has a section, an activation or a key with a value with which stock would train
 * another network. amp_cfg_read calls this; call it again after a change of [net]. */
void amp_dialect_settle(struct amp_cfg_file *);

/* What a layer that only the fork has does, in words; NULL: it has none of that name. name: with
 * brackets. */
const char *amp_fork_layer(const char *name);
/* Whether only the fork knows the activation. */
bool amp_fork_activation(const char *name);

/* For messages about what only the fork trains. */
#define AMP_FORK_HINT "mixed_precision=1 trains it by AlexeyAB's rules, with amp_dtype=fp32 in FP32"

#endif
