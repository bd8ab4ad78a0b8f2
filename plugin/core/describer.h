/* What the files that describe a cfg share (net.c over net_layers.c over net_losses.c); for nobody
 * else. */
#ifndef AMP_DESCRIBER_H
#define AMP_DESCRIBER_H

#include "net.h"

#define MAX_ELEMENTS INT32_MAX
#define MAX_INTEGER  1000000 /* of any size, count or stride */

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

/* ---- net_losses.c ---- */

/* -1, with "file:line: " and the text in err. */
int amp_desc_fail(struct describer *, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* -1: the key's value is not. */
int amp_desc_positive(struct describer *, const char *key, int value);
/* *out = a * b * c. -1: below 0, or too many. */
int amp_desc_product(struct describer *, int64_t a, int64_t b, int64_t c, int *out);
/* Sizes, counts and strides that are absurd, before anything is computed from them: -1. */
int amp_desc_check_integers(struct describer *);

/* A [yolo], [region], [detection] or [iseg]. */
int amp_describe_head(struct describer *, struct amp_layer_desc *);
/* l->loss, of a layer that has one. */
int amp_describe_loss(struct describer *, struct amp_layer_desc *);
void amp_loss_desc_free(struct amp_loss_desc *);

/* ---- net_layers.c ---- */

/* The layer of d->section, after those before it. */
int amp_describe_layer(struct describer *, struct amp_layer_desc *);

#endif
