/* What training keeps beside Darknet's own arrays: an optimizer's moments, moving averages of
 * parameters and running statistics, and the counts that belong to them. It lives as long as a run,
 * through every change of plan and graph. The arrays are backend memory. */
#ifndef AMP_KEPT_H
#define AMP_KEPT_H

#include "graph.h"
#include "plugin/core/read/rules.h"

struct amp_kept {
    const struct ampk_backend *backend;
    struct ampk_context *context;
    int n_params, n_rolling;
    struct amp_kept_param {
        float *m, *v;   /* NULL: Darknet's, or none */
        float *average; /* NULL: none */
    } * params;         /* of each param of struct amp_owned */
    float **averages;   /* of each rolling; NULL: none */
    struct amp_counts counts;
};

/* Moments are 0, averages are what they average now. NULL with text in err: no memory. */
struct amp_kept *amp_kept_create(const struct ampk_backend *, struct ampk_context *,
                                 const struct amp_rules *, const struct amp_owned *, char *err,
                                 size_t err_size);
void amp_kept_free(struct amp_kept *);
/* As after create. */
void amp_kept_restart(struct amp_kept *, const struct amp_owned *);

/* What the cfg freezes is its own average; that of a run which still trained it would stay for
 * ever. Call after restoring. */
void amp_kept_settle_frozen(struct amp_kept *, const struct amp_owned *,
                            const struct amp_net_desc *);

/* Enters the arrays and counts into the lists of an owned of the same network. kept may be NULL. */
void amp_kept_enter(struct amp_kept *, struct amp_owned *);

/* Exchanges every average with what it averages. Twice restores both, to the bit. owned: the
 * network's own arrays, in backend memory. -1: no memory; nothing has changed. */
int amp_kept_swap_averages(struct amp_kept *, const struct amp_owned *);

#endif
