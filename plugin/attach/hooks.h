/* What stands in a hooked layer's function pointers: the only place where a pass enters the plugin.
 * Here a run is watched for signals, taken up, and told to end. */
#ifndef AMP_HOOKS_H
#define AMP_HOOKS_H

#include "session.h"

extern const struct amp_hooks amp_hooks;

#ifdef GPU
/* For cuda_pull_array: whether that copy is one that nobody will read. */
bool amp_hook_pull_is_unwanted(const float *x_gpu);
#endif

#endif
