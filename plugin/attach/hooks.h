// What stands in a hooked layer's function pointers.
#ifndef AMP_HOOKS_H
#define AMP_HOOKS_H

#include "darknet.h"

void amp_hook_forward(layer l, network net);
// For amp_step.take_losses: into Darknet's l.cost and *net.cost, 0 where not finite. user: a
// session.
double amp_hook_take_losses(void *user);
void amp_hook_backward(layer l, network net);
void amp_hook_update(layer l, update_args a);

#endif
