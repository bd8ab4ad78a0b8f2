/* What -map, -topk and -chart do beside a training. */
#ifndef AMP_WATCH_H
#define AMP_WATCH_H

#include "evaluation.h"

/* Checks and builds all that is needed; from then on every iteration of Darknet's training on this
 * thread is watched. The inputs have been checked before; argc and argv are what Darknet's main
 * will get. 0, or -1 after naming the fault on stderr. */
int amp_watch_training(const struct amp_train_words *, const struct amp_measure *, int argc,
                       char **argv);
/* From now on Darknet prints to /dev/null what it prints to stdout. */
void amp_watch_quietly(void);

#endif
