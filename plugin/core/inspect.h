/* For observers of a pass: the largest magnitudes and zeros of its layers, their tensors, and the
 * time of each layer. Observers ask in graph.h; the passes call the functions here. */
#ifndef AMP_INSPECT_H
#define AMP_INSPECT_H

#include "graph.h"

size_t amp_graph_inspected_bytes(const struct amp_graph *);
/* Call when a pass begins. */
void amp_graph_begin_inspection(struct amp_graph *);
/* Call when backward is repeated: forgets the numbers of the deltas. */
void amp_graph_inspect_deltas_anew(struct amp_graph *);
/* Show a layer's output, or its weight gradient, to an observer. */
void amp_graph_look_at_output(struct amp_graph *, int layer);
void amp_graph_show_gradient(struct amp_graph *, int layer);
/* Tells the tracer, if there is one, that the layer's part of a pass begins or is done. */
void amp_graph_tell_tracer(const struct amp_graph *, int layer, bool backward, bool done);
/* True if somebody observes or inspects, so that deltas which are stored nowhere must be
 * computed. */
bool amp_graph_looked_at(const struct amp_graph *);
/* Shows the layer's delta to an observer: complete, and not used yet. */
void amp_graph_look_at_delta(struct amp_graph *, int layer);
/* Shows x, which has the layer's shape, to an observer. The passes do this for every stored
 * tensor. */
void amp_graph_show(struct amp_graph *, enum amp_seen_what, int layer, const struct ampk_tensor *x);

#endif
