/* By whose rules a cfg is trained: stock Darknet's, or the fork's (AlexeyAB's Darknet, and
 * hank-ai's as far as it agrees). The two read the same cfg differently: other losses, other
 * defaults, other layers. Only numbers and layers of the description (plugin/core/net) follow from
 * it; nobody behind that asks for the dialect. */
#ifndef AMP_DIALECT_H
#define AMP_DIALECT_H

#include <stdbool.h>

#include "complaints.h"

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

/* ---- complaints ---- */

/* Of what stock's rules forbid, and the fork's only allow because its users' cfgs have it and the
 * fork runs: an error (-1) with amp_fork_way_out, or a note (0), by the cfg's dialect. */
__attribute__((format(printf, 3, 4))) int amp_doubt_line(const struct amp_complaints *, int line,
                                                         const char *format, ...);

/* Of a cfg without mixed_precision=1: notes the first key with which stock's rules, which hold
 * then, are other than the fork's. */
void amp_dialect_note_stock(const struct amp_complaints *);

/* Words for the end of an error that the fork's rules do not have: a cfg without any key of the
 * fork's own may be one of its users'. "" where they are no choice, or not left to be chosen. */
const char *amp_fork_way_out(const struct amp_cfg_file *);

/* For messages about what only the fork trains. */
#define AMP_FORK_HINT "mixed_precision=1 trains it by AlexeyAB's rules, with amp_dtype=fp32 in FP32"

#endif
