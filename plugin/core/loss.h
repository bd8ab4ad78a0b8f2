/* What the executors of losses on the device share. Their input and output are FP32 NCHW; the
 * unscaled delta stands in node->loss and is scaled on its way to the source. */
#ifndef AMP_LOSS_H
#define AMP_LOSS_H

#include "class_files.h"
#include "executor.h"

/* An array of the host that an operation reads; *where is set to its copy. NULL data: *where is
 * NULL. */
struct amp_constant {
    const void *data;
    size_t bytes;
    const void **where;
};

/* Copies all of them to node->constants. -1 with the reason in err. */
int amp_loss_constants(struct amp_graph *, int layer, const struct amp_constant *, int n, char *err,
                       size_t err_size);
/* node->options: a copy. */
int amp_loss_options(struct amp_graph *, int layer, const void *options, size_t bytes, char *err,
                     size_t err_size);

/* The tree that the layer names, its arrays in node->constants; `more` constants go there with it.
 * No tree: *tree is empty. -1 with the reason in err. most: classes that the layer has room for. */
int amp_loss_tree(struct amp_graph *, int layer, int most, struct ampk_tree *tree,
                  const struct amp_constant *more, int n, char *err, size_t err_size);

/* The layer's input with the shape of its output. */
struct ampk_tensor amp_loss_input(const struct amp_graph *, int layer);
/* Whether a delta is to be computed in this pass. Without a truth it is zero. */
bool amp_loss_wanted(struct amp_graph *, int layer);
/* dx (+)= what reached the layer's own delta, if anything, + scale * node->loss. */
void amp_loss_backward(struct amp_graph *, int layer);

#endif
