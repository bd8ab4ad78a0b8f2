/* What the files that make up the graph share (graph.c, gradients.c, inspect.c, update.c, watch.c);
 * for nobody else. */
#ifndef AMP_GRAPH_PARTS_H
#define AMP_GRAPH_PARTS_H

#include "graph.h"

/* The output shape of a layer (-1: the network's input); flat where Darknet has no image shape. */
struct ampk_tensor amp_graph_shaped(const struct amp_graph *, int layer, void *data,
                                    enum amp_format);

/* ---- gradients.c ---- */

/* Memory for gradients, and sums if they are to be accumulated. -1 with the reason in err. */
int amp_graph_alloc_gradients(struct amp_graph *, bool accumulate, char *err, size_t err_size);
/* Gives every param its place in gradients and sums. */
void amp_graph_place_gradients(struct amp_graph *);
/* Lists where the weight gradients of convolutions go; after their creation, and when the params
 * have other places. */
void amp_graph_list_weight_gradients(struct amp_graph *);

/* ---- inspect.c ---- */

size_t amp_graph_inspected_bytes(const struct amp_graph *);
/* A pass begins. */
void amp_graph_begin_inspection(struct amp_graph *);
/* Backward is repeated: what was seen of deltas is forgotten. */
void amp_graph_inspect_deltas_anew(struct amp_graph *);
/* To whoever looks: a layer's output, its weight gradient. */
void amp_graph_look_at_output(struct amp_graph *, int layer);
void amp_graph_show_gradient(struct amp_graph *, int layer);
/* To whoever traces the layers: this one's part of a pass begins, or is done. */
void amp_graph_tell_tracer(const struct amp_graph *, int layer, bool backward, bool done);

/* ---- watch.c ---- */

/* Of watch and loss_sums. */
size_t amp_graph_watch_bytes(const struct amp_graph *);
/* Clears both. */
void amp_graph_clear_watch(struct amp_graph *);
/* Notes which tensors of a layer are stored as FP16. */
void amp_graph_mark_fp16(struct amp_graph *, int layer);

#endif
