/* Decides which of Darknet's arrays on a device get memory: those that somebody touches while the
 * session's plan runs. Does nothing in a Darknet without GPU. */
#ifndef AMP_DEVICE_ARRAYS_H
#define AMP_DEVICE_ARRAYS_H

#include "session.h"

#ifdef GPU

/* Between these two calls Darknet makes its arrays without memory. */
void amp_session_defer(const struct amp_session *);
void amp_session_stop_deferring(void);
/* commit: gives memory to the arrays that are touched while the plan runs; commit_all: to all. */
void amp_session_commit(struct amp_session *);
void amp_session_commit_all(const struct amp_session *);
/* Page-lock the network's input, and undo it (upload.h). */
void amp_session_pin(const struct amp_session *);
void amp_session_unpin(const struct amp_session *);

#else
static inline void amp_session_defer(const struct amp_session *s)
{
    (void)s;
}
static inline void amp_session_stop_deferring(void) {}
static inline void amp_session_commit(struct amp_session *s)
{
    (void)s;
}
static inline void amp_session_commit_all(const struct amp_session *s)
{
    (void)s;
}
static inline void amp_session_pin(const struct amp_session *s)
{
    (void)s;
}
static inline void amp_session_unpin(const struct amp_session *s)
{
    (void)s;
}
#endif

#endif
