/* Counts iterations, and calls whoever asked to be called after each one (amp_on_iteration). */
#ifndef AMP_ITERATION_H
#define AMP_ITERATION_H

#include "darknet.h"

/* Number of iterations of the network that so many images are. */
static inline size_t amp_iterations_in(const network *net, size_t images)
{
    return images / ((size_t)net->batch * (size_t)net->subdivisions);
}

/* The network that the calling thread is training in train_network; NULL: none. */
const network *amp_iteration_trains(void);
/* The calling thread has trained this network, or the first of several that train together. */
void amp_iteration_trained(network *, float loss);
/* A batch has been freed. This ends an iteration, if one was trained on this thread. */
void amp_iteration_ended(void);

#endif
