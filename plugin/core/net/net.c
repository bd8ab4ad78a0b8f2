/* Describes the [net] section and then each layer (net_layers.c), and checks the workspace that
 * Darknet's layers would share. It must not know options of ours or what the description is for. */
#include "net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/cfg.h"
#include "plugin/core/read/cfg_checks.h"

static int describe_net(struct describer *d, int w, int h)
{
    struct amp_net_desc *net = d->net;
    if (amp_desc_check_integers(d)) return -1;
    int batch = amp_desc_int(d, "batch");
    net->auto_subdivisions = amp_cfg_picks_subdivisions(d->complaints.cfg);
    net->subdivisions = net->auto_subdivisions ? batch : amp_desc_int(d, "subdivisions");
    net->time_steps = amp_desc_int(d, "time_steps");
    if (amp_desc_positive(d, "batch", batch) || amp_desc_positive(d, "time_steps", net->time_steps))
        return -1;
    /* As Darknet computes net->batch: the division drops a remainder. */
    int images = batch / net->subdivisions;
    if (images < 1 && net->dialect == AMP_DIALECT_FORK) images = 1;
    int64_t pass = (int64_t)images * net->time_steps;
    if (pass > AMP_MAX_INTEGER)
        return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "batch"),
                             "batch=%d with time_steps=%d: a pass of more than %d images", batch,
                             net->time_steps, AMP_MAX_INTEGER);
    net->batch = (int)pass;
    if (net->batch < 1)
        return amp_fail_line(
            &d->complaints, amp_cfg_line(d->section, "subdivisions"),
            "batch=%d with subdivisions=%d leaves no image for a pass; allowed: " AMP_SUBDIVISIONS,
            batch, net->subdivisions);
    net->max_batches = amp_desc_int(d, "max_batches");
    net->burn_in = amp_desc_int(d, "burn_in");
    net->adam = amp_desc_int(d, "adam");
    net->clip = amp_desc_float(d, "clip");
    /* A size given by the caller stands for resize_network, which ignores the cfg's. */
    net->w = w ? w : amp_desc_int(d, "width");
    net->h = h ? h : amp_desc_int(d, "height");
    net->c = amp_desc_int(d, "channels");
    if (amp_desc_product(d, net->w, net->h, net->c, &net->inputs)) return -1;
    int image = net->inputs;
    /* Only a net without an image, such as a recurrent one, uses inputs=. */
    if (!w) net->inputs = amp_cfg_int(d->section, "inputs", net->inputs);
    if (image && net->inputs != image)
        return amp_fail_line(
            &d->complaints, amp_cfg_line(d->section, "inputs"),
            "inputs=%d in %s: allowed: width * height * channels = %d, or none of these",
            net->inputs, d->section->name, image);
    if (net->inputs < 1)
        return amp_fail_line(
            &d->complaints, d->section->line,
            "%s: give width=, height= and channels=, or inputs=", d->section->name);
    if (amp_describe_loading(d)) return -1;
    /* The first layer reads the network's input. */
    d->w = net->w;
    d->h = net->h;
    d->c = net->c;
    d->inputs = net->inputs;
    return 0;
}

/* Size that Darknet reserves for one layer in the workspace that all layers share: in bytes. For
 * [local] it mistakes floats for bytes, and for [crnn] it forgets the convolutions inside. */
static double workspace_asked(const struct amp_layer_desc *l)
{
    double window = (double)l->size * l->size;
    switch (l->type) {
    case AMP_CONVOLUTIONAL:
        return 4 * window * l->out_w * l->out_h * l->c / l->groups;
    case AMP_DECONVOLUTIONAL:
        return 4 * window * l->w * l->h * l->filters;
    case AMP_LOCAL:
        return window * l->out_w * l->out_h * l->c;
    default:
        return 0;
    }
}

/* Size that the layer really uses, for the two layers that Darknet gets wrong. */
static double workspace_needed(const struct amp_layer_desc *l)
{
    if (l->type == AMP_LOCAL) return 4 * workspace_asked(l);
    if (l->type == AMP_CRNN) return 4 * 9.0 * l->w * l->h * fmax(l->c, l->hidden);
    return 0;
}

/* The largest request of all layers counts, so a large convolution elsewhere may save a wrong
 * one. */
static int check_workspace(struct describer *d)
{
    double there = 0;
    for (int i = 0; i < d->net->n; i++)
        there = fmax(there, workspace_asked(&d->net->layers[i]));
    for (int i = 0; i < d->net->n; i++) {
        const struct amp_layer_desc *l = &d->net->layers[i];
        if (workspace_needed(l) > there)
            return amp_fail_line(
                &d->complaints, l->line,
                "%s: needs a workspace of %.0f bytes, this Darknet would make one of %.0f; "
                "allowed beside a convolution that needs as much",
                l->type_name, workspace_needed(l), there);
    }
    return 0;
}

/* A net without any layer that learns is refused if freeze= made it so. */
static int check_learning(struct describer *d)
{
    const struct amp_layer_desc *frozen = NULL;
    for (int i = d->net->n - 1; i >= 0; i--) {
        const struct amp_layer_desc *l = &d->net->layers[i];
        if (l->stopbackward) break;
        if (amp_layer_learns(l)) return 0;
        if (l->freeze) frozen = l;
    }
    if (!frozen) return 0;
    return amp_fail_line(&d->complaints, frozen->line,
                         "%s: with freeze=1 here no layer is left that would learn; allowed: "
                         "freeze=1 in all layers but one, at most",
                         frozen->type_name);
}

/* In the order of the file: a layer's shape follows from the layers before it. */
static int describe_all(struct describer *d, int w, int h)
{
    const struct amp_cfg_file *cfg = d->complaints.cfg;
    if (cfg->n_sections == 0) return amp_fail_line(&d->complaints, 0, "has no sections");
    d->section = &cfg->sections[0];
    d->type = AMP_NETWORK;
    if (strcmp(d->section->name, "[net]") && strcmp(d->section->name, "[network]"))
        return amp_fail_line(&d->complaints, d->section->line,
                             "the first section is %s, it must be [net] or [network]",
                             d->section->name);
    if (cfg->n_sections == 1)
        return amp_fail_line(&d->complaints, d->section->line, "there is no layer after %s",
                             d->section->name);
    /* Values first: everything after this reads them as numbers. */
    if (amp_cfg_values_check(&d->complaints) || describe_net(d, w, h)) return -1;
    for (int i = 1; i < cfg->n_sections; i++) {
        d->section = &cfg->sections[i];
        d->index = i - 1;
        /* Counted before the layer is described, so that a half-described one is freed too. */
        d->net->n = i;
        if (amp_describe_layer(d, &d->net->layers[i - 1])) return -1;
    }
    amp_describe_whole(d);
    return check_workspace(d) || check_learning(d) ? -1 : 0;
}

static struct amp_net_desc *describe(const struct amp_cfg_file *cfg, int w, int h, bool strict,
                                     bool *sizes_differ, char *err, size_t err_size)
{
    struct amp_net_desc *net = calloc(1, sizeof *net);
    if (net) net->layers = calloc((size_t)cfg->n_sections + 1, sizeof *net->layers);
    if (!net || !net->layers) {
        snprintf(err, err_size, "%s: out of memory", cfg->path);
        free(net);
        return NULL;
    }
    net->cfg_path = cfg->path;
    net->dialect = cfg->dialect;
    net->dialect_reason = cfg->dialect_reason;
    if (*cfg->dialect_reason && amp_cfg_is_variant(cfg->path)) /* its lines are not the user's */
        net->dialect_reason += strcspn(net->dialect_reason, ":") + strlen(": ");
    struct describer d = {
        .complaints = {.cfg = cfg, .err = err, .err_size = err_size}, .net = net, .strict = strict};
    if (describe_all(&d, w, h) == 0) return net;
    *sizes_differ = d.sizes_differ;
    amp_net_desc_free(net);
    return NULL;
}

static bool fits(const struct amp_cfg_file *cfg, int w, int h)
{
    char err[500];
    bool differ;
    struct amp_net_desc *net =
        w > 0 && h > 0 ? describe(cfg, w, h, true, &differ, err, sizeof err) : NULL;
    amp_net_desc_free(net);
    return net;
}

/* Adds the nearest sizes below and above that fit, multiples of a power of two. Where an odd size
 * is halved and doubled again, it is one more than before. */
static void add_sizes(const struct amp_cfg_file *cfg, char *err, size_t err_size)
{
    int w = amp_cfg_int(cfg->sections, "width", 0), h = amp_cfg_int(cfg->sections, "height", 0);
    size_t used = strlen(err);
    for (int of = 2; of <= 1024; of *= 2) {
        int less_w = w / of * of, less_h = h / of * of;
        int more_w = (w + of - 1) / of * of, more_h = (h + of - 1) / of * of;
        if (!fits(cfg, less_w, less_h) || !fits(cfg, more_w, more_h)) continue;
        snprintf(
            err + used, err_size - used,
            "; sizes that fit are multiples of %d: width=%d, height=%d, or width=%d, height=%d", of,
            less_w, less_h, more_w, more_h);
        return;
    }
}

struct amp_net_desc *amp_net_describe(const struct amp_cfg_file *cfg, int w, int h, bool strict,
                                      char *err, size_t err_size)
{
    bool sizes_differ = false;
    struct amp_net_desc *net = describe(cfg, w, h, strict, &sizes_differ, err, err_size);
    /* Only the cfg's own size can be changed there. */
    if (!net && sizes_differ && !w && !h) add_sizes(cfg, err, err_size);
    return net;
}

void amp_net_desc_free(struct amp_net_desc *net)
{
    if (!net) return;
    for (int i = 0; i < net->n; i++) {
        free(net->layers[i].sources);
        amp_loss_desc_free(&net->layers[i].loss);
    }
    free(net->layers);
    free(net);
}

/* ---- as a convolution ---- */

int amp_net_outputs(const struct amp_net_desc *net)
{
    const struct amp_layer_desc *l = &net->layers[net->n - 1];
    while (l > net->layers && l->type == AMP_COST)
        l--;
    return l->outputs;
}

struct amp_image_shape amp_output_shape(const struct amp_net_desc *net, int i)
{
    if (i < 0) {
        /* A net without an image has inputs= alone. */
        bool image = (int64_t)net->c * net->h * net->w == net->inputs;
        return image ? (struct amp_image_shape){net->c, net->h, net->w}
                     : (struct amp_image_shape){net->inputs, 1, 1};
    }
    const struct amp_layer_desc *l = &net->layers[i];
    /* A flat output is an image of one pixel: so every layer has a shape that tensors can take. */
    if (l->out_w && l->out_h && l->out_c)
        return (struct amp_image_shape){l->out_c, l->out_h, l->out_w};
    return (struct amp_image_shape){l->outputs, 1, 1};
}

struct ampk_conv_shape amp_conv_shape(const struct amp_net_desc *net, int i)
{
    const struct amp_layer_desc *l = &net->layers[i];
    struct amp_image_shape x = amp_output_shape(net, l->sources[0]);
    struct ampk_conv_shape s = {.n = net->batch,
                                .c = x.c,
                                .h = x.h,
                                .w = x.w,
                                .k = l->filters,
                                .kh = l->size,
                                .kw = l->size,
                                .stride = l->stride,
                                .pad = l->pad,
                                .groups = l->groups};
    /* Its window covers the whole input, so each filter gives one value. */
    if (l->type == AMP_CONNECTED) {
        s.kh = x.h;
        s.kw = x.w;
        s.stride = 1;
        s.pad = 0;
        s.groups = 1;
    }
    if (l->type == AMP_LOCAL) {
        s.groups = l->out_w * l->out_h;
        s.n = s.h = s.kh = s.kw = s.stride = 1;
        s.pad = 0;
        s.w = net->batch;
        s.c = s.groups * l->c * l->size * l->size;
        s.k = l->outputs;
    }
    /* What it writes is what the convolution reads (kernels.h). */
    if (l->type == AMP_DECONVOLUTIONAL) {
        s.c = l->filters;
        s.h = l->out_h;
        s.w = l->out_w;
        s.k = x.c;
        s.transposed = true;
    }
    return s;
}
