/* The rig's stand-in for Darknet's code of recurrent layers (rig.h). It calls the graph for its
 * matrix products as Darknet's code does, step by step. The state begins with zeros; a new one is
 * f(the sum of all inner products and biases), with the rig's f. rnn and crnn have a matrix for the
 * output; of gru and lstm the state is the output. */
#ifndef AMP_TEST_RECURRENT_H
#define AMP_TEST_RECURRENT_H

#include "plugin/core/engine/tensors.h"

struct recurrent;

struct recurrent *recurrent_create(const struct amp_net_desc *, int layer);
void recurrent_free(struct recurrent *);
void recurrent_forward(struct recurrent *, struct amp_graph *, int layer, float *x);
void recurrent_backward(struct recurrent *, struct amp_graph *, int layer, float *x, float *dx);

#endif
