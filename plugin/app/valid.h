/* `detector valid` of a network with mixed_precision=1. */
#ifndef AMP_VALID_H
#define AMP_VALID_H

#include "inference.h"

struct amp_valid {
    const char *data, *weights; /* weights NULL: random ones */
    const char *out;            /* as the option -out, or NULL */
    struct amp_inference inference;
};

/* How many images the data file's valid= lists. */
int amp_valid_count(const char *data);
/* Writes the files that Darknet's command writes. All has been checked. 0, or -1 after saying why
 * not. */
int amp_valid_run(const struct amp_valid *);

#endif
