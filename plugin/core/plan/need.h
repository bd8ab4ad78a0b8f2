/* What a training takes in memory, predicted from net and plan before anything is made, and the
 * largest pass that fits. On a CPU it is the program's memory, images that are being loaded
 * included; on a device the device's. */
#ifndef AMP_NEED_H
#define AMP_NEED_H

#include <stdbool.h>
#include <stddef.h>

#include "plugin/core/net/net.h"
#include "plugin/core/read/options.h"
#include "plan.h"

struct ampk_backend;

struct amp_need {
    size_t activations; /* of a pass, with its input */
    size_t parameters;  /* weights and momentum; moments and averages */
    size_t gradients;   /* of weights, and what convolutions keep of weights in their own type */
    size_t images;      /* of this step and the next; 0 on a device */
    size_t exchanges;   /* 0 in one process */
    size_t program;     /* what any training takes */
};

struct amp_fit {
    int batch, subdivisions; /* of the cfg's lines */
    int images;              /* in a pass */
    size_t bytes;            /* predicted */
};

struct amp_fitter {
    const struct amp_cfg_file *cfg;
    const struct amp_options *options; /* with a settled dtype */
    const struct ampk_backend *backend;
    unsigned ours;       /* as for amp_plan_make */
    size_t device_bytes; /* all that it has; 0: it computes on the host */
    int processes;       /* that train together; each needs that much. 0 is as 1 */
};

/* The net's subdivisions are no fewer than the processes. */
struct amp_need amp_need_of(const struct amp_fitter *, const struct amp_net_desc *,
                            const struct amp_plan *);
size_t amp_need_total(const struct amp_need *);

/* What these two lines take. 0, or -1 with text in err. */
int amp_fit_predict(const struct amp_fitter *, int batch, int subdivisions, struct amp_fit *,
                    char *err, size_t err_size);
/* Bytes that are free where the backend computes; 0: unknown. */
size_t amp_need_free(const struct ampk_backend *, char *err, size_t err_size);
/* The bytes themselves if the backend's memory is a device's, else 0. */
size_t amp_device_bytes(const struct ampk_backend *, size_t bytes);
/* The fewest subdivisions of this batch, with a pass for each process, whose passes fit; *fit is
 * that of one image in a pass if none does. 0; 1: none fits; -1 with text in err. */
int amp_fit_subdivisions(const struct amp_fitter *, int batch, size_t bytes, struct amp_fit *fit,
                         char *err, size_t err_size);
/* The largest batch that fits in one pass of each process, among the cfg's times a power of two or
 * divided by one. As above. */
int amp_fit_batch(const struct amp_fitter *, size_t bytes, struct amp_fit *fit, char *err,
                  size_t err_size);

/* For a net with subdivisions=auto: sets batch and subdivisions to the fewest that fit into nine
 * tenths of the memory that is free now, and says so on stderr. Any other net stays as it is. ours:
 * as for amp_plan_make. 0, or -1 with text in err. */
int amp_need_settle(struct amp_net_desc *, const struct amp_cfg_file *, const struct amp_options *,
                    const struct ampk_backend *, unsigned ours, char *err, size_t err_size);

#endif
