/* The end of a training for lack of memory: what was learned is saved first. */
#ifndef AMP_GIVE_UP_H
#define AMP_GIVE_UP_H

#include "session.h"

/* Ends the program with status 1 and a message: why (which names the size), what to change, and
 * where the state is. That is saved as BACKUP_FOLDER/CFG.backup (interrupt.h) where this run has
 * trained; otherwise nothing is written, and older files stay as they are. Between two steps that
 * has a sidecar, from which training goes on with another batch, subdivisions, random or size. */
_Noreturn void amp_give_up(struct amp_session *, const char *why);

/* After Darknet's resize_network, which goes on whatever calloc and realloc give: gives up where an
 * array is missing. */
void amp_check_resized(struct amp_session *);

#endif
