/* Shared by the files that describe a cfg (net.c over net_layers.c over net_losses.c); no other
 * file includes this one. */
#ifndef AMP_DESCRIBER_H
#define AMP_DESCRIBER_H

#include "net.h"

#define MAX_ELEMENTS INT32_MAX
#define MAX_INTEGER  1000000 /* largest size, count or stride */

/* State that goes from layer to layer, as in Darknet's parse_network_cfg, and the place for
 * errors. */
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

/* Writes "file:line: " and the text to err; returns -1. */
int amp_desc_fail(struct describer *, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* 0 if the key's value is positive, else -1. */
int amp_desc_positive(struct describer *, const char *key, int value);
/* *out = a * b * c; -1 if a factor is below 0 or the product too large. */
int amp_desc_product(struct describer *, int64_t a, int64_t b, int64_t c, int *out);
/* Refuses absurd sizes, counts and strides with -1, before anything is computed from them. */
int amp_desc_check_integers(struct describer *);

/* Describes a [yolo], [region], [detection] or [iseg]. */
int amp_describe_head(struct describer *, struct amp_layer_desc *);
/* Fills l->loss of a layer that has a loss. */
int amp_describe_loss(struct describer *, struct amp_layer_desc *);
void amp_loss_desc_free(struct amp_loss_desc *);

/* ---- net_layers.c ---- */

/* Describes the layer of d->section; the layers before it must be described already. */
int amp_describe_layer(struct describer *, struct amp_layer_desc *);

#endif
