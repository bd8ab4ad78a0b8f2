/* Batches of a training's own images through two networks of the same weights, one in FP32. Calls
 * Darknet; belongs to the `darknet` program. */
#ifndef AMP_COMPARISON_H
#define AMP_COMPARISON_H

#include "darknet.h"
#include "precision.h"

struct amp_comparison {
    const char *data, *weights; /* weights NULL: random ones */
    const struct amp_cfg_file *cfg;
    struct amp_precision *precision;
    network *fp32, *mixed;
    char **paths; /* the training list */
    int n_paths;
    int images, redone; /* images compared; backward passes that were repeated */
    double began, told; /* seconds: the start, and the last line of progress */
};

/* Leaves both networks as the last batch had them. 0, or -1 with a message on stderr. */
int amp_comparison_run(struct amp_comparison *);
/* A line of progress on stderr, if it is time for one. */
__attribute__((format(printf, 2, 3))) void amp_comparison_tell(struct amp_comparison *,
                                                               const char *what, ...);
void amp_comparison_free(struct amp_comparison *);

#endif
