/* A network that only looks at images: its cfg, as load_network gets it, and how many images it
 * takes at a time. */
#ifndef AMP_INFERENCE_H
#define AMP_INFERENCE_H

#include <stdbool.h>

#include "plugin/core/read/cfg.h"

struct amp_inference {
    char *cfg;                      /* to load: the user's, or a copy in memory */
    struct amp_cfg_variant variant; /* that copy */
    bool mixed;                     /* it has mixed_precision=1 */
    bool batched;                   /* its batch is the images at a time; else for one image */
};

/* half: as the word -half has it; what it changes is said. images: how many there are to look at; 0
 * leaves the batch as it is. The user's cfg has been checked, and the machine chosen. Close it when
 * its networks are loaded. 0, or -1 after saying why not. */
int amp_inference_open(struct amp_inference *, const char *cfg, bool half, int images);
/* With the batch that it is run with. */
struct network *amp_inference_load(const struct amp_inference *, const char *weights);
void amp_inference_close(struct amp_inference *);

#endif
