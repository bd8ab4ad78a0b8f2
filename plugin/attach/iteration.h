/* Iterations: how many they were, and who asked to be called after every one (amp_on_iteration). */
#ifndef AMP_ITERATION_H
#define AMP_ITERATION_H

#include "darknet.h"

/* How many iterations of the network so many images are. */
static inline size_t amp_iterations_in(const network *net, size_t images)
{
    return images / ((size_t)net->batch * (size_t)net->subdivisions);
}

/* What the calling thread trains in train_network; NULL: it is not there. */
const network *amp_iteration_trains(void);
/* The calling thread has trained it, or the first of several that are trained together. */
void amp_iteration_trained(network *, float loss);
/* A batch has been freed: with it ends an iteration, if one was trained on this thread. */
void amp_iteration_ended(void);

#endif
