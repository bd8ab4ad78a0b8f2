/* Networks that Darknet trains together, one on each GPU (`-gpus 0,1`, train_networks). In every
 * iteration each of them trains on its part of the batch, in a thread of its own; every fourth
 * iteration Darknet averages their weights. Tasks that a network alone does for itself, the first
 * network does for all: it is saved, has the log and prints what concerns all. */
#ifndef AMP_GPUS_H
#define AMP_GPUS_H

#include "session.h"

enum { AMP_MOST_GPUS = 16 }; /* Darknet has room for the handles of so many */

#ifdef GPU

/* The first network of the group, this one's place in it (0: the first), and the size of the group.
 * For a network that trains alone: itself, 0 and 1. */
struct amp_session *amp_gpus_first(struct amp_session *);
int amp_gpus_place(const network *);
int amp_gpus_count(const network *);

/* First network of the group that passes the test, else this one if it does, else NULL. */
const struct amp_session *amp_gpus_find(const struct amp_session *,
                                        bool (*fulfils)(const struct amp_session *));
/* Call at the end of the program: closes this log and those of the whole group. */
void amp_gpus_close_logs(struct amp_session *);

/* Call around Darknet's train_networks. seed: of the run, or NULL. */
void amp_gpus_begin(network **nets, int n, const uint64_t *seed);
void amp_gpus_end(void);

/* Call around an iteration of one network, or a change of its size, on the thread that does it. */
void amp_gpus_enter(const network *);
void amp_gpus_leave(const network *);
/* Call after enter if this is an iteration. A network that is trained by itself later, outside of
 * train_networks, dissolves the group. */
void amp_gpus_begin_iteration(const network *);
/* For a network that cannot go on. Waits until the others have left; within train_networks, until
 * each of them has finished its iteration. Does not return if another network has called it before.
 * False: it is not known when they finish, because Darknet's train_network does not pass through
 * the plugin (linked statically). */
bool amp_gpus_wait(const struct amp_session *);
/* Averages the weights, as Darknet does before it saves. No network may be in an iteration. */
void amp_gpus_average(const network *);
/* Call before a network is detached or freed. */
void amp_gpus_forget(const network *);

#else
static inline struct amp_session *amp_gpus_first(struct amp_session *s)
{
    return s;
}
static inline int amp_gpus_place(const network *net)
{
    (void)net;
    return 0;
}
static inline int amp_gpus_count(const network *net)
{
    (void)net;
    return 1;
}
static inline const struct amp_session *amp_gpus_find(const struct amp_session *s,
                                                      bool (*fulfils)(const struct amp_session *))
{
    return fulfils(s) ? s : NULL;
}
static inline void amp_gpus_close_logs(struct amp_session *s)
{
    amp_log_close(&s->log, &s->step.scaler);
}
static inline void amp_gpus_enter(const network *net)
{
    (void)net;
}
static inline void amp_gpus_leave(const network *net)
{
    (void)net;
}
static inline void amp_gpus_begin_iteration(const network *net)
{
    (void)net;
}
static inline bool amp_gpus_wait(const struct amp_session *s)
{
    (void)s;
    return true;
}
static inline void amp_gpus_average(const network *net)
{
    (void)net;
}
static inline void amp_gpus_forget(const network *net)
{
    (void)net;
}
#endif

#endif
