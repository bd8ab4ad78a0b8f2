/* Training batches, image by image.
 *
 * While a thread trains a network with the plugin (seed=N or mixed_precision=1), Darknet's
 * load_data and load_data_in_thread load every image of a batch on its own, with Darknet's own
 * code, on as many threads as were asked for, and join the rows in order: row k is image k. With a
 * seed, image k of the batch for iteration i takes its path and augmentation from stream (seed, i,
 * k), so the batch depends neither on the number of threads nor on what was loaded before. What the
 * caller gets (a thread to join, a batch to free) is what Darknet gives. Without a network to
 * follow both functions load as Darknet's own do.
 *
 * Iteration i: Darknet's trainers keep one batch in hand and load the next; with random=1 they free
 * a batch untrained and load it again in another size. So a batch is for the iteration after the
 * newest one that has not been freed, and where there is none for the current iteration, which is
 * `seen` divided by the images of a step. A resumed run needs nothing else. (With -gpus and several
 * of them `seen` jumps when they are synchronised: there i only counts from the start of the run.)
 */
#ifndef AMP_LOADER_H
#define AMP_LOADER_H

#include "darknet.h"

#include <stdbool.h>
#include <stdint.h>

/* The calling thread trains this network, with *seed or, if that is NULL, Darknet's own random
 * numbers. Batches of an earlier network no longer count. A network of NULL: none of ours. */
void amp_loader_follow(const network *, const uint64_t *seed);
/* Whether the calling thread has a batch in hand: it is training the network that it follows. */
bool amp_loader_is_feeding(void);
/* The network is about to be freed. */
void amp_loader_forget(const network *);

/* File name of an image of the batch in hand (the oldest that has not been freed), counted over all
 * subdivisions; NULL where it is not known. For the thread that trains. */
const char *amp_loader_image(int index);
/* The same for all threads, until it is off: this one waits for others, which train on its batch.
 */
void amp_loader_lend(bool on);
/* Whether the calling thread trains with a seed, and which. */
bool amp_loader_seed(uint64_t *seed);

#endif
