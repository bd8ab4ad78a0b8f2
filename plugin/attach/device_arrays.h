/* Darknet's arrays on a device, and which of them get memory: those that somebody touches while the
 * session's plan runs. Nothing in a Darknet without GPU. */
#ifndef AMP_DEVICE_ARRAYS_H
#define AMP_DEVICE_ARRAYS_H

#include "session.h"

#ifdef GPU

/* Between the two Darknet makes its arrays without memory. */
void amp_session_defer(const struct amp_session *);
void amp_session_stop_deferring(void);
/* Memory for those that are touched while the plan runs; for all. */
void amp_session_commit(struct amp_session *);
void amp_session_commit_all(const struct amp_session *);
/* The network's input (upload.h). */
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
