/* Describes every kind of layer from its section, as Darknet's parse_* and make_*_layer compute it;
 * here those with weights. It must not know how a layer without weights gets its shape
 * (net_shapes.c), losses' own keys (net_losses.c) or what a plan makes of a layer.
 *
 * All products are computed in 64 bits and checked: Darknet computes them as int, and an overflow
 * there ends in memory that is too small. */
#include "net.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/dialect.h"
#include "plugin/core/read/options.h"

#define MAX_SIZE 65536 /* largest window, stride and padding */

/* ---- helpers ---- */

/* Darknet multiplies these as int before it allocates: past 2^31 it would reserve too little
 * memory. */
static int check_counts(struct describer *d, const struct amp_layer_desc *l)
{
    int64_t outputs = (int64_t)d->net->batch * l->outputs;
    int64_t inputs = (int64_t)d->net->batch * l->inputs;
    if (outputs > AMP_MAX_ELEMENTS || inputs > AMP_MAX_ELEMENTS)
        return amp_fail_line(
            &d->complaints, d->section->line,
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
        return amp_fail_line(&d->complaints, d->section->line, "%s: more than 2^31 weights",
                             d->section->name);
    l->n_weights = (size_t)(n * c * c);
    return 0;
}

/* Most layers read the layer before; the first one reads layer -1, the input. */
static int one_source(struct describer *d, struct amp_layer_desc *l)
{
    l->sources = malloc(sizeof(int));
    if (!l->sources) return amp_fail_line(&d->complaints, d->section->line, "out of memory");
    l->sources[0] = d->index - 1;
    l->n_sources = 1;
    return 0;
}

/* ---- one function per kind of layer ---- */

/* Of a convolution or deconvolution. */
static int check_window(struct describer *d, const struct amp_layer_desc *l)
{
    if (l->pad >= 0 && l->pad <= MAX_SIZE && l->size <= MAX_SIZE && l->stride <= MAX_SIZE) return 0;
    return amp_fail_line(&d->complaints, d->section->line,
                         "%s: size=%d, stride=%d, padding %d: allowed is up to %d, padding from 0",
                         d->section->name, l->size, l->stride, l->pad, MAX_SIZE);
}

static int describe_convolutional(struct describer *d, struct amp_layer_desc *l)
{
    if (amp_desc_need_image(d)) return -1;
    l->filters = amp_desc_int(d, "filters");
    l->size = amp_desc_int(d, "size");
    l->stride = amp_desc_int(d, "stride");
    /* As in Darknet: pad=1 means half the window, and then padding= has no effect. */
    l->pad = amp_desc_int(d, "pad") ? l->size / 2 : amp_desc_int(d, "padding");
    l->groups = amp_desc_int(d, "groups");
    l->batch_normalize = amp_desc_int(d, "batch_normalize");
    l->binary = amp_desc_int(d, "binary");
    l->xnor = amp_desc_int(d, "xnor");
    l->smooth = amp_desc_float(d, "smooth") != 0;
    if (amp_desc_positive(d, "filters", l->filters) || amp_desc_positive(d, "size", l->size) ||
        amp_desc_positive(d, "stride", l->stride) || amp_desc_positive(d, "groups", l->groups) ||
        amp_desc_activation(d, l))
        return -1;
    if (l->c % l->groups || l->filters % l->groups)
        return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "groups"),
                             "groups=%d in %s: must divide its %d input channels and %d filters",
                             l->groups, d->section->name, l->c, l->filters);
    if (check_window(d, l)) return -1;
    /* Checked apart, since integer division would round a negative size to one cell. */
    if (l->w + 2 * l->pad < l->size || l->h + 2 * l->pad < l->size)
        return amp_fail_line(&d->complaints, d->section->line,
                             "%s: its input of %d x %d is smaller than the %d x %d filter",
                             d->section->name, l->w, l->h, l->size, l->size);
    int w = (l->w + 2 * l->pad - l->size) / l->stride + 1;
    int h = (l->h + 2 * l->pad - l->size) / l->stride + 1;
    if (amp_desc_output(d, l, w, h, l->filters) ||
        count_weights(d, l, l->c / l->groups, l->filters, l->size))
        return -1;
    /* Every weight is used once per output cell: a multiplication and an addition. */
    l->forward_flop = 2.0 * (double)l->n_weights * w * h;
    return 0;
}

static int describe_deconvolutional(struct describer *d, struct amp_layer_desc *l)
{
    if (amp_desc_need_image(d)) return -1;
    l->filters = amp_desc_int(d, "filters");
    l->size = amp_desc_int(d, "size");
    l->stride = amp_desc_int(d, "stride");
    l->pad = amp_desc_int(d, "pad") ? l->size / 2 : amp_desc_int(d, "padding");
    l->groups = 1;
    l->batch_normalize = amp_desc_int(d, "batch_normalize");
    if (amp_desc_positive(d, "filters", l->filters) || amp_desc_positive(d, "size", l->size) ||
        amp_desc_positive(d, "stride", l->stride) || amp_desc_activation(d, l) ||
        check_window(d, l))
        return -1;
    if (amp_desc_output(d, l, (l->w - 1LL) * l->stride + l->size - 2 * l->pad,
                        (l->h - 1LL) * l->stride + l->size - 2 * l->pad, l->filters) ||
        count_weights(d, l, l->c, l->filters, l->size))
        return -1;
    l->forward_flop = 2.0 * (double)l->n_weights * l->w * l->h;
    return 0;
}

static int describe_local(struct describer *d, struct amp_layer_desc *l)
{
    if (amp_desc_need_image(d)) return -1;
    l->filters = amp_desc_int(d, "filters");
    l->size = amp_desc_int(d, "size");
    l->stride = amp_desc_int(d, "stride");
    l->pad = amp_desc_int(d, "pad");
    if (amp_desc_positive(d, "filters", l->filters) || amp_desc_positive(d, "size", l->size) ||
        amp_desc_positive(d, "stride", l->stride) || amp_desc_activation(d, l))
        return -1;
    /* Darknet computes the output with this rule, but unfolds its input with another; where the two
     * differ, it would write out of bounds. */
    int less = l->pad ? 1 : l->size;
    if (amp_desc_output(d, l, (l->w - less) / l->stride + 1, (l->h - less) / l->stride + 1,
                        l->filters))
        return -1;
    int64_t grow = 2LL * l->pad - l->size;
    if (l->pad < 0 || l->w + grow < 0 || l->h + grow < 0 ||
        (l->w + grow) / l->stride + 1 != l->out_w || (l->h + grow) / l->stride + 1 != l->out_h)
        return amp_fail_line(
            &d->complaints, d->section->line,
            "[local]: size=%d, stride=%d and pad=%d on %d x %d: Darknet would write past "
            "its workspace; always allowed: pad=0, or pad=1 with size=3",
            l->size, l->stride, l->pad, l->w, l->h);
    if (count_weights(d, l, l->c, l->outputs, l->size)) return -1;
    if ((int64_t)l->n_weights / l->filters * d->net->batch > AMP_MAX_ELEMENTS)
        return amp_fail_line(&d->complaints, d->section->line,
                             "[local]: its windows see more than 2^31 elements of the %d images of "
                             "a pass; lower batch or raise subdivisions",
                             d->net->batch);
    l->forward_flop = 2.0 * (double)l->n_weights;
    return 0;
}

static int describe_connected(struct describer *d, struct amp_layer_desc *l)
{
    int out = amp_desc_int(d, "output");
    l->batch_normalize = amp_desc_int(d, "batch_normalize");
    if (amp_desc_positive(d, "output", out) || amp_desc_activation(d, l) ||
        amp_desc_output(d, l, 1, 1, out))
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
    int out = amp_desc_int(d, "output");
    l->batch_normalize = amp_desc_int(d, "batch_normalize");
    if (amp_desc_positive(d, "output", out)) return -1;
    if (l->type == AMP_RNN && amp_desc_activation(d, l)) return -1;
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
    if (amp_desc_need_image(d)) return -1;
    l->filters = amp_desc_int(d, "output_filters");
    l->hidden = amp_desc_int(d, "hidden_filters");
    l->batch_normalize = amp_desc_int(d, "batch_normalize");
    /* Darknet's parser swaps width and height, so the layers after it see the image turned. */
    if (amp_desc_positive(d, "output_filters", l->filters) ||
        amp_desc_positive(d, "hidden_filters", l->hidden) || amp_desc_activation(d, l) ||
        amp_desc_output(d, l, l->h, l->w, l->filters) || count_weights(d, l, l->c, l->hidden, 3) ||
        count_weights(d, l, l->hidden, l->hidden, 3) ||
        count_weights(d, l, l->hidden, l->filters, 3))
        return -1;
    /* Darknet keeps the hidden state of every image. */
    int64_t state = (int64_t)l->w * l->h * l->hidden;
    if (state > AMP_MAX_ELEMENTS || state * d->net->batch > AMP_MAX_ELEMENTS)
        return amp_fail_line(&d->complaints, d->section->line,
                             "[crnn]: its state has more than 2^31 elements");
    size_t hidden = (size_t)l->hidden;
    l->n_weights = 9 * (hidden * (size_t)l->c + hidden * hidden + hidden * (size_t)l->filters);
    l->forward_flop = 2.0 * (double)l->n_weights * l->w * l->h;
    return 0;
}

static int fail_unknown(struct describer *d)
{
    const char *nearest = amp_layer_nearest_name(d->section->name);
    const char *fork = amp_fork_layer(d->section->name);
    if (fork && d->net->dialect == AMP_DIALECT_FORK) return amp_fail_fork_layer(d, fork);
    return amp_fail_line(&d->complaints, d->section->line,
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
    case AMP_YOLO:
    case AMP_REGION:
    case AMP_DETECTION:
    case AMP_ISEG:
        if (l->type != AMP_DETECTION && amp_desc_need_image(d)) return -1;
        return amp_describe_head(d, l);
    case AMP_NETWORK:
    case AMP_XNOR:
    case AMP_BLANK:
        return fail_unknown(d);
    default:
        return amp_describe_shape(d, l);
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
    return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "freeze"),
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
    if (!l->recompute || allowed) return 0;
    return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "checkpoint"),
                         "checkpoint=1 in %s: allowed in [convolutional] without binary, xnor and "
                         "smooth, [deconvolutional], [local], [connected], [maxpool], [avgpool], "
                         "[route], [shortcut], [upsample], [reorg], [dropout] and [activation]",
                         d->section->name);
}

int amp_describe_layer(struct describer *d, struct amp_layer_desc *l)
{
    l->type = d->type = amp_layer_type_from_name(d->section->name);
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
    l->recompute = amp_option_layer_checkpoint(d->section);
    l->stopbackward = amp_desc_int(d, "stopbackward");
    l->onlyforward = amp_desc_int(d, "onlyforward");
    l->truth = amp_desc_int(d, "truth");
    l->dontload = amp_desc_int(d, "dontload");
    l->dontsave = amp_desc_int(d, "dontsave");
    l->dontloadscales = amp_desc_int(d, "dontloadscales");
    l->numload = amp_desc_int(d, "numload");
    /* Under a layer, learning_rate= is a factor on the net's rate. */
    l->learning_rate_scale = amp_desc_float(d, "learning_rate");
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
