/* Decides which stream a thread's random numbers come from. It must not know what they are drawn
 * for. All state is the thread's own, so drawing needs no lock. */

#include "seed.h"

#include "plugin/attach/interposed.h"

#include "utils.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(RAND_MAX == 0x7fffffff, "rand gives 31 bits");

/* The streams that the thread may draw from, in this order: the one it was given; that of the
 * network it trains; none of ours. */
static _Thread_local struct {
    struct amp_stream *given;
    struct amp_stream parse;
    bool parsing, uniform;
    const network *net;
    uint64_t seed;
    size_t seen; /* at which the network's stream was opened */
    struct amp_stream own;
} thread;

static void open_own(enum amp_stream_purpose purpose)
{
    thread.seen = *thread.net->seen;
    amp_stream_open(&thread.own, thread.seed, purpose, thread.seen, 0);
}

/* The network's stream starts anew when `seen` has changed, which Darknet does first thing in a
 * pass. Looking here needs no call at the start of a pass. */
static struct amp_stream *stream_of_thread(void)
{
    if (thread.given || !thread.net || thread.parsing) return thread.given;
    if (*thread.net->seen != thread.seen) open_own(AMP_STREAM_PASS);
    return &thread.own;
}

void amp_seed_enter_parse(const uint64_t *seed, bool uniform)
{
    /* Without a seed too: the weights of an unseeded network must not come from the stream of a
     * training on this thread. */
    thread.parsing = true;
    thread.uniform = uniform;
    if (!seed) return;
    amp_stream_open(&thread.parse, *seed, AMP_STREAM_WEIGHTS, 0, 0);
    thread.given = &thread.parse;
}

void amp_seed_leave_parse(void)
{
    thread.parsing = thread.uniform = false;
    thread.given = NULL;
}

void amp_seed_follow(const network *net, uint64_t seed)
{
    thread.net = net;
    thread.seed = seed;
    open_own(AMP_STREAM_BETWEEN);
}

void amp_seed_unfollow(void)
{
    thread.net = NULL;
}

void amp_seed_forget(const network *net)
{
    if (thread.net == net) amp_seed_unfollow();
}

void amp_seed_between_steps(void)
{
    if (thread.net) open_own(AMP_STREAM_BETWEEN);
}

void amp_seed_use(struct amp_stream *stream)
{
    thread.given = stream;
}

/* Lets Darknet draw one number and looks whether the probe's counter moved. */
bool amp_seed_reaches_darknet(void)
{
    struct amp_stream probe, *given = thread.given;
    amp_stream_open(&probe, 0, AMP_STREAM_WEIGHTS, 0, 0);
    thread.given = &probe;
    AMP_USE(rand_uniform)(0, 1);
    thread.given = given;
    return probe.counter[0] > 0;
}

struct ampk_draw amp_seed_masks(uint64_t seed, size_t seen)
{
    struct amp_stream s;
    struct ampk_draw draw;
    amp_stream_open(&s, seed, AMP_STREAM_MASK, seen, 0);
    memcpy(draw.key, s.key, sizeof draw.key);
    memcpy(draw.counter, s.counter, sizeof draw.counter);
    return draw;
}

uint64_t amp_seed_of_clock(void)
{
    static _Atomic uint64_t calls;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec) ^ (++calls << 44);
}

/* rand gives 31 bits, so Darknet must get 31. */
static int next_31_bits(struct amp_stream *stream)
{
    return (int)(amp_stream_bits(stream) >> 1);
}

bool amp_seed_uniform(float *x, size_t n)
{
    struct amp_stream *stream = stream_of_thread();
    if (!stream) return false;
    for (size_t i = 0; i < n; i++)
        x[i] = (float)next_31_bits(stream) / (float)RAND_MAX;
    return true;
}

/* libc's rand is shared by all threads: its order depends on how they are scheduled. */
int amp_seed_rand(void)
{
    struct amp_stream *stream = stream_of_thread();
    return stream ? next_31_bits(stream) : AMP_REAL(rand)();
}

bool amp_seed_rules(void)
{
    return stream_of_thread() != NULL;
}

/* Darknet's own keeps the second number of every pair in a static variable for the next call, on
 * whatever thread. */
float amp_seed_rand_normal(void)
{
    struct amp_stream *stream = stream_of_thread();
    if (thread.uniform) return 2 * ((float)amp_seed_rand() / (float)RAND_MAX) - 1;
    return stream ? (float)amp_stream_normal(stream) : AMP_REAL(rand_normal)();
}
