/* Batch-norm over the passes of several processes: pass k of each is a part of one larger pass, in
 * forward's statistics and in backward's sums. Each takes one exchange per layer, between the
 * layer's two kernels, through the host.
 *
 * Forward. A process has its values' mean m and variance, each rounded to FP32. It sends n m and
 * the sum of the squares about 0, in double; of the totals all make the same statistics and move
 * the running ones, each rounded once. Beside one process, which rounds its FP32 sums, the variance
 * v is off by no more than 2^-23 v for the rounded variances, and 2^-23 |m| sqrt(v) for the means.
 * Backward. The two sums, rounded to FP32, become their means over the processes, and so dscale and
 * dbias are means as well. Each mean is off by 2^-24 of itself and of the mean of the magnitudes.
 *
 * A layer that runs forward again for backward finds its statistics where they were: nothing is
 * exchanged then. */
#ifndef AMP_SYNC_BN_H
#define AMP_SYNC_BN_H

#include "graph.h"

/* From now on the graph's training passes do that, all but frozen layers'. -1: no memory, with text
 * in err. */
int amp_graph_sync_batchnorm(struct amp_graph *, const struct amp_bn_peers *, char *err,
                             size_t err_size);
/* sync may be NULL. */
void amp_sync_free(struct amp_graph *);

/* Of layer's next forward: where the statistics of this process's values go. */
struct ampk_bn_statistics amp_sync_own_statistics(struct amp_graph *, int layer);
/* They are there: makes those of all processes of them. */
void amp_sync_statistics(struct amp_graph *, int layer);
/* For struct ampk_batchnorm. NULL: batch-norm is this process's alone. */
const struct ampk_bn_peers *amp_sync_peers(const struct amp_graph *);

#endif
