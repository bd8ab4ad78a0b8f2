/* Decides what is told of a network that trains, but otherwise than its cfg lets one expect. It
 * must not know what Darknet would crash on (check_train_net.c). */
#include "check_train.h"

#include <stdarg.h>

#include "plugin/core/read/cfg_text.h"

struct teller {
    const struct amp_cfg_file *cfg;
    const struct amp_net_desc *net;
    FILE *warn;
};

__attribute__((format(printf, 3, 4))) static void warn(const struct teller *t, int line,
                                                       const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(t->warn, "warning: %s:%d: ", t->cfg->path, line);
    vfprintf(t->warn, format, args);
    fputc('\n', t->warn);
    va_end(args);
}

/* detector train asks the last layer alone. By the fork's rules sizes are about the cfg's own. */
static void tell_sizes(const struct teller *t)
{
    int last = t->net->n - 1;
    const struct amp_layer_desc *head = &t->net->layers[last];
    if (!amp_layer_is_head(head) || !head->random || head->loss.yolo.own_rules) return;
    warn(
        t, amp_cfg_line(amp_cfg_layer(t->cfg, last), "random"),
        "random=1: Darknet trains at 320 x 320 to 608 x 608, another size every 10 iterations, and "
        "at 608 x 608 in the last 200; width=%d and height=%d do not count, and plan and predicted "
        "memory are for them",
        t->net->w, t->net->h);
}

/* ---- batch-norm ---- */

static bool normalizes(const struct amp_layer_desc *l)
{
    return l->batch_normalize && !l->freeze && !amp_layer_is_recurrent(l);
}

/* Its variance is 0. */
static void tell_single_values(const struct teller *t)
{
    for (int i = 0; i < t->net->n; i++) {
        const struct amp_layer_desc *l = &t->net->layers[i];
        if (!normalizes(l) || (int64_t)t->net->batch * l->out_w * l->out_h != 1) continue;
        warn(
            t, l->line,
            "batch-norm of layer %d, %s, has one value of each channel in a pass (1 image, 1 x 1): "
            "in training its output is the bias, whatever the image; raise batch, lower "
            "subdivisions, or leave batch_normalize out",
            i, l->type_name);
    }
}

static void tell_single_images(const struct teller *t)
{
    const struct amp_cfg_section *net = t->cfg->sections;
    int layers = 0;
    for (int i = 0; i < t->net->n; i++)
        layers += normalizes(&t->net->layers[i]);
    if (!layers || t->net->batch != 1) return;
    warn(t, amp_cfg_line(net, t->net->subdivisions > 1 ? "subdivisions" : "batch"),
         "batch=%d, subdivisions=%d: a pass has 1 image, so the batch-norm of %d layers sees each "
         "image by itself; raise batch or lower subdivisions",
         t->net->subdivisions, t->net->subdivisions, layers);
}

/* ---- anchors ---- */

/* Those of [region] count cells of the output; those of [yolo] pixels of the input. */
static void tell_pixels(const struct teller *t, int layer)
{
    const struct amp_layer_desc *l = &t->net->layers[layer];
    for (int i = 0; l->type == AMP_REGION && i < 2 * l->loss.n_anchors; i++) {
        float size = l->loss.anchor_sizes[i];
        if (size <= (float)(i % 2 ? l->h : l->w)) continue;
        warn(t, amp_cfg_line(amp_cfg_layer(t->cfg, layer), "anchors"),
             "anchors: %g is more than the %d x %d cells of the image: anchors of [region] count "
             "cells, not pixels as those of [yolo]; divide pixels by %d",
             (double)size, l->w, l->h, l->w ? t->net->w / l->w : 0);
        return;
    }
}

/* With mixed_precision=1 it is an error. */
static void tell_few_anchors(const struct teller *t, int layer)
{
    const struct amp_cfg_section *s = amp_cfg_layer(t->cfg, layer);
    const struct amp_cfg_entry *e = amp_cfg_find(s, "anchors");
    int num = amp_cfg_int(s, "num", 1);
    if (t->net->layers[layer].type != AMP_YOLO || !e || amp_list_count(e->value) >= 2 * num) return;
    warn(t, e->line,
         "anchors= has %d numbers; needed: %d, two for each of num=%d; Darknet takes 0.5 for those "
         "that are missing",
         amp_list_count(e->value), 2 * num, num);
}

static bool has_anchor(const struct amp_layer_desc *l, int anchor)
{
    for (int i = 0; i < l->num; i++)
        if ((l->loss.mask ? l->loss.mask[i] : i) == anchor) return true;
    return false;
}

/* By Darknet's own rules. By the fork's, heads may share anchors on purpose. */
static bool is_head_with_mask(const struct amp_layer_desc *l)
{
    return l->type == AMP_YOLO && !l->loss.yolo.own_rules;
}

/* Warns of a head whose anchors are all those of one before it. */
static void tell_same_mask(const struct teller *t, int layer)
{
    const struct amp_layer_desc *l = &t->net->layers[layer];
    for (int i = 0; i < layer && is_head_with_mask(l); i++) {
        const struct amp_layer_desc *other = &t->net->layers[i];
        bool same = is_head_with_mask(other) && other->num == l->num && other->total == l->total;
        for (int k = 0; same && k < l->num; k++)
            same = has_anchor(other, l->loss.mask ? l->loss.mask[k] : k);
        if (!same) continue;
        warn(t, amp_cfg_line(amp_cfg_layer(t->cfg, layer), "mask"),
             "mask: the same anchors as the [yolo] of line %d: both heads are trained on the same "
             "boxes, and find each of them twice",
             other->line);
        return;
    }
}

/* Darknet trains a box with the anchor that fits it best, of all of num=, whether a head has it. */
static void tell_unused(const struct teller *t)
{
    const struct amp_layer_desc *last = &t->net->layers[t->net->n - 1];
    for (int a = 0; is_head_with_mask(last) && a < last->total; a++) {
        bool used = false;
        for (int i = 0; i < t->net->n; i++) {
            const struct amp_layer_desc *l = &t->net->layers[i];
            if (is_head_with_mask(l) && (has_anchor(l, a) || l->total != last->total)) used = true;
        }
        if (used) continue;
        warn(t, amp_cfg_line(amp_cfg_layer(t->cfg, t->net->n - 1), "mask"),
             "mask: no [yolo] has anchor %d, %gx%g: objects that it fits best are trained by no "
             "head",
             a, (double)last->loss.anchor_sizes[2 * a], (double)last->loss.anchor_sizes[2 * a + 1]);
    }
}

void amp_train_odd_tell(const struct amp_cfg_file *cfg, const struct amp_net_desc *net, FILE *f)
{
    struct teller t = {cfg, net, f};
    tell_sizes(&t);
    tell_single_images(&t);
    tell_single_values(&t);
    for (int i = 0; i < net->n; i++) {
        tell_pixels(&t, i);
        tell_few_anchors(&t, i);
        tell_same_mask(&t, i);
    }
    tell_unused(&t);
}
