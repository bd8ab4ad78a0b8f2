/* Describes losses and detection heads from their keys: yolo, region, detection, iseg, cost,
 * softmax, logistic. It must not know how a loss is computed. It also has the error helpers of all
 * describing files, because it is the lowest of them. */
#include "net.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ANCHORS 1000

/* ---- for net.c and net_layers.c too ---- */

int amp_desc_fail(struct describer *d, int line, const char *format, ...)
{
    /* Every error names file and line, so that an editor can jump there. */
    int used = snprintf(d->err, d->err_size, "%s:%d: ", d->cfg->path, line);
    if (used < 0 || (size_t)used >= d->err_size) return -1;
    va_list args;
    va_start(args, format);
    vsnprintf(d->err + used, d->err_size - (size_t)used, format, args);
    va_end(args);
    return -1;
}

int amp_desc_positive(struct describer *d, const char *key, int value)
{
    if (value > 0) return 0;
    return amp_desc_fail(d, amp_cfg_line(d->section, key), "%s=%d in %s: must be at least 1", key,
                         value, d->section->name);
}

int amp_desc_product(struct describer *d, int64_t a, int64_t b, int64_t c, int *out)
{
    if (a < 0 || b < 0 || c < 0)
        return amp_desc_fail(d, d->section->line, "%s: its output would be %lld x %lld x %lld",
                             d->section->name, (long long)a, (long long)b, (long long)c);
    /* Step by step, so that no product exceeds 64 bits. */
    bool large = a > AMP_MAX_ELEMENTS || b > AMP_MAX_ELEMENTS || c > AMP_MAX_ELEMENTS ||
                 a * b > AMP_MAX_ELEMENTS;
    if (large || a * b * c > AMP_MAX_ELEMENTS)
        return amp_desc_fail(d, d->section->line,
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
        "batch",    "subdivisions", "time_steps",  "width",          "height",
        "channels", "filters",      "size",        "stride",         "padding",
        "pad",      "groups",       "output",      "classes",        "num",
        "coords",   "ids",          "side",        "extra",          "max",
        "numload",  "crop_width",   "crop_height", "output_filters", "hidden_filters"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const struct amp_cfg_entry *e = amp_cfg_find(d->section, keys[i]);
        long value = e ? strtol(e->value, NULL, 10) : 0;
        if (value > AMP_MAX_INTEGER || value < -AMP_MAX_INTEGER)
            return amp_desc_fail(d, e->line, "%s=%s in %s: allowed is up to %d", e->key, e->written,
                                 d->section->name, AMP_MAX_INTEGER);
    }
    return 0;
}

/* ---- what a loss reads of its section ---- */

/* As Darknet reads a switch: any number but 0 is on. */
static bool flag(const struct amp_cfg_section *s, const char *key)
{
    return amp_cfg_int(s, key, 0) != 0;
}

static float number(const struct amp_cfg_section *s, const char *key, double def)
{
    return (float)amp_cfg_float(s, key, def);
}

/* The next element of a comma list; NULL after the last. */
static const char *next(const char *p)
{
    p = strchr(p, ',');
    return p ? p + 1 : NULL;
}

/* Darknet fills up missing anchors with .5. */
static int read_anchors(const struct amp_cfg_section *s, struct amp_loss_desc *l)
{
    const char *p = amp_cfg_string(s, "anchors", NULL);
    size_t n = 2 * (size_t)l->n_anchors;
    l->anchor_sizes = malloc((n + 1) * sizeof *l->anchor_sizes);
    if (!l->anchor_sizes) return -1;
    for (size_t i = 0; i < n; i++) {
        l->anchor_sizes[i] = p ? (float)atof(p) : .5f;
        p = p ? next(p) : NULL;
    }
    return 0;
}

static int read_mask(const struct amp_cfg_section *s, int boxes, struct amp_loss_desc *l)
{
    const char *p = amp_cfg_string(s, "mask", NULL);
    if (!p) return 0;
    l->mask = calloc((size_t)boxes, sizeof *l->mask);
    if (!l->mask) return -1;
    for (int i = 0; i < boxes && p; i++, p = next(p))
        l->mask[i] = atoi(p);
    return 0;
}

static enum ampk_cost_type cost_type(const char *name)
{
    static const char *const names[] = {"sse", "masked", "L1", "seg", "smooth", "wgan"};
    for (int i = 0; i < 6; i++)
        if (strcmp(name, names[i]) == 0) return (enum ampk_cost_type)i;
    return AMPK_COST_SSE; /* as Darknet, which prints that it does */
}

static int read_loss(const struct amp_cfg_section *s, int boxes, int anchors,
                     struct amp_loss_desc *l)
{
    /* Every key with Darknet's default; a layer uses those of its type. */
    *l = (struct amp_loss_desc){
        .n_anchors = anchors,
        .map = amp_cfg_string(s, "map", NULL),
        .softmax = flag(s, "softmax"),
        .background = flag(s, "background"),
        .bias_match = flag(s, "bias_match"),
        .rescore = flag(s, "rescore"),
        .ignore_thresh = number(s, "ignore_thresh", .5),
        .truth_thresh = number(s, "truth_thresh", 1),
        .thresh = number(s, "thresh", .5),
        .coord_scale = number(s, "coord_scale", 1),
        .object_scale = number(s, "object_scale", 1),
        .noobject_scale = number(s, "noobject_scale", 1),
        .class_scale = number(s, "class_scale", 1),
        .mask_scale = (int)number(s, "mask_scale", 1),
        .tree = amp_cfg_string(s, "tree", NULL),
        .groups = amp_cfg_int(s, "groups", 1),
        .spatial = (int)number(s, "spatial", 0) != 0,
        .temperature = number(s, "temperature", 1),
        .cost = {.type = cost_type(amp_cfg_string(s, "type", "sse")),
                 .scale = number(s, "scale", 1),
                 .noobject_scale = number(s, "noobj", 1),
                 .threshold = number(s, "thresh", 0),
                 .smooth = number(s, "smooth", 0)},
    };
    return read_anchors(s, l) || read_mask(s, boxes, l) ? -1 : 0;
}

void amp_loss_desc_free(struct amp_loss_desc *l)
{
    free(l->anchor_sizes);
    free(l->mask);
}

/* ---- heads ---- */

int amp_describe_head(struct describer *d, struct amp_layer_desc *l)
{
    l->classes = amp_desc_int(d, "classes", l->type == AMP_DETECTION ? 1 : 20);
    l->coords = amp_desc_int(d, "coords", l->type == AMP_DETECTION ? 1 : 4);
    l->total = l->num = amp_desc_int(d, "num", 1);
    l->random = amp_desc_int(d, "random", 0);
    l->max_boxes =
        amp_desc_int(d, "max", l->type == AMP_REGION ? AMP_REGION_TRUTHS : AMP_YOLO_TRUTHS);
    if (l->num < 1 || l->num > MAX_ANCHORS || l->classes < 0 || l->coords < 0)
        return amp_desc_fail(
            d, d->section->line,
            "%s: num=%d, classes=%d, coords=%d; allowed: num 1 to %d, the others not below "
            "0",
            d->section->name, l->num, l->classes, l->coords, MAX_ANCHORS);
    /* In 64 bits: classes and boxes multiply. */
    int64_t per_cell = 0, cells = (int64_t)l->w * l->h;
    if (l->type == AMP_YOLO) {
        /* mask= chooses some of the num= anchors for this head: so many boxes per cell. */
        const char *mask = amp_cfg_string(d->section, "mask", NULL);
        if (mask) {
            l->num = 1;
            for (const char *p = mask; *p; p++)
                l->num += *p == ',';
        }
        l->coords = 4;
        /* x, y, width, height, objectness, and the classes. */
        per_cell = (int64_t)l->num * (l->classes + 5);
    } else if (l->type == AMP_REGION) {
        per_cell = (int64_t)l->num * (l->classes + l->coords + 1);
    } else if (l->type == AMP_ISEG) {
        per_cell = (int64_t)l->classes + amp_desc_int(d, "ids", 32);
    } else {
        /* [detection] has a grid of its own, whatever the image before it. */
        int side = amp_desc_int(d, "side", 7);
        cells = (int64_t)side * side;
        per_cell = (1LL + l->coords) * l->num + l->classes;
        l->w = l->h = side;
    }
    bool possible = per_cell > 0 && per_cell <= AMP_MAX_ELEMENTS && cells <= AMP_MAX_ELEMENTS;
    if (!possible || per_cell * cells != l->inputs)
        return amp_desc_fail(
            d, d->section->line,
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
    /* Other losses share this function, but their num= counts no anchors. */
    bool anchors = l->type == AMP_YOLO || l->type == AMP_REGION;
    if (read_loss(d->section, anchors ? l->num : 0, anchors ? l->total : 0, &l->loss))
        return amp_desc_fail(d, d->section->line, "out of memory");
    /* Darknet would read past the end of its anchors. */
    for (int i = 0; l->loss.mask && i < l->num; i++)
        if (l->loss.mask[i] < 0 || l->loss.mask[i] >= l->total)
            return amp_desc_fail(d, amp_cfg_line(d->section, "mask"),
                                 "mask= in [yolo] names anchor %d, allowed: 0 to %d",
                                 l->loss.mask[i], l->total - 1);
    if (l->type == AMP_SOFTMAX && (l->loss.groups < 1 || l->inputs % l->loss.groups))
        return amp_desc_fail(d, amp_cfg_line(d->section, "groups"),
                             "groups=%d in [softmax]: must divide its %d inputs", l->loss.groups,
                             l->inputs);
    return 0;
}
