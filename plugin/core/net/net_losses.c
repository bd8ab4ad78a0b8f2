/* Describes losses and detection heads from their keys: yolo, region, detection, iseg, cost,
 * softmax, logistic. It must not know how a loss is computed. It also has the checks that all
 * describing files share, because it is the lowest of them. */
#include "net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ANCHORS 1000

/* ---- for net.c and net_layers.c too ---- */

int amp_desc_product(struct describer *d, int64_t a, int64_t b, int64_t c, int *out)
{
    if (a < 0 || b < 0 || c < 0)
        return amp_fail_line(&d->complaints, d->section->line,
                             "%s: its output would be %lld x %lld x %lld", d->section->name,
                             (long long)a, (long long)b, (long long)c);
    /* Step by step, so that no product exceeds 64 bits. */
    bool large = a > AMP_MAX_ELEMENTS || b > AMP_MAX_ELEMENTS || c > AMP_MAX_ELEMENTS ||
                 a * b > AMP_MAX_ELEMENTS;
    if (large || a * b * c > AMP_MAX_ELEMENTS)
        return amp_fail_line(&d->complaints, d->section->line,
                             "%s: %lld x %lld x %lld is more than 2^31 elements", d->section->name,
                             (long long)a, (long long)b, (long long)c);
    *out = (int)(a * b * c);
    return 0;
}

int amp_desc_check_integers(struct describer *d)
{
    /* Keys whose values shapes are computed from. A limit far above any sensible value keeps those
     * computations away from overflow. */
    static const char *const keys[] = {
        "batch",      "subdivisions", "time_steps",  "width",          "height",
        "channels",   "filters",      "size",        "stride",         "padding",
        "pad",        "groups",       "output",      "classes",        "num",
        "coords",     "ids",          "side",        "extra",          "max",
        "numload",    "crop_width",   "crop_height", "output_filters", "hidden_filters",
        "resize_step"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const struct amp_cfg_entry *e = amp_cfg_find(d->section, keys[i]);
        long value = e ? strtol(e->value, NULL, 10) : 0;
        if (value > AMP_MAX_INTEGER || value < -AMP_MAX_INTEGER)
            return amp_fail_line(&d->complaints, e->line, "%s=%s in %s: allowed is up to %d",
                                 e->key, e->written, d->section->name, AMP_MAX_INTEGER);
    }
    return 0;
}

/* ---- what a loss reads of its section ---- */

/* As Darknet reads a switch: any number but 0 is on. */
static bool flag(const struct describer *d, const char *key)
{
    return amp_desc_int(d, key) != 0;
}

/* Darknet fills up missing anchors with .5. */
static int read_anchors(const struct amp_cfg_section *s, int anchors, struct amp_loss_desc *l)
{
    const char *p = amp_cfg_string(s, "anchors", NULL);
    size_t n = 2 * (size_t)anchors;
    l->n_anchors = anchors;
    l->anchor_sizes = malloc((n + 1) * sizeof *l->anchor_sizes);
    if (!l->anchor_sizes) return -1;
    for (size_t i = 0; i < n; i++) {
        l->anchor_sizes[i] = p ? (float)atof(p) : .5f;
        p = p ? amp_list_next(p) : NULL;
    }
    return 0;
}

static int read_mask(const struct amp_cfg_section *s, int boxes, struct amp_loss_desc *l)
{
    const char *p = amp_cfg_string(s, "mask", NULL);
    if (!p) return 0;
    l->mask = calloc((size_t)boxes, sizeof *l->mask);
    if (!l->mask) return -1;
    for (int i = 0; i < boxes && p; i++, p = amp_list_next(p))
        l->mask[i] = atoi(p);
    return 0;
}

static int read_yolo(struct describer *d, struct amp_layer_desc *layer, struct amp_loss_desc *l)
{
    l->map = amp_cfg_string(d->section, "map", NULL);
    l->ignore_thresh = amp_desc_float(d, "ignore_thresh");
    l->truth_thresh = amp_desc_float(d, "truth_thresh");
    return read_anchors(d->section, layer->total, l) || read_mask(d->section, layer->num, l) ? -1
                                                                                             : 0;
}

static int read_region(const struct describer *d, const struct amp_layer_desc *layer,
                       struct amp_loss_desc *l)
{
    l->map = amp_cfg_string(d->section, "map", NULL);
    l->tree = amp_cfg_string(d->section, "tree", NULL);
    l->softmax = flag(d, "softmax");
    l->background = flag(d, "background");
    l->bias_match = flag(d, "bias_match");
    l->rescore = flag(d, "rescore");
    l->thresh = amp_desc_float(d, "thresh");
    l->coord_scale = amp_desc_float(d, "coord_scale");
    l->object_scale = amp_desc_float(d, "object_scale");
    l->noobject_scale = amp_desc_float(d, "noobject_scale");
    l->class_scale = amp_desc_float(d, "class_scale");
    l->mask_scale = (int)amp_desc_float(d, "mask_scale");
    return read_anchors(d->section, layer->total, l);
}

static void read_softmax(const struct describer *d, struct amp_loss_desc *l)
{
    l->tree = amp_cfg_string(d->section, "tree", NULL);
    l->groups = amp_desc_int(d, "groups");
    l->spatial = (int)amp_desc_float(d, "spatial") != 0;
    l->temperature = amp_desc_float(d, "temperature");
}

static void read_cost(const struct describer *d, struct ampk_cost *cost)
{
    int type = amp_key_word(amp_key_find("type", AMP_COST), amp_desc_string(d, "type"));
    *cost = (struct ampk_cost){
        /* sse for an unknown word, as Darknet, which prints that it does */
        .type = type < 0 ? AMPK_COST_SSE : (enum ampk_cost_type)type,
        .scale = amp_desc_float(d, "scale"),
        .noobject_scale = amp_desc_float(d, "noobj"),
        .threshold = amp_desc_float(d, "thresh"),
        .smooth = amp_desc_float(d, "smooth"),
    };
}

static int read_loss(struct describer *d, struct amp_layer_desc *l)
{
    switch (l->type) {
    case AMP_YOLO:
        return read_yolo(d, l, &l->loss);
    case AMP_REGION:
        return read_region(d, l, &l->loss);
    case AMP_SOFTMAX:
        read_softmax(d, &l->loss);
        return 0;
    case AMP_COST:
        read_cost(d, &l->loss.cost);
        return 0;
    default:
        return 0;
    }
}

void amp_loss_desc_free(struct amp_loss_desc *l)
{
    free(l->anchor_sizes);
    free(l->mask);
    free(l->yolo.class_multipliers);
}

/* ---- heads ---- */

/* Darknet loads truths for the last head, and makes room for its classes in all detections. */
static int check_classes(struct describer *d, const struct amp_layer_desc *l)
{
    for (int i = 0; i < d->index; i++) {
        const struct amp_layer_desc *other = &d->net->layers[i];
        if (!amp_layer_is_head(other) || other->classes == l->classes) continue;
        return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "classes"),
                             "classes=%d%s in %s; allowed: as many in all heads, and %s of line "
                             "%d has %d%s",
                             l->classes, amp_cfg_default_hint(d->section, "classes"),
                             d->section->name, other->type_name, other->line, other->classes,
                             amp_cfg_default_hint(amp_cfg_layer(d->complaints.cfg, i), "classes"));
    }
    return 0;
}

int amp_describe_head(struct describer *d, struct amp_layer_desc *l)
{
    l->classes = amp_desc_int(d, "classes");
    l->coords = l->type == AMP_YOLO ? 4 : amp_desc_int(d, "coords");
    l->total = l->num = l->type == AMP_ISEG ? 1 : amp_desc_int(d, "num");
    l->random = amp_desc_float(d, "random") != 0;
    l->max_boxes = amp_desc_int(d, "max");
    l->truths = l->type == AMP_REGION ? AMP_REGION_TRUTHS : AMP_YOLO_TRUTHS;
    if (l->num < 1 || l->num > MAX_ANCHORS || l->classes < 0 || l->coords < 0)
        return amp_fail_line(
            &d->complaints, d->section->line,
            "%s: num=%d, classes=%d, coords=%d; allowed: num 1 to %d, the others not below "
            "0",
            d->section->name, l->num, l->classes, l->coords, MAX_ANCHORS);
    /* Not strict: what Darknet itself trains, which fits where labels stay below all of them. */
    if (d->strict && amp_layer_is_head(l) && check_classes(d, l)) return -1;
    /* In 64 bits: classes and boxes multiply. */
    int64_t per_cell = 0, cells = (int64_t)l->w * l->h;
    if (l->type == AMP_YOLO) {
        /* mask= chooses some of the num= anchors for this head: so many boxes per cell. */
        const char *mask = amp_cfg_string(d->section, "mask", NULL);
        if (mask) l->num = amp_list_count(mask);
        /* x, y, width, height, objectness, and the classes. */
        per_cell = (int64_t)l->num * (l->classes + 5);
    } else if (l->type == AMP_REGION) {
        per_cell = (int64_t)l->num * (l->classes + l->coords + 1);
    } else if (l->type == AMP_ISEG) {
        per_cell = (int64_t)l->classes + amp_desc_int(d, "ids");
    } else {
        /* [detection] has a grid of its own, whatever the image before it. */
        int side = amp_desc_int(d, "side");
        cells = (int64_t)side * side;
        per_cell = (1LL + l->coords) * l->num + l->classes;
        l->w = l->h = side;
    }
    bool possible = per_cell > 0 && per_cell <= AMP_MAX_ELEMENTS && cells <= AMP_MAX_ELEMENTS;
    if (!possible || per_cell * cells != l->inputs)
        return amp_fail_line(
            &d->complaints, d->section->line,
            "%s needs %lld values for each of %lld cells (classes=%d, boxes per cell %d), the "
            "layer before it gives %d in all; set its filters= to %lld",
            d->section->name, (long long)per_cell, (long long)cells, l->classes, l->num, l->inputs,
            (long long)per_cell);
    l->outputs = l->inputs;
    /* Darknet leaves [detection] without an image shape. */
    if (l->type != AMP_DETECTION) {
        l->out_w = l->w;
        l->out_h = l->h;
        l->out_c = (int)per_cell;
    }
    return 0;
}

int amp_describe_loss(struct describer *d, struct amp_layer_desc *l)
{
    if (read_loss(d, l)) return amp_fail_line(&d->complaints, d->section->line, "out of memory");
    if (l->type == AMP_YOLO && amp_describe_yolo(d, l)) return -1;
    /* Darknet would read past the end of its anchors. */
    for (int i = 0; l->loss.mask && i < l->num; i++)
        if (l->loss.mask[i] < 0 || l->loss.mask[i] >= l->total)
            return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "mask"),
                                 "mask= in [yolo] names anchor %d, allowed: 0 to %d",
                                 l->loss.mask[i], l->total - 1);
    if (l->type == AMP_SOFTMAX && (l->loss.groups < 1 || l->inputs % l->loss.groups))
        return amp_fail_line(&d->complaints, amp_cfg_line(d->section, "groups"),
                             "groups=%d in [softmax]: must divide its %d inputs", l->loss.groups,
                             l->inputs);
    return 0;
}
