/* Executors of losses and softmax where the backend has them: cost, logistic, region, softmax,
 * yolo.
 *
 * Input and output are FP32 NCHW: exponentials and box sizes need the range and precision of FP32.
 * A loss writes its unscaled delta to node->loss; backward applies the loss scale on the way to the
 * source, so that a pass can be repeated with another scale without running the loss again.
 *
 * This file turns a layer's description into the backend's options. It must not know the formulas:
 * the backend's operations have those. */
#include "layers.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/core/read/named_files.h"
#include "tensors.h"

/* A host array that an operation reads. copy_constants sets *where to its copy in backend memory,
 * or to NULL if data is NULL. */
struct constant {
    const void *data;
    size_t bytes;
    const void **where;
};

enum { MOST_CONSTANTS = 8 };

/* Keeps every array of the block aligned. */
static size_t padded(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

static int no_memory(struct amp_graph *g, int i, char *err, size_t err_size)
{
    return amp_graph_no_memory(g, i, "what its loss reads", err, err_size);
}

/* Copies all arrays into one block, node->constants, so that free_node frees them at once. -1 with
 * the reason in err. */
static int copy_constants(struct amp_graph *g, int i, const struct constant *c, int n, char *err,
                          size_t err_size)
{
    size_t bytes = 0;
    for (int k = 0; k < n; k++)
        bytes += c[k].data ? padded(c[k].bytes) : 0;
    for (int k = 0; k < n; k++)
        *c[k].where = NULL;
    if (bytes == 0) return 0;
    char *to = g->nodes[i].constants = g->backend->alloc(g->context, bytes);
    if (!to) return no_memory(g, i, err, err_size);
    for (int k = 0; k < n; k++) {
        if (!c[k].data) continue;
        g->backend->write(g->context, to, c[k].data, c[k].bytes);
        *c[k].where = to;
        to += padded(c[k].bytes);
    }
    return 0;
}

/* Keeps a copy of the options in node->options, for every later pass. */
static int keep_options(struct amp_graph *g, int i, const void *options, size_t bytes, char *err,
                        size_t err_size)
{
    g->nodes[i].options = malloc(bytes);
    if (!g->nodes[i].options) return no_memory(g, i, err, err_size);
    memcpy(g->nodes[i].options, options, bytes);
    return 0;
}

/* ---- tree ---- */

static int write_tree(struct amp_graph *g, int i, const struct amp_class_tree *t,
                      struct ampk_tree *tree, const struct constant *more, int n, char *err,
                      size_t err_size)
{
    struct constant all[MOST_CONSTANTS];
    size_t classes = (size_t)t->classes * sizeof(int), groups = (size_t)t->groups * sizeof(int);
    tree->classes = t->classes;
    tree->groups = t->groups;
    all[0] = (struct constant){t->parent, classes, (const void **)&tree->parent};
    all[1] = (struct constant){t->group, classes, (const void **)&tree->group};
    all[2] = (struct constant){t->group_offset, groups, (const void **)&tree->group_offset};
    all[3] = (struct constant){t->group_size, groups, (const void **)&tree->group_size};
    for (int k = 0; k < n; k++)
        all[4 + k] = more[k];
    return copy_constants(g, i, all, 4 + n, err, err_size);
}

/* Reads the tree that the layer names and copies its arrays to node->constants, together with the
 * `more` constants: a node has one block of constants. Without a tree, *tree is empty. -1 with the
 * reason in err. most: classes that the layer has room for. */
static int read_tree(struct amp_graph *g, int i, int most, struct ampk_tree *tree,
                     const struct constant *more, int n, char *err, size_t err_size)
{
    struct amp_class_tree t = {0};
    const char *name = g->net->layers[i].loss.tree;
    if (name && amp_class_tree_read(g->net->cfg_path, name, &t, err, err_size)) return -1;
    int result = -1;
    if (t.classes > most)
        snprintf(err, err_size, "layer %d (%s): the tree %s has %d classes, the layer %d", i,
                 amp_layer_type_name(g->net->layers[i].type), name, t.classes, most);
    else
        result = write_tree(g, i, &t, tree, more, n, err, err_size);
    amp_class_tree_free(&t);
    return result;
}

/* ---- passes ---- */

/* The layer's input with the shape of its output, since the operations want equal shapes. */
static struct ampk_tensor loss_input(const struct amp_graph *g, int i)
{
    struct ampk_tensor x = g->nodes[i].out;
    x.data = amp_graph_source(g, i, 0)->data;
    return x;
}

static size_t count_of(const struct amp_node *node)
{
    return (size_t)node->out.n * node->out.image_stride;
}

/* Whether this pass computes the loss and its delta. Without a truth the delta is zero. */
static bool loss_wanted(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    if (!g->train || !node->loss) return false;
    if (!g->truth) g->backend->fill_zero(g->context, node->loss, count_of(node) * sizeof(float));
    return g->truth != NULL;
}

/* dx (+)= the layer's own delta, if a later layer contributed to it, + scale * node->loss. */
static void backward_loss(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct amp_contribution c;
    int s = node->plan->sources[0];
    bool read_itself = s >= 0 && amp_graph_loss_behind(g, s) == i;
    /* The convolution before this loss reads node->loss itself; only an observer needs its
     * delta. */
    if (read_itself && !amp_graph_looked_at(g)) return;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
    /* A scratch dx is watched by the conversion that follows, and a delta for observers only is not
     * judged. */
    bool watched = c.dx->data != node->dx && !read_itself, accumulate = c.accumulate;
    uint32_t *watch = watched ? c.watch : NULL;
    if (node->delta.data) {
        struct ampk_tensor delta = *c.dx;
        delta.data = node->delta.data;
        g->backend->convert(g->context, &delta, c.dx, accumulate, watch);
        accumulate = true;
    }
    if (node->loss)
        g->backend->loss_backward(g->context, node->loss, count_of(node), g->scale, c.dx->data,
                                  accumulate, watch);
    amp_contribution_end(g, &c);
}

/* ---- cost: without a truth it does nothing, as Darknet's ---- */

static void forward_cost(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_tensor x = loss_input(g, i);
    if (loss_wanted(g, i))
        g->backend->cost_loss(g->context, &node->desc->loss.cost, &x, g->truth, &node->out,
                              node->loss, &g->loss_sums[i], &node->watch[AMP_WATCH_OUT],
                              &node->watch[AMP_WATCH_LOSS]);
}

const struct amp_executor amp_exec_cost = {.forward = forward_cost, .backward = backward_loss};

/* ---- logistic ---- */

static void forward_logistic(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_tensor x = loss_input(g, i), out = node->out;
    /* The operation wants NHWC; for single values the order does not matter. */
    x.layout = out.layout = AMPK_NHWC;
    g->backend->activation_forward(g->context, &x, AMPK_LOGISTIC, &out,
                                   &node->watch[AMP_WATCH_OUT]);
    if (loss_wanted(g, i))
        g->backend->logistic_loss(g->context, &node->out, g->truth, node->loss, &g->loss_sums[i],
                                  &node->watch[AMP_WATCH_LOSS]);
}

const struct amp_executor amp_exec_logistic = {.forward = forward_logistic,
                                               .backward = backward_loss};

/* ---- region ---- */

static struct ampk_region_head describe_region(const struct amp_layer_desc *l)
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

static int create_region(struct amp_graph *g, int i, char *err, size_t err_size)
{
    const struct amp_loss_desc *l = &g->net->layers[i].loss;
    struct ampk_region_head o = describe_region(&g->net->layers[i]);
    int *map = NULL;
    if (l->map && amp_class_map_read(g->net->cfg_path, l->map, &map, &o.map_size, err, err_size))
        return -1;
    const struct constant constants[] = {
        {l->anchor_sizes, 2 * (size_t)o.boxes * sizeof(float), (const void **)&o.anchor_sizes},
        {map, (size_t)o.map_size * sizeof(int), (const void **)&o.map},
    };
    int result = read_tree(g, i, o.classes, &o.tree, constants, 2, err, err_size);
    free(map);
    return result ? -1 : keep_options(g, i, &o, sizeof o, err, err_size);
}

static void forward_region(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct ampk_region_head *o = node->options;
    struct ampk_tensor x = loss_input(g, i);
    g->backend->region_forward(g->context, o, &x, &node->out, &node->watch[AMP_WATCH_OUT]);
    if (!loss_wanted(g, i)) return;
    /* Changes during training, so it is set before every pass. */
    o->warm_up = g->seen < AMP_REGION_WARM_UP_IMAGES;
    g->backend->region_loss(g->context, o, &node->out, g->truth, node->loss, &g->loss_sums[i],
                            &node->watch[AMP_WATCH_LOSS]);
}

const struct amp_executor amp_exec_region = {create_region, forward_region, backward_loss};

/* ---- softmax, with and without loss ---- */

static int create_softmax(struct amp_graph *g, int i, char *err, size_t err_size)
{
    const struct amp_layer_desc *l = &g->net->layers[i];
    struct ampk_softmax o = {.groups = l->loss.groups,
                             .spatial = l->loss.spatial && l->w && l->h && l->c,
                             .temperature = l->loss.temperature};
    if (read_tree(g, i, l->inputs, &o.tree, NULL, 0, err, err_size)) return -1;
    return keep_options(g, i, &o, sizeof o, err, err_size);
}

/* Darknet gives a softmax no image shape, but a spatial one works per pixel and needs the shape of
 * its input. */
static struct ampk_tensor image_shaped(const struct amp_graph *g, int i, struct ampk_tensor t)
{
    const struct amp_layer_desc *l = &g->net->layers[i];
    const struct ampk_softmax *o = g->nodes[i].options;
    if (!o->spatial) return t;
    return amp_graph_tensor(t.data, AMP_FORMAT_BORDER, t.n, l->c, l->h, l->w);
}

static void forward_softmax(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct ampk_softmax *o = node->options;
    struct ampk_tensor x = image_shaped(g, i, loss_input(g, i)),
                       out = image_shaped(g, i, node->out);
    g->backend->softmax_forward(g->context, o, &x, &out, &node->watch[AMP_WATCH_OUT]);
    if (loss_wanted(g, i))
        g->backend->softmax_loss(g->context, &out, g->truth, o->tree.classes != 0, node->loss,
                                 &g->loss_sums[i], &node->watch[AMP_WATCH_LOSS]);
}

const struct amp_executor amp_exec_softmax = {create_softmax, forward_softmax, backward_loss};

/* ---- yolo ---- */

/* What the backend is given with every pass. */
struct yolo_options {
    struct ampk_yolo_head head;
    struct ampk_yolo_rules rules;
};

static struct ampk_yolo_rules describe_rules(const struct amp_yolo_desc *y)
{
    return (struct ampk_yolo_rules){.box_loss = (enum ampk_box_loss)y->box_loss,
                                    .iou_thresh_kind = (enum ampk_box_loss)y->iou_thresh_kind,
                                    .iou_thresh = y->iou_thresh,
                                    .iou_normalizer = y->iou_normalizer,
                                    .obj_normalizer = y->obj_normalizer,
                                    .cls_normalizer = y->cls_normalizer,
                                    .max_delta = y->max_delta > 0 ? y->max_delta : FLT_MAX,
                                    .label_smooth_eps = y->label_smooth_eps,
                                    .focal_loss = y->focal_loss,
                                    .objectness_smooth = y->objectness_smooth};
}

/* Stock makes room for AMP_YOLO_TRUTHS labels whatever max= says, but its loss looks at no more
 * than max. */
static struct ampk_yolo_head describe_yolo(const struct amp_graph *g, int i)
{
    const struct amp_layer_desc *l = &g->net->layers[i];
    return (struct ampk_yolo_head){.boxes = l->num,
                                   .anchors = l->total,
                                   .classes = l->classes,
                                   .ignore_thresh = l->loss.ignore_thresh,
                                   .truth_thresh = l->loss.truth_thresh,
                                   .net_w = g->net->w,
                                   .net_h = g->net->h,
                                   .truths = l->truths,
                                   .truths_used =
                                       l->max_boxes < l->truths ? l->max_boxes : l->truths,
                                   .scale_x_y = l->loss.yolo.scale_x_y,
                                   .new_coords = l->loss.yolo.new_coords};
}

static int create_yolo(struct amp_graph *g, int i, char *err, size_t err_size)
{
    const struct amp_loss_desc *l = &g->net->layers[i].loss;
    struct yolo_options o = {describe_yolo(g, i), describe_rules(&l->yolo)};
    size_t classes = (size_t)o.head.classes * sizeof(float);
    int *map = NULL;
    if (l->map &&
        amp_class_map_read(g->net->cfg_path, l->map, &map, &o.head.map_size, err, err_size))
        return -1;
    const struct constant constants[] = {
        {l->anchor_sizes, 2 * (size_t)o.head.anchors * sizeof(float),
         (const void **)&o.head.anchor_sizes},
        {l->mask, (size_t)o.head.boxes * sizeof(int), (const void **)&o.head.mask},
        {map, (size_t)o.head.map_size * sizeof(int), (const void **)&o.head.map},
        {l->yolo.class_multipliers, classes, (const void **)&o.rules.class_multipliers},
    };
    int result = copy_constants(g, i, constants, 4, err, err_size);
    free(map);
    if (result || keep_options(g, i, &o, sizeof o, err, err_size)) return -1;
    struct yolo_options *kept = g->nodes[i].options;
    if (l->yolo.own_rules) kept->head.rules = &kept->rules;
    return 0;
}

static void forward_yolo(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    const struct yolo_options *options = node->options;
    const struct ampk_yolo_head *o = &options->head;
    struct ampk_tensor x = loss_input(g, i);
    g->backend->yolo_forward(g->context, o, &x, &node->out, &node->watch[AMP_WATCH_OUT]);
    if (loss_wanted(g, i))
        g->backend->yolo_loss(g->context, o, &node->out, g->truth, node->loss, &g->loss_sums[i],
                              &node->watch[AMP_WATCH_LOSS]);
}

const struct amp_executor amp_exec_yolo = {create_yolo, forward_yolo, backward_loss};
