/* Which backend computes for a network: what amp_backend asks for, and where this Darknet computes.
 */
#ifndef AMP_BACKEND_H
#define AMP_BACKEND_H

#include "plugin/core/options.h"
#include "kernels/kernels.h"

/* True where this Darknet computes on a GPU: its arrays are then the ones with _gpu. */
bool amp_darknet_on_device(void);
/* Ends the program with a message where the key asks for what cannot be. */
const struct ampk_backend *amp_backend_choose(const struct amp_cfg_file *,
                                              const struct amp_options *);

#endif
