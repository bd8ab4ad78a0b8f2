/* Training batches, from being loaded until they are freed. They are loaded image by image.
 *
 * While a thread trains a network with the plugin (seed=N or mixed_precision=1), Darknet's
 * load_data and load_data_in_thread load every image of a batch by itself and join the rows in
 * order: row k is image k. A detector's JPEGs go through plugin/images (detection.c), everything
 * else through Darknet's own code; loader.c says on how many threads. With a seed,
 * image k of the batch for iteration i draws its path and augmentation from stream (seed, i, k), so
 * a batch depends neither on the number of threads nor on what was loaded before. The caller gets
 * what Darknet gives: a thread to join and a batch to free. If the thread follows no network, both
 * functions load as Darknet's own do.
 *
 * Which iteration is a batch for? Darknet's trainers keep one batch in hand and load the next; with
 * random=1 they free a batch untrained and load it again in another size. So a batch is for the
 * iteration after that of the newest batch that has not been freed; if there is none, it is for the
 * current iteration, `seen` divided by the images of a step. A resumed run needs nothing else.
 */
#ifndef AMP_BATCHES_H
#define AMP_BATCHES_H

#include "darknet.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct amp_session;

/* The calling thread trains this network: with *seed, or with Darknet's own random numbers if seed
 * is NULL. Batches of an earlier network no longer count. net NULL: the thread trains none of
 * ours. */
void amp_batches_follow(const network *, const uint64_t *seed);
/* True if the calling thread has a batch in hand, that is, if it is training. */
bool amp_batches_in_hand(void);
/* The network is about to be freed. */
void amp_batches_forget(const network *);

/* File name of an image of the batch in hand (the oldest that has not been freed), counted over all
 * subdivisions; NULL if it is not known. Call it on the training thread. */
const char *amp_batches_image(int index);

/* ---- in the places of Darknet's functions ---- */

/* load_data and load_data_in_thread. */
pthread_t amp_batches_load(load_args);
pthread_t amp_batches_load_in_thread(load_args);
/* For free_ptrs, before Darknet's own: waits until no batch is being loaded. */
void amp_batches_wait(void);
/* For free_data, before Darknet's own. */
void amp_batches_drop(data);
/* The session of the network that the calling thread trains; NULL: none. */
struct amp_session *amp_batches_session(void);
/* An iteration has ended: from now on the calling thread waits for nothing but images. */
void amp_batches_await(void);

#endif
