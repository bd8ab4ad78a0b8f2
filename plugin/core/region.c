/* [region] on the device. */
#include "loss.h"

#include <stdlib.h>

static struct ampk_region_head describe(const struct amp_layer_desc *l)
{
    const struct amp_loss_desc *o = &l->loss;
    return (struct ampk_region_head){.boxes = l->num,
                                     .classes = l->classes,
                                     .coords = l->coords,
                                     .softmax = o->softmax,
                                     .background = o->background,
                                     .bias_match = o->bias_match,
                                     .rescore = o->rescore,
                                     .thresh = o->thresh,
                                     .coord_scale = o->coord_scale,
                                     .object_scale = o->object_scale,
                                     .noobject_scale = o->noobject_scale,
                                     .class_scale = o->class_scale,
                                     .mask_scale = o->mask_scale,
                                     .truths = AMP_REGION_TRUTHS};
}

static int create(struct amp_graph *g, int i, char *err, size_t err_size)
{
    const struct amp_loss_desc *l = &g->net->layers[i].loss;
    struct ampk_region_head o = describe(&g->net->layers[i]);
    int *map = NULL;
    if (l->map && amp_class_map_read(g->net->cfg_path, l->map, &map, &o.map_size, err, err_size))
        return -1;
    const struct amp_constant constants[] = {
        {l->anchor_sizes, 2 * (size_t)o.boxes * sizeof(float), (const void **)&o.anchor_sizes},
        {map, (size_t)o.map_size * sizeof(int), (const void **)&o.map},
    };
    int result = amp_loss_tree(g, i, o.classes, &o.tree, constants, 2, err, err_size);
    free(map);
    return result ? -1 : amp_loss_options(g, i, &o, sizeof o, err, err_size);
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_region_head *o = node->options;
    struct ampk_tensor x = amp_loss_input(g, i);
    g->backend->region_forward(g->context, o, &x, &node->out, &node->watch[AMP_WATCH_OUT]);
    if (!amp_loss_wanted(g, i)) return;
    o->warm_up = g->seen < AMP_REGION_WARM_UP_IMAGES;
    g->backend->region_loss(g->context, o, &node->out, g->truth, node->loss, &g->loss_sums[i],
                            &node->watch[AMP_WATCH_LOSS]);
}

const struct amp_executor amp_exec_region = {create, forward, amp_loss_backward};
