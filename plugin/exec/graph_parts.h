/* What the files that make up the graph share; for nobody else. */
#ifndef AMP_GRAPH_PARTS_H
#define AMP_GRAPH_PARTS_H

#include "graph.h"

/* Clears the watch words and the losses' sums beside them. */
void amp_graph_clear_watch(struct amp_graph *);

#endif
