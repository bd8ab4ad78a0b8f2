// The end of the program, while other threads are at work.
//
// Darknet's trainers return while the next batch is still being loaded. exit then runs OpenCV's
// destructors under the threads that decode, and the batch, when it is ready, is written to a
// variable of a function that has returned: both crash now and then. So what must not happen during
// exit (a layer of ours at work, too) is done between amp_ending_enter and amp_ending_leave; exit
// waits for those who are inside, and nobody gets in any more.
#ifndef AMP_ENDING_H
#define AMP_ENDING_H

#include <stdbool.h>

// False: the program is ending, do without. May be nested. A thread that is inside may call exit.
bool amp_ending_enter(void);
// The same, for what cannot be done without: where the program is ending, it does not return.
void amp_ending_enter_or_stay(void);
void amp_ending_leave(void);

// From the first call on exit and quick_exit wait. To be called once OpenCV has decoded something:
// it registers its destructors then, and what is registered last runs first.
void amp_ending_watch(void);
// What they do: nobody else gets in, and nobody else is inside.
void amp_ending_wait(void);

#endif
