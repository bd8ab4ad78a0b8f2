/* Decides what Darknet's training would crash on in a network that can be built. It must not know
 * files other than those that a cfg names, and it never builds a network. Each check restates one
 * thing that Darknet does without looking. */

#define _GNU_SOURCE
#include "check_train.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "plugin/core/read/lines.h"
#include "plugin/core/read/named_files.h"

struct checker {
    const struct amp_cfg_file *cfg;
    const struct amp_net_desc *net;
    amp_tell *tell;
    void *context;
};

__attribute__((format(printf, 3, 4))) static void fault(const struct checker *k, int line,
                                                        const char *format, ...)
{
    char what[2 * PATH_MAX], message[4 * PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(message, sizeof message, "%s:%d: %s", k->cfg->path, line, what);
    k->tell(k->context, message);
}

/* ---- heads ---- */

/* Darknet makes room for a fixed number of boxes but steps through them by max. */
static void check_head(const struct checker *k, int layer)
{
    const struct amp_layer_desc *l = &k->net->layers[layer];
    const struct amp_cfg_section *s = amp_cfg_layer(k->cfg, layer);
    if (l->max_boxes != l->truths)
        fault(k, amp_cfg_line(s, "max"),
              "max=%d in %s; allowed: %d, the room that this Darknet makes", l->max_boxes, s->name,
              l->truths);
    if (l->type == AMP_REGION && l->coords != 4)
        fault(k, amp_cfg_line(s, "coords"),
              "coords=%d in %s; allowed: 4, what detector train loads", l->coords, s->name);
    if (l->classes < 1)
        fault(k, amp_cfg_line(s, "classes"), "classes=%d in %s; allowed: at least 1", l->classes,
              s->name);
}

/* Darknet uses the lines of a map as class indices, unchecked. One bad line is enough to name. */
static void check_map(const struct checker *k, const char *path, int classes)
{
    char *line = NULL, message[2 * PATH_MAX];
    size_t size = 0;
    FILE *file = fopen(path, "r");
    for (int number = 1; file && getline(&line, &size, file) >= 0; number++) {
        long class_id = strtol(line, NULL, 10);
        if (class_id >= 0 && class_id < classes) continue;
        snprintf(message, sizeof message, "%s:%d: class %ld; allowed: 0 to %d", path, number,
                 class_id, classes - 1);
        k->tell(k->context, message);
        break;
    }
    free(line);
    if (file) fclose(file);
}

/* Darknet uses parents as indices, and takes the tree's classes for the layer's. */
static void check_tree(const struct checker *k, const struct amp_cfg_entry *e,
                       const struct amp_layer_desc *l)
{
    char err[2 * PATH_MAX];
    struct amp_class_tree tree;
    int classes = l->type == AMP_SOFTMAX ? l->inputs : l->classes;
    if (amp_class_tree_read(k->cfg->path, e->value, &tree, err, sizeof err)) {
        k->tell(k->context, err);
        return;
    }
    if (tree.classes != classes)
        fault(k, e->line, "tree=%s: has %d classes; allowed: %d, as many as %s", e->value,
              tree.classes, classes, l->type_name);
    amp_class_tree_free(&tree);
}

/* Checks files that Darknet would end without, after it has built the network. */
static void check_named_files(const struct checker *k, int layer)
{
    static const char *const keys[] = {"tree", "map"};
    const struct amp_layer_desc *l = &k->net->layers[layer];
    for (int i = 0; i < 2; i++) {
        const struct amp_cfg_entry *e = amp_cfg_find(amp_cfg_layer(k->cfg, layer), keys[i]);
        const char *why = e ? amp_text_unreadable(e->value) : NULL;
        if (why)
            fault(k, e->line, "%s=%s: %s", e->key, e->value, why);
        else if (e && i)
            check_map(k, e->value, l->classes);
        else if (e && l->type != AMP_YOLO && l->type != AMP_DETECTION)
            check_tree(k, e, l);
    }
}

/* Of a single value the softmax is 1, whatever the image. */
static void check_softmax(const struct checker *k, int layer)
{
    const struct amp_layer_desc *l = &k->net->layers[layer];
    if (l->type != AMP_SOFTMAX || l->loss.tree || l->noloss || l->inputs != l->loss.groups) return;
    fault(k, l->line,
          "%s of %d numbers with groups=%d: each group is a single number, of which softmax makes "
          "1: nothing would be learned; %s",
          l->type_name, l->inputs, l->loss.groups,
          l->inputs > 1 ? "leave groups out" : "of one class, use [logistic], or add a second");
}

/* Darknet loads truths in the shape that the last layer wants, and gives them to every loss. */
static void check_truths(const struct checker *k, int layer)
{
    const struct amp_layer_desc *l = &k->net->layers[layer];
    const struct amp_layer_desc *last = &k->net->layers[k->net->n - 1];
    if (amp_layer_is_loss(l) && l->type != last->type)
        fault(k, l->line,
              "%s in a net that ends with %s: this Darknet would read its truths out of bounds; "
              "allowed: losses of one kind",
              l->type_name, last->type_name);
    if (l->truth)
        fault(k, amp_cfg_line(amp_cfg_layer(k->cfg, layer), "truth"),
              "truth=1 in %s: the layers after it would read their truths out of bounds",
              l->type_name);
}

/* ---- how images are loaded ---- */

/* Darknet divides by saturation and exposure; jitter is the part of an image's width and height
 * that may be cut off or added. */
static void check_range(const struct checker *k, const struct amp_cfg_section *s, const char *key)
{
    enum amp_layer_type type = amp_cfg_section_type(k->cfg, s);
    double value = amp_key_float(s, type, k->net->dialect, key);
    const struct amp_key_row *row = amp_key_find(key, type);
    if (row && !amp_key_allows(row, value))
        fault(k, amp_cfg_line(s, key), "%s=%g in %s; allowed: %s", key, value, s->name,
              row->allowed);
}

/* ---- random=1 ---- */

/* Types that resize_network knows; at any other it ends the program. */
static bool can_resize(enum amp_layer_type type)
{
    switch (type) {
    case AMP_CONVOLUTIONAL:
    case AMP_CROP:
    case AMP_MAXPOOL:
    case AMP_REGION:
    case AMP_YOLO:
    case AMP_ROUTE:
    case AMP_SHORTCUT:
    case AMP_UPSAMPLE:
    case AMP_REORG:
    case AMP_AVGPOOL:
    case AMP_NORMALIZATION:
    case AMP_COST:
        return true;
    default:
        return false;
    }
}

/* False after telling: the net is not possible at this size. */
static bool check_size(const struct checker *k, int line, int w, int h)
{
    char err[2 * PATH_MAX];
    struct amp_net_desc *net = amp_net_describe(k->cfg, w, h, true, err, sizeof err);
    bool fits = net;
    if (!fits) fault(k, line, "random=1 also trains at %d x %d, where: %s", w, h, err);
    amp_net_desc_free(net);
    return fits;
}

/* Darknet stops at an [avgpool], whose output has one size. One layer is enough to name: the advice
 * is the same for all. False after telling. */
static bool check_layers(const struct checker *k, int line)
{
    for (int i = 0; i < k->net->n; i++) {
        if (i && k->net->layers[i - 1].type == AMP_AVGPOOL) break;
        if (can_resize(k->net->layers[i].type)) continue;
        fault(k, line, "random=1 with %s (line %d): this Darknet cannot resize such a layer",
              k->net->layers[i].type_name, k->net->layers[i].line);
        return false;
    }
    return true;
}

/* At each size that detector train draws. Stock's are 320, 352 .. 608, whatever the cfg says. */
static void check_random(const struct checker *k)
{
    int line = amp_cfg_line(amp_cfg_layer(k->cfg, k->net->n - 1), "random"), w = 0, h = 0;
    bool fine = check_layers(k, line);
    while (fine && amp_net_next_size(k->net, &w, &h))
        fine = check_size(k, line, w, h);
}

void amp_train_resizing_check(const struct amp_cfg_file *cfg, const struct amp_net_desc *net,
                              int least, int most, amp_tell *tell, void *context)
{
    struct checker k = {cfg, net, tell, context};
    int line = amp_cfg_line(&cfg->sections[0], "random");
    bool fine = check_layers(&k, line);
    for (int side = least; fine && side <= most; side += 32)
        fine = check_size(&k, line, side, side);
}

/* ---- Darknet's own backward ---- */

/* Darknet's CPU code writes gradients of these layers to arrays that it never allocates. */
static void check_cpu_layers(const struct checker *k)
{
    for (int i = 0; i < k->net->n; i++) {
        const struct amp_layer_desc *l = &k->net->layers[i];
        bool binary = l->type == AMP_CONVOLUTIONAL && l->binary && !l->batch_normalize;
        if (binary || l->type == AMP_BATCHNORM || l->type == AMP_RNN || l->type == AMP_LSTM)
            fault(k, l->line,
                  "%s%s: this Darknet crashes when it trains such a layer on the CPU; allowed with "
                  "mixed_precision=1",
                  l->type_name, binary ? " with binary=1 and without batch_normalize=1" : "");
    }
}

/* The images have no delta in Darknet, and [crop] has none either. */
static bool has_gradient(const struct checker *k, int layer)
{
    return layer >= 0 && k->net->layers[layer].type != AMP_CROP;
}

/* Types whose backward tests net.delta for NULL (or never write it). */
static bool looks_before_it_writes(enum amp_layer_type type)
{
    switch (type) {
    case AMP_CONVOLUTIONAL:
    case AMP_DECONVOLUTIONAL:
    case AMP_CONNECTED:
    case AMP_LOCAL:
    case AMP_CROP:
    case AMP_DROPOUT:
    case AMP_RNN:
    case AMP_GRU:
    case AMP_LSTM:
    case AMP_CRNN:
        return true;
    default:
        return false;
    }
}

/* Backward ends at stopbackward, so layers before it do not matter. */
static void check_gradients(const struct checker *k)
{
    for (int i = k->net->n - 1; i >= 0; i--) {
        const struct amp_layer_desc *l = &k->net->layers[i];
        if (l->stopbackward) return;
        for (int s = 0; s < l->n_sources; s++) {
            if (has_gradient(k, l->sources[s]) || looks_before_it_writes(l->type)) continue;
            fault(k, l->line,
                  "%s reads the %s: this Darknet would write its gradient, which is nowhere; "
                  "allowed with mixed_precision=1, or after a convolution",
                  l->type_name, l->sources[s] < 0 ? "images" : "output of [crop]");
            break;
        }
    }
}

/* ---- all ---- */

/* detector train asks the last layer for classes, jitter and random. */
static void check_net_keys(const struct checker *k)
{
    const struct amp_cfg_section *net = &k->cfg->sections[0];
    const struct amp_layer_desc *last = &k->net->layers[k->net->n - 1];
    if (last->type != AMP_YOLO && last->type != AMP_REGION)
        fault(k, last->line, "the last layer is %s; detector train needs [yolo] or [region] there",
              last->type_name);
    if (k->net->c != 3)
        fault(k, amp_cfg_line(net, "channels"),
              "channels=%d; allowed: 3, what detector train loads, of grey images too", k->net->c);
    if (k->net->max_batches < 1)
        fault(k, amp_cfg_line(net, "max_batches"),
              "max_batches=%d: nothing to train: raise max_batches", k->net->max_batches);
    check_range(k, net, "saturation");
    check_range(k, net, "exposure");
    check_range(k, amp_cfg_layer(k->cfg, k->net->n - 1), "jitter");
}

void amp_train_net_check(const struct amp_cfg_file *cfg, const struct amp_net_desc *net, bool mixed,
                         bool on_gpu, amp_tell *tell, void *context)
{
    struct checker k = {cfg, net, tell, context};
    for (int i = 0; i < net->n; i++) {
        const struct amp_layer_desc *l = &net->layers[i];
        if (amp_layer_is_head(l)) check_head(&k, i);
        if (amp_layer_is_head(l) || l->type == AMP_SOFTMAX) check_named_files(&k, i);
    }
    check_net_keys(&k);
    /* Truths and random belong to the last layer; without a head there is nothing to compare
     * with. */
    if (!amp_layer_is_head(&net->layers[net->n - 1])) return;
    for (int i = 0; i < net->n; i++)
        check_truths(&k, i);
    if (net->layers[net->n - 1].random) check_random(&k);
    if (!mixed) check_gradients(&k);
    if (!mixed && !on_gpu) check_cpu_layers(&k);
}

void amp_train_any_check(const struct amp_cfg_file *cfg, const struct amp_net_desc *net, bool mixed,
                         bool on_gpu, amp_tell *tell, void *context)
{
    struct checker k = {cfg, net, tell, context};
    for (int i = 0; i < net->n; i++) {
        check_softmax(&k, i);
        if (amp_layer_is_head(&net->layers[i]) || net->layers[i].type == AMP_SOFTMAX)
            check_named_files(&k, i);
    }
    if (!mixed) amp_train_stock_check(cfg, net, on_gpu, tell, context);
}

/* For commands that time or run Darknet's own passes without training. */
void amp_train_stock_check(const struct amp_cfg_file *cfg, const struct amp_net_desc *net,
                           bool on_gpu, amp_tell *tell, void *context)
{
    struct checker k = {cfg, net, tell, context};
    check_gradients(&k);
    if (!on_gpu) check_cpu_layers(&k);
}
