/* What stands in a hooked layer's function pointers. */
#ifndef AMP_HOOKS_H
#define AMP_HOOKS_H

#include "darknet.h"

#include <stdbool.h>

void amp_hook_forward(layer l, network net);
/* For amp_step.take_losses: into Darknet's l.cost and *net.cost, 0 where not finite. user: a
 * session. */
double amp_hook_take_losses(void *user);
void amp_hook_backward(layer l, network net);
void amp_hook_update(layer l, update_args a);

#ifdef GPU
/* For cuda_pull_array: whether that copy is one that nobody will read. */
bool amp_hook_pull_is_unwanted(const float *x_gpu);
#endif

#endif
