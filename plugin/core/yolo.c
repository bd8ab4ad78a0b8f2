/* [yolo] on the device. */
#include "loss.h"

#include <stdlib.h>

static struct ampk_yolo_head describe(const struct amp_graph *g, int i)
{
    const struct amp_layer_desc *l = &g->net->layers[i];
    int max = l->max_boxes;
    return (struct ampk_yolo_head){.boxes = l->num,
                                   .anchors = l->total,
                                   .classes = l->classes,
                                   .ignore_thresh = l->loss.ignore_thresh,
                                   .truth_thresh = l->loss.truth_thresh,
                                   .net_w = g->net->w,
                                   .net_h = g->net->h,
                                   .truths = AMP_YOLO_TRUTHS,
                                   .truths_used = max < AMP_YOLO_TRUTHS ? max : AMP_YOLO_TRUTHS};
}

static int create(struct amp_graph *g, int i, char *err, size_t err_size)
{
    const struct amp_loss_desc *l = &g->net->layers[i].loss;
    struct ampk_yolo_head o = describe(g, i);
    int *map = NULL;
    if (l->map && amp_class_map_read(g->net->cfg_path, l->map, &map, &o.map_size, err, err_size))
        return -1;
    const struct amp_constant constants[] = {
        {l->anchor_sizes, 2 * (size_t)o.anchors * sizeof(float), (const void **)&o.anchor_sizes},
        {l->mask, (size_t)o.boxes * sizeof(int), (const void **)&o.mask},
        {map, (size_t)o.map_size * sizeof(int), (const void **)&o.map},
    };
    int result = amp_loss_constants(g, i, constants, 3, err, err_size);
    free(map);
    return result ? -1 : amp_loss_options(g, i, &o, sizeof o, err, err_size);
}

static void forward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_yolo_head *o = node->options;
    struct ampk_tensor x = amp_loss_input(g, i);
    g->backend->yolo_forward(g->context, o, &x, &node->out, &node->watch[AMP_WATCH_OUT]);
    if (amp_loss_wanted(g, i))
        g->backend->yolo_loss(g->context, o, &node->out, g->truth, node->loss, &g->loss_sums[i],
                              &node->watch[AMP_WATCH_LOSS]);
}

const struct amp_executor amp_exec_yolo = {create, forward, amp_loss_backward};
