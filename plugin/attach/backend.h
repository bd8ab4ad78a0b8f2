/* Chooses the backend for a network: the one that amp_backend asks for, on the side where this
 * Darknet computes. */
#ifndef AMP_BACKEND_H
#define AMP_BACKEND_H

#include "plugin/core/options.h"
#include "kernels/kernels.h"

/* True if this Darknet computes on a GPU: the arrays that count are then the ones with _gpu. */
bool amp_darknet_on_device(void);
/* Ends the program with a message if the key asks for the impossible. */
const struct ampk_backend *amp_backend_choose(const struct amp_cfg_file *,
                                              const struct amp_options *);

#endif
