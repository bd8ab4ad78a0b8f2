/* Random numbers of a run with seed=N.
 *
 * Darknet draws everything from libc's rand, most of it on the thread that trains, the images on
 * loader threads. In a thread that has a stream (plugin/core/stream.h), rand and Darknet's
 * rand_normal give the stream's numbers and srand does nothing; in every other thread all three are
 * libc's and Darknet's own.
 *
 * The training thread's stream is chosen by the network's `seen` alone, so that a run that is
 * stopped and resumed draws what the uninterrupted one draws. It starts anew
 *   - when a batch is asked for or freed (amp_seed_between_steps): what comes next is drawn between
 *     two steps, at the same place in both kinds of run,
 *   - when `seen` has changed, which Darknet does first thing in every pass. */
#ifndef AMP_SEED_H
#define AMP_SEED_H

#include "darknet.h"
#include "kernels/kernels.h"
#include "plugin/core/stream.h"

/* Around Darknet's parse_network_cfg: the initial weights depend on the seed only; NULL: they are
 * drawn from libc's, whatever else the thread trains. uniform: rand_normal then gives numbers that
 * are spread evenly from -1 to 1, which is how the other Darknets draw a convolution's weights. */
void amp_seed_enter_parse(const uint64_t *seed, bool uniform);
void amp_seed_leave_parse(void);

/* The calling thread trains this network with this seed. Until the next call, or amp_seed_unfollow.
 */
void amp_seed_follow(const network *, uint64_t seed);
void amp_seed_unfollow(void);
/* The network is about to be freed. */
void amp_seed_forget(const network *);
void amp_seed_between_steps(void);

/* The calling thread draws from this stream before any other; NULL: no longer. */
void amp_seed_use(struct amp_stream *);

/* True if Darknet's calls of rand arrive here. They do not if Darknet was loaded before the plugin
 * with a scope of its own (Python's ctypes without LD_PRELOAD); seed=N cannot work there. */
bool amp_seed_reaches_darknet(void);

/* The numbers from which a device draws dropout's masks (amp_graph.masks), in the pass that ends at
 * `seen` images. */
struct ampk_draw amp_seed_masks(uint64_t seed, size_t seen);
/* A seed for a run without one: different every time. */
uint64_t amp_seed_of_clock(void);

/* Fills x with n numbers in [0, 1] from the calling thread's stream. False, and x untouched: the
 * thread has no stream. */
bool amp_seed_uniform(float *x, size_t n);

/* True if the calling thread has a stream. */
bool amp_seed_rules(void);
/* rand and rand_normal: from the calling thread's stream, else libc's and Darknet's own; but for a
 * uniform parse. */
int amp_seed_rand(void);
float amp_seed_rand_normal(void);

#endif
