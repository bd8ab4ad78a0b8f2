// What stands in a hooked layer's function pointers.
#ifndef AMP_HOOKS_H
#define AMP_HOOKS_H

#include "darknet.h"

void amp_hook_forward(layer l, network net);
void amp_hook_backward(layer l, network net);
void amp_hook_update(layer l, update_args a);

#endif
