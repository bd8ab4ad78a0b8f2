/* Iterations: from Darknet's train_network until the batch is freed. */
#ifndef AMP_ITERATIONS_H
#define AMP_ITERATIONS_H

#include "darknet.h"

#include <stdbool.h>

/* Call before Darknet's train_network. Ends the program if the network has other numbers of inputs
 * or truths than the batch. */
void amp_iteration_begins(const network *, data);
/* Call after it. */
void amp_iteration_trained(network *, float loss);
/* The network that the calling thread is training in train_network; NULL: none. */
const network *amp_iteration_trains(void);
/* An iteration was trained on this thread, and has not ended. */
bool amp_iteration_is_trained(void);
/* A batch has been freed. This ends an iteration, if one was trained on this thread (true), and
 * calls whoever asked to be called (amp_on_iteration). */
bool amp_iteration_ended(void);

#endif
