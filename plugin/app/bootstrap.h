/* The bootstrap over an evaluation's images: mAP of random drawings of as many images, with
 * replacement. Pure C. */
#ifndef AMP_BOOTSTRAP_H
#define AMP_BOOTSTRAP_H

#include <stddef.h>
#include <stdio.h>

#include "average_precision.h"

struct amp_bootstrap {
    int count;                   /* drawings; 0: none were asked for */
    struct amp_map_means *means; /* [count] */
};

/* Drawing b of n images is the same in every run and for every network, so that the means of two
 * networks can be subtracted drawing by drawing. Progress on log. 0, or -1 with text in err;
 * amp_bootstrap_free after use. */
int amp_bootstrap_run(const struct amp_ap_set *set, int n_images, int count,
                      struct amp_bootstrap *bootstrap, FILE *log, char *err, size_t err_size);
void amp_bootstrap_free(struct amp_bootstrap *bootstrap);

/* How often drawing b holds each of n images; the sum is n. */
void amp_bootstrap_draw(int b, int n_images, int *draws);

#endif
