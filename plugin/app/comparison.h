/* Runs batches of a training's own images through two networks with the same weights, one of them
 * in FP32. Calls Darknet; belongs to the `darknet` program. */
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

/* Runs the comparison. Both networks stay as the last batch left them. 0, or -1 with a message on
 * stderr. */
int amp_comparison_run(struct amp_comparison *);
/* Prints a line of progress on stderr if the last one is long enough ago. */
__attribute__((format(printf, 2, 3))) void amp_comparison_tell(struct amp_comparison *,
                                                               const char *what, ...);
void amp_comparison_free(struct amp_comparison *);

#endif
