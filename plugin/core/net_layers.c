/* Describes every kind of layer from its section: shapes, weights and sources, as Darknet's parse_*
 * and make_*_layer compute them. It must not know losses' own keys (net_losses.c) or what a plan
 * makes of a layer.
 *
 * All products are computed in 64 bits and checked: Darknet computes them as int, and an overflow
 * there ends in memory that is too small. */
#include "net.h"

#include <stdlib.h>
#include <string.h>

#include "options.h"

#define MAX_SIZE  65536 /* largest window, stride and padding */
#define MAX_REORG 1024  /* largest stride of reorg, whose square must fit in int */

/* ---- helpers ---- */

/* Darknet trains ReLU for a name that it does not know. Not strict: describe what it would
 * train. */
static int read_activation(struct describer *d, struct amp_layer_desc *l, const char *def)
{
    const struct amp_cfg_entry *e = amp_cfg_find(d->section, "activation");
    const char *name = e ? e->value : def;
    if (amp_activation_from_name(name, &l->activation)) return 0;
    const char *nearest = amp_activation_nearest_name(name);
    if (d->strict)
        return amp_desc_fail(
            d, amp_cfg_line(d->section, "activation"),
            "activation=%s: this Darknet does not know it and would train ReLU instead; allowed: "
            "logistic, relu, relie, linear, ramp, tanh, plse, leaky, elu, loggy, stair, hardtan, "
            "lhtan, selu%s%s%s%s",
            e ? e->written : def, amp_cfg_remark_hint(name), nearest ? "; did you mean " : "",
            nearest ? nearest : "", nearest ? "?" : "");
    l->activation = AMPK_RELU;
    return 0;
}

static int set_output(struct describer *d, struct amp_layer_desc *l, int64_t w, int64_t h,
                      int64_t c)
{
    if (amp_desc_product(d, w, h, c, &l->outputs)) return -1;
    l->out_w = (int)w;
    l->out_h = (int)h;
    l->out_c = (int)c;
    if (l->outputs == 0)
        return amp_desc_fail(
            d, d->section->line,
            "%s: its input of %d x %d x %d is too small, the output would be %d x %d x %d",
            d->section->name, l->w, l->h, l->c, l->out_w, l->out_h, l->out_c);
    return 0;
}

/* Darknet multiplies these as int before it allocates: past 2^31 it would reserve too little
 * memory. */
static int check_counts(struct describer *d, const struct amp_layer_desc *l)
{
    int64_t outputs = (int64_t)d->net->batch * l->outputs;
    int64_t inputs = (int64_t)d->net->batch * l->inputs;
    if (outputs > AMP_MAX_ELEMENTS || inputs > AMP_MAX_ELEMENTS)
        return amp_desc_fail(
            d, d->section->line,
            "%s: %d images of %d elements in a pass are more than 2^31; lower batch or "
            "raise subdivisions",
            d->section->name, d->net->batch, l->outputs > l->inputs ? l->outputs : l->inputs);
    return 0;
}

/* n_weights = a * b * c * c. */
static int count_weights(struct describer *d, struct amp_layer_desc *l, int a, int b, int c)
{
    int64_t n = (int64_t)a * b; /* below 2^62 */
    bool large = n > AMP_MAX_ELEMENTS || n * c > AMP_MAX_ELEMENTS;
    if (large || n * c * c > AMP_MAX_ELEMENTS)
        return amp_desc_fail(d, d->section->line, "%s: more than 2^31 weights", d->section->name);
    l->n_weights = (size_t)(n * c * c);
    return 0;
}

/* Most of Darknet's parsers demand an image too, but name no line. */
static int need_image(struct describer *d)
{
    if (d->w && d->h && d->c) return 0;
    return amp_desc_fail(d, d->section->line,
                         "%s: the layer before it must give an image (width x height x channels)",
                         d->section->name);
}

/* Reads the layers of a comma list; negative numbers count back from this layer. */
static int read_sources(struct describer *d, struct amp_layer_desc *l, const char *key)
{
    const struct amp_cfg_entry *e = amp_cfg_find(d->section, key);
    if (!e)
        return amp_desc_fail(d, d->section->line, "%s: the key %s= is missing", d->section->name,
                             key);
    int n = 1;
    for (const char *p = e->value; *p; p++)
        n += *p == ',';
    l->sources = calloc((size_t)n, sizeof(int));
    if (!l->sources) return amp_desc_fail(d, e->line, "out of memory");
    const char *p = e->value;
    for (int i = 0; i < n; i++) {
        int index = atoi(p);
        if (index < 0) index += d->index;
        if (index < 0 || index >= d->index)
            return amp_desc_fail(
                d, e->line,
                "%s=%s in %s: entry %d is layer %d, allowed are the layers before it, 0 to %d", key,
                e->written, d->section->name, i + 1, index, d->index - 1);
        l->sources[l->n_sources++] = index;
        p = strchr(p, ',');
        if (p) p++;
    }
    return 0;
}

/* Most layers read the layer before; the first one reads layer -1, the input. */
static int one_source(struct describer *d, struct amp_layer_desc *l)
{
    l->sources = malloc(sizeof(int));
    if (!l->sources) return amp_desc_fail(d, d->section->line, "out of memory");
    l->sources[0] = d->index - 1;
    l->n_sources = 1;
    return 0;
}

/* ---- one function per kind of layer ---- */

/* Of a convolution or deconvolution. */
static int check_window(struct describer *d, const struct amp_layer_desc *l)
{
    if (l->pad >= 0 && l->pad <= MAX_SIZE && l->size <= MAX_SIZE && l->stride <= MAX_SIZE) return 0;
    return amp_desc_fail(d, d->section->line,
                         "%s: size=%d, stride=%d, padding %d: allowed is up to %d, padding from 0",
                         d->section->name, l->size, l->stride, l->pad, MAX_SIZE);
}

static int describe_convolutional(struct describer *d, struct amp_layer_desc *l)
{
    if (need_image(d)) return -1;
    l->filters = amp_desc_int(d, "filters", 1);
    l->size = amp_desc_int(d, "size", 1);
    l->stride = amp_desc_int(d, "stride", 1);
    /* As in Darknet: pad=1 means half the window, and then padding= has no effect. */
    l->pad = amp_desc_int(d, "pad", 0) ? l->size / 2 : amp_desc_int(d, "padding", 0);
    l->groups = amp_desc_int(d, "groups", 1);
    l->batch_normalize = amp_desc_int(d, "batch_normalize", 0);
    l->binary = amp_desc_int(d, "binary", 0);
    l->xnor = amp_desc_int(d, "xnor", 0);
    l->smooth = amp_cfg_float(d->section, "smooth", 0) != 0;
    if (amp_desc_positive(d, "filters", l->filters) || amp_desc_positive(d, "size", l->size) ||
        amp_desc_positive(d, "stride", l->stride) || amp_desc_positive(d, "groups", l->groups) ||
        read_activation(d, l, "logistic"))
        return -1;
    if (l->c % l->groups || l->filters % l->groups)
        return amp_desc_fail(d, amp_cfg_line(d->section, "groups"),
                             "groups=%d in %s: must divide its %d input channels and %d filters",
                             l->groups, d->section->name, l->c, l->filters);
    if (check_window(d, l)) return -1;
    /* Checked apart, since integer division would round a negative size to one cell. */
    if (l->w + 2 * l->pad < l->size || l->h + 2 * l->pad < l->size)
        return amp_desc_fail(d, d->section->line,
                             "%s: its input of %d x %d is smaller than the %d x %d filter",
                             d->section->name, l->w, l->h, l->size, l->size);
    int w = (l->w + 2 * l->pad - l->size) / l->stride + 1;
    int h = (l->h + 2 * l->pad - l->size) / l->stride + 1;
    if (set_output(d, l, w, h, l->filters) ||
        count_weights(d, l, l->c / l->groups, l->filters, l->size))
        return -1;
    /* Every weight is used once per output cell: a multiplication and an addition. */
    l->forward_flop = 2.0 * (double)l->n_weights * w * h;
    return 0;
}

static int describe_deconvolutional(struct describer *d, struct amp_layer_desc *l)
{
    if (need_image(d)) return -1;
    l->filters = amp_desc_int(d, "filters", 1);
    l->size = amp_desc_int(d, "size", 1);
    l->stride = amp_desc_int(d, "stride", 1);
    l->pad = amp_desc_int(d, "pad", 0) ? l->size / 2 : amp_desc_int(d, "padding", 0);
    l->groups = 1;
    l->batch_normalize = amp_desc_int(d, "batch_normalize", 0);
    if (amp_desc_positive(d, "filters", l->filters) || amp_desc_positive(d, "size", l->size) ||
        amp_desc_positive(d, "stride", l->stride) || read_activation(d, l, "logistic") ||
        check_window(d, l))
        return -1;
    if (set_output(d, l, (l->w - 1LL) * l->stride + l->size - 2 * l->pad,
                   (l->h - 1LL) * l->stride + l->size - 2 * l->pad, l->filters) ||
        count_weights(d, l, l->c, l->filters, l->size))
        return -1;
    l->forward_flop = 2.0 * (double)l->n_weights * l->w * l->h;
    return 0;
}

static int describe_local(struct describer *d, struct amp_layer_desc *l)
{
    if (need_image(d)) return -1;
    l->filters = amp_desc_int(d, "filters", 1);
    l->size = amp_desc_int(d, "size", 1);
    l->stride = amp_desc_int(d, "stride", 1);
    l->pad = amp_desc_int(d, "pad", 0);
    if (amp_desc_positive(d, "filters", l->filters) || amp_desc_positive(d, "size", l->size) ||
        amp_desc_positive(d, "stride", l->stride) || read_activation(d, l, "logistic"))
        return -1;
    /* Darknet computes the output with this rule, but unfolds its input with another; where the two
     * differ, it would write out of bounds. */
    int less = l->pad ? 1 : l->size;
    if (set_output(d, l, (l->w - less) / l->stride + 1, (l->h - less) / l->stride + 1, l->filters))
        return -1;
    int64_t grow = 2LL * l->pad - l->size;
    if (l->pad < 0 || l->w + grow < 0 || l->h + grow < 0 ||
        (l->w + grow) / l->stride + 1 != l->out_w || (l->h + grow) / l->stride + 1 != l->out_h)
        return amp_desc_fail(
            d, d->section->line,
            "[local]: size=%d, stride=%d and pad=%d on %d x %d: Darknet would write past "
            "its workspace; always allowed: pad=0, or pad=1 with size=3",
            l->size, l->stride, l->pad, l->w, l->h);
    if (count_weights(d, l, l->c, l->outputs, l->size)) return -1;
    if ((int64_t)l->n_weights / l->filters * d->net->batch > AMP_MAX_ELEMENTS)
        return amp_desc_fail(d, d->section->line,
                             "[local]: its windows see more than 2^31 elements of the %d images of "
                             "a pass; lower batch or raise subdivisions",
                             d->net->batch);
    l->forward_flop = 2.0 * (double)l->n_weights;
    return 0;
}

static int describe_connected(struct describer *d, struct amp_layer_desc *l)
{
    int out = amp_desc_int(d, "output", 1);
    l->batch_normalize = amp_desc_int(d, "batch_normalize", 0);
    if (amp_desc_positive(d, "output", out) || read_activation(d, l, "logistic") ||
        set_output(d, l, 1, 1, out))
        return -1;
    /* So that amp_conv_shape treats it as a convolution. */
    l->filters = out;
    if (count_weights(d, l, l->inputs, out, 1)) return -1;
    l->forward_flop = 2.0 * (double)l->n_weights;
    return 0;
}

/* rnn, gru, lstm: matrices on vectors. Darknet leaves them without an image shape. */
static int describe_recurrent(struct describer *d, struct amp_layer_desc *l)
{
    int out = amp_desc_int(d, "output", 1);
    l->batch_normalize = amp_desc_int(d, "batch_normalize", 0);
    if (amp_desc_positive(d, "output", out)) return -1;
    if (l->type == AMP_RNN && read_activation(d, l, "logistic")) return -1;
    if (count_weights(d, l, l->inputs, out, 1) || count_weights(d, l, out, out, 1)) return -1;
    /* rnn: three matrices; gru and lstm: one pair per gate, three or four gates. */
    size_t in = (size_t)l->inputs, n = (size_t)out;
    l->outputs = out;
    l->n_weights =
        l->type == AMP_RNN ? in * n + 2 * n * n : (l->type == AMP_GRU ? 3 : 4) * (in * n + n * n);
    l->forward_flop = 2.0 * (double)l->n_weights;
    return 0;
}

static int describe_crnn(struct describer *d, struct amp_layer_desc *l)
{
    if (need_image(d)) return -1;
    l->filters = amp_desc_int(d, "output_filters", 1);
    l->hidden = amp_desc_int(d, "hidden_filters", 1);
    l->batch_normalize = amp_desc_int(d, "batch_normalize", 0);
    /* Darknet's parser swaps width and height, so the layers after it see the image turned. */
    if (amp_desc_positive(d, "output_filters", l->filters) ||
        amp_desc_positive(d, "hidden_filters", l->hidden) || read_activation(d, l, "logistic") ||
        set_output(d, l, l->h, l->w, l->filters) || count_weights(d, l, l->c, l->hidden, 3) ||
        count_weights(d, l, l->hidden, l->hidden, 3) ||
        count_weights(d, l, l->hidden, l->filters, 3))
        return -1;
    /* Darknet keeps the hidden state of every image. */
    int64_t state = (int64_t)l->w * l->h * l->hidden;
    if (state > AMP_MAX_ELEMENTS || state * d->net->batch > AMP_MAX_ELEMENTS)
        return amp_desc_fail(d, d->section->line, "[crnn]: its state has more than 2^31 elements");
    size_t hidden = (size_t)l->hidden;
    l->n_weights = 9 * (hidden * (size_t)l->c + hidden * hidden + hidden * (size_t)l->filters);
    l->forward_flop = 2.0 * (double)l->n_weights * l->w * l->h;
    return 0;
}

static int describe_maxpool(struct describer *d, struct amp_layer_desc *l)
{
    if (need_image(d)) return -1;
    l->stride = amp_desc_int(d, "stride", 1);
    /* Darknet's defaults: a window as large as its stride, and padding of size - 1 in both
     * directions together. */
    l->size = amp_desc_int(d, "size", l->stride);
    l->pad = amp_desc_int(d, "padding", l->size - 1);
    if (amp_desc_positive(d, "stride", l->stride) || amp_desc_positive(d, "size", l->size))
        return -1;
    if (set_output(d, l, ((int64_t)l->w + l->pad - l->size) / l->stride + 1,
                   ((int64_t)l->h + l->pad - l->size) / l->stride + 1, l->c))
        return -1;
    /* First cell of the first window, as Darknet places it; every window needs at least one cell of
     * the input. */
    int64_t last = -l->pad / 2;
    bool outside = last + l->size < 1 || last + (l->out_w - 1LL) * l->stride >= l->w ||
                   last + (l->out_h - 1LL) * l->stride >= l->h;
    if (outside)
        return amp_desc_fail(
            d, d->section->line,
            "[maxpool]: size=%d, stride=%d, padding=%d on %d x %d: a window without any "
            "input cell, whose gradient Darknet would write out of bounds",
            l->size, l->stride, l->pad, l->w, l->h);
    return 0;
}

static int describe_crop(struct describer *d, struct amp_layer_desc *l)
{
    if (need_image(d)) return -1;
    int w = amp_desc_int(d, "crop_width", 1), h = amp_desc_int(d, "crop_height", 1);
    if (w < 1 || w > l->w || h < 1 || h > l->h)
        return amp_desc_fail(
            d, d->section->line,
            "[crop]: crop_width=%d, crop_height=%d; allowed: up to its input, %d x %d", w, h, l->w,
            l->h);
    return set_output(d, l, w, h, l->c);
}

static int describe_avgpool(struct describer *d, struct amp_layer_desc *l)
{
    return need_image(d) || set_output(d, l, 1, 1, l->c) ? -1 : 0;
}

static int describe_upsample(struct describer *d, struct amp_layer_desc *l)
{
    if (need_image(d)) return -1;
    int stride = amp_desc_int(d, "stride", 2);
    l->scale = (float)amp_cfg_float(d->section, "scale", 1);
    /* A negative stride shrinks the image, as in Darknet. */
    l->reverse = stride < 0;
    l->stride = abs(stride);
    if (l->stride == 0) return amp_desc_positive(d, "stride", 0);
    if (l->reverse && d->strict && (l->w % l->stride || l->h % l->stride))
        return amp_desc_fail(
            d, amp_cfg_line(d->section, "stride"),
            "stride=-%d in %s: must divide the %d x %d input; this Darknet would add up "
            "cells of different rows",
            l->stride, d->section->name, l->w, l->h);
    if (l->reverse) return set_output(d, l, l->w / l->stride, l->h / l->stride, l->c);
    return set_output(d, l, (int64_t)l->w * l->stride, (int64_t)l->h * l->stride, l->c);
}

static int describe_reorg(struct describer *d, struct amp_layer_desc *l)
{
    if (need_image(d)) return -1;
    l->stride = amp_desc_int(d, "stride", 1);
    l->reverse = amp_desc_int(d, "reverse", 0);
    l->flatten = amp_desc_int(d, "flatten", 0);
    l->extra = amp_desc_int(d, "extra", 0);
    if (amp_desc_positive(d, "stride", l->stride)) return -1;
    if (l->stride > MAX_REORG)
        return amp_desc_fail(d, amp_cfg_line(d->section, "stride"),
                             "stride=%d in %s: allowed is up to %d", l->stride, d->section->name,
                             MAX_REORG);
    int s = l->stride;
    bool permutes = !l->flatten && !l->extra;
    if ((l->reverse || permutes) && l->c % (s * s))
        return amp_desc_fail(d, amp_cfg_line(d->section, "stride"),
                             "stride=%d in %s: its square must divide the %d channels", s,
                             d->section->name, l->c);
    int result = l->reverse ? set_output(d, l, (int64_t)l->w * s, (int64_t)l->h * s, l->c / (s * s))
                            : set_output(d, l, l->w / s, l->h / s, (int64_t)l->c * s * s);
    if (result) return -1;
    if (l->extra < 0 || l->extra > AMP_MAX_ELEMENTS - l->inputs)
        return amp_desc_fail(d, amp_cfg_line(d->section, "extra"),
                             "extra=%d in %s: allowed is 0 to %d", l->extra, d->section->name,
                             AMP_MAX_ELEMENTS - l->inputs);
    /* With extra= the output is flat: the input and so many zeros. */
    if (l->extra) {
        l->out_w = l->out_h = l->out_c = 0;
        l->outputs = l->inputs + l->extra;
    } else if (l->outputs != l->inputs) {
        return amp_desc_fail(d, amp_cfg_line(d->section, "stride"),
                             "stride=%d in %s: must divide the %d x %d input", s, d->section->name,
                             l->w, l->h);
    }
    return 0;
}

static int describe_route(struct describer *d, struct amp_layer_desc *l)
{
    const struct amp_cfg_entry *groups = amp_cfg_find(d->section, "groups");
    /* AlexeyAB's Darknet takes a part of the channels here. */
    if (groups && d->strict)
        return amp_desc_fail(
            d, groups->line,
            "groups=%s in [route]: this Darknet ignores it and would train another "
            "network; remove the key, or "
            "use a cfg made for this Darknet",
            groups->written);
    if (read_sources(d, l, "layers")) return -1;
    /* Sources of different size give a flat vector, as in Darknet. */
    const struct amp_layer_desc *first = &d->net->layers[l->sources[0]];
    l->out_w = first->out_w;
    l->out_h = first->out_h;
    int64_t outputs = 0, channels = 0;
    bool image = first->out_w && first->out_h && first->out_c;
    for (int i = 0; i < l->n_sources; i++) {
        const struct amp_layer_desc *next = &d->net->layers[l->sources[i]];
        outputs += next->outputs;
        channels += next->out_c;
        image = image && next->out_w == first->out_w && next->out_h == first->out_h;
    }
    if (outputs > AMP_MAX_ELEMENTS)
        return amp_desc_fail(d, d->section->line, "[route]: more than 2^31 elements");
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
        return amp_desc_fail(
            d, amp_cfg_line(d->section, "from"),
            "from= in [shortcut]: this Darknet adds exactly one layer, %d are given", l->n_sources);
    from = l->sources[0];
    free(l->sources);
    /* The layer before comes first; from= names the one that is added. */
    l->sources = malloc(2 * sizeof(int));
    if (!l->sources) return amp_desc_fail(d, d->section->line, "out of memory");
    l->sources[0] = d->index - 1;
    l->sources[1] = from;
    l->n_sources = 2;
    const struct amp_layer_desc *add = &d->net->layers[from];
    l->alpha = (float)amp_cfg_float(d->section, "alpha", 1);
    l->beta = (float)amp_cfg_float(d->section, "beta", 1);
    /* Darknet stores the added layer's shape as the input's, and the output has the shape of the
     * layer before. */
    int w = l->w, h = l->h, c = l->c;
    l->w = add->out_w;
    l->h = add->out_h;
    l->c = add->out_c;
    if (read_activation(d, l, "linear") || set_output(d, l, w, h, c)) return -1;
    l->inputs = l->outputs;
    if (!l->w || !l->h || !l->c || l->w / w != l->h / h || w / l->w != h / l->h)
        return amp_desc_fail(
            d, amp_cfg_line(d->section, "from"),
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
        l->probability = (float)amp_cfg_float(d->section, "probability", .5);
        if (!(l->probability >= 0 && l->probability < 1))
            return amp_desc_fail(d, amp_cfg_line(d->section, "probability"),
                                 "probability=%g in [dropout]: must be at least 0 and below 1",
                                 l->probability);
        /* It works in the memory of the layer before, and there is none. */
        if (d->index == 0)
            return amp_desc_fail(d, d->section->line, "[dropout] cannot be the first layer");
    }
    if (l->type == AMP_SOFTMAX) l->noloss = amp_desc_int(d, "noloss", 0);
    int size = l->type == AMP_NORMALIZATION ? amp_desc_int(d, "size", 5) : 1;
    if (size < 1 || size / 2 > l->c)
        return amp_desc_fail(d, amp_cfg_line(d->section, "size"),
                             "size=%d in %s: allowed: 1 to %lld, with %d channels", size,
                             d->section->name, 2LL * l->c + 1, l->c);
    /* Its weights file and memory are those of a normalized layer. */
    if (l->type == AMP_BATCHNORM) l->batch_normalize = true;
    if (l->type == AMP_ACTIVATION) return read_activation(d, l, "linear");
    return 0;
}

static int fail_unknown(struct describer *d)
{
    const char *nearest = amp_layer_nearest_name(d->section->name);
    return amp_desc_fail(d, d->section->line,
                         "%s: this Darknet has no such layer; it would leave it empty%s%s%s",
                         d->section->name, nearest ? "; did you mean [" : "",
                         nearest ? nearest : "", nearest ? "]?" : "");
}

static int describe_by_type(struct describer *d, struct amp_layer_desc *l)
{
    switch (l->type) {
    case AMP_CONVOLUTIONAL:
        return describe_convolutional(d, l);
    case AMP_DECONVOLUTIONAL:
        return describe_deconvolutional(d, l);
    case AMP_LOCAL:
        return describe_local(d, l);
    case AMP_CONNECTED:
        return describe_connected(d, l);
    case AMP_RNN:
    case AMP_GRU:
    case AMP_LSTM:
        return describe_recurrent(d, l);
    case AMP_CRNN:
        return describe_crnn(d, l);
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
    case AMP_YOLO:
    case AMP_REGION:
    case AMP_DETECTION:
    case AMP_ISEG:
        return amp_describe_head(d, l);
    case AMP_DROPOUT:
    case AMP_ACTIVATION:
    case AMP_NORMALIZATION:
    case AMP_BATCHNORM:
    case AMP_SOFTMAX:
    case AMP_COST:
    case AMP_L2NORM:
    case AMP_LOGISTIC:
        return describe_same(d, l);
    default:
        return fail_unknown(d);
    }
}

/* A softmax with noloss=1 has no loss, but groups and a tree. */
static bool has_loss_keys(const struct amp_layer_desc *l)
{
    return l->type == AMP_SOFTMAX || amp_layer_is_loss(l);
}

/* Only layers that our executors can run: Darknet's own code has no batch-norm that rests. */
static int check_freeze(struct describer *d, const struct amp_layer_desc *l)
{
    bool allowed = amp_layer_is_matrix(l) && !l->binary && !l->xnor && !l->smooth;
    if (!l->freeze || allowed) return 0;
    return amp_desc_fail(d, amp_cfg_line(d->section, "freeze"),
                         "freeze=1 in %s: allowed in [convolutional] without binary, xnor and "
                         "smooth, [deconvolutional], [local] and [connected]%s",
                         d->section->name,
                         l->n_weights ? "" : "; this layer has no parameters to keep");
}

/* Only layers that our executors can run: Darknet's own code moves state in forward. */
static int check_checkpoint(struct describer *d, const struct amp_layer_desc *l)
{
    bool allowed = false;
    switch (l->type) {
    case AMP_CONVOLUTIONAL:
        allowed = !l->binary && !l->xnor && !l->smooth;
        break;
    case AMP_DECONVOLUTIONAL:
    case AMP_LOCAL:
    case AMP_CONNECTED:
    case AMP_MAXPOOL:
    case AMP_AVGPOOL:
    case AMP_ROUTE:
    case AMP_SHORTCUT:
    case AMP_UPSAMPLE:
    case AMP_REORG:
    case AMP_DROPOUT:
    case AMP_ACTIVATION:
        allowed = true;
        break;
    default:
        break;
    }
    if (!l->checkpoint || allowed) return 0;
    return amp_desc_fail(d, amp_cfg_line(d->section, "checkpoint"),
                         "checkpoint=1 in %s: allowed in [convolutional] without binary, xnor and "
                         "smooth, [deconvolutional], [local], [connected], [maxpool], [avgpool], "
                         "[route], [shortcut], [upsample], [reorg], [dropout] and [activation]",
                         d->section->name);
}

int amp_describe_layer(struct describer *d, struct amp_layer_desc *l)
{
    l->type = amp_layer_type_from_name(d->section->name);
    l->type_name = d->section->name;
    l->line = d->section->line;
    l->w = d->w;
    l->h = d->h;
    l->c = d->c;
    l->inputs = d->inputs;
    l->groups = 1;
    l->activation = AMPK_LINEAR;
    l->override = amp_option_layer_override(d->section);
    l->freeze = amp_option_layer_freeze(d->section);
    l->checkpoint = amp_option_layer_checkpoint(d->section);
    l->stopbackward = amp_desc_int(d, "stopbackward", 0);
    l->onlyforward = amp_desc_int(d, "onlyforward", 0);
    l->truth = amp_desc_int(d, "truth", 0);
    l->dontload = amp_desc_int(d, "dontload", 0);
    l->dontsave = amp_desc_int(d, "dontsave", 0);
    l->dontloadscales = amp_desc_int(d, "dontloadscales", 0);
    l->numload = amp_desc_int(d, "numload", 0);
    /* Under a layer, learning_rate= is a factor on the net's rate. */
    l->learning_rate_scale = (float)amp_cfg_float(d->section, "learning_rate", 1);
    if (amp_desc_check_integers(d) || describe_by_type(d, l)) return -1;
    if (check_counts(d, l) || check_freeze(d, l) || check_checkpoint(d, l)) return -1;
    /* route and shortcut have set their sources already. */
    if (!l->sources && one_source(d, l)) return -1;
    if (has_loss_keys(l) && amp_describe_loss(d, l)) return -1;
    /* The next layer reads this one's output unless it names sources. */
    d->w = l->out_w;
    d->h = l->out_h;
    d->c = l->out_c;
    d->inputs = l->outputs;
    return 0;
}
