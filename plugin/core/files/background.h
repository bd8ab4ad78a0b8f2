/* Work that goes on beside training: one thread does one piece after the other, in the order in
 * which they were begun. Any thread may call these, of which none is called by the work itself. */
#ifndef AMP_BACKGROUND_H
#define AMP_BACKGROUND_H

#include <stdbool.h>

/* Waits until amp_background_start would not wait. */
void amp_background_make_room(void);
/* Two pieces are begun at most, the one that is done included: a third one waits here. False: the
 * system has no thread for it, and nothing is under way. */
bool amp_background_start(void (*work)(void *), void *what);
/* Returns when all that was begun before is done. */
void amp_background_wait(void);

#endif
