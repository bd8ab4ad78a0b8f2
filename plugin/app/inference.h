/* The cfg of a network that only looks at images, as load_network gets it. */
#ifndef AMP_INFERENCE_H
#define AMP_INFERENCE_H

#include <stdbool.h>

#include "plugin/core/read/cfg.h"

struct amp_inference {
    char *cfg;                      /* to load: the user's, or a copy in memory */
    struct amp_cfg_variant variant; /* that copy */
};

/* half: as the word -half has it; what it changes is said. The user's cfg has been checked. Close
 * it when the network is loaded. 0, or -1 after saying why not. */
int amp_inference_open(struct amp_inference *, const char *cfg, bool half);
void amp_inference_close(struct amp_inference *);

#endif
