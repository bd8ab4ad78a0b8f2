/* Finds faults in a network that can be built: Darknet's `detector train` would crash on them, read
 * or write out of bounds, or end with status 0. */
#ifndef AMP_CHECK_TRAIN_NET_H
#define AMP_CHECK_TRAIN_NET_H

#include <stdbool.h>

#include "labels.h"
#include "plugin/core/net.h"

/* Tells every fault with file and line: heads and their max, coords, classes, jitter, tree and map
 * files; losses that want other truths than the last layer's; truth=; channels; max_batches;
 * colours that divide by zero; random=1 with a layer that cannot take the sizes that are drawn
 * then; without mixed precision, a layer that writes its input's gradient where there is none and,
 * unless on a GPU, one that Darknet's CPU code crashes on. */
void amp_train_net_check(const struct amp_cfg_file *, const struct amp_net_desc *, bool mixed,
                         bool on_gpu, amp_tell *, void *context);
/* Tells only those faults that crash Darknet's own training of any network. */
void amp_train_stock_check(const struct amp_cfg_file *, const struct amp_net_desc *, bool on_gpu,
                           amp_tell *, void *context);

#endif
