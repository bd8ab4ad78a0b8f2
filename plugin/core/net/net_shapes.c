/* Describes the layers that have no weights: pooling, routes, shortcuts, and those that keep the
 * shape of their input. Weights are net_layers.c's, losses net_losses.c's.
 *
 * All products are computed in 64 bits and checked: Darknet computes them as int, and an overflow
 * there ends in memory that is too small. */
#include "net.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/dialect.h"

#define MAX_REORG 1024 /* largest stride of reorg, whose square must fit in int */

/* Darknet trains ReLU for a name that it does not know. Not strict: describe what it would
 * train. */
int amp_desc_activation(struct describer *d, struct amp_layer_desc *l)
{
    const struct amp_cfg_entry *e = amp_cfg_find(d->section, "activation");
    const char *name = amp_desc_string(d, "activation");
    if (amp_activation_from_name(name, d->net->dialect, &l->activation)) return 0;
    const char *nearest = amp_activation_nearest_name(name);
    if (nearest && !strcmp(nearest, name)) nearest = NULL; /* the other rules have it */
    if (amp_fork_activation(name) && d->net->dialect == AMP_DIALECT_FORK)
        return amp_fail_fork_activation(d, name);
    if (d->strict)
        return amp_fail_line(
            &d->complaints, amp_cfg_line(d->section, "activation"),
            "activation=%s: this Darknet does not know it and would train ReLU instead; allowed: "
            "logistic, relu, relie, linear, ramp, tanh, plse, leaky, elu, loggy, stair, hardtan, "
            "lhtan, selu, with mixed_precision=1 also mish and swish%s%s%s%s",
            e ? e->written : name, amp_cfg_remark_hint(name), nearest ? "; did you mean " : "",
            nearest ? nearest : "", nearest ? "?" : "");
    l->activation = AMPK_RELU;
    return 0;
}

int amp_desc_output(struct describer *d, struct amp_layer_desc *l, int64_t w, int64_t h, int64_t c)
{
    if (amp_desc_product(d, w, h, c, &l->outputs)) return -1;
    l->out_w = (int)w;
    l->out_h = (int)h;
    l->out_c = (int)c;
    if (l->outputs == 0)
        return amp_fail_line(
            &d->complaints, d->section->line,
            "%s: its input of %d x %d x %d is too small, the output would be %d x %d x %d",
            d->section->name, l->w, l->h, l->c, l->out_w, l->out_h, l->out_c);
    return 0;
}

/* The source of a [route] whose image has another size than the first one's; NULL: none has, or the
 * layer is no [route], or a source is no image either. */
static const struct amp_layer_desc *other_size(const struct describer *d,
                                               const struct amp_layer_desc *route, int *layer)
{
    if (route->type != AMP_ROUTE) return NULL;
    const struct amp_layer_desc *first = &d->net->layers[route->sources[0]];
    for (int i = 1; i < route->n_sources; i++) {
        const struct amp_layer_desc *next = &d->net->layers[route->sources[i]];
        *layer = route->sources[i];
        if (!first->out_w || !next->out_w) return NULL;
        if (next->out_w != first->out_w || next->out_h != first->out_h) return next;
    }
    return NULL;
}

/* Most of Darknet's parsers demand an image too, but name no line. */
int amp_desc_need_image(struct describer *d)
{
    int other;
    if (d->w && d->h && d->c) return 0;
    const struct amp_layer_desc *before = d->index ? &d->net->layers[d->index - 1] : NULL;
    const struct amp_layer_desc *odd = before ? other_size(d, before, &other) : NULL;
    d->sizes_differ = odd;
    if (odd) {
        const struct amp_layer_desc *first = &d->net->layers[before->sources[0]];
        return amp_fail_line(&d->complaints, before->line,
                             "[route] joins layer %d, %d x %d, and layer %d, %d x %d: no image for "
                             "the %s after it (line %d); they must have the same size",
                             before->sources[0], first->out_w, first->out_h, other, odd->out_w,
                             odd->out_h, d->section->name, d->section->line);
    }
    return amp_fail_line(&d->complaints, d->section->line,
                         "%s: the layer before it must give an image (width x height x channels)",
                         d->section->name);
}

/* ---- one function per kind of layer ---- */

/* Reads the layers of a comma list; negative numbers count back from this layer. */
static int read_sources(struct describer *d, struct amp_layer_desc *l, const char *key)
{
    const struct amp_cfg_entry *e = amp_cfg_find(d->section, key);
    if (!e)
        return amp_fail_line(&d->complaints, d->section->line, "%s: the key %s= is missing",
                             d->section->name, key);
    int n = amp_list_count(e->value);
    l->sources = calloc((size_t)n, sizeof(int));
    if (!l->sources) return amp_fail_line(&d->complaints, e->line, "out of memory");
    const char *p = e->value;
    for (int i = 0; i < n; i++) {
        int index = atoi(p);
        if (index < 0) index += d->index;
        if (index < 0 || index >= d->index)
            return amp_fail_line(
                &d->complaints, e->line,
                "%s=%s in %s: entry %d is layer %d, allowed are the layers before it, 0 to %d", key,
                e->written, d->section->name, i + 1, index, d->index - 1);
        l->sources[l->n_sources++] = index;
        p = amp_list_next(p);
    }
    return 0;
}

static int describe_maxpool(struct describer *d, struct amp_layer_desc *l)
{
    if (amp_desc_need_image(d)) return -1;
    l->stride = amp_desc_int(d, "stride");
    /* Darknet's defaults: a window as large as its stride, and padding of size - 1 in both
     * directions together. */
    l->size = amp_cfg_int(d->section, "size", l->stride);
    l->pad = amp_cfg_int(d->section, "padding", l->size - 1);
    if (amp_desc_positive(d, "stride", l->stride) || amp_desc_positive(d, "size", l->size))
        return -1;
    if (amp_desc_output(d, l, ((int64_t)l->w + l->pad - l->size) / l->stride + 1,
                        ((int64_t)l->h + l->pad - l->size) / l->stride + 1, l->c))
        return -1;
    /* First cell of the first window, as Darknet places it; every window needs at least one cell of
     * the input. */
    int64_t last = -l->pad / 2;
    bool outside = last + l->size < 1 || last + (l->out_w - 1LL) * l->stride >= l->w ||
                   last + (l->out_h - 1LL) * l->stride >= l->h;
    if (outside)
        return amp_fail_line(
            &d->complaints, d->section->line,
            "[maxpool]: size=%d, stride=%d, padding=%d on %d x %d: a window without any "
            "input cell, whose gradient Darknet would write out of bounds",
            l->size, l->stride, l->pad, l->w, l->h);
    return 0;
}

static int describe_crop(struct describer *d, struct amp_layer_desc *l)
{
    if (amp_desc_need_image(d)) return -1;
    int w = amp_desc_int(d, "crop_width"), h = amp_desc_int(d, "crop_height");
    if (w < 1 || w > l->w || h < 1 || h > l->h)
        return amp_fail_line(
            &d->complaints, d->section->line,
            "[crop]: crop_width=%d, crop_height=%d; allowed: up to its input, %d x %d", w, h, l->w,
            l->h);
    return amp_desc_output(d, l, w, h, l->c);
}

static int describe_avgpool(struct describer *d, struct amp_layer_desc *l)
{
    return amp_desc_need_image(d) || amp_desc_output(d, l, 1, 1, l->c) ? -1 : 0;
}

static int describe_upsample(struct describer *d, struct amp_layer_desc *l)
{
    if (amp_desc_need_image(d)) return -1;
    int stride = amp_desc_int(d, "stride");
    l->scale = amp_desc_float(d, "scale");
    /* A negative stride shrinks the image, as in Darknet. */
    l->reverse = stride < 0;
    l->stride = abs(stride);
    if (l->stride == 0) return amp_desc_positive(d, "stride", 0);
    if (l->reverse && d->strict && (l->w % l->stride || l->h % l->stride))
        return amp_fail_line(
            &d->complaints, amp_cfg_line(d->section, "stride"),
            "stride=-%d in %s: must divide the %d x %d input; this Darknet would add up "
            "cells of different rows",
            l->stride, d->section->name, l->w, l->h);
    if (l->reverse) return amp_desc_output(d, l, l->w / l->stride, l->h / l->stride, l->c);
    return amp_desc_output(d, l, (int64_t)l->w * l->stride, (int64_t)l->h * l->stride, l->c);
}

static int describe_reorg(struct describer *d, struct amp_layer_desc *l)
{
    if (amp_desc_need_image(d)) return -1;
    l->stride = amp_desc_int(d, "stride");
    l->reverse = amp_desc_int(d, "reverse");
    l->flatten = amp_desc_int(d, "flatten");
    l->extra = amp_desc_int(d, "extra");
    if (amp_desc_positive(d, "stride", l->stride)) return -1;
    if (l->stride > MAX_REORG)
        return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "stride"),
                             "stride=%d in %s: allowed is up to %d", l->stride, d->section->name,
                             MAX_REORG);
    int s = l->stride;
    bool permutes = !l->flatten && !l->extra;
    if ((l->reverse || permutes) && l->c % (s * s))
        return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "stride"),
                             "stride=%d in %s: its square must divide the %d channels", s,
                             d->section->name, l->c);
    int result = l->reverse
                     ? amp_desc_output(d, l, (int64_t)l->w * s, (int64_t)l->h * s, l->c / (s * s))
                     : amp_desc_output(d, l, l->w / s, l->h / s, (int64_t)l->c * s * s);
    if (result) return -1;
    if (l->extra < 0 || l->extra > AMP_MAX_ELEMENTS - l->inputs)
        return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "extra"),
                             "extra=%d in %s: allowed is 0 to %d", l->extra, d->section->name,
                             AMP_MAX_ELEMENTS - l->inputs);
    /* With extra= the output is flat: the input and so many zeros. */
    if (l->extra) {
        l->out_w = l->out_h = l->out_c = 0;
        l->outputs = l->inputs + l->extra;
    } else if (l->outputs != l->inputs) {
        return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "stride"),
                             "stride=%d in %s: must divide the %d x %d input", s, d->section->name,
                             l->w, l->h);
    }
    return 0;
}

/* Stock ignores it: a part of each source's channels. */
static int read_groups(struct describer *d, struct amp_layer_desc *l)
{
    const struct amp_cfg_entry *e = amp_cfg_find(d->section, "groups");
    const struct amp_key_row *row = amp_key_find("groups", AMP_ROUTE);
    bool stock = d->net->dialect == AMP_DIALECT_STOCK;
    if (stock && d->strict && e && !amp_key_is_default(row, d->section, e->value))
        return amp_fail_line(
            &d->complaints, e->line,
            "groups=%s in [route]: this Darknet ignores it and would train "
            "another network; remove the key, or use a cfg made for this Darknet; " AMP_FORK_HINT,
            e->written);
    l->groups = amp_desc_int(d, "groups");
    l->group_id = amp_desc_int(d, "group_id");
    if (amp_desc_positive(d, "groups", l->groups)) return -1;
    if (l->group_id >= 0 && l->group_id < l->groups) return 0;
    return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "group_id"),
                         "group_id=%d in [route]: allowed: 0 to %d, with groups=%d", l->group_id,
                         l->groups - 1, l->groups);
}

static int check_groups(struct describer *d, const struct amp_layer_desc *l, int source)
{
    const struct amp_layer_desc *from = &d->net->layers[source];
    int line = amp_cfg_line(d->section, "groups");
    if (l->groups == 1) return 0;
    if (from->out_c < 1 || from->out_w != d->w || from->out_h != d->h)
        return amp_fail_line(&d->complaints, line,
                             "groups=%d in [route]: source %d gives %d x %d; allowed: %d x %d, as "
                             "the layer before",
                             l->groups, source, from->out_w, from->out_h, d->w, d->h);
    if (from->out_c % l->groups == 0) return 0;
    return amp_fail_line(&d->complaints, line,
                         "groups=%d in [route]: must divide the %d channels of layer %d", l->groups,
                         from->out_c, source);
}

static int describe_route(struct describer *d, struct amp_layer_desc *l)
{
    if (read_groups(d, l) || read_sources(d, l, "layers")) return -1;
    /* Sources of different size give a flat vector, as in Darknet. */
    const struct amp_layer_desc *first = &d->net->layers[l->sources[0]];
    l->out_w = first->out_w;
    l->out_h = first->out_h;
    int64_t outputs = 0, channels = 0;
    bool image = first->out_w && first->out_h && first->out_c;
    for (int i = 0; i < l->n_sources; i++) {
        const struct amp_layer_desc *next = &d->net->layers[l->sources[i]];
        if (check_groups(d, l, l->sources[i])) return -1;
        outputs += next->outputs / l->groups;
        channels += next->out_c / l->groups;
        image = image && next->out_w == first->out_w && next->out_h == first->out_h;
    }
    if (outputs > AMP_MAX_ELEMENTS)
        return amp_fail_line(&d->complaints, d->section->line, "[route]: more than 2^31 elements");
    l->outputs = l->inputs = (int)outputs;
    /* Channels are joined only if all sources have the same width and height. */
    l->out_c = image ? (int)channels : 0;
    if (!image) l->out_w = l->out_h = 0;
    return 0;
}

static int describe_shortcut(struct describer *d, struct amp_layer_desc *l)
{
    int from;
    if (read_sources(d, l, "from")) return -1;
    if (l->n_sources != 1)
        return amp_fail_line(
            &d->complaints, amp_cfg_line(d->section, "from"),
            "from= in [shortcut]: this Darknet adds exactly one layer, %d are given", l->n_sources);
    from = l->sources[0];
    free(l->sources);
    /* The layer before comes first; from= names the one that is added. */
    l->sources = malloc(2 * sizeof(int));
    if (!l->sources) return amp_fail_line(&d->complaints, d->section->line, "out of memory");
    l->sources[0] = d->index - 1;
    l->sources[1] = from;
    l->n_sources = 2;
    const struct amp_layer_desc *add = &d->net->layers[from];
    bool plain = d->net->dialect == AMP_DIALECT_FORK; /* which does not read the factors */
    l->alpha = plain ? 1 : amp_desc_float(d, "alpha");
    l->beta = plain ? 1 : amp_desc_float(d, "beta");
    /* Darknet stores the added layer's shape as the input's, and the output has the shape of the
     * layer before. */
    int w = l->w, h = l->h, c = l->c;
    l->w = add->out_w;
    l->h = add->out_h;
    l->c = add->out_c;
    if (amp_desc_activation(d, l) || amp_desc_output(d, l, w, h, c)) return -1;
    l->inputs = l->outputs;
    if (d->net->dialect == AMP_DIALECT_FORK && (l->w != w || l->h != h))
        return amp_fail_line(
            &d->complaints, amp_cfg_line(d->section, "from"),
            "from=%d in [shortcut]: %d x %d cannot be added to %d x %d; allowed: a "
            "layer of the same width and height",
            from, l->w, l->h, w, h);
    if (!l->w || !l->h || !l->c || l->w / w != l->h / h || w / l->w != h / l->h)
        return amp_fail_line(
            &d->complaints, amp_cfg_line(d->section, "from"),
            "from=%d in [shortcut]: %d x %d x %d cannot be added to %d x %d x %d; width "
            "and height must have "
            "the same ratio",
            from, l->w, l->h, l->c, w, h, c);
    return 0;
}

/* Layers that keep the shape of their input: dropout, activation, lrn, batchnorm, softmax, cost,
 * l2norm, logistic. Darknet leaves some of them without an image shape. */
static int describe_same(struct describer *d, struct amp_layer_desc *l)
{
    l->outputs = l->inputs;
    /* Of these two Darknet sets outputs only. */
    bool shapeless = l->type == AMP_SOFTMAX || l->type == AMP_COST;
    l->out_w = shapeless ? 0 : l->w;
    l->out_h = shapeless ? 0 : l->h;
    l->out_c = shapeless ? 0 : l->c;
    if (l->type == AMP_DROPOUT) {
        l->probability = amp_desc_float(d, "probability");
        if (!(l->probability >= 0 && l->probability < 1))
            return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "probability"),
                                 "probability=%g in [dropout]: must be at least 0 and below 1",
                                 l->probability);
        /* It works in the memory of the layer before, and there is none. */
        if (d->index == 0)
            return amp_fail_line(&d->complaints, d->section->line,
                                 "[dropout] cannot be the first layer");
    }
    if (l->type == AMP_SOFTMAX) l->noloss = amp_desc_int(d, "noloss");
    int size = l->type == AMP_NORMALIZATION ? amp_desc_int(d, "size") : 1;
    if (size < 1 || size / 2 > l->c)
        return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "size"),
                             "size=%d in %s: allowed: 1 to %lld, with %d channels", size,
                             d->section->name, 2LL * l->c + 1, l->c);
    /* Its weights file and memory are those of a normalized layer. */
    if (l->type == AMP_BATCHNORM) l->batch_normalize = true;
    if (l->type == AMP_ACTIVATION) return amp_desc_activation(d, l);
    return 0;
}

int amp_describe_shape(struct describer *d, struct amp_layer_desc *l)
{
    switch (l->type) {
    case AMP_MAXPOOL:
        return describe_maxpool(d, l);
    case AMP_CROP:
        return describe_crop(d, l);
    case AMP_AVGPOOL:
        return describe_avgpool(d, l);
    case AMP_UPSAMPLE:
        return describe_upsample(d, l);
    case AMP_REORG:
        return describe_reorg(d, l);
    case AMP_ROUTE:
        return describe_route(d, l);
    case AMP_SHORTCUT:
        return describe_shortcut(d, l);
    default:
        return describe_same(d, l);
    }
}
