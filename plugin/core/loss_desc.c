#include "loss_desc.h"

#include <stdlib.h>
#include <string.h>

static bool flag(const struct amp_cfg_section *s, const char *key)
{
    return amp_cfg_int(s, key, 0) != 0;
}

static float number(const struct amp_cfg_section *s, const char *key, double def)
{
    return (float)amp_cfg_float(s, key, def);
}

/* The next piece of a comma list; NULL after the last. */
static const char *next(const char *p)
{
    p = strchr(p, ',');
    return p ? p + 1 : NULL;
}

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
    return AMPK_COST_SSE; /* as Darknet, which says so */
}

int amp_loss_describe(const struct amp_cfg_section *s, int boxes, int anchors,
                      struct amp_loss_desc *l)
{
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
