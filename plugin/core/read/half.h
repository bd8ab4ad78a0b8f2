/* The word -half: inference in 16 bits of a cfg that does not ask for it. */
#ifndef AMP_HALF_H
#define AMP_HALF_H

#include "cfg.h"

/* Changes what was read of the cfg as if it had mixed_precision=1 and an amp_dtype of 16 bits: one
 * that it has stays, any other becomes auto. Lines stay the user's, and the dialect is settled
 * anew. note: what of the cfg does not count, or "". 0, or -1 with text in err. */
int amp_half_ask(struct amp_cfg_file *, char *note, size_t note_size, char *err, size_t err_size);

#endif
