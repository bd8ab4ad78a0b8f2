/* The functions that replace a layer's own forward, backward and update. Every pass enters the
 * plugin here and nowhere else. The hooks also start to watch for signals, resume a run, and end it
 * when told to. */
#ifndef AMP_HOOKS_H
#define AMP_HOOKS_H

#include "session.h"

/* What every layer gets instead of Darknet's. */
struct amp_hooks {
    void (*forward)(layer, network);
    void (*backward)(layer, network);
    void (*update)(layer, update_args);
    /* For amp_step.take_losses: writes to Darknet's l.cost and *net.cost, 0 if not finite. user: a
     * session. */
    bool (*take_losses)(void *user, double *cost);
};
extern const struct amp_hooks amp_hooks;

#ifdef GPU
/* For cuda_pull_array: true if nobody will read this copy. One answer per forward: asking clears
 * it. */
bool amp_hook_pull_is_unwanted(const float *x_gpu);
#endif

#endif
