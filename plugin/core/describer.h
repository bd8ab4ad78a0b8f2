/* What the files that describe a cfg share (net_desc.c, layer_desc.c); for nobody else. */
#ifndef AMP_DESCRIBER_H
#define AMP_DESCRIBER_H

#include "net_desc.h"

#define MAX_ELEMENTS INT32_MAX

/* What parse_network_cfg carries from layer to layer, and where to report an error. */
struct describer {
    const struct amp_cfg_file *cfg;
    const struct amp_cfg_section *section;
    struct amp_net_desc *net;
    int index, w, h, c, inputs;
    bool strict;
    char *err;
    size_t err_size;
};

static inline int key_int(const struct describer *d, const char *key, int def)
{
    return amp_cfg_int(d->section, key, def);
}

/* -1, with "file:line: " and the text in err. */
int amp_desc_fail(struct describer *, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* -1: the key's value is not. */
int amp_desc_positive(struct describer *, const char *key, int value);
/* *out = a * b * c. -1: below 0, or too many. */
int amp_desc_product(struct describer *, int64_t a, int64_t b, int64_t c, int *out);
/* Sizes, counts and strides that are absurd, before anything is computed from them: -1. */
int amp_desc_check_integers(struct describer *);

/* ---- layer_desc.c ---- */

/* The layer of d->section, after those before it. */
int amp_describe_layer(struct describer *, struct amp_layer_desc *);

#endif
