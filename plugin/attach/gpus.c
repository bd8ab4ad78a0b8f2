/* Decides which networks form a group, who is the first, and when all of a group are at rest. It
 * must not know why a run ends (run.c) or how a network trains.
 *
 * Darknet's train_networks starts one thread per GPU for each iteration and joins them all. It has
 * no way to stop early: a thread that ends the program takes the others down in the middle of an
 * update. So every iteration is counted in and out, and a thread that must end the program waits
 * here first. */

#include "gpus.h"

#include "ending.h"
#include "seed.h"
#include "session.h"
#include "interposed.h"

#include "cuda.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <string.h>

/* A program has one group at most. */
static struct {
    network *nets[AMP_MOST_GPUS];
    int n;        /* 0: there is no group */
    bool running; /* between amp_gpus_begin and amp_gpus_end */
    int awaited;  /* networks that have not begun the current iteration of train_networks */
    int busy;     /* networks that are being trained or resized */
    bool ends;    /* a network cannot go on: no new iteration begins */
    bool seeded;
    uint64_t seed;
} group;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static _Thread_local const network *entered; /* the network that this thread is in */

/* Place in the group; -1: the network is alone. Call it under the lock. */
static int find(const network *net)
{
    for (int i = 0; i < group.n; i++)
        if (group.nets[i] == net) return i;
    return -1;
}

int amp_gpus_place(const network *net)
{
    pthread_mutex_lock(&lock);
    int place = find(net);
    pthread_mutex_unlock(&lock);
    return place < 0 ? 0 : place;
}

int amp_gpus_count(const network *net)
{
    pthread_mutex_lock(&lock);
    int count = find(net) < 0 ? 1 : group.n;
    pthread_mutex_unlock(&lock);
    return count;
}

/* Network i of the group that net is in; NULL: there is none. */
static network *member(const network *net, int i)
{
    pthread_mutex_lock(&lock);
    network *found = find(net) >= 0 && i < group.n ? group.nets[i] : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

/* No lock across the two look-ups: sessions.c has its own, and the group does not change while its
 * networks train. */
struct amp_session *amp_gpus_first(struct amp_session *s)
{
    network *first = member(s->net, 0);
    struct amp_session *of_first = first ? amp_session_of(first->layers) : NULL;
    return of_first ? of_first : s;
}

const struct amp_session *amp_gpus_find(const struct amp_session *s,
                                        bool (*fulfils)(const struct amp_session *))
{
    const network *net;
    for (int i = 0; (net = member(s->net, i)); i++) {
        const struct amp_session *other = amp_session_of(net->layers);
        if (other && fulfils(other)) return other;
    }
    return fulfils(s) ? s : NULL;
}

void amp_gpus_close_logs(struct amp_session *s)
{
    const network *net;
    for (int i = 0; (net = member(s->net, i)); i++) {
        struct amp_session *other = amp_session_of(net->layers);
        if (other) amp_log_close(&other->log, &other->step.scaler);
    }
    amp_log_close(&s->log, &s->step.scaler);
}

void amp_gpus_enter(const network *net)
{
    pthread_mutex_lock(&lock);
    bool together = find(net) >= 0;
    /* If another network cannot go on, the iteration of all is finished first, by this network too;
     * the one after it is not begun, and this thread waits for the end of the program. */
    while (together && group.ends && !group.awaited)
        pthread_cond_wait(&left, &lock);
    if (together) group.busy++;
    if (together && group.awaited) group.awaited--;
    pthread_mutex_unlock(&lock);
    entered = net;
}

void amp_gpus_leave(const network *net)
{
    pthread_mutex_lock(&lock);
    if (find(net) >= 0) group.busy--;
    /* Wakes a network that waits in amp_gpus_wait. */
    pthread_cond_broadcast(&left);
    pthread_mutex_unlock(&lock);
    entered = NULL;
}

/* Call it under the lock. Every log belongs to its own network again. */
static void end_group(void)
{
    for (int i = 0; i < group.n; i++) {
        struct amp_session *s = amp_session_of(group.nets[i]->layers);
        if (s) amp_log_share(&s->log, 0, 1, group.nets[i]->gpu_index);
    }
    group.n = 0;
}

void amp_gpus_begin_iteration(const network *net)
{
    pthread_mutex_lock(&lock);
    /* A trainer without train_networks has no part of a batch for the others. */
    if (find(net) >= 0 && !group.running) end_group();
    int place = find(net);
    bool follows = place >= 0 && group.seeded;
    pthread_mutex_unlock(&lock);
    if (follows) amp_seed_follow(net, group.seed, (uint32_t)place);
}

/* counts: this thread is inside an iteration and stays there, so busy > counts means others are.
 * late: another network waits here already; it will end the program, and this one never leaves the
 * loop. step_out: exit must not wait for a thread that waits here. */
bool amp_gpus_wait(const struct amp_session *s)
{
    bool counts = entered == s->net;
    if (amp_gpus_count(s->net) == 1) return true;
    amp_ending_step_out();
    pthread_mutex_lock(&lock);
    bool known = counts || !group.running, late = known && group.ends;
    group.ends |= known;
    group.busy -= late && counts;
    pthread_cond_broadcast(&left);
    while (late || (known && (group.awaited || group.busy > counts)))
        pthread_cond_wait(&left, &lock);
    pthread_mutex_unlock(&lock);
    amp_ending_enter();
    return known;
}

void amp_gpus_average(const network *net)
{
    if (amp_gpus_count(net) > 1) AMP_USE(sync_nets)(group.nets, group.n, 0);
}

void amp_gpus_forget(const network *net)
{
    pthread_mutex_lock(&lock);
    if (find(net) >= 0) end_group();
    pthread_mutex_unlock(&lock);
}

/* ---- an iteration of all ---- */

void amp_gpus_begin(network **nets, int n, const uint64_t *seed)
{
    /* Without a session nothing here concerns us; Darknet may do what it does. */
    if (n > AMP_MOST_GPUS && !amp_session_of(nets[0]->layers)) return;
    if (n > AMP_MOST_GPUS) amp_fail("-gpus: at most 16 GPUs");
    pthread_mutex_lock(&lock);
    memcpy(group.nets, nets, (size_t)n * sizeof *nets);
    group.n = n;
    group.running = true;
    group.awaited = n;
    group.busy = 0;
    group.seeded = seed != NULL;
    if (seed) group.seed = *seed;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < n; i++) {
        struct amp_session *s = amp_session_of(nets[i]->layers);
        if (s) amp_log_share(&s->log, i, n, nets[i]->gpu_index);
    }
}

void amp_gpus_end(void)
{
    pthread_mutex_lock(&lock);
    group.running = false;
    group.awaited =
        0; /* a Darknet whose train_network goes past the plugin has counted nobody in */
    pthread_mutex_unlock(&lock);
}
