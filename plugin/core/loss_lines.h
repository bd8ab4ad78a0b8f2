/* The lines that Darknet's yolo and region layers print after every pass. */
#ifndef AMP_LOSS_LINES_H
#define AMP_LOSS_LINES_H

#include "graph.h"

#include <stdio.h>

/* Those of the heads whose loss is on the device, as last read, in the layers' order. */
void amp_loss_lines_print(const struct amp_graph *, FILE *);

#endif
