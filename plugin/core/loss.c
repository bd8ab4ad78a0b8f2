#include "loss.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CONSTANTS = 8 };

static size_t padded(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

static int no_memory(struct amp_graph *g, int i, char *err, size_t err_size)
{
    return amp_graph_no_memory(g, i, "what its loss reads", err, err_size);
}

int amp_loss_constants(struct amp_graph *g, int i, const struct amp_constant *c, int n, char *err,
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

int amp_loss_options(struct amp_graph *g, int i, const void *options, size_t bytes, char *err,
                     size_t err_size)
{
    g->nodes[i].options = malloc(bytes);
    if (!g->nodes[i].options) return no_memory(g, i, err, err_size);
    memcpy(g->nodes[i].options, options, bytes);
    return 0;
}

/* ---- tree ---- */

static int write_tree(struct amp_graph *g, int i, const struct amp_class_tree *t,
                      struct ampk_tree *tree, const struct amp_constant *more, int n, char *err,
                      size_t err_size)
{
    struct amp_constant all[MOST_CONSTANTS];
    size_t classes = (size_t)t->classes * sizeof(int), groups = (size_t)t->groups * sizeof(int);
    tree->classes = t->classes;
    tree->groups = t->groups;
    all[0] = (struct amp_constant){t->parent, classes, (const void **)&tree->parent};
    all[1] = (struct amp_constant){t->group, classes, (const void **)&tree->group};
    all[2] = (struct amp_constant){t->group_offset, groups, (const void **)&tree->group_offset};
    all[3] = (struct amp_constant){t->group_size, groups, (const void **)&tree->group_size};
    for (int k = 0; k < n; k++)
        all[4 + k] = more[k];
    return amp_loss_constants(g, i, all, 4 + n, err, err_size);
}

int amp_loss_tree(struct amp_graph *g, int i, int most, struct ampk_tree *tree,
                  const struct amp_constant *more, int n, char *err, size_t err_size)
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

struct ampk_tensor amp_loss_input(const struct amp_graph *g, int i)
{
    struct ampk_tensor x = g->nodes[i].out;
    x.data = amp_graph_source(g, i, 0)->data;
    return x;
}

static size_t count_of(const struct amp_node *node)
{
    return (size_t)node->out.n * node->out.image_stride;
}

bool amp_loss_wanted(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    if (!g->train || !node->loss) return false;
    if (!g->truth) g->backend->fill_zero(g->context, node->loss, count_of(node) * sizeof(float));
    return g->truth != NULL;
}

void amp_loss_backward(struct amp_graph *g, int i)
{
    struct amp_node *node = &g->nodes[i];
    struct amp_contribution c;
    int s = node->plan->sources[0];
    bool read_itself = s >= 0 && amp_graph_loss_behind(g, s) == i;
    if (read_itself && !amp_graph_looked_at(g)) return;
    if (!amp_contribution_begin(g, i, 0, &c)) return;
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
