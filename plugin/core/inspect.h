/* For those who look at a pass: its layers' largest magnitudes and zeros, their tensors, and when
 * each layer runs. What they ask for is in graph.h; this is where the passes call. */
#ifndef AMP_INSPECT_H
#define AMP_INSPECT_H

#include "graph.h"

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
bool amp_graph_looked_at(const struct amp_graph *);
/* To whoever looks at deltas: that of the layer, finished and not used yet. */
void amp_graph_look_at_delta(struct amp_graph *, int layer);
/* Shows x, of the layer's shape, to whoever observes; the passes do it for all that is stored. */
void amp_graph_show(struct amp_graph *, enum amp_seen_what, int layer, const struct ampk_tensor *x);

#endif
