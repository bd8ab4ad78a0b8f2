/* Networks that Darknet trains together, one on each GPU (`-gpus 0,1`, train_networks): every
 * iteration each of them trains in a thread of its own on its part of the batch, every fourth their
 * weights are averaged. What a network alone does for itself, the first of them does for all: it is
 * saved, has the log and says what concerns all. */
#ifndef AMP_GPUS_H
#define AMP_GPUS_H

#include "session.h"

enum { AMP_MOST_GPUS = 16 }; /* Darknet has room for the handles of so many */

#ifdef GPU

/* The first of those that the network trains with, its place among them (0: the first) and how many
 * they are: for a network alone itself, 0 and 1. */
struct amp_session *amp_gpus_first(struct amp_session *);
int amp_gpus_place(const network *);
int amp_gpus_count(const network *);

/* Itself or one that it trains with that fulfils that; NULL: none does. */
const struct amp_session *amp_gpus_find(const struct amp_session *,
                                        bool (*fulfils)(const struct amp_session *));
/* The end of the program: its log, and those of all that it trains with. */
void amp_gpus_close_logs(struct amp_session *);

/* Around Darknet's train_networks. seed: of the run, or NULL. */
void amp_gpus_begin(network **nets, int n, const uint64_t *seed);
void amp_gpus_end(void);

/* Around an iteration of one network, or a change of its size, on the thread that does it. */
void amp_gpus_enter(const network *);
void amp_gpus_leave(const network *);
/* It is an iteration. Outside of train_networks it is trained alone: the others are, too, then. */
void amp_gpus_begin_iteration(const network *);
/* For a network that cannot go on: waits until the others have left, in train_networks until each
 * of them has finished its iteration. Does not return where another one came first. False:
 * Darknet's train_network does not pass through the plugin (linked statically), so that nobody
 * knows when they have. */
bool amp_gpus_wait(const struct amp_session *);
/* As Darknet before it saves; nothing is in an iteration. */
void amp_gpus_average(const network *);
/* The network is about to be detached or freed. */
void amp_gpus_forget(const network *);

/* The thread uses the GPU of the session from now on, if it has one: as Darknet's functions leave
 * it that save, load and resize. Between enter and leave: only there. */
void amp_gpu_use(const struct amp_session *);
int amp_gpu_enter(const struct amp_session *);
void amp_gpu_leave(int before);

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
static inline void amp_gpu_use(const struct amp_session *s)
{
    (void)s;
}
static inline int amp_gpu_enter(const struct amp_session *s)
{
    (void)s;
    return 0;
}
static inline void amp_gpu_leave(int before)
{
    (void)before;
}
#endif

#endif
