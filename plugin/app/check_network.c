#define _GNU_SOURCE
#include "check_network.h"

#include <limits.h>
#include <stdarg.h>
#include <stddef.h>

#include "plugin/core/file_check.h"
#include "plugin/core/weights_file.h"
#include "plugin/core/cfg.h"
#include "plugin/core/net.h"
#include "plugin/core/options.h"

struct checker {
    const struct amp_cfg_file *cfg;
    const struct amp_net_desc *net;
    const struct amp_eval_set *set;
    bool on_gpu, failed;
    FILE *log;
};

__attribute__((format(printf, 2, 3))) static void fault(struct checker *k, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("error: ", k->log);
    vfprintf(k->log, format, args);
    fputc('\n', k->log);
    va_end(args);
    k->failed = true;
}

/* ---- heads ---- */

/* The head's entry with this key, or NULL; what it names must be readable, Darknet does not look.
 */
static const struct amp_cfg_entry *named_file(struct checker *k, int layer, const char *key)
{
    const struct amp_cfg_entry *e = amp_cfg_find(amp_cfg_layer(k->cfg, layer), key);
    const char *why = e ? amp_text_unreadable(e->value) : NULL;
    if (why) fault(k, "%s:%d: %s=%s: %s", k->cfg->path, e->line, key, e->value, why);
    return e;
}

/* Darknet's CPU code for a tree (forward_region_layer) divides by a temperature of 0 and walks the
 * wrong elements; only its GPU code is right. */
static void check_tree_and_map(struct checker *k, int layer)
{
    const char *path = k->cfg->path;
    const struct amp_layer_desc *l = &k->net->layers[layer];
    const struct amp_cfg_entry *map = named_file(k, layer, "map");
    const struct amp_cfg_entry *tree = l->type == AMP_REGION ? named_file(k, layer, "tree") : NULL;
    if (tree && !k->on_gpu)
        fault(k,
              "%s:%d: [region] with tree= can only be evaluated on a GPU: Darknet's CPU code "
              "computes trees wrongly",
              path, tree->line);
    if (k->set->map && !tree)
        fault(k, "%s:%d: the data file has map=, which is for [region] heads with tree= only", path,
              l->line);
    if (map && l->type != AMP_DETECTION && !k->set->map)
        fault(k,
              "%s:%d: map=%s: labels and detections name different classes; allowed: no map= here, "
              "or one in the data file too",
              path, map->line, map->value);
}

static void check_head(struct checker *k, int layer)
{
    const struct amp_layer_desc *l = &k->net->layers[layer];
    const struct amp_layer_desc *last = &k->net->layers[k->net->n - 1];
    if (l->classes != k->set->n_head_classes)
        fault(k, "%s:%d: classes=%d in %s, but the data file says %d", k->cfg->path, l->line,
              l->classes, l->type_name, k->set->n_head_classes);
    if ((l->type == AMP_DETECTION) != (last->type == AMP_DETECTION))
        fault(k, "%s:%d: %s together with a %s head; allowed: not both", k->cfg->path, l->line,
              l->type_name, last->type_name);
    check_tree_and_map(k, layer);
}

static void check_heads(struct checker *k)
{
    const struct amp_layer_desc *last = &k->net->layers[k->net->n - 1];
    if (k->net->c != 3)
        fault(k, "%s:%d: channels=%d; allowed: 3, what images are loaded with", k->cfg->path,
              k->cfg->sections[0].line, k->net->c);
    if (!amp_layer_is_head(last)) {
        fault(k, "%s:%d: the last layer is %s; allowed: [yolo], [region], [detection]",
              k->cfg->path, last->line, last->type_name);
        return;
    }
    for (int i = 0; i < k->net->n; ++i) {
        if (amp_layer_is_head(&k->net->layers[i])) check_head(k, i);
    }
}

/* ---- weights ---- */

static void check_weights(struct checker *k, const char *path)
{
    char err[2 * PATH_MAX];
    struct amp_weights_info info;
    if (amp_weights_check(path, k->net, &info, err, sizeof err))
        fault(k, "%s", err);
    else if (info.layers_found < info.layers)
        fprintf(k->log,
                "warning: weights file %s ends before layer %d: %d of %d layers with weights are "
                "loaded, the others are random\n",
                path, info.first_absent, info.layers_found, info.layers);
}

int amp_map_check_network(const char *cfg_path, const char *weights_path,
                          const struct amp_eval_set *set, bool on_gpu, FILE *log)
{
    char err[2 * PATH_MAX];
    struct amp_options options;
    struct amp_cfg_file *cfg = amp_cfg_read(cfg_path, err, sizeof err);
    struct amp_net_desc *net = NULL;
    if (cfg && amp_options_read(cfg, &options, NULL, 0, err, sizeof err) == 0)
        net = amp_net_describe(cfg, 0, 0, options.mixed_precision, err, sizeof err);
    struct checker k = {.cfg = cfg, .net = net, .set = set, .on_gpu = on_gpu, .log = log};
    if (net) {
        check_heads(&k);
        if (weights_path) check_weights(&k, weights_path);
    } else {
        fault(&k, "%s", err);
    }
    amp_net_desc_free(net);
    amp_cfg_free(cfg);
    return k.failed ? -1 : 0;
}
